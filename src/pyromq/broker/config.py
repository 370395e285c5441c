"""Settings of a broker: fields with unit, default and reason, and their names in RocketMQ's properties files.

Reads no file and no environment: whoever does gives `from_java` the name-value pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from pyromq.broker.limits import DEFAULT_LIMITS, BrokerLimits
from pyromq.broker.setting_names import JAVA_NAMES, LIVE, called
from pyromq.errors import UsageError
from pyromq.excerpt import excerpt
from pyromq.names import MAX_TOPIC_LENGTH, REPLY_SUFFIX, check_topic
from pyromq.net.address_server import is_url, parse_addresses
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.server import ServerTlsConfig
from pyromq.remoting.connection_limits import DEFAULT_CONNECTION_LIMITS, ConnectionLimits
from pyromq.remoting.frame import MAX_FRAME_BYTES
from pyromq.remoting.properties import parse_number
from pyromq.store.config import FlushMode, StoreConfig
from pyromq.store.queue.consume_queue import ENTRY_BYTES

C = TypeVar("C")


@dataclass(slots=True)
class BrokerConfig:
    """Settings of one broker.

    The one configuration that changes while it is used: a broker keeps a copy of its own, and request 25 changes the
    fields named in `LIVE` there, through `change`.
    """

    data: Path  # everything the broker keeps lies below this folder
    name: str = "broker-a"  # by which routes and clients know it: its own in the cluster, for good
    cluster: str = "DefaultCluster"  # brokers of one are listed together
    broker_id: int = 0  # 0 is the master; others are its replicas
    host: str = "127.0.0.1"  # where to listen; loopback, because there is no access control by default
    advertised_host: str | None = None  # the IP address clients are told to connect to; None: `host`
    port: int = 10911  # 0: any free one
    # Listen on `port` - 2 as well, for clients that send there. Off, unlike upstream, which always listens there: no
    # client does so by itself, and a port that nobody uses is one more to guard, and in the way of the next broker.
    vip_channel: bool = False
    # `host:port` of every name server to register at; one may be a URL instead, where others are looked up.
    namesrv: tuple[str, ...] = ()
    tls: ServerTlsConfig | None = None  # of its port; None: plain
    connections: ConnectionConfig = PLAIN  # hooks around calls of its port; TLS and signatures towards name servers
    permission: int = 6  # 4 read, 2 write: without write the routes show no queue to send to
    auto_create_topic: bool = True  # the first message to an unknown topic makes it; off, a misspelled name is an error
    auto_create_group: bool = True  # the same for groups of consumers
    default_topic_queues: int = 8  # of the template topic: the most an automatically created topic gets
    cluster_topic: bool = True  # the topic named as the cluster may be read and written
    broker_topic: bool = True  # the topic named as the broker may be read and written
    notify_members: bool = True  # tell a group's members when one comes or goes
    refuse_different_subscriptions: bool = False  # no new member that subscribes unlike every present one; ours
    register_interval_ms: int = 30_000  # how often name servers hear that it is there
    register_timeout_ms: int = 6_000  # how long a name server may take to answer that
    force_register: bool = True  # False: ask name servers whether they know our topics before sending them
    compressed_register: bool = False  # for very many topics: saves network, takes processor
    offsets_interval_ms: int = 5_000  # consumer offsets a crash may lose
    max_message_bytes: int = 4 << 20  # of a body; producers have a limit of their own
    long_polling: bool = True  # a pull that finds nothing waits for a message
    short_polling_ms: int = 1_000  # how long a pull is held when long polling is off
    busy_poll_us: int = 0  # how long to ask for more requests before sleeping; takes more of a core; ours
    region: str = "DefaultRegion"  # a property of each message, for traces
    permissions: bool = False  # ask accounts for signatures and rights
    permissions_path: Path | None = None  # folder of plain_acl.yml and acl/; None: config below `data`; ours
    audit_log: bool = False  # note what administrators ask for in a file below `data`; ours
    trace_topic: bool = False  # create the topic that message traces go to
    timer_max_delay_seconds: int = 30 * 86_400  # how far away the delivery of a message may be
    recall: bool = True  # messages that wait may be cancelled; upstream's default is false
    property_filter: bool = True  # SQL92 expressions are served; upstream's default is false
    store_replies: bool = True  # replies to requests are stored, too
    reject_transactions: bool = False  # refuse half messages and batch transactions
    transaction_timeout_ms: int = 6_000  # a half message must be undecided for longer before its producer is asked
    transaction_check_interval_ms: int = 60_000  # how often undecided half messages are looked at
    transaction_check_max: int = 15  # checks after which an undecided half message is given up
    half_run_timeout_ms: int = 6 * 3_600_000  # a batch transaction without news for so long is rolled back; ours
    ledger_ms: int = 72 * 3_600_000  # decisions on batch transactions are known for so long; the log must be, too; ours
    store: StoreConfig | None = None  # None: defaults below `data`
    limits: BrokerLimits = DEFAULT_LIMITS  # of what may wait, be kept and be told at once
    connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS  # of what connections may make it keep and do

    def __post_init__(self) -> None:
        self.data = Path(self.data)
        self.namesrv = tuple(self.namesrv)
        self._check_names()
        if len(self.region) > 255 or not self.region.isprintable():  # a property of each message
            where = f"broker setting {called('region')} is '{excerpt(self.region)}'"
            raise UsageError(f"{where}; write up to 255 printable characters")
        self._check_addresses()
        for field, (least, most) in _RANGES.items():
            value = getattr(self, field)
            if not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"broker setting {called(field)} is {value!r}; it must be {least} to {most}")

        if self.vip_channel and 0 < self.port <= 2:
            where = f"broker setting {called('port')} is {self.port}"
            raise UsageError(f"{where}; with {called('vip_channel')} it must be 3 to 65535: that is two ports below")

    def _check_names(self) -> None:
        for field in ("name", "cluster"):
            value = getattr(self, field)
            try:
                check_topic(value)  # each broker serves topics of these names
            except UsageError as error:
                text = str(error).replace("topic", "name")
                raise UsageError(f"broker setting {called(field)} is {value!r}: {text}") from error
        if len(self.cluster) > MAX_TOPIC_LENGTH - len(REPLY_SUFFIX):
            raise UsageError(f"broker setting {called('cluster')} is {self.cluster!r}: longer than 115 characters")

    def _check_addresses(self) -> None:
        host = self.advertised_host or self.host
        try:
            unusable = ip_address(host).is_unspecified
        except ValueError:  # records and message ids hold the address in binary form
            unusable = True
        if unusable:
            name = called("advertised_host" if self.advertised_host else "host")
            raise UsageError(
                f"broker setting {name} is {host!r}; it must be the IP address by which clients reach this machine"
            )
        for address in self.namesrv:
            try:
                fits = parse_addresses(address) == [address]
            except UsageError:
                fits = False
            if not fits:
                raise UsageError(f"broker setting {called('namesrv')} names {address!r}; write HOST:PORT, or a URL")
        if len(urls := [address for address in self.namesrv if is_url(address)]) > 1:
            raise UsageError(f"broker setting {called('namesrv')} names {' and '.join(urls)}; give one URL at most")

    @property
    def advertised_ip(self) -> str:
        """The IP address clients are told, as refusals name the broker."""
        return self.advertised_host or self.host

    @property
    def advertised_address(self) -> str:
        """The address clients are told: `host:port`. The port is the real one once the broker listens."""
        host = self.advertised_ip
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def permissions_folder(self) -> Path:
        """Where the files of accounts lie."""
        return self.permissions_path or self.data / "config"

    @property
    def store_config(self) -> StoreConfig:
        return self.store or StoreConfig(self.data, max_message_bytes=self.max_message_bytes)

    @property
    def limits_of_connections(self) -> ConnectionLimits:
        """The limits, with that of requests with messages: a message, and a header of the most it may have."""
        limits = self.connection_limits
        return replace(limits, message_request_bytes=min(MAX_FRAME_BYTES, self.max_message_bytes + limits.header_bytes))

    def component(self, name: str) -> Any:
        """Return the settings that the names of properties call so; ours for an empty name."""
        return self.store_config if name == "store" else getattr(self, name) if name else self

    def change(self, other: BrokerConfig) -> None:
        """Take over the values of `other` for the fields that may change while the broker runs."""
        for name in LIVE:
            setattr(self, JAVA_NAMES[name], getattr(other, JAVA_NAMES[name]))


_RANGES = {
    "broker_id": (0, 1 << 31),
    "port": (0, 65535),
    "permission": (0, 7),
    "default_topic_queues": (1, 65536),
    "register_interval_ms": (1_000, 60_000),  # name servers drop a broker that is silent for 120 s
    "register_timeout_ms": (100, 60_000),
    "offsets_interval_ms": (100, 3_600_000),
    "max_message_bytes": (1 << 10, 15 << 20),  # a frame has at most 16 MiB
    "short_polling_ms": (1, 60_000),
    "busy_poll_us": (0, 500),  # longer would keep timers waiting
    "timer_max_delay_seconds": (1, 366 * 86_400),
    "transaction_timeout_ms": (0, 86_400_000),
    "transaction_check_interval_ms": (10, 86_400_000),
    "transaction_check_max": (1, 1 << 31),
    "half_run_timeout_ms": (1_000, 30 * 86_400_000),
    "ledger_ms": (60_000, 366 * 86_400_000),
}

_COMPONENTS: dict[str, type] = {
    "": BrokerConfig,
    "store": StoreConfig,
    "limits": BrokerLimits,
    "connection_limits": ConnectionLimits,
}
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def from_java(properties: Mapping[str, str], *, data: Path) -> dict[str, Any]:
    """Return fields of `BrokerConfig` from RocketMQ properties; names not in `JAVA_NAMES` are skipped.

    `data` is where the store lies unless the properties say otherwise. Raises `UsageError` naming the property and
    the value that does not fit.
    """
    own, parts = _fields(properties)
    for name, values in parts.items():
        make = partial(StoreConfig, own.get("data", data)) if name == "store" else _COMPONENTS[name]
        own[name] = _made(make, values, name)
    return own


def with_properties(config: BrokerConfig, properties: Mapping[str, str]) -> BrokerConfig:
    """Return a copy of `config` changed by RocketMQ properties. Raises `UsageError` as `from_java` does."""
    own, parts = _fields(properties)
    for name, values in parts.items():
        own[name] = _made(partial(replace, config.component(name)), values, name)
    return replace(config, **own)


def _made(make: Callable[..., C], values: Mapping[str, Any], component: str) -> C:
    """Make a component's settings; what does not fit is told by RocketMQ's name, too."""
    try:
        return make(**values)
    except UsageError as error:
        field, _, rest = str(error).partition(" ")
        raise UsageError(f"broker setting {called(field, component)} {rest}") from error


def _fields(properties: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the fields of `BrokerConfig` that the properties name, and by component those of its components."""
    named: dict[str, dict[str, Any]] = {}
    for name, text in properties.items():
        component, _, field = JAVA_NAMES.get(name, "").rpartition(".")
        if field:
            named.setdefault(component, {})[field] = _parse(name, text.strip())
    own = named.pop("", {})
    if "store" in named and "max_message_bytes" in own:
        named["store"]["max_message_bytes"] = own["max_message_bytes"]
    return own, named


def java_properties(config: BrokerConfig) -> dict[str, str]:
    """Return every setting under RocketMQ's name, sorted: what request 26 answers and a properties file holds."""
    texts = {}
    for name, path in JAVA_NAMES.items():
        component, _, field = path.rpartition(".")
        value = getattr(config.component(component), field)
        if value is not None:
            texts[name] = _WRITERS.get(name, _text)(value)
    texts["brokerIP1"] = config.advertised_host or config.host
    return dict(sorted(texts.items()))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _write_delays(levels: tuple[int, ...]) -> str:
    words = []
    for milliseconds in levels:
        unit = next((u for u in "dhm" if milliseconds % _UNIT_MS[u] == 0), "s")
        words.append(f"{milliseconds // _UNIT_MS[unit]}{unit}")
    return " ".join(words)


_WRITERS: dict[str, Callable[[Any], str]] = {
    "namesrvAddr": ";".join,
    "flushDiskType": lambda flush: f"{flush.name}_FLUSH",
    "mappedFileSizeConsumeQueue": lambda entries: str(entries * ENTRY_BYTES),
    "messageDelayLevel": _write_delays,
    "deleteWhen": lambda hours: ";".join(f"{hour:02}" for hour in hours),
}


def _parse(name: str, text: str) -> object:
    """Read the text of one property as the type of its field."""
    component, _, field = JAVA_NAMES[name].rpartition(".")
    annotation = next(str(f.type) for f in fields(_COMPONENTS[component]) if f.name == field)
    try:
        if name in _PARSERS:
            return _PARSERS[name](text)
        if annotation == "bool":
            return _parse_bool(text)
        if annotation == "int":
            return parse_number(text)
        if "Path" not in annotation:
            return text
        if not text:  # would be the current folder
            raise ValueError("write a path")
        return Path(text)
    except ValueError as error:
        raise UsageError(f"property {name} is {text!r}: {error}") from error


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _parse_addresses(text: str) -> tuple[str, ...]:
    return tuple(address.strip() for address in text.split(";") if address.strip())


def _parse_flush(text: str) -> FlushMode:
    if text not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        raise ValueError("write ASYNC_FLUSH or SYNC_FLUSH")
    return FlushMode[text.removesuffix("_FLUSH")]


def _parse_entries(text: str) -> int:
    """Java rounds the file size up to whole entries."""
    return -(-parse_number(text) // ENTRY_BYTES)


def _parse_delays(text: str) -> tuple[int, ...]:
    delays = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not word[:-1].isdigit():
            raise ValueError(f"{word!r} is no delay; write a number and s, m, h or d")
        delays.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(delays)


def _parse_hours(text: str) -> tuple[int, ...]:
    return tuple(parse_number(word.strip()) for word in text.split(";") if word.strip())


_PARSERS: dict[str, Callable[[str], object]] = {
    "namesrvAddr": _parse_addresses,
    "flushDiskType": _parse_flush,
    "mappedFileSizeConsumeQueue": _parse_entries,
    "messageDelayLevel": _parse_delays,
    "deleteWhen": _parse_hours,
    "retentionBytes": parse_number,
}
