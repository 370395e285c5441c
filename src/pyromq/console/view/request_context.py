"""The request that a page answers, and the templates that pages are rendered with."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.cluster.cluster_history import ClusterHistory
from pyromq.console.cluster.cluster_snapshot import ClusterSnapshot, lag_level
from pyromq.console.console import Console
from pyromq.console.security.console_accounts import ConsoleAccount, Role
from pyromq.console.security.sessions import BrowserSession, Notice, RefusedForm
from pyromq.console.view import texts
from pyromq.console.view.chart import SPARK_POINTS, ChartLine, bar, chart, spark
from pyromq.console.view.typed_form import TypedForm
from pyromq.console.view.viewer_times import SPANS, TimeRange, field_text, read_time, zone_name
from pyromq.errors import MQError, UsageError

T = TypeVar("T")

PASSWORDS = frozenset({"password", "password_again", "secret_key"})
SECRETS = PASSWORDS | {"csrf", "back", "by", "body"}  # fields that are not in the audit log
MAX_KEPT = 16 << 10  # limit of characters kept of a refused form, in the memory of its session

CHART_SPANS = {"15m": 900.0, "1h": 3600.0, "1d": 86_400.0}  # time ranges of charts, in seconds
CHART_POINTS = 300  # about the number of points of a chart's line
NO_ACCOUNT = "anybody"  # the name of visitors in the audit log and in saved searches while there are no accounts
MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1  # the largest queue id and offset in the protocol


class RequestContext:
    """A request with its session and account. `form` is empty for a GET request.

    `error` and `result` go to the audit log.
    """

    def __init__(
        self,
        request: Request,
        console: Console,
        session: BrowserSession,
        account: ConsoleAccount | None,
        form: Mapping[str, str],
    ) -> None:
        self.request = request
        self.console = console
        self.session = session
        self.account = account
        self.form = form
        self.error: MQError | None = None
        self.result = ""

    @property
    def role(self) -> Role:
        """The role of the visitor. Without accounts every visitor is an administrator."""
        return self.account.rank if self.account is not None else Role.ADMIN

    @property
    def name(self) -> str:
        return self.account.name if self.account is not None else NO_ACCOUNT

    @property
    def templates(self) -> jinja2.Environment:
        found: jinja2.Environment = self.request.app.state.templates
        return found

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def path(self) -> Mapping[str, str]:
        """The named parts of the address path, as the route declares them."""
        return self.request.path_params

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of the form; for a GET request, of the address."""
        return self.form or self.query

    def time(self, name: str) -> int | None:
        """Return a time field in ms since 1970; None for an empty field. Raises `UsageError`."""
        return read_time(self.fields.get(name, ""), self.console.clock.now_ms(), zone=self.fields.get("zone"))

    def time_range(self) -> TimeRange:
        """Return the range of times in the fields. Raises `UsageError`."""
        return TimeRange.of(self.fields, self.console.clock.now_ms())

    def time_text(self, name: str) -> str:
        """Return what a time field shows: the time in the viewer's zone, or the text as typed if it is not a time."""
        try:
            if name in ("since", "until") and self.fields.get("last"):
                return field_text(getattr(self.time_range(), f"{name}_ms"))
            return field_text(self.time(name))
        except UsageError:
            return self.fields.get(name, "")

    @property
    def history(self) -> ClusterHistory:
        return self.console.history

    @property
    def span(self) -> str:
        """The time range of the page's charts, a key of `CHART_SPANS`."""
        span = self.query.get("span", "")
        return span if span in CHART_SPANS else "1h"

    def span_link(self, span: str) -> str:
        """Return the address of this page with another time range of its charts."""
        query = {name: value for name, value in self.query.items() if name != "span"}
        return f"{self.request.url.path}?{urlencode({**query, 'span': span})}"

    def rate_line(self, label: str, what: str, name: str = "", style: str = "one") -> ChartLine:
        """Return a line of a chart with the rates of a counter, as in `ClusterHistory.rates`."""
        points = self.history.rates(what, name, seconds=CHART_SPANS[self.span], most=CHART_POINTS)
        return ChartLine(label, points, style, now=self.history.rate(what, name))

    def value_line(
        self, label: str, what: str, name: str = "", style: str = "one", *, now: float | None = None
    ) -> ChartLine:
        """Return a line of a chart with values of a group. `now` is the present value."""
        points = self.history.values(what, name, seconds=CHART_SPANS[self.span], most=CHART_POINTS)
        return ChartLine(label, points, style, now=now)

    def may(self, role: str) -> bool:
        return self.role >= Role.of(role)

    def clients(self) -> ClusterClients:
        """Return clients with the account's broker keys, or with the console's own keys if the account has none."""
        return self.console.clients_of(self.account)

    def show(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Render the template of a page with these values; return the response."""
        if isinstance(snapshot := values.get("snapshot"), ClusterSnapshot):
            self.clients().note_silence(snapshot)
        notices: list[Notice] = []
        refused: RefusedForm | None = None
        if "x-refresh" not in self.request.headers:  # a refresh in another tab must not take these away
            notices, self.session.notices = self.session.notices, notices
            refused, self.session.refused = self.session.refused, None

        def typed(action: str) -> TypedForm:
            return TypedForm(refused if refused is not None and refused.action == action else None)

        page = self.templates.get_template(template).render(
            context=self,
            may=self.may,
            csrf=self._hidden_fields,
            notices=notices,
            typed=typed,
            menu=self._menu(),
            here=self.request.url.path,
            full_here=self.here,
            **values,
        )
        return HTMLResponse(page, status)

    def part(self, template: str, **values: Any) -> Response:
        """Render a part of a page, which the page's script inserts."""
        return HTMLResponse(self.templates.get_template(template).render(context=self, may=self.may, **values))

    def failed(self, error: MQError) -> MQError:
        """Record for the audit log that a change failed, if the handler shows its form again instead of raising."""
        self.error = error
        return error

    def done(self, text: str, url: str, *, link: str | None = None, link_text: str = "") -> Response:
        """Return a redirect to `url`, where `text` is shown as a notice. The audit log has `text` as the result."""
        self.result = text
        self.session.notices.append(Notice("done", text, link, link_text))
        return RedirectResponse(url, 303)

    def refuse(self, text: str) -> Response:
        """Return a redirect to the page of the form, which shows the reason, and the form as it was typed."""
        self.session.notices.append(Notice("failed", text))
        fields = {name: value for name, value in self.form.items() if name not in PASSWORDS}
        if sum(map(len, fields.values())) <= MAX_KEPT:
            self.session.refused = RefusedForm(self.request.url.path, fields, text)
        return RedirectResponse(self.back(), 303)

    def go(self, url: str) -> Response:
        return RedirectResponse(url, 303)

    @property
    def here(self) -> str:
        """The path and query of the requested page."""
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")

    def back(self, otherwise: str = "/") -> str:
        """Return the address of the page of the form; `otherwise` if the form names no page of this console."""
        return local_path(self.form.get("back", ""), otherwise)

    def whole(self, name: str, *, least: int = 0, most: int | None = None) -> int:
        """Return an integer field of the form. Raises `UsageError` if the field is malformed or out of range."""
        text = self.form.get(name, "").strip().replace(",", "")
        return whole(name.replace("_", " "), text, least=least, most=most)

    def _hidden_fields(self) -> Markup:
        """Return the hidden fields of every form.

        They are the session's token, the page to return to after an error, and the account.
        """
        fields = {"csrf": self.session.csrf, "back": self.here, "by": self.account.name if self.account else ""}
        hidden = Markup('<input type=hidden name={} value="{}">')
        return Markup("").join(hidden.format(name, value) for name, value in fields.items() if value)

    def _menu(self) -> list[MenuEntry]:
        return [each for each in MENU if not each.admin_only or self.role is Role.ADMIN]


async def or_error(question: Awaitable[T]) -> T | MQError:
    """Return the result of an awaitable, or the `MQError` that it raised.

    A page thus shows its other parts if one part fails.
    """
    try:
        return await question
    except MQError as error:
        return error


def whole(name: str, text: str, *, least: int = 0, most: int | None = None) -> int:
    """Return an integer field of a form or query. Raises `UsageError` if the field is malformed or out of range."""
    if not text.isdecimal() or len(text) > 19:
        raise UsageError(f"{name}: {text[:40]!r} is not a whole number")
    if int(text) < least or (most is not None and int(text) > most):
        bounds = f"{least} to {most}" if most is not None else f"{least} or more"
        raise UsageError(f"{name}: {text} is not {bounds}")
    return int(text)


def local_path(text: str, otherwise: str = "/") -> str:
    """Return `text` if it is a path of this console, else `otherwise`: redirects must not leave the console."""
    parts = urlsplit(text)
    elsewhere = parts.scheme or parts.netloc or not text.startswith("/") or text[1:2] in ("/", "\\")
    return otherwise if elsewhere or any(ord(each) < 33 for each in text) else text


def address(*parts: str, **query: object) -> str:
    """Return a path of the console with quoted parts and the non-empty query fields."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    pairs = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return path + (f"?{urlencode(pairs)}" if pairs else "")


def page_templates(assets: Mapping[str, str]) -> jinja2.Environment:
    """Return the environment of the templates; `assets` are the addresses of static files by name."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("pyromq.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(texts.FILTERS)
    found.globals.update(address=address, asset=assets, chart=chart, spark=spark, spark_points=SPARK_POINTS, bar=bar)
    found.globals.update(
        chart_spans=CHART_SPANS, lag_level=lag_level, no_account=NO_ACCOUNT, zone_name=zone_name, spans=SPANS
    )
    return found


class MenuEntry(NamedTuple):
    """An entry of the menu, for the page at `path` and all pages below. `key`, pressed after g, opens the page."""

    path: str
    text: str
    key: str
    admin_only: bool = False


MENU = (
    MenuEntry("/", "Overview", "o"),
    MenuEntry("/topics", "Topics", "t"),
    MenuEntry("/messages", "Messages", "m"),
    MenuEntry("/groups", "Groups", "g"),
    MenuEntry("/dead-letters", "Dead letters", "d"),
    MenuEntry("/delayed", "Delayed", "y"),
    MenuEntry("/transactions", "Transactions", "x"),
    MenuEntry("/brokers", "Brokers", "b"),
    MenuEntry("/accounts", "Accounts", "a", admin_only=True),
    MenuEntry("/audit", "Audit log", "l", admin_only=True),
)
