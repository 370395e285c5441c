"""All brokers: where they are, what goes through them, how full their disks are, what their stores hold."""

from __future__ import annotations

from starlette.responses import Response

from pyromq.console.cluster.broker_line import BrokerLine
from pyromq.console.view.request_context import RequestContext
from pyromq.console.view.routing import view
from pyromq.console.view.table import Table


async def brokers(visit: RequestContext) -> Response:
    snapshot = await (await visit.clients()).snapshot()
    table = Table[BrokerLine](
        [BrokerLine(each) for each in snapshot.brokers.values()],
        visit.query,
        columns={
            "name": lambda each: each.broker.name.casefold(),
            "in": lambda each: each.in_per_second or 0.0,
            "out": lambda each: each.out_per_second or 0.0,
            "disk": lambda each: each.disk or 0.0,
            "log": lambda each: each.log_bytes or 0,
            "oldest": lambda each: each.oldest_ms or 0,
        },
        sort="name",
        text=lambda each: " ".join((each.broker.name, each.broker.cluster, *each.broker.addresses.values())),
    )
    return visit.show("brokers.html", table=table, snapshot=snapshot)


ROUTES = [view("/brokers", brokers)]
