"""Machines of the simulated set whose folders are real: a message store, epochs and identity on a simulated disk."""

from __future__ import annotations

from unittest.mock import patch

from tests.simulation.parts import ADDRESS, ROOT, SMALL, Time, small_stretches

from pyromq.broker.replication import replica_actions as act
from pyromq.broker.replication.identity import Identity
from pyromq.broker.replication.store_log import StoreLog
from pyromq.message import StoredMessage
from pyromq.store.epoch_file import EpochFile
from pyromq.store.log_cut import LogCut
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import SimulatedDisk

from . import machine as machines
from .machine import Machine
from .set_life import SetLife

SEGMENT_BYTES = 4096
LOG_FOLDER = ROOT / "commitlog"


class RealLog(StoreLog):
    """The log of a store, with what the simulated broker does to it."""

    is_full = False

    def __init__(self, store: MessageStore, disk: SimulatedDisk) -> None:
        super().__init__(store)
        self.store = store
        self.disk = disk
        self.confirm = self._confirm
        self._whole_end = 0

    @property
    def confirmed_end(self) -> int:
        """The end of the last record that is confirmed as a whole."""
        return self._whole_end

    def _confirm(self, end: int) -> None:
        self.store.confirm(end)
        for offset, record in self.store.records_from(self._whole_end):
            if offset + len(record) > end:
                break
            self._whole_end = offset + len(record)

    @property
    def data(self) -> bytes:
        return log_files(self.disk)[: self.written_end]

    def piece(self, start: int, most: int) -> bytes:
        return bytes(self.store.views(start, most))

    def append_record(self, number: int) -> None:
        body = b"%d " % number * (number % 40)
        self.store.append(StoredMessage(f"topic-{number % 3}", body, queue_id=number % 2, born_address=ADDRESS))

    def flush(self) -> None:
        self.store.wait_flushed(self.end)  # else nothing asks for a flush
        self.store.flush_due()


class ClosedLog:
    """The log of a machine without a process: its files, which may end with anything."""

    confirmed_end = 0

    def __init__(self, disk: SimulatedDisk) -> None:
        self.data = log_files(disk)
        self.end = self.written_end = len(self.data)


def log_files(disk: SimulatedDisk) -> bytes:
    """Return the bytes of all files of the log."""
    files = (disk._files[path] for path in sorted(disk.paths()) if path.parent == LOG_FOLDER)
    return b"".join(bytes(file.content[: file.size]) for file in files if file is not None)


class StoreMachine(Machine):
    """A machine with a real folder. Its disk forgets, tears and kills."""

    def __init__(self, life: SetLife, number: int) -> None:
        super().__init__(life, number)
        self.disk = SimulatedDisk(seed=life.random.getrandbits(30))
        self.clock_of_store = Time()
        self._cut: LogCut | None = None
        self.log = ClosedLog(self.disk)

    def open_folder(self) -> None:
        flush = FlushMode.SYNC if self.life.sync_flush else FlushMode.ASYNC
        config = StoreConfig(ROOT, segment_bytes=SEGMENT_BYTES, flush=flush, **SMALL)
        store = MessageStore(config, self.clock_of_store, store_address=ADDRESS, disk=self.disk)
        self.store = store
        store.lock()
        identity = Identity(ROOT, self.disk)
        identity.load(crashed=store.crashed, lost_unflushed=store.lost_unflushed, flush_async=not self.life.sync_flush)
        identity.take_number(self.number)
        self.incarnation = identity.incarnation
        cut, self._cut = self._cut, None
        store.open(cut)
        store.finish_cut()
        self.epochs = EpochFile(ROOT, self.disk)
        self.epochs.load()
        self.log = RealLog(store, self.disk)

    def close_folder(self, *, in_order: bool) -> None:
        if in_order:
            self.store.close()
        else:
            self.disk.is_killed = True
        self.disk = self.disk.after_kill()
        self.log = ClosedLog(self.disk)

    def cut_folder(self, action: act.CutLog) -> None:
        self._cut = LogCut(action.end, action.epoch, action.confirmed)

    def lose_unflushed(self) -> None:
        self._cut = None
        self.disk = self.disk.after_power_cut(self.life.random)
        self.log = ClosedLog(self.disk)
        if not self.life.sync_flush:
            self.incarnation = -1  # the next start finds out

    def replace_log(self) -> None:
        self._cut = LogCut(0, self.epochs.promised)
        self.disk.remove(ROOT / "replica")

    def empty_folder(self) -> None:
        self.disk = SimulatedDisk(seed=self.life.random.getrandbits(30))
        self.log = ClosedLog(self.disk)
        self.incarnation = -1

    def die_at_a_write(self) -> None:
        self.disk.kill_at = self.disk.operations + self.life.random.randint(1, 60)

    def live_on(self) -> None:
        self.disk.kill_at = None


class StoreLife(SetLife):
    """A life of a set whose replicas have real stores."""

    machine_class = StoreMachine

    @small_stretches
    @patch.object(machines, "PIECES", (64, 300, 5000))
    def run(self) -> None:
        super().run()
        self._check_queues()

    def _check_queues(self) -> None:
        """The queues of all replicas are equal, and have an entry for each record of the log."""
        stores = [machine.store for machine in self.machines.values()]
        found = [
            [
                entry.log_offset
                for topic in sorted(store.topics())
                for queue_id in store.queue_ids(topic)
                for entry in store.entries(topic, queue_id, 0, 1 << 30)
            ]
            for store in stores
        ]
        records = [record for _, record in stores[0].records_from(0)]
        if any(each != found[0] for each in found) or len(found[0]) != len(records):
            self.wrong(f"the queues have {[len(each) for each in found]} entries for {len(records)} records")
