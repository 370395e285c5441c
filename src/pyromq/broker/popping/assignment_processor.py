"""Assigns queues to push consumers of RocketMQ 5, which pull or pop by the mode of their group.

Source: RocketMQ 5.3.3, QueryAssignmentProcessor and MessageRequestModeManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError, GroupNotFound, TopicNotFound
from pyromq.excerpt import excerpt
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import (
    FILE,
    REQUEST,
    AssignmentQuery,
    Assignments,
    MessageRequestMode,
    MessageRequestModes,
    QueueAssignment,
    WireQueue,
    decode_body,
    encode_body,
)
from pyromq.remoting.codes import Permission
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import QueryAssignment, SetMessageRequestMode
from pyromq.slow_work import Turns, completed
from pyromq.store.table_file import TableFile

PULL, POP = "PULL", "POP"
_ALL_QUEUES = -1
_MAX_SHARED = (1 << 31) - 1  # Java's int


class AssignmentProcessor:
    """Keeps the mode of each group and topic, and assigns queues by it. The default is PULL.

    In mode POP each member gets all queues of each broker. In mode PULL each member gets a part (strategy AVG).
    """

    def __init__(self, state: SharedState) -> None:
        self._config = state.config
        self._topics = state.topics
        self._groups = state.groups
        self._connections = state.connections
        self._registering = state.registering
        self._file = state.request_modes
        self._saving = TableFile(self._file, msgspec.json.encode, state.run_soon)
        self.close = self._saving.close  # blocks until all changes are on disk, or have failed
        self._turns = Turns()
        self._modes: dict[str, dict[str, MessageRequestMode]] = {}

    def load(self) -> None:
        """Read the modes from disk. Raises `StoreCorrupt` naming the file."""
        stored = self._file.read(partial(decode_body, MessageRequestModes, bounds=FILE))
        self._modes = {} if stored is None else dict(stored.by_topic)

    @answers(SetMessageRequestMode)
    async def set_mode(self, header: SetMessageRequestMode, call: Call) -> Reply:
        """Set the mode of a group and topic; reply when the mode is on disk and in effect."""
        mode = decode_body(MessageRequestMode, call.body, REQUEST)
        if mode.mode not in (PULL, POP):
            raise BrokerError(f"mode={mode.mode!r} of group {mode.group}: it must be PULL or POP")
        if not 0 <= mode.share_queues <= _MAX_SHARED:
            raise BrokerError(f"popShareQueueNum={mode.share_queues}: it must be 0 (no limit) to {_MAX_SHARED}")
        if self._topics.find(mode.topic) is None:
            raise TopicNotFound(f"topic[{mode.topic}] not exist: create it before its mode is set")
        if self._groups.find(mode.group, call.peer) is None:
            raise GroupNotFound(f"subscription group [{excerpt(mode.group, 100)}] does not exist: create it first")
        return await self._turns.run(partial(self._set, mode))

    async def _set(self, mode: MessageRequestMode) -> Reply:
        modes = {topic: modes for topic, modes in self._modes.items() if self._topics.find(topic) is not None}
        modes[mode.topic] = modes.get(mode.topic, {}) | {mode.group: mode}
        await completed(self._saving.save(lambda: MessageRequestModes(by_topic=modes)))
        self._modes = modes
        return Reply()

    @answers(QueryAssignment)
    async def assign(self, header: QueryAssignment, call: Call) -> Reply:
        query = decode_body(AssignmentQuery, call.body, REQUEST)
        if self._topics.find(query.topic) is None:
            raise TopicNotFound(f"topic[{query.topic}] not exist, apply first please!")
        queues = await self._queues(query.topic)
        mode = self._modes.get(query.topic, {}).get(query.group)
        if mode is not None and mode.mode == POP:
            brokers = dict.fromkeys(queue.broker_name for queue in queues)
            assigned = [WireQueue(query.topic, name, _ALL_QUEUES) for name in brokers]
            return _reply(assigned, POP)
        return _reply([WireQueue.of(queue) for queue in self._pulled(query, queues)], PULL)

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """Return the topic's readable queues at all brokers; without a name server, at this broker only."""
        route = await completed(self._registering.route(topic))
        if route is not None:
            counts = {each.broker_name: each.read_queues for each in route.queues if each.permission & Permission.READ}
        else:
            known = self._topics.find(topic)
            counts = {self._config.name: 0 if known is None else known.read_queues}
        return [MessageQueue(topic, name, at) for name, count in sorted(counts.items()) for at in range(count)]

    def _pulled(self, query: AssignmentQuery, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        if query.message_model == "BROADCASTING":
            return queues
        if query.strategy not in ("", "AVG"):
            raise BrokerError(
                f"strategyName={query.strategy!r}: this broker assigns queues by AVG only; set clientRebalance=true, or"
                f" the mode of group {query.group} to POP"
            )
        group = self._connections.consumers(query.group)
        members = [] if group is None else sorted({member.client_id for member in group.members})
        if query.client_id not in members:
            return []
        index, (size, more) = members.index(query.client_id), divmod(len(queues), len(members))
        start = index * size + min(index, more)
        return queues[start : start + size + (index < more)]


def _reply(queues: Sequence[WireQueue], mode: str) -> Reply:
    return Reply(body=encode_body(Assignments(queues=[QueueAssignment(queue=queue, mode=mode) for queue in queues])))
