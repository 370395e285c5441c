"""Whether an account may have a message depends on its topic, which may be on the disk only: nobody waits for that."""

import pytest
from tests.broker.consuming.cold import forget_log, waits_of_this_thread

from pyromq.record import decode
from pyromq.remoting.headers import ViewMessage
from pyromq.store.log import commit_log

pytestmark = pytest.mark.on_disk

BODY = bytes(300_000)  # more than what comes from the disk along with a record's begin


@pytest.fixture
async def log_offset(guarded, account, monkeypatch):
    """Where a message lies that is on the disk only."""
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    writer = await account("writer-1")
    sent = [await writer.send("orders", BODY) for _ in range(12)]
    forget_log(guarded.store)
    return int(sent[3].message_id[-16:], 16)


async def test_an_account_with_the_right_gets_the_message(account, log_offset):
    reader = await account("reader-1")
    before = waits_of_this_thread()
    response = await reader.ask(ViewMessage(offset=log_offset))
    assert decode(response.body).body == BODY
    assert waits_of_this_thread() == before


async def test_an_account_without_it_is_refused(account, log_offset):
    writer = await account("writer-1")
    before = waits_of_this_thread()
    response = await writer.ask(ViewMessage(offset=log_offset), code=1)
    assert "writer-1 needs SUB on topic orders" in response.remark
    assert waits_of_this_thread() == before


async def test_nothing_is_loaded_for_a_stranger(guarded, account, log_offset):
    stranger = await account()
    await stranger.ask(ViewMessage(offset=log_offset), code=1)
    assert guarded.store.residency.record_to_load(log_offset)
