"""Finds members of one group with different subscriptions, which miss messages, and describes the differences.

Members share the group's queues, and brokers keep one subscription per topic. A member without a topic leaves its
queues unread. A member with other tags skips messages of the others. Groups that pop have no shares: there, a member
without a topic is normal.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.names import RETRY_PREFIX

NOTHING = ""  # used instead of an expression for a member without a subscription to the topic
POP = "CONSUME_POP"  # the consume type of groups that pop
MAX_NAMES = 10  # limit of members that are named for each expression

# For each topic, the sorted members of each expression (or `NOTHING`).
Differences = dict[str, dict[str, list[str]]]


def differences(subscribed: Mapping[str, Mapping[str, str]], consume_type: str | None = None) -> Differences:
    """Return the topics with different subscriptions, given each member's expressions by topic.

    Members without subscriptions are left out: they choose their queues themselves, or have just started.
    """
    members = {name: wanted for name, wanted in sorted(subscribed.items()) if wanted}
    topics = sorted({topic for wanted in members.values() for topic in wanted if not topic.startswith(RETRY_PREFIX)})
    found: Differences = {}
    for topic in topics:
        by_expression: dict[str, list[str]] = {}
        for name, wanted in members.items():
            if consume_type == POP and topic not in wanted:
                continue
            by_expression.setdefault(wanted.get(topic, NOTHING), []).append(name)
        if len(by_expression) > 1:
            found[topic] = by_expression
    return found


def in_words(found: Differences) -> str:
    """Return the differences as one line: `orders: "a" by m1, m2; "b" by m3; nothing by m4 | ...`."""
    return " | ".join(f"{topic}: {_choices(by_expression)}" for topic, by_expression in found.items())


def _choices(by_expression: Mapping[str, list[str]]) -> str:
    return "; ".join(
        f"{_quoted(expression)} by {_names(members)}" for expression, members in sorted(by_expression.items())
    )


def _quoted(expression: str) -> str:
    return f'"{expression}"' if expression else "nothing"


def _names(members: list[str]) -> str:
    named = ", ".join(members[:MAX_NAMES])
    return named if len(members) <= MAX_NAMES else f"{named} and {len(members) - MAX_NAMES} more"
