"""Reasons of failures without the parts that differ from message to message, so that equal failures can be counted."""

from __future__ import annotations

import re

NO_REASON = "(none)"  # pattern of a dead letter whose consumer sent no reason
MAX_PATTERN = 200  # limit of a pattern's characters; a reason has up to 1,000
LEFT_OUT = "…"

# A status code names the failure, so it stays. Everything else with a digit, and every quoted text, is left out.
_VARIABLE = re.compile(
    r"""(?P<kept>\b(?:HTTP|HTTP Error|status|code|errno)[ :=]{1,2}\d{1,3}\b)"""
    r"""|(?<!\w)(?:'[^']*'|"[^"]*"|`[^`]*`)(?!\w)"""
    r"""|[^\s()\[\]{},;="'`]*\d(?:[^\s()\[\]{},;="'`]*[^\s()\[\]{},;="'`:.])?""",
    re.IGNORECASE,
)
_REPEATED = re.compile(rf"{LEFT_OUT}(?:[\s,;:.]*{LEFT_OUT})+")


def reason_pattern(reason: str | None) -> str:
    """Return the pattern of a reason: `no such customer: 4711` has the pattern `no such customer: …`.

    Numbers, ids, addresses and quoted texts are left out; a status code after `HTTP`, `status`, `code` or `errno` is
    kept. Without a reason the pattern is `NO_REASON`.
    """
    if not reason:
        return NO_REASON
    text = _VARIABLE.sub(lambda found: found["kept"] or LEFT_OUT, " ".join(reason[:MAX_PATTERN].split()))
    return _REPEATED.sub(LEFT_OUT, text).rstrip(" .:,;") or LEFT_OUT
