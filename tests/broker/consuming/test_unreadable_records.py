"""A disk that cannot be read any more: who needs a record there is told, and the process goes on."""

import pytest

from pyromq.broker.broker import Broker
from pyromq.remoting.headers import SendMessageBack
from pyromq.slow_work import MAX_ROUNDS
from pyromq.store.disk import LocalDisk
from pyromq.store.log import residency


class FailingDisk(LocalDisk):
    """Once it fails nothing comes into memory."""

    def __init__(self):
        self.fails = False
        self.loads = 0

    def is_loaded(self, views):
        return not self.fails and super().is_loaded(views)

    def load(self, unread):
        self.loads += 1
        if not self.fails:
            super().load(unread)


@pytest.fixture
def disk():
    return FailingDisk()


@pytest.fixture
async def broker(config, clock, disk, monkeypatch):
    monkeypatch.setattr(residency, "RECENT_BYTES", 0)
    async with Broker(config, clock, disk=disk) as broker:
        yield broker


async def test_who_sends_a_message_back_that_cannot_be_read_is_refused(broker, orders, disk):
    message = await orders.send("orders")
    at = int(message.message_id[-16:], 16)
    disk.fails, disk.loads = True, 0
    response = await orders.ask(SendMessageBack(offset=at, group="g", delay_level=0), code=1)
    place = f"{broker.config.data}/commitlog/{0:020} byte {at}"
    assert response.remark == (
        f"the record at log offset {at} cannot be read from the disk ({place}):"
        " look for errors of the disk in the kernel's log (dmesg), and restore the file from a copy"
    )
    assert disk.loads == MAX_ROUNDS
    disk.fails = False
    await orders.ask(SendMessageBack(offset=at, group="g", delay_level=0))
