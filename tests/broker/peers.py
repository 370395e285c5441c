"""Connections that nobody is at the other end of."""

from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.remoting_session import RemotingSession
from pyromq.testing import FakeClock


def a_peer():
    return RemotingSession(
        Dispatcher(), FakeClock(), address=("127.0.0.1", 1), wake=lambda: None, run_soon=lambda *_: None
    )
