"""The names of a broker's settings in RocketMQ's properties files, and which of them may change while it runs."""

from __future__ import annotations

from pyromq.remoting.connection_limits import CONNECTION_LIMIT_NAMES

# RocketMQ's property name -> our field; `store.` before those of StoreConfig, `limits.` before those of
# BrokerLimits, `connection_limits.` before those of ConnectionLimits, which are ours. `bindAddress` is RocketMQ 5's,
# `refuseDifferentSubscriptions` and `bulkTransfer...` are ours: who finds the latter may ask for large pulls.
# `vipChannelEnable` and `retentionBytes` are ours; the two diskSpace...Ratio are system properties upstream, as parts
# of 1.
JAVA_NAMES: dict[str, str] = {
    "storePathRootDir": "data",
    "brokerName": "name",
    "brokerClusterName": "cluster",
    "brokerId": "broker_id",
    "bindAddress": "host",
    "brokerIP1": "advertised_host",
    "listenPort": "port",
    "vipChannelEnable": "vip_channel",
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
    "busyPollMicros": "busy_poll_us",
    "regionId": "region",
    "aclEnable": "permissions",
    "aclPath": "permissions_path",
    "auditLogEnable": "audit_log",
    "traceTopicEnable": "trace_topic",
    "timerMaxDelaySec": "timer_max_delay_seconds",
    "recallMessageEnable": "recall",
    "enablePropertyFilter": "property_filter",
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
    "brokerFastFailureEnable": "limits.fast_failure",
    "waitTimeMillsInSendQueue": "limits.send_wait_ms",
    "maxWaitingPulls": "limits.waiting_pulls",
    "maxTopics": "limits.topics",
    "maxGroups": "limits.groups",
    "maxMembers": "limits.members",
    "maxOffsets": "limits.offsets",
    "maxQueueLocks": "limits.queue_locks",
    "maxUndecidedRuns": "limits.undecided_runs",
    "maxBatchDecisions": "limits.batch_decisions",
    "maxSubscriptionLength": "limits.subscription_length",
    "maxHalfMessages": "limits.half_messages",
    "maxQueryBytes": "limits.query_bytes",
    **{name: f"connection_limits.{field}" for name, field in CONNECTION_LIMIT_NAMES.items()},
}

# Request 25 changes these at once; `FIXED` not at all, and the rest from the next start on.
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
        "enablePropertyFilter",
        "storeReplyMessageEnable",
        "rejectTransactionMessage",
        "transactionTimeOut",
        "transactionCheckInterval",
        "transactionCheckMax",
        "batchTransactionTimeOut",
        "batchTransactionLedgerTime",
    }
)
# Who the broker is, where it listens and what it listens to, where it writes; and what holds strangers back.
FIXED = frozenset(
    {
        *(name for name, field in JAVA_NAMES.items() if field.startswith(("limits.", "connection_limits."))),
        "auditLogEnable",
        "aclEnable",
        "aclPath",
        "storePathRootDir",
        "storePathCommitLog",
        "brokerName",
        "brokerClusterName",
        "brokerId",
        "bindAddress",
        "brokerIP1",
        "listenPort",
        "vipChannelEnable",
        "namesrvAddr",
    }
)


def called(field: str, component: str = "") -> str:
    """Return a field's name as properties spell it, with ours beside it; ours alone where they have none."""
    path = f"{component}.{field}" if component else field
    name = next((name for name, each in JAVA_NAMES.items() if each == path), None)
    return field if name is None else f"{name} ({field})"
