"""Pulls from a log file that is no longer written: answered as those from the last one."""

from __future__ import annotations

import pytest
from tests.broker.headers import pull_header

from pyromq import speedups
from pyromq.net.connection import Connection
from pyromq.record import decode_all
from pyromq.remoting.codes import PullFlag

pytestmark = pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not active")

BODY = bytes(10_000)


async def pulled(caller, offset):
    header = pull_header(consumer_group="g", queue_offset=offset, sys_flag=PullFlag.SUBSCRIPTION, subscription="*")
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
