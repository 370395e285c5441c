"""Types of command-line arguments that name topics and groups: shell completion, and suggestions for unknown names.

The existing names come from the cluster that the command addresses. If the cluster cannot be reached, there are no
suggestions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from pyromq.cli.connection_options import connections, namesrv_in_use
from pyromq.errors import GroupNotFound, MQError, TopicNotFound
from pyromq.names import is_system_topic

if TYPE_CHECKING:
    from pyromq import Admin

MAX_SUGGESTIONS, MIN_SIMILARITY = 3, 0.8  # limits of suggested names: their number, and the least similarity (0 to 1)
_GIVEN = "pyromq.names"  # key in click's `Context.meta` for the names in this command's arguments


class ClusterName(click.ParamType[str]):
    """Type of an argument that names a topic or a group. `known` lists the existing names."""

    def __init__(self, name: str, known: Callable[[Admin], list[str]]) -> None:
        self.name = name
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail(f"the name of a {self.name} is empty", param, ctx)
        if ctx is not None:
            ctx.meta.setdefault(_GIVEN, {})[self] = value
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = self.ask(ctx)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    def ask(self, ctx: click.Context) -> list[str]:
        """Return the names that exist in the cluster, sorted; an empty list if the cluster cannot be reached."""
        from pyromq import Admin  # imported late: `--help` does not need it

        try:
            with Admin(namesrv_in_use(ctx), connections=connections()) as admin:
                return sorted(self.known(admin))
        except (MQError, OSError):
            return []


def _topics(admin: Admin) -> list[str]:
    return [name for name in admin.topics() if not is_system_topic(name)]


def _groups(admin: Admin) -> list[str]:
    return [group.name for group in admin.groups()]


TOPIC_NAME = ClusterName("topic", _topics)
GROUP_NAME = ClusterName("group", _groups)


@contextmanager
def suggestions(ctx: click.Context) -> Iterator[None]:
    """Add similar existing names to the text of a `TopicNotFound` or `GroupNotFound` raised in the block."""
    try:
        yield
    except (TopicNotFound, GroupNotFound) as error:
        kind = TOPIC_NAME if isinstance(error, TopicNotFound) else GROUP_NAME
        given = ctx.meta.get(_GIVEN, {}).get(kind)
        alike = get_close_matches(given, kind.ask(ctx), MAX_SUGGESTIONS, MIN_SIMILARITY) if given else []
        if not alike:
            raise
        raise type(error)(f"{error} (did you mean {' or '.join(alike)}?)") from error


cluster_option = click.option("--cluster", help="Only on the brokers of this cluster.")
broker_option = click.option("-b", "--broker", help="Only on this broker.")


def place_text(cluster: str | None, broker: str | None = None) -> str:
    """Return where a command acts, for the end of a sentence; "" for every broker."""
    return (f" in cluster {cluster}" if cluster else "") + (f" on broker {broker}" if broker else "")
