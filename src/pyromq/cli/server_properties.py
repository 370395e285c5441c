"""Reads RocketMQ's properties files into the settings of our servers.

Settings of RocketMQ 4.9 without effect here (threads, buffers, replication) are listed in one warning, so that existing
files work. Unknown settings are an error: a typo must not be ignored silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyromq.broker.config import from_java
from pyromq.broker.setting_names import JAVA_NAMES as BROKER_NAMES
from pyromq.cli.tls_settings import CLIENT_NAMES, SERVER_NAMES
from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.nameserver.config import JAVA_NAMES as NAME_SERVER_NAMES
from pyromq.remoting.connection_limits import CONNECTION_LIMIT_NAMES, ConnectionLimits
from pyromq.remoting.properties import parse_number, parse_properties

if TYPE_CHECKING:
    from pyromq.metrics.config import MetricsConfig

logger = logger_of(__name__)

# Settings of the metrics port. They belong to the process, so both brokers and name servers accept them.
METRICS_NAMES = frozenset({"metricsPort", "metricsHost", "metricsSeriesLimit"})

# Values that promise a feature we lack. Ignoring them would break that promise silently.
_REFUSED = {
    ("brokerRole", "slave"): "this broker cannot be a replica",
    ("brokerRole", "sync_master"): "this broker does not replicate; write ASYNC_MASTER",
    ("enableDLegerCommitLog", "true"): "this broker does not replicate its log",
    ("slaveReadEnable", "true"): "there are no replicas to read from",
    ("useTLS", "true"): "a name server opens no connections; set tls.server.mode for its port",
    ("enableLmq", "true"): "this broker has no light message queues",
    ("enableMultiDispatch", "true"): "this broker stores a message in one queue only",
    ("enableConsumeQueueExt", "true"): "this broker does not read extended consume queues",
}
_REFUSED_NAMES = {"readOnlyCommitLogStorePaths": "this broker has one folder for its log"}  # empty values are accepted

# Settings without effect here. Source: the setters of RocketMQ 4.9.8's BrokerConfig, MessageStoreConfig,
# NettyServerConfig, NettyClientConfig and NamesrvConfig.
_WITHOUT_EFFECT = frozenset(
    """
    accessMessageInMemoryMaxRatio adminBrokerThreadPoolNums autoDeleteUnusedStats
    bitMapLengthConsumeQueueExt brokerFastFailureEnable brokerIP2 brokerRole channelNotActiveInterval
    clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterTest commercialBaseCount
    commercialBigCount commercialEnable commercialTimerCount commercialTransCount commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog configBlackList configStorePath connectTimeoutMillis
    consumerFallbehindThreshold consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity debugLockEnable
    defaultQueryMaxNum deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteWhen
    destroyMapedFileIntervalForcibly disableConsumeIfConsumerReadSlowly diskFallRecorded diskMaxUsedSpaceRatio
    duplicationEnable enableBatchPush enableCalcFilterBitMap enableConsumeQueueExt enableDLegerCommitLog
    enableDetailStat enableLmq enableMultiDispatch enablePropertyFilter enableScheduleAsyncDeliver
    enableScheduleMessageStats endTransactionPoolQueueCapacity endTransactionThreadPoolNums
    expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchNamesrvAddrByAddressServer fileReservedTime
    filterDataCleanTimeSpan filterServerNums filterSupportRetry flushCommitLogTimed flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval flushDelayOffsetInterval
    flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile haHousekeepingInterval haListenPort haMasterAddress
    haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode isolateLogEnable mappedFileSizeConsumeQueueExt maxDelayTime
    maxErrorRateOfBloomFilter maxLmqConsumeQueueNum maxMsgsNumBatch maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory
    messageIndexSafe messageStorePlugIn msgTraceTopicName offsetCheckInSlave osPageCacheBusyTimeOutMills
    preferredLeaderId processReplyMessageThreadPoolNums productEnvName pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putMsgIndexHightWater putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths redeleteHangedFileInterval
    replyThreadPoolQueueCapacity rocketmqHome scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads slaveReadEnable slaveTimeout
    startAcceptSendRequestTimeStamp storePathDLedgerCommitLog storeReplyMessageEnable traceOn
    transactionCheckInterval transactionCheckMax transactionTimeOut transferMsgByHeap transientStorePoolEnable
    transientStorePoolSize useEpollNativeSelector useReentrantLockWhenPutMessage
    waitTimeMillsInHeartbeatQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    warmMapedFileEnable writeBufferHighWaterMark writeBufferLowWaterMark
    """.split()  # noqa: SIM905 - one name per line would fill 120 lines
)


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a properties file. Raises `UsageError` naming the file."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"settings file {path} cannot be read: {error}") from error


def broker_settings(properties: Mapping[str, str], *, data: Path, source: Path) -> dict[str, Any]:
    """Return the fields of `BrokerConfig` that a broker's file sets. `data` is the folder if the file names none.

    Raises `UsageError` with file and setting if the setting is unknown, refused or has an invalid value.
    """
    _check(properties, {*BROKER_NAMES, *NAME_SERVER_NAMES, *SERVER_NAMES, *CLIENT_NAMES, *METRICS_NAMES}, source)
    try:
        return from_java(properties, data=data)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def name_server_settings(properties: Mapping[str, str], *, source: Path) -> dict[str, Any]:
    """Return the fields of `NameServerConfig` that a name server's file sets. Raises as `broker_settings` does."""
    _check(properties, NAME_SERVER_NAMES.keys() | SERVER_NAMES | METRICS_NAMES, source)
    settings: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for name in NAME_SERVER_NAMES & properties.keys():
        component, _, field = NAME_SERVER_NAMES[name].rpartition(".")
        (limits if component else settings)[field] = _value(name, properties[name], source)
    if limits:
        try:
            settings["connection_limits"] = ConnectionLimits(**limits)
        except UsageError as error:
            raise UsageError(f"{source}: name server setting {error}") from error
    return settings


def shared_name_server_settings(properties: Mapping[str, str], *, source: Path) -> dict[str, Any]:
    """Return the name server's settings from a broker's file, for both in one process: all but the listen address."""
    own = (NAME_SERVER_NAMES.keys() - BROKER_NAMES.keys()) | CONNECTION_LIMIT_NAMES.keys()
    return name_server_settings({name: properties[name] for name in own & properties.keys()}, source=source)


def metrics_config(properties: Mapping[str, str], *, port: int | None, host: str | None) -> MetricsConfig | None:
    """Return the settings of the metrics port, None without one. The options `port` and `host` override the file.

    Raises `UsageError` with the property and its value for an invalid number, `click.UsageError` for a host without
    port.
    """
    if port is None and "metricsPort" not in properties:
        if host is not None:
            raise click.UsageError("--metrics-host is the address of the metrics port: give --metrics-port too")
        return None
    from pyromq.metrics.config import MetricsConfig  # imported late: servers without metrics do not load it

    settings = {
        "port": _metrics_number(properties, "metricsPort") if port is None else port,
        "host": properties.get("metricsHost", "").strip() if host is None else host,
        "series_limit": _metrics_number(properties, "metricsSeriesLimit"),
    }
    return MetricsConfig(**{name: value for name, value in settings.items() if value not in (None, "")})  # type: ignore[arg-type]


def _metrics_number(properties: Mapping[str, str], name: str) -> int | None:
    if name not in properties:
        return None
    try:
        return parse_number(properties[name].strip())
    except ValueError as error:
        raise UsageError(f"property {name} is {properties[name]!r}: {error}") from error


def _check(properties: Mapping[str, str], known: Collection[str], source: Path) -> None:
    for name, value in properties.items():
        reason = _REFUSED.get((name, value.strip().lower())) or (value.strip() and _REFUSED_NAMES.get(name))
        if reason and name not in known:
            raise UsageError(f"{source}: {name}={value} is not possible: {reason}")
        if name not in known and name not in _WITHOUT_EFFECT:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"{source}: setting {name!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else "")
            )
    ignored = sorted((properties.keys() & _WITHOUT_EFFECT) - set(known))
    if ignored:
        logger.warning("%s: settings without effect here: %s", source, ", ".join(ignored))


def _value(name: str, text: str, source: Path) -> int | bool | str | Path:
    text = text.strip()
    if name in ("kvConfigPath", "namesrvAclPath"):
        if not text:
            raise UsageError(f"{source}: {name} is {text!r}: write a path")
        return Path(text)
    if name == "bindAddress":
        return text
    if name == "orderMessageEnable":
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{source}: {name} is {text!r}; write true or false")
        return text.lower() == "true"
    try:
        return parse_number(text)
    except ValueError as error:
        raise UsageError(f"{source}: {name} is {text!r}: {error}") from error
