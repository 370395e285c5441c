"""`pyromq proxy`, and the proxy that `pyromq serve` starts, as operators start them."""

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.certificates import Authority

if find_spec("hpack") is None:  # the extra `grpc` is not installed
    pytest.skip("the extra `grpc` is not installed", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from hostile_proxy import is_served

NAMESRV = ("-n", "127.0.0.1:1")


@pytest.fixture
def refused(cli):
    """Run `pyromq proxy` in this process; return the text of its error."""

    def run(*arguments):
        outcome = cli("proxy", *NAMESRV, *map(str, arguments))
        assert outcome.code in (1, 2), outcome
        assert outcome.out == ""
        return outcome.err

    return run


def test_a_port_in_use_names_its_owner_and_the_option(refused, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("--port", port, "--data", tmp_path)

    assert f"port {port} at 127.0.0.1 is in use" in told
    assert f"(pid {os.getpid()})" in told
    assert "choose another with --port" in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every port")
def test_a_privileged_port_is_refused_with_a_range(refused, tmp_path):
    assert "choose one above 1023" in refused("--port", 81, "--data", tmp_path)


def test_a_missing_package_names_the_install_command(refused, monkeypatch):
    monkeypatch.setattr("pyromq.cli.commands.proxy_commands.find_spec", lambda name: None)

    assert "pip install" in (told := refused())
    assert "hpack" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--host", "203.0.113.9"), "is no address of this machine"),
        (("--advertise", "host"), "write HOST:PORT"),
        (("--advertise", "host:99999"), "write HOST:PORT"),
        (("--port", "70000"), "70,000"),
        (("--acl", "missing"), "missing"),
        (("--metrics-host", "127.0.0.1"), "give --metrics-port too"),
        (("--tls-mode", "enforcing"), "--server-cert"),
        (("--server-key", __file__), "--server-cert"),
        (("--client-certs", "require"), "--server-cert"),
        (("--client-ca", __file__), "--server-cert"),
        (("--server-cert", __file__), "test_proxy_command.py"),
        (("--data", __file__), "--data"),
    ],
    ids=lambda value: value[0][2:] if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_named(refused, tmp_path, arguments, told):
    assert told in refused("--data", tmp_path, "--port", "0", *arguments)


def test_client_certificates_need_their_authority(refused, tmp_path):
    certificate, key = Authority(tmp_path).issue("server")

    told = refused("--port", 0, "--server-cert", certificate, "--server-key", key, "--client-certs", "require")

    assert "need the authority" in told


@pytest.mark.slow
def test_serve_starts_a_proxy_with_metrics_that_ends_with_it(serve, unused_port):
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics = free.getsockname()[1]
    server = serve("--grpc-port", unused_port, "--grpc-metrics-port", metrics)

    assert f"gRPC         127.0.0.1:{unused_port}" in server.banner
    assert is_served(unused_port)
    with urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
        assert 'method="Heartbeat",status="OK"} 1' in answer.read().decode()
    assert server.stop() == (0, "")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", unused_port)).close()


def test_serve_refuses_a_port_in_use_that_was_chosen(call, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ("--namesrv-port", "0", "--broker-port", "0", "--grpc-port", str(port))
        failed = call("serve", "--data", tmp_path, *ports)

    assert failed.code == 1
    assert f"port {port} at 127.0.0.1 is in use" in failed.err
    assert "--grpc-port (0: no proxy)" in failed.err


def test_a_metrics_port_of_no_proxy_is_refused(cli):
    assert "--grpc-port 0 starts none" in cli("serve", "--grpc-port", "0", "--grpc-metrics-port", "9999").err
