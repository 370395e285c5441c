"""Routes of pages and of changes: who may come, the form's token, the audit log, and what an error looks like.

A page that nobody waits for any more is not made to its end; a change is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from secrets import compare_digest
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive

from pyromq.console.console import Console
from pyromq.console.security.accounts import Account, Role
from pyromq.console.security.audit_log import DONE, FAILED, REFUSED
from pyromq.console.security.sessions import Session
from pyromq.console.view.request_context import RequestContext, address
from pyromq.errors import (
    AccessDenied,
    BrokerError,
    GroupNotFound,
    MQError,
    NoPermission,
    QueryNotFound,
    TopicNotFound,
    Unavailable,
    UsageError,
)

Handler = Callable[[RequestContext], Coroutine[Any, Any, Response]]

COOKIE = "pyromq-console"
MOST_FORM_BYTES = 64 << 10  # every form without a body: whoever reaches the port may send so much to the sign-in
MOST_MESSAGE_FORM_BYTES = 20 << 20  # a form with a message: 4 MiB as hex, and room
MOST_ENCODED_BYTES = 1 << 20  # percent-encoded (browsers send messages as multipart): decoding a megabyte takes 0.5 s
MOST_FIELDS = 1000  # of one form
NOBODY_WAITS = 499  # as nginx logs it; nobody is there to read it
SECRETS = frozenset({"csrf", "password", "secret_key", "body", "back", "password_again"})
_STATUS = (
    ((TopicNotFound, GroupNotFound, QueryNotFound), 404),
    ((NoPermission, AccessDenied), 403),
    (UsageError, 400),
    (Unavailable, 503),
    (BrokerError, 502),
)


def view(path: str, handler: Handler, *, needs: Role = Role.VIEWER) -> Route:
    """Return the route of a page that shows something."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        session, account = known(request, console)
        if session is None:
            return RedirectResponse(address("sign-in", next=request.url.path + _query(request)), 303)
        visit = RequestContext(request, console, session, account, {})
        if visit.role < needs:
            return refused(visit, needs)
        try:
            return await _while_waited_for(request, asyncio.create_task(handler(visit)))
        except MQError as error:
            return error_page(visit, error)

    return Route(path, endpoint, methods=["GET"], name=handler.__name__)


def change(path: str, handler: Handler, *, needs: Role, what: str, most_form_bytes: int = MOST_FORM_BYTES) -> Route:
    """Return the route of a form that changes something; `what` names it in the audit log."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        session, account = known(request, console)
        if session is None:
            return RedirectResponse(address("sign-in"), 303)
        is_allowed = RequestContext(request, console, session, account, {}).role >= needs
        form = await read_form(request, most_form_bytes if is_allowed else MOST_FORM_BYTES)
        visit = RequestContext(request, console, session, account, form)
        if not compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            return _forged(visit)
        details = {**visit.path, **{name: text for name, text in form.items() if name not in SECRETS}}
        noted = console.audit.asked(what, account=visit.name, address=console.address_of(request), details=details)
        if visit.role < needs:
            console.audit.ended(noted, REFUSED, error=f"needs the role {needs.text}")
            return refused(visit, needs)
        try:
            response = await handler(visit)
        except MQError as error:
            console.audit.ended(noted, FAILED, error=str(error))
            visit.tell("failed", str(error))
            return RedirectResponse(visit.back(), 303)
        except BaseException as error:
            console.audit.ended(noted, FAILED, error=repr(error))
            raise
        finally:
            console.clients_of(account).forget()
        if visit.error is not None:
            console.audit.ended(noted, FAILED, error=str(visit.error), result=visit.result)
        else:
            console.audit.ended(noted, DONE, result=visit.result)
        return response

    return Route(path, endpoint, methods=["POST"], name=handler.__name__)


def known(request: Request, console: Console) -> tuple[Session | None, Account | None]:
    """Return who is there; without accounts everybody has a session, made at the first page."""
    session = console.sessions.find(request.cookies.get(COOKIE))
    if console.is_open:
        if session is None or session.name is not None:
            session = console.sessions.begin(None)
            request.state.new_session = session.key
        return session, None
    account = console.accounts.find(session.name or "") if session is not None else None
    return (session, account) if account is not None else (None, None)


async def read_form(request: Request, most_bytes: int) -> Mapping[str, str]:
    """Return the fields of a form, each once. No more than `most_bytes` of it are kept.

    Raises `UsageError` for a form that is larger, has files, or cannot be read.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        most_bytes = min(most_bytes, MOST_ENCODED_BYTES)
    counted = Request(request.scope, _at_most(request.receive, most_bytes))
    try:
        form = await counted.form(max_files=0, max_fields=MOST_FIELDS, max_part_size=most_bytes)
    except HTTPException as error:
        raise UsageError(f"the form cannot be read: {error.detail}") from error
    return {name: value for name, value in form.items() if isinstance(value, str)}


def _at_most(receive: Receive, most_bytes: int) -> Receive:
    """Return a `receive` that raises `UsageError` for a body of more bytes."""
    read = 0

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most_bytes:
            raise UsageError(f"the form has more than {most_bytes:,} bytes, the limit of this page")
        return message

    return counted


def error_page(visit: RequestContext, error: MQError) -> Response:
    """Return the page of an error: what was said by whom, as it was said."""
    status = next((code for kinds, code in _STATUS if isinstance(error, kinds)), 500)
    return visit.show("error.html", status=status, error=error, kind=type(error).__name__)


def refused(visit: RequestContext, needs: Role) -> Response:
    return visit.show("refused.html", status=403, needs=needs.text)


async def _while_waited_for(request: Request, made: asyncio.Task[Response]) -> Response:
    """Return the answer; if the browser goes before that, end the work."""
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((made, gone), return_when=asyncio.FIRST_COMPLETED)
        return await made if made.done() else Response(status_code=NOBODY_WAITS)
    finally:
        for each in (made, gone):
            each.cancel()
        await asyncio.gather(made, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _forged(visit: RequestContext) -> Response:
    visit.tell("failed", "This form was not sent: it is from another session. Here it is again; nothing was changed.")
    return RedirectResponse(visit.back(), 303)


def _query(request: Request) -> str:
    return f"?{request.url.query}" if request.url.query else ""
