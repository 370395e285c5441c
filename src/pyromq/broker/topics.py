"""The topics of one broker: their settings, the built-in topics, automatic creation, and the table on disk.

Name servers are informed by the caller: `on_change(topic, change)` is called after each change of a topic.
Source: RocketMQ 4.9.8, TopicConfigManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from enum import Enum, auto
from functools import partial

import msgspec

from pyromq.broker.config import BrokerConfig
from pyromq.clock import Clock
from pyromq.errors import BrokerError, LimitReached, TopicNotFound
from pyromq.logs import logger_of
from pyromq.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TRACE_TOPIC,
    TRANSACTION_GIVE_UP_TOPIC,
    check_topic,
    is_system_topic,
)
from pyromq.plural import counted
from pyromq.quota import Quota
from pyromq.remoting.bodies import FILE, DataVersion, TopicConfig, TopicConfigTable, decode_body
from pyromq.remoting.codes import Permission
from pyromq.remoting.dispatch import Peer
from pyromq.store.json_file import JsonFile
from pyromq.store.table_file import RunSoon, TableFile, at_once, formatted, has_failed

logger = logger_of(__name__)

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."  # the end of several error texts of upstream
DELAY_QUEUES = 18  # queues of the schedule topic: one per default delay level

_READ_WRITE = Permission.READ | Permission.WRITE


class ChangeCause(Enum):
    """Why a topic's settings changed. The cause decides how the name servers are informed."""

    ASKED = auto()  # an administrator waits until the name servers know the change
    AUTOMATIC = auto()  # a client's send or heartbeat created the topic


class Topics:
    """The table topic -> settings. Each change gets a new data version and is saved by a thread.

    `unsaved` maps a topic to the future of its change that is not on disk yet; a deletion is a change too. Topics in
    `leaving` are being deleted and cannot be created yet.
    """

    def __init__(
        self,
        config: BrokerConfig,
        file: JsonFile,
        clock: Clock,
        run_soon: RunSoon = at_once,
        *,
        on_change: Callable[[TopicConfig, ChangeCause], None] = lambda topic, change: None,
    ) -> None:
        self.version = DataVersion(timestamp=clock.now_ms(), counter=0)
        self._changes = 0  # number of changes: the version's counter falls if a slave copies another table
        self._on_change = on_change
        self._config = config
        self._file = file
        self._saving = TableFile(file, _encoded, run_soon)
        self.close = self._saving.close  # blocks until all changes are on disk, or have failed
        self._adopted: Future[None] | None = None  # the save of the last copy of a master's table
        self.unsaved: dict[str, Future[None]] = {}
        self._clock = clock
        # Counts auto-created topics of each connection.
        self._creations = Quota[Peer]("maxTopics", config.limits.topics)
        # Counts auto-created retry and dead-letter topics of each connection.
        self._creations_of_groups = Quota[Peer]("maxGroups", config.limits.groups)
        self._table: dict[str, TopicConfig] = {topic.name: topic for topic in _built_in(config)}
        self._built_in = frozenset(self._table)
        self._of_groups: set[str] = set()  # names of retry and dead-letter topics
        self.leaving: set[str] = set()  # names of topics whose deletion is not complete
        # An attribute and no method, since it is called for every send.
        self.find: Callable[[str], TopicConfig | None] = self._table.get

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def load(self) -> None:
        """Read the table of topics from disk; its topics replace built-in ones.

        Raises `StoreCorrupt` naming the file.
        """
        stored = self._file.read(partial(decode_body, TopicConfigTable, bounds=FILE))
        if stored is not None:
            self._table.update(stored.topics)
            self._of_groups = set(filter(_is_of_group, self._table))
            self.version = stored.data_version

    def persist(self) -> None:
        """Write the table to disk now. Blocks. Raises `StoreNotWritable`."""
        self._file.save(_encoded(self.table()), order=self._changes)

    def table(self) -> TopicConfigTable:
        """Return a copy of all settings with their data version, for request 21 and for name servers."""
        return TopicConfigTable(data_version=self.version, topics=dict(self._table))

    def system_topics(self) -> list[str]:
        """Return the sorted names of topics that administrators cannot change or delete."""
        reserved = {SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GIVE_UP_TOPIC, TRACE_TOPIC}
        return sorted(self._built_in | reserved)

    def deleted_among(self, names: Iterable[str]) -> list[str]:
        """Return the names that no topic has. Names of system topics are left out: brokers need no settings of them."""
        return [name for name in names if name not in self._table and not self.is_system(name)]

    def is_system(self, name: str) -> bool:
        return name in self._built_in or is_system_topic(name)

    def put(self, topic: TopicConfig, change: ChangeCause = ChangeCause.ASKED) -> Future[None]:
        """Create the topic or replace its settings, effective immediately.

        The returned future completes when the change is on disk, or fails. Raises `LimitReached` for one topic too
        many.
        """
        name = topic.name
        if name not in self._table:
            self._check_room(name)
        self._table[name] = topic
        if _is_of_group(name):
            self._of_groups.add(name)
        self._renew()
        saved = self._save(name)
        self._on_change(topic, change)
        return saved

    def _check_room(self, name: str) -> None:
        """Raise `LimitReached` if there are too many topics. Retry and dead-letter topics have a separate limit."""
        limits = self._config.limits
        count, setting, most = len(self._table) - len(self._of_groups), "maxTopics", limits.topics
        if _is_of_group(name):
            count, setting, most = len(self._of_groups), "maxGroups", limits.groups
        if self._free(name) <= 0 and not self.is_system(name):
            raise LimitReached(
                setting, most, f"topic[{name}] is not created, this broker has {count} such topics; delete some"
            )

    def _free(self, name: str) -> int:
        """Return how many more topics may exist of this name's kind: of consumer groups, or all others."""
        limits = self._config.limits
        if _is_of_group(name):
            return 2 * limits.groups - len(self._of_groups)
        return limits.topics - (len(self._table) - len(self._of_groups))

    def saved(self, name: str) -> Future[None] | None:
        """Return a future that completes when the topic's last change is on disk; None if it is already.

        A failed save is tried again.
        """
        saved = self.unsaved.get(name)
        return self._save(name) if saved is not None and saved.done() else saved

    def delete(self, name: str, *, after: Callable[[], None] | None = None) -> Future[None] | None:
        """Delete the topic, effective immediately. Return None for an unknown topic without `after`.

        The returned future completes when the deletion is on disk and `after` was called, or when either failed.
        `after` runs in a thread and may raise `StoreError`.
        """
        if self._table.pop(name, None) is not None:
            self._of_groups.discard(name)
            self._renew()
        elif after is None:
            return self.saved(name)
        return self._save(name, after=after)

    def undo(self, name: str, before: TopicConfig | None, *, refused: TopicConfig | None) -> None:
        """Restore a topic's settings from before a change that cannot be saved; None: there is no topic.

        The settings `before` must be on disk. A topic that was changed again since is left as it is.
        """
        if self._table.get(name) is not refused:
            return
        if before is None:
            del self._table[name]
            self._of_groups.discard(name)
        else:
            self._table[name] = before
            self._of_groups.update({name} if _is_of_group(name) else ())
        self.unsaved.pop(name, None)
        self.touch()

    def for_send(
        self, name: str, *, default_topic: str, asked_queues: int, peer: Peer, sys_flag: int = 0
    ) -> TopicConfig:
        """Return the topic's settings; create the topic with the settings of `default_topic`, if that is allowed.

        Raises `TopicNotFound`, and `LimitReached` if there are too many topics or the peer exceeds its share of
        auto-created topics. Source: TopicConfigManager.createTopicInSendMessageMethod.
        """
        if (topic := self._table.get(name)) is not None:
            return topic
        self._refuse_leaving(name)
        pattern = self._table.get(default_topic)
        if pattern is None or not self._may_inherit(pattern):
            raise TopicNotFound(f"topic[{name}] not exist, apply first please!{FAQ}")
        # Without a queue the topic could not store the message for which it is created.
        queues = max(1, min(asked_queues, pattern.write_queues))
        topic = TopicConfig(
            name=name,
            read_queues=queues,
            write_queues=queues,
            permission=pattern.permission & ~Permission.INHERIT,
            filter_type=pattern.filter_type,
            sys_flag=sys_flag,
        )
        self._create(topic, peer)
        logger.info("topic %s created with %s for %s", name, counted(queues, "queue"), peer.address)
        return topic

    def _create(self, topic: TopicConfig, peer: Peer | None) -> None:
        """Create a topic automatically.

        With a `peer`, the topic counts against the peer's share of auto-created topics.
        """
        self._check_room(topic.name)
        if peer is not None:
            quota, what = self._creations, "topics"
            if _is_of_group(topic.name):
                quota, what = self._creations_of_groups, "topics of groups"
            if not (created := quota.of(peer)):
                peer.on_close += (quota.end,)
            text = f"this connection created {created} {what}, the limit of one connection; create fewer"
            quota.acquire(peer, text=text, free=self._free(topic.name))
        self.put(topic, ChangeCause.AUTOMATIC)

    def _refuse_leaving(self, name: str) -> None:
        if name in self.leaving:
            raise TopicNotFound(f"topic[{name}] is being deleted, try again in a moment")

    def _may_inherit(self, pattern: TopicConfig) -> bool:
        if pattern.name == AUTO_CREATE_TOPIC and not self._config.auto_create_topic:
            return False
        return bool(pattern.permission & Permission.INHERIT)

    def queue_for(self, name: str, queue_id: int) -> int:
        """Return the queue id for a message that is delivered after a delay.

        The result is another queue if the topic no longer has the message's queue.
        """
        topic = self._table.get(name)
        if topic is None or queue_id < topic.read_queues:
            return queue_id
        return queue_id % (min(topic.read_queues, topic.write_queues) or topic.read_queues or queue_id + 1)

    def for_group_retry(
        self, name: str, queue_count: int, *, sys_flag: int = 0, sender: Peer | None = None
    ) -> TopicConfig:
        """Return the settings of a group's retry or dead-letter topic.

        A missing topic is created with `queue_count` queues. With a `sender`, a new topic counts against the sender's
        share. Raises `LimitReached`, `TopicNotFound`.
        """
        if (topic := self._table.get(name)) is not None:
            return topic
        self._refuse_leaving(name)
        topic = TopicConfig(
            name=name,
            read_queues=queue_count,
            write_queues=queue_count,
            permission=int(_READ_WRITE),
            sys_flag=sys_flag,
        )
        self._create(topic, sender)
        return topic

    def order(self, names: frozenset[str]) -> None:
        """Mark exactly these topics as ordered, as a name server's reply names them. Source: updateOrderTopicConfig."""
        changed = [topic for topic in self._table.values() if topic.order != (topic.name in names)]
        for topic in changed:
            self._table[topic.name] = msgspec.structs.replace(topic, order=not topic.order)
        if changed:
            self.touch()

    def adopt(self, table: TopicConfigTable) -> Future[None] | None:
        """Replace the whole table by a copy of the master's, with its data version.

        The returned future completes when the copy is on disk. Return None if this version is on disk already.
        """
        if table.data_version == self.version and (self._adopted is None or not has_failed(self._adopted)):
            return self._adopted
        self._table.clear()
        self._table.update(table.topics)
        self._of_groups = set(filter(_is_of_group, self._table))
        self._changes += 1
        self.version = table.data_version
        saved = self._adopted = self._saving.save(self.table, order=self._changes)
        saved.add_done_callback(partial(self._note_saved, "copied from the master"))
        return saved

    def touch(self) -> None:
        """Give the table a new data version and save it.

        Name servers then read all topics again, for example after a change of the broker's permission.
        """
        self._renew()
        self._saving.save(self.table, order=self._changes)

    def _renew(self) -> None:
        self._changes += 1
        self.version = DataVersion(timestamp=self._clock.now_ms(), counter=self.version.counter + 1)

    def _save(self, name: str, *, after: Callable[[], None] | None = None) -> Future[None]:
        saved = self.unsaved[name] = self._saving.save(self.table, order=self._changes, after=after)
        saved.add_done_callback(partial(self._note_saved, name))
        return saved

    def _note_saved(self, name: str, saved: Future[None]) -> None:
        """Log a failed save, or forget the future of a successful one. Called in the thread that saves."""
        if (error := saved.exception()) is not None:
            logger.warning("topic %s is not stored: %s", name, error)
        elif self.unsaved.get(name) is saved:
            del self.unsaved[name]


def _encoded(table: TopicConfigTable) -> bytes:
    return formatted(TopicConfigTable(data_version=table.data_version), table.topics)


def check_changeable(topics: Topics, name: str) -> None:
    """Raise `BrokerError`, with upstream's text, if administrators may not create, change or delete this topic."""
    check_topic(name)
    if topics.is_system(name):
        raise BrokerError(f"The topic[{name}] is conflict with system topic.")


def describe(topic: TopicConfig) -> str:
    """Return a topic's settings as a string, as Java prints them in error messages."""
    letters = "".join(
        letter if topic.permission & bit else "-"
        for letter, bit in (("R", Permission.READ), ("W", Permission.WRITE), ("X", Permission.INHERIT))
    )
    return (
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.read_queues}, "
        f"writeQueueNums={topic.write_queues}, perm={letters}, topicFilterType={topic.filter_type}, "
        f"topicSysFlag={topic.sys_flag}, order={'true' if topic.order else 'false'}]"
    )


def _is_of_group(name: str) -> bool:
    return name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _built_in(config: BrokerConfig) -> Iterator[TopicConfig]:
    """Yield the topics that every broker has.

    Clients create topics through the routes of the template topic and the topic named as the cluster.
    """
    yield _topic(SELF_TEST_TOPIC, 1)
    if config.auto_create_topic:
        yield _topic(AUTO_CREATE_TOPIC, config.default_topic_queues, _READ_WRITE | Permission.INHERIT)
    yield _topic(BENCHMARK_TOPIC, 1024)
    cluster = Permission.INHERIT | (_READ_WRITE if config.cluster_topic else 0)
    yield _topic(config.cluster, 16, cluster)
    broker = Permission.INHERIT | (_READ_WRITE if config.broker_topic else 0)
    yield _topic(config.name, 1, broker)
    yield _topic(OFFSET_MOVED_TOPIC, 1)
    yield _topic(SCHEDULE_TOPIC, DELAY_QUEUES)
    if config.trace_topic:
        yield _topic(TRACE_TOPIC, 1)
    yield _topic(config.cluster + REPLY_SUFFIX, 1)


def _topic(name: str, queues: int, permission: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(name=name, read_queues=queues, write_queues=queues, permission=int(permission))
