"""The compiled parts: the hot path once more, in Cython. Each does what a plain part does, and is chosen beside that.

`is_active`: whether they are used; if not, `reason` says why, and what to do. All or none: a part may count on the
others. `hot_path` is the one wording for people, wherever pyromq says which of the two runs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

KEPT_BYTES = 16 << 20  # three or four batches as large as brokers take them

UNITS = (
    "codec",
    "decoding",
    "records",
    "batches",
    "requests",
    "fast_path",
    "timed",
    "fast_acl",
    "sends",
    "pulls",
    "reactor",
    "indexing",
)

_BUILD = (
    "to compile it, install a C compiler, then pyromq once more into this Python: "
    f"{sys.executable} -m pip install --force-reinstall --no-deps FOLDER, that of its source"
)


def _reason() -> str:
    if os.environ.get("PYROMQ_PURE", "0") not in ("", "0"):
        return "chosen by PYROMQ_PURE"
    for unit in UNITS:
        name = f"{__name__}.{unit}"
        try:
            import_module(name)
        except (ImportError, ValueError) as error:  # a ValueError: built from sources that have changed since
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                return f"not built for this Python; {_BUILD}"
            return f"the compiled one does not load ({error}); {_BUILD}"
    return ""


reason = _reason()
is_active = not reason
hot_path = "compiled" if is_active else f"plain Python, {reason}"


def keep_memory() -> None:
    """Let this process keep memory for large batches. For those who run one: it counts for all that is in it."""
    if is_active:
        import_module(f"{__name__}.batches").keep_memory(KEPT_BYTES)
