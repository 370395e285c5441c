"""Pages of the console's accounts, of signing in and out, and of the audit log."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from pyromq.console.console import Console
from pyromq.console.console_metrics import SignInRefusal
from pyromq.console.security.console_accounts import MAX_PASSWORD, Role
from pyromq.console.security.console_audit_log import DONE, FAILED, AuditEntry
from pyromq.console.security.sessions import Notice
from pyromq.console.view.request_context import RequestContext, local_path
from pyromq.console.view.routing import FORM_COOKIE, MAX_FORM_BYTES, change, read_form, session_of, view
from pyromq.console.view.table import Table
from pyromq.errors import UsageError
from pyromq.plural import counted

HASHES_AT_ONCE = asyncio.Semaphore(2)  # limit of concurrent password hashes: each takes 64 MiB for about 50 ms


async def accounts(context: RequestContext) -> Response:
    accounts = context.console.accounts
    known = accounts.find(context.query.get("edit", ""))
    return context.show("accounts.html", accounts=accounts.all(), roles=list(Role), known=known)


async def save(context: RequestContext) -> Response:
    form, console = context.form, context.console
    name, password = form.get("name", "").strip(), form.get("password", "")
    if password != form.get("password_again", ""):
        raise UsageError("the two passwords differ; nothing was saved")
    was_open = console.is_open
    clear = "no_keys" in form
    await asyncio.to_thread(  # hashing a password takes 50 ms
        console.accounts.save,
        name,
        role=form.get("role"),
        password=password or None,
        access_key="" if clear else form.get("access_key", "").strip() or None,
        secret_key="" if clear else form.get("secret_key", "").strip() or None,
    )
    console.sessions.end_all_of(name)
    if was_open or name == context.name:
        return context.done(f"Account {name} is saved.", "/sign-in")
    return context.done(f"Account {name} is saved and signed out everywhere.", "/accounts")


async def delete(context: RequestContext) -> Response:
    name = context.form.get("name", "")
    if name == context.name:
        raise UsageError("this is your own account; another administrator can delete it")
    context.console.accounts.delete(name)
    context.console.sessions.end_all_of(name)
    return context.done(f"Account {name} is deleted.", "/accounts")


async def audit(context: RequestContext) -> Response:
    table = Table[AuditEntry](
        context.console.audit.recent(),
        context.query,
        columns={
            "time": lambda each: each.time,
            "account": lambda each: (each.account, each.time),
            "what": lambda each: (each.what, each.time),
            "outcome": lambda each: (each.outcome, each.time),
        },
        sort="-time",
        text=lambda each: " ".join((each.account, each.what, each.outcome, each.error, *each.details.values())),
    )
    return context.show("audit.html", table=table, path=context.console.config.data / "audit.log")


async def form(request: Request) -> Response:
    console: Console = request.app.state.console
    session, _ = session_of(request, console)
    wanted = local_path(request.query_params.get("next", "/"))
    if session is not None:
        return RedirectResponse(wanted, 303)
    return _sign_in_form(request, wanted)


async def sign_in(request: Request) -> Response:
    console: Console = request.app.state.console
    fields = await read_form(request, MAX_FORM_BYTES)
    name, password = fields.get("name", "").strip()[:64], fields.get("password", "")
    wanted = local_path(fields.get("next", "/"))
    peer = console.address_of(request)
    tried = peer, name
    if (pause := console.sign_in_failures.pause(*tried)) > 0:
        console.metrics.refuse_sign_in(SignInRefusal.TOO_MANY)
        text = f"Too many failed sign-ins. Try again in {counted(int(pause) + 1, 'second')}."
        return _sign_in_form(request, wanted, name=name, error=text, status=429)
    console.sign_in_failures.failed(*tried)  # counted before hashing, so that concurrent attempts count, too
    noted = console.audit.asked("sign in", account=name, address=peer, details={})
    async with HASHES_AT_ONCE:
        account = await asyncio.to_thread(console.accounts.signed_in, name, password[:MAX_PASSWORD])
    if account is None:
        console.metrics.refuse_sign_in(SignInRefusal.WRONG)
        console.audit.ended(noted, FAILED, error="wrong name or password")
        return _sign_in_form(request, wanted, name=name, error="Wrong name or password.", status=401)
    console.sign_in_failures.succeeded(*tried)
    console.audit.ended(noted, DONE)
    session = console.sessions.begin(account.name)
    request.state.new_session = session.key
    kept = console.kept_forms.take(request.cookies.get(FORM_COOKIE))
    if kept is not None and kept.fields.get("by") == account.name:  # only the same account sees its typed values
        session.refused = kept
        session.notices.append(Notice("failed", kept.error))
        wanted = local_path(kept.fields.get("back", "/"))
    response = RedirectResponse(wanted, 303)
    response.delete_cookie(FORM_COOKIE, path="/sign-in")
    return response


async def sign_out(context: RequestContext) -> Response:
    context.console.sessions.end(context.session)
    return context.go("/sign-in")


def _sign_in_form(
    request: Request, wanted: str, *, name: str = "", error: str | None = None, status: int = 200
) -> Response:
    kept = request.app.state.console.kept_forms.find(request.cookies.get(FORM_COOKIE))
    form_is = "kept" if kept is not None else "lost" if request.query_params.get("form") == "lost" else ""
    values = {"next": wanted, "name": name, "error": error, "form_is": form_is}
    page = request.app.state.templates.get_template("sign_in.html").render(values)
    return HTMLResponse(page, status)


ROUTES = [
    view("/accounts", accounts, needs=Role.ADMIN),
    change("/accounts/save", save, needs=Role.ADMIN, what="save account"),
    change("/accounts/delete", delete, needs=Role.ADMIN, what="delete account"),
    view("/audit", audit, needs=Role.ADMIN),
    Route("/sign-in", form, methods=["GET"]),
    Route("/sign-in", sign_in, methods=["POST"]),
    change("/sign-out", sign_out, needs=Role.VIEWER, what="sign out"),
]
