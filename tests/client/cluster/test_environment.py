"""How clients connect that are told nothing: as the environment says."""

from pathlib import Path

import pytest

from pyromq import ConnectionConfig, ProducerConfig, TlsConfig, UsageError
from pyromq.client.cluster.environment import connections_of
from pyromq.client.producer.async_producer import AsyncProducer


def test_nothing_said_is_plain_and_unsigned():
    assert connections_of(None, {}) == ConnectionConfig()


def test_what_a_client_was_given_counts_alone():
    given = ConnectionConfig(serialization=1)
    assert connections_of(given, {"PYROMQ_TLS": "true", "PYROMQ_ACCESS_KEY": "me"}) is given


@pytest.mark.parametrize(
    ("environment", "tls"),
    [
        ({"PYROMQ_TLS": "true"}, TlsConfig()),
        ({"PYROMQ_TLS": "1"}, TlsConfig()),
        ({"PYROMQ_TLS_CA": "ca.pem"}, TlsConfig(authority="ca.pem")),
        ({"PYROMQ_TLS_CA": "ca.pem", "PYROMQ_TLS": "false"}, None),
        ({"PYROMQ_TLS_SERVER_NAME": "x"}, None),
        ({"PYROMQ_TLS": "true", "PYROMQ_TLS_VERIFY": "false"}, TlsConfig(verify=False)),
        (
            {
                "PYROMQ_TLS_CERT": "c.pem",
                "PYROMQ_TLS_KEY": "k.pem",
                "PYROMQ_TLS_KEY_PASSWORD": "sesame",
                "PYROMQ_TLS_SERVER_NAME": "x",
                "PYROMQ_TLS_CHECK_HOST": "false",
            },
            TlsConfig(certificate="c.pem", key="k.pem", password="sesame", server_name="x", check_host=False),
        ),
    ],
)
def test_variables_stand_for_fields(environment, tls):
    assert connections_of(None, environment) == ConnectionConfig(tls=tls)


def test_an_account_signs():
    keys = {"PYROMQ_ACCESS_KEY": "me", "PYROMQ_SECRET_KEY": "secret"}
    assert connections_of(None, keys) == ConnectionConfig(access_key="me", secret_key="secret")
    assert connections_of(None, keys).signer is not None


def test_half_an_account_is_refused_without_showing_it():
    with pytest.raises(UsageError, match="access_key is empty") as caught:
        connections_of(None, {"PYROMQ_SECRET_KEY": "4711"})
    assert "4711" not in str(caught.value)


def test_a_flag_is_true_or_false():
    with pytest.raises(UsageError, match="PYROMQ_TLS_VERIFY is 'no'; write true or false"):
        connections_of(None, {"PYROMQ_TLS": "1", "PYROMQ_TLS_VERIFY": "no"})


async def test_a_client_reads_the_environment_of_its_process(monkeypatch):
    monkeypatch.setenv("PYROMQ_TLS_CA", "nowhere.pem")
    with pytest.raises(UsageError, match=r"TLS authority nowhere.pem cannot be used"):
        await AsyncProducer("p", "127.0.0.1:1").start()
    plain = ProducerConfig(connections=ConnectionConfig())
    with pytest.raises(Exception, match="no name server answers"):
        await AsyncProducer("p", "127.0.0.1:1", config=plain).start()


def test_docs_name_every_variable():
    page = (Path(__file__).parents[3] / "docs" / "tls.md").read_text()
    module = Path(__file__).parents[3] / "src/pyromq/client/cluster/environment.py"
    named = {word.strip('",') for word in module.read_text().split() if word.startswith('"PYROMQ_')}
    assert len(named) == 10
    assert {name for name in named if name not in page} == set()
