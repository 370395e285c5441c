"""The outcome of a message in each group, and its stored copies, derived from the events of its life."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from pyromq.client.admin.messages.dead_letters import REDRIVEN_FROM, DeadLetter, is_redriven
from pyromq.client.admin.messages.message_life import LifeEvent, sent_to
from pyromq.client.admin.messages.message_search import PARKED_IN
from pyromq.message import Property, StoredMessage
from pyromq.names import DEAD_LETTER_PREFIX, HALF_TOPIC


class Outcome(Enum):
    """The outcomes of a message in a group, the worst first."""

    GAVE_UP = "gave up"
    FAILING = "failing"
    RETRIED = "retried"
    REDRIVEN = "redriven"
    NOT_KNOWN = "not known"
    NOT_YET = "not yet"
    CONSUMED = "consumed"


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of a message in one group.

    `attempts` is the number of failed attempts, `reason` the text of the last failure; None if no copy has a string.
    `at_ms` is the time of the last failure. With `is_popped`, a failure is a message not acknowledged in time.
    `letter` is the dead letter to redrive, `last` the group's latest copy. `detail` is that of the offset.
    """

    group: str
    outcome: Outcome
    attempts: int = 0
    reason: str | None = None
    at_ms: int | None = None
    letter: StoredMessage | None = None
    last: StoredMessage | None = None
    is_redriven: bool = False
    is_popped: bool = False
    detail: str = ""


def outcomes_of(life: Sequence[LifeEvent]) -> list[GroupOutcome]:
    """Return the outcome of a message in each group that its life names, the worst first."""
    of_group: dict[str, list[LifeEvent]] = {}
    for event in life:
        if (group := _group_of(event)) is not None:
            of_group.setdefault(group, []).append(event)
    redriven = {each.record.properties[REDRIVEN_FROM] for each in life if each.record and is_redriven(each.record)}
    found = [_outcome(group, events, redriven) for group, events in of_group.items()]
    return sorted(found, key=lambda each: (list(Outcome).index(each.outcome), each.group))


def _group_of(event: LifeEvent) -> str | None:
    """Return the group whose event this is; None for an event of a producer or a broker."""
    if event.record is not None:
        return sent_to(event.record)[1]
    consuming = ("delivered", "consumed", "failed", "passed", "not yet", "not known")
    return event.who if event.what in consuming and event.who else None


def _outcome(group: str, events: Sequence[LifeEvent], redriven: Container[str]) -> GroupOutcome:
    """Return the outcome in a group from its events in order of time. `redriven` has the ids of redriven letters."""
    copies = [each.record for each in events if each.record is not None]
    failed = next((each for each in reversed(copies) if each.reconsume_times > 0), None)
    letter = next((each for each in reversed(copies) if is_dead(each)), None)
    calls = [each for each in events if each.what in ("consumed", "failed")]
    failed_calls = [each for each in calls if each.what == "failed"]
    judged = next((each for each in events if each.what in ("passed", "not yet", "not known")), None)
    at_ms = failed.store_ms if failed is not None else failed_calls[-1].time_ms if failed_calls else None
    return GroupOutcome(
        group,
        _kind(copies[-1] if copies else None, judged.what if judged is not None else "", calls[-1] if calls else None),
        attempts=failed.reconsume_times if failed is not None else len(failed_calls),
        reason=DeadLetter(group, failed).reason if failed is not None else None,
        at_ms=at_ms,
        letter=letter,
        last=copies[-1] if copies else None,
        is_redriven=letter is not None and letter.offset_message_id in redriven,
        is_popped=failed is not None and Property.FIRST_POP_TIME in failed.properties,
        detail=judged.detail if judged is not None else "",
    )


def _kind(last: StoredMessage | None, judged: str, call: LifeEvent | None) -> Outcome:
    """Return the outcome from the group's latest copy, its consumer offset, and its latest call."""
    is_consumed = call is not None and call.what == "consumed" and (call.time_ms or 0) >= (last.store_ms if last else 0)
    if judged == "passed" or is_consumed:
        return Outcome.CONSUMED
    if judged == "not known":
        return Outcome.NOT_KNOWN
    if last is not None and is_dead(last):
        return Outcome.REDRIVEN if judged else Outcome.GAVE_UP  # an offset is judged if a redriven copy is the latest
    if last is not None:
        return Outcome.REDRIVEN if is_redriven(last) else Outcome.RETRIED
    return Outcome.FAILING if call is not None and call.what == "failed" else Outcome.NOT_YET


def stored_event(message: StoredMessage) -> LifeEvent:
    """Return the only event that is known of a message if its life cannot be read: that this copy was stored."""
    return LifeEvent(
        message.store_ms, "dead letter" if is_dead(message) else "stored", message.broker_name, "", message
    )


def copies_of(life: Iterable[LifeEvent], shown: StoredMessage) -> list[StoredMessage]:
    """Return a message's copies from its life events, by store time, `shown` always among them.

    `shown` is the copy whose page is displayed.
    """
    found = {each.offset_message_id: each for event in life if (each := event.record) is not None}
    found[shown.offset_message_id] = shown
    return sorted(found.values(), key=lambda each: (each.store_ms, each.log_offset))


ORIGINAL = "the message"


def copy_name(message: StoredMessage) -> str:
    """Return what a copy is, for example `attempt 2 of billing`."""
    topic, group = sent_to(message)
    if is_dead(message):
        return f"dead letter of {group}"
    if message.topic in PARKED_IN:
        if group is not None:
            return f"waiting for attempt {message.reconsume_times + 1} of {group}"
        return "half message" if message.topic == HALF_TOPIC else "waiting for its delivery time"
    if is_redriven(message):
        return f"redriven copy for {group}" if group is not None else "redriven copy"
    if group is not None:
        return f"attempt {message.reconsume_times + 1} of {group}"
    return ORIGINAL if topic == message.topic else f"copy in {message.topic}"


def dead_letter_group(message: StoredMessage) -> str | None:
    """Return the group of a dead letter; None for every other message."""
    return message.topic.removeprefix(DEAD_LETTER_PREFIX) if is_dead(message) else None


def is_dead(message: StoredMessage) -> bool:
    return message.topic.startswith(DEAD_LETTER_PREFIX)
