"""What an account with rights on topic TA alone gets of what others send to TB."""

import asyncio
import struct

import pytest
from tests.broker.conftest import Caller, Notices
from tests.broker.headers import pull_header, send_header
from tests.broker.popping.poppers import Popper
from tests.broker.transactions.transactions import ROUND, Checked
from tests.waiting import until

from pyromq.clock import SystemClock
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import HALF_TOPIC
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.record import BODY_AT, decode, decode_all, encode
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    AllProducers,
    EndTransaction,
    ListHalfMessages,
    MaxOffset,
    ProducerConnections,
    QueryMessage,
    SendMessageBack,
    ViewMessage,
)

from .asking import secret_of, signer

FOREVER = (1 << 63) - 1
SALARY, COLLIDING = "salary-7", "038DG7D8"  # TB#salary-7 and TA#038DG7D8 have the same hash
ACCOUNTS = f"""
accounts:
- {{accessKey: admin-1, secretKey: {secret_of("admin-1")}, admin: true}}
- {{accessKey: of-ta-1, secretKey: {secret_of("of-ta-1")}, topicPerms: [TA=PUB|SUB], groupPerms: [ga=SUB]}}
- {{accessKey: of-tb-1, secretKey: {secret_of("of-tb-1")}, topicPerms: [TB=PUB|SUB], groupPerms: [gb=SUB]}}
"""


@pytest.fixture
def acl_file(config):
    path = config.permissions_folder / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(ACCOUNTS)
    return path


@pytest.fixture
async def of_ta(account):
    return await account("of-ta-1")


@pytest.fixture
async def of_tb(account):
    return await account("of-tb-1")


def by_key(topic, key, *, by_unique_key=False):
    return QueryMessage(topic, key, 64, 0, FOREVER, by_unique_key=by_unique_key)


@pytest.mark.parametrize("name", ["KEYS", "UNIQ_KEY"])
async def test_a_key_with_the_same_hash_brings_nothing(of_ta, of_tb, name):
    await of_tb.send("TB", b"secret", properties=f"{name}\x01{SALARY}")
    for by_unique_key in (False, True):
        assert (await of_ta.ask(by_key("TA", COLLIDING, by_unique_key=by_unique_key), code=22)).body == b""
        found = await of_tb.ask(by_key("TB", SALARY, by_unique_key=by_unique_key))
        assert [message.body for message in decode_all(found.body)] == [b"secret"]


async def test_keys_with_the_same_hash_hide_nothing(of_ta, of_tb):
    await of_tb.send("TB", b"found", properties=f"KEYS\x01{SALARY}")
    for _ in range(70):
        await of_ta.send("TA", b"in the way", properties=f"KEYS\x01{COLLIDING}")
    assert [message.body for message in decode_all((await of_tb.ask(by_key("TB", SALARY))).body)] == [b"found"]


def log_offset(sent):
    return int(sent.message_id[-16:], 16)


def forged(log_offset, topic, more_bytes):
    """Return what looks like a record of that place, and goes on so far behind its end."""
    properties = "REAL_TOPIC\x01TA\x02REAL_QID\x010\x02PGROUP\x01p"
    message = StoredMessage(topic, b"", properties, born_ms=1, born_address=bytes(8), log_offset=log_offset)
    message.store_address = bytes(8)
    record = bytearray(encode(message))
    struct.pack_into(">i", record, 0, len(record) + more_bytes)
    return bytes(record)


@pytest.mark.parametrize("topic", ["TA", "%RETRY%ga", HALF_TOPIC])
@pytest.mark.parametrize("more_bytes", [0, 400])
async def test_what_a_body_makes_look_like_a_record_is_none(guarded, of_ta, of_tb, topic, more_bytes):
    """It would reach into the message behind it, whoever's that is."""
    place = guarded.store.max_log_offset + BODY_AT
    await of_ta.send("TA", forged(place, topic, more_bytes))
    await of_tb.send("TB", b"secret" * 100)
    assert guarded.store.record_at(place) is not None
    for request in (
        ViewMessage(offset=place),
        SendMessageBack(place, "ga", 0),
        EndTransaction("p", 0, place, SysFlag.COMMIT, "id"),
    ):
        assert "no_queue" in (await of_ta.ask(request, code=1)).remark


@pytest.mark.parametrize("properties", ["", "DELAY\x013", "TIMER_DELAY_SEC\x0130", "TRAN_MSG\x01true\x02PGROUP\x01p"])
async def test_what_is_stored_is_viewed_by_who_may_and_by_nobody_else(of_ta, of_tb, properties):
    at = log_offset(await of_tb.send("TB", b"secret", properties=f"{properties}\x02UNIQ_KEY\x01{'0' * 32}"))
    assert decode((await of_tb.ask(ViewMessage(offset=at))).body).body == b"secret"
    assert "SUB on topic TB" in (await of_ta.ask(ViewMessage(offset=at), code=1)).remark
    assert "SUB on topic TB" in (await of_ta.ask(SendMessageBack(at, "ga", 0), code=1)).remark


@pytest.fixture
async def connected(guarded):
    """Connect as an account, to be asked about transactions."""
    channels = []

    async def connect_as(name, producer):
        checked = Checked()
        connections = ConnectionConfig(signer=signer(name))
        channel = await connect(guarded.address, Dispatcher(checked), SystemClock(), connections=connections)
        channels.append(channel)
        caller = Caller(channel, Notices())
        await caller.beat(name, producer=producer)
        return caller, checked

    yield connect_as
    for channel in channels:
        await channel.close()


async def send_half(caller, clock, topic="TB"):
    header = send_header(
        "TRAN_MSG\x01true\x02PGROUP\x01p\x02KEYS\x01k\x02UNIQ_KEY\x01" + "0" * 32, topic=topic, born_ms=clock.now_ms()
    )
    await caller.ask(header, b"secret")


async def test_only_who_may_send_to_the_topic_is_asked_about_a_transaction(connected, clock):
    (ta, asked_ta), (tb, asked_tb) = await connected("of-ta-1", "p"), await connected("of-tb-1", "p")
    await send_half(tb, clock)
    for _ in range(4):
        for caller in (ta, tb):
            await caller.beat("again", producer="p")
        await clock.advance(ROUND)
        assert (await asked_tb.next())[1].body == b"secret"
    await ta.ask(MaxOffset(topic="TA", queue_id=0))
    assert asked_ta.asked.empty()


async def test_where_nobody_may_send_the_transaction_waits(connected, guarded, clock):
    (_, asked_ta), (tb, _) = await connected("of-ta-1", "p"), await connected("of-tb-1", "q")
    await send_half(tb, clock)
    await clock.advance(ROUND)
    assert asked_ta.asked.empty()
    (half,) = (guarded.half_messages.at(each) for each in guarded.half_messages.undecided())
    assert half.checks == 0


async def test_the_list_of_transactions_has_what_one_may_see(account, of_ta, of_tb, clock):
    await send_half(of_tb, clock)
    await send_half(of_ta, clock, "TA")
    for caller, topics in ((of_ta, ["TA"]), (of_tb, ["TB"]), (await account("admin-1"), ["TB", "TA"])):
        assert [entry.topic for entry in (await caller.body(ListHalfMessages(count=10))).half_messages] == topics


async def test_producers_are_told_of_their_own_account(account, of_ta, of_tb):
    await of_tb.beat("the client", producer="p")
    assert (await of_ta.body(AllProducers())).groups == {}
    await of_ta.ask(ProducerConnections("p"), code=1)
    for caller in (of_tb, await account("admin-1")):
        assert [each.client_id for each in (await caller.body(AllProducers())).groups["p"]] == ["the client"]
        assert len((await caller.body(ProducerConnections("p"))).connections) == 1


async def test_a_pull_that_waits_ends_where_the_right_was_taken(guarded, of_tb, account, acl_file, clock):
    await of_tb.send("TB", b"first")
    header = pull_header(topic="TB", consumer_group="gb", queue_offset=1, sys_flag=6, suspend_ms=20_000)
    waiting = (await account("of-tb-1")).channel.call_soon(header, timeout=30)
    await of_tb.ask(MaxOffset(topic="TB", queue_id=0))
    await until(lambda: len(guarded._state.long_polls) == 1)
    await take_right_to_read(guarded, acl_file, clock)
    await of_tb.send("TB", b"second")
    response = await waiting
    assert (response.code, response.body) == (1, b"")
    assert "of-tb-1 has no SUB on topic TB any more" in response.remark


async def test_a_pop_that_waits_ends_where_the_right_was_taken(guarded, of_tb, account, acl_file, clock):
    await of_tb.send("TB", b"first")
    popper = Popper(await account("of-tb-1"), clock, "gb", "TB")
    await popper.pop()
    waiting = popper.pop_soon(poll_ms=20_000)
    await until(lambda: guarded._state.waiting_pops.count("gb", "TB") == 1)
    await take_right_to_read(guarded, acl_file, clock)
    await of_tb.send("TB", b"second")
    response = await waiting
    assert (response.code, response.body) == (1, b"")
    assert "of-tb-1 has no SUB on topic TB any more" in response.remark


async def take_right_to_read(guarded, acl_file, clock):
    acl_file.write_text(ACCOUNTS.replace("TB=PUB|SUB", "TB=PUB"))
    in_force = guarded._state.permissions.in_force
    while guarded._state.permissions.in_force is in_force:
        await clock.advance(1)
        await asyncio.sleep(0)
