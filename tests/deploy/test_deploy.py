"""deploy/: what the image runs is run, by this checkout's program, and by a wheel in an empty environment."""

import configparser
import re
import shlex
import subprocess
import sys
import urllib.request
import venv
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from tests.processes import Program, free_port
from tests.waiting import PATIENCE_SECONDS, wait_until

pytest.importorskip("starlette", reason="the console needs its extra: pip install 'pyromq[console]'")

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
COMMANDS = {name: service["command"] for name, service in SERVICES.items() if service["image"] == "pyromq"}
READY = {"namesrv": "ready in", "broker": "ready in", "console": "console"}
UNITS = sorted(DEPLOY.glob("systemd/*.service"))


def this_checkout(folder):
    return [sys.executable, "-m", "pyromq"]


def a_wheel_alone(folder):
    """Build a wheel and install it as the Dockerfile does, into an environment that has nothing else."""
    extras = re.search(r"\*\.whl\)\[(.*?)\]", (DEPLOY / "Dockerfile").read_text())[1]
    root = DEPLOY.parent
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder / "wheels", root], check=True)
    (wheel,) = (folder / "wheels").iterdir()
    venv.create(folder / "env")
    target = ["--python", folder / "env/bin/python", "install", "-c", root / "constraints.txt", f"{wheel}[{extras}]"]
    subprocess.run([*pip[:3], *target, "--quiet"], check=True)
    return [folder / "env/bin/pyromq"]


def in_order(text):
    """The command with its ports exchanged for free ones, each for the same wherever it stands."""
    for port in sorted(set(re.findall(r"\b\d{4,5}\b", " ".join(COMMANDS.values())))):
        FREE.setdefault(port, str(free_port()))
        text = re.sub(rf"\b{port}\b", FREE[port], text)
    return shlex.split(text)


FREE = {}


@pytest.mark.slow  # three processes start
@pytest.mark.parametrize("program", [this_checkout, pytest.param(a_wheel_alone, marks=pytest.mark.soak)])
def test_services_of_the_compose_file_find_each_other(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FREE.clear()
    pyromq = program(tmp_path)
    home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with ExitStack() as stack:
        for name, command in COMMANDS.items():
            server = Program([*pyromq, *in_order(command)], READY[name], home)
            stack.callback(server.stop)
            server.wait_until_ready()
        namesrv = f"127.0.0.1:{FREE['9876']}"

        def run(*arguments):
            command = [*pyromq, *arguments, "-n", namesrv]
            return subprocess.run(command, env=home, check=True, capture_output=True).stdout

        run("send", "greetings", "hello")
        assert run("consume", "greetings", "--from", "beginning", "--count", "1") == b"hello\n"
        topics = f"http://127.0.0.1:{FREE['8876']}/topics"
        # The console looks at the cluster every few seconds.
        wait_until(lambda: b"greetings" in urllib.request.urlopen(topics, timeout=PATIENCE_SECONDS).read())
        for port in re.findall(r"127\.0\.0\.1:(\d+)", (DEPLOY / "monitoring/prometheus.yml").read_text()):
            scraped = urllib.request.urlopen(f"http://127.0.0.1:{FREE[port]}/metrics", timeout=PATIENCE_SECONDS).read()
            assert b"# TYPE" in scraped


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_run_commands_that_there_are(unit):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(unit)
    program, *arguments = shlex.split(parser["Service"]["ExecStart"])
    assert program == "/opt/pyromq/bin/pyromq"
    told = subprocess.run([sys.executable, "-m", "pyromq", *arguments, "--help"], capture_output=True, text=True)
    assert told.returncode == 0
    assert {option for option in arguments if option.startswith("--")} <= set(re.findall(r"--[a-z-]+", told.stdout))


def test_the_image_gets_all_that_is_built_from():
    """.dockerignore lets through what pyproject.toml and setup.py name."""
    kept = set(re.findall(r"^!(\S+)", (DEPLOY.parent / ".dockerignore").read_text(), re.MULTILINE))
    assert {"pyproject.toml", "setup.py", "src", "README.md", "LICENSE", "constraints.txt"} <= kept
