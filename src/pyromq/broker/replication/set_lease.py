"""The registration of one replica in the registry, under a lease. The lease is renewed while the process runs."""

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

_PAUSE_SECONDS = 0.2  # time between two attempts to register
_ENTER_SECONDS = 1.0  # time between two writes of the log's end to the registry
_WARN_SECONDS = 60.0  # time between two warnings that the registry does not answer
_RENEWALS = 4  # the lease is renewed this often in its duration


class SetLease:
    """The lease and the registration of one replica.

    `info` returns the registration, None while the broker's role changes. `renewed(sent)` is called after the lease was
    granted or renewed by a request that was sent at the time `sent`. All times are seconds of `now`.
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
        self.answered_at = 0.0  # time of the last request that the registry has answered, and not refused
        self._warned_at: float | None = None  # time of the last warning; None while the registry answers

    @property
    def sent(self) -> float | None:
        """Time at which the last request that granted or renewed the lease was sent; None before the first."""
        return None if self._lease is None else self._lease.sent

    async def enter(self) -> None:
        """Take a lease and register. Retries while an earlier registration of this replica lasts, until its lease ends.

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
        """Write the present registration to the registry. Does nothing before `enter`, and if `info` returns None.

        If that fails, `keep` repeats it. Raises `ReplicaNumberTaken`.
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
        """Renew the lease, and write the log's end to the registry, until cancelled. Raises `ReplicaNumberTaken`."""
        entered = self._now()
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            assert self._lease is not None
            try:
                self._lease = await self._registry.keep(self._lease.id)
                if not self._lease.seconds:
                    await self._take()
                self._renewed(self._lease.sent)
                # etcd renews leases of clients without an account, and refuses their other requests.
                if self._now() - entered >= _ENTER_SECONDS or self._warned_at is not None:
                    entered = self._now()
                    await self._write()
                self.answered_at = self._lease.sent
                if self._warned_at is not None:
                    self._warned_at = None
                    logger.warning("the registry answers again")
            except ReplicaNumberTaken:
                raise
            except LeaseGone:
                self._lease = replace(self._lease, seconds=0)
            except MQError as error:
                self._warn(self._now(), error)

    async def release(self) -> None:
        """End the lease, so that other replicas notice immediately that this replica has stopped."""
        if self._lease is not None:
            try:
                await self._registry.release(self._lease.id)
            except MQError as error:
                logger.info("the lease was not released: %s", error)

    async def _take(self) -> None:
        self._lease = await self._registry.lease(self._seconds)
        await self._write()
        self.answered_at = self._lease.sent
        self._renewed(self._lease.sent)

    def _warn(self, now: float, error: MQError) -> None:
        """Log that the registry does not answer, or refuses: at the first failure, and then every `_WARN_SECONDS`."""
        if self._warned_at is None or now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            failed = f"has not answered for {now - (self.sent or now):.0f} s"
            if not isinstance(error, RegistryUnavailable):
                failed = "refuses requests"
            text = "the registry %s; without the registry no replica can join, leave or become master: %s"
            logger.warning(text, failed, error)
