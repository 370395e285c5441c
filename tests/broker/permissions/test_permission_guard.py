"""Who may ask what: RocketMQ's table of rights, and what it leaves open."""

import pytest

from pyromq.broker.broker import _modules
from pyromq.broker.config import BrokerConfig
from pyromq.broker.permissions.rules import (
    FOR_ADMINISTRATORS,
    FOR_EVERY_ACCOUNT,
    PermissionGuard,
    Rules,
    needs_administrator,
)
from pyromq.broker.shared_state import SharedState
from pyromq.clock import SystemClock
from pyromq.errors import AccessDenied, ProtocolError, from_response
from pyromq.permissions.acl_files import parse_acl_file
from pyromq.permissions.permissions import Permissions
from pyromq.remoting import headers
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, ProducerEntry, QueueLock, Subscription, encode_body
from pyromq.remoting.command import BINARY, JSON
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.header import request_headers
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.remoting.signer import signature
from pyromq.store.disk import LOCAL_DISK

from ..headers import PLAIN, batch_header, send_header
from .asking import asked, received, secret_of

FILE = f"""
globalWhiteRemoteAddresses: [10.9.9.*]
accounts:
- {{accessKey: writer-1, secretKey: {secret_of("writer-1")}, topicPerms: [orders=PUB, closed=DENY]}}
- {{accessKey: reader-1, secretKey: {secret_of("reader-1")}, topicPerms: [orders=SUB], groupPerms: [readers=SUB]}}
- {{accessKey: both-12, secretKey: {secret_of("both-12")}, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
    topicPerms: [closed=DENY]}}
- {{accessKey: admin-1, secretKey: {secret_of("admin-1")}, admin: true}}
- {{accessKey: admin-2, secretKey: {secret_of("admin-2")}, admin: true, topicPerms: [orders=SUB]}}
- {{accessKey: nobody-1, secretKey: {secret_of("nobody-1")}, whiteRemoteAddress: 10.8.8.8}}
"""
STORED = {100: "orders", 200: "%RETRY%readers", 300: "others"}


@pytest.fixture
def refusals():
    return RejectionLog(SystemClock())


@pytest.fixture
def guard(tmp_path, refusals):
    permissions = Permissions()
    permissions.take((parse_acl_file(tmp_path / "plain_acl.yml", FILE.encode()),))
    return PermissionGuard(permissions, Rules(STORED.get, "DefaultCluster_REPLY_TOPIC"), refusals)


def send(topic="orders", **fields):
    return send_header(topic=topic, **fields)


def old_send(topic="orders"):
    return headers.SendMessage(**PLAIN | {"topic": topic})


def reply(topic):
    return headers.SendReplyMessageV2(**PLAIN | {"topic": topic})


def half_run(topic):
    return headers.SendHalfRun(
        producer_group="p", topic=topic, default_topic="", default_topic_queue_count=1, queue_id=0,
        transaction="t", token="t", number=0, born_ms=1,
    )  # fmt: skip


def pull(topic="orders", group="readers", declared=headers.PullMessage):
    return declared(
        consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_count=32, sys_flag=0, commit_offset=0,
        suspend_ms=0, subscription_version=0,
    )  # fmt: skip


def query(topic="orders"):
    return headers.QueryMessage(topic, "k", 32, 0, 1, by_unique_key=True)


def beat(group="readers", topic="orders"):
    consumers = [ConsumerEntry(group=group, subscriptions=[Subscription(topic=topic)])] if group else []
    return headers.Heartbeat(), encode_body(
        HeartbeatBody(client_id="c", consumers=consumers, producers=[ProducerEntry(group="p")])
    )


def lock(group):
    return headers.LockQueues(), encode_body(QueueLock(group=group, client_id="c"))


def pop(topic, group):
    return headers.PopMessage(group, topic, -1, 32, 60_000, 0, 0, 0)


def ack(topic, group):
    return headers.AckMessage(group, topic, 0, "handle", 0)


EVERYBODY = ("writer-1", "reader-1", "both-12", "admin-1", "admin-2", "nobody-1")


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        (send("orders"), "writer-1 both-12 admin-1"),
        (old_send("orders"), "writer-1 both-12 admin-1"),
        (batch_header(topic="orders"), "writer-1 both-12 admin-1"),
        (half_run("orders"), "writer-1 both-12 admin-1"),
        (headers.RecallMessage("orders", "handle"), "writer-1 both-12 admin-1"),
        (send("closed"), "admin-1"),
        (send("others"), "both-12 admin-1"),
        (send("%RETRY%readers", producer_group="others"), "reader-1 both-12 admin-1"),
        (send("%RETRY%others", producer_group="readers"), "both-12 admin-1"),
        (send("%DLQ%readers"), "both-12 admin-1"),
        (send("RMQ_SYS_TRACE_TOPIC"), " ".join(EVERYBODY)),
        (reply("DefaultCluster_REPLY_TOPIC"), " ".join(EVERYBODY)),
        (reply("orders"), "writer-1 both-12 admin-1"),
        (pull("orders", "readers"), "reader-1 both-12 admin-1"),
        (pull("orders", "others"), "both-12 admin-1"),
        (pull("others", "readers"), "both-12 admin-1"),
        (pull("%RETRY%readers", "readers"), "reader-1 both-12 admin-1"),
        (pull("%RETRY%others", "readers"), "both-12 admin-1"),
        (pull("RMQ_SYS_TRACE_TOPIC", "readers"), "both-12 admin-1"),
        (pull("SCHEDULE_TOPIC_XXXX", "readers"), "admin-1"),
        (pop("orders", "readers"), "reader-1 both-12 admin-1"),
        (pop("orders", "others"), "both-12 admin-1"),
        (pop("others", "readers"), "both-12 admin-1"),
        (pop("SCHEDULE_TOPIC_XXXX", "readers"), "admin-1"),
        (ack("orders", "readers"), "reader-1 both-12 admin-1"),
        (ack("%RETRY%readers_orders", "readers"), "reader-1 both-12 admin-1"),
        (ack("%RETRY%readers_others", "readers"), "both-12 admin-1"),
        (pull(declared=headers.LitePullMessage), "reader-1 both-12 admin-1"),
        (query("orders"), "reader-1 both-12 admin-1 admin-2"),
        (query("others"), "both-12 admin-1"),
        (beat("readers", "orders"), "reader-1 both-12 admin-1"),
        (beat("others", "orders"), "both-12 admin-1"),
        (beat("readers", "others"), "both-12 admin-1"),
        (beat(None), " ".join(EVERYBODY)),
        (headers.UnregisterClient("c", "p", "readers"), "reader-1 both-12 admin-1"),
        (headers.UnregisterClient("c", "p", None), " ".join(EVERYBODY)),
        (headers.ConsumerList("readers"), "reader-1 both-12 admin-1"),
        (headers.UpdateConsumerOffset("readers", "orders", 0, 1), "reader-1 both-12 admin-1"),
        (headers.UpdateConsumerOffset("readers", "others", 0, 1), "both-12 admin-1"),
        (headers.UpdateConsumerOffset("others", "orders", 0, 1), "both-12 admin-1"),
        (headers.SendMessageBack(100, "readers", 0), "reader-1 both-12 admin-1"),
        (headers.SendMessageBack(200, "readers", 0), "reader-1 both-12 admin-1"),
        (headers.SendMessageBack(300, "readers", 0), "both-12 admin-1"),
        (headers.SendMessageBack(100, "others", 0), "both-12 admin-1"),
        (lock("readers"), "reader-1 both-12 admin-1"),
        (lock("others"), "both-12 admin-1"),
        (headers.ViewMessage(100), "reader-1 both-12 admin-1 admin-2"),
        (headers.ViewMessage(300), "both-12 admin-1"),
        (headers.ViewMessage(999), " ".join(EVERYBODY)),  # there is none
        (headers.EndTransaction("p", 0, 100, 8, "id"), "writer-1 both-12 admin-1"),
        (headers.EndTransaction("p", 0, 300, 8, "id"), "both-12 admin-1"),
        (headers.ConsumerConnections("readers"), "reader-1 both-12 admin-1"),
        (headers.ConsumerRunningState("others", "c"), "both-12 admin-1"),
        (headers.ConsumerStatusOfGroup("orders", "readers"), "reader-1 both-12 admin-1"),
        (headers.ConsumerStatusOfGroup("others", "readers"), "both-12 admin-1"),
        (headers.QueueEntries("orders", 0, 0, 1), "reader-1 both-12 admin-1 admin-2"),
        (headers.QueueEntries("orders", 0, 0, 1, "others"), "both-12 admin-1"),
        (headers.ListBatches(), " ".join(EVERYBODY)),
        (headers.ListTimers("orders", 1), "writer-1 reader-1 both-12 admin-1 admin-2"),
        (headers.QueryConsumerOffset("others", "others", 0), " ".join(EVERYBODY)),
        (headers.MaxOffset("others", 0), " ".join(EVERYBODY)),
        (headers.AllTopics(), " ".join(EVERYBODY)),
        (headers.CreateTopic("orders", 1, 1, 6), "admin-1 admin-2"),
        (headers.DeleteTopic("orders"), "admin-1 admin-2"),
        (headers.SaveGroup(), "admin-1 admin-2"),
        (headers.DeleteGroup("readers"), "admin-1 admin-2"),
        (headers.SaveBrokerSettings(), "admin-1 admin-2"),
        (headers.ResetOffset("orders", "readers", 0), "admin-1 admin-2"),
        (headers.SaveAccount("another-1"), "admin-1 admin-2"),
        (headers.ListAccounts(), "admin-1 admin-2"),
        (headers.ConsumeDirectly("readers"), "admin-1 admin-2"),
    ],
    ids=str,
)
@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["JSON", "binary"])
def test_rights(guard, request_, allowed, serialization):
    header, body = request_ if isinstance(request_, tuple) else (request_, b"")
    calls = [asked(header, body, by=name, serialization=serialization) for name in EVERYBODY]
    refused = [guard.judge(call) for call in calls]
    assert " ".join(name for name, error in zip(EVERYBODY, refused, strict=True) if error is None) == allowed


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (asked(send()), "the request names no account"),
        (asked(send(), by="unknown-1"), "account unknown-1 is unknown to this server"),
        (asked(send(), by="writer-1", secret="wrong"), "the signature does not match account writer-1"),
        (asked(send("others"), by="writer-1"), "account writer-1 needs PUB on topic others and has DENY"),
        (asked(send("orders"), by="reader-1"), "account reader-1 needs PUB on topic orders and has SUB"),
        (asked(pull("orders", "c"), by="reader-1"), "account reader-1 needs SUB on group c and has DENY"),
        (asked(headers.DeleteTopic("t"), by="both-12"), "account both-12 is not an administrator, which request 215"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_refusal_names_what_is_missing_and_is_an_own_error_at_the_client(guard, refusals, call, reason):
    error = guard.judge(call)
    assert isinstance(error, AccessDenied)
    assert str(error).startswith(f"AclException: {reason}")  # as Java's, which answers with code 1 as well
    again = from_response(error.code, str(error))
    assert isinstance(again, AccessDenied)
    assert str(again).startswith(reason)
    assert not again.retriable
    assert refusals.counts == {"aclEnable": 1}


def test_a_refusal_of_a_genuine_broker_is_the_same_error():
    remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, org.apache.rocketmq.acl.plain."
    assert isinstance(from_response(1, remark), AccessDenied)
    assert not isinstance(from_response(1, "x" * 100 + remark), AccessDenied)
    assert not isinstance(from_response(16, remark), AccessDenied)


def test_addresses_that_need_no_account(guard):
    assert guard.judge(asked(headers.DeleteTopic("t"), peer="10.9.9.1:1")) is None
    assert guard.judge(asked(headers.DeleteTopic("t"), peer="10.9.10.1:1")) is not None


def test_addresses_from_which_an_account_needs_no_signature(guard):
    """As upstream: and no right either."""
    assert guard.judge(asked(headers.DeleteTopic("t"), by="nobody-1", secret="wrong", peer="10.8.8.8:1")) is None
    assert guard.judge(asked(headers.DeleteTopic("t"), by="nobody-1", secret="wrong", peer="10.8.8.9:1")) is not None
    assert guard.judge(asked(headers.DeleteTopic("t"), by="writer-1", secret="wrong", peer="10.8.8.8:1")) is not None


def test_what_is_changed_on_the_way_is_refused(guard):
    header = send("orders", properties="KEYS\x01abc\x02")
    call = asked(header, b"body", by="writer-1")
    assert guard.judge(call) is None
    for name in call.fields:
        changed = asked(header, b"body", by="writer-1")
        changed.fields[name] += "x"
        assert guard.judge(changed) is not None, name
    changed = asked(header, b"body", by="writer-1")
    changed.body = b"bode"
    assert guard.judge(changed) is not None
    changed = asked(header, b"body", by="writer-1")
    changed.fields["more"] = "x"
    assert guard.judge(changed) is not None


@pytest.mark.parametrize("signature", ["", None, "é", 7, "A" * 28, True])
def test_what_is_no_signature_is_refused(guard, signature):
    call = asked(send(), by="writer-1")
    call.fields["Signature"] = signature
    assert guard.judge(call) is not None


def test_the_mark_of_queries_by_unique_key_may_be_signed_or_not(guard):
    """Clients from 4.9.4 on sign it."""
    call = asked(query(), by="reader-1")
    assert guard.judge(call) is None
    values = [call.fields[name] for name in sorted(call.fields) if name != "Signature"]
    assert "true" in values
    content = "".join(values).encode()
    call.fields["Signature"] = signature(secret_of("reader-1"), content)
    assert guard.judge(call) is None


def test_values_that_are_no_texts_are_signed_as_java_reads_them(guard):
    frame_fields = '"queueId":3,"topic":"orders"'
    signed = signature(secret_of("both-12"), b"both-123orders")
    header = b'{"code":30,"extFields":{"AccessKey":"both-12",%s,"Signature":"%s"},"flag":0,"opaque":1}' % (
        frame_fields.encode(),
        signed.encode(),
    )
    frame = (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header
    assert guard.judge(received(frame)) is None


def test_a_body_that_cannot_be_read_is_told_to_who_may_ask(guard):
    error = guard.judge(asked(headers.Heartbeat(), b"{", by="both-12"))
    assert isinstance(error, ProtocolError)
    error = guard.judge(asked(headers.Heartbeat(), b"{"))
    assert isinstance(error, AccessDenied)


def test_every_request_that_is_answered_has_a_rule(tmp_path, guard):
    """One that is not thought of needs an administrator."""
    parts = _modules(SharedState(BrokerConfig(tmp_path, permissions=True), SystemClock(), LOCAL_DISK))
    rules = Rules(STORED.get, "")
    declared = request_headers()
    for code in Dispatcher(*(answerer for part in parts for answerer in part.answerers)).codes:
        listed = issubclass(declared[code], FOR_ADMINISTRATORS), issubclass(declared[code], FOR_EVERY_ACCOUNT)
        assert [*listed, rules.has_rule(code)].count(True) == 1, code
        assert needs_administrator(code, rules) == listed[0]
