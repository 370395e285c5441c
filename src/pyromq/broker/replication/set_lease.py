"""The registration of one replica in the registry: written under a lease, which is renewed while the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from pyromq.broker.replication.registry import Lease, Registry
from pyromq.broker.replication.set_record import ReplicaInfo
from pyromq.broker.replication.set_registry import ReplicaNumberTaken, SetRegistry
from pyromq.errors import LeaseGone, MQError, RegistryUnavailable
from pyromq.logs import logger_of

logger = logger_of(__name__)

_PAUSE_SECONDS = 0.2  # between two attempts to register
_ENTER_SECONDS = 1.0  # between two notes of the log's end in the registry
_WARN_SECONDS = 60.0  # between two warnings of a registry that does not answer
_RENEWALS = 4  # renewals of the lease in its time


class SetLease:
    """The lease and the registration of one replica.

    `info` returns what to register, None while the broker's role changes. `renewed` is called with the time by which a
    request that granted or renewed the lease was sent. All times are seconds of `now`.
    """

    def __init__(
        self,
        registry: Registry,
        keys: SetRegistry,
        seconds: float,
        *,
        now: Callable[[], float],
        info: Callable[[], ReplicaInfo | None],
        renewed: Callable[[float], None],
    ) -> None:
        self._registry = registry
        self._keys = keys
        self._seconds = seconds
        self._now = now
        self._info = info
        self._renewed = renewed
        self._lease: Lease | None = None
        self._warned_at: float | None = None  # the last warning of a registry that does not answer

    @property
    def sent(self) -> float | None:
        """When the last request that granted or renewed the lease was sent; None before the first."""
        return None if self._lease is None else self._lease.sent

    async def enter(self) -> None:
        """Take a lease and register. A registration of this replica's earlier life may still last for its lease.

        Raises `ReplicaNumberTaken`, and errors of the registry.
        """
        until = self._now() + 2 * self._seconds + 1
        while True:
            try:
                await self._take()
                return
            except (ReplicaNumberTaken, RegistryUnavailable, LeaseGone):
                if self._now() > until:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    async def register(self) -> None:
        """Write in the registry what this replica is and has now. Does nothing before `enter`, and without an info.

        A registration that fails is repeated by `keep`. Raises `ReplicaNumberTaken`.
        """
        try:
            await self._write()
        except (LeaseGone, RegistryUnavailable) as error:
            logger.info("the replica was not registered: %s", error)

    async def _write(self) -> None:
        info = self._info()
        if self._lease is not None and info is not None:
            await self._keys.register(info, self._lease.id)

    async def keep(self) -> None:
        """Renew the lease, and note the log's end, until cancelled. Raises `ReplicaNumberTaken`."""
        entered = self._now()
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            assert self._lease is not None
            try:
                self._lease = await self._registry.keep(self._lease.id)
                if not self._lease.seconds:
                    await self._take()
                self._renewed(self._lease.sent)
                if self._warned_at is not None:
                    self._warned_at = None
                    logger.warning("the registry answers again")
                if self._now() - entered >= _ENTER_SECONDS:
                    entered = self._now()
                    await self._write()
            except ReplicaNumberTaken:
                raise
            except LeaseGone:
                self._lease = replace(self._lease, seconds=0)
            except RegistryUnavailable as error:
                self._warn(self._now(), error)
            except MQError:
                logger.exception("the lease was not renewed")

    async def release(self) -> None:
        """End the lease, so that others need not wait for its end."""
        if self._lease is not None:
            try:
                await self._registry.release(self._lease.id)
            except MQError as error:
                logger.info("the lease was not released: %s", error)

    async def _take(self) -> None:
        self._lease = await self._registry.lease(self._seconds)
        await self._write()
        self._renewed(self._lease.sent)

    def _warn(self, now: float, error: MQError) -> None:
        """Log that the registry does not answer: at the first failure, and each minute."""
        if self._warned_at is None or now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            text = "the registry has not answered for %.0f s; no replica can join, leave or become master meanwhile: %s"
            logger.warning(text, now - (self.sent or now), error)
