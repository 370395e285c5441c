"""TLS of servers by upstream's names."""

import pytest

from pyromq import TlsConfig, UsageError
from pyromq.cli.server_properties import broker_settings, name_server_settings
from pyromq.cli.tls_settings import CLIENT_NAMES, SERVER_NAMES, name_server_tls, same_process_tls, server_tls
from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode

CERTIFICATE = {"tls.server.certPath": "c.pem", "tls.server.keyPath": "k.pem"}


def test_without_a_certificate_a_port_is_plain():
    assert server_tls({}) is None
    assert server_tls({"tls.server.mode": "disabled", "tls.test.mode.enable": "false"}) is None


def test_with_a_certificate_a_port_is_permissive_as_upstreams():
    assert server_tls(CERTIFICATE) == ServerTlsConfig(certificate="c.pem", key="k.pem", mode=TlsMode.PERMISSIVE)


def test_all_of_it():
    properties = {
        **CERTIFICATE,
        "tls.server.mode": "ENFORCING ",
        "tls.server.keyPassword": "sesame",
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": "ca.pem",
    }
    assert server_tls(properties) == ServerTlsConfig(
        certificate="c.pem",
        key="k.pem",
        password="sesame",
        mode=TlsMode.ENFORCING,
        client_certificates=ClientCertificates.REQUIRE,
        authority="ca.pem",
    )


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"tls.server.mode": "enforcing"}, "needs a certificate: .*tls.server.certPath.*--tls-cert"),
        ({"tls.server.mode": "sometimes"}, "'sometimes'; write one of disabled, permissive, enforcing"),
        ({"tls.test.mode.enable": "true"}, "could not verify a generated certificate"),
        ({**CERTIFICATE, "tls.server.need.client.auth": "require"}, "tls.server.trustCertPath"),
        (
            {
                **CERTIFICATE,
                "tls.server.need.client.auth": "optional",
                "tls.server.authClient": "false",
                "tls.server.trustCertPath": "ca.pem",
            },
            "would accept any certificate",
        ),
        ({"tls.test.mode.enable": "maybe"}, "'maybe'; write true or false"),
    ],
)
def test_what_cannot_be_is_named(properties, told):
    with pytest.raises(UsageError, match=told):
        server_tls(properties)


def test_brokers_connect_to_name_servers_in_plain_unless_their_own_port_takes_tls_only():
    assert name_server_tls({}, None) is None
    permissive = ServerTlsConfig(certificate="c.pem")
    enforcing = ServerTlsConfig(certificate="c.pem", mode=TlsMode.ENFORCING)
    assert name_server_tls({}, permissive) is None
    assert name_server_tls({}, enforcing) == TlsConfig(certificate="c.pem")
    assert name_server_tls({"tls.enable": "false"}, enforcing) is None


@pytest.mark.parametrize("name", ["tls.enable", "useTLS"])
def test_connections_to_name_servers_by_their_names(name):
    properties = {
        name: "true",
        "tls.client.trustCertPath": "ca.pem",
        "tls.client.certPath": "c.pem",
        "tls.client.keyPath": "k.pem",
        "tls.client.keyPassword": "sesame",
    }
    expected = TlsConfig(authority="ca.pem", certificate="c.pem", key="k.pem", password="sesame")
    assert name_server_tls(properties, None) == expected
    assert name_server_tls({name: "true", "tls.client.authServer": "false"}, None) == TlsConfig(verify=False)


def test_a_broker_trusts_the_name_server_of_its_own_process_by_its_certificate():
    own = ServerTlsConfig(certificate="c.pem", key="k.pem", mode=TlsMode.ENFORCING)
    assert same_process_tls(ServerTlsConfig(certificate="c.pem")) is None
    assert same_process_tls(own) == TlsConfig(authority="c.pem", certificate="c.pem", key="k.pem", check_host=False)


def test_files_of_settings_may_have_all_these_names(tmp_path):
    source = tmp_path / "broker.conf"
    every = dict.fromkeys(SERVER_NAMES | CLIENT_NAMES, "false")
    assert broker_settings(every, data=tmp_path, source=source) == {}
    assert name_server_settings(dict.fromkeys(SERVER_NAMES, "false"), source=source) == {}


def test_the_page_names_every_setting(request):
    page = (request.config.rootpath / "docs" / "tls.md").read_text()
    missing = {name for name in SERVER_NAMES | CLIENT_NAMES if name not in page}
    assert {name for name in missing if f"`.{name.rpartition('.')[2]}`" not in page} == set()
