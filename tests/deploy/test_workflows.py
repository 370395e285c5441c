"""What a public forge runs and asks (.github), and what pages say of `make`: it all exists in this checkout."""

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import pyromq.testing
from pyromq.cli.main import pyromq as command_line

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = dict(re.findall(r"^([a-z0-9-]+):(?!=)(.*?)(?:##.*)?$", MAKEFILE, re.MULTILINE))
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FORMS = [path for path in sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")) if path.name != "config.yml"]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("tests/**/*.md")]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
OF_SYSTEM = {"apt-get", "git", "sudo", "pip"}  # programs that a runner has


def jobs(workflow):
    return yaml.safe_load(workflow.read_text("utf-8"))["jobs"].values()


def commands(job):
    """Return the commands of a job, for each choice of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    choices = [*matrix.get("include", ()), *({name: each} for name in matrix for each in matrix[name])]
    for run in (step["run"] for step in job["steps"] if "run" in step):
        for choice in [each for each in choices if any(f"matrix.{name} " in run for name in each)] or [{}]:
            text = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found, of=choice: of[found[1]], run)
            yield from (shlex.split(part, comments=True) for part in text.split("&&"))


def missing(command):
    """Return what a command needs and this checkout does not have."""
    match command:
        case ["make", target, *settings]:
            names = [each.partition("=")[0] for each in settings]
            unused = [name for name in names if f"({name})" not in MAKEFILE and name != "PYROMQ_PURE"]
            return unused if target in TARGETS else [target]
        case ["python", "-m", "pyromq", option]:
            return [] if option in ("--version", "--help") else [option]
        case ["python", path, *_]:
            return [] if (ROOT / path).is_file() else [path]
        case [program, *_] if program in OF_SYSTEM:
            extras = re.findall(r"\.\[(.+)\]", " ".join(command))
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            return [each for names in extras for each in names.split(",") if each not in known]
        case [path]:
            return [] if os.access(ROOT / path, os.X_OK) else [path]
    return command


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_a_workflow_exist(workflow):
    found = [command for job in jobs(workflow) for command in commands(job)]
    assert found
    assert [name for command in found for name in missing(command)] == []


def test_a_command_that_does_not_exist_is_found():
    wrong = ["make nothing", "make crash LIVES=3", "python scripts/nothing.py", ".ci/nothing", "pip install .[nothing]"]
    assert [each for each in wrong if not missing(shlex.split(each))] == []


def test_every_long_target_has_its_night():
    (long,) = (workflow for workflow in WORKFLOWS if workflow.stem == "long")
    targets = {command[1] for job in jobs(long) for command in commands(job) if command[0] == "make"}
    assert targets >= {*TARGETS["all"].split(), "platforms", "arm64", "kill-proxy"}


def test_a_release_is_built_for_every_python():
    (release,) = (workflow for workflow in WORKFLOWS if workflow.stem == "release")
    (job,) = jobs(release)
    (versions,) = (step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {}))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert sorted(versions.split()) == named == PYTHONS
    assert project["requires-python"] == f">={PYTHONS[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_and_asks_for_what_exists(form):
    asked = yaml.safe_load(form.read_text("utf-8"))
    assert {"name", "description", "body"} <= asked.keys()
    ids = [field["id"] for field in asked["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["type"] in ("textarea", "dropdown", "input") for field in asked["body"])
    assert all(field["attributes"]["label"] for field in asked["body"])
    context = command_line.make_context("pyromq", ["help"], resilient_parsing=True)
    commands = set(re.findall(r"`pyromq ([a-z]+)", form.read_text("utf-8")))
    assert [name for name in commands if command_line.get_command(context, name) is None] == []
    named = re.findall(r"`pyromq\.testing\.(\w+)`", form.read_text("utf-8"))
    assert [name for name in named if not hasattr(pyromq.testing, name)] == []


def test_pages_name_targets_that_exist():
    lines = [line for page in PAGES for line in page.read_text("utf-8").splitlines()]
    named = {name for line in lines for name in re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z][a-z0-9-]*)", line)}
    assert named >= {"test", "release-check", "crash"}
    assert sorted(named - TARGETS.keys()) == []
