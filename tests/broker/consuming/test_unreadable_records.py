"""A disk that cannot be read any more: who needs a record there is told, and the process goes on."""

import pytest

from pyromq.broker.broker import Broker
from pyromq.errors import ResponseCode
from pyromq.record import decode_all
from pyromq.remoting.headers import SendMessageBack
from pyromq.slow_work import MAX_ROUNDS
from pyromq.store.disk import LocalDisk
from pyromq.store.log import commit_log


class FailingDisk(LocalDisk):
    """Once it fails nothing comes into memory."""

    def __init__(self):
        self.fails = False
        self.loads = 0

    def is_resident(self, memory, position, size):
        return not self.fails and super().is_resident(memory, position, size)

    def load(self, pieces):
        self.loads += 1
        if not self.fails:
            super().load(pieces)


@pytest.fixture
def disk():
    return FailingDisk()


@pytest.fixture
async def broker(config, clock, disk, monkeypatch):
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    async with Broker(config, clock, disk=disk) as broker:
        yield broker


async def test_who_sends_a_message_back_that_cannot_be_read_is_refused(broker, orders, disk):
    message = await orders.send("orders")
    at = int(message.message_id[-16:], 16)
    disk.fails, disk.loads = True, 0
    response = await orders.ask(SendMessageBack(offset=at, group="g", delay_level=0), code=1)
    check_text(response.remark, broker, at)
    assert disk.loads == MAX_ROUNDS
    disk.fails = False
    await orders.ask(SendMessageBack(offset=at, group="g", delay_level=0))


async def test_who_pulls_what_cannot_be_read_is_refused(broker, orders, disk):
    message = await orders.send("orders")
    disk.fails, disk.loads = True, 0
    response = await orders.pull()
    assert response.code == ResponseCode.SYSTEM_ERROR
    check_text(response.remark, broker, int(message.message_id[-16:], 16))
    assert disk.loads == MAX_ROUNDS
    disk.fails = False
    assert len(decode_all((await orders.pull()).body)) == 1


def check_text(text, broker, position):
    for fact in (f"{broker.config.data}/commitlog/{0:020}", f"at byte {position} ", "dmesg", "restore the file"):
        assert fact in text
