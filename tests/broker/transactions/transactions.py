"""A client that sends half messages and decides on them, and what a broker stores of that."""

import asyncio

from tests.broker.headers import send_header
from tests.waiting import PATIENCE_SECONDS

from pyromq.message import SysFlag
from pyromq.names import OP_TOPIC
from pyromq.record import decode
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    CheckTransaction,
    EndTransaction,
    SendMessageResponse,
)

COMMIT, ROLLBACK, UNKNOWN = SysFlag.COMMIT, SysFlag.ROLLBACK, 0
ROUND = 7  # seconds; a minute would be so many ticks of the clock


class Checked:
    """A producer that notes what it is asked."""

    def __init__(self):
        self.asked = asyncio.Queue()

    @answers(CheckTransaction)
    def check(self, header, call):
        self.asked.put_nowait((header, decode(call.body)))
        return Reply()

    async def next(self):
        return await asyncio.wait_for(self.asked.get(), PATIENCE_SECONDS)


class Transactions:
    """One client that sends half messages and decides on them."""

    def __init__(self, caller, clock, checked):
        self.caller, self.clock, self.checked = caller, clock, checked
        self._numbers = iter(range(1_000_000))

    async def send(
        self, body=b"hello", *, more="", topic="orders", sys_flag=SysFlag.HALF, code=0, unique=True, queue_id=1
    ):
        text = f"TRAN_MSG\x01true\x02PGROUP\x01p{more}"
        if unique:
            text += f"\x02UNIQ_KEY\x01{next(self._numbers):032X}"
        header = send_header(
            text, topic=topic, queue_id=queue_id, sys_flag=sys_flag, born_ms=self.clock.now_ms(), flag=7
        )
        response = await self.caller.ask(header, body, code=code)
        return response if code else response.header(SendMessageResponse)

    async def end(self, sent, decision, *, code=0, **changes):
        fields = {
            "producer_group": "p",
            "half_queue_offset": sent.queue_offset,
            "log_offset": int(sent.message_id[-16:], 16),
            "decision": decision,
            "message_id": "x",
        }
        return await self.caller.ask(EndTransaction(**(fields | changes)), code=code)

    async def answer(self, header, decision, *, code=0):
        """Decide as a producer does that was asked."""
        end = EndTransaction(
            producer_group="p",
            half_queue_offset=header.half_queue_offset,
            log_offset=header.log_offset,
            decision=decision,
            message_id=header.message_id or header.offset_message_id,
            from_check=True,
        )
        return await self.caller.ask(end, code=code)

    async def rounds(self, number=1, *, member=True):
        """Let so many rounds of checks pass; the producer stays connected."""
        for _ in range(number):
            await self.caller.beat("producer", producer="p" if member else None)
            await self.clock.advance(ROUND)

    async def visible(self, queue_id=1, *, topic="orders"):
        return await self.caller.bodies(topic, queue_id)


def queue(broker, topic, queue_id=0):
    entries = broker.store.entries(topic, queue_id, 0, 1_000)
    return [broker.store.message_at(entry.log_offset) for entry in entries]


def numbers_done(broker):
    return [int(record.stored_body) for record in queue(broker, OP_TOPIC)]
