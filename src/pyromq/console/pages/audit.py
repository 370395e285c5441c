"""Who changed what, and what became of it."""

from __future__ import annotations

from starlette.responses import Response

from pyromq.console.security.accounts import Role
from pyromq.console.security.audit_log import AuditEntry
from pyromq.console.view.request_context import RequestContext
from pyromq.console.view.routing import view
from pyromq.console.view.table import Table


async def audit(visit: RequestContext) -> Response:
    table = Table[AuditEntry](
        visit.console.audit.recent(),
        visit.query,
        columns={
            "time": lambda each: each.time,
            "account": lambda each: (each.account, each.time),
            "what": lambda each: (each.what, each.time),
            "outcome": lambda each: (each.outcome, each.time),
        },
        sort="-time",
        text=lambda each: " ".join((each.account, each.what, each.outcome, each.error, *each.details.values())),
    )
    return visit.show("audit.html", table=table, path=visit.console.config.data / "audit.log")


ROUTES = [view("/audit", audit, needs=Role.ADMIN)]
