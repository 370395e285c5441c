"""What a listener has got."""

import asyncio
import threading

from tests.waiting import PATIENCE_SECONDS


class Seen:
    """A listener that keeps what it got, and lets a test wait for it."""

    def __init__(self):
        self.messages = []
        self.threads = set()
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()

    def __call__(self, messages):
        self.messages += messages
        self.threads.add(threading.current_thread())
        self._loop.call_soon_threadsafe(self._more.set)

    async def wait(self, count):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.messages) < count:
                self._more.clear()
                await self._more.wait()
        return self.bodies

    @property
    def bodies(self):
        return [int(m.body) for m in self.messages]
