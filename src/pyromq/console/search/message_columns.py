"""The columns of the list of messages, which each viewer chooses. A cookie keeps the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

COLUMNS = {  # by their name in addresses; a list always shows the key
    "stored": "Stored",
    "topic": "Topic",
    "key": "Key or id",
    "tag": "Tag",
    "place": "Queue:offset",
    "sent": "Sent",
    "size": "Size",
    "attempts": "Attempts",
    "body": "Body",
}
DEFAULT = ("stored", "key", "tag", "place", "body")
COLUMNS_COOKIE = "pyromq-columns"
COLUMNS_SECONDS = 365 * 86400  # how long a browser keeps the choice
MAX_FIELDS = 10  # limit of columns of properties and of fields of JSON bodies: more do not fit on a screen
MAX_FIELD_NAME = 100  # limit of characters in their names


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The columns of a list of messages.

    `names` are some of `COLUMNS`. A field is a property of the messages, or `body_NAME` for the field NAME of JSON
    bodies.
    """

    names: tuple[str, ...] = DEFAULT
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], fields: str) -> MessageColumns:
        """Return the columns of these names, in the order of `COLUMNS`, and the fields of a string with spaces."""
        chosen = [name for name in COLUMNS if name in names or name == "key"]
        wanted = dict.fromkeys(each for each in fields.replace(",", " ").split() if len(each) <= MAX_FIELD_NAME)
        return cls(tuple(chosen), tuple(wanted)[:MAX_FIELDS])

    @classmethod
    def of_cookie(cls, cookie: str | None) -> MessageColumns:
        """Return the columns that a cookie keeps; the default columns without a cookie."""
        if not cookie:
            return cls()
        names, _, fields = unquote(cookie).partition(" ")
        return cls.of(names.split(","), fields)

    @property
    def cookie(self) -> str:
        return quote(" ".join((",".join(self.names), *self.fields)), safe="")

    def shown(self, *, with_topic: bool) -> dict[str, str]:
        """Return the titles of the columns by name. `with_topic` adds the topic, for a list of several topics."""
        wanted = {*self.names, "topic"} if with_topic else set(self.names)
        return {name: title for name, title in COLUMNS.items() if name in wanted}
