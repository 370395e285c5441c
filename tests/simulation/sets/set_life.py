"""What a seed does to a replica set: random accidents, the promises checked after each step, and peace at the end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.model import Wrong

from pyromq.broker.replication.set_record import SetRecord, SetSettings

from .machine import ANSWER_SECONDS, Machine, Process
from .model_registry import ModelRegistry
from .network import Network, Timeline

TROUBLE_SECONDS = 14.0  # time of accidents in a life
PEACE_SECONDS = 60.0  # limit until a healed set must be whole again


class SetLife:
    """Everything of one seed. `run` raises `Wrong`, or whatever else goes wrong."""

    machine_class = Machine
    checks_promises = True
    checks_required = True

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time = Timeline()
        self.network = Network(self.time, self.random)
        self.registry = ModelRegistry(self._record_changed)
        self.sync_flush = self.random.random() < 0.5
        count = self.random.choice((2, 3, 3, 3))
        self.settings = SetSettings(1 << 20, self.random.choice((1, 1, 2)), False)
        self.machines = {number: self.machine_class(self, number) for number in range(1, count + 1)}
        self.unreachable: set[int] = set()  # machines that are cut from the registry
        self.truth = bytearray()  # what has been confirmed
        self.seen = bytearray()  # what consumers have read
        self.elections = 0
        self.losses = 0
        self._loss_epoch = 0  # replicas that have not heard of it still show what is lost
        self.records = 0
        self.story: list[str] = []
        self._confirming: dict[int, Process] = {}
        self._is_peace = False
        self._lateness = self.random.choice((0.05, 0.1, 0.4))  # of requests to the registry and of their answers
        # Each life is spared some kinds of accidents: the others come together more often.
        self._weights = [
            weight if kind is SetLife.heal or self.random.random() < 0.6 else 0 for kind, weight in ACCIDENTS.items()
        ]

    def run(self) -> None:
        for machine in self.machines.values():
            self.time.after(self.random.random(), machine.start)
        while self.time.now < TROUBLE_SECONDS:
            self.time.run_until(self.time.now + self.random.choice((0.05, 0.2, 0.5, 1.5)))
            self._accident()
        self._make_peace()

    def note(self, text: str) -> None:
        self.story.append(f"{self.time.now:.3f}: {text}")

    def wrong(self, text: str) -> None:
        raise Wrong(f"at {self.time.now:.3f}: {text}")

    def next_record(self) -> int:
        self.records += 1
        return self.records

    # -- registry

    def ask(
        self,
        machine: Machine,
        execute: Callable[[], Any],
        answered: Callable[[Any], None],
        failed: Callable[[], None] | None,
    ) -> None:
        """Have a request reach the registry, late or never, and its answer come back, late or never."""
        random, time = self.random, self.time
        process = machine.process
        state = {"is_done": False}

        def give_up() -> None:
            if not state["is_done"]:
                state["is_done"] = True
                if failed is not None:
                    failed()

        def answer(result: Any) -> None:
            if not state["is_done"] and machine.process is process:
                state["is_done"] = True
                answered(result)

        def arrive() -> None:
            if self._is_cut_off(machine):
                return
            result = execute()
            if self._is_peace or random.random() > self._lateness / 2:
                time.after(self.network.delay(), answer, result)

        lateness = random.random()
        if self._is_peace or lateness > self._lateness:
            time.after(self.network.delay(), arrive)
        elif lateness > self._lateness * 0.3:
            time.after(random.random() * 2.5, arrive)
        time.after(ANSWER_SECONDS, give_up)

    def _is_cut_off(self, machine: Machine) -> bool:
        return self.registry.is_away or machine.number in self.unreachable

    def _record_changed(self, old: SetRecord | None, new: SetRecord) -> None:
        self.note(f"record {self.registry.key_revision}: {new.epoch} {new.master} {[m.number for m in new.in_sync]}")
        if old is not None and len(new.losses) > len(old.losses):
            self._lose(old, new)
        self.check_listed()
        self._check_required()
        for machine in self.machines.values():
            if not self._is_cut_off(machine) and machine.process and (self._is_peace or self.random.random() < 0.8):
                self.time.after(self.network.delay(), machine.process.event, "record_changed")

    def _lose(self, old: SetRecord, new: SetRecord) -> None:
        """Forget what an election outside of the list may lose, if no replica of the list could come back."""
        for member in old.in_sync:
            if self.machines[member.number].incarnation == member.incarnation:
                self.wrong(f"epoch {new.epoch} was elected with loss, though replica {member.number} is in sync")
        assert new.master is not None
        log = self.machines[new.master].log.data
        equal = 0
        while equal < min(len(log), len(self.truth)) and log[equal] == self.truth[equal]:
            equal += 1
        self.losses += 1
        self._loss_epoch = new.epoch
        self.note(f"confirmed up to {len(self.truth)}, {equal} is left")
        del self.truth[equal:], self.seen[equal:]
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.checked_end = min(machine.process.checked_end, equal)

    # -- checks

    def check_listed(self) -> None:
        """A confirmed record is at its place in the log of every replica in the list."""
        record = self.registry.record
        for member in record.in_sync if record else ():
            machine = self.machines[member.number]
            if machine.incarnation == member.incarnation and not machine.log.data.startswith(self.truth):
                self.wrong(f"replica {member.number} is in sync, but lacks some of {len(self.truth)} confirmed bytes")

    def check_confirmed(self, process: Process, end: int) -> None:
        """A master confirms what is nowhere contradicted; a follower shows what a master has confirmed."""
        log = process.log.data
        mastership = process.replica.mastership
        if mastership is None and not self._knows_loss(process):
            return
        begin = process.checked_end
        process.checked_end = end
        known = min(end, len(self.truth))
        if log[begin:known] != self.truth[begin:known]:
            self.wrong(f"replica {process.machine.number} confirms up to {end} other bytes than were confirmed")
        if mastership is None:
            if end > len(self.truth):
                self.wrong(f"follower {process.machine.number} shows {end}, confirmed are {len(self.truth)}")
            return
        if self._confirming.setdefault(mastership.epoch, process) is not process:
            self.wrong(f"two masters confirm in epoch {mastership.epoch}")
        if end > len(self.truth):
            self.truth += log[len(self.truth) : end]
            self.check_listed()
            self._check_seen()
        self._check_required()

    def _knows_loss(self, process: Process) -> bool:
        """Whether a replica's log goes on behind the last loss; the others still show what is lost."""
        return process.replica.epochs.last_epoch(process.log.end) >= self._loss_epoch

    def check_promise(self, machine: Machine) -> None:
        if self.checks_promises and machine.epochs.promised < machine.highest_promise:
            self.wrong(f"replica {machine.number} forgot its promise of epoch {machine.highest_promise}")

    def _check_required(self) -> None:
        record = self.registry.record
        if record is None or not self.checks_required:
            return
        for machine in self.machines.values():
            mastership = machine.process.replica.mastership if machine.process else None
            if mastership is not None and mastership.epoch == record.epoch and record.master == machine.number:
                missing = set(record.in_sync) - mastership.required()
                if missing:
                    self.wrong(f"master {machine.number} does not require {missing}")

    def elected(self, process: Process, epoch: int) -> None:
        self.elections += 1
        self.note(f"{process.machine.number} is master of epoch {epoch} from {process.log.end} on")

    readable_end = staticmethod(lambda log: log.confirmed_end)

    def read(self, process: Process) -> None:
        """Have consumers read what a replica lets them read."""
        end = self.readable_end(process.log)
        if end > len(self.seen) and self._knows_loss(process):
            self.seen += process.log.data[len(self.seen) : end]
            self._check_seen()

    def _check_seen(self) -> None:
        known = min(len(self.seen), len(self.truth))
        if self.seen[:known] != self.truth[:known]:
            self.wrong("consumers have read what is not in the log")

    # -- accidents

    def _accident(self) -> None:
        machine = self.random.choice(list(self.machines.values()))
        if self.registry.record is not None and self.random.random() < 0.4:
            machine = self.machines[self.registry.record.master or 1]
        kind = self.random.choices(list(ACCIDENTS), self._weights)[0]
        self.note(f"{machine.number}: {kind.__name__}")
        kind(self, machine)

    def kill(self, machine: Machine) -> None:
        machine.end()
        machine.start_after(self.random.choice((0.05, 0.3, 1.0, 4.0)))

    def kill_at_a_write(self, machine: Machine) -> None:
        machine.die_at_a_write()

    def cut_power(self, machine: Machine) -> None:
        machine.lose_power()
        machine.start_after(self.random.choice((0.3, 1.0, 5.0)))

    def cut_all_power(self, machine: Machine) -> None:
        for each in self.machines.values():
            self.cut_power(each)

    def lose_folder(self, machine: Machine) -> None:
        machine.lose_folder()
        machine.start_after(self.random.choice((0.3, 2.0)))

    def pause(self, machine: Machine) -> None:
        if machine.process is not None:
            machine.paused_until = self.time.now + self.random.choice((0.3, 1.0, 4.0, 8.0))

    def jump_clock(self, machine: Machine) -> None:
        machine.jump(self.random.choice((0.4, 2.0, 20.0)))

    def stop_clock(self, machine: Machine) -> None:
        machine.stop_clock()
        self.time.after(self.random.choice((0.5, 3.0, 8.0)), machine.start_clock)

    def cut_one_way(self, machine: Machine) -> None:
        other = self.random.choice(list(self.machines))
        pair = (machine.number, other) if self.random.random() < 0.5 else (other, machine.number)
        self.network.cuts.add(pair)

    def cut_off(self, machine: Machine) -> None:
        for other in self.machines:
            self.network.cuts.update({(machine.number, other), (other, machine.number)})
        if self.random.random() < 0.5:
            self.unreachable.add(machine.number)

    def cut_from_registry(self, machine: Machine) -> None:
        self.unreachable.add(machine.number)

    def cut_in_half(self, machine: Machine) -> None:
        """Leave a master without the registry and without one follower; the other one hears both."""
        self.unreachable.add(machine.number)
        other = self.random.choice(list(self.machines))
        self.network.cuts.update({(machine.number, other), (other, machine.number)})

    def lose_registry(self, machine: Machine) -> None:
        self.registry.is_away = True

    def heal(self, machine: Machine) -> None:
        self.network.heal()
        self.unreachable.clear()
        self.registry.is_away = False
        self.network.slowness = self.random.choice((0.002, 0.002, 0.05))

    def hand_over(self, machine: Machine) -> None:
        for each in self.machines.values():
            if each.process is not None and each.process.replica.is_master:
                each.process.event("hand_over", machine.number)

    def stop_in_order(self, machine: Machine) -> None:
        if machine.process is not None:
            machine.process.event("leave")

    def fill_disk(self, machine: Machine) -> None:
        machine.log.is_full = True
        self.time.after(2.0, self._empty_disk, machine)
        if machine.process is not None and machine.process.replica.is_master:
            machine.process.event("disk_failed", "the disk is full")

    def _empty_disk(self, machine: Machine) -> None:
        machine.log.is_full = False
        if machine.process is not None:
            machine.process.event("disk_works")

    # -- peace

    def _make_peace(self) -> None:
        """End all accidents; the set must become whole by itself, or by an operator if rule 9 says so."""
        self._is_peace = True
        self.heal(self.machines[1])
        self.network.slowness = 0.002
        self.note("peace")
        for machine in self.machines.values():
            self._empty_disk(machine)
            machine.live_on()
            machine.start_clock()
            machine.paused_until = min(machine.paused_until, self.time.now)
            machine.start()
        end = self.time.now + PEACE_SECONDS
        while (problem := self._problem()) is not None:
            if self.time.now > end:
                self.wrong(f"the set is not whole after {PEACE_SECONDS:g} s of peace: {problem}")
            self._operate()
            self.time.run_until(self.time.now + 1.0)
        self._check_seen()
        if not self._masters()[0].log.data.startswith(self.truth):
            self.wrong("the last master lacks what was confirmed")

    def _masters(self) -> list[Process]:
        processes = [machine.process for machine in self.machines.values() if machine.process is not None]
        return [process for process in processes if process.replica.is_master]

    def _problem(self) -> str | None:
        masters = self._masters()
        record = self.registry.record
        if len(masters) != 1 or record is None or record.master != masters[0].machine.number:
            return f"masters are {[process.machine.number for process in masters]}"
        master = masters[0]
        if set(record.in_sync) != {machine.member for machine in self.machines.values()}:
            return f"in sync are {record.in_sync}"
        if master.serve.sends_refused is not None or not master.may_append:
            return f"the master refuses sends: {master.serve.sends_refused}"
        for machine in self.machines.values():
            log = machine.log
            if log.data != master.log.data or log.confirmed_end < log.end - 8 * 100:
                return f"the logs end at {log.written_end} and {master.log.written_end}"
        if self.truth != master.log.data[: len(self.truth)]:
            return "the log differs from what was confirmed"
        return None

    def _operate(self) -> None:
        """Accept a loss if nothing else helps, at the replica with the longest log."""
        record = self.registry.record
        if record is None or any(self.machines[m.number].incarnation == m.incarnation for m in record.in_sync):
            return
        processes = [machine.process for machine in self.machines.values()]
        if all(process is not None and process.trouble for process in processes):
            best = max((p for p in processes if p), key=lambda p: (p.log.end, -p.machine.number))
            best.event("accept_loss", "the operator said so")


ACCIDENTS = {
    SetLife.kill: 8,
    SetLife.kill_at_a_write: 4,
    SetLife.cut_power: 5,
    SetLife.cut_all_power: 1,
    SetLife.lose_folder: 1,
    SetLife.pause: 6,
    SetLife.jump_clock: 2,
    SetLife.stop_clock: 3,
    SetLife.cut_one_way: 6,
    SetLife.cut_off: 4,
    SetLife.cut_from_registry: 4,
    SetLife.cut_in_half: 5,
    SetLife.lose_registry: 2,
    SetLife.heal: 14,
    SetLife.hand_over: 4,
    SetLife.stop_in_order: 2,
    SetLife.fill_disk: 2,
}


def lives(first: int, count: int, life_class: type[SetLife] = SetLife) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Run so many seeds; return those that fail and why, and what happened in all."""
    failed = []
    happened: Counter[str] = Counter()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # replicas log elections
    try:
        for seed in range(first, first + count):
            life = life_class(seed)
            try:
                life.run()
            except Exception as error:  # noqa: BLE001  # whatever it is, the seed is told
                failed.append((seed, f"{type(error).__name__}: {error}"))
            happened["lives"] += 1
            happened["elections"] += life.elections
            happened["stored records"] += life.records
            happened["confirmed bytes"] += len(life.truth)
            happened["accepted losses"] += life.losses
    finally:
        logging.disable(level)
    return failed, happened
