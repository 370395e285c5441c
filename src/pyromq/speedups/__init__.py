"""The hot path in Cython. Each compiled module does the same work as a Python module, which chooses the compiled form.

`is_active`: True if the compiled modules are used, always all of them. Otherwise `reason` says why not, and what to do.
`hot_path` is the text "compiled" or "plain Python, REASON" for logs and commands.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module

from pyromq.platforms import platform
from pyromq.speedups import compiled_from

KEPT_BYTES = 16 << 20  # bytes of freed memory that a process keeps: three or four of the largest batches

UNITS = (
    "codec",
    "decoding",
    "received",
    "records",
    "batches",
    "intake",
    "requests",
    "fast_path",
    "timed",
    "fast_acl",
    "sends",
    "reads",
    "pulls",
    "pops",
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
    if not platform.HAS_COMPILED_PARTS:
        return "as always outside Linux"
    if changed := compiled_from.changed():
        reason = f"the compiled code is older than its sources ({', '.join(changed)}); run: make install"
        warnings.warn(f"pyromq runs in plain Python: {reason}", RuntimeWarning, stacklevel=2)
        return reason
    for unit in UNITS:
        name = f"{__name__}.{unit}"
        try:
            import_module(name)
        except (ImportError, ValueError) as error:  # ValueError: the sources have changed since the build
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                return f"not built for this Python; {_BUILD}"
            return f"the compiled one does not load ({error}); {_BUILD}"
    return ""


reason = _reason()
is_active = not reason
hot_path = "compiled" if is_active else f"plain Python, {reason}"


def keep_memory() -> None:
    """Let this process keep freed memory for large batches. For programs only: affects the whole process."""
    if is_active:
        import_module(f"{__name__}.batches").keep_memory(KEPT_BYTES)
