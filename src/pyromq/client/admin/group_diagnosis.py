"""Diagnoses the groups of a topic: members of one group must subscribe alike and consume in the same mode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from pyromq.client.admin.cluster_groups import GroupState, put_together
from pyromq.client.admin.finding import Finding
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.errors import MQError
from pyromq.filter.subscription_differences import differences, in_words
from pyromq.names import is_system_group
from pyromq.remoting.bodies import ConsumerConnection, ConsumerRunning, GroupList, decode_body
from pyromq.remoting.headers import ConsumerConnections, ConsumerRunningState, TopicConsumers

MAX_ASKED = 64  # limit of members of a group that are asked for their mode: each is a request that a broker relays
MODES = {
    "messageModel": {"CLUSTERING": "share the messages", "BROADCASTING": "get all messages (broadcast)"},
    "PROP_CONSUMEORDERLY": {"true": "consume in order", "false": "consume concurrently"},
}  # properties of a running member that must be equal in a group, with their values in words
ADVICE = "let all members of the group run the same code, or give members with another task a group of their own"


async def group_findings(
    cluster: ClusterClient, topic: str, addresses: Sequence[str], *, timeout: float
) -> list[Finding]:
    """Return a finding for each group of a topic whose members differ, by group name.

    `addresses` are the masters that are requested. Errors of masters and members are left out.
    """
    groups = {
        group
        for answer in await asyncio.gather(*(_groups(cluster, each, topic, timeout) for each in addresses))
        for group in answer
        if not is_system_group(group)
    }
    found = await asyncio.gather(*(_check(cluster, each, addresses, timeout) for each in sorted(groups)))
    return [finding for findings in found for finding in findings]


async def _groups(cluster: ClusterClient, address: str, topic: str, timeout: float) -> list[str]:
    try:
        response = await cluster.ask(address, TopicConsumers(topic=topic), timeout=timeout)
        return decode_body(GroupList, response.check().body).groups
    except MQError:
        return []


async def _check(cluster: ClusterClient, group: str, addresses: Sequence[str], timeout: float) -> list[Finding]:
    answers = await asyncio.gather(*(_connections(cluster, each, group, timeout) for each in addresses))
    state = put_together(group, [each for each in answers if each is not None])
    running = await _running(cluster, state, addresses, timeout)
    name = f"group {group}"
    found = []
    # Java's brokers do not say what each member subscribes to; their members do.
    told = {
        client_id: {each.topic: " || ".join(sorted(each.tags)) or each.expression for each in at.subscriptions}
        for client_id, at in running.items()
    }
    if differing := state.differences or differences(told, state.consume_type):
        text = f"members subscribe differently and miss messages: {in_words(differing)}"
        found.append(Finding(name, False, text, ADVICE))
    for key, words in MODES.items():
        by_mode: dict[str, list[str]] = {}
        for client_id, at in sorted(running.items()):
            if (mode := at.properties.get(key)) in words:
                by_mode.setdefault(words[mode], []).append(client_id)
        if len(by_mode) > 1:
            text = "; ".join(f"{len(members)} {mode}, for example {members[0]}" for mode, members in by_mode.items())
            found.append(Finding(name, False, f"members consume in different modes: {text}", ADVICE))
    return found


async def _connections(cluster: ClusterClient, address: str, group: str, timeout: float) -> ConsumerConnection | None:
    question = ConsumerConnections(consumer_group=group, details=True)
    try:
        return decode_body(ConsumerConnection, (await cluster.ask(address, question, timeout=timeout)).check().body)
    except MQError:
        return None


async def _running(
    cluster: ClusterClient, state: GroupState, addresses: Iterable[str], timeout: float
) -> dict[str, ConsumerRunning]:
    """Return what members say of themselves, as far as they answer; {} for a single member, which cannot differ."""

    async def ask(client_id: str) -> ConsumerRunning | None:
        question = ConsumerRunningState(consumer_group=state.group, client_id=client_id, stack_wanted=False)
        for address in addresses:
            try:
                response = await cluster.ask(address, question, timeout=timeout)
                return decode_body(ConsumerRunning, response.check().body)
            except MQError:
                continue
        return None

    members = [each.client_id for each in state.members][:MAX_ASKED]
    if len(members) < 2:
        return {}
    answers = await asyncio.gather(*map(ask, members))
    return {client_id: answer for client_id, answer in zip(members, answers, strict=True) if answer is not None}
