"""The state of a cluster at one moment: its brokers with their figures, its topics and its groups.

The figures of topics and groups are sums over all brokers. Taking a snapshot costs two requests to each broker,
whatever the number of topics and groups.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.errors import AccessDenied, MQError, NoPermission
from pyromq.names import (
    DEAD_LETTER_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    is_system_group,
)
from pyromq.remoting.bodies import FiguresTable, GroupFigures

MASTER = 0
KINDS = ("normal", "retry", "dead letters", "system", "all")  # kinds of topics, as pages choose them
WARM_DELAY_MS, HIGH_DELAY_MS = 30_000, 300_000  # delays from which on a group is shown as `warm` and as `high`
WARM_LAG, HIGH_LAG = 10_000, 1_000_000  # numbers of messages for the same levels, with any delay


@dataclass(slots=True)
class BrokerView:
    """A broker in a snapshot. `error` is the reason why its figures are not those of now, since `error_since_ms`.

    `figures` are the broker's latest; None if the console has got none yet. `refused`: the broker responded, but the
    console's keys have no right to the figures. `is_registered`: name servers know the broker. `sent` and `consumed`
    are the messages that users' topics and groups have sent and consumed here since they exist.
    """

    name: str
    cluster: str
    addresses: dict[int, str]
    runtime: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    refused: bool = False
    error_since_ms: int | None = None
    figures: FiguresTable | None = None
    is_registered: bool = True
    sent: int = 0
    consumed: int = 0

    @property
    def silence(self) -> str:
        """The words of a page for a broker without figures: `refuses` or `does not answer`."""
        return "refuses" if self.refused else "does not answer"

    @property
    def address(self) -> str | None:
        """The address of the broker's master; None without a master."""
        return self.addresses.get(MASTER)


@dataclass(slots=True)
class TopicView:
    """A topic in a snapshot: sums of the latest figures of all brokers.

    `kind` is normal, retry, dead letters or system.
    """

    name: str
    kind: str
    brokers: list[str] = field(default_factory=list)
    read_queues: int = 0
    write_queues: int = 0
    permission: int = 0
    order: bool = False
    messages: int = 0
    sent: int = 0
    last_store_ms: int = 0
    groups: list[str] = field(default_factory=list)

    @property
    def is_system(self) -> bool:
        """Whether the topic belongs to the brokers, and not to users or to the retries and dead letters of groups."""
        return self.kind == "system"


@dataclass(slots=True)
class ConsumedTopic:
    """The progress of a group in a topic: numbers of messages, and the delay in ms.

    `lag` counts the messages left, `in_flight` those of them that are in flight (popped).
    """

    consumed: int = 0
    lag: int = 0
    delay_ms: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class GroupView:
    """A consumer group in a snapshot: sums of the latest figures of all brokers."""

    name: str
    is_system: bool
    members: set[str] = field(default_factory=set)
    differs: bool = False
    enabled: bool = True
    topics: dict[str, ConsumedTopic] = field(default_factory=dict)
    dead_letters: int = 0

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.topics.values())

    @property
    def consumed(self) -> int:
        return sum(each.consumed for each in self.topics.values())

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self.topics.values())

    @property
    def delay_ms(self) -> int:
        return max((each.delay_ms for each in self.topics.values()), default=0)

    @property
    def level(self) -> str:
        """How far the group is behind, a class of the style sheet: `calm`, `warm` or `high`; "" without lag."""
        return lag_level(self.lag, self.delay_ms)


@dataclass(slots=True)
class ClusterSnapshot:
    """The state of a cluster at `at_ms` (wall clock). `took_seconds` is how long the requests took.

    `fault`: no name server answers, since `fault_since_ms`; the brokers are the last known ones.
    """

    at_ms: int
    brokers: dict[str, BrokerView]
    topics: dict[str, TopicView] = field(default_factory=dict)
    groups: dict[str, GroupView] = field(default_factory=dict)
    took_seconds: float = 0.0
    fault: str | None = None
    fault_since_ms: int | None = None

    @property
    def silent(self) -> list[BrokerView]:
        """The brokers whose figures in the sums of topics and groups are old, or missing."""
        return [each for each in self.brokers.values() if each.error is not None]

    @property
    def silence(self) -> frozenset[str]:
        return frozenset(each.name for each in self.silent)

    @property
    def has_gaps(self) -> bool:
        """Whether sums are too low, because a silent broker has never given its figures.

        A refusal is not a gap: the sums are of what the console may see.
        """
        return any(each.figures is None and not each.refused for each in self.silent)

    def groups_of(self, topic: str) -> list[GroupView]:
        """Return the groups that have consumed a topic, in order of names."""
        return [self.groups[name] for name in self.topics[topic].groups] if topic in self.topics else []


async def take(admin: AsyncAdmin, at_ms: int, known: Mapping[str, BrokerView]) -> ClusterSnapshot:
    """Ask all brokers at the same time; return a snapshot.

    A broker that does not respond is in the snapshot with its error, and with its figures in the snapshot before
    (`known`). Raises `NoNameServer`, or the error with which a name server refuses the request.
    """
    began = time.monotonic()
    table = await admin.cluster()
    of_cluster = {name: cluster for cluster, names in table.clusters.items() for name in names}
    brokers = {
        name: BrokerView(name, of_cluster.get(name, ""), dict(sorted(each.addresses.items())))
        for name, each in sorted(table.brokers.items())
    }
    await asyncio.gather(*(_look(admin, each) for each in brokers.values()))
    for name, before in known.items():
        if name not in brokers:
            gone = "no name server knows it any more"
            brokers[name] = replace(before, runtime={}, error=gone, refused=False, is_registered=False)
        elif brokers[name].error is not None:
            brokers[name].figures = before.figures
    snapshot = ClusterSnapshot(at_ms, brokers)
    _add_figures(snapshot)
    _join(snapshot)
    for broker in brokers.values():
        if broker.figures is not None:
            topics, groups = snapshot.topics, snapshot.groups
            broker.sent = sum(each.sent for each in broker.figures.topics if topics[each.name].kind == "normal")
            users = [each for each in broker.figures.groups if not groups[each.name].is_system]
            broker.consumed = sum(at.consumed for each in users for at in each.topics)
    snapshot.took_seconds = time.monotonic() - began
    return snapshot


def lag_level(lag: int, delay_ms: int) -> str:
    """Return how far a group is behind: `calm`, `warm` or `high`; "" without lag.

    The number of messages counts as well, because Java's brokers do not report delays.
    """
    if not lag:
        return ""
    if delay_ms > HIGH_DELAY_MS or lag >= HIGH_LAG:
        return "high"
    return "warm" if delay_ms > WARM_DELAY_MS or lag >= WARM_LAG else "calm"


def kind_of(topic: str, broker_names: Iterable[str] = ()) -> str:
    """Return the kind of a topic, by its name. Brokers and clusters have system topics with their own names."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead letters"
    of_brokers = topic in broker_names or topic.removesuffix(REPLY_SUFFIX) in broker_names
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX) or of_brokers:
        return "system"
    return "normal"


async def _look(admin: AsyncAdmin, broker: BrokerView) -> None:
    if broker.address is None:
        broker.error = "no master is registered under this name"
        return
    try:
        broker.runtime, broker.figures = await asyncio.gather(
            admin.broker_runtime(broker.address), admin.overviews.figures(broker.address)
        )
    except MQError as error:
        broker.error, broker.refused = str(error), isinstance(error, AccessDenied | NoPermission)


def _add_figures(snapshot: ClusterSnapshot) -> None:
    """Add the figures of brokers to the sums, first those of brokers that respond.

    Members are at every broker of the group's topics. A silent broker's list of members counts only if no other broker
    knows them, because members may have left since.
    """
    brokers = sorted(snapshot.brokers.values(), key=lambda each: each.error is not None)
    for broker in brokers:
        if broker.figures is None:
            continue
        _add_topics(snapshot.topics, broker.name, broker.figures)
        for each in broker.figures.groups:
            group = snapshot.groups.get(each.name)
            is_known = broker.error is not None and group is not None and bool(group.topics)
            _add_group(snapshot.groups, each, () if is_known else each.members)


def _add_topics(topics: dict[str, TopicView], broker: str, figures: FiguresTable) -> None:
    for each in figures.topics:
        view = topics.get(each.name)
        if view is None:
            view = topics[each.name] = TopicView(each.name, "normal")
        view.brokers.append(broker)
        view.read_queues += each.read_queues
        view.write_queues += each.write_queues
        view.permission |= each.permission
        view.order = view.order or each.order
        view.messages += each.messages
        view.sent += each.sent
        view.last_store_ms = max(view.last_store_ms, each.last_store_ms)


def _add_group(groups: dict[str, GroupView], figures: GroupFigures, members: Sequence[str]) -> None:
    view = groups.get(figures.name)
    if view is None:
        view = groups[figures.name] = GroupView(figures.name, is_system_group(figures.name))
    view.members.update(members)
    view.differs = view.differs or figures.differs
    view.enabled = view.enabled and figures.enabled
    for at in figures.topics:
        known = view.topics.get(at.topic)
        if known is None:
            known = view.topics[at.topic] = ConsumedTopic()
        known.consumed += at.consumed
        known.lag += at.lag
        known.delay_ms = max(known.delay_ms, at.delay_ms)
        known.in_flight += at.in_flight


def _join(snapshot: ClusterSnapshot) -> None:
    own = {*snapshot.brokers, *(each.cluster for each in snapshot.brokers.values())}
    for name, topic in snapshot.topics.items():
        topic.kind = kind_of(name, own)
    for name in sorted(snapshot.groups):
        for topic_name in snapshot.groups[name].topics:
            if topic_name in snapshot.topics:
                snapshot.topics[topic_name].groups.append(name)
        letters = snapshot.topics.get(DEAD_LETTER_PREFIX + name)
        snapshot.groups[name].dead_letters = letters.messages if letters is not None else 0


class RuntimeFigures:
    """The figures of a broker; None for absent ones.

    `runtime` is the broker's runtime report, by default that of the broker's master.
    """

    def __init__(self, broker: BrokerView, runtime: Mapping[str, str] | None = None) -> None:
        self.broker = broker
        self.runtime = runtime = broker.runtime if runtime is None else runtime
        self.version = runtime.get("brokerVersionDesc", "")
        self.disk = _first(runtime.get("commitLogDiskRatio"))
        self.started_ms = int(_first(runtime.get("bootTimestamp")) or 0)
        self.refusal = runtime.get("sendRefusal") or runtime.get("pyromqReplicaRefusal")
        self.set_trouble = runtime.get("pyromqReplicaTrouble")
        in_sync = runtime.get("pyromqReplicasInSync", "").split(",")
        lags = [each.split()[0] for each in runtime.get("pyromqReplicasBehind", "").split(";") if each.strip()]
        self.not_in_sync = [number for number in lags if number not in in_sync]  # replicas of a set, at its master
        self.log_begin = _whole(runtime.get("commitLogMinOffset"))
        self.log_end = _whole(runtime.get("commitLogMaxOffset"))
        self.oldest_ms = _whole(runtime.get("earliestMessageTimeStamp"))
        self.undispatched = _whole(runtime.get("dispatchBehindBytes"))

    @property
    def now_ms(self) -> int | None:
        """Return the time on the broker's clock, to the second, when it sent the figures: its start and its age."""
        parts = re.findall(r"\d+", self.runtime.get("runtime", ""))
        if len(parts) != 4 or not self.started_ms:
            return None
        days, hours, minutes, seconds = map(int, parts)
        return self.started_ms + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000

    @property
    def log_bytes(self) -> int | None:
        """Return the size of the commit log in bytes."""
        if self.log_begin is None or self.log_end is None:
            return None
        return self.log_end - self.log_begin


def _first(text: str | None) -> float | None:
    """Return the first number in a string, for example 10.5 in `10.5 9.2 8.1`; None if the text has no number."""
    try:
        value = float((text or "").split()[0])
    except (ValueError, IndexError):
        return None
    return value if isfinite(value) else None


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
