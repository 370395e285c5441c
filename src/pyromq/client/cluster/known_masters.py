"""The masters of broker names, as one client knows them: by epoch, and by refusals that name the master.

A name server may be behind: it lists a former master until it hears of the new one. Two rules keep a client from going
back. A lower epoch than the highest one seen is not believed. The master that a replica's refusal names is used until a
name server names another address, or a higher epoch, or until the named master cannot be reached.
"""

from __future__ import annotations

from dataclasses import dataclass

MASTER = 0  # id of a master; replicas have higher broker ids


@dataclass(frozen=True, slots=True)
class _Named:
    """A master named by a refusal while the route had `epoch`; `refused` are the addresses that it replaces."""

    master: str
    refused: frozenset[str]
    epoch: int | None


class KnownMasters:
    """The highest epochs of replica sets, and the masters that refusals have named, by broker name."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, dict[int, str]]] = {}  # highest epoch, and the addresses registered then
        self._named: dict[str, _Named] = {}

    def believed(
        self, broker_name: str, addresses: dict[int, str], epoch: int | None
    ) -> tuple[dict[int, str], int | None]:
        """Return the addresses by broker id, and the epoch, to use after a name server has answered with these."""
        if epoch is not None:
            highest, at_highest = self._latest.get(broker_name, (epoch, addresses))
            if epoch < highest:
                addresses, epoch = at_highest, highest
            else:
                self._latest[broker_name] = epoch, addresses
        if (named := self._named.get(broker_name)) is None:
            return addresses, epoch
        is_other = MASTER in addresses and addresses[MASTER] not in named.refused | {named.master}
        if is_other or _is_later(epoch, named.epoch):
            del self._named[broker_name]
            return addresses, epoch
        replicas = {number: each for number, each in addresses.items() if number != MASTER and each != named.master}
        return {MASTER: named.master, **replicas}, epoch

    def name(self, broker_name: str, master: str, *, refused: str | None, epoch: int | None) -> None:
        """Note that `refused`, the master in a route with `epoch`, names another master."""
        before = self._named.get(broker_name)
        addresses = before.refused if before is not None else frozenset[str]()
        addresses = (addresses | ({refused} if refused is not None else set())) - {master}
        self._named[broker_name] = _Named(master, addresses, epoch)

    def doubt(self, broker_name: str) -> None:
        """Forget the master that a refusal has named: it refuses, too, and knows no other master."""
        self._named.pop(broker_name, None)

    def unreachable(self, address: str) -> None:
        """Forget refusals that name `address`, which cannot be reached."""
        if self._named:
            self._named = {name: named for name, named in self._named.items() if named.master != address}


def _is_later(epoch: int | None, than: int | None) -> bool:
    return epoch is not None and than is not None and epoch > than
