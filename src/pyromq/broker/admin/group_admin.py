"""Answers administrators' changes of consumer groups and of their stored offsets."""

from __future__ import annotations

import logging
from concurrent.futures import Future

from pyromq.broker.confirmation import when_saved
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.members.consumer_groups import ConsumerGroups
from pyromq.broker.statistics import Statistics
from pyromq.names import retry_topic
from pyromq.remoting.bodies import CorrectionOffsetTable, DelayOffsetTable, GroupConfig, decode_body, encode_body
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

logger = logging.getLogger(__name__)

MAX_LONG = (1 << 63) - 1


class Grouping:
    """Creates, changes, lists and deletes groups; copies and compares their offsets."""

    def __init__(
        self, groups: ConsumerGroups, offsets: ConsumerOffsets, *, delay_levels: DelayLevels, statistics: Statistics
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._delay_levels = delay_levels
        self._statistics = statistics

    @answers(SaveGroup)
    def save_group(self, header: SaveGroup, call: Call) -> Future[Reply]:
        group = decode_body(GroupConfig, call.body)
        saved = self._groups.put(group)
        logger.info("group %s saved by %s", group.name, call.peer.address)
        return when_saved(saved, Reply())

    @answers(DeleteGroup)
    def delete_group(self, header: DeleteGroup, call: Call) -> Reply | Future[Reply]:
        """Forget the group; where groups are created automatically, a running member brings it back."""
        if (saved := self._groups.delete(header.group)) is not None:
            logger.info("group %s deleted by %s", header.group, call.peer.address)
        self._statistics.forget_group(header.group)
        if header.remove_offsets:
            self._offsets.remove_group(header.group)
        return Reply() if saved is None else when_saved(saved, Reply())

    @answers(AllGroups)
    def groups(self, header: AllGroups, call: Call) -> Reply:
        return Reply(body=encode_body(self._groups.table()))

    @answers(AllConsumerOffsets)
    def offsets(self, header: AllConsumerOffsets, call: Call) -> Reply:
        return Reply(body=encode_body(self._offsets.table()))

    @answers(AllDelayOffsets)
    def delay_offsets(self, header: AllDelayOffsets, call: Call) -> Reply:
        return Reply(body=encode_body(DelayOffsetTable(offsets=self._delay_levels.offsets())))

    @answers(CloneGroupOffset)
    def clone_offsets(self, header: CloneGroupOffset, call: Call) -> Reply:
        """Copy the offsets of one topic, or of all but the group's own retry topic."""
        topics = {header.topic} if header.topic else self._offsets.topics_of(header.source_group)
        for topic in topics - {retry_topic(header.source_group)}:
            self._offsets.clone(header.source_group, header.destination_group, topic)
        return Reply()

    @answers(CorrectionOffsets)
    def correction_offsets(self, header: CorrectionOffsets, call: Call) -> Reply:
        """By queue the lowest offset of the groups not filtered out; the largest number where the compared is lower.

        Source: RocketMQ 4.9.8, AdminBrokerProcessor.queryCorrectionOffset.
        """
        filtered = {group for group in (header.filter_groups or "").split(",") if group}
        corrected = self._offsets.lowest_except(header.topic, filtered)
        for queue_id, offset in self._offsets.of_topic(header.compare_group, header.topic).items():
            if corrected.get(queue_id, offset) > offset:
                corrected[queue_id] = MAX_LONG
        return Reply(body=encode_body(CorrectionOffsetTable(offsets=corrected)))
