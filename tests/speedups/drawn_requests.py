"""Requests drawn from a `Random`, as clients of all kinds may send them, sensible ones and odd ones, as frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.bodies import ConsumerEntry, GroupConfig, HeartbeatBody, ProducerEntry, Subscription, encode_body
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import BINARY, JSON, encode_request, frame_words
from pyromq.remoting.header import Header, wire_fields
from pyromq.remoting.headers import (
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    EndTransaction,
    Heartbeat,
    MaxOffset,
    MinOffset,
    PopMessage,
    PullMessage,
    QueryConsumerOffset,
    QueueEntries,
    SaveGroup,
    SendBatchMessage,
    SendMessage,
    SendMessageBack,
    SendMessageV2,
    TopicStatistics,
    UnregisterClient,
    UpdateConsumerOffset,
    ViewMessage,
)

MESSAGE_LIMIT = 100_000  # of the broker that plays these
START_MS = 1_700_000_000_000  # the broker's time at the begin

TOPICS = ["a", "one", "ordered", "multi", "%RETRY%g", "%RETRY%u", "%DLQ%g", "readonly", "writeonly", "missing",
          "TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX", "bad name", "x" * 127, "x" * 128,
          "é", ""]  # fmt: skip
GROUPS = ["g", "g", "g", "h", "u", "closed", "bad group", ""]
TAGS = ["", "a", "b", "TagA", "é", "中", "😀", "a b", " a", "a" * 200, "TAGS", "AaAa", "BBBB"]

# Names and values of properties; what is no pair stands alone.
PAIRS: list[str] = [
    "KEYS\x01k", "KEYS\x01k1 k2  k1", "KEYS\x01é", "UNIQ_KEY\x017F00000100002A9F0000000000000001", "UNIQ_KEY\x01u",
    "WAIT\x01true", "WAIT\x01false", "WAIT\x01TRUE", "WAIT\x01", "WAIT\x01x", "WAIT", "XWAIT\x01false", "WAIT\x01\x01",
    "DELAY\x010", "DELAY\x011", "DELAY\x013", "DELAY\x0199", "DELAY\x01x", "DELAY\x01-1", "DELAY\x01", "NODELAY\x011",
    "TIMER_DELAY_SEC\x015", "TIMER_DELAY_MS\x012500", f"TIMER_DELIVER_MS\x01{START_MS + 20_000}",
    "TIMER_DELIVER_MS\x011", "TIMER_DELAY_SEC\x01x", "TIMER_DELAY_SEC\x0199999999999", "TIMER_D",
    "TIMER_DEL_UNIQKEY\x01u",
    "TRAN_MSG\x01true", "TRAN_MSG\x01false", "TRAN_MSG\x01", "TRAN_MSG\x01TRUE", "PGROUP\x01p", "XTRAN_MSG\x01true",
    "CLUSTER\x01x", "MSG_REGION\x01r", "TRACE_ON\x01true", "RETRY_TOPIC\x01a", "REAL_TOPIC\x01a", "REAL_QID\x010",
    "MAX_RECONSUME_TIMES\x012", "RECONSUME_TIME\x013", "a\x01b", "é中😀\x01é中😀", "a\x01b\x01c", "\x01b", "b\x01", "",
    "x", "XTAGS\x01a", "TAGS", "TAGS\x01", "__SHARDINGKEY\x01s", "\t\n\"\\/\x01\x7f\x03",
]  # fmt: skip


class Requests:
    """Draws requests for one load."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._opaque = 0
        self._is_odd = False

    # --- frames

    def frame(self, header: Header, body: bytes = b"", *, flag: int = 0) -> bytes:
        """Return a request's frame, written as one client or another writes it."""
        opaque = self._next_opaque()
        if self.random.random() < 0.4:
            serialization = self.random.choice([JSON, JSON, BINARY])
            return encode_request(header, body, opaque=opaque, flag=flag, serialization=serialization)
        members: dict[str, object] = {
            "extFields": wire_fields(header),
            "flag": flag,
            "language": "JAVA",
            "opaque": opaque,
        }
        members["version"] = self.random.choice([409, 317, 120, 0])
        way = self.random.random()
        if way < 0.1:  # C++
            fields = {name: int(text) if text.isdigit() else text for name, text in wire_fields(header).items()}
            members |= {"extFields": fields, "remark": "", "language": "CPP"}
        elif way < 0.3:
            members = dict(self.random.sample(sorted(members.items()), len(members)))
        elif way < 0.4:
            members["remark"] = ""
        code = {"code": int(header.code)}
        members = members | code if way > 0.97 else code | members
        is_ascii, separators = self.random.random() < 0.3, (",", ": ") if self.random.random() < 0.1 else (",", ":")
        raw = json.dumps(members, ensure_ascii=is_ascii, separators=separators).encode()
        return frame_words(JSON, len(raw), len(body)) + raw + body

    def _next_opaque(self) -> int:
        self._opaque += 1
        return self._opaque if self.random.random() < 0.99 else -self._opaque

    def _flag(self) -> int:
        return ONE_WAY if self.random.random() < 0.08 else 0

    def _one(self, usual: list[int], odd: list[int], share: float = 0.03) -> int:
        return self.random.choice(odd if self.random.random() < share else usual)

    # --- sends

    def send(self, topic: str | None = None) -> bytes:
        """A message, mostly one that is taken."""
        header = self.random.choice([SendMessage, SendMessageV2, SendMessageV2, SendMessageV2])
        return self.frame(self._send_header(header, topic), self.body(), flag=self._flag())

    def batch(self) -> bytes:
        """Several messages in one request, by one of its three codes."""
        header = self.random.choice([SendBatchMessage, SendBatchMessage, SendMessage, SendMessageV2])
        members = [
            BatchMember(self.random.choice([0, 7]), self.body()[:2000], self.properties()[:15_000])
            for _ in range(self.random.choice([0, 1, 2, 5, 20]))
        ]
        if self.random.random() < 0.03:  # their records take more than one append may
            members = [BatchMember(0, b"x", "")] * 3000
        body = encode_batch(members)
        if self.random.random() < 0.1:
            body = body[: self.random.randint(0, len(body))]
        return self.frame(self._send_header(header, None, batch=True), body, flag=self._flag())

    def _send_header(self, header: type[SendMessage], topic: str | None, *, batch: bool | None = None) -> SendMessage:
        random = self.random
        if batch is None and random.random() < 0.3:
            batch = False
        return header(
            producer_group=random.choice(["p", "q", ""]) if random.random() < 0.1 else "p",
            topic=topic or self.topic(),
            default_topic=random.choice(["TBW102", "TBW102", "a", "none"]),
            default_topic_queue_count=self._one([4], [0, -1, 1, 1000]),
            queue_id=self._one([0, 0, 1, 2, 3], [-1, -2, 4, 8, 100, 1 << 31, -(1 << 31), 1 << 40]),
            sys_flag=self._one([0, 0, 0, 1], [2, 4, 8, 12, 0x10, 0x20, 0x30, 0x100, 0x300, -1, 1 << 31, 1 << 40]),
            born_ms=self._one([START_MS, START_MS + 5], [0, -1, 1 << 53, (1 << 63) - 1, 10**17]),
            flag=self._one([0, 0, 7], [-1, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 33]),
            properties=self.properties() if random.random() < 0.95 else random.choice([None, ""]),
            reconsume_times=random.choice([None, 0, 0, 0, self._one([1, 2], [3, 15, 16, 17, -1, 1 << 31], 0.3)]),
            unit_mode=random.choice([None, False, False, random.random() < 0.1]),
            batch=batch,
            max_reconsume_times=random.choice([None, None, None, 0, 1, 3, 100]),
            broker_name=random.choice([None, None, None, "broker-a", "other"]),
        )

    def topic(self) -> str:
        """A topic that is there, unless odd ones are asked for."""
        return self.random.choice(TOPICS if self._is_odd else ["a", "a", "a", "one", "multi", "ordered"])

    def frame_of_odd_topic(self) -> bytes:
        """A hot request about a topic that may be missing, forbidden or no name at all."""
        self._is_odd = True
        try:
            return self.any_hot()
        finally:
            self._is_odd = False

    def any_hot(self) -> bytes:
        return self.random.choice([self.send, self.send, self.batch, self.pull, self.pop, self.update_offset])()

    def body(self) -> bytes:
        """A body of any size, up to above the limit."""
        random = self.random
        size = random.choice([1, 2, 10, 63, 64, 65, 128, 200, 1024])
        if random.random() < 0.05:
            size = random.choice([0, 4096, 70_000, MESSAGE_LIMIT - 1, MESSAGE_LIMIT, MESSAGE_LIMIT + 1])
        return random.randbytes(size)

    def properties(self) -> str:
        """A text of properties: mostly pairs, in any order, some doubled or broken, some as long as a record holds."""
        random = self.random
        if random.random() < 0.3:
            return random.choice(
                ["", "TAGS\x01a", "TAGS\x01b\x02KEYS\x01k\x02", "TAGS\x01TagA\x02WAIT\x01true\x02UNIQ_KEY\x01u"]
            )
        pairs = [f"TAGS\x01{random.choice(TAGS)}"] if random.random() < 0.7 else []
        pairs += random.choices(PAIRS, k=random.choice([0, 1, 1, 2, 3, 6]))
        random.shuffle(pairs)
        text = "\x02".join(pairs) + random.choice(["", "", "\x02", "\x02\x02"])
        if random.random() < 0.02:  # at the limit, which is 32,767 bytes with what the broker adds
            end = random.choice([32_767, 32_768, 32_746, 32_745, 32_740, 40_000])
            filler = random.choice(["x", "é"])
            text = f"fill\x01{filler * ((end - len(text.encode()) - 7) // len(filler.encode()))}\x02{text}"
        return text

    # --- reads and offsets

    def pull(self) -> bytes:
        """A pull: found, not found, refused, or waiting."""
        random = self.random
        return self.frame(
            PullMessage(
                consumer_group=random.choice(["g", "h"]) if random.random() < 0.9 else random.choice(GROUPS),
                topic=self.topic(),
                queue_id=self._one([0, 0, 1, 2, 3], [-1, 4, 7, 8, 1 << 31, -(1 << 40)]),
                queue_offset=self._one(
                    [0, 0, 1, 2, 3, 5, 8, 13, 40], [-1, 99, 5000, 1 << 31, 1 << 40, -(1 << 40)], 0.1
                ),
                max_count=self._one([32, 32, 1, 2, 16], [0, -1, 33, 1000, 20_000, 1 << 31, 1 << 40], 0.1),
                sys_flag=self._one([0, 4, 4, 6, 2, 5, 7, 3], [8, 16, 20, 22, 1, -1, 1 << 31], 0.1),
                commit_offset=self._one([0, 1, 5], [-1, 99, 1 << 40]),
                suspend_ms=self._one([0, 100, 15_000], [-1, 1, 1 << 40]),
                subscription_version=self._one([0], [1, -1, 1 << 40]),
                subscription=random.choice(["*", "*", "a", "a || b", "TagA||é", "AaAa", "", None, "a > 1", "k = '"]),
                expression_type=random.choice(["TAG", "TAG", "TAG", None, "SQL92", "X", ""]),
                max_bytes=random.choice([None, None, None, None, 0, 1, 1000, 100_000, 1 << 22, -1]),
            ),
            flag=ONE_WAY if random.random() < 0.02 else 0,
        )

    def pop(self) -> bytes:
        """A pop: found, not found or refused. It neither waits nor is due while the load is played."""
        random = self.random
        return self.frame(
            PopMessage(
                consumer_group=random.choice(["g", "h"]) if random.random() < 0.9 else random.choice(GROUPS),
                topic=self.topic(),
                queue_id=self._one([-1, -1, -1, -1, 0, 1], [-2, 4, 1 << 31], 0.1),
                max_count=self._one([1, 1, 2, 2, 3, 32], [0, -1, 33, 1 << 40], 0.1),
                invisible_ms=self._one([3_600_000, 7_200_000], [-1, 43_200_000, 43_200_001, 1 << 40], 0.1),
                poll_ms=self._one([0], [-1], 0.1),
                born_ms=self._one([1_700_000_000_000], [0, -1], 0.1),
                init_mode=self._one([0, 0, 1], [-1, 2], 0.1),
                expression=random.choice(["*", "*", "*", "a", "a || b", "TagA||é", "", None, "a > 1"]),
                expression_type=random.choice(["TAG", "TAG", "TAG", None, "SQL92", "X", ""]),
                order=random.choice([None, None, None, None, False, True]),
                attempt_id=random.choice([None] * 9 + ["one"]),
                renewed_for=random.choice([None] * 9 + ["c" * 256]),
            ),
            flag=ONE_WAY if random.random() < 0.02 else 0,
        )

    def update_offset(self) -> bytes:
        return self.frame(
            UpdateConsumerOffset(
                consumer_group=self.random.choice(GROUPS),
                topic=self.topic(),
                queue_id=self._one([0, 1, 2], [-1, 9, 1 << 31, 1 << 40]),
                commit_offset=self._one([0, 1, 2, 5], [-1, 99, 1 << 40]),
            ),
            flag=self.random.choice([0, ONE_WAY]),
        )

    # --- all else, which changes what the hot requests find

    def rare(self) -> bytes:
        """One of the requests that compiled code leaves alone."""
        return self.random.choice(_RARE)(self)

    def created_topic(self, topic: str, **settings: object) -> bytes:
        usual: dict[str, object] = {"read_queues": 4, "write_queues": 4, "permission": 6}
        return self.frame(CreateTopic(topic=topic, **(usual | settings)))  # type: ignore[arg-type]

    def heartbeat(self, group: str, topics: dict[str, str], client: str = "c1", model: str = "CLUSTERING") -> bytes:
        subscriptions = [
            Subscription(
                topic=topic, expression=expression, version=1, expression_type="SQL92" if ">" in expression else "TAG"
            )
            for topic, expression in topics.items()
        ]
        consumers = [ConsumerEntry(group=group, subscriptions=subscriptions, message_model=model)]
        body = HeartbeatBody(client_id=client, consumers=consumers, producers=[ProducerEntry(group="p")])
        return self.frame(Heartbeat(), encode_body(body))

    def saved_group(self, name: str, **settings: bool | int) -> bytes:
        return self.frame(SaveGroup(), encode_body(GroupConfig(name=name, **settings)))  # type: ignore[arg-type]

    def _changed_topic(self) -> bytes:
        queues = self.random.choice([1, 2, 4, 4, 4, 6])
        filter_type = self.random.choice(["SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG"])
        permission = self.random.choice([6, 6, 6, 4, 2])
        return self.created_topic(
            self.random.choice(["a", "one", "multi", "ordered"]),
            read_queues=queues,
            write_queues=self.random.choice([queues, 1, 8]),
            permission=permission,
            filter_type=filter_type,
            order=self.random.random() < 0.2,
        )

    def _changed_group(self) -> bytes:
        random = self.random
        return self.saved_group(
            random.choice(["g", "h"]),
            consume_enabled=random.random() < 0.8,
            broadcast_enabled=random.random() < 0.5,
            retry_max_times=random.choice([16, 1, 0]),
        )

    def _beat(self) -> bytes:
        expression = self.random.choice(["*", "a", "a || b", "TagA", "a > 1"])
        model = self.random.choice(["CLUSTERING", "CLUSTERING", "BROADCASTING"])
        topics = self.random.choice([{"a": expression}, {"a": expression, "one": "*"}, {"one": expression}])
        return self.heartbeat(self.random.choice(["g", "h"]), topics, self.random.choice(["c1", "c2"]), model)

    def asked(self) -> bytes:
        """A question whose answer says what is stored."""
        topic, queue_id = self.topic(), self._one([0, 1, 2], [-1, 9])
        header = self.random.choice(
            [
                MaxOffset(topic=topic, queue_id=queue_id),
                MinOffset(topic=topic, queue_id=queue_id),
                QueryConsumerOffset(consumer_group=self.random.choice(GROUPS), topic=topic, queue_id=queue_id),
                TopicStatistics(topic=topic),
                QueueEntries(topic=topic, queue_id=queue_id, index=self.random.randint(0, 9), count=8),
                ViewMessage(offset=self.random.choice([0, 0, 100, 200, 1 << 40])),
            ]
        )
        return self.frame(header)

    def _sent_back(self) -> bytes:
        offset = self.random.choice([0, 0, 0, 150, 1 << 40])
        return self.frame(
            SendMessageBack(offset=offset, group=self.random.choice(GROUPS), delay_level=self._one([0, 1, 3], [-1]))
        )

    def _decided(self) -> bytes:
        places = {"half_queue_offset": self.random.randint(0, 3), "log_offset": self.random.choice([0, 100, 1000])}
        decision = self.random.choice([8, 12, 0])
        return self.frame(EndTransaction(producer_group="p", decision=decision, message_id="m", **places))


_RARE: list[Callable[[Requests], bytes]] = [
    Requests.asked,
    Requests.asked,
    Requests.asked,
    Requests._beat,
    Requests._changed_topic,
    Requests._changed_group,
    Requests._sent_back,
    Requests._decided,
    lambda requests: requests.created_topic("a"),
    lambda requests: requests.saved_group("g"),
    lambda requests: requests.frame(DeleteTopic(topic="missing")),
    lambda requests: requests.frame(DeleteGroup(group=requests.random.choice(["h", "u"]), remove_offsets=True)),
    lambda requests: requests.frame(
        UnregisterClient(client_id="c1", consumer_group=requests.random.choice(["g", "h"]))
    ),
]
