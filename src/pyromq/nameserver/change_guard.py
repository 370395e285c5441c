"""Keeps strangers from changing a name server: what changes something wants an administrator's account.

Questions stay open: clients of every kind ask for routes, signed or not. Upstream's name servers know no accounts.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyromq.errors import DENIED, AccessDenied, MQError
from pyromq.permissions.authentication import REFUSED, Authentication, denied
from pyromq.permissions.permissions import Permissions
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Call
from pyromq.remoting.refusals import Refusals

CHANGES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,  # counts as a sign of life of the broker that it names
    }
)


class ChangeGuard:
    """Asked for every request of a name server that has accounts."""

    reads_fields = True
    is_compiled = False

    def __init__(self, permissions: Permissions, refusals: Refusals) -> None:
        self._authentication = Authentication(permissions)
        self._refusals = refusals

    def judge(self, calls: Sequence[Call]) -> Sequence[MQError | None]:
        """Return for each call the error it is refused with, or None."""
        return [self._judged(call) if call.code in CHANGES else None for call in calls]

    def _judged(self, call: Call) -> MQError | None:
        try:
            account = self._authentication.account_of(call)
            if account is not None and not account.admin:
                name = RequestCode(call.code).name
                raise denied(
                    f"account {account.access_key} is no administrator, which request {call.code} ({name}) needs"
                )
        except AccessDenied as error:
            reason = str(error).removeprefix(DENIED)
            self._refusals.note(REFUSED, call.peer.address, "%s is refused: %s", call.peer.address, reason)
            return error
        return None
