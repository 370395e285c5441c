"""Makes the compiled handlers of sends, pulls and pops, from the same tables and checks as the plain path.

The plain path is the Python code of the processors. Compiled handlers leave unusual requests to it. Without compiled
parts the broker has no compiled handlers.
"""

from __future__ import annotations

from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, TypeVar

from pyromq import speedups
from pyromq.broker.permissions.rules import is_trace
from pyromq.broker.popping.in_flight import Pop
from pyromq.broker.popping.pop_admission import MAX_INVISIBLE_MS
from pyromq.broker.popping.pop_processor import MAX_BYTES
from pyromq.broker.role import MASTER
from pyromq.errors import MQError
from pyromq.filter.filter import TagFilter
from pyromq.message import Property, SysFlag
from pyromq.names import DEAD_LETTER_PREFIX, NOT_FOR_CLIENTS, RETRY_PREFIX, TIMER_TOPIC, pop_retry_topic, retry_topic
from pyromq.permissions.account import PUB, SUB, Need
from pyromq.remoting.bodies import SINGLE_TAG
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.command import ReplyTemplate
from pyromq.remoting.header import Header, header_layout, wire_layout
from pyromq.remoting.headers import (
    PopMessage,
    PopMessageResponse,
    PullMessage,
    PullMessageResponse,
    SendMessage,
    SendMessageResponse,
)
from pyromq.remoting.headers.message_headers import LitePullMessage, SendMessageV2
from pyromq.store.message_store import ReadStatus

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.codec import HeaderReader, ReplyWriter
    from pyromq.speedups.fast_acl import FastAcl
    from pyromq.speedups.pops import PopPlan, Pops
    from pyromq.speedups.pulls import PullPlan, Pulls
    from pyromq.speedups.reads import MAX_TAGS, Reads
    from pyromq.speedups.sends import SendPlan, Sends
    from pyromq.speedups.timed import TimedSends
if TYPE_CHECKING:
    from pyromq.broker.consuming.pull_processor import PullProcessor
    from pyromq.broker.popping.pop_processor import PopProcessor
    from pyromq.broker.shared_state import SharedState
    from pyromq.speedups.fast_path import FastHandler
    from pyromq.speedups.records import Counter
    from pyromq.store.queue.consume_queue import ConsumeQueue


def fast_sends(state: SharedState) -> list[FastHandler]:
    """Return the compiled handlers of plain sends; [] without compiled parts."""
    if not speedups.is_active:
        return []
    topics, long_polls, role = state.topics, state.long_polls, state.role
    assert state.confirmation.parked is not None  # as compiled parts are active
    timed = _timed_sends(state)
    return [
        Sends(
            HeaderReader(int(request.code), header_layout(request)),
            state.store.log_tail,
            plan_for=partial(_send_plan, state),
            version=lambda: topics.version if role.is_master else None,
            busy=topics.unsaved,
            parked=long_polls.parked,
            arrived=long_polls.arrived_at,
            now_ms=state.clock.now_ms,
            store=state.store,
            writer_for=lambda: _reply_writer(state),
            timed=timed,
            cluster_pair=f"{Property.CLUSTER}\x01{state.config.cluster}",
            max_message_bytes=state.config.max_message_bytes,
            guard=fast_acl_of(state, request),
            unconfirmed=state.confirmation.parked,
        )
        for request in (SendMessage, SendMessageV2)
    ]


def _send_plan(state: SharedState, name: str) -> SendPlan | None:
    """Return the plan for sends to a topic; None if every send to the topic needs the plain path."""
    topic = state.topics.find(name) if state.role.is_master else None
    if topic is None or topic.order or name.startswith(RETRY_PREFIX) or name in NOT_FOR_CLIENTS:
        return None
    queues, counter = state.store.queues_of(name), state.statistics.puts_of(name)
    if queues is None or counter is None:  # no message is stored in this topic yet
        queues = counter = None
    more_flags = 0 if topic.filter_type == SINGLE_TAG else SysFlag.MULTI_TAGS
    queue_count = max(topic.write_queues, topic.read_queues)
    return SendPlan(
        *(name, queues, queue_count),
        more_flags=more_flags,
        counter=counter,
        takes_times=not name.startswith(DEAD_LETTER_PREFIX),
    )


def _timed_sends(state: SharedState) -> TimedSends:
    """Return the compiled handler of sends with a delivery time."""
    timers, config = state.timers, state.config

    def find() -> tuple[ConsumeQueue, Counter] | None:
        queues, counter = state.store.queues_of(TIMER_TOPIC), state.statistics.puts_of(TIMER_TOPIC)
        return None if queues is None or counter is None or 0 not in queues else (queues[0], counter)

    return TimedSends(
        timers.intake,
        TIMER_TOPIC,
        find=find,
        limit_ms=lambda: config.timer_max_delay_seconds * 1000,
        advance_alarm=timers.advance_alarm,
        file=timers.index.file_recent,
        writer_for=lambda: _reply_writer(state, with_handle=True),
        broker_name=config.name,
    )


def _reply_writer(state: SharedState, *, with_handle: bool = False) -> ReplyWriter:
    """Return a writer of replies to sends: log offset, queue id, queue offset and, with `with_handle`, a recall handle.

    Must be called once the broker listens: the writer contains the store's address.
    """
    formats = {"message_id": state.store.store_address.hex().upper() + "%016X"}
    variables: tuple[str, ...] = ("message_id", "queue_id", "queue_offset")
    if with_handle:
        formats["recall_handle"] = "%b"
        variables += ("recall_handle",)
    region = state.config.region
    template = ReplyTemplate(SendMessageResponse, variables, formats=formats, region=region, trace_on="true")
    return ReplyWriter(template.line, template.binary())


def fast_pulls(state: SharedState, pulling: PullProcessor) -> list[FastHandler]:
    """Return the compiled handlers of pulls that find messages; [] without compiled parts."""
    if not speedups.is_active:
        return []
    topics, groups, config, role = state.topics, state.groups, state.config, state.role
    variables = ("next_offset", "min_offset", "max_offset")
    template = ReplyTemplate(PullMessageResponse, variables, remark=ReadStatus.FOUND.name, suggested_broker_id=MASTER)
    return [
        Pulls(
            HeaderReader(int(request.code), header_layout(request)),
            _reads(state),
            plan_for=partial(_pull_plan, state, pulling),
            version=lambda: (topics.version, groups.version, config.permission, config.slave_read, role.is_master),
            commit=state.offsets.commit,
            total=state.statistics.get_total,
            writer=ReplyWriter(template.line, template.binary()),
            guard=fast_acl_of(state, request),
        )
        for request in (PullMessage, LitePullMessage)
    ]


def _pull_plan(state: SharedState, pulling: PullProcessor, values: list[Any]) -> PullPlan | None:
    """Return the plan for pulls with these values of header fields; None if the plain path must answer them."""
    header = _header_of(PullMessage, values)
    if header.sys_flag & PullFlag.COMMIT_OFFSET and not state.role.is_master:
        return None
    try:
        pulling.check(header)
        wanted = pulling.subscription(header)
    except MQError:
        return None  # the plain path refuses the pull
    queue = state.store.queue_tail(header.topic, header.queue_id)
    counter = state.statistics.gets_of(header.topic, header.consumer_group)
    if queue is None or counter is None or not isinstance(wanted, TagFilter) or len(wanted.codes) > MAX_TAGS:
        return None
    group = state.groups.find(header.consumer_group)
    if group is None or (state.config.slave_read and group.broker_id != MASTER):
        return None
    facts = []
    if not header.sys_flag & PullFlag.SUBSCRIPTION:
        if not group.broadcast_enabled:
            return None
        facts = state.connections.facts(header.consumer_group, header.topic)
    return PullPlan(
        *(header.consumer_group, header.topic, header.queue_id, queue),
        codes=wanted.codes or None,
        counter=counter,
        facts=facts,
    )


def _reads(state: SharedState) -> Reads:
    reading = state.store.reading
    return Reads(
        state.store.log_tail,
        is_loaded=reading.residency.covers,
        segment_of=reading.segment_of,
        **reading.limits_in_memory(),
    )


def fast_pops(state: SharedState, popping: PopProcessor) -> list[FastHandler]:
    """Return the compiled handler of pops that find messages in one queue; [] without compiled parts."""
    if not speedups.is_active:
        return []
    topics, groups, config, role = state.topics, state.groups, state.config, state.role
    variables = ("pop_ms", "invisible_ms", "revive_queue", "rest", "start_offset_info", "message_offset_info")
    formats = {"start_offset_info": "%b", "message_offset_info": "%b"}
    template = ReplyTemplate(PopMessageResponse, variables, formats=formats, remark=ReadStatus.FOUND.name)
    return [
        Pops(
            HeaderReader(int(PopMessage.code), header_layout(PopMessage)),
            _reads(state),
            plan_for=partial(_pop_plan, state, popping),
            version=lambda: (topics.version, groups.version, config.permission, role.is_master),
            now_ms=state.clock.now_ms,
            pop_of=Pop,
            hand_out=state.pops.try_to_hand_out,
            max_in_flight=lambda: config.limits.in_flight,
            total=state.statistics.get_total,
            writer=ReplyWriter(template.line, template.binary()),
            max_ms=MAX_INVISIBLE_MS,
            max_bytes=MAX_BYTES,
            guard=fast_acl_of(state, PopMessage),
        )
    ]


def _pop_plan(state: SharedState, popping: PopProcessor, values: list[Any]) -> PopPlan | None:
    """Return the plan for pops with these values of header fields; None if the plain path must answer them."""
    header = _header_of(PopMessage, values)
    group, name, retries = header.consumer_group, header.topic, pop_retry_topic(header.consumer_group, header.topic)
    topic = state.topics.find(name) if state.role.is_master else None
    if topic is None or not topic.read_queues:
        return None
    try:
        wanted = popping.subscription(header, None)
    except MQError:
        return None  # the plain path refuses the pop
    if not isinstance(wanted, TagFilter) or len(wanted.codes) > MAX_TAGS:
        return None
    in_flight, store = state.pops.in_flight, state.store
    popped, queues = in_flight.queues(group, name), store.queues_of(name)
    retried, retry_queues = in_flight.queues(group, retries), store.queues_of(retries)
    if not popped.keys() >= set(range(topic.read_queues)):
        return None  # the plain path makes the state of each queue
    if state.topics.find(retries) is not None and (not retried or retry_queues is None):
        return None  # as above; a plan sees a queue that is made later only if it holds the topic's queues
    counter = state.statistics.gets_of(name, group)
    if counter is None or queues is None:
        return None
    return PopPlan(
        *(popped, queues, retried, retry_queues or {}),
        count=topic.read_queues,
        rounds=popping.rounds,
        key=(group, name),
        codes=wanted.codes or None,
        counter=counter,
    )


H = TypeVar("H", bound=Header)


def _header_of(kind: type[H], values: list[Any]) -> H:
    """Return a header from the values of its fields, in the order of their declaration."""
    names = [field.attribute for field in wire_layout(kind)]
    return kind(**dict(zip(names, values, strict=True)))


def fast_acl_of(state: SharedState, request: type[Header]) -> FastAcl | None:
    """Return the compiled check of the rights of requests with this header; None if permissions are off."""
    if not state.config.permissions:
        return None
    permissions = state.permissions
    names = [field.attribute for field in wire_layout(request)]

    def secret_of(access_key: str) -> str | None:
        account = permissions.in_force.accounts.get(access_key)
        return None if account is None else account.secret_key

    def may(access_key: str, topic: str, group: str | None) -> bool:
        needs: list[Need] = [(topic, PUB)] if group is None else [(topic, SUB), (retry_topic(group), SUB)]
        account = permissions.in_force.accounts.get(access_key)
        return account is not None and (is_trace(needs) or account.lacks(needs) is None)

    return FastAcl(
        HeaderReader(int(request.code), header_layout(request)),
        topic=names.index("topic"),
        group=names.index("consumer_group") if "consumer_group" in names else -1,
        in_force=lambda: permissions.in_force,
        secret_of=secret_of,
        may=may,
        trusts=lambda packed: permissions.in_force.trusts(IPv4Address(packed)),
    )
