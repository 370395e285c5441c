"""Makes the routes of pages and changes, which check roles and form tokens, write the audit log and show errors.

If the browser disconnects, a page is cancelled; a change runs to its end.
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

from pyromq import errors
from pyromq.console.console import Console
from pyromq.console.security.console_accounts import ConsoleAccount, Role
from pyromq.console.security.console_audit_log import DONE, FAILED, REFUSED
from pyromq.console.security.sessions import BrowserSession, RefusedForm
from pyromq.console.view.error_texts import advice_for, notice_text
from pyromq.console.view.request_context import PASSWORDS, SECRETS, RequestContext, address, local_path
from pyromq.errors import MQError, UsageError

Handler = Callable[[RequestContext], Coroutine[Any, Any, Response]]

COOKIE = "pyromq-console"
FORM_COOKIE = "pyromq-console-form"  # key of a form that was sent after its session had ended
SESSION_ENDED = "Nothing was changed: your session had ended. The form is as you typed it; send it again."
MAX_FORM_BYTES = 64 << 10  # limit of a form without a message: visitors may send this much before signing in
MAX_MESSAGE_FORM_BYTES = 20 << 20  # limit of a form with a message: a body of 4 MiB as hex takes 8 MiB
MAX_ENCODED_BYTES = 1 << 20  # limit of a percent-encoded form: decoding a megabyte takes 0.5 s
MAX_FIELDS = 1000  # limit of fields in one form
CLIENT_CLOSED_REQUEST = 499  # status for a browser that has disconnected, as in nginx's logs
_STATUS = (
    ((errors.TopicNotFound, errors.GroupNotFound, errors.QueryNotFound), 404),
    ((errors.NoPermission, errors.AccessDenied), 403),
    ((UsageError, errors.SubscriptionParseFailed), 400),
    (errors.Unavailable, 503),
    (errors.BrokerError, 502),
)


def view(path: str, handler: Handler, *, needs: Role = Role.VIEWER) -> Route:
    """Return the route of a page that only shows something."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        session, account = session_of(request, console)
        if session is None:
            return RedirectResponse(address("sign-in", next=request.url.path + _query(request)), 303)
        context = RequestContext(request, console, session, account, {})
        if context.role < needs:
            return refused(context, needs)
        try:
            return await _unless_disconnected(request, asyncio.create_task(handler(context)))
        except MQError as error:
            return error_page(context, error)

    return Route(path, endpoint, methods=["GET"], name=handler.__name__)


def change(path: str, handler: Handler, *, needs: Role, what: str, max_form_bytes: int = MAX_FORM_BYTES) -> Route:
    """Return the route of a form that changes something. `what` names the change in the audit log."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        session, account = session_of(request, console)
        if session is None:
            return await _keep_for_sign_in(request, console)
        is_allowed = RequestContext(request, console, session, account, {}).role >= needs
        form = await read_form(request, max_form_bytes if is_allowed else MAX_FORM_BYTES)
        context = RequestContext(request, console, session, account, form)
        if not compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            return _wrong_token(context)
        details = {**context.path, **{name: text for name, text in form.items() if name not in SECRETS}}
        noted = console.audit.asked(what, account=context.name, address=console.address_of(request), details=details)
        if context.role < needs:
            console.audit.ended(noted, REFUSED, error=f"needs the role {needs.text}")
            return refused(context, needs)
        try:
            response = await handler(context)
        except MQError as error:
            console.audit.ended(noted, FAILED, error=str(error))
            return context.refuse(notice_text(error))
        except BaseException as error:
            console.audit.ended(noted, FAILED, error=repr(error))
            raise
        finally:
            console.clients_of(account).forget()
        if context.error is not None:
            console.audit.ended(noted, FAILED, error=str(context.error), result=context.result)
        else:
            console.audit.ended(noted, DONE, result=context.result)
        return response

    return Route(path, endpoint, methods=["POST"], name=handler.__name__)


def session_of(request: Request, console: Console) -> tuple[BrowserSession | None, ConsoleAccount | None]:
    """Return the session and the account of a request; (None, None) if the visitor must sign in.

    If the console has no accounts, every visitor gets a session with the first page.
    """
    is_open = console.is_open  # first, because a changed account ends its sessions
    session = console.sessions.find(request.cookies.get(COOKIE))
    if is_open:
        if session is None or session.name is not None:
            session = console.sessions.begin(None)
            request.state.new_session = session.key
        return session, None
    account = console.accounts.find(session.name or "") if session is not None else None
    return (session, account) if account is not None else (None, None)


async def read_form(request: Request, max_bytes: int) -> Mapping[str, str]:
    """Return the fields of a form, of which at most `max_bytes` are read.

    Raises `UsageError` if the form is larger, contains files or is malformed.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        max_bytes = min(max_bytes, MAX_ENCODED_BYTES)
    counted = Request(request.scope, _at_most(request.receive, max_bytes))
    try:
        form = await counted.form(max_files=0, max_fields=MAX_FIELDS, max_part_size=max_bytes)
    except HTTPException as error:
        raise UsageError(f"the form cannot be read: {error.detail}") from error
    return {name: value for name, value in form.items() if isinstance(value, str)}


def _at_most(receive: Receive, max_bytes: int) -> Receive:
    """Return an ASGI `receive` that raises `UsageError` if the request body exceeds `max_bytes`."""
    read = 0

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > max_bytes:
            raise UsageError(f"the form has more than {max_bytes:,} bytes, the limit of this page")
        return message

    return counted


def error_page(context: RequestContext, error: MQError) -> Response:
    """Return a page that shows an error as a sentence, with the next step."""
    return context.show("error.html", status=status_of(error), error=error, advice=advice_for(error))


def status_of(error: MQError) -> int:
    """Return the HTTP status of a page that shows an error."""
    return next((code for kinds, code in _STATUS if isinstance(error, kinds)), 500)


def refused(context: RequestContext, needs: Role) -> Response:
    return context.show("refused.html", status=403, needs=needs.text)


async def _keep_for_sign_in(request: Request, console: Console) -> Response:
    """Keep a form of a visitor whose session has ended, without its passwords; return a redirect to signing in.

    The key of the form is in a cookie, and only a form of this console's own pages is kept: a stranger cannot show a
    visitor a form that the stranger has filled.
    """
    try:
        form = await read_form(request, MAX_FORM_BYTES)
    except UsageError:  # too large for a stranger's form
        return RedirectResponse(address("sign-in", form="lost"), 303)
    response = RedirectResponse(address("sign-in", next=local_path(form.get("back", "/"))), 303)
    if request.headers.get("sec-fetch-site") == "same-origin":
        fields = {name: value for name, value in form.items() if name not in PASSWORDS}
        key = console.kept_forms.keep(RefusedForm(request.url.path, fields, SESSION_ENDED))
        secure = console.config.speaks_https
        response.set_cookie(FORM_COOKIE, key, path="/sign-in", httponly=True, samesite="lax", secure=secure)
    return response


async def _unless_disconnected(request: Request, page: asyncio.Task[Response]) -> Response:
    """Return the response of a page. If the browser disconnects first, cancel the page."""
    disconnected = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((page, disconnected), return_when=asyncio.FIRST_COMPLETED)
        return await page if page.done() else Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        for each in (page, disconnected):
            each.cancel()
        await asyncio.gather(page, disconnected, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _wrong_token(context: RequestContext) -> Response:
    return context.refuse("Nothing was changed: the form is from another session. Send it again from this page.")


def _query(request: Request) -> str:
    return f"?{request.url.query}" if request.url.query else ""
