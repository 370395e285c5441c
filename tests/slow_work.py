"""Slow work taken slice by slice."""

from pyromq.store.disk import LOCAL_DISK


def steps_of(work):
    """Yield after each slice of the work; pages that it needs are loaded. The generator returns the work's result."""
    try:
        while True:
            if pages := work.send(None):
                LOCAL_DISK.load(pages)
            yield
    except StopIteration as done:
        return done.value
    finally:
        work.close()
