"""A cluster's settings, topics, groups and metrics in the form of mqadmin's exports.

Source: RocketMQ 4.9.8, ExportConfigsCommand, ExportMetadataCommand, ExportMetricsCommand.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from pyromq.client.admin.admin_client import ClusterBrokers
from pyromq.client.admin.overviews import day_sum
from pyromq.client.admin.servers import Servers
from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.known_masters import MASTER
from pyromq.names import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, is_system_group
from pyromq.remoting.bodies import (
    BrokerStats,
    GroupConfigTable,
    KeyValues,
    TopicConfigTable,
    TopicList,
)
from pyromq.remoting.codes import VERSION_NAME, version_name
from pyromq.remoting.headers import (
    AllGroups,
    AllTopics,
    BrokerState,
    BrokerSystemTopics,
)

# Settings of a broker that mqadmin's export contains.
_KEPT_SETTINGS = (
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums"),
    *("flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn"),
    *("traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
)

Export = dict[str, Any]


@checked
class Exports:
    """The object `admin.exports`: exports of one `cluster`, or of all brokers. Results can be written as JSON."""

    def __init__(self, cluster: ClusterClient, brokers: ClusterBrokers, servers: Servers) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._servers = servers

    async def settings(self, cluster: str | None = None) -> Export:
        """Return the masters' main settings by broker name, and the numbers of name servers, masters and replicas."""
        masters = await self._brokers.masters(cluster=cluster)
        table = (await self._brokers.table()).brokers
        configs = {name: await self._brokers.settings(address) for name, address in sorted(masters.items())}
        return {
            "brokerConfigs": {
                name: {key: each[key] for key in _KEPT_SETTINGS if key in each} for name, each in configs.items()
            },
            "clusterScale": {
                "namesrvSize": len(self._cluster.name_servers.addresses),
                "masterBrokerSize": len(masters),
                "slaveBrokerSize": sum(len(table[name].addresses.keys() - {MASTER}) for name in masters),
            },
        }

    async def metadata(self, cluster: str | None = None, *, of_groups: bool = False) -> Export:
        """Return topics and consumer groups, without built-in ones; queue counts of several brokers are added up.

        With `of_groups`, retry and dead-letter topics are included. `exportTime` is ms since 1970.
        """
        topics: dict[str, Export] = {}
        groups: dict[str, Export] = {}
        for address in (await self._brokers.masters(cluster=cluster)).values():
            for name, topic in (await self._topics(address, of_groups=of_groups)).items():
                _add(topics, name, topic, ("writeQueueNums", "readQueueNums"))
            for name, group in (await self._groups(address)).items():
                _add(groups, name, group, ("retryQueueNums",))
        now = time.time_ns() // 1_000_000
        return {"topicConfigTable": topics, "subscriptionGroupTable": groups, "exportTime": now}

    async def metrics(self, cluster: str | None = None) -> Export:
        """Return each master's environment, rates, message counts and sizes by broker name, and the totals."""
        masters = await self._brokers.masters(cluster=cluster)
        report = {name: await self._report(address) for name, address in sorted(masters.items())}
        quotas = [each["runtimeQuota"] for each in report.values()]
        tps, days = [each["tps"] for each in quotas], [each["oneDayNum"] for each in quotas]
        return {
            "evaluateReport": report,
            "totalData": {
                "totalTps": {f"total{k[0].upper()}{k[1:]}": sum(each[k] for each in tps) for k in tps[0]},
                "totalOneDayNum": {k: sum(each[k] for each in days) for k in days[0]},
            },
        }

    async def _report(self, address: str) -> Export:
        figures = (await self._brokers.read(address, BrokerState(), KeyValues)).table
        settings, groups = await self._brokers.settings(address), await self._groups(address)
        halves = await self._puts(address, HALF_TOPIC)
        delayed = await self._puts(address, SCHEDULE_TOPIC)
        return {
            "runtimeEnv": {
                "cpuNum": settings.get("clientCallbackExecutorThreads"),
                "totalMemKBytes": figures.get("totalMemKBytes"),
            },
            "runtimeQuota": {
                "diskRatio": {name: figures.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
                "tps": {
                    "normalInTps": _latest_rate(figures["putTps"]),
                    "normalOutTps": _latest_rate(figures["getTransferedTps"]),
                    "transInTps": halves.minute.tps,
                    "scheduleInTps": delayed.minute.tps,
                },
                "oneDayNum": {
                    "normalOneDayInNum": _yesterday(figures, "msgPut"),
                    "normalOneDayOutNum": _yesterday(figures, "msgGet"),
                    "transOneDayInNum": day_sum(halves),
                    "scheduleOneDayInNum": day_sum(delayed),
                },
                "messageAverageSize": figures.get("putMessageAverageSize"),
                "topicSize": len(await self._topics(address, of_groups=False)),
                "groupSize": len(groups),
            },
            "runtimeVersion": {"rocketmqVersion": VERSION_NAME, "clientInfo": await self._clients(address, groups)},
        }

    async def _clients(self, address: str, groups: Iterable[str]) -> list[str]:
        """Return the distinct pairs of language and version of the groups' members, sorted, as `JAVA%V4_9_8`."""
        members = [each for group in groups for each in await self._brokers.members(address, group)]
        return sorted({f"{each.language}%{version_name(each.version)}" for each in members})

    async def _puts(self, address: str, topic: str) -> BrokerStats:
        return await self._servers.statistic(address, "TOPIC_PUT_NUMS", topic) or BrokerStats()

    async def _topics(self, address: str, *, of_groups: bool) -> dict[str, Export]:
        built_in = set((await self._brokers.read(address, BrokerSystemTopics(), TopicList)).topics)
        table = await self._brokers.read(address, AllTopics(), TopicConfigTable)
        return {
            name: msgspec.to_builtins(each)
            for name, each in sorted(table.topics.items())
            if name not in built_in and (of_groups or not name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))
        }

    async def _groups(self, address: str) -> dict[str, Export]:
        table = await self._brokers.read(address, AllGroups(), GroupConfigTable)
        return {
            name: msgspec.to_builtins(each) for name, each in sorted(table.groups.items()) if not is_system_group(name)
        }


def _add(table: dict[str, Export], name: str, entry: Export, counts: Iterable[str]) -> None:
    """Add a broker's entry of a topic or group to a table; its counts are added to those of other brokers."""
    known = table.get(name, {})
    table[name] = entry | {count: entry[count] + known.get(count, 0) for count in counts}


def _latest_rate(text: str) -> float:
    """Return the first of several rates in a string; 0 if empty, as Java brokers send at first after a start."""
    return float(text.split()[0]) if text.strip() else 0.0


def _yesterday(figures: dict[str, str], kind: str) -> int:
    """Return the number of messages stored (`msgPut`) or read (`msgGet`) between the last two midnights."""
    return int(figures[f"{kind}TotalTodayMorning"]) - int(figures[f"{kind}TotalYesterdayMorning"])
