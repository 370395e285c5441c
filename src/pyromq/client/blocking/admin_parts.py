"""The parts of the blocking admin client: those of the async one behind its `Portal`, with no behaviour of their own.

Signatures and contracts are those of the async methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pyromq.client.admin.accounts import Accounts
from pyromq.client.admin.exports import Exports
from pyromq.client.admin.members import Members
from pyromq.client.admin.messages.delay_levels import DelayLevels
from pyromq.client.admin.overviews import Overviews
from pyromq.client.admin.servers import Servers
from pyromq.client.blocking.portal import Portal

P = ParamSpec("P")
T = TypeVar("T")


class BlockingMembers:
    """`admin.members`; see `Members`."""

    def __init__(self, portal: Portal, members: Members) -> None:
        self.running = _blocking(portal, members.running)
        self.all_running = _blocking(portal, members.all_running)
        self.offsets = _blocking(portal, members.offsets)
        self.consume = _blocking(portal, members.consume)
        self.producers = _blocking(portal, members.producers)
        self.tracks = _blocking(portal, members.tracks)
        self.groups_of_topic = _blocking(portal, members.groups_of_topic)
        self.troubles = members.troubles


class BlockingServers:
    """`admin.servers`; see `Servers`."""

    def __init__(self, portal: Portal, servers: Servers) -> None:
        self.change_settings = _blocking(portal, servers.change_settings)
        self.settings_at_next_start = _blocking(portal, servers.settings_at_next_start)
        self.name_server_settings = _blocking(portal, servers.name_server_settings)
        self.change_name_server_settings = _blocking(portal, servers.change_name_server_settings)
        self.clean_topics = _blocking(portal, servers.clean_topics)
        self.clean_queues = _blocking(portal, servers.clean_queues)
        self.statistic = _blocking(portal, servers.statistic)
        self.progress = _blocking(portal, servers.progress)
        self.round_trips = _blocking(portal, servers.round_trips)


class BlockingAccounts:
    """`admin.accounts`; see `Accounts`."""

    def __init__(self, portal: Portal, accounts: Accounts) -> None:
        self.tables = _blocking(portal, accounts.tables)
        self.save = _blocking(portal, accounts.save)
        self.delete = _blocking(portal, accounts.delete)
        self.replace_white_list = _blocking(portal, accounts.replace_white_list)
        self.rights = _blocking(portal, accounts.rights)


class BlockingOverviews:
    """`admin.overviews`; see `Overviews`."""

    def __init__(self, portal: Portal, overviews: Overviews) -> None:
        self.topics = _blocking(portal, overviews.topics)
        self.groups = _blocking(portal, overviews.groups)
        self.rates = _blocking(portal, overviews.rates)
        self.figures = _blocking(portal, overviews.figures)


class BlockingDelayLevels:
    """`admin.delay_levels`; see `DelayLevels`."""

    def __init__(self, portal: Portal, levels: DelayLevels) -> None:
        self.all = _blocking(portal, levels.all)
        self.waiting = _blocking(portal, levels.waiting)


class BlockingExports:
    """`admin.exports`; see `Exports`."""

    def __init__(self, portal: Portal, exports: Exports) -> None:
        self.settings = _blocking(portal, exports.settings)
        self.metadata = _blocking(portal, exports.metadata)
        self.metrics = _blocking(portal, exports.metrics)


def _blocking(portal: Portal, method: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    @wraps(method)
    def wait(*args: P.args, **kwargs: P.kwargs) -> T:
        return portal.run(method, *args, **kwargs)

    return wait
