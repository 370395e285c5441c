"""Remembers servers that do not answer or refuse connections, so that requests to them fail immediately."""

from __future__ import annotations

from pyromq.clock import Clock
from pyromq.errors import MQError, SilentServer, Unavailable
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Completed

SUSPECT_SECONDS = 0.3  # a server is probed if a request has waited this long and the server has sent nothing since
LIFE_SECONDS = 1.5  # a server that has sent nothing for this long after a probe is silent: users wait for its answers


class SilentServers:
    """The servers that do not answer, by address, for all connections with this object in their `ConnectionConfig`.

    A slow request alone does not make a server silent: `keep_probing` probes the server over a separate connection.
    Requests to a silent server, also those in progress, fail with `SilentServer` until the server answers again. A slow
    server, which answers a probe late, gets twice that time from then on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Silent servers: monotonic time of their last reply, and the reason of the silence.
        self._silent: dict[str, tuple[float, str]] = {}
        self._heard: dict[str, float] = {}  # monotonic time of the last reply to a request
        self._patience: dict[str, float] = {}  # seconds after a probe from which on a server is silent, if slow before
        self.is_probed = False  # whether a task runs `keep_probing`
        self._waiting: dict[str, dict[Completed, float]] = {}  # requests in progress, with the times of their sending

    def since_ms(self, address: str) -> int | None:
        """Return since when a server does not answer (ms since 1970); None for other servers."""
        if (silent := self._silent.get(address)) is None:
            return None
        return int(self._clock.now_ms() - (self._clock.monotonic() - silent[0]) * 1000)

    def reason(self, address: str) -> str | None:
        """Return the reason why a server is silent; None for other servers."""
        silent = self._silent.get(address)
        return None if silent is None else silent[1]

    def check(self, address: str) -> None:
        """Raise `SilentServer` if the server does not answer."""
        if address in self._silent:
            raise self._error(address)

    def lost(self, address: str, error: Unavailable) -> None:
        """Note that no connection to a server can be opened."""
        self.fall_silent(address, str(error))

    def around(self, address: str, answered: Completed) -> Completed:
        """Note a request. Return the function to call with its response or error, instead of `answered`."""
        waiting = self._waiting.setdefault(address, {})

        def complete(result: Response | MQError) -> None:
            if waiting.pop(complete, None) is None:
                return  # the server was found silent meanwhile
            if not isinstance(result, MQError):
                self._replied(address)
            answered(result)

        waiting[complete] = self._clock.monotonic()
        return complete

    def doubtful(self) -> list[str]:
        """Return silent servers, and servers with a request that has waited since their last reply."""
        latest = self._clock.monotonic() - SUSPECT_SECONDS
        suspects = {
            address for address, waiting in self._waiting.items() if any(at < latest for at in waiting.values())
        }
        return sorted(suspects | self._silent.keys())

    def life_seconds(self, address: str) -> float:
        """Return how long after a probe a server may send nothing, before it is silent."""
        return self._patience.get(address, LIFE_SECONDS)

    def has_replied_since(self, address: str, began: float) -> bool:
        """Return whether a server has replied to a request since this monotonic time."""
        return self._heard.get(address, began) > began

    def probe_answered(self, address: str, began: float) -> None:
        """Note the reply to a probe that was sent at this monotonic time. A slow server gets twice its time."""
        self._patience[address] = max(LIFE_SECONDS, 2 * (self._clock.monotonic() - began))
        self._silent.pop(address, None)
        self._replied(address)

    def fall_silent(self, address: str, reason: str) -> None:
        """Note that a server does not answer, and complete its requests with `SilentServer`."""
        waiting = self._waiting.get(address, {})
        before = min(waiting.values(), default=self._clock.monotonic())
        since, _ = self._silent.get(address, (before, ""))
        self._silent[address] = since, reason
        for complete in list(waiting):
            complete(self._error(address))

    def _replied(self, address: str) -> None:
        """Note that a server has replied. The waiting time of its other requests starts again."""
        now = self._heard[address] = self._clock.monotonic()
        if waiting := self._waiting.get(address):
            waiting.update(dict.fromkeys(waiting, now))

    def _error(self, address: str) -> SilentServer:
        since, reason = self._silent[address]
        return SilentServer(f"{reason}, for {self._clock.monotonic() - since:.0f} s now")
