"""The audit log: one line of JSON for each administrator's request that changes something.

    {"time": "2023-11-14T22:13:20.000Z", "from": "10.0.0.7:51034", "client": "10.0.0.7@4711",
     "request": "DELETE_TOPIC_IN_BROKER", "fields": {"topic": "orders"}, "outcome": "SUCCESS", "remark": null}

The audit log is a hook of the remoting layer and never delays a request: a thread writes the lines. Lines that the disk
refuses are lost, and the next written line says how many. Bodies are not logged, only the names of the objects changed.
"""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from pyromq.broker.admin.settings_processor import MAX_SETTINGS_BYTES
from pyromq.broker.members.connections import Connections
from pyromq.broker.modules import BrokerModule
from pyromq.broker.shared_state import SharedState
from pyromq.clock import Clock
from pyromq.errors import MQError, ResponseCode
from pyromq.logs import logger_of
from pyromq.remoting import headers
from pyromq.remoting.bodies import REQUEST, GroupConfig, decode_body
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, request_headers, wire_fields
from pyromq.remoting.hooks import RemotingOutcome, RemotingRequest
from pyromq.remoting.properties import parse_properties
from pyromq.store.disk import Disk, make_durable_folder, write_all
from pyromq.store.worker import worker

logger = logger_of(__name__)

# Requests that change something. Queries are not logged: monitoring sends them every few seconds.
AUDITED = (
    headers.AcceptLoss,
    headers.CleanQueues,
    headers.CleanTopics,
    headers.CloneGroupOffset,
    headers.ConsumeDirectly,
    headers.CreateTopic,
    headers.DeleteExpiredLog,
    headers.DeleteGroup,
    headers.DeleteTopic,
    headers.HandOver,
    headers.ResetOffset,
    headers.ResumeHalfMessage,
    headers.SaveAccount,
    headers.SaveBrokerSettings,
    headers.SaveGroup,
    headers.SaveWhiteList,
)
# A field whose name contains one of these is logged without its value.
SECRETS = ("secret", "password", "signature", "token")
MAX_CHARACTERS = 256  # limit of a logged text, such as a field's value; longer strings are cut
FILE_BYTES = 16 << 20  # size of the audit log at which a new file is begun
OLDER_FILES = 4  # full files of the audit log kept besides the present one
MAX_WAITING = 10_000  # limit of unwritten lines, while the disk does not respond; further lines are lost


class AuditLog:
    """A remoting hook that logs the requests which change something at one broker."""

    def __init__(self, file: AuditFile, connections: Connections, clock: Clock) -> None:
        self._file = file
        self._connections = connections
        self._clock = clock
        self._codes = {code for code, header in request_headers().items() if issubclass(header, AUDITED)}

    def before_request(self, request: RemotingRequest) -> None:
        """Do nothing: a line is written after the response, since it contains the outcome."""

    def after_response(self, request: RemotingRequest, outcome: RemotingOutcome) -> None:
        if request.incoming and request.code in self._codes:
            self._file.append(self._line(request, outcome))

    def _line(self, request: RemotingRequest, outcome: RemotingOutcome) -> bytes:
        fields = ({} if request.header is None else _without_secrets(request.header)) | _named(request)
        return _encoded(
            {
                "time": _time(self._clock),
                "from": request.address,
                "account": _short(request.account),
                "client": _short(self._connections.client_at(request.address)),
                "request": RequestCode(request.code).name,
                "fields": {name: _short(text) for name, text in fields.items()},
                "outcome": _outcome(outcome.code),
                "remark": _short(outcome.remark),
            }
        )


class AuditFile:
    """The file of audit lines. A thread writes and flushes the lines.

    At `FILE_BYTES` a new file is begun; `OLDER_FILES` full files are kept.
    """

    def __init__(self, path: Path, disk: Disk, clock: Clock) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock
        self._thread = worker(disk, "audit-log")
        self.close = self._thread.shutdown  # blocks until all queued lines are written or lost
        self._lock = threading.Lock()  # guards `_waiting` and `_missing`, which event loop and thread change
        self._waiting: list[bytes] = []
        self._missing = 0
        self._failed = False
        self._is_named = False  # True once this process has flushed the file's name

    def append(self, line: bytes) -> None:
        """Queue a line to be written by the thread. Never raises, never blocks."""
        with self._lock:
            if len(self._waiting) == MAX_WAITING:
                self._missing += 1
                return
            self._waiting.append(line)
            is_first = len(self._waiting) == 1
        if is_first:
            self._thread.submit(self._write)

    def _write(self) -> None:
        with self._lock:
            lines, self._waiting = self._waiting, []
            missing, self._missing = self._missing, 0
        gap = [_encoded({"time": _time(self._clock), "missing": missing})] if missing else []
        try:
            self._add(b"".join([*gap, *lines]))
        except OSError as error:
            with self._lock:
                self._missing += missing + len(lines)
            if not self._failed:
                logger.error(  # noqa: TRY400  once, in one line
                    "the audit log %s loses requests: %s; check the disk", self._path, error.strerror
                )
            self._failed = True
        else:
            if missing:
                logger.warning("the audit log %s is written again; %d requests are missing", self._path, missing)
            self._failed = False

    def _add(self, content: bytes) -> None:
        disk = self._disk
        if (disk.size(self._path) or 0) + len(content) > FILE_BYTES:
            self._begin_again()
        self._is_named = self._is_named and disk.size(self._path) is not None
        if not self._is_named:
            make_durable_folder(disk, self._path.parent)
        descriptor = disk.open(self._path, create=True)
        try:
            size = disk.size(self._path) or 0
            if size and disk.read(descriptor, 1, size - 1) != b"\n":  # the last line has no end: a crash truncated it
                content = b"\n" + content
            try:
                write_all(disk, descriptor, content, size)
                disk.sync(descriptor)
                if not self._is_named:
                    disk.sync_folder(self._path.parent)
                    self._is_named = True
            except OSError:
                disk.resize(descriptor, size)  # leaves no incomplete line in the file
                raise
        finally:
            disk.close(descriptor)

    def _begin_again(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, OLDER_FILES + 1))]
        for newer, older in reversed(list(pairwise(names))):
            if self._disk.size(newer) is not None:
                self._disk.replace(newer, older)


def audit_log(state: SharedState) -> BrokerModule:
    if not state.config.audit_log:
        return BrokerModule()
    file = AuditFile(state.config.data / "audit" / "audit.log", state.store.disk, state.clock)
    return BrokerModule(hooks=[AuditLog(file, state.connections, state.clock)], close=file.close)


def _without_secrets(header: Header) -> dict[str, str]:
    return {
        name: "***" if any(secret in name.lower() for secret in SECRETS) else text
        for name, text in wire_fields(header).items()
    }


def _named(request: RemotingRequest) -> dict[str, str]:
    """Return the names of changed objects that only the request's body contains.

    The result is {} if the body names no objects, or is unreadable.
    """
    try:
        if request.code == headers.SaveGroup.code:
            return {"group": decode_body(GroupConfig, request.body, REQUEST).name}
        if request.code == headers.SaveBrokerSettings.code and len(request.body) <= MAX_SETTINGS_BYTES:
            return {"settings": ", ".join(parse_properties(request.body.decode()))}
    except (MQError, UnicodeDecodeError):
        pass
    return {}


def _outcome(code: int | None) -> str:
    try:
        return ResponseCode(code or 0).name
    except ValueError:
        return str(code)


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "..."


def _time(clock: Clock) -> str:
    moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(line: dict[str, object]) -> bytes:
    """Return the line as ASCII JSON with a line end, and without other control characters."""
    return json.dumps(line).replace("\x7f", "\\u007f").encode() + b"\n"
