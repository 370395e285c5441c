"""One-way cuts between processes of one machine: packets on loopback are dropped by the kernel (nftables).

Each "machine" is a group id and the ports on which its processes listen. A connection is marked with the group id of
the process that opens it. So the packets from one machine to another are known in both directions, those of open
connections too, and those that the kernel still sends for a process that is gone.

    packets from A to B:   of connections that A opened, to a port of B
                           of connections that B opened, from a port of A
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from itertools import count

import pytest

MISSING = "needs root and nft, to cut links between processes: Debian's package nftables"
_GROUPS = count(20_000 + os.getpid() % 10_000 * 100)  # not those of other runs on this machine
_NUMBERS = count(1)
CLIENTS = "clients"  # the machine of the test's own process, which keeps its group id and has no ports


def can_cut() -> bool:
    """Return whether this process may cut links."""
    if os.geteuid() != 0 or shutil.which("nft") is None:
        return False
    return subprocess.run(["nft", "list", "tables"], capture_output=True, check=False).returncode == 0


def need_links() -> None:
    """Skip the test where links cannot be cut."""
    if not can_cut():
        pytest.skip(MISSING)


class Links:
    """The links between machines. Leaving the context removes all rules from the kernel."""

    def __init__(self) -> None:
        self._table = f"pyromq_{os.getpid()}_{next(_NUMBERS)}"
        self._groups: dict[str, int] = {CLIENTS: os.getegid()}
        self._ports: dict[str, tuple[int, ...]] = {CLIENTS: ()}
        self._cuts: set[tuple[str, str]] = set()

    def __enter__(self) -> Links:
        self._nft(
            f"add table inet {self._table}",
            # Connections are marked before a rule can drop their first packet.
            f"add chain inet {self._table} opened {{ type filter hook output priority -10; }}",
            f"add chain inet {self._table} cuts {{ type filter hook input priority 0; }}",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._nft(f"delete table inet {self._table}")

    def add(self, machine: str, ports: Iterable[int]) -> int:
        """Add a machine whose processes listen on these ports. Return the group id that its processes must have."""
        group = next(_GROUPS)
        self._groups[machine], self._ports[machine] = group, tuple(ports)
        self._nft(f"add rule inet {self._table} opened meta skgid {group} ct state new ct mark set {group}")
        return group

    def cut(self, sender: str, receiver: str) -> None:
        """Drop what one machine sends to another from now on; what comes back still arrives."""
        self._cuts.add((sender, receiver))
        self._apply()

    def cut_both(self, one: str, other: str) -> None:
        self._cuts |= {(one, other), (other, one)}
        self._apply()

    def isolate(self, machine: str) -> None:
        """Drop all packets between a machine and the others, as if its cable were pulled."""
        for other in self._groups:
            if other != machine:
                self._cuts |= {(machine, other), (other, machine)}
        self._apply()

    def heal(self) -> None:
        """Drop nothing any more."""
        self._cuts.clear()
        self._apply()

    def _apply(self) -> None:
        rules = [rule for cut in sorted(self._cuts) for rule in self._rules(*cut)]
        self._nft(
            f"flush chain inet {self._table} cuts", *(f"add rule inet {self._table} cuts {each}" for each in rules)
        )

    def _rules(self, sender: str, receiver: str) -> Iterator[str]:
        for opener, direction, owner, port in (
            (sender, "original", receiver, "dport"),
            (receiver, "reply", sender, "sport"),
        ):
            # The test's own process is not marked: its group id is that of many others.
            mark = 0 if opener == CLIENTS else self._groups[opener]
            if ports := ", ".join(str(each) for each in self._ports[owner]):
                yield f"ct mark {mark} ct direction {direction} tcp {port} {{ {ports} }} drop"

    def _nft(self, *commands: str) -> None:
        subprocess.run(["nft", "-f", "-"], input="\n".join(commands), text=True, check=True)
