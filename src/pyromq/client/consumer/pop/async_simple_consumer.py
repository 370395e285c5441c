"""The async simple consumer: the application receives messages, and acknowledges each message by itself.

A pop never waits at the broker. If a pop finds no message, the consumer waits for a notification and pops again. So a
cancelled receive leaves no message invisible, and one receive can wait for several topics and brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from pyromq.client.arguments import checked
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.client_hooks import ConsumeHooks, ConsumeStatus, FilterMessageHook, connect_hooks, filtered
from pyromq.client.cluster.cluster_client import API_SECONDS, AsyncLifespan, ClusterClient
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.consumer.consumer_status import ConsumerInternals, ConsumerStatusProcessor
from pyromq.client.consumer.pop.held_messages import CHECK_SECONDS, HeldMessages
from pyromq.client.consumer.pop.pop_requests import END, FIRST, Popped, PopPlace, PopRequests
from pyromq.client.consumer.push.listener import TO_DEAD_LETTERS
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.consumer.subscriptions import subscription
from pyromq.clock import Clock, SystemClock
from pyromq.errors import BrokerError, IllegalMessage, MQError, TopicNotFound, Unavailable, UsageError
from pyromq.filter.filter import Wanted, wanted_by
from pyromq.filter.subscription_differences import POP
from pyromq.json_body import json_reader
from pyromq.logs import logger_of
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import check_consumer_group
from pyromq.net.tasks import every, shared, take_error
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody
from pyromq.remoting.headers.pop_headers import MAX_INVISIBLE_SECONDS, MAX_POPPED, MIN_INVISIBLE_SECONDS

logger = logger_of(__name__)

# Pause after a notification without a message to pop, for example if another member was faster. Each pause doubles.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
LONGEST_WAIT = 15.0  # limit of one wait for a notification: then the consumer looks for new brokers of its topics


@checked
class AsyncSimpleConsumer(AsyncLifespan):
    """Receives messages one by one, for programs with an event loop; `SimpleConsumer` is the blocking form.

        async with AsyncSimpleConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in await consumer.receive():
                ...
                await consumer.ack(message)

    A received message is invisible to the group for `invisible_seconds`. A message that is not acknowledged by then is
    redelivered, with one attempt more. After the group's retries (16) it becomes a dead letter. Queues are not
    assigned: a group may have more members than queues, and a slow message delays no other message.

    The broker must be of pyromq or RocketMQ 5. A group either pops or pulls: a group that changes from pop to pull gets
    some acknowledged messages again. Messages of one queue may be received in parallel and in any order.

    `namesrv` is as for `AsyncProducer`. The fields of `ConsumerConfig` up to `orderly` are used, except fields
    about pulls, positions and offsets. `ConsumeFrom.TIME` is refused, and `ConsumeFrom.LAST` is as None, because a pop
    cannot ask for the end of a young queue. Methods raise `Unavailable` if no broker answers within
    `ConsumerConfig.timeout`, a `BrokerError` if a broker refuses, `NotRunning` before start and after close.
    A topic or broker that is refused is logged once; the messages of other topics and brokers are received. Damaged
    messages are logged, counted and not returned; after the group's retries they become dead letters.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_consumer_group(group)
        self.config = config = config or ConsumerConfig()
        if config.consume_from is ConsumeFrom.TIME:
            raise UsageError("consume_from=ConsumeFrom.TIME is not for a simple consumer; use FIRST or LAST")
        self._names = names = namespace_of(config.namespace, namesrv)
        self._wire_group = names.checked_group(group)
        self.group = group
        self._clock = clock = clock or SystemClock()
        self._topics: dict[str, tuple[Wanted, Callable[[bytes], Any] | None, int]] = {}
        self._turn = 0
        self._refusals: dict[str, dict[str, str]] = {}  # latest refusal by topic and broker; a refusal is logged once
        self.damaged_count = 0  # damaged records received since the start, also repeatedly
        nothing = ConsumerInternals(config, {}, self._entry, dict, dict, lambda offsets: None, lambda: None)
        self._status = ConsumerStatusProcessor(nothing, clock, names)
        self._cluster = ClusterClient(
            namesrv,
            clock,
            announce=lambda client_id: HeartbeatBody(client_id, consumers=[self._entry()]),
            answerers=[self._status],
            instance=config.instance,
            connections=config.connections,
            names=names,
            heartbeat_seconds=config.heartbeat_seconds,
            route_refresh_seconds=config.route_refresh_seconds,
        )
        self._requests = PopRequests(self._wire_group, self._cluster, clock, timeout=config.timeout)
        self._send_back = SendBack(self._wire_group, self._cluster, clock, max_retries=None)
        connect_hooks(config.hooks, config.connections, namesrv)
        hooks = ConsumeHooks(config.hooks, group, lambda: self._cluster.client_id, clock=clock)
        self._held = HeldMessages(group, self._requests, hooks if config.hooks else None, clock)
        self._filters = [hook for hook in config.hooks if isinstance(hook, FilterMessageHook)]
        # pops without a response, and requests that make the messages of cancelled pops visible
        self._popping: set[asyncio.Future[Any]] = set()

    @property
    def client_id(self) -> str:
        """This member's id in its group; available after the start."""
        return self._cluster.client_id

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None, type: Any = None) -> None:
        """Receive the topic's messages with these tags (`*`, `a`, `a || b`), or messages that match `sql`.

        May be called before or after the start. With a `type`, `message.value` is the body as a value of the type. A
        message whose body is no such value becomes a dead letter, with the reason.
        """
        topic = self._names.checked_topic(topic)
        read = None if type is None else json_reader(type)
        self._topics[topic] = wanted_by(tags, sql), read, self._clock.now_ms()
        self._announce_soon()

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of the topic. Raises `UsageError` for a topic without a subscription."""
        topic = self._known(topic)
        del self._topics[topic]
        self._refusals.pop(topic, None)
        self._announce_soon()

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` immediately if no name server can be reached."""
        await self._cluster.start()
        self._status.start(self._cluster.tasks)
        self._cluster.tasks.start(every(CHECK_SECONDS, self._held.look, self._clock), name=f"renew for {self.group}")

    async def close(self) -> None:
        """Leave the group and close the connections. Idempotent.

        Unacknowledged messages that were received with `renew` become visible now, as do messages of a receive that
        this call cancels. Other messages become visible when their invisible time ends.
        """
        if not self._cluster.running:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(API_SECONDS):
                    await self._held.release()
            if self._popping:
                await asyncio.wait(self._popping, timeout=API_SECONDS)
                await asyncio.sleep(0)  # the callbacks of abandoned pops start tasks
        finally:
            await self._cluster.close()

    async def receive(
        self,
        max_count: int = MAX_POPPED,
        *,
        wait_seconds: float | None = None,
        invisible_seconds: float = 30.0,
        renew: bool = False,
        topics: Sequence[str] | None = None,
    ) -> list[StoredMessage]:
        """Return at most `max_count` messages (at most 32) of one topic; [] if none arrives within `wait_seconds`.

        The default wait is `ConsumerConfig.long_poll_seconds`. Each message is invisible for `invisible_seconds`, 1 s
        to 12 hours. With `renew`, the client prolongs this time until the message is acknowledged, changed or made a
        dead letter, or the program ends. `topics` names some of the subscribed topics, in the order in which they are
        tried. Without `topics`, each receive begins at the next topic or broker. Raises the error of a topic or broker
        if none of them accepts pops.
        """
        self._cluster.check_running()
        _check_range("max_count", max_count, 1, 1 << 31)
        _check_range("invisible_seconds", invisible_seconds, MIN_INVISIBLE_SECONDS, MAX_INVISIBLE_SECONDS)
        wait = self.config.long_poll_seconds if wait_seconds is None else wait_seconds
        _check_range("wait_seconds", wait, 0.0, 3600.0)
        deadline, pause = self._clock.monotonic() + wait, FIRST_PAUSE
        while True:
            places = await self._places(topics)
            messages = await self._first_of(places, max_count, int(invisible_seconds * 1000), renew=renew)
            left = deadline - self._clock.monotonic()
            if messages or left <= 0:
                return messages
            began = self._clock.monotonic()
            arrived = await self._arrival(places, left)
            if arrived or self._clock.monotonic() - began < pause:
                # Another member was faster, or the broker does not wait. Without a pause this would be a busy loop.
                if pause > FIRST_PAUSE:
                    await self._clock.sleep(min(pause, max(0.0, deadline - self._clock.monotonic())))
                pause = min(2 * pause, LONGEST_PAUSE)

    async def ack(self, messages: StoredMessage | Iterable[StoredMessage]) -> None:
        """Acknowledge one received message or several: they are consumed.

        Raises `ReceiptHandleExpired` if a message's invisible time is over and the message was redelivered. Then all
        other messages of the call are acknowledged.
        """
        acked = _received(messages)
        await asyncio.gather(*map(self._held.end, acked))
        await self._requests.ack(acked)
        for message in acked:
            self._held.report(message, ConsumeStatus.CONSUMED)

    async def change_invisible_duration(self, message: StoredMessage, seconds: float) -> None:
        """Let a received message become visible in `seconds` from now; 0 means now. Ends its renewal.

        The message gets a new receipt handle. Raises `ReceiptHandleExpired` as `ack` does.
        """
        _received(message)
        _check_range("seconds", seconds, 0.0, MAX_INVISIBLE_SECONDS)
        await self._held.end(message)
        message.receipt_handle = await self._requests.change(message, int(seconds * 1000))
        if not seconds:
            self._held.report(message, ConsumeStatus.RETRIED)

    async def dead_letter(self, message: StoredMessage, reason: str = "") -> None:
        """Make a received message a dead letter of the group now, and acknowledge it."""
        _received(message)
        await self._held.end(message)
        await self._send_back.give_back(message, message.queue, TO_DEAD_LETTERS, reason)
        await self._requests.ack([message])
        self._held.report(message, ConsumeStatus.DEAD_LETTERED)

    async def _places(self, topics: Sequence[str] | None) -> list[PopPlace]:
        """Return the places to pop from, in the order in which they are tried.

        Raises `UsageError` without a subscription, and the error of a topic if no topic has a place.
        """
        chosen = list(self._topics) if topics is None else [self._known(topic) for topic in topics]
        if not chosen:
            raise UsageError(f"consumer of group {self.group} has no topics: subscribe to one first")
        places: list[PopPlace] = []
        failure: MQError | None = None
        for topic in chosen:
            try:
                found = await self._readable(topic)
            except (TopicNotFound, Unavailable) as error:
                self._note(topic, "", str(error))
                failure = error
            else:
                self._note(topic, "", None)
                places += found
        if failure is not None and not places:
            raise failure
        self._turn += 1
        turn = self._turn % len(places)
        return places[turn:] + places[:turn] if topics is None else places

    async def _readable(self, topic: str) -> list[PopPlace]:
        route = await self._cluster.route(topic)
        names = dict.fromkeys(each.broker_name for each in route.readable)
        if not names:
            raise Unavailable(f"no broker lets clients read {topic} now")
        return [PopPlace(topic, name) for name in names]

    def _known(self, topic: str) -> str:
        topic = self._names.unwrap(topic)
        if topic not in self._topics:
            raise UsageError(f"topic {topic!r} is not subscribed to; subscribed topics: {sorted(self._topics)}")
        return topic

    async def _first_of(
        self, places: list[PopPlace], count: int, invisible_ms: int, *, renew: bool
    ) -> list[StoredMessage]:
        """Return messages of the first place that has messages. Raises the error of a place if every place fails."""
        failures: list[MQError] = []
        for place in places:
            try:
                popped = await self._pop(place, count, invisible_ms)
            except Unavailable as error:
                self._cluster.leave_out(place.broker_name, error)
                failures.append(error)
                continue
            except BrokerError as error:
                self._note(place.topic, place.broker_name, str(error))
                failures.append(error)
                continue
            self._note(place.topic, place.broker_name, popped.refusal)
            if popped.damaged:
                self.damaged_count += popped.damaged
                logger.error("group %s: %d damaged messages in %s", self.group, popped.damaged, place.topic)
            try:
                messages = await self._accepted(place.topic, popped.messages)
            except asyncio.CancelledError:
                self._make_visible(popped.messages)
                raise
            if messages:
                self._held.add(messages, invisible_ms=invisible_ms, renew=renew)
                self._status.rates.tally(place.topic).pull(len(messages), 0.0)
                return messages
        if failures and len(failures) == len(places):
            raise failures[0]
        return []

    def _note(self, topic: str, broker: str, refusal: str | None) -> None:
        """Log a refusal, unless the latest refusal of the topic and broker has the same text. None means accepted."""
        if topic not in self._topics:  # unsubscribed meanwhile
            return
        refusals = self._refusals.setdefault(topic, {})
        if refusal is None:
            refusals.pop(broker, None)
        elif refusals.get(broker) != refusal:
            refusals[broker] = refusal
            where = f"topic {topic} from broker {broker}" if broker else f"topic {topic}"
            logger.warning("group %s receives nothing of %s: %s", self.group, where, refusal)

    async def _pop(self, place: PopPlace, count: int, invisible_ms: int) -> Popped:
        """Pop. After a cancellation, the messages become visible again as soon as the broker has answered."""
        wanted = self._topics[place.topic][0] if place.topic in self._topics else wanted_by("*", None)
        init_mode = FIRST if self.config.consume_from is ConsumeFrom.FIRST else END
        work = self._requests.pop(place, count, wanted, invisible_ms=invisible_ms, init_mode=init_mode)
        task = asyncio.ensure_future(work)
        self._popping.add(task)
        task.add_done_callback(self._popping.discard)
        try:
            return await shared(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._abandoned)
            raise

    def _abandoned(self, popped: asyncio.Task[Popped]) -> None:
        if not popped.cancelled() and popped.exception() is None:
            self._make_visible(popped.result().messages)

    def _make_visible(self, messages: Iterable[StoredMessage]) -> None:
        """Begin to make messages visible that no receive will return."""
        if self._cluster.running:
            for message in messages:
                change = asyncio.ensure_future(self._requests.change(message, 0))
                self._popping.add(change)
                change.add_done_callback(self._popping.discard)
                change.add_done_callback(take_error)  # the message becomes visible when its invisible time ends

    async def _accepted(self, topic: str, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages for the application.

        Messages that the subscription or a filter refuses are acknowledged. Unreadable messages become dead letters.
        If the broker refuses that, these messages are redelivered, and the others are returned all the same.
        """
        if topic not in self._topics:
            return messages
        wanted, read, _ = self._topics[topic]
        left = messages
        if wanted.accepts_code is not None:  # the broker compares hashes of tags, and other tags may have the same hash
            left = [message for message in left if wanted.accepts_tag(message.tags)]
        if self._filters and left:
            left = filtered(self._filters, self.group, left)
        if len(left) < len(messages):
            kept = set(map(id, left))
            try:
                await self._requests.ack([message for message in messages if id(message) not in kept])
            except MQError as error:
                logger.warning("group %s: refused messages of %s are redelivered: %s", self.group, topic, error)
        unfit = [(message, reason) for message in left if (reason := self._unfit(message, read))]
        for message, reason in unfit:
            logger.error("group %s: message %s becomes a dead letter: %s", self.group, message.message_id, reason)
            try:
                await self.dead_letter(message, reason)
            except MQError as error:
                text = "group %s: message %s is not a dead letter yet, and is redelivered: %s"
                logger.warning(text, self.group, message.message_id, error)
        refused = {id(message) for message, _ in unfit}
        return [message for message in left if id(message) not in refused]

    def _unfit(self, message: StoredMessage, read: Callable[[bytes], Any] | None) -> str:
        """Decode the body if its topic has a type. Return the reason if the body cannot be decoded, else ""."""
        message.max_body_bytes = self.config.max_body_bytes
        try:
            if read is not None:
                message.value = read(message.body)
            elif message.sys_flag & SysFlag.COMPRESSED and not self.config.deliver_undecodable:
                return str(message.body_error or "")
        except IllegalMessage as error:
            return str(error)
        return ""

    async def _arrival(self, places: list[PopPlace], wait_seconds: float) -> bool:
        """Wait until a place has a message. Return False after `wait_seconds`, or `LONGEST_WAIT`."""
        seconds = min(wait_seconds, LONGEST_WAIT)
        waits = [asyncio.ensure_future(self._requests.arrival(place, seconds)) for place in places]
        try:
            async with asyncio.timeout(seconds):
                for ended in asyncio.as_completed(waits):
                    try:
                        if await ended:
                            return True
                    except (Unavailable, BrokerError) as error:  # a refusal is logged when the place is popped
                        logger.debug("group %s: %s", self.group, error)
        except TimeoutError:
            pass
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return False

    def _announce_soon(self) -> None:
        if self._cluster.running:
            self._cluster.tasks.start(self._cluster.heartbeat(), name=f"subscriptions of {self.group}")

    def _entry(self) -> ConsumerEntry:
        """Return this consumer's entry in heartbeats."""
        subscriptions = [
            subscription(self._names.wrap(topic), wanted, version)
            for topic, (wanted, _, version) in sorted(self._topics.items())
        ]
        return ConsumerEntry(
            self._wire_group, POP, consume_from=self.config.announced_start, subscriptions=subscriptions
        )


def _received(messages: StoredMessage | Iterable[StoredMessage]) -> list[StoredMessage]:
    """Return one message or several as a list. Raises `UsageError` for a message without a receipt handle."""
    found = [messages] if isinstance(messages, StoredMessage) else list(messages)
    for message in found:
        if not isinstance(message, StoredMessage) or message.receipt_handle is None:
            raise UsageError(f"{message!r:.100} is no message that `receive` has returned: it has no receipt handle")
    return found


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name}={value!r} is out of range: {least:g} to {most:g}")
