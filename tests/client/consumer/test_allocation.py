import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.consumer.allocation import (
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    averaging,
    circular,
    md5_hash,
)
from pyromq.errors import UsageError
from pyromq.message import MessageQueue

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "assignment.json").read_text())

QUEUES = [MessageQueue("orders", "a", number) for number in range(8)]
NEARBY = MachineRoomNearby(lambda queue: queue.broker_name[0], lambda member: member[0])
TOTAL = [averaging, circular, ConsistentHash(), NEARBY, MachineRoomNearby(NEARBY.room_of_queue, str, circular)]

sorted_queues = st.lists(
    st.builds(MessageQueue, st.just("orders"), st.sampled_from(["a", "b", "c", "a2"]), st.integers(0, 15)),
    min_size=1,
    unique=True,
).map(sorted)
sorted_members = st.lists(st.from_regex(r"[abd]@[0-9]{1,4}", fullmatch=True), min_size=1, max_size=9, unique=True).map(
    sorted
)


def numbers(strategy, member, members, count):
    return [queue.queue_id for queue in strategy("billing", member, QUEUES[:count], members)]


def queue(text):
    topic, broker_name, queue_id = text.split("/")
    return MessageQueue(topic, broker_name, int(queue_id))


def room(text):
    return text[: max(0, text.find("@"))]


def recorded_strategy(case, name):
    match name:
        case "averaging":
            return averaging
        case "circular":
            return circular
        case "configured":
            return Configured([queue(text) for text in case["configured"]])
        case "machine-room":
            return MachineRoom(frozenset(case["rooms"]))
        case "consistent-hash":
            return ConsistentHash(case["virtualNodes"])
    return MachineRoomNearby(lambda queue: room(queue.broker_name), room, recorded_strategy(case, case["inner"]))


@pytest.mark.parametrize("number", range(len(GOLDEN)), ids=lambda number: f"{number}-{GOLDEN[number]['strategy']}")
def test_java_has_the_same_result(number):
    case = GOLDEN[number]
    strategy = recorded_strategy(case, case["strategy"])
    arguments = ("group", case["member"], [queue(text) for text in case["queues"]], case["members"])

    if "error" in case:
        with pytest.raises(UsageError):
            strategy(*arguments)
    else:
        assert strategy(*arguments) == [queue(text) for text in case["share"]]


@pytest.mark.parametrize(
    ("strategy", "count", "shares"),
    [
        (averaging, 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (averaging, 6, [[0, 1], [2, 3], [4, 5]]),
        (averaging, 2, [[0], [1], []]),
        (circular, 8, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (circular, 2, [[0], [1], []]),
        (Configured(QUEUES[5:7]), 8, [[5, 6]] * 3),
    ],
)
def test_shares_of_three_members(strategy, count, shares):
    members = ["x", "y", "z"]

    assert [numbers(strategy, member, members, count) for member in members] == shares


def test_machine_room_takes_only_brokers_of_listed_rooms():
    queues = [MessageQueue("orders", name, 0) for name in ("east@a", "east@b", "east@c", "plain", "west@d", "x@y@z")]
    strategy = MachineRoom(frozenset({"east"}))

    shares = [strategy("billing", member, queues, ["m", "n"]) for member in ("m", "n")]

    assert shares == [[queues[0], queues[2]], [queues[1]]]


def test_nearby_shares_the_queues_of_a_room_without_members_among_all():
    queues = [MessageQueue("orders", name, number) for name in ("east", "west") for number in range(2)]
    members = ["east-1", "east-2"]

    assert NEARBY("billing", "east-1", queues, members) == [queues[0], queues[2]]


def test_nearby_refuses_a_queue_or_member_without_room():
    with pytest.raises(UsageError, match=r"of orders .* has no machine room"):
        MachineRoomNearby(lambda queue: "", str)("billing", "m", QUEUES, ["m"])
    with pytest.raises(UsageError, match="m has no machine room"):
        MachineRoomNearby(lambda queue: "east", lambda member: "")("billing", "m", QUEUES, ["m"])


def test_ring_positions_are_the_first_four_bytes_of_md5():
    assert md5_hash("hello") == 0x5D41402A


def test_ring_takes_another_hash():
    strategy = ConsistentHash(1, hash=lambda text: {"x-0": 10, "y-0": 20}.get(text, 11))

    assert strategy("billing", "y", QUEUES, ["x", "y"]) == QUEUES


def test_a_hash_behind_the_last_node_begins_the_ring_anew():
    strategy = ConsistentHash(1, hash=lambda text: {"x-0": 10, "y-0": 20}.get(text, 21))

    assert strategy("billing", "x", QUEUES, ["x", "y"]) == QUEUES


def test_negative_virtual_nodes_are_refused():
    with pytest.raises(UsageError, match="virtual_nodes=-1"):
        ConsistentHash(-1)


@pytest.mark.parametrize("strategy", [averaging, circular, MachineRoom(frozenset({"east"})), ConsistentHash(), NEARBY])
@pytest.mark.parametrize(
    ("member", "queues", "members", "empty"),
    [("", QUEUES, ["m"], "member"), ("m", [], ["m"], "queues"), ("m", QUEUES, [], "members")],
)
def test_empty_arguments_are_named(strategy, member, queues, members, empty):
    with pytest.raises(UsageError, match=f"group 'billing' .*{empty} is empty"):
        strategy("billing", member, queues, members)


def test_a_stranger_gets_nothing_and_the_log_says_so(caplog):
    with caplog.at_level(logging.INFO):
        assert averaging("billing", "stranger", QUEUES, ["m"]) == []

    assert "billing: stranger is not among the members" in caplog.text


@given(strategy=st.sampled_from(TOTAL), queues=sorted_queues, members=sorted_members)
def test_every_queue_has_exactly_one_owner(strategy, queues, members):
    shares = [strategy("billing", member, queues, members) for member in members]

    assert sorted(queue for share in shares for queue in share) == queues


@pytest.mark.slow  # many queues and members are drawn
@given(queues=sorted_queues, members=sorted_members)
def test_averaging_and_circular_differ_by_one_queue_at_most(queues, members):
    for strategy in (averaging, circular):
        sizes = [len(strategy("billing", member, queues, members)) for member in members]

        assert max(sizes) - min(sizes) <= 1


@given(queues=sorted_queues, members=sorted_members.filter(lambda members: len(members) > 1))
def test_on_the_ring_only_queues_of_the_one_who_left_move(queues, members):
    *staying, _gone = members
    strategy = ConsistentHash()

    for member in staying:
        before = strategy("billing", member, queues, members)
        assert set(before) <= set(strategy("billing", member, queues, staying))
