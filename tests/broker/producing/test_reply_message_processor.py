"""Replies: who gets them, what their sender is told, and what is stored."""

import asyncio

import pytest

from pyromq.errors import BrokerError
from pyromq.message import SysFlag, decode_properties
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import PushReplyMessage, SendMessageResponse, SendReplyMessage, SendReplyMessageV2

TOPIC = "DefaultCluster_REPLY_TOPIC"
WANTED = "CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01requester\x02TTL\x013000\x02MSG_TYPE\x01reply"


class Requester:
    """Takes replies, or does not."""

    def __init__(self):
        self.got = asyncio.Queue()
        self.failure = None

    @answers(PushReplyMessage)
    def take(self, header, call):
        if self.failure:
            raise self.failure
        self.got.put_nowait((header, call.body))
        return Reply()


@pytest.fixture
async def requester(broker, caller_to):
    requester = Requester()
    await (await caller_to(broker, requester)).beat("requester", producer="p")
    return requester


@pytest.fixture
def reply(caller):
    """Send a reply as a consumer does."""

    async def send(body=b"pong", *, spelling=SendReplyMessageV2, code=0, **changes):
        fields = {
            "producer_group": "CLIENT_INNER_PRODUCER",
            "topic": TOPIC,
            "default_topic": "TBW102",
            "default_topic_queue_count": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_ms": 5,
            "flag": 7,
            "properties": WANTED,
        }
        response = await caller.ask(spelling(**(fields | changes)), body, code=code)
        return response if code else response.header(SendMessageResponse)

    return send


def stored(broker):
    entries = broker.store.entries(TOPIC, 0, 0, 100)
    return [broker.store.message_at(entry.log_offset) for entry in entries]


@pytest.mark.parametrize("spelling", [SendReplyMessage, SendReplyMessageV2])
async def test_a_reply_reaches_the_requester_and_is_stored(broker, requester, reply, clock, spelling):
    sent = await reply(spelling=spelling)

    header, body = requester.got.get_nowait()
    assert (body, header.topic, header.flag, header.born_ms) == (b"pong", TOPIC, 7, 5)
    assert (header.store_host, header.store_ms) == (broker.address, clock.now_ms())
    assert header.born_host.startswith("127.0.0.1:")
    assert decode_properties(header.properties) == {
        "CORRELATION_ID": "c1",
        "REPLY_TO_CLIENT": "requester",
        "TTL": "3000",
        "MSG_TYPE": "reply",
        "PUSH_REPLY_TIME": str(clock.now_ms()),
    }
    (message,) = stored(broker)
    assert (message.body, message.property_text, message.flag) == (b"pong", WANTED, 7)
    assert (sent.message_id, sent.queue_id, sent.queue_offset) == (message.offset_message_id, 0, 0)
    assert sent.region == "DefaultRegion"


async def test_a_reply_reaches_no_other_producer(broker, requester, reply, caller_to):
    other = Requester()
    await (await caller_to(broker, other)).beat("other", producer="p")
    await reply()
    assert (requester.got.qsize(), other.got.qsize()) == (1, 0)


async def test_storing_may_be_switched_off(broker, requester, reply):
    broker.config.store_replies = False
    sent = await reply()
    assert (sent.message_id, sent.queue_offset, stored(broker)) == ("0", 0, [])
    assert requester.got.qsize() == 1


async def test_a_compressed_reply_stays_compressed_and_marked(broker, requester, reply):
    await reply(sys_flag=SysFlag.COMPRESSED | SysFlag.COMMIT)
    assert requester.got.get_nowait()[0].sys_flag == SysFlag.COMPRESSED | SysFlag.COMMIT
    assert stored(broker)[0].sys_flag == SysFlag.COMPRESSED


async def test_an_empty_reply_is_handed_over_but_not_stored(broker, requester, reply):
    sent = await reply(b"")
    assert requester.got.get_nowait()[1] == b""
    assert (sent.message_id, stored(broker)) == ("0", [])


async def test_a_reply_too_large_to_be_stored_is_handed_over(broker, requester, reply):
    sent = await reply(bytes(broker.config.max_message_bytes + 1))
    assert (sent.message_id, stored(broker), requester.got.qsize()) == ("0", [], 1)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ("CORRELATION_ID\x01c1", "reply message properties[REPLY_TO_CLIENT] is null"),
        (None, "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01gone", "push reply message fail, channel of <gone> not found."),
    ],
)
async def test_a_reply_for_nobody_is_refused_and_stored_all_the_same(broker, requester, reply, properties, text):
    response = await reply(properties=properties, code=1)
    assert response.remark == text
    (message,) = stored(broker)
    assert response.header(SendMessageResponse).message_id == message.offset_message_id


async def test_a_requester_that_does_not_take_it_is_a_failure(requester, reply):
    requester.failure = BrokerError("no")
    assert (await reply(code=1)).remark == "push reply message to requesterfail."


async def test_a_requester_that_goes_away_meanwhile_is_a_failure(broker, caller_to, reply):
    class Leaving(Requester):
        @answers(PushReplyMessage)
        def take(self, header, call):
            call.peer.close("test")
            return Reply()

    leaving = await caller_to(broker, Leaving())
    await leaving.beat("requester", producer="p")
    replied = asyncio.create_task(reply(code=1))
    await leaving.channel.close()
    assert (await replied).remark in (
        "push reply message to requesterfail.",
        "push reply message fail, channel of <requester> not found.",
    )


async def test_a_reply_to_a_topic_that_is_only_for_brokers_is_refused(requester, reply):
    await reply(topic="RMQ_SYS_TRANS_HALF_TOPIC", code=16)
    await reply(queue_id=99, code=1)
    assert requester.got.empty()
