"""Answers administrators' requests about consumer groups and their stored offsets."""

from __future__ import annotations

from functools import partial

from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError
from pyromq.logs import logger_of
from pyromq.names import retry_topic
from pyromq.net.slow_replies import in_pieces
from pyromq.remoting.bodies import (
    MAX_QUEUES,
    REQUEST,
    ConsumerOffsetTable,
    CorrectionOffsetTable,
    DelayOffsetTable,
    GroupConfig,
    decode_body,
    encode_body,
)
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    AllConsumerOffsets,
    AllDelayOffsets,
    AllGroups,
    CloneGroupOffset,
    CorrectionOffsets,
    DeleteGroup,
    SaveGroup,
)
from pyromq.slow_work import Turns, completed, yield_slice
from pyromq.store.table_file import saved_or_undone

logger = logger_of(__name__)

KEYS_AT_ONCE = 100  # keys of the offset table read before other connections may be served
MAX_LONG = (1 << 63) - 1  # Java's Long.MAX_VALUE


class GroupProcessor:
    """Creates, changes, lists and deletes consumer groups; copies and compares their offsets."""

    def __init__(self, state: SharedState) -> None:
        self._groups = state.groups
        self._offsets = state.offsets
        self._delay_levels = state.delay_levels
        self._statistics = state.statistics
        self._when_kept = state.confirmation.when_kept
        self._turns = Turns()  # changes of one group wait for each other

    @answers(SaveGroup)
    async def save_group(self, header: SaveGroup, call: Call) -> Reply:
        """Create the group or replace its settings; reply when the change is on disk.

        A change that cannot be saved is undone.
        """
        group = decode_body(GroupConfig, call.body, REQUEST)
        if group.retry_queues > MAX_QUEUES:  # the group's retry topic gets as many queues
            raise BrokerError(f"group[{group.name}]: retryQueueNums is {group.retry_queues}; the limit is {MAX_QUEUES}")
        return await self._turns.run(partial(self._save, group, call), group.name)

    async def _save(self, group: GroupConfig, call: Call) -> Reply:
        known = self._groups.find(group.name)
        saved = self._groups.put(group)
        await saved_or_undone(saved, partial(self._groups.undo, group.name, known, refused=group))
        logger.info("group %s saved by %s", group.name, call.peer.address)
        await completed(self._when_kept(saved))
        return Reply()

    @answers(DeleteGroup)
    async def delete_group(self, header: DeleteGroup, call: Call) -> Reply:
        """Delete the group, and its offsets if the request says so; reply when the deletion is on disk.

        With automatic creation, a running member creates the group again. A deletion that cannot be saved is undone.
        """
        return await self._turns.run(partial(self._delete, header, call), header.group)

    async def _delete(self, header: DeleteGroup, call: Call) -> Reply:
        known = self._groups.find(header.group)
        removed, save_offsets = ConsumerOffsetTable({}), None
        if header.remove_offsets:
            removed = self._offsets.remove_group(header.group)
            save_offsets = self._offsets.unsaved()

        def undo() -> None:
            self._groups.undo(header.group, known, refused=None)
            self._offsets.restore(removed)

        saved = self._groups.delete(header.group, after=save_offsets)
        if saved is not None:
            await saved_or_undone(saved, undo)
            await completed(self._when_kept(saved))
        self._statistics.forget_group(header.group)
        if known is not None:
            logger.info("group %s deleted by %s", header.group, call.peer.address)
        return Reply()

    @answers(AllGroups)
    async def groups(self, header: AllGroups, call: Call) -> Reply:
        return await in_pieces(self._groups.table())

    @answers(AllConsumerOffsets)
    async def offsets(self, header: AllConsumerOffsets, call: Call) -> Reply:
        offsets = {}
        for number, key in enumerate(sorted(self._offsets.keys())):
            if queues := self._offsets.queues_at(key):
                offsets[key] = queues
            if number % KEYS_AT_ONCE == 0:
                await yield_slice()
        return await in_pieces(ConsumerOffsetTable(offsets=offsets))

    @answers(AllDelayOffsets)
    def delay_offsets(self, header: AllDelayOffsets, call: Call) -> Reply:
        return Reply(body=encode_body(DelayOffsetTable(offsets=self._delay_levels.offsets())))

    @answers(CloneGroupOffset)
    async def clone_offsets(self, header: CloneGroupOffset, call: Call) -> Reply:
        """Copy a group's offsets to another group.

        The request names one topic, or all topics except the source group's retry topic.
        """
        topics = {header.topic} if header.topic else self._offsets.topics_of(header.source_group)
        for topic in topics - {retry_topic(header.source_group)}:
            self._offsets.clone(header.source_group, header.destination_group, topic)
            await yield_slice()
        return Reply()

    @answers(CorrectionOffsets)
    async def correction_offsets(self, header: CorrectionOffsets, call: Call) -> Reply:
        """Return for each queue of a topic the lowest offset of all groups except the filtered ones.

        For a queue where the compared group's offset is lower, 2^63 - 1 is returned.
        Source: RocketMQ 4.9.8, AdminBrokerProcessor.queryCorrectionOffset.
        """
        await yield_slice()  # lets requests of other connections go first
        filtered = {group for group in (header.filter_groups or "").split(",") if group}
        corrected = self._offsets.lowest_except(header.topic, filtered)
        for queue_id, offset in self._offsets.of_topic(header.compare_group, header.topic).items():
            if corrected.get(queue_id, offset) > offset:
                corrected[queue_id] = MAX_LONG
        return Reply(body=encode_body(CorrectionOffsetTable(offsets=corrected)))
