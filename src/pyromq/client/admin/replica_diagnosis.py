"""What is wrong with a replica set, as findings of `pyromq doctor`. No requests here."""

from __future__ import annotations

from collections.abc import Iterator

from pyromq.client.admin.finding import Finding
from pyromq.client.admin.replica_sets import ReplicaSetAnswers
from pyromq.plural import counted

ETCD_SECONDS = 6.0  # a replica reads the record every 5 s at least, so etcd is silent after that
FAR_SECONDS, FAR_BYTES = 15.0, 256 << 20  # a replica that lags more is far behind; the default of its removal is 15 s
CLOCKS_MS = 500.0  # difference of clocks from which on a failover visibly moves the delivery of delayed messages


def set_findings(found: ReplicaSetAnswers, name_server: str, registered_master: str | None) -> list[Finding]:
    """Return the findings about one set. `registered_master` is the address that the name server shows as its master.

    A set without a fault has one finding.
    """
    name = f"replica set {found.name}"
    faults = [
        Finding(name, False, text, advice)
        for check in (_masters, _etcd, _in_sync, _behind, _clocks)
        for text, advice in check(found)
    ]
    faults += [Finding(name, False, *each) for each in _registration(found, name_server, registered_master)]
    if faults:
        return faults
    best = found.best
    count = f"{len(best.in_sync)} of {counted(len(found.replicas), 'replica')} in sync"
    text = f"master is replica {best.number}, epoch {best.epoch}; {count}"
    if best.min_in_sync == 1 and len(found.replicas) > 2:
        advice = (
            "minInSyncReplicas is 1: while no other replica is in sync, the master confirms messages that only it has; "
            "set it to 2 on every replica"
        )
        return [Finding(name, True, text, advice)]
    return [Finding(name, True, text)]


def last_in_sync(found: ReplicaSetAnswers) -> str:
    """Return which replicas were in sync last, and where each one's log ends."""
    ends = {each.number: each.end for each in found.replicas}
    answering = {each.number for each in found.answers.values()}
    texts = []
    for member in found.best.in_sync:
        end = ends.get(member.number)
        what = "end unknown" if end is None else f"end {end}"
        texts.append(f"replica {member.number} ({what}{'' if member.number in answering else ', does not answer'})")
    return f"in sync last: {', '.join(texts) or 'none is known'}"


def _masters(found: ReplicaSetAnswers) -> Iterator[tuple[str, str]]:
    masters = found.masters
    if len(masters) > 1:
        each = " and ".join(f"replica {one.number} (epoch {one.epoch})" for one in masters)
        advice = (
            f"replica {masters[-1].number} confirms nothing, and steps down once it reaches etcd or another replica:"
            " check its network, else stop it"
        )
        yield f"has two masters: {each}", advice
    if not masters:
        trouble = found.best.trouble
        advice = (
            f"start the replicas that were in sync last; if they are lost, `pyromq cluster failover {found.name} --to N"
            " --accept-loss` makes another replica the master"
        )
        yield f"has no master; {last_in_sync(found)}{f'; {trouble}' if trouble else ''}", advice


def _etcd(found: ReplicaSetAnswers) -> Iterator[tuple[str, str]]:
    silent = [each for each in found.answers.values() if each.etcd_seconds > ETCD_SECONDS]
    if silent:
        numbers = " and ".join(f"replica {each.number} for {each.etcd_seconds:.0f} s" for each in silent)
        yield (
            f"etcd has not answered {numbers}",
            "messages are confirmed while all replicas in sync work, but nothing fails over: check etcd and the"
            " network",
        )


def _in_sync(found: ReplicaSetAnswers) -> Iterator[tuple[str, str]]:
    best = found.best
    if not found.masters:
        return
    if len(best.in_sync) < best.min_in_sync:
        yield (
            f"{counted(len(best.in_sync), 'replica')} in sync, minInSyncReplicas is {best.min_in_sync}: sends are"
            " refused",
            "start the other replicas, or look in their logs for the reason why they do not follow",
        )
    elif best.refusal:
        yield f"the master refuses sends: {best.refusal}", "see the master's log"
    if best.trouble:
        yield best.trouble, "the set confirms messages, but it needs an administrator before the next failover"


def _behind(found: ReplicaSetAnswers) -> Iterator[tuple[str, str]]:
    if not found.masters:
        return
    for each in found.replicas:
        if not each.is_connected:
            yield f"replica {each.number} is not connected to the master", "start it, or check the network between them"
        elif (each.lag_seconds or 0) > FAR_SECONDS or (each.lag_bytes or 0) >= FAR_BYTES:
            yield (
                f"replica {each.number} is {each.lag_bytes} bytes and {each.lag_seconds:g} s behind",
                "check its disk and network; it catches up with catchUpBytesPerSecond at most",
            )


def _clocks(found: ReplicaSetAnswers) -> Iterator[tuple[str, str]]:
    clocks = sorted((apart, unsure, found.answers[at].number) for at, (apart, unsure) in found.clock_ms.items())
    (first, first_unsure, slow), (last, last_unsure, fast) = clocks[0], clocks[-1]
    if last - first - first_unsure - last_unsure > CLOCKS_MS:
        yield (
            f"the clocks of replicas {slow} and {fast} are {last - first:.0f} ms apart",
            "synchronize the machines' clocks: a failover moves the delivery of delayed messages by this time",
        )


def _registration(
    found: ReplicaSetAnswers, name_server: str, registered_master: str | None
) -> Iterator[tuple[str, str]]:
    if not found.masters or registered_master is None:
        return
    master = found.masters[0]
    own = {address for address, each in found.answers.items() if each.number == master.number}
    if registered_master not in own:
        yield (
            f"name server {name_server} shows {registered_master} as the master; the master is replica {master.number}"
            f" at {', '.join(sorted(own))}",
            "run the check again after 5 s, in which a master registers again; if it stays, the name server is cut off"
            " from the master",
        )
