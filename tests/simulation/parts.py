"""The store on a simulated disk, with those parts of a broker that keep messages back and tables on disk."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from pyromq.broker.cold_reads import ColdReads
from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import Confirmation
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.delays.timer_scheduler import TimerScheduler
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.broker.topics import Topics
from pyromq.broker.transactions.end_transaction_processor import EndTransactionProcessor
from pyromq.broker.transactions.half_messages import HalfMessages
from pyromq.permissions.permissions import Permissions
from pyromq.store.json_file import JsonFile
from pyromq.store.log import preallocation as room_ahead
from pyromq.store.message_store import MessageStore
from pyromq.store.retention import DiskUse
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import SimulatedDisk

ROOT = Path("/srv/store")
ADDRESS = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
LEVELS_MS = (1_000, 3_000)

# Small, so that everything happens often: rolls, full files, stretches.
SMALL = {"consume_queue_entries": 60, "index_slots": 16, "index_entries": 40, "flush_least_pages": 0}
small_stretches = patch.multiple(room_ahead, FIRST_STRETCH=1 << 10, LAST_STRETCH=4 << 10)


class Time:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        self.seconds += seconds

    async def sleep(self, seconds: float) -> None:
        self.pass_by(seconds)


class Parts:
    """One process's."""

    def __init__(self, disk: SimulatedDisk, time: Time, segment_bytes: int) -> None:
        self.store_config = StoreConfig(
            ROOT, segment_bytes=segment_bytes, flush=FlushMode.SYNC, delay_levels_ms=LEVELS_MS, **SMALL
        )
        config = BrokerConfig(ROOT)
        statistics = Statistics("c", time)
        folder = ROOT / "config"
        self.store = store = MessageStore(self.store_config, time, store_address=ADDRESS, disk=disk)
        self.tables = [JsonFile(folder / name, disk) for name in ("consumerOffset", "topics", "delayOffset")]
        self.offsets = ConsumerOffsets(self.tables[0])
        self.topics = Topics(config, self.tables[1], time)
        put_message = PutMessage(store, statistics)
        cold_reads = ColdReads(disk, time)
        self.levels = DelayLevels(
            store, put_message, self.tables[2], statistics=statistics, cold_reads=cold_reads, clock=time
        )
        self.timers = TimerScheduler(
            store, put_message, ROOT / "timers", config=config, cold_reads=cold_reads, clock=time
        )
        self.tables.append(self.timers.index._files._file)
        self.halves = HalfMessages(store, put_message, topics=self.topics, offsets=self.offsets, clock=time)
        confirmation = Confirmation(store, time)
        self.transacting = EndTransactionProcessor(
            put_message,
            self.halves,
            delay_levels=self.levels,
            confirmation=confirmation,
            store=store,
            permissions=Permissions(),
        )
        needed = (self.levels, self.timers.index, self.halves)
        store.retention.needs.append(lambda: min(part.log_needed_from for part in needed))
        store.retention.measure = lambda path: DiskUse(path, 10, 90)

    def open(self) -> None:
        self.store.open()

    def load(self) -> None:
        """As a broker does, once the store is open."""
        self.topics.load()
        self.offsets.load()
        self.levels.load()
        self.timers.load()
        self.halves.load()
        self.halves.repair()

    def close(self) -> None:
        self.store.close()
        self.timers.persist()
        self.halves.note_progress(closed=True)
        self.offsets.persist()
        self.levels.persist()
