"""Headers of sends and pulls as plain clients fill them; a test names what it is about."""

from pyromq.remoting.headers import PullMessage, SendBatchMessage, SendMessageV2

PLAIN = {
    "producer_group": "p",
    "topic": "orders",
    "default_topic": "TBW102",
    "default_topic_queue_count": 4,
    "queue_id": 0,
    "sys_flag": 0,
    "born_ms": 1,
    "flag": 0,
}
PULL = {
    "consumer_group": "c",
    "topic": "orders",
    "queue_id": 0,
    "queue_offset": 0,
    "max_count": 32,
    "sys_flag": 4,
    "commit_offset": 0,
    "suspend_ms": 0,
    "subscription_version": 0,
}


def send_header(properties="", **fields):
    return SendMessageV2(**(PLAIN | fields), properties=properties)


def batch_header(**fields):
    return SendBatchMessage(**(PLAIN | fields), batch=True)


def pull_header(**fields):
    return PullMessage(**(PULL | fields))
