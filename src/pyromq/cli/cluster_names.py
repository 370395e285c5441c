"""Names of topics and groups as arguments: shells complete them, and a wrong one is told the names it is like.

Both ask the cluster that the command goes to. Whatever fails there is no matter: there is nothing to propose then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from pyromq.cli.connecting import connections, namesrv_in_use
from pyromq.errors import GroupNotFound, MQError, TopicNotFound
from pyromq.names import is_system_topic

if TYPE_CHECKING:
    from pyromq import Admin

MOST_PROPOSED, LEAST_ALIKE = 3, 0.8  # of 1
_GIVEN = "pyromq.names"  # in the meta of contexts: what the arguments of this run name


class ClusterName(click.ParamType[str]):
    """A topic, or a group; `known` asks a cluster for the names there are."""

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
        """Return the names that the cluster knows, in order; none if it cannot be asked."""
        from pyromq import Admin  # what only prints help need not load it

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
def proposals(ctx: click.Context) -> Iterator[None]:
    """Let an error about a topic or a group that is not there go on with the names it may have meant."""
    try:
        yield
    except (TopicNotFound, GroupNotFound) as error:
        kind = TOPIC_NAME if isinstance(error, TopicNotFound) else GROUP_NAME
        given = ctx.meta.get(_GIVEN, {}).get(kind)
        alike = get_close_matches(given, kind.ask(ctx), MOST_PROPOSED, LEAST_ALIKE) if given else []
        if not alike:
            raise
        raise type(error)(f"{error} (did you mean {' or '.join(alike)}?)") from error
