"""One pull: the request, and its answer as messages. Decoding waits until somebody looks at the messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.damage import DamagedMessage, are_in_place, examine
from pyromq.errors import ResponseCode, StoreCorrupt
from pyromq.filter.tags import parse_tags, subscribed_tags
from pyromq.message import MessageQueue, StoredMessage
from pyromq.record import decode_all
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.command import Response
from pyromq.remoting.headers import PullMessage, PullMessageResponse


class PullStatus(Enum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"  # nothing at that offset yet
    NO_MATCH = "NO_MATCHED_MSG"  # messages, but none that is wanted: go on at `next_offset`
    OFFSET_MOVED = "OFFSET_ILLEGAL"  # the offset is outside the queue: go on at `next_offset`


_STATUSES = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to pull: at most `max_count` messages with `tags`, waiting at the broker for up to `wait_seconds`.

    `timeout` is how long the answer may take beyond that; `broker_id` 0 is the master. `commit_offset`, when given,
    is stored as where the group goes on. A broker of ours gives up to `max_bytes` of records (and more than 32
    messages) when asked so; other brokers do not look at it. `verify` compares bodies with their checksums.
    """

    max_count: int = 32
    tags: str = "*"
    wait_seconds: float = 0.0
    timeout: float = 5.0
    broker_id: int = 0
    commit_offset: int | None = None
    max_bytes: int | None = None
    verify: bool = True


class PullResult:
    """The answer to one pull, from queue offset `offset` on.

    `next_offset` is where to go on, `min_offset` and `max_offset` are the queue's bounds, `raw` the records back to
    back as stored (see `pyromq.record`), before the filter by tag names.
    """

    def __init__(self, queue: MessageQueue, offset: int, response: Response, request: PullRequest) -> None:
        header = response.header(PullMessageResponse)
        self.queue = queue
        self.offset = offset
        self.status = _STATUSES[response.code]
        self.next_offset = header.next_offset
        self.min_offset = header.min_offset
        self.max_offset = header.max_offset
        self.suggested_broker_id = header.suggested_broker_id
        self.raw = response.body
        self._request = request
        self._messages: list[StoredMessage] | None = None
        self._damaged: list[DamagedMessage] = []

    @property
    def messages(self) -> list[StoredMessage]:
        """The wanted messages in order, without those that are `damaged`; decoded once."""
        if self._messages is None:
            self._messages = self._decoded()
        return self._messages

    @property
    def damaged(self) -> list[DamagedMessage]:
        """The messages that are not what was stored, in order: unless it was not to be looked at, unread ones only."""
        if self._messages is None:
            self._messages = self._decoded()
        return self._damaged

    def _decoded(self) -> list[StoredMessage]:
        verify, tags = self._request.verify, parse_tags(self._request.tags)
        try:
            messages = decode_all(self.raw, check_crc=verify)
            sound = not verify or are_in_place(messages, self.offset, self.next_offset)
        except StoreCorrupt:
            sound = False
        if not sound:
            place = self.queue, self.offset, self.next_offset
            messages, self._damaged = examine(bytes(self.raw), *place, verify=verify)
        if tags.tags:  # the broker compared hashes only
            messages = [message for message in messages if tags.accepts_tag(message.tags)]
        for message in messages:
            message.broker_name = self.queue.broker_name
        return messages


async def pull(
    cluster: ClusterClient, group: str, queue: MessageQueue, offset: int, *, request: PullRequest
) -> PullResult:
    """Pull once. Raises what the broker answers, or `Unavailable` when no broker answers in time."""
    tags = subscribed_tags(request.tags)
    flags = PullFlag.SUBSCRIPTION
    if request.wait_seconds > 0:
        flags |= PullFlag.SUSPEND
    if request.commit_offset is not None:
        flags |= PullFlag.COMMIT_OFFSET
    header = PullMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_count=request.max_count,
        sys_flag=int(flags),
        commit_offset=request.commit_offset or 0,
        suspend_ms=int(request.wait_seconds * 1000),
        subscription=tags.expression,
        subscription_version=0,
        expression_type="TAG",
        max_bytes=request.max_bytes,
        broker_name=queue.broker_name,
    )
    response = await cluster.ask_queue(
        queue, header, timeout=request.wait_seconds + request.timeout, broker_id=request.broker_id
    )
    response.check(*_STATUSES)
    return PullResult(queue, offset, response, request)
