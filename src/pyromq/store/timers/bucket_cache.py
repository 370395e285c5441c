"""Which of the hours that are far off keep in memory what was read of them: those asked about last, within a bound."""

from __future__ import annotations

from pyromq.store.timers.timer_bucket import TimerBucket

KEPT_MESSAGES = 2_000_000  # over all of these hours; nine bytes each


class BucketCache:
    """Whoever cancels a thousand messages of an hour finds it known, all but the first time.

    The last hour is kept however large it is; it alone has open files.
    """

    def __init__(self) -> None:
        self._counts: dict[TimerBucket, int] = {}  # the one asked about last is the last
        self._messages = 0

    def keep(self, bucket: TimerBucket, *, near: int) -> None:
        """Keep what this one knows, and let go of others for it; those up to hour `near` are nobody's matter here."""
        counts = self._counts
        if (last := next(reversed(counts), bucket)) is not bucket:
            last.close()
        self._messages += bucket.count - counts.pop(bucket, 0)
        counts[bucket] = bucket.count
        while self._messages > KEPT_MESSAGES and len(counts) > 1:
            oldest = next(iter(counts))
            self._messages -= counts.pop(oldest)
            if oldest.hour > near:
                oldest.release()
