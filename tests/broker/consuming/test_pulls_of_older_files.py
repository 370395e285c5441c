"""Pulls from a log file that is no longer written: answered as those from the last one."""

from __future__ import annotations

import pytest

from pyromq import speedups
from pyromq.net.connection import Connection
from pyromq.record import decode_all
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.headers import PullMessage

pytestmark = pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not active")

BODY = bytes(10_000)


async def pulled(caller, offset):
    header = PullMessage(
        consumer_group="g",
        topic="orders",
        queue_id=0,
        queue_offset=offset,
        max_count=32,
        sys_flag=PullFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_ms=0,
        subscription_version=0,
        subscription="*",
    )
    return [message.queue_offset for message in decode_all((await caller.ask(header)).body)]


async def test_pulls_from_an_older_file_are_answered_by_compiled_parts(orders, broker, monkeypatch):
    for _ in range(250):  # the store of these tests has files of 1 MiB
        await orders.send("orders", BODY)
    assert broker.store.log_tail.base >= 2 << 20
    offsets = (0, 30, 90, 110, 150)  # the third pull goes over the border of two files
    before = [await pulled(orders, offset) for offset in offsets]
    received = []
    plain = Connection.data_received
    monkeypatch.setattr(Connection, "data_received", lambda self, data: (received.append(self), plain(self, data))[1])
    again = [await pulled(orders, offset) for offset in offsets]
    assert again == before
    assert [(found[0], len(found)) for found in again] == [(offset, 25) for offset in offsets]
    assert len([connection for connection in received if not connection._initiator]) == 1
