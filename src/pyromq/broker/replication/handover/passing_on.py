"""Holds writes while a master hands over, and passes on requests that clients send to a replica that is not the master.

RocketMQ's clients fetch routes only every 30 s, so they send to the former master for that long. Pyromq's clients get
the master's address in the refusal, and connect to the master immediately. A request that was passed on has the
language PYTHON, so no replica passes it on again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import msgspec

from pyromq.clock import Clock
from pyromq.errors import BrokerError, MQError, NotTheMaster, ResponseCode, SystemBusy, Unavailable
from pyromq.logs import logger_of
from pyromq.net.channel import Channel, connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tasks import Tasks, soon_in_this_loop
from pyromq.remoting.codes import ONE_WAY, Language
from pyromq.remoting.command import Call, Reply, Response
from pyromq.remoting.dispatch import Dispatcher, Later, Outcome, refusal
from pyromq.remoting.header import RawFields, wire_fields
from pyromq.remoting.headers import (
    CommitBatch,
    EndTransaction,
    LockQueues,
    QueryConsumerOffset,
    RecallMessage,
    ResumeHalfMessage,
    RollBackBatch,
    SendBatchMessage,
    SendHalfRun,
    SendMessage,
    SendMessageBack,
    SendReplyMessage,
    UnlockQueues,
    UpdateConsumerOffset,
)
from pyromq.remoting.headers.message_headers import SendMessageV2

logger = logger_of(__name__)

WAIT_SECONDS = 1.0  # longest wait of a request until the new master accepts writes
ANSWER_SECONDS = 30.0  # longest wait for the new master's reply; clients give up earlier
MAX_WAITING = 10_000  # limit of waiting requests, equal to the limit of sends that wait for confirmation
MAX_WAITING_BYTES = 64 << 20
_PAUSE_SECONDS = 0.02  # time between two attempts to pass the first request on

# Requests that only a master answers. While a master hands over, these requests of all clients wait.
_WRITES = {
    int(header.code)
    for header in (
        *(SendMessage, SendMessageV2, SendBatchMessage, SendMessageBack, SendReplyMessage, EndTransaction),
        *(ResumeHalfMessage, SendHalfRun, CommitBatch, RollBackBatch, RecallMessage),
    )
}
# Requests that a replica passes on to the master: writes, and those for offsets and locks of groups.
_PASSED = {
    int(header.code)
    for header in (
        *(SendMessage, SendMessageV2, SendBatchMessage, SendMessageBack, EndTransaction),
        *(QueryConsumerOffset, UpdateConsumerOffset, LockQueues, UnlockQueues),
    )
}
_NOT_YET = {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE}  # how a follower refuses writes


class _Waiting(msgspec.Struct, gc=False, eq=False):
    call: Call
    answered: Later
    since: float


class PassingOn:
    """The requests that wait for the new master at one replica, in the order in which they arrived.

    The dispatcher calls `divert` for each request, and answers the requests for which it returns None. `dispatcher`
    also answers requests that stop waiting. Requests of one connection reach the new master in their order.
    """

    def __init__(self, connections: ConnectionConfig, clock: Clock) -> None:
        self.dispatcher: Dispatcher | None = None  # the dispatcher of the present broker
        self._connections = replace(connections, signer=None, hooks=())  # requests are passed on as they were signed
        self._clock = clock
        self._is_holding = False
        self._is_master = False
        self._answered_here: Call | None = None  # the request that `dispatcher` answers now, so `divert` ignores it
        self._master: str | None = None  # address of the other replica that is master; None: unknown
        self._is_at_work = False  # whether the new master has accepted a write
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0  # of the bodies in the queue
        self._channel: Channel | None = None
        self._tasks = Tasks()
        self._passing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def divert(self, call: Call) -> Outcome | None:
        """Return the future of the reply to a request that waits or is passed on; None for any other request.

        Raises `SystemBusy` if too many requests wait.
        """
        if self._is_holding:
            return self._enter(call) if call.code in _WRITES else None
        if self._is_master or not _may_be_passed(call) or call is self._answered_here:
            return None
        return self._enter(call)

    def hold(self) -> None:
        """Make new writes wait until `pass_to` or `serve` is called. The old master calls this to start a handover."""
        self._is_holding = True

    def pass_to(self, master: str | None) -> None:
        """Pass requests of clients of other languages on to this master; None: the master is not known yet.

        The broker answers the waiting requests that are not passed on.
        """
        if master != self._master:
            self._master, self._is_at_work = master, False
            self._drop_channel()
        self._is_master = False
        self._release()

    def serve(self) -> None:
        """Make the broker, as the master, answer all requests, including the waiting ones."""
        self._master, self._is_master = None, True
        self._drop_channel()
        self._release()

    def _release(self) -> None:
        waiting, self._queue, self._bytes = self._queue, deque(), 0
        self._is_holding = False
        for each in waiting:
            if self._is_master or not _may_be_passed(each.call):
                self._answer_here(each)
            else:
                self._append(each)

    async def stop(self) -> None:
        """Make the broker answer all waiting requests, and close the connection to the master."""
        channel = self._channel
        self.serve()
        await self._tasks.stop()
        if channel is not None:
            await channel.close()

    # -- waiting

    def _enter(self, call: Call) -> Later:
        if len(self._queue) >= MAX_WAITING or self._bytes + len(call.body) > MAX_WAITING_BYTES:
            raise SystemBusy("[OVERLOAD]too many requests wait for the new master")
        waiting = _Waiting(call, Later(), self._clock.monotonic())
        self._append(waiting)
        return waiting.answered

    def _append(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        self._bytes += len(waiting.call.body)
        if self._passing is None and not self._is_holding:
            self._passing = self._tasks.start(self._pass_all(), name="pass requests on")

    def _take(self) -> _Waiting:
        waiting = self._queue.popleft()
        self._bytes -= len(waiting.call.body)
        return waiting

    def _answer_here(self, waiting: _Waiting) -> None:
        assert self.dispatcher is not None
        self._answered_here = waiting.call
        outcome = self.dispatcher.dispatch(waiting.call)
        self._answered_here = None
        if isinstance(outcome, Reply):
            waiting.answered.set_result(outcome)
        elif isinstance(outcome, Later):
            outcome.add_done_callback(partial(_complete, waiting.answered))
        else:  # the future may complete in another thread
            run_soon = soon_in_this_loop()
            outcome.add_done_callback(lambda done: run_soon(partial(_complete, waiting.answered, done)))

    # -- passing on

    async def _pass_all(self) -> None:
        try:
            while self._queue:
                if self._master is not None:
                    await self._pass_first(self._master)
                elif self._clock.monotonic() - self._queue[0].since < WAIT_SECONDS:
                    await asyncio.sleep(_PAUSE_SECONDS)
                else:
                    self._answer_here(self._take())
        finally:
            self._passing = None

    async def _pass_first(self, master: str) -> None:
        """Pass on the first request, or wait a little if the new master does not accept writes yet."""
        first = self._queue[0]
        if first.call.peer.closed:  # its client has given up, and sends the request again
            self._take().answered.set_result(Reply())
            return
        try:
            channel = await self._open(master)
            if self._is_at_work:
                await channel.writable(first.call.code, ANSWER_SECONDS)
                if self._is_first(first, master):
                    self._send(channel, self._take())
                return
            response: Response | MQError = await self._ask(channel, first.call)
        except MQError as error:
            response = error
        if not self._is_first(first, master):
            return
        is_refused = self._is_refused(response, first.call.code)
        if is_refused and self._clock.monotonic() - first.since < WAIT_SECONDS:
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        self._finish(self._take(), response)
        self._is_at_work = first.call.code in _WRITES and not is_refused

    def _is_first(self, waiting: _Waiting, master: str) -> bool:
        """Whether the request is still the first one, and the master still the same."""
        return master == self._master and bool(self._queue) and self._queue[0] is waiting

    async def _open(self, master: str) -> Channel:
        if self._channel is None or self._channel.closed:
            channel = await connect(master, Dispatcher(), self._clock, connections=self._connections)
            if master != self._master:
                await channel.close()
                raise Unavailable(f"{master} is not the master any more")
            self._channel = channel
            logger.info("requests of clients are passed on to the master %s", master)
        return self._channel

    async def _ask(self, channel: Channel, call: Call) -> Response:
        header = _as_received(call)
        if call.flag & ONE_WAY:
            channel.notify(header, call.body)
            return Response(0, 0)
        return await channel.call(header, call.body, timeout=ANSWER_SECONDS)

    def _send(self, channel: Channel, waiting: _Waiting) -> None:
        call = waiting.call
        header = _as_received(call)
        if call.flag & ONE_WAY:
            channel.notify(header, call.body)
            waiting.answered.set_result(Reply())
            return
        channel.ask(header, call.body, timeout=ANSWER_SECONDS, answered=partial(self._finish, waiting))

    @staticmethod
    def _is_refused(response: Response | MQError, code: int) -> bool:
        """Whether the other replica has not processed a request, because it is not the master or cannot be reached."""
        return isinstance(response, MQError) or (code in _WRITES and response.code in _NOT_YET)

    def _finish(self, waiting: _Waiting, response: Response | MQError) -> None:
        if isinstance(response, MQError):
            logger.info("request %d was not passed on: %s", waiting.call.code, response)
            self._is_at_work = False
            error: BrokerError = NotTheMaster(self._master)
            if waiting.call.code == EndTransaction.code:
                error = NotTheMaster(self._master, ResponseCode.SLAVE_NOT_AVAILABLE)
            waiting.answered.set_result(refusal(error))
            return
        header = RawFields(response.code, response.fields)
        waiting.answered.set_result(Reply(header, response.body, response.code, response.remark))

    def _drop_channel(self) -> None:
        """Close the connection when its requests are answered or have timed out."""
        if self._channel is not None:
            self._tasks.start(_close_later(self._channel), name="close the connection to a former master")
            self._channel = None


def _may_be_passed(call: Call) -> bool:
    return call.code in _PASSED and call.language != Language.PYTHON.name


def _as_received(call: Call) -> RawFields:
    """Return the fields of a request as the client sent them, because its signature covers them."""
    assert call.header is not None
    return RawFields(call.code, call.fields if call.fields is not None else wire_fields(call.header))


def _complete(answered: Later, done: Future[Reply] | Later) -> None:
    answered.set_result(done.exception() or done.result())


async def _close_later(channel: Channel) -> None:
    """Close a connection when its requests are answered or have timed out."""
    while channel.session.waiting and not channel.closed:
        await asyncio.sleep(_PAUSE_SECONDS)
    await channel.close()
