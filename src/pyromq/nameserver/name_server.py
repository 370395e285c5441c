"""One name server: makes, starts and stops its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from pyromq.clock import Clock, SystemClock
from pyromq.errors import DENIED, AccessDenied, BrokerError, MQError, NoPermission, UsageError
from pyromq.logs import logger_of
from pyromq.message import join_address
from pyromq.nameserver.kv_config import KvConfigProcessor, KvTable
from pyromq.nameserver.name_server_config import BLACK_LIST, SETTINGS, NameServerConfig, from_java
from pyromq.nameserver.route_processors import RegistrationProcessor, RouteProcessor
from pyromq.nameserver.routes import RouteTable
from pyromq.net.server import Server
from pyromq.net.slow_replies import SlowReplies
from pyromq.net.tasks import Tasks, every
from pyromq.permissions.acl_files import AclFolder
from pyromq.permissions.authentication import REFUSED, Authentication, denied
from pyromq.permissions.permissions import CHECK_SECONDS, AclWatch, Permissions
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import NamesrvSettings, SaveNamesrvSettings
from pyromq.remoting.properties import parse_properties, write_properties
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.server_settings import Change, write_settings
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.json_file import JsonFile
from pyromq.store.worker import worker

CHANGES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,  # counts as a heartbeat of the broker that the request names
    }
)


LIVE = {name for name, setting in SETTINGS.items() if setting.change is Change.AT_ONCE}
_MAX_BYTES = 64 << 10  # limit of a request that changes settings (bytes); all settings together have 1 kB

if TYPE_CHECKING:
    from pyromq.nameserver.name_server_metrics import NameServerMetrics

logger = logger_of(__name__)

DRAIN_SECONDS = 0.5  # longest wait at the end for replies that wait until a table is written


class NameServer:
    """A name server, from which clients get the brokers of a topic.

    An async context manager: inside, requests to `address` are answered. Entering raises `UsageError` if the port
    cannot be used, and `StoreCorrupt` for a damaged file of key-value settings.
    """

    def __init__(self, config: NameServerConfig | None = None, clock: Clock | None = None) -> None:
        self.config = replace(config) if config is not None else NameServerConfig()
        self.routes = RouteTable(max_topics=self.config.max_topics, max_brokers=self.config.max_brokers)
        self._clock = clock or SystemClock()
        self._watch: AclWatch | None = None
        self._kv = KvTable(
            JsonFile(self.config.kv_path) if self.config.kv_path is not None else None,
            max_bytes=self.config.max_kv_bytes,
        )
        # Changed settings are stored next to the key-value settings. A name server without that file stores neither.
        kept = self.config.kv_path.with_name("namesrv.properties") if self.config.kv_path is not None else None
        self._configuring = NameServerSettingsProcessor(self.config, JsonFile(kept) if kept is not None else None)
        self._slow_replies = SlowReplies(self._clock)
        self._registering = RegistrationProcessor(self.routes, self._kv, self._clock)
        self._refusals = refusals = RejectionLog(self._clock)
        guard = None
        if self.config.permissions_path is not None:
            permissions = Permissions()
            self._watch = AclWatch(
                AclFolder(self.config.permissions_path), permissions, worker(LOCAL_DISK, "permissions")
            )
            guard = ChangeGuard(permissions, refusals)
        dispatcher = Dispatcher(
            self._registering,
            RouteProcessor(self.routes, self._kv, self.config),
            KvConfigProcessor(self._kv),
            self._configuring,
            guard=guard,
            refusals=refusals,
            compute=self._slow_replies.submit,
        )
        config = self.config
        self._server = Server(
            dispatcher,
            self._clock,
            host=config.host,
            port=config.port,
            connections=config.connections,
            limits=config.connection_limits,
            tls=config.tls,
        )
        self._tasks = Tasks()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        """The address `host:port` at which clients and brokers reach the name server."""
        return join_address(self.config.host, self.port)

    def metrics(self) -> NameServerMetrics:
        """Return the metrics that a `MetricsEndpoint` serves for this name server."""
        from pyromq.nameserver.name_server_metrics import NameServerMetrics  # imported only where metrics are served

        return NameServerMetrics(self.address, self.routes, self._refusals, self._server.sessions)

    async def __aenter__(self) -> Self:
        self._kv.load()
        self._configuring.load()
        if self._watch is not None:
            self._watch.load()
            self._tasks.start(every(CHECK_SECONDS, self._watch.check, self._clock), name="check ACL files")
        await self._server.start()
        self._tasks.start(every(self.config.scan_interval_ms / 1000, self._expire, self._clock), name="expire brokers")
        for step, alarm in (
            (self._slow_replies.step, self._slow_replies.alarm),
            (self._registering.remove_some, self._registering.alarm),
        ):
            self._tasks.start(alarm.run(step), name=step.__qualname__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.stop()
        await self._server.close(DRAIN_SECONDS)
        self._slow_replies.close()
        self._kv.close()
        if self._watch is not None:
            self._watch.close()

    def _expire(self) -> None:
        for address in self.routes.expire(self._clock.monotonic() - self.config.broker_timeout_ms / 1000):
            logger.warning("broker %s is removed: no heartbeat for %d ms", address, self.config.broker_timeout_ms)
        self._registering.alarm.schedule_within(0)


class NameServerSettingsProcessor:
    """Shows and changes the name server's settings, under the names of RocketMQ's configuration files.

    `file` stores changes for the next start; None: changes are lost at a restart.
    """

    def __init__(self, config: NameServerConfig, file: JsonFile | None) -> None:
        self._config = config
        self._file = file

    def load(self) -> None:
        """Apply the stored changes, which override the settings given at the start. Raises `StoreError`."""
        content = self._file.load() if self._file is not None else None
        if content is not None:
            kept = parse_properties(content.decode())
            self._apply(from_java({name: kept[name] for name in LIVE & kept.keys()}))

    @answers(SaveNamesrvSettings)
    def save_settings(self, header: SaveNamesrvSettings, call: Call) -> Reply:
        """Change settings that may change while the server runs.

        Settings unknown to this server are ignored, as in RocketMQ.
        """
        if len(call.body) > _MAX_BYTES:
            raise BrokerError(f"the settings have {len(call.body)} bytes; the limit is {_MAX_BYTES}")
        try:
            settings = parse_properties(call.body.decode())
        except UnicodeDecodeError as error:
            raise BrokerError(f"string2Properties error: the settings are not UTF-8: {error}") from error
        if BLACK_LIST & settings.keys():
            raise NoPermission("Can not update config in black list.")
        if fixed := (SETTINGS.keys() - LIVE) & settings.keys():
            raise UsageError(f"{', '.join(sorted(fixed))}: cannot change while the name server runs; restart it")
        changed = {name: settings[name] for name in LIVE & settings.keys()}
        values = from_java(changed)
        if changed and self._file is not None:
            self._file.save(write_properties(changed).encode())
        self._apply(values)
        return Reply()

    def _apply(self, values: Mapping[str, object]) -> None:
        for field, value in values.items():
            setattr(self._config, field, value)

    @answers(NamesrvSettings)
    def settings(self, header: NamesrvSettings, call: Call) -> Reply:
        components = {"": self._config, "connection_limits": self._config.connection_limits}
        return Reply(body=write_properties(write_settings(SETTINGS, components)).encode())


class ChangeGuard:
    """Decides which requests a name server with accounts permits."""

    reads_fields = True
    is_compiled = False

    def __init__(self, permissions: Permissions, refusals: RejectionLog) -> None:
        self._authentication = Authentication(permissions)
        self._refusals = refusals

    def judge(self, call: Call) -> MQError | None:
        """Return the error with which a request is refused; None if the request is permitted."""
        if call.code not in CHANGES:
            return None
        try:
            account = self._authentication.account_of(call)
            if account is not None and not account.admin:
                name = RequestCode(call.code).name
                raise denied(
                    f"account {account.access_key} is not an administrator, which request {call.code} ({name}) needs"
                )
        except AccessDenied as error:
            reason = str(error).removeprefix(DENIED)
            self._refusals.note(REFUSED, call.peer.address, "%s is refused: %s", call.peer.address, reason)
            return error
        return None
