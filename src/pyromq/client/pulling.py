"""One pull: the request, and its answer as messages. Decoding waits until somebody looks at the messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyromq.client.membership import Membership
from pyromq.errors import ResponseCode
from pyromq.filter.tags import TagFilter, parse_tags
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


class PullResult:
    """The answer to one pull.

    `next_offset` is where to go on, `min_offset` and `max_offset` are the queue's bounds, `raw` the records back to
    back as stored (see `pyromq.record`), before the filter by tag names.
    """

    def __init__(
        self, queue: MessageQueue, status: PullStatus, header: PullMessageResponse, raw: bytes, tags: TagFilter
    ) -> None:
        self.queue = queue
        self.status = status
        self.next_offset = header.next_offset
        self.min_offset = header.min_offset
        self.max_offset = header.max_offset
        self.suggested_broker_id = header.suggested_broker_id
        self.raw = raw
        self._tags = tags
        self._messages: list[StoredMessage] | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        """The wanted messages in order; decoded once. Raises `StoreCorrupt` for bytes that are no records."""
        if self._messages is None:
            messages = decode_all(self.raw)
            if self._tags.tags:  # the broker compared hashes only
                messages = [message for message in messages if self._tags.accepts_tag(message.tags)]
            for message in messages:
                message.broker_name = self.queue.broker_name
            self._messages = messages
        return self._messages


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to pull: at most `max_count` messages with `tags`, waiting at the broker for up to `wait_seconds`.

    `timeout` is how long the answer may take beyond that; `broker_id` 0 is the master. `commit_offset`, when given,
    is stored as where the group goes on. A broker of ours gives up to `max_bytes` of records (and more than 32
    messages) when asked so; other brokers do not look at it.
    """

    max_count: int = 32
    tags: str = "*"
    wait_seconds: float = 0.0
    timeout: float = 5.0
    broker_id: int = 0
    commit_offset: int | None = None
    max_bytes: int | None = None


async def pull(
    membership: Membership, group: str, queue: MessageQueue, offset: int, *, request: PullRequest
) -> PullResult:
    """Pull once. Raises what the broker answers, or `Unavailable` when no broker answers in time."""
    tags = parse_tags(request.tags)
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
    response = await membership.ask_queue(
        queue, header, timeout=request.wait_seconds + request.timeout, broker_id=request.broker_id
    )
    return _result(response, queue, tags)


def _result(response: Response, queue: MessageQueue, tags: TagFilter) -> PullResult:
    response.check(*_STATUSES)
    return PullResult(queue, _STATUSES[response.code], response.header(PullMessageResponse), response.body, tags)
