"""Judges requests by the accounts: whether it is they who ask, and whether they may. The texts are ours."""

from __future__ import annotations

from collections.abc import Sequence

from pyromq import speedups
from pyromq.broker.permissions.rules import Rules, is_trace, needs_administrator
from pyromq.errors import DENIED, AccessDenied, MQError
from pyromq.permissions.account import Account, resource_name, right_name
from pyromq.permissions.authentication import REFUSED, Authentication, denied
from pyromq.permissions.permissions import Permissions
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Call
from pyromq.remoting.refusals import Refusals


class PermissionGuard:
    """Asked for every request while permissions are on."""

    reads_fields = True
    is_compiled = speedups.is_active  # by `express_permits`

    def __init__(self, permissions: Permissions, rules: Rules, refusals: Refusals) -> None:
        self._authentication = Authentication(permissions)
        self._rules = rules
        self._refusals = refusals

    def judge(self, calls: Sequence[Call]) -> Sequence[MQError | None]:
        """Return for each call the error it is refused with, or None."""
        return [self._judged(call) for call in calls]

    def _judged(self, call: Call) -> MQError | None:
        try:
            self.check(call)
        except AccessDenied as error:
            reason = str(error).removeprefix(DENIED)
            self._refusals.note(REFUSED, call.peer.address, "%s is refused: %s", call.peer.address, reason)
            return error
        except MQError as error:  # a body that cannot be read
            return error
        return None

    def check(self, call: Call) -> None:
        """Raise `AccessDenied` naming account, right and resource, or what else is missing. Sets the call's account."""
        account = self._authentication.account_of(call)
        call.account = None if account is None else account.access_key
        if account is not None:
            self._check_rights(account, call)

    def _check_rights(self, account: Account, call: Call) -> None:
        if not account.admin and needs_administrator(call.code, self._rules):
            request = RequestCode(call.code).name
            raise denied(
                f"account {account.access_key} is no administrator, which request {call.code} ({request}) needs"
            )
        needs = self._rules.needs(call)
        if not needs or is_trace(needs):
            return
        lacking = account.lacks(needs)
        if lacking is not None:
            resource, right = lacking
            owned = right_name(account.right_on(resource))
            wanted = right_name(right)
            raise denied(f"account {account.access_key} needs {wanted} on {resource_name(resource)} and has {owned}")
