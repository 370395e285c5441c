"""Contexts name clusters: kept in a file of the person's, outranked by options, and by the environment if not named."""

import json
import stat

import pytest

from pyromq.cli.context_file import context_file_path


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@pytest.fixture
def namesrv(shared):
    return shared.namesrv


def test_the_first_context_is_used_and_others_when_asked_for(cli, namesrv):
    assert cli("context", "set", "here", "-n", namesrv).out == "context here is current\n"
    assert cli("context", "set", "away", "-n", "127.0.0.1:1").out == "context away is saved\n"
    assert cli("topic", "list").code == 0
    assert cli("--context", "away", "topic", "list").code == 1
    assert cli("context", "use", "away").out == "context away is current\n"
    assert cli("topic", "list").code == 1
    assert cli("--context", "here", "topic", "list").code == 0
    assert cli("topic", "list", "-n", namesrv).code == 0
    rows = json.loads(cli("context", "list", "-o", "json").out)
    assert [(row["context"], row["current"], row["name_servers"]) for row in rows] == [
        ("away", True, "127.0.0.1:1"),
        ("here", False, namesrv),
    ]
    assert cli("context", "delete", "away").out == "context away is deleted; none is current\n"


def test_the_environment_outranks_the_current_context_but_not_a_named_one(cli, namesrv, monkeypatch):
    cli("context", "set", "away", "-n", "127.0.0.1:1")
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    assert cli("topic", "list").code == 0
    assert cli("--context", "away", "topic", "list").code == 1
    monkeypatch.setenv("PYROMQ_CONTEXT", "away")
    assert cli("topic", "list").code == 1


def test_files_are_kept_by_their_whole_path_and_secrets_where_they_are(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("a secret\n")
    made = cli("context", "set", "prod", "--tls-ca", "ca.pem", "--access-key", "ann", "--secret-key", "@secret")
    assert made.code == 0
    assert json.loads(context_file_path().read_text())["contexts"]["prod"] == {
        "PYROMQ_ACCESS_KEY": "ann",
        "PYROMQ_SECRET_KEY": f"@{tmp_path}/secret",
        "PYROMQ_TLS": "true",
        "PYROMQ_TLS_CA": f"{tmp_path}/ca.pem",
    }
    assert stat.S_IMODE(context_file_path().stat().st_mode) == 0o600
    assert "a secret" not in cli("context", "show", "prod").out
    refused = cli("context", "set", "prod", "--secret-key", "12345678")
    assert (refused.code, "contexts hold no secrets" in refused.err) == (2, True)


def test_an_empty_name_is_refused(cli):
    assert "'a\\x1b[31m' of a context has characters that cannot be printed" in cli("context", "set", "a\x1b[31m").err
    refused = cli("context", "set", "")
    assert (refused.code, "'NAME': it is empty" in refused.err) == (2, True)


def test_a_name_that_is_none_is_told_what_there_is(cli):
    cli("context", "set", "here", "-n", "127.0.0.1:1")
    for arguments in (["--context", "her", "topic", "list"], ["context", "use", "her"], ["context", "show", "her"]):
        outcome = cli(*arguments)
        assert outcome.code == 1
        assert outcome.err == (
            "error: context 'her' does not exist; existing ones: here. `pyromq context set` creates one\n"
        )


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"current": 1, "contexts": []}', '{"current": "a", "contexts": {"a": {"b": 1}}}']
)
def test_a_file_that_cannot_be_understood_is_named(cli, content):
    context_file_path().parent.mkdir(parents=True)
    context_file_path().write_text(content)
    outcome = cli("context", "list")
    assert (outcome.code, str(context_file_path()) in outcome.err) == (1, True)
