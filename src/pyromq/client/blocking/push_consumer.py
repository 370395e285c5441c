"""The blocking push consumer; the keeper of its `CallerRunsLoop` runs the event loop between calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, overload

from pyromq.client.blocking.blocking_client import BlockingClient, blocking, on_loop
from pyromq.client.blocking.sigint import sigterm_calls
from pyromq.client.config import ConsumerConfig
from pyromq.client.consumer.push.listener import Listener
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import MessageQueue

L = TypeVar("L", bound=Listener)
T = TypeVar("T")
R = TypeVar("R")


class Consumer(BlockingClient[AsyncConsumer]):
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
        client = AsyncConsumer(group, namesrv, config=config)
        super().__init__(client, client.instance)
        self._terminated = False  # SIGTERM came, perhaps before `start` returned

    reply = blocking(AsyncConsumer.reply)
    pause = on_loop(AsyncConsumer.pause)
    resume = on_loop(AsyncConsumer.resume)

    def run(self, *, signals: bool = True) -> None:
        """Consume until a listener, or another thread, calls `stop`, or until Ctrl-C or SIGTERM; then close.

        SIGTERM is left alone with `signals=False`, and if the program handles or ignores it itself. Raises
        `UsageError` if no topic is subscribed to.
        """
        self._async.check_subscribed()
        with sigterm_calls(self._terminate) if signals else nullcontext(), self:
            try:
                if not self._terminated:
                    self.wait()
            except KeyboardInterrupt:
                pass  # the usual end of a program that consumes

    def wait(self) -> None:
        """Wait until `stop` or `close` is called. Raises the error that ended the consumer, see `AsyncConsumer.wait`.

        Ctrl-C raises `KeyboardInterrupt`.
        """
        if (failure := self._runner.run(self._async.ended)) is not None:
            raise failure  # not on the loop: it would end the thread that turns it

    def stop(self) -> None:
        """Let `wait` return, without closing. For listeners and other threads."""
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
        """Call a listener with the topic's messages that have these tags (`*`, `a`, `a || b`).

        `sql` selects by properties instead: `price > 5 AND region IN ('EU', 'US')`. Without a listener, a decorator is
        returned. A topic has one listener, the latest; with a `type` it gets values of that type, see
        `AsyncConsumer.subscribe`. May be called before and after the start.
        """

        def decorate(function: Any) -> Any:
            subscribe = partial(self._async.subscribe, topic, function, **how)
            if self._runner.was_started:
                self._runner.call(subscribe)
            else:
                subscribe()
            return function

        if listener is None:
            return decorate
        decorate(listener)
        return None

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming the topic; soon its offsets are committed and its queues released."""
        if self._runner.was_started:
            self._runner.call(self._async.unsubscribe, topic)
        else:
            self._async.unsubscribe(topic)

    @property
    def client_id(self) -> str:
        """This member's name in its group; set by `start`."""
        return self._async.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The assigned queues in order, without those of the retry topic."""
        return self._async.assignment

    @property
    def damaged_count(self) -> int:
        """Number of damaged or undecodable messages: see `ConsumerConfig.damaged` and `deliver_undecodable`."""
        return self._async.damaged_count

    def _terminate(self) -> None:
        self._terminated = True
        if self._runner.was_started:
            self.stop()
