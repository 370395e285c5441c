"""Which form runs, and what people are told of it."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from pyromq import speedups

FOLDER = Path(speedups.__file__).parent


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Load the package from a folder of its own, with the units that the test put there."""
    monkeypatch.delenv("PYROMQ_PURE", raising=False)

    def load():
        folder = tmp_path / "hot"
        folder.mkdir(exist_ok=True)
        source = (FOLDER / "__init__.py").read_text()
        (folder / "__init__.py").write_text(source)
        spec = importlib.util.spec_from_file_location(
            "hot", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "hot", module)
        for name in [name for name in sys.modules if name.startswith("hot.")]:
            monkeypatch.delitem(sys.modules, name)
        spec.loader.exec_module(module)
        return module

    (tmp_path / "hot").mkdir()
    for unit in speedups.UNITS:
        (tmp_path / "hot" / f"{unit}.py").write_text("")
    return load


def test_with_all_units_the_compiled_form_runs(package):
    hot = package()
    assert (hot.is_active, hot.hot_path) == (True, "compiled")


@pytest.mark.parametrize("value", ["0", ""])
def test_pure_that_is_off_changes_nothing(package, monkeypatch, value):
    monkeypatch.setenv("PYROMQ_PURE", value)
    assert package().is_active


def test_plain_python_can_be_chosen(package, monkeypatch):
    monkeypatch.setenv("PYROMQ_PURE", "1")
    hot = package()
    assert (hot.is_active, hot.hot_path) == (False, "plain Python, chosen by PYROMQ_PURE")


@pytest.mark.parametrize("absent", speedups.UNITS)
def test_one_unit_that_is_not_built_means_plain_python_and_what_to_do(package, tmp_path, absent):
    (tmp_path / "hot" / f"{absent}.py").unlink()
    hot = package()
    assert not hot.is_active
    assert hot.hot_path.startswith("plain Python, not built for this Python; to compile it, install a C compiler")
    assert f"{sys.executable} -m pip install" in hot.hot_path


@pytest.mark.parametrize("error", ["ImportError('undefined symbol: f')", "ValueError('Header size changed')"])
def test_a_unit_that_does_not_load_is_told_with_its_error(package, tmp_path, error):
    (tmp_path / "hot" / f"{speedups.UNITS[-1]}.py").write_text(f"raise {error}")
    hot = package()
    assert not hot.is_active
    assert hot.hot_path.startswith(
        f"plain Python, the compiled one does not load ({error.split(chr(39))[1]}); to compile"
    )


def test_every_unit_has_its_source():
    assert {f"{unit}.pyx" for unit in speedups.UNITS} <= {path.name for path in FOLDER.glob("*.pyx")}


def test_the_units_know_nobody():
    texts = [path.read_text() for path in FOLDER.glob("*.p[yx][xd]")]
    known = {
        name for text in texts for name in re.findall(r"^\s*(?:from|c?import) +(pyromq[\w.]*)", text, re.MULTILINE)
    }
    assert known
    assert all(name.startswith("pyromq.speedups.") for name in known)
