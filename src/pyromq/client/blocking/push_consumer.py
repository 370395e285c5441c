"""The blocking push consumer: the async one behind a `BlockingRunner`, whose keeper runs the loop between calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, overload

from pyromq.client.blocking.blocking_runner import BlockingRunner
from pyromq.client.blocking.sigint import sigterm_calls
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.listener import Listener
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.lifespan import Lifespan
from pyromq.message import MessageQueue, StoredMessage

L = TypeVar("L", bound=Listener)
T = TypeVar("T")
R = TypeVar("R")


class Consumer(Lifespan):
    """Consumes topics as a member of a group; for programs without an event loop.

        with Consumer("billing") as consumer:
            @consumer.subscribe("orders", tags="paid || refunded")
            def work(messages):
                ...
            consumer.wait()

    Arguments, listeners, units and errors are those of `AsyncConsumer`. Plain listeners run in threads, `async` ones on
    the consumer's own event loop. Called inside a running event loop, methods raise `UsageError`.
    """

    def __init__(self, group: str, namesrv: str | None = None, *, config: ConsumerConfig | None = None) -> None:
        self._async = AsyncConsumer(group, namesrv, config=config)
        self._runner = BlockingRunner(self.close, self._async.instance)
        self._started = False
        self._terminated = False  # SIGTERM came, maybe before the start was over

    def start(self) -> None:
        """Join the group and begin to consume. Raises `NoNameServer` at once when no name server can be reached."""
        self._runner.start(self._async.start)
        self._started = True

    def close(self) -> None:
        """Let running listeners finish (`close_seconds`), store offsets, leave the group. Idempotent."""
        self._runner.close(self._async.close)

    def run(self, *, signals: bool = True) -> None:
        """Consume until a listener, or another thread, calls `stop`, or until Ctrl-C or SIGTERM; then close.

        SIGTERM is left alone without `signals`, and where the program handles or ignores it itself. Raises `UsageError`
        when no topic is subscribed to.
        """
        self._async.check_subscribed()
        with sigterm_calls(self._terminate) if signals else nullcontext(), self:
            try:
                if not self._terminated:
                    self.wait()
            except KeyboardInterrupt:
                pass  # the usual end of a program that consumes

    def wait(self) -> None:
        """Wait until somebody calls `stop` or `close`; raises what ended the consumer, see `AsyncConsumer.wait`.

        Ctrl-C raises `KeyboardInterrupt`.
        """
        if (failure := self._runner.run(self._async.ended)) is not None:
            raise failure  # here: raised in the loop, it would end whoever turns it

    def stop(self) -> None:
        """Let `wait` return; for listeners and other threads. Closing is left to who waits."""
        self._async.stop()

    @overload
    def subscribe(self, topic: str, listener: Listener, *, tags: str = "*", sql: str | None = None) -> None: ...
    @overload
    def subscribe(
        self, topic: str, listener: None = None, *, tags: str = "*", sql: str | None = None
    ) -> Callable[[L], L]: ...
    @overload
    def subscribe(
        self,
        topic: str,
        *,
        tags: str = "*",
        sql: str | None = None,
        type: type[T],
        unfit: Listener | None = None,
    ) -> Callable[[Callable[[list[T]], R]], Callable[[list[T]], R]]: ...
    def subscribe(self, topic: str, listener: Listener | None = None, **how: Any) -> Any:
        """Give the topic's messages with these tags (`*`, `a`, `a || b`) to a listener, before or after the start.

        Or, with `sql`, those of which an expression over properties is true: `price > 5 AND region IN ('EU', 'US')`.
        Without a listener, returns a decorator for one. A topic has one listener: the latest. With a `type` it gets
        values of that type, as `AsyncConsumer.subscribe` says.
        """

        def decorate(function: Any) -> Any:
            subscribe = partial(self._async.subscribe, topic, function, **how)
            if self._started:
                self._runner.call(subscribe)
            else:
                subscribe()
            return function

        if listener is None:
            return decorate
        decorate(listener)
        return None

    def unsubscribe(self, topic: str) -> None:
        """Consume the topic no more; its queues are given away with their offsets stored, soon."""
        if self._started:
            self._runner.call(self._async.unsubscribe, topic)
        else:
            self._async.unsubscribe(topic)

    @property
    def client_id(self) -> str:
        """This member's name in its group, known once started."""
        return self._async.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member consumes now, in order; those of the retry topic are left out."""
        return self._async.assignment

    @property
    def damaged_count(self) -> int:
        """How many messages nobody could consume: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._async.damaged_count

    def reply(self, request: StoredMessage, body: bytes) -> None:
        """Answer a message sent with a producer's `request`, from a listener; see `AsyncConsumer.reply`."""
        self._runner.run(self._async.reply, request, body)

    def pause(self) -> None:
        """Pull nothing until `resume`, and keep the queues; messages fetched already are still consumed."""
        self._runner.call(self._async.pause)

    def resume(self) -> None:
        """Pull again, and share the queues out again."""
        self._runner.call(self._async.resume)

    def _terminate(self) -> None:
        self._terminated = True
        if self._started:
            self.stop()
