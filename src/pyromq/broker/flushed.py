"""When an answer may say that something is done: where flushing is synchronous, once it is on disk.

Sending counts its answers as well, and so does this for itself (`sending`). However flushing goes, some also wait for a
table to be written.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from pyromq.errors import ResponseCode
from pyromq.remoting.command import Reply
from pyromq.store.config import FlushMode
from pyromq.store.message_store import MessageStore

R = TypeVar("R")


def when_flushed(store: MessageStore, reply: Reply) -> Reply | Future[Reply]:
    """Return an answer that leaves when all that is in the log now is on disk, as far as the store is to wait for that.

    If that takes too long its code is FLUSH_DISK_TIMEOUT: what was asked for is done all the same.
    """
    if store.config.flush is not FlushMode.SYNC:
        return reply
    answered: Future[Reply] = Future()
    complete_when_flushed(store, reply, answered)
    return answered


def complete_when_flushed(store: MessageStore, reply: Reply, answered: Future[Reply]) -> None:
    """Complete an answer that others wait for already, as `when_flushed` does."""
    if store.config.flush is not FlushMode.SYNC:
        answered.set_result(reply)
        return

    def flushed(future: Future[bool]) -> None:
        if not future.result():
            reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
        answered.set_result(reply)

    store.wait_flushed(store.max_log_offset).add_done_callback(flushed)


def when_saved(saved: Future[None], reply: R | Future[R]) -> Future[R]:
    """Return an answer that leaves when a table is written as well; the error where it cannot be."""
    answered: Future[R] = Future()
    if isinstance(reply, Future):
        reply.add_done_callback(lambda ready: complete_when_saved(saved, ready.result(), answered))
    else:
        complete_when_saved(saved, reply, answered)
    return answered


def complete_when_saved(saved: Future[None], reply: R, answered: Future[R]) -> None:
    """Complete an answer that others wait for already, as `when_saved` does."""

    def done(saved: Future[None]) -> None:
        if (error := saved.exception()) is not None:
            answered.set_exception(error)
        else:
            answered.set_result(reply)

    saved.add_done_callback(done)
