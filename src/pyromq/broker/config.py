"""Settings of a broker: fields with unit, default and reason, and their names in RocketMQ's properties files.

Reads no file and no environment: whoever does gives `from_java` the name-value pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pyromq.errors import UsageError
from pyromq.names import MAX_TOPIC_LENGTH, check_topic
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.remoting.properties import parse_number
from pyromq.store.config import FlushMode, StoreConfig
from pyromq.store.queue.consume_queue import ENTRY_BYTES


@dataclass(slots=True)
class BrokerConfig:
    """Settings of one broker.

    The one configuration that changes while it is used: a broker keeps a copy of its own, and request 25 changes the
    fields named in `LIVE` there, through `change`.
    """

    data: Path  # everything the broker keeps lies below this folder
    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    broker_id: int = 0  # 0 is the master; others are its replicas
    host: str = "127.0.0.1"  # where to listen; loopback, because there is no access control by default
    advertised_host: str | None = None  # the IP address clients are told to connect to; None: `host`
    port: int = 10911  # 0: any free one
    namesrv: tuple[str, ...] = ()  # `host:port` of every name server to register at
    connections: ConnectionConfig = PLAIN  # TLS and hooks around calls, of its port and to name servers
    permission: int = 6  # 4 read, 2 write: without write the routes show no queue to send to
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8  # of the template topic: the most an automatically created topic gets
    cluster_topic: bool = True  # the topic named as the cluster may be read and written
    broker_topic: bool = True  # the topic named as the broker may be read and written
    notify_members: bool = True  # tell a group's members when one comes or goes
    refuse_different_subscriptions: bool = False  # no new member that subscribes unlike every present one; ours
    register_interval_ms: int = 30_000
    register_timeout_ms: int = 6_000
    force_register: bool = True  # False: ask name servers whether they know our topics before sending them
    compressed_register: bool = False
    offsets_interval_ms: int = 5_000  # consumer offsets a crash may lose
    max_message_bytes: int = 4 << 20
    long_polling: bool = True
    short_polling_ms: int = 1_000  # how long a pull is held when long polling is off
    region: str = "DefaultRegion"
    audit_log: bool = False  # note what administrators ask for in a file below `data`; ours
    trace_topic: bool = False  # create the topic that message traces go to
    timer_max_delay_seconds: int = 30 * 86_400  # how far away the delivery of a message may be
    recall: bool = True  # messages that wait may be cancelled; upstream's default is false
    store_replies: bool = True  # replies to requests are stored, too
    reject_transactions: bool = False
    transaction_timeout_ms: int = 6_000  # a half message must be undecided for longer before its producer is asked
    transaction_check_interval_ms: int = 60_000
    transaction_check_max: int = 15  # checks after which an undecided half message is given up
    half_run_timeout_ms: int = 6 * 3_600_000  # a batch transaction without news for so long is rolled back; ours
    ledger_ms: int = 72 * 3_600_000  # decisions on batch transactions are known for so long; the log must be, too; ours
    store: StoreConfig | None = None  # None: defaults below `data`
    config_file: Path | None = None  # where request 25 keeps its changes; None: config/broker.properties below `data`

    def __post_init__(self) -> None:
        self.data = Path(self.data)
        self.namesrv = tuple(self.namesrv)
        self._check_names()
        self._check_addresses()
        for field, (least, most) in _RANGES.items():
            value = getattr(self, field)
            if not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"broker setting {_called(field)} is {value!r}; it must be {least} to {most}")

    def _check_names(self) -> None:
        for field in ("name", "cluster"):
            value = getattr(self, field)
            try:
                check_topic(value)  # each broker serves topics of these names
            except UsageError as error:
                text = str(error).replace("topic", "name")
                raise UsageError(f"broker setting {_called(field)} is {value!r}: {text}") from error
        if len(self.cluster) > MAX_TOPIC_LENGTH - len("_REPLY_TOPIC"):
            raise UsageError(f"broker setting {_called('cluster')} is {self.cluster!r}: longer than 115 characters")

    def _check_addresses(self) -> None:
        host = self.advertised_host or self.host
        try:
            unusable = ip_address(host).is_unspecified
        except ValueError:  # records and message ids hold the address in binary form
            unusable = True
        if unusable:
            name = _called("advertised_host" if self.advertised_host else "host")
            raise UsageError(
                f"broker setting {name} is {host!r}; it must be the IP address by which clients reach this machine"
            )
        for address in self.namesrv:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise UsageError(f"broker setting {_called('namesrv')} names {address!r}; write HOST:PORT")

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
    def store_config(self) -> StoreConfig:
        return self.store or StoreConfig(self.data, max_message_bytes=self.max_message_bytes)

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
    "timer_max_delay_seconds": (1, 366 * 86_400),
    "transaction_timeout_ms": (0, 86_400_000),
    "transaction_check_interval_ms": (10, 86_400_000),
    "transaction_check_max": (1, 1 << 31),
    "half_run_timeout_ms": (1_000, 30 * 86_400_000),
    "ledger_ms": (60_000, 366 * 86_400_000),
}

# RocketMQ's property name -> our field; `store.` before those of StoreConfig. `bindAddress` is RocketMQ 5's,
# `refuseDifferentSubscriptions` and `bulkTransfer...` are ours: who finds the latter may ask for large pulls.
# `retentionBytes` is ours; the two diskSpace...Ratio are system properties upstream, as parts of 1.
JAVA_NAMES: dict[str, str] = {
    "storePathRootDir": "data",
    "brokerName": "name",
    "brokerClusterName": "cluster",
    "brokerId": "broker_id",
    "bindAddress": "host",
    "brokerIP1": "advertised_host",
    "listenPort": "port",
    "namesrvAddr": "namesrv",
    "brokerPermission": "permission",
    "autoCreateTopicEnable": "auto_create_topic",
    "autoCreateSubscriptionGroup": "auto_create_group",
    "defaultTopicQueueNums": "default_topic_queues",
    "clusterTopicEnable": "cluster_topic",
    "brokerTopicEnable": "broker_topic",
    "notifyConsumerIdsChangedEnable": "notify_members",
    "refuseDifferentSubscriptions": "refuse_different_subscriptions",
    "registerNameServerPeriod": "register_interval_ms",
    "registerBrokerTimeoutMills": "register_timeout_ms",
    "forceRegister": "force_register",
    "compressedRegister": "compressed_register",
    "flushConsumerOffsetInterval": "offsets_interval_ms",
    "maxMessageSize": "max_message_bytes",
    "longPollingEnable": "long_polling",
    "shortPollingTimeMills": "short_polling_ms",
    "regionId": "region",
    "auditLogEnable": "audit_log",
    "traceTopicEnable": "trace_topic",
    "timerMaxDelaySec": "timer_max_delay_seconds",
    "recallMessageEnable": "recall",
    "storeReplyMessageEnable": "store_replies",
    "rejectTransactionMessage": "reject_transactions",
    "transactionTimeOut": "transaction_timeout_ms",
    "transactionCheckInterval": "transaction_check_interval_ms",
    "transactionCheckMax": "transaction_check_max",
    "batchTransactionTimeOut": "half_run_timeout_ms",
    "batchTransactionLedgerTime": "ledger_ms",
    "storePathCommitLog": "store.commit_log_path",
    "mappedFileSizeCommitLog": "store.segment_bytes",
    "mappedFileSizeConsumeQueue": "store.consume_queue_entries",
    "maxHashSlotNum": "store.index_slots",
    "maxIndexNum": "store.index_entries",
    "messageIndexEnable": "store.index_enabled",
    "flushDiskType": "store.flush",
    "flushIntervalCommitLog": "store.flush_interval_ms",
    "flushCommitLogLeastPages": "store.flush_least_pages",
    "flushCommitLogThoroughInterval": "store.flush_thorough_interval_ms",
    "syncFlushTimeout": "store.sync_flush_timeout_ms",
    "checkCRCOnRecover": "store.check_crc_on_recover",
    "messageDelayLevel": "store.delay_levels_ms",
    "fileReservedTime": "store.reserved_hours",
    "deleteWhen": "store.expire_hours",
    "retentionBytes": "store.retained_bytes",
    "cleanResourceInterval": "store.expire_interval_ms",
    "diskMaxUsedSpaceRatio": "store.disk_expire_percent",
    "diskSpaceCleanForciblyRatio": "store.disk_force_percent",
    "diskSpaceWarningLevelRatio": "store.disk_refuse_percent",
    "cleanFileForciblyEnable": "store.force_expire",
    "bulkTransferBytes": "store.bulk_transfer_bytes",
    "bulkTransferCount": "store.bulk_transfer_count",
}

# Request 25 changes these at once; `FIXED` not at all; the rest from the next start on.
LIVE = frozenset(
    {
        "brokerPermission",
        "autoCreateTopicEnable",
        "autoCreateSubscriptionGroup",
        "defaultTopicQueueNums",
        "refuseDifferentSubscriptions",
        "notifyConsumerIdsChangedEnable",
        "longPollingEnable",
        "shortPollingTimeMills",
        "timerMaxDelaySec",
        "recallMessageEnable",
        "storeReplyMessageEnable",
        "rejectTransactionMessage",
        "transactionTimeOut",
        "transactionCheckInterval",
        "transactionCheckMax",
        "batchTransactionTimeOut",
        "batchTransactionLedgerTime",
    }
)
FIXED = frozenset(
    {
        "storePathRootDir",
        "storePathCommitLog",
        "brokerName",
        "brokerClusterName",
        "brokerId",
        "bindAddress",
        "brokerIP1",
        "listenPort",
        "namesrvAddr",
    }
)

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def from_java(properties: Mapping[str, str], *, data: Path) -> dict[str, Any]:
    """Return fields of `BrokerConfig` from RocketMQ properties; names not in `JAVA_NAMES` are skipped.

    `data` is where the store lies unless the properties say otherwise. Raises `UsageError` naming the property and
    the value that does not fit.
    """
    own, of_store = _fields(properties)
    if of_store:
        own["store"] = _store(partial(StoreConfig, own.get("data", data)), of_store)
    return own


def with_properties(config: BrokerConfig, properties: Mapping[str, str]) -> BrokerConfig:
    """Return a copy of `config` changed by RocketMQ properties. Raises `UsageError` as `from_java` does."""
    own, of_store = _fields(properties)
    if of_store:
        own["store"] = _store(partial(replace, config.store_config), of_store)
    return replace(config, **own)


def _store(make: Callable[..., StoreConfig], of_store: Mapping[str, Any]) -> StoreConfig:
    """Make the store's settings; what does not fit is told by RocketMQ's name, too."""
    try:
        return make(**of_store)
    except UsageError as error:
        field, _, rest = str(error).partition(" ")
        raise UsageError(f"broker setting {_called(field, 'store')} {rest}") from error


def _called(field: str, component: str = "") -> str:
    """Return a field's name as properties spell it, with ours beside it; ours alone where they have none."""
    path = f"{component}.{field}" if component else field
    name = next((name for name, each in JAVA_NAMES.items() if each == path), None)
    return field if name is None else f"{name} ({field})"


def _fields(properties: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `BrokerConfig` and those of `StoreConfig` that the properties name."""
    own: dict[str, Any] = {}
    of_store: dict[str, Any] = {}
    for name, text in properties.items():
        component, _, field = JAVA_NAMES.get(name, "").rpartition(".")
        if field:
            (of_store if component else own)[field] = _parse(name, text.strip())
    if of_store and "max_message_bytes" in own:
        of_store["max_message_bytes"] = own["max_message_bytes"]
    return own, of_store


def java_properties(config: BrokerConfig) -> dict[str, str]:
    """Return every setting under RocketMQ's name, sorted: what request 26 answers and a properties file holds."""
    store = config.store_config
    texts = {}
    for name, path in JAVA_NAMES.items():
        component, _, field = path.rpartition(".")
        value = getattr(store if component else config, field)
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
    annotation = next(str(f.type) for f in fields(StoreConfig if component else BrokerConfig) if f.name == field)
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
