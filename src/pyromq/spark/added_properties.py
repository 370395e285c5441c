"""A tombstone: a message without a body, which RocketMQ does not take. It has a body of one zero byte and a property.

A row with a null body is written so, if option nullBody says it, and read as a row with a null body.
"""

from __future__ import annotations

TOMBSTONE = "TOMBSTONE"  # the property, whose value is `true`
TOMBSTONE_BODY = b"\0"
