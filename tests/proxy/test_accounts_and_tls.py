"""Accounts of the brokers' ACL files, by the signature of RocketMQ 5; TLS and plain connections at one port."""

import hmac
import stat

import grpc
import pytest
from cryptography import x509
from tests.certificates import Authority
from tests.proxy.calls import Calls, endpoints, message

from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.proxy import Proxy
from pyromq.proxy.proxy_config import ProxyConfig
from pyromq.proxy.self_signed import self_signed_certificate

DATE = "20261123T145959Z"
SECRET = "secret-of-the-shop"
ACL = f"""
accounts:
- accessKey: admin-account
  secretKey: secret-of-admin
  admin: true
- accessKey: shop-account
  secretKey: {SECRET}
  topicPerms: [orders=PUB]
"""


def signed(key="shop-account", secret=SECRET, date=DATE):
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": text, "x_mq_date_time": date}


async def test_an_account_sends_to_its_topics_and_not_to_others(guarded):
    async with Calls(guarded.address, **signed()) as calls:
        allowed = await calls.send(message())
        refused = await calls.send(message("payments"))

    assert allowed.status.code == proto.OK, allowed
    assert refused.status.code == proto.FORBIDDEN
    assert "shop-account needs PUB on topic payments" in refused.status.message


async def test_the_signature_may_be_upper_case_and_the_credential_have_a_region(guarded):
    fields = signed()
    start, _, signature = fields["authorization"].rpartition("=")
    fields["authorization"] = f"{start}={signature.upper()}".replace("shop-account", "shop-account/eu/mq")

    async with Calls(guarded.address, **fields) as calls:
        assert (await calls.send(message())).status.code == proto.OK


@pytest.mark.parametrize(
    "fields",
    [
        {},
        signed(key=""),
        signed(key="nobody-here"),
        signed(secret="wrong-secret"),
        signed() | {"x_mq_date_time": "20261123T145960Z"},
        signed(date=""),
        {"authorization": "Basic YTpi"},
        {"authorization": "MQv2-HMAC-SHA1 " + "a" * 3000},
    ],
    ids=["none", "empty", "unknown", "secret", "date", "no date", "basic", "long"],
)
async def test_a_call_without_a_right_signature_is_unauthorized(guarded, fields):
    async with Calls(guarded.address, **fields) as calls:
        answer = await calls.send(message())

    assert answer.status.code == proto.UNAUTHORIZED
    assert answer.status.message


async def test_without_permissions_a_signature_is_ignored(calls, cluster):
    await (await cluster.admin()).create_topic("orders")

    async with Calls(endpoint_of(calls), **signed(key="")) as python_client:
        assert (await python_client.send(message())).status.code == proto.OK


def endpoint_of(calls):
    (address,) = calls.endpoints.addresses
    return f"{address.host}:{address.port}"


async def route(proxy, credentials, options):
    """Return the status of a route that is asked over a new connection by TLS."""
    async with grpc.aio.secure_channel(proxy.address, credentials, options) as channel:
        method = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute",
            request_serializer=service.QueryRouteRequest.SerializeToString,
            response_deserializer=service.QueryRouteResponse.FromString,
        )
        request = service.QueryRouteRequest(topic=proto.Resource(name="orders"), endpoints=endpoints("a:1"))
        return (await method(request, metadata=[("x-mq-client-id", "a")], timeout=20)).status.code


async def test_plain_and_tls_connections_share_a_port(calls, cluster, proxy):
    await (await cluster.admin()).create_topic("orders")
    assert (await calls.send(message())).status.code == proto.OK

    pem = (proxy.config.data / "self-signed.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials(pem[pem.index(b"-----BEGIN CERT") :])
    options = [("grpc.ssl_target_name_override", "localhost")]
    assert await route(proxy, credentials, options) == proto.OK


async def test_a_port_that_enforces_tls_closes_plain_connections(cluster, tmp_path):
    certificate, key = Authority(tmp_path).issue("server")
    tls = ServerTlsConfig(certificate=certificate, key=key, mode=TlsMode.ENFORCING)
    config = ProxyConfig(namesrv=cluster.namesrv, port=0, data=tmp_path, tls=tls)

    async with Proxy(config) as proxy, Calls(proxy.address) as calls:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await calls.send(message())

    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_self_signed_certificate_is_kept_until_it_expires(tmp_path):
    day = 86_400_000
    now = 1_700_000_000_000
    file = self_signed_certificate(tmp_path, now)
    content = file.read_bytes()

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert self_signed_certificate(tmp_path, now + 3000 * day).read_bytes() == content
    assert self_signed_certificate(tmp_path, now + 3630 * day).read_bytes() != content
    assert x509.load_pem_x509_certificate(content).not_valid_after_utc.year == 2033


def test_a_damaged_certificate_is_replaced(tmp_path):
    (tmp_path / "self-signed.pem").write_text("rubbish")

    assert b"BEGIN CERTIFICATE" in self_signed_certificate(tmp_path, 1_700_000_000_000).read_bytes()


def route_over_tls(proxy, authority, certificate=None, key=None):
    """Return the status of a route that is asked over a new connection by TLS."""
    credentials = grpc.ssl_channel_credentials(
        authority.file.read_bytes(), key and key.read_bytes(), certificate and certificate.read_bytes()
    )
    return route(proxy, credentials, [("grpc.use_local_subchannel_pool", 1)])


async def test_a_client_without_a_certificate_is_refused_if_one_is_required(cluster, tmp_path):
    await (await cluster.admin()).create_topic("orders")
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    tls = ServerTlsConfig(
        certificate=certificate,
        key=key,
        mode=TlsMode.ENFORCING,
        client_certificates=ClientCertificates.REQUIRE,
        authority=authority.file,
    )
    async with Proxy(ProxyConfig(namesrv=cluster.namesrv, port=0, data=tmp_path, tls=tls)) as proxy:
        with pytest.raises(grpc.aio.AioRpcError):
            await route_over_tls(proxy, authority)
        with pytest.raises(grpc.aio.AioRpcError):
            await route_over_tls(proxy, authority, *Authority(tmp_path, "stranger").issue("strange-client"))
        assert await route_over_tls(proxy, authority, *authority.issue("client")) == proto.OK


async def test_a_replaced_certificate_counts_for_new_connections(cluster, tmp_path):
    await (await cluster.admin()).create_topic("orders")
    old = Authority(tmp_path, "old")
    certificate, key = old.issue("server", ends_in_days=-1)
    tls = ServerTlsConfig(certificate=certificate, key=key)
    async with Proxy(ProxyConfig(namesrv=cluster.namesrv, port=0, data=tmp_path, tls=tls), cluster.clock) as proxy:
        with pytest.raises(grpc.aio.AioRpcError):  # it has expired
            await route_over_tls(proxy, old)
        new = Authority(tmp_path, "new")
        new.issue("server")
        await cluster.clock.advance(60)
        assert await route_over_tls(proxy, new) == proto.OK
