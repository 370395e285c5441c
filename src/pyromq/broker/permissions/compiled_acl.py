"""What the compiled parts are told of accounts and rights, so that hot requests are judged without Python."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from pyromq import speedups
from pyromq.broker.permissions.rules import is_trace
from pyromq.names import retry_topic
from pyromq.permissions.account import PUB, SUB, Need
from pyromq.remoting.header import Header, header_layout, wire_layout

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.codec import HeaderReader
    from pyromq.speedups.fast_acl import FastAcl

if TYPE_CHECKING:
    from pyromq.broker.shared_state import SharedState


def fast_acl_of(state: SharedState, request: type[Header]) -> FastAcl | None:
    """Return what judges sends or pulls of this spelling; None where permissions are off."""
    if not state.config.permissions:
        return None
    permissions = state.permissions
    names = [field.attribute for field in wire_layout(request)]

    def secret_of(access_key: str) -> str | None:
        account = permissions.in_force.accounts.get(access_key)
        return None if account is None else account.secret_key

    def may(access_key: str, topic: str, group: str | None) -> bool:
        needs: list[Need] = [(topic, PUB)] if group is None else [(topic, SUB), (retry_topic(group), SUB)]
        account = permissions.in_force.accounts.get(access_key)
        return account is not None and (is_trace(needs) or account.lacks(needs) is None)

    return FastAcl(
        HeaderReader(int(request.code), header_layout(request)),
        topic=names.index("topic"),
        group=names.index("consumer_group") if "consumer_group" in names else -1,
        in_force=lambda: permissions.in_force,
        secret_of=secret_of,
        may=may,
        trusts=lambda packed: permissions.in_force.trusts(IPv4Address(packed)),
    )
