"""TLS and accounts of reads and writes, and that no secret is shown."""

import pickle
from pathlib import Path

import pytest
from scripts.documentation.spark_options import connection_documentation

from pyromq import ConnectionConfig, TlsConfig, UsageError
from pyromq.spark.given_options import read_options, sink_options
from pyromq.spark.options import STREAM, check_kept

SECRET = {"accessKey": "me", "secretKey": "4711"}


def test_without_options_it_is_left_to_the_environment_of_each_process(monkeypatch):
    options = read_options({"subscribe": "orders"})
    assert options.connecting.connections() is None
    assert sink_options({"topic": "orders"}).connecting == options.connecting


def test_options_stand_for_fields_in_any_case(tmp_path):
    ca, certificate, key = (str(tmp_path / name) for name in ("ca.pem", "c.pem", "k.pem"))
    for file in (ca, certificate, key):
        Path(file).touch()
    given = {"tlsCa": ca, "TLSCERTIFICATE": certificate, "tlskey": key, "tlsServerName": "mq", **SECRET}
    expected = ConnectionConfig(
        tls=TlsConfig(authority=ca, certificate=certificate, key=key, server_name="mq"),
        access_key="me",
        secret_key="4711",
    )
    assert read_options({"subscribe": "orders", **given}, STREAM).connecting.connections() == expected
    assert sink_options({"topic": "orders", **given}).connecting.connections() == expected


def test_what_is_no_option_says_the_environment(monkeypatch):
    monkeypatch.setenv("PYROMQ_SECRET_KEY", "4711")
    options = sink_options({"topic": "orders", "accessKey": "me"})
    assert options.connecting.connections() == ConnectionConfig(access_key="me", secret_key="4711")
    assert b"4711" not in pickle.dumps(options)


def test_the_namespace_is_the_drivers(monkeypatch):
    monkeypatch.setenv("PYROMQ_NAMESPACE", "shop")
    of_driver, given = sink_options({"topic": "orders"}), read_options({"subscribe": "orders", "namespace": "mine"})
    monkeypatch.delenv("PYROMQ_NAMESPACE")
    assert (of_driver.connecting.namespace, given.connecting.namespace) == ("shop", "mine")
    assert of_driver.connecting.connections() is None
    assert sink_options({"topic": "orders"}).connecting.namespace is None


def test_no_secret_is_shown():
    options = read_options({"subscribe": "orders", **SECRET})
    assert "4711" not in repr(options) + str(options) + repr(options.connecting)
    assert tuple(dict(options.connecting.given)) == ("accessKey", "secretKey")


def test_tasks_get_them():
    options = pickle.loads(pickle.dumps(sink_options({"topic": "orders", **SECRET})))
    assert options.connecting.connections().secret_key == "4711"


def test_an_empty_option_is_named():
    with pytest.raises(UsageError, match="option secretKey is empty"):
        read_options({"subscribe": "orders", "accessKey": "me", "secretKey": " "})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tls": "yes"}, "option tls is 'yes'; write true or false"),
        ({"tlsCa": "ca.pem", "tlsVerify": "no"}, "option tlsVerify is 'no'"),
        ({"tls": "false", "tlsCa": "ca.pem"}, "option tls is false, and option tlsCa is for TLS"),
        ({"tlsServerName": "mq"}, "option tlsServerName is for TLS, which is off"),
        ({"tls": "true", "tlsKey": __file__}, "option tlsKey is given without tlsCertificate"),
        ({"tlsCa": "ca.pem"}, "option tlsCa is 'ca.pem', and there is no such file"),
        ({"accessKey": "me"}, "option accessKey is given without secretKey"),
        ({"secretKey": "4711"}, "option secretKey is given without accessKey"),
        ({"namespace": "a b"}, "option namespace is 'a b'"),
    ],
)
def test_options_that_do_not_belong_together_are_named(given, text):
    with pytest.raises(UsageError) as caught:
        sink_options({"topic": "orders", **given}).connecting.connections()
    assert text in str(caught.value)
    assert "4711" not in str(caught.value)
    assert "PYROMQ_TLS" not in str(caught.value)


def test_a_catalog_keeps_no_secret():
    check_kept({"subscribe": "orders", "accessKey": "me"})
    with pytest.raises(UsageError, match="PYROMQ_SECRET_KEY") as caught:
        check_kept({"secretkey": "4711"})
    assert "4711" not in str(caught.value)


def test_the_page_has_the_table():
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert connection_documentation() in page
