"""What compiled answers know of declarations by number is what is declared."""

from __future__ import annotations

import pytest

from pyromq.remoting.header import wire_layout
from pyromq.remoting.headers import PullMessage, SendMessage

sends = pytest.importorskip("pyromq.speedups.sends", reason="the compiled parts are not built")
pulls = pytest.importorskip("pyromq.speedups.pulls", reason="the compiled parts are not built")


@pytest.mark.parametrize(("unit", "header"), [(sends, SendMessage), (pulls, PullMessage)])
def test_fields_stand_where_they_are_declared(unit, header):
    declared = {field.attribute: number for number, field in enumerate(wire_layout(header))}
    assert unit.FIELDS.items() <= declared.items()
