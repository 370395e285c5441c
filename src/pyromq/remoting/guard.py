"""Who may ask what: the seam for permissions, asked before requests are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyromq.errors import MQError
from pyromq.remoting.command import Call


class Guard(Protocol):
    """Judges the calls of a burst together, in order; only calls whose headers fit their codes.

    `reads_fields`: whether it needs `Call.fields`, the fields as they came, undeclared ones among them. Keeping them
    costs a second look at each header. `is_compiled`: whether compiled answers judge by it as well.
    """

    reads_fields: bool
    is_compiled: bool

    def judge(self, calls: Sequence[Call]) -> Sequence[MQError | None]:
        """Return for each call the error it is refused with, or None."""
