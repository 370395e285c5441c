"""Reads the properties files of RocketMQ servers into the settings of our servers.

Settings of RocketMQ 4.9 that have no effect here (threads, buffers) are listed in one warning, so that
existing files work. Unknown settings are an error: a typo must not be ignored silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyromq.broker import config as broker
from pyromq.broker.config import SETTINGS as BROKER
from pyromq.cli.tls_settings import CLIENT_NAMES, SERVER_NAMES
from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.nameserver import name_server_config as nameserver
from pyromq.nameserver.name_server_config import SETTINGS as NAME_SERVER
from pyromq.remoting.properties import parse_properties
from pyromq.server_settings import read_settings

if TYPE_CHECKING:
    from pyromq.metrics.config import MetricsConfig

logger = logger_of(__name__)

# Values of settings that turn on a feature that pyromq lacks, each with the reason. A server with such a value does not
# start: a warning could be overlooked.
_REFUSED = {
    (
        "enableDLegerCommitLog",
        "true",
    ): "pyromq has no DLedger; for replicas that fail over, use a replica set: pyromq serve broker --etcd URL",
    ("useTLS", "true"): "a name server opens no connections; set tls.server.mode for its port",
    ("enableLmq", "true"): "this broker has no light message queues",
    ("enableMultiDispatch", "true"): "this broker stores a message in one queue only",
    ("enableConsumeQueueExt", "true"): "this broker does not read extended consume queues",
}
# Settings refused unless their value is empty.
_REFUSED_NAMES = {"readOnlyCommitLogStorePaths": "this broker has one folder for its log"}

# Settings without effect here. Source: the setters of RocketMQ 4.9.8's BrokerConfig, MessageStoreConfig,
# NettyServerConfig, NettyClientConfig and NamesrvConfig. The last two lines are names of older versions, which many
# files still have, and RocketMQ 4.9 ignores.
_WITHOUT_EFFECT = frozenset(
    """
    accessMessageInMemoryMaxRatio adminBrokerThreadPoolNums autoDeleteUnusedStats bitMapLengthConsumeQueueExt
    brokerIP2 channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterTest commercialBaseCount
    commercialBigCount commercialEnable commercialTimerCount commercialTransCount commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog configBlackList configStorePath connectTimeoutMillis
    consumerFallbehindThreshold consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
    debugLockEnable defaultQueryMaxNum deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
    destroyMapedFileIntervalForcibly disableConsumeIfConsumerReadSlowly diskFallRecorded duplicationEnable
    enableBatchPush enableCalcFilterBitMap enableConsumeQueueExt enableDLegerCommitLog enableDetailStat
    enableLmq enableMultiDispatch enableScheduleAsyncDeliver enableScheduleMessageStats
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums expectConsumerNumUseFilter
    fastFailIfNoBufferInStorePool fetchNamesrvAddrByAddressServer filterDataCleanTimeSpan filterServerNums
    filterSupportRetry flushCommitLogTimed flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
    flushConsumerOffsetHistoryInterval flushDelayOffsetInterval flushIntervalConsumeQueue
    flushLeastPagesWhenWarmMapedFile heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
    highSpeedMode isolateLogEnable mappedFileSizeConsumeQueueExt maxDelayTime maxErrorRateOfBloomFilter
    maxLmqConsumeQueueNum maxMsgsNumBatch maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory messageIndexSafe messageStorePlugIn
    msgTraceTopicName osPageCacheBusyTimeOutMills preferredLeaderId
    processReplyMessageThreadPoolNums productEnvName pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putMessageFutureThreadPoolNums putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths redeleteHangedFileInterval
    replyThreadPoolQueueCapacity rocketmqHome scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
    startAcceptSendRequestTimeStamp storePathDLedgerCommitLog traceOn transferMsgByHeap transientStorePoolEnable
    transientStorePoolSize useEpollNativeSelector useReentrantLockWhenPutMessage waitTimeMillsInHeartbeatQueue
    waitTimeMillsInPullQueue waitTimeMillsInTransactionQueue warmMapedFileEnable writeBufferHighWaterMark
    writeBufferLowWaterMark

    abortFile checkTransactionMessageEnable mapedFileSizeCommitLog mapedFileSizeConsumeQueue storeCheckpoint
    storePathConsumeQueue storePathIndex
    """.split()  # noqa: SIM905 - one name per line would fill 120 lines
)


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a properties file. Raises `UsageError` naming the file."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"settings file {path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise UsageError(
            f"settings file {path} cannot be read: {error.strerror}; give this user the right to read it"
        ) from error


def broker_settings(properties: Mapping[str, str], *, data: Path, source: Path) -> dict[str, Any]:
    """Return the fields of `BrokerConfig` that a broker's properties file sets.

    `data` is the data folder if the file names none. Raises `UsageError` with file and setting if a setting is unknown,
    refused or has an invalid value.
    """
    _check(properties, {*BROKER, *NAME_SERVER, *SERVER_NAMES, *CLIENT_NAMES}, source)
    try:
        return broker.from_java(properties, data=data)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def name_server_settings(properties: Mapping[str, str], *, source: Path) -> dict[str, Any]:
    """Return the fields of `NameServerConfig` that a name server's properties file sets.

    Raises as `broker_settings` does.
    """
    _check(properties, NAME_SERVER.keys() | SERVER_NAMES, source)
    try:
        return nameserver.from_java(properties)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def shared_name_server_settings(properties: Mapping[str, str], *, source: Path) -> dict[str, Any]:
    """Return the settings of a name server in the broker's process, from the broker's properties file.

    All but the listen address are shared.
    """
    shared = {name for name, each in NAME_SERVER.items() if each.component or name not in BROKER}
    return name_server_settings({name: properties[name] for name in shared & properties.keys()}, source=source)


def metrics_config(properties: Mapping[str, str], *, port: int | None, host: str | None) -> MetricsConfig | None:
    """Return the settings of the port for metrics, None without such a port.

    The options `port` and `host` override the file. Raises `UsageError` with the property and its value for an invalid
    number, `click.UsageError` for a host without port.
    """
    if port is None and "metricsPort" not in properties:
        if host is not None:
            raise click.UsageError("--metrics-host is the address of the metrics port: give --metrics-port too")
        return None
    from pyromq.metrics.config import SETTINGS, MetricsConfig  # imported late: servers without metrics do not load it

    options = {field: value for field, value in (("port", port), ("host", host)) if value is not None}
    used = {name: each for name, each in SETTINGS.items() if each.field not in options}
    settings = options | read_settings(used, properties).get("", {})
    return MetricsConfig(**{field: value for field, value in settings.items() if value != ""})


def _check(properties: Mapping[str, str], names: Collection[str], source: Path) -> None:
    from pyromq.metrics.config import SETTINGS as METRICS  # imported late: servers without a file do not load it

    known = {*names, *METRICS}
    for name, value in properties.items():
        reason = _REFUSED.get((name, value.strip().lower())) or (value.strip() and _REFUSED_NAMES.get(name))
        if reason and name not in known:
            raise UsageError(f"{source}: {name}={value} is not possible: {reason}")
    accepted = known | _WITHOUT_EFFECT | BROKER.keys()
    if unknown := [name for name in properties if name not in accepted]:
        raise UsageError(f"{source}: " + "; ".join(_unknown(name, known) for name in unknown))
    ignored = sorted(properties.keys() - known)
    if ignored:
        logger.warning("%s: settings without effect here: %s", source, ", ".join(ignored))


def _unknown(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"setting {name!r} is unknown" + (f", did you mean {near[0]!r}?" if near else "")
