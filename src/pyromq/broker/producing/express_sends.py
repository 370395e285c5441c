"""What the compiled parts may decide for themselves about plain sends, and what they are told for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq import speedups
from pyromq.broker.permissions.express_permits import express_permits
from pyromq.message import Property, SysFlag
from pyromq.names import DEAD_LETTER_PREFIX, NOT_FOR_CLIENTS, RETRY_PREFIX, TIMER_TOPIC
from pyromq.remoting.bodies import SINGLE_TAG
from pyromq.remoting.command import ReplyTemplate
from pyromq.remoting.header import header_layout
from pyromq.remoting.headers import SendMessage
from pyromq.remoting.headers.sending import SendMessageV2

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.codec import HeaderReader, ReplyWriter
    from pyromq.speedups.express import Express
    from pyromq.speedups.records import Counter
    from pyromq.speedups.sends import SendPlan, Sends
    from pyromq.speedups.timed import TimedSends

if TYPE_CHECKING:
    from pyromq.broker.producing.sending import Sending
    from pyromq.broker.shared_state import SharedState
    from pyromq.store.queue.consume_queue import ConsumeQueue


def express_sends(state: SharedState, sending: Sending) -> list[Express]:
    """Return what stores plain sends; nothing where answers wait for the disk, or where there are no compiled parts."""
    if not speedups.is_active or state.confirmation.is_needed:
        return []
    topics, statistics, long_polls = state.topics, state.statistics, state.long_polls

    def plan_for(name: str) -> SendPlan | None:
        """How plain sends to a topic are stored; None where every one has to be looked at."""
        topic = topics.find(name)
        if topic is None or topic.order or name.startswith(RETRY_PREFIX) or name in NOT_FOR_CLIENTS:
            return None
        queues, counter = state.store.queues_of(name), statistics.puts_of(name)
        if queues is None or counter is None:  # nothing is stored there yet
            queues = counter = None
        more_flags = 0 if topic.filter_type == SINGLE_TAG else SysFlag.MULTI_TAGS
        queue_count = max(topic.write_queues, topic.read_queues)
        return SendPlan(
            *(name, queues, queue_count),
            more_flags=more_flags,
            counter=counter,
            takes_times=not name.startswith(DEAD_LETTER_PREFIX),
        )

    timed = _timed_sends(state, sending)
    return [
        Sends(
            HeaderReader(int(request.code), header_layout(request)),
            state.store.log_tail,
            plan_for=plan_for,
            version=lambda: topics.version,
            busy=topics.unsaved,
            parked=long_polls.parked,
            arrived=long_polls.came,
            now_ms=state.clock.now_ms,
            store=state.store,
            writer_for=lambda: _writer_of(sending.templates[0]),
            timed=timed,
            cluster_pair=f"{Property.CLUSTER}\x01{state.config.cluster}",
            max_message_bytes=state.config.max_message_bytes,
            judge=express_permits(state, request),
        )
        for request in (SendMessage, SendMessageV2)
    ]


def _timed_sends(state: SharedState, sending: Sending) -> TimedSends:
    """Return what parks messages that ask for a time."""
    timers, config = state.timers, state.config

    def find() -> tuple[ConsumeQueue, Counter] | None:
        queues, counter = state.store.queues_of(TIMER_TOPIC), state.statistics.puts_of(TIMER_TOPIC)
        return None if queues is None or counter is None or 0 not in queues else (queues[0], counter)

    return TimedSends(
        timers.intake,
        TIMER_TOPIC,
        find=find,
        limit_ms=lambda: config.timer_max_delay_seconds * 1000,
        hurry=timers.hurry,
        file=timers.filed.file_recent,
        writer_for=lambda: _writer_of(sending.templates[1]),
        broker_name=config.name,
    )


def _writer_of(template: ReplyTemplate) -> ReplyWriter:
    return ReplyWriter(template.line, template.binary())
