"""Without Java, Maven or a network the tests here are skipped, and say for want of what. Needs none of them."""

from __future__ import annotations

import pytest
from tests.interop.peers import java
from tests.interop.peers.java import JavaMissing, failure

ABSENT = [
    "Could not transfer artifact org.x:rocketmq-tools:pom:4.9.8 from/to central: Unknown host",
    "Could not find artifact org.x:rocketmq-tools:pom:4.9.8 in central",
    "in offline mode and the artifact org.x:rocketmq-tools:pom:4.9.8 has not been downloaded from it before.",
]


@pytest.mark.parametrize("line", ABSENT)
def test_what_cannot_be_downloaded_is_named(line: str) -> None:
    missing = failure(f"[ERROR] Failed to execute goal on project driver4:\n{line} -> [Help 1]\n[ERROR]\n")

    assert isinstance(missing, JavaMissing)
    assert str(missing) == "Maven cannot download org.x:rocketmq-tools:pom:4.9.8"


def test_a_java_that_only_runs_programs_is_not_enough() -> None:
    missing = failure("[ERROR] No compiler is provided in this environment. Perhaps you are running on a JRE?")

    assert isinstance(missing, JavaMissing)
    assert "no Java compiler" in str(missing)


def test_a_driver_that_does_not_compile_is_no_reason_to_skip() -> None:
    assert isinstance(failure("[ERROR] COMPILATION ERROR :\n[ERROR] Lines.java:[25,42] ';' expected"), RuntimeError)


def test_an_absent_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.shutil, "which", lambda tool: None if tool == "mvn" else f"/bin/{tool}")

    with pytest.raises(JavaMissing, match="mvn is not installed"):
        java.build()
