"""The console's own accounts: who may sign in, with which role, and maybe with which account of the brokers."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from pyromq.console.security.accounts import Role
from pyromq.console.view.request_context import RequestContext
from pyromq.console.view.routing import change, view
from pyromq.errors import UsageError


async def accounts(visit: RequestContext) -> Response:
    accounts = visit.console.accounts
    known = accounts.find(visit.query.get("edit", ""))
    return visit.show("accounts.html", accounts=accounts.all(), roles=list(Role), known=known)


async def save(visit: RequestContext) -> Response:
    form, console = visit.form, visit.console
    name, password = form.get("name", "").strip(), form.get("password", "")
    if password != form.get("password_again", ""):
        raise UsageError("the two passwords differ; nothing was saved")
    was_open = console.is_open
    if was_open and form.get("role") != Role.ADMIN.text:
        raise UsageError("the first account is an administrator's: else nobody could make another one")
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
    if was_open or name == visit.name:
        return visit.done(f"Account {name} is saved.", "/sign-in")
    return visit.done(f"Account {name} is saved; it signs in again where it was signed in.", "/accounts")


async def delete(visit: RequestContext) -> Response:
    name = visit.form.get("name", "")
    if name == visit.name:
        raise UsageError("this is your own account; another administrator can delete it")
    visit.console.accounts.delete(name)
    visit.console.sessions.end_all_of(name)
    return visit.done(f"Account {name} is deleted.", "/accounts")


ROUTES = [
    view("/accounts", accounts, needs=Role.ADMIN),
    change("/accounts/save", save, needs=Role.ADMIN, what="save account"),
    change("/accounts/delete", delete, needs=Role.ADMIN, what="delete account"),
]
