"""Servers as processes: what only a process has - signals, ports, folders, exit codes."""

import json
import os
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest
from tests.certificates import Authority
from tests.waiting import PATIENCE_SECONDS

from pyromq import speedups

ALL = ("--from", "beginning", "--until", "now")


@pytest.fixture
def at(cli):
    """Run a client command against a server that was started by the test."""
    return lambda server, *arguments, **options: cli(*arguments, "--namesrv", server.namesrv, **options)


def test_banner_names_addresses_folder_and_commands_that_work(serve, at, tmp_path):
    server = serve()

    assert server.banner[2] == f"data folder  {tmp_path / 'data'}"
    assert server.banner[3] == f"hot path     {speedups.hot_path}"
    assert server.banner[4] == f"try          pyromq send greetings 'hello world' --namesrv {server.namesrv}"
    assert server.banner[-1].startswith("ready in ")
    at(server, "send", "greetings", "hello world")
    assert at(server, "consume", "greetings", *ALL).out == "hello world\n"


def test_plain_python_that_was_chosen_is_said_to_be(serve, monkeypatch):
    monkeypatch.setenv("PYROMQ_PURE", "1")

    assert "hot path     plain Python, chosen by PYROMQ_PURE" in serve().banner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_cleanly_and_quietly_with_code_0(serve, at, tmp_path, number):
    server = serve()
    at(server, "send", "t", "x")

    assert server.stop(number) == (0, "")
    assert not (tmp_path / "data" / "abort").exists()


def test_messages_survive_a_kill(serve, at):
    server = serve()
    at(server, "send", "t", stdin=b"1\n2\n3\n")
    assert server.stop(signal.SIGKILL)[0] == -signal.SIGKILL

    assert at(serve(), "consume", "t", *ALL).lines == ["1", "2", "3"]


def test_port_in_use_names_owner_and_option(serve, call, tmp_path):
    server = serve()
    port = server.namesrv.rpartition(":")[2]
    failed = call("serve", "--data", tmp_path / "other", "--namesrv-port", port, "--broker-port", "0")

    assert (failed.code, failed.out) == (1, "")
    assert failed.err.startswith(f"error: port {port} at 127.0.0.1 is in use by ")
    assert f"(pid {server.process.pid}); choose another with --namesrv-port" in failed.err


def test_folder_in_use_names_its_holder(serve, call, tmp_path):
    server = serve()
    failed = call("serve", "--data", tmp_path / "data", "--namesrv-port", "0", "--broker-port", "0")

    assert failed.code == 1
    assert failed.err == (
        f"error: data folder {tmp_path / 'data'} is in use by process {server.process.pid}; "
        "stop that broker or choose another folder with --data (setting storePathRootDir)\n"
    )


def test_folder_that_cannot_be_written_is_one_line_of_error(cli, tmp_path):
    (tmp_path / "file").write_text("in the way")
    failed = cli("serve", "--data", str(tmp_path / "file" / "data"), "--namesrv-port", "0", "--broker-port", "0")

    assert failed.code == 1
    assert failed.err.startswith(f"error: cannot write to data folder {tmp_path / 'file' / 'data'}: ")
    assert "a part of this path is a file: move the file, or choose another folder with --data" in failed.err


def test_segments_of_another_size_name_file_and_setting(serve, at, cli, tmp_path):
    server = serve()
    at(server, "send", "t", "x")
    server.stop()
    (tmp_path / "b.conf").write_text("mappedFileSizeCommitLog=1048576\n")
    arguments = ("--data", str(tmp_path / "data"), "--namesrv-port", "0", "--broker-port", "0")
    failed = cli("serve", *arguments, "--config", str(tmp_path / "b.conf"))

    assert failed.code == 1
    assert len(failed.err.splitlines()) == 1
    assert "commitlog" in failed.err


def test_damaged_folder_names_file_and_way_out(serve, cli, tmp_path):
    serve().stop()
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "data" / "config" / name).write_text("garbage")
    failed = cli("serve", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--broker-port", "0")

    assert failed.code == 1
    assert f"{tmp_path / 'data'}/config/topics.json is damaged: " in failed.err
    assert "restore it from a backup, or move it away" in failed.err


def test_options_win_over_the_file_and_the_file_over_defaults(serve, at, tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerName=from-file\nbrokerClusterName=c1\nstorePathRootDir={tmp_path / 'elsewhere'}\n")
    server = serve("--config", file, "--broker-name", "from-option")

    assert "(from-option, cluster c1)" in server.banner[1]
    assert server.banner[2].endswith("/data")
    assert not (tmp_path / "elsewhere").exists()


def test_roles_run_apart(serve, at, tmp_path):
    names = serve("namesrv", data=tmp_path / "names", ports=("--namesrv-port", "0"))
    broker = serve("broker", "--namesrv", names.namesrv, "--broker-name", "alone", ports=("--broker-port", "0"))

    assert broker.banner[3] == f"name servers {names.namesrv}"
    (row,) = json.loads(at(names, "cluster", "list", "-o", "json").out)
    assert (row["broker"], row["address"]) == ("alone", broker.broker)


def test_a_brokers_file_outranks_the_name_servers_that_the_environment_has_for_clients(serve, tmp_path):
    names = serve("namesrv", data=tmp_path / "names", ports=("--namesrv-port", "0")).namesrv
    file = tmp_path / "broker.conf"
    file.write_text(f"namesrvAddr={names}\n")
    others = {"NAMESRV_ADDR": "127.0.0.1:1", "ports": ("--broker-port", "0")}
    told_by_file = serve("broker", "--config", file, data=tmp_path / "a", **others)
    told_by_option = serve("broker", "--config", file, "--namesrv", "127.0.0.1:2", data=tmp_path / "b", **others)
    told_by_environment = serve("broker", data=tmp_path / "c", **others)

    assert told_by_file.banner[3] == f"name servers {names}"
    assert told_by_option.banner[3] == "name servers 127.0.0.1:2"
    assert told_by_environment.banner[3] == "name servers 127.0.0.1:1"


def test_a_slave_finds_its_master_by_the_name_servers_of_an_option(serve, tmp_path):
    file = tmp_path / "slave.conf"
    file.write_text("brokerRole=SLAVE\nbrokerId=1\n")
    arguments = ("broker", "--config", file, "--namesrv", "127.0.0.1:2")
    assert serve(*arguments, data=tmp_path / "a", ports=("--broker-port", "0")).banner[3] == "name servers 127.0.0.1:2"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--broker-ip", "0.0.0.0"], "clients cannot connect to 0.0.0.0; give the address at which they reach"),
        (["--broker-ip", "localhost"], "'localhost' is not an IP address"),
        (["--namesrv-port", "70000"], "70,000 is out of range; write 0 to 65,535"),
        (["--namesrv-port", "7000", "--broker-port", "7000"], "cannot both listen on port 7000"),
        (["--config", "nono.conf"], "'nono.conf' does not exist"),
        (["--console-port", "7000"], "--console-port is a port of the console: give --console too"),
        (["--data", ""], "the name of the folder is empty; write . for the current folder"),
        (["--data", " "], "the name of the folder is empty"),
        (["--broker-name", "x", "broker"], "write --broker-name after `serve broker`"),
        (["broker"], "a broker needs a name server: give one with --namesrv"),
        (["broker", "--etcd", "127.0.0.1:2379"], "'127.0.0.1:2379' is not a URL of a member of etcd"),
        (["broker", "--etcd", ","], "give the URL of at least one member of etcd"),
        (["broker", "--etcd", "http://127.0.0.1:1", "--replica", "256"], "256 is out of range; write 1 to 255"),
    ],
)
def test_wrong_options_are_refused_with_the_usage(cli, monkeypatch, arguments, text):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    refused = cli("serve", *arguments)

    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("Usage: pyromq serve ")
    assert text in refused.err


@pytest.mark.parametrize(
    ("settings", "options", "text"),
    [
        ("brokerId=1", ["--etcd", "http://127.0.0.1:1"], "brokerId (broker_id) is 1; with failoverEtcd"),
        ("", ["--replica", "2"], "replicaId (replica_id) is 2; it needs failoverEtcd"),
        ("minInSyncReplicas=2", [], "minInSyncReplicas (min_in_sync) is 2; it needs failoverEtcd"),
    ],
)
def test_options_and_settings_of_a_set_that_do_not_fit_are_refused(cli, tmp_path, settings, options, text):
    file = tmp_path / "broker.conf"
    file.write_text(settings)
    refused = cli("serve", "broker", "--config", str(file), "--namesrv", "127.0.0.1:1", *options)

    assert refused.code != 0
    assert text in refused.err


def test_an_account_of_etcd_is_taken_from_the_environment(cli, monkeypatch):
    monkeypatch.setenv("PYROMQ_ETCD_USER", "broker")
    monkeypatch.delenv("PYROMQ_ETCD_PASSWORD", raising=False)
    refused = cli("serve", "broker", "--namesrv", "127.0.0.1:1", "--etcd", "http://127.0.0.1:1")

    assert refused.code != 0
    assert "the account of etcd has a user and no password" in refused.err


def test_address_of_another_machine_names_the_option(cli, tmp_path):
    arguments = ("--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0")
    unknown = cli("serve", *arguments, "--broker-ip", "203.0.113.1")
    everywhere = cli("serve", *arguments, "--host", "0.0.0.0")

    assert unknown.err.startswith(
        "error: 203.0.113.1 is not an address of this machine; choose the address to listen on with --host"
    )
    assert everywhere.err.startswith("error: a broker listening on 0.0.0.0 needs the address given to clients: ")
    assert (unknown.code, everywhere.code) == (1, 1)


def test_broker_may_listen_everywhere_and_advertise_one_address(serve, at):
    server = serve("--host", "0.0.0.0", "--broker-ip", "127.0.0.1")

    assert ", listening on 0.0.0.0:" in server.banner[1]
    [said] = [line for line in server.banner if line.startswith("open ")]
    assert "0.0.0.0 accepts connections without TLS, without permissions: every client may read" in said
    assert at(server, "doctor").code == 0


def test_ctrl_c_ends_consume_with_code_130(serve, at, consuming):
    server = serve()
    at(server, "topic", "create", "t")
    process = consuming("t", "--from", "beginning", "--namesrv", server.namesrv)
    at(server, "send", "t", "x")
    assert process.stdout.readline() == b"x\n"

    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 130
    assert process.stderr.read().strip() == b""


@pytest.fixture
def consuming():
    processes = []

    def begin(*arguments):
        command = [sys.executable, "-m", "pyromq", "consume", *arguments]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def files(tmp_path):
    """Options of a server with a certificate, and the file to trust it by."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    return ("--tls-cert", certificate, "--tls-key", key), ("--tls-ca", str(authority.file))


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_tls_by_options(serve, at, files, mode):
    certificate, trust = files
    server = serve("--tls-mode", mode, *certificate)

    at(server, "send", "t", "x", *trust)
    assert at(server, "consume", "t", *ALL, *trust).out == "x\n"
    assert at(server, "doctor", *trust).code == 0
    assert at(server, "doctor").code == (1 if mode == "enforcing" else 0)


def test_tls_of_roles_that_run_apart_and_ask_for_certificates(serve, at, files, tmp_path):
    certificate, trust = files
    enforcing = ("--tls-mode", "enforcing", *certificate, "--tls-client-certs", "require", "--tls-client-ca", trust[1])
    names = serve("namesrv", *enforcing, data=tmp_path / "names", ports=("--namesrv-port", "0"))
    serve("broker", "--namesrv", names.namesrv, *enforcing, *trust, ports=("--broker-port", "0"))
    own = tuple(str(each) for each in certificate)

    at(names, "send", "t", "x", *trust, *own)
    assert at(names, "consume", "t", *ALL, *trust, *own).out == "x\n"
    assert at(names, "topic", "list", *trust).code == 1


def test_tls_by_a_file_of_settings(serve, at, files, tmp_path):
    certificate, trust = files
    config = tmp_path / "broker.conf"
    config.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={certificate[1]}\ntls.server.keyPath={certificate[3]}\n"
    )
    server = serve("--config", config)

    assert at(server, "doctor", *trust).code == 0
    assert at(server, "topic", "list").code == 1


def test_a_certificate_that_is_none_ends_the_start(cli, tmp_path):
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no PEM")
    failed = cli(
        "serve", "--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0", "--tls-cert", str(rubbish)
    )

    assert (failed.code, failed.err) == (1, f"error: TLS certificate {rubbish} cannot be used: no PEM file\n")


def test_too_few_open_files_are_refused_with_the_number(tmp_path):
    """A server without room for connections would close each one."""
    serve = f"exec {sys.executable} -m pyromq serve --namesrv-port 0 --broker-port 0 --grpc-port 0 --data {tmp_path}"
    refused = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -n 100; {serve}"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip

    assert refused.returncode == 1
    assert refused.stderr.startswith("error: this process may open 100 files; a server needs at least 128: raise")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--tls-key", "tls.server.keyPath (--tls-key) has no effect without a certificate"),
        ("--tls-client-ca", "tls.server.trustCertPath (--tls-client-ca) has no effect without a certificate"),
        ("--tls-cert", "it has no private key; give the key's file too"),
    ],
)
def test_half_of_a_certificate_ends_the_start(cli, files, tmp_path, option, text):
    """A server that ignored the option would take plain connections only."""
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0")
    failed = cli("serve", "--data", str(tmp_path), *ports, option, files[1][1])

    assert failed.code == 1
    assert text in failed.err


def _metrics(server):
    """Return what the port for metrics says: /metrics, and the status and text of /readyz."""
    address = next(line.split()[1] for line in server.banner if line.startswith("metrics "))
    with urlopen(address, timeout=30) as scrape, urlopen(address.replace("/metrics", "/readyz"), timeout=30) as ready:
        return scrape.read().decode(), ready.read().decode()


def test_metrics_of_both_roles_are_told_at_one_port(serve):
    told, ready = _metrics(serve("--metrics-port", "0"))

    assert 'pyromq_namesrv_brokers{node_type="nameserver"' in told
    assert 'rocketmq_topic_number{cluster="DefaultCluster",node_type="broker",node_id="broker-a"}' in told
    assert ready == "name server: ok\nstore: ok\nname servers: ok\npermissions: ok\n"


def test_metrics_are_set_by_the_file_as_well(serve, tmp_path):
    file = tmp_path / "settings"
    file.write_text("metricsPort=0\nmetricsSeriesLimit=1000\n")
    server = serve("--config", str(file))

    assert "pyromq_metrics_series_limit 1000\n" in _metrics(server)[0]


def test_metrics_that_cannot_be_told_are_refused(serve, call, tmp_path):
    port = serve("--metrics-port", "0").banner
    taken = next(line for line in port if line.startswith("metrics ")).split(":")[-1].split("/")[0]
    common = ("--data", tmp_path / "other", "--namesrv-port", "0", "--broker-port", "0")
    file = tmp_path / "settings"
    file.write_text("metricsPort=many\n")

    in_use = call("serve", *common, "--metrics-port", taken)
    assert (in_use.code, "--metrics-port (0: any free port)" in in_use.err) == (1, True)
    assert f"metrics: port {taken} at 127.0.0.1 is in use" in in_use.err
    assert "give --metrics-port too" in call("serve", *common, "--metrics-host", "127.0.0.1").err
    assert "metricsPort is 'many'" in call("serve", *common, "--config", file).err
    assert "give --console too" in call("serve", *common, "--console-metrics-port", "0").err
    both = "--console", "--metrics-port", "9557", "--console-metrics-port", "9557"
    assert "cannot both use metrics port 9557" in call("serve", *common, *both).err


def test_a_start_without_metrics_does_not_load_them():
    program = (
        "import sys, pyromq.cli.commands.serve; "
        "sys.exit(any('metrics' in name for name in sys.modules if name.startswith('pyromq')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
