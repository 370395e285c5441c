"""Sizes of all containers of a server or client, by the path of attributes that leads to them.

Containers whose size is fixed, for example a deque with a maximum, do not count.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Iterator

CONTAINERS = (dict, set, frozenset, list, tuple, deque)
OTHERS = ("FakeClock",)  # classes of tests, whose containers do not count


def sizes(**roots: object) -> Counter[str]:
    """Return the number of elements at each path; containers at equal paths, for example of all queues, together."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting = deque(roots.items())
    gc.collect()
    while waiting:
        path, each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, deque) and each.maxlen:
            continue
        if isinstance(each, CONTAINERS):
            found[path] += len(each)
            inner = (*each, *each.values()) if isinstance(each, dict) else tuple(each)
            waiting.extend((f"{path}[]", one) for one in inner)
        elif _is_ours(each):
            waiting.extend((f"{path}.{name}", one) for name, one in _attributes(each))
        elif (owner := getattr(each, "__self__", None)) is not None:  # a bound method
            waiting.append((path, owner))
    return found


def grown(before: Counter[str], after: Counter[str], *, least: int) -> dict[str, tuple[int, int]]:
    """Return the paths whose containers have at least `least` more elements, with both numbers."""
    return {path: (before[path], size) for path, size in sorted(after.items()) if size - before[path] >= least}


def _is_ours(each: object) -> bool:
    kind = type(each)
    return str(kind.__module__).startswith("pyromq") and kind.__name__ not in OTHERS


def _attributes(each: object) -> Iterator[tuple[str, object]]:
    """Yield attributes by name; those of compiled classes by their class."""
    own = getattr(each, "__dict__", {})
    named = list(own.items())
    for kind in type(each).__mro__:
        slots = vars(kind).get("__slots__", ())
        named += [(name, getattr(each, name, None)) for name in ([slots] if isinstance(slots, str) else slots)]
    yield from named
    known = {id(own), *(id(value) for _, value in named)}
    for value in gc.get_referents(each):
        if id(value) not in known and not isinstance(value, type):
            yield type(value).__name__, value
