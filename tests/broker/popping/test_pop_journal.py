"""The journal of pops gives back what was in flight, or, where it is cut or damaged, what was in flight earlier."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.store.making import settle

from pyromq.broker.popping import pop_journal
from pyromq.broker.popping.in_flight import InFlight, Pop
from pyromq.broker.popping.pop_journal import PopJournal
from pyromq.broker.popping.pop_table import PopTable
from pyromq.errors import StoreNotWritable
from pyromq.remoting.receipt_handle import bits_of
from pyromq.testing import FakeClock
from pyromq.testing.simulated_disk import Loss, SimulatedDisk

FOLDER = Path("/data/pops")


def picture(table):
    """Return all that a table knows, as plain values."""
    return {
        (queue.group, queue.topic, queue.queue_id): (
            queue.next_offset,
            queue.committed,
            sorted(
                (offset, pop.start, pop.pop_ms, pop.due_ms, pop.is_orderly, pop.client_id)
                for pop in queue.leases()
                for offset in pop.leased_offsets()
            ),
            sorted(queue.tries.items()),
        )
        for queue in table
    }


def open_journal(disk):
    """Return a table with what the journal on a disk says, the journal, and whether it was closed."""
    table = InFlight()
    journal = PopJournal(FOLDER, disk, FakeClock(), table)
    return table, journal, journal.load()


class Work:
    """Random pops, acknowledgements, changes, resets and deletions of a few queues, each noted in the journal."""

    def __init__(self, table, journal, seed):
        self.table = table
        self.journal = journal
        self.chance = random.Random(seed)
        self.now = 1_000
        self.made = 0

    def run(self, count):
        """Do `count` things; return what the table knew before and after each."""
        pictures = [picture(self.table)]
        for _ in range(count):
            self.now += self.chance.randrange(3)
            queues = list(self.table)
            if len(queues) < 3 or self.chance.random() < 0.02:
                self.made += 1
                group = f"g{self.now}-{self.made}"
                queue = self.table.add(group, "orders", self.chance.randrange(4), 50)
                self.journal.note_queue(queue)
            else:
                queue = self.chance.choice(queues)
                self.chance.choice([self.pop, self.pop, self.finish, self.finish, self.move, self.end])(queue)
            pictures.append(picture(self.table))
            self.journal.step()
        return pictures

    def pop(self, queue):
        is_orderly = queue.queue_id == 0
        if is_orderly and queue.in_flight:
            return
        offsets = sorted(self.chance.sample(range(40), self.chance.randint(1, 20)))
        offsets = [queue.next_offset + offset for offset in offsets]
        pop = Pop(
            *(queue, offsets[0], bits_of(offsets, offsets[0])),
            pop_ms=self.now + 1,
            due_ms=self.now + self.chance.randrange(100),
            is_orderly=is_orderly,
            client_id=self.chance.choice([None, "client"]),
        )
        self.journal.note_pop(pop, offsets[-1] + 2)
        self.table.hand_out(pop, offsets[-1] + 2)

    def lease(self, queue):
        leases = list(queue.leases())
        return self.chance.choice(leases) if leases else None

    def finish(self, queue):
        if (pop := self.lease(queue)) is not None:
            bits = pop.leased & self.chance.getrandbits(40) or pop.leased
            self.journal.note_finished(pop, bits)
            self.table.finish(pop, bits)

    def move(self, queue):
        if (pop := self.lease(queue)) is not None:
            moved = self.table.move(
                pop, self.chance.choice(pop.leased_offsets()), pop_ms=self.now, due_ms=self.now + 50
            )
            self.journal.note_moved(pop, moved)

    def end(self, queue):
        pop = self.lease(queue)
        if pop is not None and pop.is_orderly:
            self.journal.note_released(pop)
            self.table.release(pop)
        elif self.chance.random() < 0.3:
            self.table.reset(queue, self.chance.randrange(100))
            self.journal.note_queue(queue)
        elif self.chance.random() < 0.3:
            self.table.drop(queue)
            self.journal.note_dropped(queue)


@pytest.mark.parametrize("segment_bytes", [300, 2_000, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_a_killed_broker_finds_all_that_was_in_flight(monkeypatch, seed, segment_bytes):
    monkeypatch.setattr(pop_journal, "SEGMENT_BYTES", segment_bytes)
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    for round_ in range(4):
        before = Work(table, journal, f"{seed} {round_}").run(60)[-1]
        disk = disk.after_kill()
        table, journal, was_closed = open_journal(disk)
        assert picture(table) == before
        assert not was_closed
        journal.begin()
        assert len(disk.names(FOLDER)) == 1
    journal.close()
    assert open_journal(disk)[2]


@pytest.mark.parametrize("seed", range(3))
def test_a_journal_that_is_cut_or_damaged_gives_an_earlier_state(seed):
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    pictures = Work(table, journal, seed).run(80)
    (name,) = disk.names(FOLDER)
    path = FOLDER / name
    size = disk.size(path)
    chance = random.Random(seed)
    for _ in range(60):
        after = disk.after_kill()
        descriptor, at = after.open(path), chance.randrange(size)
        if chance.random() < 0.5:
            after.resize(descriptor, at)
        else:
            after.write(descriptor, bytes([after.read(descriptor, 1, at)[0] ^ 1 << chance.randrange(8)]), at)
        assert picture(open_journal(after)[0]) in pictures


def test_a_description_that_is_cut_passes_no_message_in_flight():
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    work = Work(table, journal, 1)
    work.run(80)
    before = picture(table)
    journal.begin()
    (name,) = disk.names(FOLDER)
    size = disk.size(FOLDER / name)
    for at in range(0, size, 7):
        after = disk.after_kill()
        after.resize(after.open(FOLDER / name), at)
        found, _, _ = open_journal(after)
        for queue in found:
            assert queue.committed <= {each.number: each.committed for each in table}[queue.number]
    assert picture(open_journal(disk.after_kill())[0]) == before


def test_many_messages_in_flight_are_not_described_over_and_over(monkeypatch):
    """A segment has at least as many bytes of new records as its description has."""
    monkeypatch.setattr(pop_journal, "SEGMENT_BYTES", 1_000)
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    queue = table.add("g", "orders", 0, 0)
    journal.note_queue(queue)

    def hand_out(offset):
        pop = Pop(queue, offset, 1, pop_ms=1, due_ms=2)
        journal.note_pop(pop, offset + 1)
        table.hand_out(pop, offset + 1)
        while journal.is_behind:
            journal.step()
        return pop

    for offset in range(500):
        hand_out(offset)
    described = journal.size
    begun = int(disk.names(FOLDER)[-1])
    for offset in range(500, 1_000):
        pop = hand_out(offset)
        journal.note_finished(pop, 1)
        table.finish(pop, 1)
    assert int(disk.names(FOLDER)[-1]) - begun <= 2
    assert journal.size < 3 * described


def test_a_full_disk_refuses_a_pop_and_the_journal_goes_on_afterwards(monkeypatch):
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    queue = table.add("g", "orders", 0, 0)
    journal.note_queue(queue)
    pop = Pop(queue, 0, 1, pop_ms=1, due_ms=2)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(disk, "write", refuse)
        with pytest.raises(StoreNotWritable, match=r"pops cannot be written: No space left on device; make room"):
            journal.note_pop(pop, 1)
    journal.note_pop(pop, 1)
    table.hand_out(pop, 1)
    assert picture(open_journal(disk.after_kill())[0]) == picture(table)


def test_what_a_power_loss_lowered_is_on_disk_before_new_messages_come():
    """Otherwise a second power loss brings the earlier segments back, which call new messages finished."""
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    queue = table.add("g", "orders", 0, 3)
    journal.note_queue(queue)
    disk.sync(journal._descriptor)
    disk.sync_folder(FOLDER)
    store = SimpleNamespace(disk=disk.after_kill(), next_offset=lambda topic, queue_id: 1)
    offsets = SimpleNamespace(find=lambda *queue: 3, commit=lambda *queue: True, watch=lambda *key: None)
    PopTable(store, offsets, FOLDER, clock=FakeClock(), max_pops=10).load()
    [queue] = open_journal(store.disk.after_power_cut(random.Random(1), Loss.ALL))[0]
    assert queue.next_offset == 1


def test_a_missing_segment_ends_the_journal():
    disk = SimulatedDisk()
    disk.make_folder(FOLDER)
    for sequence in (1, 3):
        table, journal, _ = open_journal(SimulatedDisk())
        journal.begin()
        journal.note_queue(table.add("g", f"topic{sequence}", 0, 0))
        source = journal._disk
        (name,) = source.names(FOLDER)
        content = source.read(source.open(FOLDER / name), 1000, 0)
        disk.write(disk.open(FOLDER / f"{sequence:020d}", create=True), content, 0)
    table, _, _ = open_journal(disk)
    assert [queue.topic for queue in table] == ["topic1"]


@pytest.mark.parametrize("fault", ["damage", "gap"])
def test_records_that_a_start_leaves_out_never_return(fault):
    """New queues may have got the numbers of the queues in these records."""
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    journal.note_queue(table.add("g", "orders", 0, 0))
    first = disk.after_kill()
    journal._begin_segment()
    journal._describe(float("inf"))
    (name,) = disk.names(FOLDER)
    content = disk.read(disk.open(FOLDER / name), 1000, 0)
    first.write(first.open(FOLDER / (f"{2:020d}" if fault == "damage" else f"{3:020d}"), create=True), content, 0)
    if fault == "damage":
        first.resize(first.open(FOLDER / f"{1:020d}"), 5)
    settle(first)
    _, journal, _ = open_journal(first)
    journal.begin()
    (name,) = first.names(FOLDER)
    assert first.after_power_cut(random.Random(1), Loss.ALL).names(FOLDER) == [name]


def test_a_follower_discards_the_journal():
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    journal.note_queue(table.add("g", "orders", 0, 0))
    settle(disk)
    journal.discard()
    for after in (disk.after_kill(), disk.after_power_cut(random.Random(1), Loss.ALL)):
        assert list(open_journal(after)[0]) == []


def test_a_journal_is_discarded_durably_after_a_kill_while_it_was_deleted():
    disk = SimulatedDisk()
    table, journal, _ = open_journal(disk)
    journal.begin()
    journal.note_queue(table.add("g", "orders", 0, 0))
    settle(disk)
    (name,) = disk.names(FOLDER)
    disk.remove(FOLDER / name)
    disk = disk.after_kill()
    PopJournal(FOLDER, disk, FakeClock(), InFlight()).discard()
    assert list(open_journal(disk.after_power_cut(random.Random(1), Loss.ALL))[0]) == []


def test_a_follower_without_a_journal_discards_nothing():
    PopJournal(FOLDER, SimulatedDisk(), FakeClock(), InFlight()).discard()
