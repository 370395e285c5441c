"""The console's own state: accounts, sessions, audit log, saved searches, clients by account, the last hour."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import jinja2
from starlette.requests import HTTPConnection

from pyromq.client.cluster.environment import connections_of
from pyromq.clock import Clock, SystemClock
from pyromq.console.cluster.clients import Clients
from pyromq.console.cluster.history import History, keep_sampling
from pyromq.console.cluster.redrives import Redrives
from pyromq.console.config import ConsoleConfig
from pyromq.console.metrics import ConsoleMetrics
from pyromq.console.search.saved import SavedSearches
from pyromq.console.security.accounts import Account, Accounts
from pyromq.console.security.addresses import client_address
from pyromq.console.security.audit_log import AuditLog
from pyromq.console.security.sessions import Sessions, Tries
from pyromq.console.view.chart import bar, chart, spark
from pyromq.console.view.request_context import address
from pyromq.console.view.texts import FILTERS
from pyromq.errors import UsageError
from pyromq.remoting.rejection_log import RejectionLog

Keys = tuple[str, str] | None


class Console:
    """Open between entering and leaving. Raises `UsageError` for an address that accounts and TLS must protect."""

    def __init__(self, config: ConsoleConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        try:
            config.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(f"the console's folder {config.data} cannot be made: {error.strerror}") from error
        self.accounts = Accounts(config.data / "accounts.json")
        check_openness(config, has_accounts=bool(self.accounts.all()))
        self.audit = AuditLog(config.data / "audit.log", self.clock)
        self.redrives = Redrives(self.clock, self.audit)
        self.saved = SavedSearches(config.data / "searches.json")
        self.sessions = Sessions(self.clock, hours=config.session_hours)
        self.tries = Tries(self.clock)
        self.history = History(sample_seconds=config.sample_seconds)
        self.refusals = RejectionLog(self.clock)
        self.metrics = ConsoleMetrics(self.history, self.refusals)
        self.templates = _templates()
        self._clients: dict[Keys, Clients] = {}
        self._sampling: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are no accounts: who reaches it may do everything."""
        return not self.accounts.all()

    def address_of(self, connection: HTTPConnection) -> str:
        """Return the address of a browser, behind the proxy too; "" if it is not known."""
        return client_address(connection, self.config.proxies if self.config.behind_tls else ())

    @property
    def namesrv(self) -> str:
        return self.config.namesrv or "127.0.0.1:9876"

    def clients_of(self, account: Account | None) -> Clients:
        """Return the clients that act as this account's account of the brokers, or else as the console's own."""
        keys: Keys = None
        if account is not None and account.access_key and account.secret_key:
            keys = (account.access_key, account.secret_key)
        if keys not in self._clients:
            connections = self.config.connections
            if keys is not None:
                given = connections_of(connections)
                connections = replace(given, signer=None, access_key=keys[0], secret_key=keys[1])
            self._clients[keys] = Clients(self.config, connections, self.clock)
        return self._clients[keys]

    async def __aenter__(self) -> Self:
        sampling = keep_sampling(
            self.history, self.clients_of(None), self.clock, sample_seconds=self.config.sample_seconds
        )
        self._sampling = asyncio.create_task(sampling, name="sampling")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            with suppress(asyncio.CancelledError):
                await self._sampling
        await self.redrives.close()
        for clients in self._clients.values():
            await clients.close()
        self.audit.close()


def check_openness(config: ConsoleConfig, *, has_accounts: bool) -> None:
    """Raise `UsageError` where strangers could reach a console that asks nobody who they are, or in clear text."""
    if config.is_loopback:
        return
    if not has_accounts:
        raise UsageError(
            f"the console would be open to everybody who reaches {config.host}: make an account first, with "
            f"`pyromq console account set NAME --role admin --data {config.data}`"
        )
    if not config.speaks_https:
        raise UsageError(
            f"passwords would go to {config.host} in clear text: give --tls-cert, or --behind-tls where a proxy before "
            "the console speaks TLS"
        )


def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("pyromq.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(FILTERS)
    found.globals.update(address=address, chart=chart, spark=spark, bar=bar)
    return found
