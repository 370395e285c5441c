"""Settings of a broker: fields with unit, default and reason, and their names in RocketMQ's properties files.

Reads no file and no environment: whoever does gives `with_properties` the name-value pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pyromq.store.config import FlushMode, StoreConfig

from pyromq.errors import UsageError
from pyromq.names import MAX_TOPIC_LENGTH, check_topic

ENTRY_BYTES = 20  # of a consume queue; Java configures file sizes in bytes, we in entries


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
    advertised_host: str | None = None  # what clients are told to connect to; None: `host`
    port: int = 10911  # 0: any free one
    namesrv: tuple[str, ...] = ()  # `host:port` of every name server to register at
    permission: int = 6  # 4 read, 2 write: without write the routes show no queue to send to
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8  # of the template topic: the most an automatically created topic gets
    cluster_topic: bool = True  # the topic named as the cluster may be read and written
    broker_topic: bool = True  # the topic named as the broker may be read and written
    notify_members: bool = True  # tell a group's members when one comes or goes
    register_interval_ms: int = 30_000
    register_timeout_ms: int = 6_000
    force_register: bool = True  # False: ask name servers whether they know our topics before sending them
    compressed_register: bool = False
    offsets_interval_ms: int = 5_000  # consumer offsets a crash may lose
    max_message_bytes: int = 4 << 20
    long_polling: bool = True
    short_polling_ms: int = 1_000  # how long a pull is held when long polling is off
    region: str = "DefaultRegion"
    trace_topic: bool = False  # create the topic that message traces go to
    reject_transactions: bool = False
    store: StoreConfig | None = None  # None: defaults below `data`

    def __post_init__(self) -> None:
        self.data = Path(self.data)
        self.namesrv = tuple(self.namesrv)
        self._check_names()
        for field, (least, most) in _RANGES.items():
            value = getattr(self, field)
            if not isinstance(value, int) or not least <= value <= most:
                raise UsageError(f"broker setting {field} is {value!r}; it must be {least} to {most}")

    def _check_names(self) -> None:
        for field in ("name", "cluster"):
            value = getattr(self, field)
            try:
                check_topic(value)  # each broker serves topics of these names
            except UsageError as error:
                raise UsageError(f"broker setting {field} is {value!r}: {error}") from error
        if len(self.cluster) > MAX_TOPIC_LENGTH - len("_REPLY_TOPIC"):
            raise UsageError(f"broker setting cluster is {self.cluster!r}: longer than 115 characters")
        for address in self.namesrv:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise UsageError(f"broker setting namesrv names {address!r}; write HOST:PORT")

    @property
    def advertised_address(self) -> str:
        """The address clients are told: `host:port`. The port is the real one once the broker listens."""
        host = self.advertised_host or self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def store_config(self) -> StoreConfig:
        return self.store or StoreConfig(self.data, max_message_bytes=self.max_message_bytes)

    def change(self, other: BrokerConfig) -> None:
        """Take over the values of `other` for the fields that may change while the broker runs."""
        for name in LIVE:
            field = JAVA_NAMES[name]
            setattr(self, field, getattr(other, field))


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
}

# RocketMQ's property name -> field of BrokerConfig. `bindAddress` is RocketMQ 5's.
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
    "registerNameServerPeriod": "register_interval_ms",
    "registerBrokerTimeoutMills": "register_timeout_ms",
    "forceRegister": "force_register",
    "compressedRegister": "compressed_register",
    "flushConsumerOffsetInterval": "offsets_interval_ms",
    "maxMessageSize": "max_message_bytes",
    "longPollingEnable": "long_polling",
    "shortPollingTimeMills": "short_polling_ms",
    "regionId": "region",
    "traceTopicEnable": "trace_topic",
    "rejectTransactionMessage": "reject_transactions",
}

# RocketMQ's property name -> field of StoreConfig.
STORE_JAVA_NAMES: dict[str, str] = {
    "storePathCommitLog": "commit_log_path",
    "mappedFileSizeCommitLog": "segment_bytes",
    "mappedFileSizeConsumeQueue": "consume_queue_entries",
    "maxHashSlotNum": "index_slots",
    "maxIndexNum": "index_entries",
    "messageIndexEnable": "index_enabled",
    "flushDiskType": "flush",
    "flushIntervalCommitLog": "flush_interval_ms",
    "flushCommitLogLeastPages": "flush_least_pages",
    "flushCommitLogThoroughInterval": "flush_thorough_interval_ms",
    "syncFlushTimeout": "sync_flush_timeout_ms",
    "checkCRCOnRecover": "check_crc_on_recover",
    "messageDelayLevel": "delay_levels_ms",
}

# These take effect at once when request 25 changes them; of the rest, those of the store at the next start.
LIVE = frozenset(
    {
        "brokerPermission",
        "autoCreateTopicEnable",
        "autoCreateSubscriptionGroup",
        "defaultTopicQueueNums",
        "notifyConsumerIdsChangedEnable",
        "longPollingEnable",
        "shortPollingTimeMills",
        "rejectTransactionMessage",
    }
)
NEXT_START = frozenset(STORE_JAVA_NAMES) - {"storePathCommitLog"} | {
    "registerNameServerPeriod",
    "registerBrokerTimeoutMills",
    "forceRegister",
    "compressedRegister",
    "flushConsumerOffsetInterval",
    "clusterTopicEnable",
    "brokerTopicEnable",
    "traceTopicEnable",
    "regionId",
}

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def with_properties(config: BrokerConfig, properties: Mapping[str, str]) -> BrokerConfig:
    """Return a copy of `config` changed by RocketMQ properties; names that are no setting of ours are skipped.

    Raises `UsageError` naming the property and the value that does not fit.
    """
    own = {JAVA_NAMES[name]: _parse(BrokerConfig, name, text) for name, text in _known(properties, JAVA_NAMES)}
    changed = replace(config, **own)
    of_store = {
        STORE_JAVA_NAMES[name]: _parse(StoreConfig, name, text) for name, text in _known(properties, STORE_JAVA_NAMES)
    }
    base = changed.store_config
    if "data" in own:
        of_store["root"] = changed.data
    if "max_message_bytes" in own:
        of_store["max_message_bytes"] = changed.max_message_bytes
    return replace(changed, store=replace(base, **of_store)) if of_store else changed


def _known(properties: Mapping[str, str], names: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, text.strip()) for name, text in properties.items() if name in names]


def java_properties(config: BrokerConfig) -> dict[str, str]:
    """Return every setting under RocketMQ's name, sorted: what request 26 answers and a properties file holds."""
    texts = {name: _text(getattr(config, field)) for name, field in JAVA_NAMES.items()}
    store = config.store_config
    texts |= {name: _text(getattr(store, field)) for name, field in STORE_JAVA_NAMES.items()}
    texts["mappedFileSizeConsumeQueue"] = str(store.consume_queue_entries * ENTRY_BYTES)
    texts["messageDelayLevel"] = " ".join(map(_delay_text, store.delay_levels_ms))
    texts["flushDiskType"] = f"{store.flush.name}_FLUSH"
    texts["storePathCommitLog"] = str(store.commit_log_path or store.root / "commitlog")
    texts["brokerIP1"] = config.advertised_host or config.host
    texts["brokerRole"] = "ASYNC_MASTER"  # not a choice yet, but tools ask
    return dict(sorted(texts.items()))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ";".join(value) if isinstance(value, tuple) and all(isinstance(v, str) for v in value) else str(value)


def _delay_text(milliseconds: int) -> str:
    unit = next((u for u in "dhm" if milliseconds % _UNIT_MS[u] == 0), "s")
    return f"{milliseconds // _UNIT_MS[unit]}{unit}"


def _parse(component: type[BrokerConfig] | type[StoreConfig], name: str, text: str) -> object:
    """Read the text of one property as the type of its field."""
    special = _SPECIAL.get(name)
    field = (JAVA_NAMES if component is BrokerConfig else STORE_JAVA_NAMES)[name]
    annotation = next(str(f.type) for f in fields(component) if f.name == field)
    try:
        if special is not None:
            return special(text)
        if annotation == "bool":
            return _parse_bool(text)
        if annotation == "int":
            return int(text)
        return Path(text) if "Path" in annotation else text
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
    return -(-int(text) // ENTRY_BYTES)


def _parse_delays(text: str) -> tuple[int, ...]:
    delays = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not word[:-1].isdigit():
            raise ValueError(f"{word!r} is no delay; write a number and s, m, h or d")
        delays.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(delays)


_SPECIAL: dict[str, Callable[[str], object]] = {
    "namesrvAddr": _parse_addresses,
    "flushDiskType": _parse_flush,
    "mappedFileSizeConsumeQueue": _parse_entries,
    "messageDelayLevel": _parse_delays,
}
