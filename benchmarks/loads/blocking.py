"""One client sending in a loop for some seconds; prints messages per second.

    blocking.py producer HOST:PORT-of-the-name-server SECONDS
    blocking.py socket   HOST:PORT-of-the-broker      SECONDS

`producer` is what users write; `socket` is the least that any blocking client must do: the same request, made
beforehand, and its answer read to the last byte but not looked at.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Callable

TOPIC = "blocking"
BODY = b"a" * 128
WARM_SECONDS = 0.5


def request() -> bytes:
    """Return a whole frame: RocketMQ's send (310), as a Java client writes it."""
    properties = "KEYS\x01k1\x02TAGS\x01TagA\x02UNIQ_KEY\x01AC11000100002A9F0000000000000000\x02"
    fields = {"a": "ProducerGroup", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000"}
    fields |= {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
    frame = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": 401}
    header = json.dumps({**frame, "serializeTypeCurrentRPC": "JSON"}).encode()
    return struct.pack(">II", 4 + len(header) + len(BODY), len(header)) + header + BODY


def loop(exchange: Callable[[], object], seconds: float) -> float:
    """Return how often a second `exchange` went through."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        exchange()
        count += 1
    return count / (time.perf_counter() - started)


def by_producer(namesrv: str, seconds: float) -> float:
    from pyromq import Message, Producer

    with Producer("bench", namesrv) as producer:

        def exchange() -> None:
            producer.send(Message(TOPIC, BODY, tags="TagA", keys=("k1",)))

        loop(exchange, WARM_SECONDS)
        return loop(exchange, seconds)


def by_socket(broker: str, seconds: float) -> float:
    host, _, port = broker.rpartition(":")
    frame = request()
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def exchange() -> None:
            connection.sendall(frame)
            answer = connection.recv(65536)
            size = int.from_bytes(answer[:4]) + 4
            missing = size - len(answer)
            while missing:
                missing -= len(connection.recv(missing))

        loop(exchange, WARM_SECONDS)
        return loop(exchange, seconds)


if __name__ == "__main__":
    how, address, duration = sys.argv[1:]
    print({"producer": by_producer, "socket": by_socket}[how](address, float(duration)))
