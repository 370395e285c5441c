"""What a process of Spark's that reads or writes does with memory: it lives for many tasks."""

from __future__ import annotations

import gc

LARGE_BYTES = 24 << 20


def keep_memory() -> None:
    """Suit this process to many short tasks. To be called when modules are loaded; once for each client is fine.

    Spark's workers have Python look for unreachable objects after each task, among all that Spark, pandas and we are
    made of: 20 ms. What is here now stays, so it need not be looked at. And one large block is taken and freed: the C
    library keeps blocks up to that size from then on, instead of giving each back to the kernel and getting it again by
    pages, a quarter of what reading costs. Elsewhere that does nothing.
    """
    gc.freeze()
    bytes(LARGE_BYTES)
