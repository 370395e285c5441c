"""What the Kafka side of `spark_kafka.py` asks of our server besides Spark; it runs in that program's folder.

spark_topic.py create NAMESRV TOPIC QUEUES
spark_topic.py feed NAMESRV TOPIC RATE SECONDS SIZE
"""

from __future__ import annotations

import sys

from pyromq import Admin, Message, Producer


def create(namesrv: str, topic: str, queues: int) -> None:
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queues)


def feed(namesrv: str, topic: str, *shape: float) -> None:
    import message  # the peer's: what both systems are fed with

    with Producer("bench-feed", namesrv) as producer:

        def send(key: bytes, value: bytes) -> None:
            producer.send_soon(Message(topic, value, keys=key.decode()))

        message.feed(send, *shape)


if __name__ == "__main__":
    if sys.argv[1] == "create":
        create(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        feed(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
