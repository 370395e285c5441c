"""Settings of a broker: fields with unit, default and reason, and their names in RocketMQ's properties files.

This module reads no file and no environment; the caller passes properties to `from_java`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pyromq.broker.limits import DEFAULT_LIMITS, BrokerLimits
from pyromq.broker.replication.failover_config import NO_FAILOVER, FailoverConfig
from pyromq.broker.replication.ha.ha_config import DEFAULT_HA_CONFIG, HaConfig
from pyromq.errors import UsageError
from pyromq.excerpt import excerpt
from pyromq.message import join_address
from pyromq.names import MAX_TOPIC_LENGTH, REPLY_SUFFIX, check_topic
from pyromq.net.address_server import is_url, parse_addresses
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.remoting.command import MAX_FRAME_BYTES
from pyromq.remoting.connection_limits import DEFAULT_CONNECTION_LIMITS, ConnectionLimits
from pyromq.server_settings import (
    Change,
    Setting,
    check_ranges,
    parse_path,
    read_settings,
    setting,
    settings_by_name,
    settings_of,
    write_settings,
)
from pyromq.store.store_config import StoreConfig

_LIVE, _NEXT = Change.AT_ONCE, Change.NEXT_START
_DAY_MS = 86_400_000


def _parse_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses in the forms that clients accept, too. One of them may be a URL."""
    parts = (part for part in text.replace(",", ";").split(";") if part.strip())
    try:
        return tuple(address for part in parts for address in parse_addresses(part))
    except UsageError as error:
        raise ValueError(f"{error}; write HOST:PORT;HOST:PORT, or the URL of an address server") from error


class ConfiguredRole(Enum):
    """The role with which a broker starts, as RocketMQ's masters and slaves.

    ASYNC_MASTER: replies to sends do not wait for slaves. SYNC_MASTER: they wait until one slave has the message.
    """

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _parse_role(text: str) -> ConfiguredRole:
    if text not in ConfiguredRole.__members__:
        raise ValueError(f"write {', '.join(ConfiguredRole.__members__)}")
    return ConfiguredRole[text]


@dataclass(slots=True)
class BrokerConfig:
    """Settings of one broker.

    Unlike other configurations, they change while the broker runs, so each broker keeps a copy. Request 25 changes the
    fields declared `Change.AT_ONCE` in that copy, through `change`.
    """

    # Folder below which the broker keeps its files.
    data: Path = field(metadata={"setting": Setting(name="storePathRootDir", read=parse_path)})
    # The name by which routes and clients know the broker: unique in the cluster, and must never change.
    name: str = setting("broker-a", "brokerName")
    # Name of the cluster, whose brokers are listed together.
    cluster: str = setting("DefaultCluster", "brokerClusterName")
    # Id among brokers of the same name: 0 is the master, others are its slaves.
    broker_id: int = setting(0, "brokerId", range=(0, 1 << 31))
    # ASYNC_MASTER and SYNC_MASTER send their log to slaves, and listen on `port` + 1 and `port` - 2 for that. A SLAVE
    # copies the log of its master. None: a master without slaves, which needs no second port.
    role: ConfiguredRole | None = setting(None, "brokerRole", read=_parse_role, write=lambda role: role.name)
    # `host:port` at which a slave gets the master's log; None: the address that name servers give.
    ha_master: str | None = setting(None, "haMasterAddress")
    # Whether pulls of messages that are probably not in memory are referred to a slave.
    slave_read: bool = setting(False, "slaveReadEnable", change=_LIVE)
    # Whether a slave corrects a pull's offset outside of the queue. Off: the slave may only be behind its master.
    check_offsets_on_slave: bool = setting(False, "offsetCheckInSlave", change=_LIVE)
    # Address on which the broker listens: loopback, since there is no access control by default. RocketMQ 5's name.
    host: str = setting("127.0.0.1", "bindAddress")
    advertised_host: str | None = setting(None, "brokerIP1")  # IP address to which clients connect; None: `host`
    port: int = setting(10911, "listenPort", range=(0, 65535))  # port on which the broker listens; 0: any free port
    # Listen on `port` - 2 too, for clients that send to that port. Off, unlike upstream: no client uses that port by
    # default, and the next broker on the machine may need the port. Not in RocketMQ.
    vip_channel: bool = setting(False, "vipChannelEnable")
    # `host:port` of each name server at which to register. One entry may be a URL that returns more name servers.
    namesrv: tuple[str, ...] = setting((), "namesrvAddr", read=_parse_addresses, write=";".join)
    tls: ServerTlsConfig | None = None  # TLS of the broker's port; None: plain TCP
    connections: ConnectionConfig = PLAIN  # hooks around all requests; TLS and account for name servers
    # Permission: the sum of 4 (read) and 2 (write). Without write, routes show no queue for sends.
    permission: int = setting(6, "brokerPermission", range=(0, 7), change=_LIVE)
    # Whether the first message to an unknown topic creates the topic. If off, a misspelled name is an error.
    auto_create_topic: bool = setting(True, "autoCreateTopicEnable", change=_LIVE)
    # Whether a request for an unknown consumer group creates the group.
    auto_create_group: bool = setting(True, "autoCreateSubscriptionGroup", change=_LIVE)
    # Number of queues of the template topic: limit of the queues of an auto-created topic.
    default_topic_queues: int = setting(8, "defaultTopicQueueNums", range=(1, 65536), change=_LIVE)
    # Whether the topic named as the cluster may be read and written.
    cluster_topic: bool = setting(True, "clusterTopicEnable", change=_NEXT)
    # Whether the topic named as the broker may be read and written.
    broker_topic: bool = setting(True, "brokerTopicEnable", change=_NEXT)
    # Whether a group's members are notified when a member joins or leaves.
    notify_members: bool = setting(True, "notifyConsumerIdsChangedEnable", change=_LIVE)
    # Whether a new member is refused if its subscription differs from those of all present members. Not in RocketMQ.
    refuse_different_subscriptions: bool = setting(False, "refuseDifferentSubscriptions", change=_LIVE)
    # Time between two registrations at a name server, which drops a broker that is silent for 120 s.
    register_interval_ms: int = setting(30_000, "registerNameServerPeriod", range=(1_000, 60_000), change=_NEXT)
    # Longest wait for a name server's reply to a registration.
    register_timeout_ms: int = setting(6_000, "registerBrokerTimeoutMills", range=(100, 60_000), change=_NEXT)
    # False: ask a name server whether it already knows the topics, before sending all of them.
    force_register: bool = setting(True, "forceRegister", change=_NEXT)
    # Whether registrations are compressed: saves network with very many topics, costs processor time.
    compressed_register: bool = setting(False, "compressedRegister", change=_NEXT)
    # Time between two saves of consumer offsets: a crash loses at most the offsets of this time.
    offsets_interval_ms: int = setting(5_000, "flushConsumerOffsetInterval", range=(100, 3_600_000), change=_NEXT)
    # Limit of a message's body (bytes): frames have 16 MiB at most. Producers have another limit.
    max_message_bytes: int = setting(4 << 20, "maxMessageSize", range=(1 << 10, 15 << 20), change=_NEXT)
    # Whether a pull that finds no message waits for a message, for the time in the request.
    long_polling: bool = setting(True, "longPollingEnable", change=_LIVE)
    # How long a pull that finds no message waits if long polling is off.
    short_polling_ms: int = setting(1_000, "shortPollingTimeMills", range=(1, 60_000), change=_LIVE)
    # Time to poll for requests before the event loop sleeps: costs processor time; over 500 delays timers.
    # Not in RocketMQ.
    busy_poll_us: int = setting(0, "busyPollMicros", range=(0, 500), change=_NEXT)
    # Region name, stored as a property of each message for traces.
    region: str = setting("DefaultRegion", "regionId", change=_NEXT)
    permissions: bool = setting(False, "aclEnable")  # whether requests need accounts, signatures and rights
    # Folder that holds plain_acl.yml and acl/; None: `config` below `data`. Not in RocketMQ.
    permissions_path: Path | None = setting(None, "aclPath", read=parse_path)
    # Whether administrators' changes are logged in a file below `data`. Not in RocketMQ.
    audit_log: bool = setting(False, "auditLogEnable")
    # Whether to create the topic of message traces.
    trace_topic: bool = setting(False, "traceTopicEnable", change=_NEXT)
    # Limit of the time from the send of a scheduled message to its delivery.
    timer_max_delay_seconds: int = setting(30 * 86_400, "timerMaxDelaySec", range=(1, 366 * 86_400), change=_LIVE)
    # Whether scheduled messages may be cancelled; upstream's default is false.
    recall: bool = setting(True, "recallMessageEnable", change=_LIVE)
    # Whether subscriptions may filter by SQL92 expressions; upstream's default is false.
    property_filter: bool = setting(True, "enablePropertyFilter", change=_LIVE)
    # Whether request-reply replies are stored too.
    store_replies: bool = setting(True, "storeReplyMessageEnable", change=_LIVE)
    # Whether half messages and batch transactions are refused.
    reject_transactions: bool = setting(False, "rejectTransactionMessage", change=_LIVE)
    # Age at which an undecided half message is first checked with its producer.
    transaction_timeout_ms: int = setting(6_000, "transactionTimeOut", range=(0, _DAY_MS), change=_LIVE)
    # Time between two rounds of checks of undecided half messages.
    transaction_check_interval_ms: int = setting(60_000, "transactionCheckInterval", range=(10, _DAY_MS), change=_LIVE)
    # Number of checks after which an undecided half message is dropped.
    transaction_check_max: int = setting(15, "transactionCheckMax", range=(1, 1 << 31), change=_LIVE)
    # Time after its last message at which an undecided batch transaction is rolled back. Not in RocketMQ.
    half_run_timeout_ms: int = setting(
        6 * 3_600_000, "batchTransactionTimeOut", range=(1_000, 30 * _DAY_MS), change=_LIVE
    )
    # How long decisions on batch transactions are kept; the commit log must be kept at least as long. Not in RocketMQ.
    ledger_ms: int = setting(72 * 3_600_000, "batchTransactionLedgerTime", range=(60_000, 366 * _DAY_MS), change=_LIVE)
    store: StoreConfig | None = None  # settings of the store; None: defaults below `data`
    limits: BrokerLimits = DEFAULT_LIMITS  # limits of memory and waiting requests that clients can cause
    # Limits of memory and work that connections can cause.
    connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS
    failover: FailoverConfig = NO_FAILOVER  # settings of a replica of a set that fails over by itself
    ha: HaConfig = DEFAULT_HA_CONFIG  # settings of the HA connection between a master and its slaves

    def __post_init__(self) -> None:
        self.data = Path(self.data)
        self.namesrv = tuple(self.namesrv)
        self._check_names()
        if len(self.region) > 255 or not self.region.isprintable():  # stored in each message
            raise _error("region", f"is '{excerpt(self.region)}'; write up to 255 printable characters")
        self._check_addresses()
        check_ranges(self, "broker setting ")
        self._check_role()
        if self.has_vip_channel and 0 < self.port <= 2:
            needs = settings_of(BrokerConfig)["vip_channel" if self.vip_channel else "role"].called
            raise _error("port", f"is {self.port}; with {needs} it must be 3 to 65535: that is two ports below")

    def _check_role(self) -> None:
        if self.failover.etcd:
            self._check_no_role()
            return
        slave = f"{settings_of(BrokerConfig)['role'].called} SLAVE"
        if self.role is not ConfiguredRole.SLAVE:
            if self.broker_id:
                raise _error(
                    "broker_id", f"is {self.broker_id}; a master has id 0: write 0, or for a slave, also {slave}"
                )
            if self.ha_master is not None:
                raise _error("ha_master", f"is {self.ha_master!r}; only a slave needs it: remove it, or write {slave}")
            return
        if not self.broker_id:
            raise _error(
                "broker_id", f"is 0, the id of masters; with {slave}, write 1 or more, a different id for each slave"
            )
        if self.ha_master is None and not self.namesrv:
            raise _error("namesrv", f"is empty; with {slave}, name servers tell where the master is: name them")

    def _check_no_role(self) -> None:
        """Raise `UsageError` for a setting that fixes the role: the replicas of a set decide on their roles."""
        for name in ("role", "broker_id", "ha_master"):
            each = settings_of(BrokerConfig)[name]
            if (value := getattr(self, name)) != each.default:
                etcd = settings_of(FailoverConfig)["etcd"].called
                raise _error(name, f"is {each.write(value)}; with {etcd} the set decides who is master: remove it")

    def _check_names(self) -> None:
        for name in ("name", "cluster"):
            value = getattr(self, name)
            try:
                check_topic(value)  # each broker has topics named as itself and its cluster
            except UsageError as error:
                raise _error(name, f"is {value!r}: {str(error).replace('topic', 'name', 1)}") from error
        if len(self.cluster) > MAX_TOPIC_LENGTH - len(REPLY_SUFFIX):
            raise _error("cluster", f"is {self.cluster!r}: longer than 115 characters")

    def _check_addresses(self) -> None:
        try:
            unusable = ip_address(self.advertised_ip).is_unspecified
        except ValueError:  # records and message ids hold the address in binary form
            unusable = True
        if unusable:
            name = "advertised_host" if self.advertised_host else "host"
            text = f"is {self.advertised_ip!r}; it must be the IP address by which clients reach this machine"
            raise _error(name, text)
        for address in self.namesrv:
            if not _is_address(address):
                raise _error("namesrv", f"names {address!r}; write HOST:PORT, or a URL")
        if self.ha_master is not None and (not _is_address(self.ha_master) or is_url(self.ha_master)):
            raise _error("ha_master", f"is {self.ha_master!r}; write HOST:PORT, the port is the master's port + 1")
        if len(urls := [address for address in self.namesrv if is_url(address)]) > 1:
            raise _error("namesrv", f"names {' and '.join(urls)}; give one URL at most")

    @property
    def advertised_ip(self) -> str:
        """The IP address to which clients connect, and by which refusals name the broker."""
        return self.advertised_host or self.host

    @property
    def advertised_address(self) -> str:
        """The address to which clients connect: `host:port`. The port is the real one once the broker listens."""
        return join_address(self.advertised_ip, self.port)

    @property
    def has_vip_channel(self) -> bool:
        """Whether the broker listens on `port` - 2 too. Java slaves ask for their master's topics there."""
        return self.vip_channel or self.serves_slaves

    @property
    def serves_slaves(self) -> bool:
        """Whether the broker sends its log to slaves when it is the master. A slave may become the master."""
        return self.role is not None or self.failover.slave_port is not None

    @property
    def permissions_folder(self) -> Path:
        """The folder with the accounts files."""
        return self.permissions_path or self.data / "config"

    @property
    def store_config(self) -> StoreConfig:
        return self.store or StoreConfig(self.data, max_message_bytes=self.max_message_bytes)

    @property
    def limits_of_connections(self) -> ConnectionLimits:
        """The limits per connection.

        The limit of a request with messages is the largest message plus the largest header.
        """
        limits = self.connection_limits
        return replace(limits, message_request_bytes=min(MAX_FRAME_BYTES, self.max_message_bytes + limits.header_bytes))

    @property
    def components(self) -> dict[str, Any]:
        """The objects that hold settings, under the names that `Setting.component` uses; "" is this configuration."""
        parts = {"store": self.store_config, "limits": self.limits, "connection_limits": self.connection_limits}
        return {"": self, **parts, "ha": self.ha, "failover": self.failover}

    def change(self, other: BrokerConfig) -> None:
        """Copy the fields that may change while the broker runs from `other`."""
        for each in settings_of(BrokerConfig).values():
            if each.change is Change.AT_ONCE:
                setattr(self, each.field, getattr(other, each.field))
        live = [each.field for each in settings_of(StoreConfig).values() if each.change is Change.AT_ONCE]
        wanted = other.store_config
        self.store = replace(self.store_config, **{field: getattr(wanted, field) for field in live})


SETTINGS = settings_by_name(
    BrokerConfig,
    store=StoreConfig,
    limits=BrokerLimits,
    connection_limits=ConnectionLimits,
    ha=HaConfig,
    failover=FailoverConfig,
)


def _is_address(text: str) -> bool:
    try:
        return parse_addresses(text) == [text]
    except UsageError:
        return False


def _error(field: str, text: str) -> UsageError:
    return UsageError(f"broker setting {settings_of(BrokerConfig)[field].called} {text}")


def from_java(properties: Mapping[str, str], *, data: Path) -> dict[str, Any]:
    """Return fields of `BrokerConfig` from RocketMQ properties; names that are not in `SETTINGS` are skipped.

    `data` is the folder of the store, unless the properties name another folder. Raises `UsageError`, naming property
    and value.
    """
    return _changed_fields(BrokerConfig(data), properties)


def with_properties(config: BrokerConfig, properties: Mapping[str, str]) -> BrokerConfig:
    """Return a copy of `config` changed by RocketMQ properties. Raises `UsageError`, naming property and value."""
    return replace(config, **_changed_fields(config, properties))


def _changed_fields(config: BrokerConfig, properties: Mapping[str, str]) -> dict[str, Any]:
    values = read_settings(SETTINGS, properties)
    own = values.pop("", {})
    if "store" in values and "max_message_bytes" in own:
        values["store"]["max_message_bytes"] = own["max_message_bytes"]
    components = replace(config, data=own.get("data", config.data)).components
    try:
        return own | {name: replace(components[name], **changed) for name, changed in values.items()}
    except UsageError as error:
        raise UsageError(f"broker setting {error}") from error


def java_properties(config: BrokerConfig) -> dict[str, str]:
    """Return every setting under RocketMQ's name, sorted by name: for request 26 and for a properties file."""
    texts = write_settings(SETTINGS, config.components) | {"brokerIP1": config.advertised_ip}
    return dict(sorted(texts.items()))
