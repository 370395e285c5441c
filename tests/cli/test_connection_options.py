"""Every command that connects takes TLS and an account, by options or by the environment."""

import importlib
import re

import click
import pytest
from tests.certificates import Authority

from pyromq import ConnectionConfig, TlsConfig
from pyromq.cli import connection_options
from pyromq.cli.main import COMMANDS
from pyromq.client.cluster.environment import connections_of
from pyromq.errors import UsageError
from pyromq.net.tls.tls_server import ServerTlsConfig, TlsMode


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secure(served_with, authority, monkeypatch):
    certificate, key = authority.issue("server")
    tls = ServerTlsConfig(certificate=certificate, key=key, mode=TlsMode.ENFORCING)
    trusting = ConnectionConfig(tls=TlsConfig(authority=authority.file))
    served = served_with(tls=tls, connections=trusting)
    monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)
    return served


def run_all(cli, before=(), behind=()):
    """Run what connects in each way there is; return what went wrong."""
    wrong = []
    for line in (
        "topic create secure --queues 1",
        "topic list",
        "send secure hello --keys known",
        "bench send --topic secure --count 5",
        "consume secure --from beginning --count 1",
        "message find secure --key known",
        "group list",
        "dlq list",
        "delay count",
        "transaction list",
        "transaction batches",
        "offset show secure",
        "cluster list",
        "doctor",
    ):
        outcome = cli(*before, *line.split(), *behind)
        if outcome.code:
            wrong.append((line, outcome.err or outcome.out))
    return wrong


def test_options_behind_any_command_that_connects(cli, secure, authority):
    assert run_all(cli, behind=("--tls-ca", str(authority.file))) == []


def test_options_before_the_command(cli, secure, authority):
    assert cli("--tls-ca", str(authority.file), "topic", "list").code == 0


def test_the_environment(cli, secure, authority, monkeypatch):
    monkeypatch.setenv("PYROMQ_TLS_CA", str(authority.file))
    assert run_all(cli) == []


def test_without_them_it_is_told_what_is_wrong(cli, secure):
    outcome = cli("send", "secure", "hello")
    assert outcome.code == 1
    assert "TLS connections only" in outcome.err


def test_no_verification(cli, secure, monkeypatch):
    monkeypatch.setenv("PYROMQ_TLS", "false")  # options outrank it
    assert cli("topic", "list", "--tls-no-verify").code == 0


def test_a_file_that_is_none_is_named(cli, secure):
    outcome = cli("topic", "list", "--tls-ca", "nowhere.pem")
    assert (outcome.code, "nowhere.pem" in outcome.err) == (1, True)


def test_every_command_with_name_servers_has_the_options():
    def commands(name, command):
        if isinstance(command, click.Group):
            for each in command.list_commands(None):
                yield from commands(f"{name} {each}", command.get_command(None, each))
        yield name, {option for parameter in command.params for option in parameter.opts}

    wanted = {name for name, _, _ in connection_options._OPTIONS}
    lacking = []
    for name, (place, _) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        for each, options in commands(
            name, getattr(importlib.import_module(f"pyromq.cli.commands.{module}"), attribute)
        ):
            if "--namesrv" in options and not each.startswith("serve") and not wanted <= options:
                lacking.append(each)
    assert lacking == []


def test_variables_are_those_that_clients_read():
    for _, variable, _ in connection_options._OPTIONS:
        assert re.fullmatch("PYROMQ_(TLS|TLS_CA|TLS_CERT|TLS_KEY|TLS_VERIFY|ACCESS_KEY|SECRET_KEY)", variable)


@pytest.fixture
def given():
    """Parse options and return what clients are given: `given("--tls")`."""

    def parse(*arguments):
        found = []

        @click.command()
        @connection_options.connection_options(hidden=False)
        def command():
            found.append(connection_options.connections(waits=True))

        command.main(arguments, standalone_mode=False)
        return found[0]

    return parse


def test_nothing_given_leaves_it_to_the_environment(given, monkeypatch):
    assert (given().tls, given().access_key) == (None, None)
    monkeypatch.setenv("PYROMQ_ACCESS_KEY", "ann")
    monkeypatch.setenv("PYROMQ_SECRET_KEY", "secret")
    assert given().access_key == "ann"


def test_options_stand_for_fields(given):
    assert given("--tls") == ConnectionConfig(tls=TlsConfig())
    assert given("--tls-no-verify") == ConnectionConfig(tls=TlsConfig(verify=False))
    expected = TlsConfig(authority="a.pem", certificate="c.pem", key="k.pem")
    assert given("--tls-ca", "a.pem", "--tls-cert", "c.pem", "--tls-key", "k.pem") == ConnectionConfig(tls=expected)


def test_a_secret_may_be_in_a_file(given, tmp_path):
    file = tmp_path / "secret"
    file.write_text("4711\n")
    account = ConnectionConfig(access_key="me", secret_key="4711")
    assert given("--access-key", "me", "--secret-key", f"@{file}") == account
    assert given("--access-key", "me", "--secret-key", "4711") == account
    with pytest.raises(click.BadParameter, match="nowhere cannot be read"):
        given("--access-key", "me", "--secret-key", "@nowhere")


def test_a_missing_half_of_an_account_is_named_as_option_and_variable(given):
    with pytest.raises(UsageError, match=r"^secret_key is empty.*; give .*, --secret-key or PYROMQ_SECRET_KEY$"):
        given("--access-key", "me")
    with pytest.raises(UsageError, match=r"^access_key is empty.*; give .*, --access-key or PYROMQ_ACCESS_KEY$"):
        given("--secret-key", "4711")


def test_options_and_environment_add_up(given, monkeypatch):
    monkeypatch.setenv("PYROMQ_SECRET_KEY", "4711")
    assert given("--access-key", "me") == connections_of(None, {"PYROMQ_ACCESS_KEY": "me", "PYROMQ_SECRET_KEY": "4711"})


def test_all_clients_of_a_command_share_what_they_know_of_silent_servers(given):
    @click.command()
    def command():
        return [connection_options.connections().silent for _ in range(2)]

    first, second = command.main([], standalone_mode=False)
    assert first is second is not None


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key", "--access-key", "--secret-key"])
def test_an_empty_option_is_refused_instead_of_a_connection_without_it(cli, served, option):
    for line in (["topic", "list", option, ""], [option, "", "topic", "list"]):
        outcome = cli(*line)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"Invalid value for '{option}': it is empty" in outcome.err
