"""`pyromq proxy`, and the proxy that `pyromq serve` starts, as operators start them."""

import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.certificates import Authority
from tests.waiting import PATIENCE_SECONDS, wait_until

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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--host", "203.0.113.9"), "is not an address of this machine"),
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
        (("--port", "many"), "'many' is not a whole number"),
        (("--metrics-port", "-1"), "-1 is out of range"),
        (("--log-level", "loud"), "--log-level"),
        (("--namesrv", "garbage"), "'garbage' is not host:port"),
        (("--namesrv", "127.0.0.1:1;a:99999"), "'a:99999' is not host:port"),
        (("--namesrv", ";"), "no name server address"),
        (("--output", "json"), "--output"),
        (("more",), "more"),
    ],
    ids=lambda value: value[0][2:] if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_named(refused, tmp_path, arguments, told):
    assert told in refused("--data", tmp_path, "--port", "0", *arguments)


def test_client_certificates_need_their_authority(refused, tmp_path):
    certificate, key = Authority(tmp_path).issue("server")

    told = refused("--port", 0, "--server-cert", certificate, "--server-key", key, "--client-certs", "require")

    assert "need the authority" in told


@pytest.mark.parametrize("arguments", [("--port", "many"), ("--output", "json"), ("more",)])
def test_a_wrong_command_line_has_exit_code_2(cli, arguments):
    assert cli("proxy", *arguments).code == 2


def test_what_keeps_a_proxy_from_starting_has_exit_code_1(cli, tmp_path):
    assert cli("proxy", "--data", str(tmp_path), "--port", "0", "--host", "203.0.113.9").code == 1


def test_a_metrics_port_in_use_names_the_option(refused, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = refused("--data", tmp_path, "--port", "0", "--metrics-port", taken.getsockname()[1])
    assert "choose another with --metrics-port" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_proxy_while_a_client_is_connected(start_process, tmp_path, unused_port, number):
    process = start_process("proxy", *NAMESRV, "--data", tmp_path, "--port", unused_port)
    banner = [process.stdout.readline() for _ in range(3)]
    assert banner[:2] == [f"gRPC         127.0.0.1:{unused_port}\n", "name servers 127.0.0.1:1\n"]
    assert banner[2].startswith("ready in")
    with socket.create_connection(("127.0.0.1", unused_port)) as client:
        assert is_served(unused_port)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 0
        client.settimeout(PATIENCE_SECONDS)
        while client.recv(1000):
            pass  # the proxy's settings and farewell, then the end
    assert (process.stdout.read(), process.stderr.read()) == ("", "")


@pytest.mark.slow
def test_serve_starts_a_proxy_with_metrics_that_ends_with_it(serve, unused_port):
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics = free.getsockname()[1]
    server = serve("--grpc-port", unused_port, "--grpc-metrics-port", metrics)

    assert f"gRPC         127.0.0.1:{unused_port}" in server.banner
    assert is_served(unused_port)
    wait_until(lambda: metrics_of(metrics))  # the port of the metrics is opened after that of clients
    assert 'method="Heartbeat",status="OK"} 1' in metrics_of(metrics)
    assert server.stop() == (0, "")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", unused_port)).close()


def metrics_of(port):
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()
    except URLError:
        return ""


@pytest.mark.slow
def test_serve_reports_the_end_of_its_proxy_and_runs_on(serve, unused_port):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve("--grpc-port", unused_port, "--grpc-metrics-port", port)
        lines = [server.process.stderr.readline() for _ in range(2)]
    assert f"port {port} at 127.0.0.1 is in use" in lines[0]
    assert "choose another with --grpc-metrics-port" in lines[0]
    assert "the proxy ended with exit code 1; name server and broker run on" in lines[1]
    assert server.stop() == (0, "")


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
