"""A trickle of sends over one connection, one each millisecond whatever becomes of those before: what each waited.

    python trickle.py PORT PID TOPIC

Runs until its standard input is closed, then writes a line for each send: when it was due and after how long its
answer was there, by the monotonic clock, and for how long the server ran meanwhile, all in nanoseconds.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time

from pyromq.remoting.command import encode_request
from pyromq.remoting.headers import SendMessageV2

EVERY_NS = 1_000_000
BODY = b"x" * 128
QUEUES = 4


def main() -> None:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frames = [_frame(sys.argv[3], queue_id) for queue_id in range(QUEUES)]
    trickle = Trickle(connection, frames, _processor_clock(int(sys.argv[2])))
    print("begun", flush=True)
    trickle.run()
    sys.stdout.writelines(f"{due} {waited} {ran}\n" for due, waited, ran in trickle.answered)


class Trickle:
    """One thread: waits for the time of the next send, for answers, and for the end of the standard input."""

    def __init__(self, connection: socket.socket, frames: list[bytes], server_clock: int) -> None:
        self.answered: list[tuple[int, int, int]] = []
        self._connection = connection
        self._frames = frames
        self._server_clock = server_clock
        self._sent: list[tuple[int, int]] = []  # when it was due, by both clocks
        self._unread = b""

    def run(self) -> None:
        due = time.monotonic_ns()
        while True:
            wait = max(0, due - time.monotonic_ns()) / 1e9
            ready, _, _ = select.select([self._connection, sys.stdin], [], [], wait)
            if self._connection in ready:
                self._take(self._connection.recv(1 << 16))
            if sys.stdin in ready:
                return
            while due <= time.monotonic_ns():
                self._sent.append((due, time.clock_gettime_ns(self._server_clock)))
                self._connection.sendall(self._frames[len(self._sent) % QUEUES])
                due += EVERY_NS

    def _take(self, data: bytes) -> None:
        if not data:
            raise SystemExit("the server has closed the connection")
        now, ran = time.monotonic_ns(), time.clock_gettime_ns(self._server_clock)
        self._unread += data
        while len(self._unread) >= 4 and len(self._unread) >= 4 + (size := struct.unpack_from(">i", self._unread)[0]):
            self._unread = self._unread[4 + size :]
            due, had_run = self._sent[len(self.answered)]  # answers come in the order of sends
            self.answered.append((due, now - due, ran - had_run))


def _processor_clock(pid: int) -> int:
    """Return the clock that counts the time of a process on the processor (linux, MAKE_PROCESS_CPUCLOCK)."""
    return (~pid << 3) | 2


def _frame(topic: str, queue_id: int) -> bytes:
    header = SendMessageV2(
        producer_group="trickle",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_ms=1,
        flag=0,
    )
    return encode_request(header, BODY, opaque=queue_id, flag=0)


if __name__ == "__main__":
    main()
