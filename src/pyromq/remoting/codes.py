"""Numbers of the protocol: request codes, languages, flags, versions. Response codes are in `pyromq.errors`.

Source: RocketMQ 4.9.8, RequestCode, LanguageCode, MQVersion, RemotingCommand, PullSysFlag, PermName.
"""

from __future__ import annotations

from enum import IntEnum

VERSION = 409  # number of release 4.9.8 in RocketMQ's list of releases; sent in every command
VERSION_NAME = "V4_9_8"
MAX_RECONSUME_VERSION = 121  # release 3.4.9: the first whose clients send a maxReconsumeTimes that brokers use
RELAY_VERSION = 62  # release 3.1.8: the first whose clients answer running info and direct consumption
STATUS_VERSION = 28  # release 3.0.7: the first whose clients answer consumer status
_FIRST_REGULAR_VERSION = 194  # 3.9.1-SNAPSHOT: from here on each release has two numbers, the first for its snapshot

RESPONSE = 0x1  # bit of a command's flag: the command is a response
ONE_WAY = 0x2


class PullFlag:
    """Bits of sysFlag in a pull request. Plain numbers, because `&` on an enum is slow."""

    COMMIT_OFFSET = 0x1
    SUSPEND = 0x2
    SUBSCRIPTION = 0x4
    CLASS_FILTER = 0x8
    LITE_PULL = 0x10


class Permission:
    """Bits of the permission of a topic or a broker."""

    INHERIT = 0x1
    WRITE = 0x2
    READ = 0x4
    PRIORITY = 0x8


UNIT = 0x1  # bits of a topic's sysFlag
UNIT_SUBSCRIPTION = 0x2


class Language(IntEnum):
    """The language of a command's sender."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class RequestCode(IntEnum):
    """The codes of requests."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    GET_TOPIC_CONFIG = 351  # from RocketMQ 5, like the next two codes
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400  # pop consumption, from RocketMQ 5, like the next code
    SET_MESSAGE_REQUEST_MODE = 401
    LIST_HALF_MESSAGES = 100_323  # only in pyromq
    SEND_HALF_RUN = 100_330  # only in pyromq, like the next four codes
    COMMIT_BATCH = 100_331
    ROLL_BACK_BATCH = 100_332
    FIND_BATCH = 100_333
    LIST_BATCHES = 100_334
    LIST_TIMERS = 100_370  # only in pyromq
    BROKER_FIGURES = 100_380  # only in pyromq
    REPLICA_SET_STATE = 100_390  # only in pyromq, like the next two codes
    HAND_OVER = 100_391
    ACCEPT_LOSS = 100_392
    POP_MESSAGE = 200_050  # pop consumption, from RocketMQ 5, like all that follow
    ACK_MESSAGE = 200_051
    PEEK_MESSAGE = 200_052
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    POLLING_INFO = 200_055
    BATCH_ACK_MESSAGE = 200_151


def version_name(version: int) -> str:
    """Return the name of a release in the form of Java tools, `V4_9_8`; the number of a very old release.

    Source: MQVersion.
    """
    if version < _FIRST_REGULAR_VERSION:
        return str(version)
    release, is_final = divmod(version - _FIRST_REGULAR_VERSION + 2 * 391, 2)
    return f"V{release // 100}_{release // 10 % 10}_{release % 10}" + ("" if is_final else "_SNAPSHOT")
