"""Replica sets: their state as all replicas know it, planned failover, and election with an accepted loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyromq.client.admin.admin_client import ClusterBrokers, listed
from pyromq.client.arguments import checked
from pyromq.clock import Clock
from pyromq.errors import BrokerError, CodeNotSupported, MQError, Unavailable, UsageError
from pyromq.remoting.bodies import BrokerAddresses, ReplicaSetStatus, ReplicaState, decode_body
from pyromq.remoting.headers import AcceptLoss, HandOver, ReplicaSetState

FAILOVER_SECONDS = 10.0  # longest wait for the new master
_POLL_SECONDS = 0.02  # between two requests to the new master: the precision of the reported time


@dataclass(frozen=True, slots=True)
class ReplicaSetAnswers:
    """The state of one replica set: the answers of its replicas, and the errors of the others, by address."""

    name: str
    answers: Mapping[str, ReplicaSetStatus]
    errors: Mapping[str, MQError]
    clock_ms: Mapping[str, tuple[float, float]]  # by address: clock's difference to this machine's, and its uncertainty

    @property
    def masters(self) -> list[ReplicaSetStatus]:
        """The replicas that act as master, the one of the highest epoch first. More than one is a fault."""
        return sorted((each for each in self.answers.values() if each.is_master), key=lambda each: -each.epoch)

    @property
    def best(self) -> ReplicaSetStatus:
        """The answer of the master; without a master, the answer with the latest record and the longest log."""
        return max(self.answers.values(), key=lambda each: (each.is_master, each.record_epoch, each.end))

    @property
    def replicas(self) -> list[ReplicaState]:
        """Every known replica, by number. If a replica has answered, its answer gives its end."""
        best = self.best
        own = {each.number: each for each in self.answers.values()}
        known = {state.number: state for each in self.answers.values() for state in each.replicas}
        known |= {state.number: state for state in best.replicas}
        return [
            known[number] if best.is_master or number not in own else _own_state(own[number], known[number], best)
            for number in sorted(known)
        ]

    def address_of(self, number: int) -> str | None:
        """Return the address of a replica; None if no replica knows it."""
        own = {status.number: address for address, status in self.answers.items()}
        return own.get(number) or next((each.address for each in self.replicas if each.number == number), None)


@checked
class ReplicaSets:
    """The object `admin.replica_sets`: shows a replica set, and makes another replica the master.

    Methods raise `UsageError` if no broker has the set's name, or if the brokers of this name are no replica set.
    """

    def __init__(self, brokers: ClusterBrokers, *, clock: Clock) -> None:
        self._brokers = brokers
        self._clock = clock

    async def state(self, name: str) -> ReplicaSetAnswers:
        """Ask all replicas of a set for its state. Raises `Unavailable` if none of them answers."""
        table = (await self._brokers.table()).brokers
        if name not in table:
            raise UsageError(f"replica set {name!r} has no registered broker; registered: {listed(table)}")
        return await ask_set(self._brokers, name, table[name], self._clock)

    async def hand_over(self, name: str, number: int) -> float:
        """Make another in-sync replica the master, without loss. Return the seconds until it confirms messages.

        Raises `UsageError` if the set has no master or the replica cannot take over, and `BrokerError` with the
        master's reason if the failover failed. The old master then stays.
        """
        found = await self.state(name)
        target = _replica(found, number)
        master = next(iter(found.masters), None)
        if master is None:
            raise UsageError(f"replica set {name} has no master to hand over{_because(found.best.trouble)}")
        if master.number == number:
            raise UsageError(f"replica {number} is the master of {name} already")
        if not target.is_connected:
            raise UsageError(f"replica {number} of {name} is not connected to the master, replica {master.number}")
        if not target.is_in_sync:
            in_sync = ", ".join(str(each.number) for each in master.in_sync)
            raise UsageError(f"replica {number} of {name} is not in sync{_lag(target)}; in sync: {in_sync}")
        at, to = found.address_of(master.number), found.address_of(number)
        if at is None or to is None:
            raise Unavailable(f"the address of replica {number} of {name} is not known")
        began = time.perf_counter()
        try:
            await self._brokers.ask(at, HandOver(number=number))
        except Unavailable:
            pass  # the old master restarts as a follower, so its reply may be lost: the new master's state decides
        await self._until_master(name, number, to, serves=lambda status: not status.refusal)
        return time.perf_counter() - began

    async def accept_loss(self, name: str, number: int, reason: str) -> float:
        """Make a replica that is not in sync the master. Return the seconds until it is the master.

        Confirmed messages that only other replicas have are lost. The set's record keeps the reason. If etcd has lost
        the record of a set whose master runs, name the master: nothing is lost then. Raises `UsageError` if the set
        has another master, `Unavailable` if the replica does not answer.
        """
        found = await self.state(name)
        address = electable(found, number)
        epoch = found.best.epoch
        began = time.perf_counter()
        await self._brokers.ask(address, AcceptLoss(reason=reason))
        await self._until_master(name, number, address, serves=lambda status: status.epoch > epoch)
        return time.perf_counter() - began

    async def _until_master(
        self, name: str, number: int, address: str, *, serves: Callable[[ReplicaSetStatus], bool]
    ) -> None:
        """Wait until a replica is the master, and has confirmed the log with which it began."""
        until = time.perf_counter() + FAILOVER_SECONDS
        first_end: int | None = None
        last = "it does not answer"
        while time.perf_counter() < until:
            try:
                status = await self._brokers.read(address, ReplicaSetState(), ReplicaSetStatus)
            except MQError as error:
                last = str(error)
            else:
                last = status.refusal or status.trouble or f"the master is replica {status.master}"
                if status.is_master:
                    first_end = status.end if first_end is None else first_end
                    if serves(status) and (status.confirmed_end >= first_end or status.refusal):
                        return
            await self._clock.sleep(_POLL_SECONDS)
        raise BrokerError(f"replica {number} of {name} is not the master after {FAILOVER_SECONDS:g} s: {last}")


async def ask_set(brokers: ClusterBrokers, name: str, registered: BrokerAddresses, clock: Clock) -> ReplicaSetAnswers:
    """Ask the brokers of one name that a name server knows, and the replicas that these know.

    Slaves of RocketMQ 4.9 below the set are left out. Raises as `ReplicaSets.state`.
    """
    alone = ""  # address of a broker that is not a replica
    found: dict[str, ReplicaSetStatus] = {}
    errors: dict[str, MQError] = {}
    clocks: dict[str, tuple[float, float]] = {}
    waiting = list(dict.fromkeys(registered.addresses.values()))
    while waiting:
        address = waiting.pop(0)
        began, began_ms = time.perf_counter(), clock.now_ms()
        try:
            response = await brokers.ask(address, ReplicaSetState())
        except CodeNotSupported:
            alone = alone or address
            continue
        except MQError as error:
            errors[address] = error
            continue
        half_ms = 500 * (time.perf_counter() - began)
        status = found[address] = decode_body(ReplicaSetStatus, response.body)
        clocks[address] = (status.now_ms - began_ms - half_ms, half_ms)
        others = {each.address for each in status.replicas if each.address is not None}
        waiting += sorted(others - found.keys() - errors.keys() - set(waiting))
    if not found and alone:
        raise UsageError(f"broker {name!r} at {alone} is not a replica of a set: its brokers were started without etcd")
    if not found:
        texts = "; ".join(str(error) for error in errors.values())
        raise Unavailable(f"no replica of the set {name} answers: {texts or 'none is registered'}")
    return ReplicaSetAnswers(name, found, errors, clocks)


def electable(found: ReplicaSetAnswers, number: int) -> str:
    """Return the address of a replica that can be elected with a loss. Raises as `ReplicaSets.accept_loss`."""
    _replica(found, number)
    master = found.masters[0] if found.masters else None
    if master is not None and not (master.number == number and master.trouble):
        other = f"; {master.trouble}: name replica {master.number}" if master.trouble else ""
        raise UsageError(
            f"replica set {found.name} has a master, replica {master.number}: hand over without accepting a loss{other}"
        )
    address = found.address_of(number)
    if address is None or address not in found.answers:
        raise Unavailable(f"replica {number} of {found.name} does not answer: start it first")
    return address


def _replica(found: ReplicaSetAnswers, number: int) -> ReplicaState:
    replicas = {each.number: each for each in found.replicas}
    if number not in replicas:
        known = ", ".join(map(str, replicas))
        raise UsageError(f"replica set {found.name} has no replica {number}; it has {known}")
    return replicas[number]


def _own_state(own: ReplicaSetStatus, known: ReplicaState, best: ReplicaSetStatus) -> ReplicaState:
    """Return a replica's state with the end from its own answer, if there is no master that knows better."""
    return ReplicaState(
        number=known.number,
        incarnation=own.incarnation,
        address=known.address,
        version=known.version,
        is_master=own.is_master,
        is_connected=known.is_connected,
        is_in_sync=any((each.number, each.incarnation) == (own.number, own.incarnation) for each in best.in_sync),
        end=own.end,
        lag_bytes=max(0, best.end - own.end),
        lag_seconds=known.lag_seconds,
        since_ms=known.since_ms,
    )


def _lag(replica: ReplicaState) -> str:
    return f", {replica.lag_bytes} bytes behind" if replica.lag_bytes else ""


def _because(trouble: str | None) -> str:
    return f": {trouble}" if trouble else ""
