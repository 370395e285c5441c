"""RocketMQ 5's clients with accounts at our proxy, before Java's brokers 4.9.7 and 5.3.3 with the same accounts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.interop.peers.accounts import ACCOUNTS, connections
from tests.interop.peers.grpc_clients import GrpcClient, OurProxy, refusal_of
from tests.interop.peers.servers import GenuineServers
from tests.interop.test_grpc_clients import program  # noqa: F401  a fixture

from pyromq import Admin
from pyromq.errors import MQError

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

CHECKS = {"transactionTimeOut": 3000, "transactionCheckInterval": 3000}  # ms: orphans are asked about soon
OPERATOR = ("operators", "secret-of-operators")
PROVIDER = "org.apache.rocketmq.auth.{}.provider.Local{}MetadataProvider"
SETTINGS = {
    4: {"aclEnable": "true"},
    5: {  # RocketMQ 5.3 has accounts of ACL 2.0 only, and makes them of the file of ACL 1.0
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
        "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
        "migrateAuthFromV1Enabled": "true",
        "initAuthenticationUser": json.dumps(dict(zip(("username", "password"), OPERATOR, strict=True))),
        "innerClientAuthenticationCredentials": json.dumps(
            dict(zip(("accessKey", "secretKey"), OPERATOR, strict=True))
        ),
    },
}
SENT = ["normal", "fifo", "delay", "commit", "rollback"]


@pytest.fixture(scope="module", params=[4, 5], ids=["4.9.7", "5.3.3"])
def guarded(request, jars, tmp_path_factory) -> Iterator[tuple[int, GenuineServers, OurProxy]]:
    """Java's servers with accounts, and a proxy with the same accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    servers = GenuineServers(
        folder / "home", folder / "store", major=request.param, **SETTINGS[request.param], **CHECKS
    )
    (folder / "home" / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    try:
        servers.start()
        with OurProxy(servers.namesrv, folder / "proxy", "--acl", folder / "home" / "conf") as proxy:
            yield request.param, servers, proxy
    finally:
        servers.kill()


@pytest.fixture
def orders(guarded, topic) -> str:
    with Admin(guarded[1].namesrv, connections=connections("operators")) as admin:
        for _ in range(100):
            with suppress(MQError):
                admin.create_topic(topic, 2)
                admin.create_topic(f"{topic}-orphans", 2)
                return topic
            time.sleep(0.3)
    raise AssertionError("no broker has registered")


def test_an_account_may_do_at_javas_broker_what_it_has_rights_for(program, guarded, orders):  # noqa: F811
    major, _, proxy = guarded

    def run_as(account, *arguments, secret=None):
        keys = {"ACCESS_KEY": account, "SECRET_KEY": secret or f"secret-of-{account}"}
        return GrpcClient(*program, proxy.address, keys).run(*arguments)

    def refusal(*arguments, **secret):
        return refusal_of(run_as, *arguments, **secret)

    sent = run_as("writer-1", "send", orders, *SENT)
    assert [each.get("error") for each in sent] == [None] * len(SENT)
    assert re.search("permission", refusal("reader-1", "send", orders, "normal"))
    hidden = f"failed to fetch topic:{orders}"  # all that Python's client shows of a refused route
    assert re.search(f"signature|{hidden}", refusal("writer-1", "send", orders, "normal", secret="wrong-secret"))
    assert re.search(f"unknown|{hidden}", refusal("nobody-1", "send", orders, "normal"))
    if major == 4:
        assert "has no pop" in refusal("reader-1", "receive", orders, "billing", "*", 1)
        return
    found = run_as("reader-1", "receive", orders, f"readers-{orders}", "*", 4)
    assert {each["body"] for each in found} == {"normal", "fifo", "delay", "commit"}
    again = run_as("reader-1", "push", orders, f"pushed-{orders}", "*", 8, 1)
    assert sorted(each["attempt"] for each in again) == [1] * 4 + [2] * 4
    # On a busy machine the broker may also ask about what was committed late: it asks a producer of the same topic.
    (asked, *_) = run_as("writer-1", "orphan", f"{orders}-orphans")
    assert asked["body"] == "orphan"
    assert "no permission" in refusal("writer-1", "receive", orders, "billing", "*", 1)
