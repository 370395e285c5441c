"""deploy/: what the image runs is run, by this checkout's program, and by a wheel in an empty environment."""

import configparser
import json
import os
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
from tests.etcd_cluster import need_etcd
from tests.processes import Program, free_port
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq.broker.config import BrokerConfig
from pyromq.cli.server_properties import broker_settings, read_properties

pytest.importorskip("starlette", reason="the console needs its extra: pip install 'pyromq[console]'")

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
COMMANDS = {name: service["command"] for name, service in SERVICES.items() if service["image"] == "pyromq"}
REPLICAS = yaml.safe_load((DEPLOY / "compose-replicas.yaml").read_text())["services"]
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
    for port in sorted(set(re.findall(r"\b\d{4,5}\b", text))):
        FREE.setdefault(port, str(free_port(1)))
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


@pytest.mark.slow  # five processes start
def test_replicas_of_the_compose_file_fail_over(tmp_path, monkeypatch):
    need_etcd()
    monkeypatch.chdir(tmp_path)
    FREE.clear()
    pyromq = this_checkout(tmp_path)
    home = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ETCD_UNSUPPORTED_ARCH": "arm64"}
    with ExitStack() as stack:
        servers = {}
        for name, service in REPLICAS.items():
            own = service["image"] == "pyromq"
            command = [*(pyromq if own else []), *in_order(service["command"])]
            servers[name] = Program(command, "ready in" if own else "ready to serve client requests", home)
            stack.callback(servers[name].stop)
            servers[name].wait_until_ready()
        namesrv = f"127.0.0.1:{FREE['9876']}"

        def run(*arguments):
            command = [*pyromq, *arguments, "-n", namesrv]
            return subprocess.run(command, env=home, check=True, capture_output=True, text=True).stdout

        def addresses():
            return {each["id"]: each["address"] for each in json.loads(run("cluster", "list", "-o", "json"))}

        wait_until(lambda: sorted(addresses()) == [0, 2, 3])
        run("send", "greetings", "one")
        servers["replica-1"].kill()
        run("send", "greetings", "two")
        assert 0 in addresses()
        assert addresses()[0] != f"127.0.0.1:{FREE['10911']}"
        found = run("consume", "greetings", "--from", "beginning", "--count", "2")
        assert sorted(found.split()) == ["one", "two"]


def test_settings_of_a_replica_are_those_of_a_broker(tmp_path):
    file = DEPLOY / "systemd/replica.properties"
    config = BrokerConfig(**{"data": tmp_path, **broker_settings(read_properties(file), data=tmp_path, source=file)})
    assert (config.name, config.failover.min_in_sync, len(config.failover.etcd)) == ("orders", 2, 3)


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
