"""TLS between our own clients and servers, with a certificate that vouches for itself."""

import asyncio
import socket
from pathlib import Path

import pytest

from pyromq import ConnectionConfig, Message, ProducerConfig, TlsConfig
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.client.producer.producer import AsyncProducer
from pyromq.errors import Unavailable, UsageError
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.nameserver import NameServer

CERTIFICATE = Path(__file__).parent / "certificate.pem"


@pytest.fixture
def issued():
    """A certificate for 127.0.0.1 that vouches for itself, its key in the same file."""
    return TlsConfig(CERTIFICATE, authority=CERTIFICATE)


@pytest.fixture
def at_server(issued):
    return ConnectionConfig(tls=TlsConfig(issued.certificate, issued.key))


@pytest.fixture
def at_client(issued):
    return ConnectionConfig(tls=TlsConfig(authority=issued.authority))


async def test_a_message_goes_through_servers_that_speak_tls_only(tmp_path, issued, at_server, at_client):
    async with NameServer(NameServerConfig(port=0, connections=at_server)) as names:
        # As a server the broker shows its certificate, as a client of the name server it trusts the authority.
        both = ConnectionConfig(tls=issued)
        with pytest.raises(Unavailable):
            async with AsyncProducer("p", names.address) as plain:
                await plain.send(Message("orders", b"0"))
        config = ProducerConfig(connections=ConnectionConfig(tls=issued))
        async with (
            Broker(BrokerConfig(tmp_path, port=0, namesrv=(names.address,), connections=both)),
            AsyncProducer("p", names.address, config=config) as producer,
        ):
            assert (await producer.send(Message("orders", b"1"))).queue_offset == 0


async def test_who_does_not_speak_tls_gets_no_answer(at_server):
    async with NameServer(NameServerConfig(port=0, connections=at_server)) as names:
        with socket.create_connection(("127.0.0.1", names.port)) as plain:
            plain.setblocking(False)
            plain.send(b"no hello")
            answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(plain, 10), 5)
    assert answer[:1] in (b"", b"\x15")  # TLS: alert


async def test_a_server_nobody_vouches_for_is_refused(at_server):
    config = ProducerConfig(connections=ConnectionConfig(tls=TlsConfig()))
    async with NameServer(NameServerConfig(port=0, connections=at_server)) as names:
        with pytest.raises(Unavailable) as caught:
            async with AsyncProducer("p", names.address, config=config):
                pass
    assert "certificate" in str(caught.value.__cause__)


async def test_a_client_without_certificate_is_refused_where_one_is_wanted(issued, at_client):
    config = ProducerConfig(connections=at_client)
    async with NameServer(NameServerConfig(port=0, connections=ConnectionConfig(tls=issued))) as names:
        with pytest.raises(Unavailable):
            async with AsyncProducer("p", names.address, config=config) as producer:
                await producer.send(Message("orders", b"1"))


@pytest.mark.parametrize("what", ["certificate", "authority"])
def test_a_file_that_is_not_there_or_no_pem_is_named(issued, tmp_path, what):
    nothing, rubbish = tmp_path / "nothing.pem", tmp_path / "rubbish.pem"
    rubbish.write_text("no PEM")
    for file in (nothing, rubbish):
        with pytest.raises(UsageError, match=f"TLS {what} .*{file.name}.* cannot be used"):
            TlsConfig(**{what: file}).client_context()


def test_a_server_without_certificate_is_refused():
    with pytest.raises(UsageError, match="needs a certificate"):
        TlsConfig().server_context()
