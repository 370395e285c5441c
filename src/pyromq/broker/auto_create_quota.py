"""How many topics, or groups, each connection has had created, just by naming them: it gets a share of what is free.

What was created stays when its connection ends; what counts against the share is forgotten then.
"""

from __future__ import annotations

from pyromq.errors import LimitReached
from pyromq.remoting.connection_limits import share
from pyromq.remoting.remoting_session import RemotingSession


class AutoCreateQuota:
    """Counts them by connection: `what`, in the plural, of which `setting` limits the number."""

    def __init__(self, what: str, setting: str) -> None:
        self._what = what
        self._setting = setting
        self._made: dict[RemotingSession, int] = {}

    def __len__(self) -> int:
        """How many connections have had some created."""
        return len(self._made)

    def note(self, peer: RemotingSession, free: int, most: int) -> None:
        """Count one more of this connection's, where there is room for so many. Raises `LimitReached` beyond its share.

        Everybody may have one. `most` is what the setting says.
        """
        made = self._made.get(peer, 0)
        if made and made >= share(free + made, 0):
            text = f"{made} new {self._what} of this connection are its share; create fewer"
            raise LimitReached(self._setting, most, text)
        if not made:
            peer.on_close += (self._forget,)
        self._made[peer] = made + 1

    def _forget(self, peer: RemotingSession) -> None:
        del self._made[peer]
