"""`pyromq console` as a process, alone and beside `pyromq serve`, and its accounts."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from pyromq.cli.main import run

pytest.importorskip("starlette", reason="the console needs its extra: pip install 'pyromq[console]'")


def started(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "pyromq", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def line_of(process, begin):
    for line in process.stdout:
        if line.startswith(begin):
            return line.split()[1]
    raise AssertionError(process.stderr.read())


@pytest.mark.slow  # three processes start
def test_a_console_beside_a_server_answers_and_ends_with_it(tmp_path):
    ports = "--namesrv-port", "0", "--broker-port", "0", "--console-port", "0", "--console-metrics-port", "0"
    process = started("serve", "--data", str(tmp_path), "--console", *ports)
    try:
        metrics = line_of(process, "metrics")
        assert "pyromq_console_searches_running" in urllib.request.urlopen(metrics, timeout=30).read().decode()
        address = line_of(process, "console")
        page = urllib.request.urlopen(address, timeout=30).read().decode()
        assert re.search(r"<title>Overview", page)
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=30)


@pytest.mark.slow
def test_a_console_alone_shows_what_is_wrong_where_there_is_no_cluster(tmp_path):
    process = started("console", "--data", str(tmp_path), "--port", "0", "-n", "127.0.0.1:1")
    try:
        address = line_of(process, "console")
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(address, timeout=30)
        assert answer.value.code == 503
        assert "127.0.0.1:1" in answer.value.read().decode()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_accounts_are_made_listed_and_deleted(tmp_path, capsys):
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    of = ("--data", str(tmp_path / "console"))
    assert run(["console", "account", "set", "ben", "--role", "viewer", "--password-file", str(password), *of]) == 1
    assert "the first account must be an administrator" in capsys.readouterr().err
    assert run(["console", "account", "set", "anna", "--role", "admin", "--password-file", str(password), *of]) == 0
    assert run(["console", "account", "set", "ben", "--role", "viewer", "--password-file", str(password), *of]) == 0
    capsys.readouterr()
    assert run(["console", "account", "list", "-o", "json", *of]) == 0
    assert [(each["name"], each["role"]) for each in json.loads(capsys.readouterr().out)] == [
        ("anna", "admin"),
        ("ben", "viewer"),
    ]
    assert run(["console", "account", "delete", "anna", *of]) == 1
    assert "last administrator" in capsys.readouterr().err
    assert run(["console", "account", "delete", "ben", *of]) == 0


def test_an_empty_password_file_changes_nothing(tmp_path, capsys):
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    account = ["console", "account", "set", "anna", "--password-file", str(password), "--data", str(tmp_path)]
    assert run([*account, "--role", "admin"]) == 0
    password.write_text("\n")
    assert run(account) == 2
    assert "the file of the password is empty" in capsys.readouterr().err


def test_a_port_for_metrics_that_is_taken_or_has_none_is_said(tmp_path, capsys):
    of = ("--port", "0", "--data", str(tmp_path))
    assert run(["console", *of, "--metrics-host", "127.0.0.1"]) != 0
    assert "give --metrics-port too" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["console", *of, "--metrics-port", str(taken.getsockname()[1])]) == 1
    assert "choose another with --metrics-port (0: any free port)" in capsys.readouterr().err


def test_an_address_that_others_reach_needs_accounts_and_tls(tmp_path, capsys):
    of = ("--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path))
    assert run(["console", *of]) == 1
    assert "create one with" in capsys.readouterr().err
    (tmp_path / "password").write_text("correct horse")
    account = ["console", "account", "set", "anna", "--role", "admin", "--data", str(tmp_path)]
    assert run([*account, "--password-file", str(tmp_path / "password")]) == 0
    assert run(["console", *of]) == 1
    assert "to 0.0.0.0 in clear text" in capsys.readouterr().err


def test_a_certificate_that_is_none_is_named(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("no certificate")
    of = ("--port", "0", "--data", str(tmp_path))
    assert run(["console", *of, "--cert", str(tmp_path / "notes.txt")]) == 1
    assert f"TLS certificate {tmp_path}/notes.txt cannot be used: no PEM file" in capsys.readouterr().err


@pytest.mark.parametrize("namesrv", ["garbage", "127.0.0.1:1;a:99999", ";"])
def test_what_is_no_address_of_a_name_server_is_refused(tmp_path, capsys, namesrv):
    assert run(["console", "--namesrv", namesrv, "--port", "0", "--data", str(tmp_path)]) == 1
    assert "host:port" in capsys.readouterr().err
