"""UPGRADING.md's promises: names that a release has stay, and a new field of our own requests is optional."""

from pyromq.remoting.header import request_headers, wire_layout

from .promised_names import OWN_CODES, recorded, vanished


def test_no_promised_name_vanishes():
    gone = sorted(vanished())
    assert not gone, "keep these as old names, or announce and record their end as UPGRADING.md says"


def test_a_new_field_of_our_requests_is_optional():
    for code, header in request_headers().items():
        if code in OWN_CODES:
            known = recorded().get(f"fields of request {code}")
            required = {field.wire_name for field in wire_layout(header) if field.required}
            assert known is None or required <= known, f"request {code}"
