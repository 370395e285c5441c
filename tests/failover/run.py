"""`make failover`: a replica set as processes on a real etcd, under load, with N accidents by chance.

    python -m tests.failover.run 100 [--seed S] [--replicas 3] [--members 3] [--only kill,stop_master] [--keep FOLDER]
    python -m tests.failover.run 1 --only away --pause 0.1

Afterwards everything is healed, and the history is judged. A history with faults is kept in a file.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.etcd_cluster import Member
from tests.failover.judge import Verdict, judge
from tests.failover.links import MISSING, can_cut
from tests.failover.load import GROUPS, Load
from tests.failover.machines import Machines, Server

SHORTER_THAN_LEASE, LONGER_THAN_LEASE = (0.2, 2.0), (4.0, 8.0)  # seconds that a process stands still
TEN_MINUTES = (600.0, 600.0)
ONLY_BY_NAME = "away"  # the group of accidents that take too long to happen by chance
CONFIRMED_BETWEEN = 50  # confirmations between two accidents: the set must have recovered
RECOVERY_SECONDS = 60.0  # longest time without confirmations that is no fault of the set; a loaded machine is slow


class Accidents:
    """The accidents that may happen to a set, each undone when its method returns, but for processes that start."""

    def __init__(self, machines: Machines, chance: random.Random) -> None:
        self._machines = machines
        self._chance = chance

    @property
    def possible(self) -> dict[str, list[Callable[[], Awaitable[None]]]]:
        """The accidents by group, as `--only` names them."""
        found: dict[str, list[Callable[[], Awaitable[None]]]] = {
            "kill": [self.kill_master, self.kill_master, self.kill_follower],
            "stop": [self.stop_master, self.stop_master, self.stop_follower, self.stop_master_shortly],
            "restart": [self.restart_master, self.restart_follower],
            "etcd": [self.kill_etcd_leader, self.stop_etcd_leader, self.lose_etcd],
            "both": [self.kill_both, self.stop_both],
            ONLY_BY_NAME: [self.lose_etcd_for_ten_minutes],
        }
        if self._machines.links is not None:
            found["cut"] = [
                *(self.isolate_master, self.isolate_follower, self.cut_one_way, self.cut_other_way),
                *(self.cut_master_from_etcd, self.cut_master_from_all_but_clients),
            ]
        return found

    def chosen(self, only: tuple[str, ...]) -> list[list[Callable[[], Awaitable[None]]]]:
        """Return the accidents of these groups, or of these names, by group; if `only` is empty, all but long ones."""
        found = []
        names = set(only) or self.possible.keys() - {ONLY_BY_NAME}
        for name, accidents in self.possible.items():
            if wanted := [each for each in accidents if {name, each.__name__} & names]:
                found.append(wanted)
        if not found:
            raise ValueError(f"no such accidents: {only}; there are {self.possible}")
        return found

    async def kill_master(self) -> None:
        await self._kill(self._master())

    async def kill_follower(self) -> None:
        await self._kill(self._follower())

    async def stop_master(self) -> None:
        await self._stop(self._master(), LONGER_THAN_LEASE)

    async def stop_master_shortly(self) -> None:
        await self._stop(self._master(), SHORTER_THAN_LEASE)

    async def stop_follower(self) -> None:
        await self._stop(self._follower(), LONGER_THAN_LEASE)

    async def restart_master(self) -> None:
        await self._restart(self._master())

    async def restart_follower(self) -> None:
        await self._restart(self._follower())

    async def kill_etcd_leader(self) -> None:
        await self._kill_member(self._leader())

    async def stop_etcd_leader(self) -> None:
        await self._stop(self._leader(), LONGER_THAN_LEASE)

    async def lose_etcd(self) -> None:
        """All of etcd stands still for longer than any lease."""
        await self._lose_etcd(LONGER_THAN_LEASE)

    async def lose_etcd_for_ten_minutes(self) -> None:
        await self._lose_etcd(TEN_MINUTES)

    async def kill_both(self) -> None:
        await asyncio.gather(self._kill(self._master()), self._kill_member(self._leader()))

    async def stop_both(self) -> None:
        master, leader = self._master(), self._leader()
        await asyncio.gather(self._stop(master, LONGER_THAN_LEASE), self._stop(leader, LONGER_THAN_LEASE))

    async def isolate_master(self) -> None:
        await self._isolate(self._master())

    async def isolate_follower(self) -> None:
        await self._isolate(self._follower())

    async def cut_one_way(self) -> None:
        await self._cut((self._master().name, self._follower().name))

    async def cut_other_way(self) -> None:
        await self._cut((self._follower().name, self._master().name))

    async def cut_master_from_etcd(self) -> None:
        await self._cut(*((self._master().name, member.name) for member in self._machines.members))

    async def cut_master_from_all_but_clients(self) -> None:
        """Clients go on sending to a master that reaches nobody."""
        machines = self._machines
        others = [each.name for each in (*machines.followers, *machines.members, machines.name_server)]
        await self._cut(*((self._master().name, other) for other in others))

    def _master(self) -> Server:
        master = self._machines.master
        assert master is not None
        return master

    def _follower(self) -> Server:
        return self._chance.choice(self._machines.followers)

    def _leader(self) -> Member:
        assert self._machines.etcd is not None
        return self._machines.etcd.leader() or self._machines.members[0]

    async def _kill(self, server: Server) -> None:
        self._note("kill", server)
        await server.kill()
        await self._sleep(self._chance.choice([(0.1, 1.0), LONGER_THAN_LEASE]))
        await server.start()

    async def _kill_member(self, member: Member) -> None:
        assert self._machines.etcd is not None
        self._note("kill", member)
        await asyncio.to_thread(member.kill)
        await self._sleep(LONGER_THAN_LEASE)
        self._machines.etcd.start(member)

    async def _stop(self, process: Server | Member, seconds: tuple[float, float]) -> None:
        self._note("stop", process)
        process.stop()
        await self._sleep(seconds)
        process.go_on()

    async def _lose_etcd(self, seconds: tuple[float, float]) -> None:
        for member in self._machines.members:
            self._note("stop", member)
            member.stop()
        await self._sleep(seconds)
        for member in self._machines.members:
            member.go_on()

    async def _restart(self, server: Server) -> None:
        self._note("restart", server)
        code = await server.end()
        assert code == 0, f"{server.name} ended with code {code}"
        await server.start()

    async def _isolate(self, server: Server) -> None:
        assert self._machines.links is not None
        self._note("isolate", server)
        self._machines.links.isolate(server.name)
        await self._until_healed()

    async def _cut(self, *ways: tuple[str, str]) -> None:
        """Cut these ways, or half of the time also the opposite ones."""
        assert self._machines.links is not None
        is_both = self._chance.random() < 0.5
        for sender, receiver in ways:
            self._machines.note("cut", f"{sender} {'<>' if is_both else '>'} {receiver}")
            self._machines.links.cut(sender, receiver)
            if is_both:
                self._machines.links.cut(receiver, sender)
        await self._until_healed()

    async def _until_healed(self) -> None:
        assert self._machines.links is not None
        await self._sleep(LONGER_THAN_LEASE)
        self._machines.links.heal()

    async def _sleep(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._chance.uniform(*seconds))

    def _note(self, what: str, process: Server | Member) -> None:
        if isinstance(process, Server):
            role = "master" if process is self._machines.master else "follower"
        else:
            role = "member of etcd"
        self._machines.note(f"{what} {role}", process.name)


async def run(
    folder: Path,
    count: int,
    seed: int,
    *,
    replicas: int = 3,
    members: int = 3,
    only: tuple[str, ...] = (),
    cuttable: bool = False,
    pause_seconds: float = 0.01,
    **settings: object,
) -> Verdict:
    """Let so many accidents happen to a set under load, heal everything, and judge.

    `only`: groups or names of accidents. `pause_seconds`: mean pause of each sender between two sends.
    """
    chance = random.Random(seed)
    machines = Machines(folder, replicas=replicas, members=members, cuttable=cuttable, **settings)
    try:
        async with machines, Load(machines.namesrv, machines.history, seed=seed, pause_seconds=pause_seconds) as load:
            accidents = Accidents(machines, chance)
            wanted = accidents.chosen(only)
            await _recovered(machines, load)
            for number in range(1, count + 1):
                accident = chance.choice(chance.choice(wanted))
                started = time.monotonic()
                await accident()
                await _recovered(machines, load)
                seconds = time.monotonic() - started
                print(f"{number}: {accident.__name__}, {seconds:.1f} s, {load.confirmed} confirmed", flush=True)
            await machines.heal()
            await _recovered(machines, load)
            await load.stop_sending()
            await load.settle()
    finally:
        machines.history.save(folder / "history")
    return judge(machines.history, GROUPS)


async def _recovered(machines: Machines, load: Load) -> None:
    """Wait until the set confirms again with all its replicas in sync."""
    count = load.confirmed + CONFIRMED_BETWEEN
    await machines.until(
        lambda: load.confirmed > count and machines.in_sync == len(machines.replicas), seconds=RECOVERY_SECONDS
    )


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("count", type=int, nargs="?", default=20)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--replicas", type=int, default=3)
    options.add_argument("--members", type=int, default=3)
    options.add_argument("--only", type=lambda text: tuple(text.split(",")), default=())
    options.add_argument("--pause", type=float, default=0.01, help="mean seconds between two sends of each sender")
    options.add_argument("--keep", type=Path, help="folder for data and history, which is kept")
    chosen = options.parse_args()
    if not (cuttable := can_cut()):
        print(f"no links are cut: {MISSING}")
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="pyromq-failover-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{chosen.count} accidents with seed {chosen.seed}; files in {folder}", flush=True)
    counts = {"replicas": chosen.replicas, "members": chosen.members}
    more = {"only": chosen.only, "cuttable": cuttable, "pause_seconds": chosen.pause}
    verdict = asyncio.run(run(folder, chosen.count, chosen.seed, **more, **counts))
    print(verdict)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
