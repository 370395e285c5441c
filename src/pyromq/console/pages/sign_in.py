"""Signing in and out. Five tries of a name from an address are free; then each one waits longer."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from pyromq.console.console import Console
from pyromq.console.metrics import SignInRefusal
from pyromq.console.security.accounts import MOST_PASSWORD, Role
from pyromq.console.security.audit_log import DONE, FAILED
from pyromq.console.view.request_context import RequestContext, local_path
from pyromq.console.view.routing import MOST_FORM_BYTES, change, known, read_form
from pyromq.plural import counted

HASHES_AT_ONCE = asyncio.Semaphore(2)  # each takes 64 MiB for some 50 ms


async def form(request: Request) -> Response:
    console: Console = request.app.state.console
    session, _ = known(request, console)
    wanted = local_path(request.query_params.get("next", "/"))
    if session is not None:
        return RedirectResponse(wanted, 303)
    return _shown(console, wanted)


async def sign_in(request: Request) -> Response:
    console: Console = request.app.state.console
    fields = await read_form(request, MOST_FORM_BYTES)
    name, password = fields.get("name", "").strip()[:64], fields.get("password", "")
    wanted = local_path(fields.get("next", "/"))
    peer = console.address_of(request)
    tried = peer, name
    if (pause := console.tries.pause(*tried)) > 0:
        console.metrics.refuse_sign_in(SignInRefusal.TOO_MANY)
        text = f"Too many failed tries. The next one is possible in {counted(int(pause) + 1, 'second')}."
        return _shown(console, wanted, name=name, error=text, status=429)
    console.tries.failed(*tried)  # before the hash is made, so that tries side by side count as well
    noted = console.audit.asked("sign in", account=name, address=peer, details={})
    async with HASHES_AT_ONCE:
        account = await asyncio.to_thread(console.accounts.signed_in, name, password[:MOST_PASSWORD])
    if account is None:
        console.metrics.refuse_sign_in(SignInRefusal.WRONG)
        console.audit.ended(noted, FAILED, error="wrong name or password")
        return _shown(console, wanted, name=name, error="Wrong name or password.", status=401)
    console.tries.succeeded(*tried)
    console.audit.ended(noted, DONE)
    request.state.new_session = console.sessions.begin(account.name).key
    return RedirectResponse(wanted, 303)


async def sign_out(visit: RequestContext) -> Response:
    visit.console.sessions.end(visit.session)
    return visit.go("/sign-in")


def _shown(console: Console, wanted: str, *, name: str = "", error: str | None = None, status: int = 200) -> Response:
    page = console.templates.get_template("sign_in.html").render(next=wanted, name=name, error=error)
    return HTMLResponse(page, status)


ROUTES = [
    Route("/sign-in", form, methods=["GET"]),
    Route("/sign-in", sign_in, methods=["POST"]),
    change("/sign-out", sign_out, needs=Role.VIEWER, what="sign out"),
]
