"""Inputs of the strategies that share queues, drawn from a seed, and what the genuine ones make of them.

`golden/assignment.json` is one JSON array, an input with its `share` (or `error`) on a line. It is written anew by
`python -m interop.assigning`, called in the folder `tests`; needs Java and Maven.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.interop.peers.java import Driver, build

GOLDEN = Path(__file__).parents[2] / "golden" / "assignment.json"
SEED = 4908
OF_EACH = 60
ROOMS = ("", "east", "north", "west")
STRATEGIES = ("averaging", "circular", "configured", "machine-room", "consistent-hash", "nearby")

Case = dict[str, Any]


def inputs() -> list[Case]:
    """Return `OF_EACH` inputs for each strategy, among them empty and repeated members and strangers."""
    chance = random.Random(SEED)
    return [_input(chance, strategy) for strategy in STRATEGIES for _ in range(OF_EACH)]


def recorded(home: Path) -> list[Case]:
    """Return the inputs with the results of Java 4.9.8."""
    cases = inputs()
    results = Driver(home, "-", options=["-Dfile.encoding=UTF-8"]).run("assign", lines=cases)
    return [case | result for case, result in zip(cases, results, strict=True)]


def _input(chance: random.Random, strategy: str) -> Case:
    queues, members = _queues(chance), _members(chance)
    case: Case = {
        "strategy": strategy,
        "member": chance.choice([*(members * 4), "stranger", ""]) if members else "nobody",
        "queues": queues,
        "members": members,
    }
    if strategy == "configured":
        case["configured"] = chance.sample(queues, len(queues) // 2)
    elif strategy == "machine-room":
        case["rooms"] = chance.sample(ROOMS, chance.randint(0, 3))
    elif strategy == "nearby":
        case["inner"] = chance.choice(("averaging", "circular", "consistent-hash"))
    if "consistent-hash" in (strategy, case.get("inner")):
        case["virtualNodes"] = chance.choice((10, 10, 10, 1, 3, 0))
    return case


def _queues(chance: random.Random) -> list[str]:
    """Return queues as a rebalance has them: sorted, except for a few."""
    topic = chance.choice(("orders", "%RETRY%billing", "größe"))
    names = [f"{chance.choice(ROOMS)}@{name}" for name in "abc"[: chance.randint(1, 3)]]
    names += chance.choices(("d", "east@e@", "e@f@g"), k=chance.choice((0, 0, 0, 1)))
    queues = [f"{topic}/{name}/{number}" for name in sorted(names) for number in range(chance.choice((1, 2, 4, 8)))]
    if chance.random() < 0.1:
        chance.shuffle(queues)
    return queues if chance.random() < 0.97 else []


def _members(chance: random.Random) -> list[str]:
    """Return sorted client ids; now and then one occurs twice, as while it reconnects."""
    rooms = ROOMS[1:] if chance.random() < 0.9 else ROOMS
    count = chance.choice((0, 1, 1, 2, 3, 4, 7, 12))
    members = [f"{chance.choice(rooms)}@10.0.0.{number}@{chance.randint(100, 999)}" for number in range(count)]
    if members and chance.random() < 0.1:
        members.append(members[0])
    return sorted(members)


def _write() -> None:
    build()
    with tempfile.TemporaryDirectory() as home:
        lines = [json.dumps(case, ensure_ascii=False) for case in recorded(Path(home))]
    GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    _write()
