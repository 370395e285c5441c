"""The console as an ASGI application: pages, static files, security headers, and metrics of requests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

import jinja2
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyromq.console.console import Console
from pyromq.console.console_metrics import NO_PAGE
from pyromq.console.pages import PAGES
from pyromq.console.view.error_texts import sentence
from pyromq.console.view.request_context import RequestContext, page_templates
from pyromq.console.view.routing import CLIENT_CLOSED_REQUEST, COOKIE, error_page, session_of
from pyromq.console.view.viewer_times import ZONE_COOKIE, use_zone
from pyromq.errors import MQError, QueryNotFound, UsageError
from pyromq.remoting.rejection_log import FAILED

STATIC = Path(__file__).with_name("static")

# Content-Security-Policy: only the console's own files, no inline script or style, no framing, no forms to other sites.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}

FAULT = "This page cannot be shown because of an error in the console; see its log."


def make_app(console: Console) -> Starlette:
    """Return the ASGI application; its start opens the console, its end closes the console."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with console:
            yield

    routes = [
        *(route for page in PAGES for route in page.ROUTES),
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]
    pages = {route.app if isinstance(route, Mount) else route.endpoint: route.path for route in routes}
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestMetrics, console=console, pages=pages),
            Middleware(RequestGuard, console=console),
        ],
        exception_handlers={HTTPException: _not_found, UsageError: _bad_request},
        lifespan=lifespan,
    )
    app.state.console = console
    app.state.templates = _templates()
    return app


class RequestMetrics:
    """ASGI middleware that records the status of each request and the time until its response starts.

    `pages` has route paths by endpoint.
    """

    def __init__(self, app: ASGIApp, console: Console, pages: Mapping[object, str]) -> None:
        self._app = app
        self._note = console.metrics.note_request
        self._console = console
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, is_answered = time.perf_counter(), False

        def note(status: int) -> None:
            nonlocal is_answered
            if not is_answered:
                self._note(self._pages.get(scope.get("endpoint"), NO_PAGE), status, time.perf_counter() - began)
            is_answered = True

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                note(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except ClientDisconnect:
            note(CLIENT_CLOSED_REQUEST)
        except Exception as error:  # noqa: BLE001  an error in a page: logged, limited so that logs do not fill a disk
            address = self._console.address_of(HTTPConnection(scope))
            self._console.refusals.note(
                FAILED, address, "a request of %s for %s failed", address, scope["path"], error=error
            )
            if not is_answered:
                await PlainTextResponse(FAULT, 500)(scope, receive, send_noted)


class RequestGuard:
    """ASGI middleware that refuses requests for other hosts and forms of other sites.

    Adds security headers and the session cookie, and sets the viewer's time zone.
    """

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        connection.state.new_session = None
        use_zone(connection.cookies.get(ZONE_COOKIE))
        is_file = scope["path"].startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["cache-control"] = "public, max-age=31536000, immutable" if is_file else "no-store"
                if self._console.config.speaks_https:
                    headers["strict-transport-security"] = "max-age=31536000"
                if connection.state.new_session:
                    headers.append("set-cookie", self._cookie(connection.state.new_session))
            await send(message)

        if (refusal := self._refusal(connection, scope["method"])) is not None:
            await PlainTextResponse(refusal, 421)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, connection: HTTPConnection, method: str) -> str | None:
        host = connection.headers.get("host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        config = self._console.config
        known = {"localhost", config.host.lower(), *map(str.lower, config.names)}
        if name not in known and not _is_ip(name):
            return f"The console does not accept host name {name[:100]!r}. Its operator can allow it with --name."
        if method == "POST" and connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "The form belongs to another site. Nothing was changed."
        return None

    def _cookie(self, key: str) -> str:
        secure = "; Secure" if self._console.config.speaks_https else ""
        return f"{COOKIE}={key}; Path=/; HttpOnly; SameSite=Lax{secure}"


def _is_ip(name: str) -> bool:
    """Return whether the host is an IP address.

    A name could be pointed at this console through DNS, an IP address cannot.
    """
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@cache
def _templates() -> jinja2.Environment:
    """Return the templates, which are compiled once a process: consoles of tests share them."""
    return page_templates(_assets())


def _assets() -> dict[str, str]:
    """Return the address of each static file by name.

    An address has a hash of the file's content, so browsers may cache the file for ever.
    """
    return {
        path.name: f"/static/{path.name}?{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
        for path in sorted(STATIC.iterdir())
        if path.is_file()
    }


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"page {request.url.path[:200]} does not exist"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"page {request.url.path[:200]} does not accept method {request.method[:20]}"
    return _error_response(request, QueryNotFound(text), error.status_code)


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, MQError)
    return _error_response(request, error, 400)


def _error_response(request: Request, error: MQError, status: int) -> Response:
    console: Console = request.app.state.console
    session, account = session_of(request, console)
    if session is None:
        return PlainTextResponse(sentence(error), status)
    page = error_page(RequestContext(request, console, session, account, {}), error)
    page.status_code = status
    return page
