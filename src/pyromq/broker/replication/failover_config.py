"""Settings of a broker that is a replica of a set."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pyromq.broker.replication.set_record import MAX_REPLICA_NUMBER
from pyromq.errors import UsageError
from pyromq.excerpt import excerpt
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.server_settings import Change, check_ranges, parse_number, parse_path, setting, settings_of

_NEXT = Change.NEXT_START
_MAX_MS = 3_600_000


def parse_etcd(text: str) -> tuple[str, ...]:
    """Return the URLs of a list with commas. Raises `ValueError` with the allowed form."""
    urls = tuple(url.strip().rstrip("/") for url in re.split("[,;]", text) if url.strip())
    if wrong := [url for url in urls if not _is_endpoint(url)]:
        raise ValueError(
            f"'{excerpt(wrong[0])}' is not a URL of a member of etcd; write http://HOST:PORT or https://HOST:PORT"
        )
    return urls


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port is not None
    except ValueError:  # a port that is not a number, brackets that do not fit
        return False
    is_bare = not (parts.path or parts.query or parts.fragment or parts.username or parts.password)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and is_bare


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """The settings of a replica. Without `etcd` the broker is not a replica, and no setting has an effect."""

    # URL of each member of etcd. Empty: the broker is not a replica of a set. Not in RocketMQ, as the next three.
    etcd: tuple[str, ...] = setting((), "failoverEtcd", read=parse_etcd, write=",".join)
    # File of certificates (PEM) that etcd's certificate is verified with; None: the system's trusted certificates.
    etcd_authority: Path | None = setting(None, "failoverEtcdCa", read=parse_path)
    # Certificate of this broker (PEM), for an etcd that asks for one.
    etcd_certificate: Path | None = setting(None, "failoverEtcdCert", read=parse_path)
    # Key of that certificate (PEM); None: in the certificate's file.
    etcd_key: Path | None = setting(None, "failoverEtcdKey", read=parse_path)
    etcd_user: str = ""  # user of etcd; the command line takes it from PYROMQ_ETCD_USER
    # Password of the user, from PYROMQ_ETCD_PASSWORD; never shown.
    etcd_password: str = field(default="", repr=False)
    # Number of this replica, which it keeps for life; None: etcd gives one, kept in the data folder. Not in RocketMQ.
    replica_id: int | None = setting(None, "replicaId", read=parse_number)
    # Number of replicas, the master included, that must have a message before it is confirmed. RocketMQ 5's name.
    min_in_sync: int = setting(1, "minInSyncReplicas", range=(1, MAX_REPLICA_NUMBER), change=_NEXT)
    # Time after which a silent master loses its lease, and another replica may become master. etcd allows no lease
    # under 2 s.
    lease_ms: int = setting(3_000, "failoverLeaseMillis", range=(2_000, 60_000), change=_NEXT)
    # Longest lag of an in-sync replica while a send waits for it. A replica with a longer lag leaves the in-sync list.
    # Not in RocketMQ.
    lag_ms: int = setting(3_000, "replicaLagMillis", range=(100, _MAX_MS), change=_NEXT)
    # Longest lag of an in-sync replica while no send waits for it. A replica with a longer lag leaves the in-sync list.
    # RocketMQ 5's name.
    catch_up_ms: int = setting(15_000, "haMaxTimeSlaveNotCatchup", range=(100, _MAX_MS), change=_NEXT)
    # Time for which a master that is stopped in order, and has clients of other languages, passes on their requests to
    # the new master. RocketMQ's clients fetch routes every 30 s. 0: the master stops immediately. Not in RocketMQ.
    pass_on_ms: int = setting(31_000, "passOnMillis", range=(0, _MAX_MS), change=_NEXT)
    # Port at which the set's master sends its log to slaves of RocketMQ 4.9; None: it has no slaves. Replicas get this
    # port from the name servers. Not in RocketMQ.
    slave_port: int | None = setting(None, "failoverSlavePort", change=_NEXT, read=parse_number)
    # Whether a replica that was not in sync may become master if no other is left. Confirmed messages may then be lost.
    # RocketMQ 5's name.
    unclean_election: bool = setting(False, "enableElectUncleanMaster")
    # Limit of the bytes per second that a master sends to a replica that is catching up. Not in RocketMQ.
    catch_up_bytes: int = setting(200_000_000, "catchUpBytesPerSecond", range=(1 << 20, 1 << 40), change=_NEXT)

    def __post_init__(self) -> None:
        if not self.etcd:
            self._check_nothing_is_set()
            return
        try:
            object.__setattr__(self, "etcd", parse_etcd(",".join(self.etcd)))
        except ValueError as error:
            raise UsageError(f"{_called('etcd')}: {error}") from error
        if self.replica_id is not None and not 1 <= self.replica_id <= MAX_REPLICA_NUMBER:
            raise UsageError(f"{_called('replica_id')} is {self.replica_id}; it must be 1 to {MAX_REPLICA_NUMBER}")
        check_ranges(self)
        if self.slave_port is not None and not 0 <= self.slave_port <= 65535:
            raise UsageError(f"{_called('slave_port')} is {self.slave_port}; it must be 0 to 65535")
        if self.lag_ms > self.catch_up_ms:
            raise UsageError(
                f"{_called('lag_ms')} is {self.lag_ms}; it must not be above {_called('catch_up_ms')}, "
                f"which is {self.catch_up_ms}"
            )
        self._check_tls()
        if bool(self.etcd_user) != bool(self.etcd_password):
            given, missing = ("user", "password") if self.etcd_user else ("password", "user")
            raise UsageError(f"the account of etcd has a {given} and no {missing}: give both or neither")

    def _check_nothing_is_set(self) -> None:
        for each in settings_of(FailoverConfig).values():
            if (value := getattr(self, each.field)) != each.default:
                raise UsageError(f"{each.called} is {value}; it needs {_called('etcd')}, and that is not set")

    def _check_tls(self) -> None:
        files = ("etcd_authority", "etcd_certificate", "etcd_key")
        given = [name for name in files if getattr(self, name) is not None]
        if given and (plain := [url for url in self.etcd if url.startswith("http:")]):
            raise UsageError(f"{_called(given[0])} is set, and {plain[0]} is without TLS: write https://")
        if self.etcd_key is not None and self.etcd_certificate is None:
            raise UsageError(f"{_called('etcd_key')} is set without {_called('etcd_certificate')}: give both")

    @property
    def etcd_tls(self) -> TlsConfig:
        """TLS of the connections to etcd, for endpoints with https://."""
        return TlsConfig(authority=self.etcd_authority, certificate=self.etcd_certificate, key=self.etcd_key)


def _called(field: str) -> str:
    return settings_of(FailoverConfig)[field].called


NO_FAILOVER = FailoverConfig()
