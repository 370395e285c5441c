"""The console's state: accounts, sessions, audit log, saved searches, clients by account, history of an hour."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import Self

from starlette.requests import HTTPConnection

from pyromq.client.cluster.environment import connections_of
from pyromq.clock import Clock, SystemClock
from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.cluster.cluster_history import ClusterHistory, keep_sampling
from pyromq.console.cluster.redrives import Redrives
from pyromq.console.console_config import ConsoleConfig
from pyromq.console.console_metrics import ConsoleMetrics
from pyromq.console.search.saved_searches import SavedSearches
from pyromq.console.security.client_address import client_address
from pyromq.console.security.console_accounts import ConsoleAccount, ConsoleAccounts
from pyromq.console.security.console_audit_log import ConsoleAuditLog
from pyromq.console.security.sessions import KeptForms, Sessions, SignInFailures
from pyromq.errors import UsageError
from pyromq.net.server_probes import keep_probing
from pyromq.net.silent_servers import SilentServers
from pyromq.net.tasks import Tasks
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.whole_file import make_private_folder

Keys = tuple[str, str] | None


class Console:
    """The state of one console, an async context manager. The console samples the cluster while the context is open.

    Raises `UsageError` if the listening address needs accounts or TLS, or if the data folder cannot be created or
    written.
    """

    def __init__(self, config: ConsoleConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        try:
            make_private_folder(config.data)
        except OSError as error:
            raise UsageError(f"the console's folder {config.data} cannot be created: {error.strerror}") from error
        self.sessions = Sessions(self.clock, hours=config.session_hours)
        self.accounts = ConsoleAccounts(config.data / "accounts.json", on_change=self.sessions.end_all_of)
        check_protection(config, has_accounts=bool(self.accounts.all()))
        self.audit = ConsoleAuditLog(config.data / "audit.log", self.clock)
        self.redrives = Redrives(self.clock, self.audit)
        self.saved = SavedSearches(config.data / "searches.json")
        self.kept_forms = KeptForms(self.clock)
        self.sign_in_failures = SignInFailures(self.clock)
        self.history = ClusterHistory(sample_seconds=config.sample_seconds)
        self.refusals = RejectionLog(self.clock)
        self.metrics = ConsoleMetrics(self.history, self.refusals)
        self._clients: dict[Keys, ClusterClients] = {}
        self._silent = SilentServers(self.clock)
        self.connections = replace(connections_of(config.connections), silent=self._silent)
        self._tasks = Tasks()

    @property
    def is_open(self) -> bool:
        """Whether the console has no accounts, so that every visitor may do everything."""
        return not self.accounts.all()

    def address_of(self, connection: HTTPConnection) -> str:
        """Return the address of the browser, also behind the proxy; "" if the address is unknown."""
        return client_address(connection, self.config.proxies if self.config.behind_tls else ())

    @property
    def namesrv(self) -> str:
        return self.config.namesrv or "127.0.0.1:9876"

    def clients_of(self, account: ConsoleAccount | None) -> ClusterClients:
        """Return clients with the broker keys of a console account.

        If the account has none, the clients use the console's own keys.
        """
        keys: Keys = None
        if account is not None and account.access_key and account.secret_key:
            keys = (account.access_key, account.secret_key)
        if keys not in self._clients:
            connections = self.connections
            if keys is not None:
                connections = replace(connections, signer=None, access_key=keys[0], secret_key=keys[1])
            self._clients[keys] = ClusterClients(self.config, connections, self.clock)
        return self._clients[keys]

    async def __aenter__(self) -> Self:
        sampling = keep_sampling(
            self.history, self.clients_of(None), self.clock, sample_seconds=self.config.sample_seconds
        )
        self._tasks.start(sampling, name="sampling")
        self._tasks.start(keep_probing(self._silent, self.connections, self.clock), name="look for silent servers")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.stop()
        await self.redrives.close()
        for clients in self._clients.values():
            await clients.close()
        self.audit.close()


def check_protection(config: ConsoleConfig, *, has_accounts: bool) -> None:
    """Raise `UsageError` if other machines could connect without signing in, or without HTTPS."""
    if config.is_loopback:
        return
    if not has_accounts:
        raise UsageError(
            f"without accounts, everyone who can connect to {config.host} could use the console: create one with "
            f"`pyromq console account set NAME --role admin --data {config.data}`"
        )
    if not config.speaks_https:
        raise UsageError(
            f"browsers would send passwords to {config.host} in clear text: give --cert, or --behind-tls if a reverse "
            "proxy provides HTTPS"
        )
