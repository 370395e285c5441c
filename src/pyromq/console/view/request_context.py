"""One request of one person: who, what was asked, and how to answer."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pyromq.console.cluster.clients import Clients
from pyromq.console.cluster.history import History
from pyromq.console.security.accounts import Account, Role
from pyromq.console.security.sessions import Notice, Session
from pyromq.console.view import texts
from pyromq.errors import MQError, UsageError

if TYPE_CHECKING:
    from pyromq.console.console import Console
from typing import NamedTuple

T = TypeVar("T")

MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1  # ids of queues and offsets in requests


class RequestContext:
    """What pages get. `form` is empty where nothing was sent; `outcome` and `result` go to the audit log."""

    def __init__(
        self, request: Request, console: Console, session: Session, account: Account | None, form: Mapping[str, str]
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
        """Without any accounts whoever reaches the console may do everything."""
        return self.account.rank if self.account is not None else Role.ADMIN

    @property
    def name(self) -> str:
        return self.account.name if self.account is not None else "anybody"

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def path(self) -> Mapping[str, str]:
        """The parts of the address that have names."""
        return self.request.path_params

    rate_text = staticmethod(texts.rate)
    number_text = staticmethod(texts.number)
    seconds_text = staticmethod(texts.duration)

    @property
    def history(self) -> History:
        return self.console.history

    def may(self, role: str) -> bool:
        return self.role >= Role.of(role)

    async def clients(self) -> Clients:
        """Return the clients that act as this account's account of the brokers, or else as the console's own."""
        return self.console.clients_of(self.account)

    def show(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        notices, self.session.notices = self.session.notices, []
        page = self.console.templates.get_template(template).render(
            visit=self,
            may=self.may,
            csrf=self._hidden_fields,
            notices=notices,
            menu=self._menu(),
            here=self.request.url.path,
            full_here=self.here,
            **values,
        )
        return HTMLResponse(page, status)

    def failed(self, error: MQError) -> MQError:
        """Note that a change failed, for the audit log, where its page is shown again with what was typed."""
        self.error = error
        return error

    def done(self, text: str, url: str, *, link: str | None = None, link_text: str = "") -> Response:
        """Tell at the next page that something happened, and go there."""
        self.result = text
        self.session.notices.append(Notice("done", text, link, link_text))
        return RedirectResponse(url, 303)

    def tell(self, kind: str, text: str) -> None:
        self.session.notices.append(Notice(kind, text))

    def go(self, url: str) -> Response:
        return RedirectResponse(url, 303)

    @property
    def here(self) -> str:
        """The address of this page, query and all."""
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")

    def back(self, otherwise: str = "/") -> str:
        """Return where the form was, if it is an address of ours."""
        return local_path(self.form.get("back", ""), otherwise)

    def whole(self, name: str, *, least: int = 0, most: int | None = None) -> int:
        """Return a whole number of the form. Raises `UsageError`."""
        text = self.form.get(name, "").strip().replace(",", "")
        return whole(name.replace("_", " "), text, least=least, most=most)

    def _hidden_fields(self) -> Markup:
        """Return what every form has: the session's token, and where it is shown again if something fails."""
        return Markup('<input type=hidden name=csrf value="{}"><input type=hidden name=back value="{}">').format(
            self.session.csrf, self.here
        )

    def _menu(self) -> list[Entry]:
        return [each for each in MENU if not each.admin_only or self.role is Role.ADMIN]


async def or_error(question: Awaitable[T]) -> T | MQError:
    """Return the answer, or why there is none: one part of a page that fails leaves the others."""
    try:
        return await question
    except MQError as error:
        return error


def whole(name: str, text: str, *, least: int = 0, most: int | None = None) -> int:
    """Return a whole number that a form or an address has. Raises `UsageError`."""
    if not text.isdecimal() or len(text) > 19:
        raise UsageError(f"{name}: {text[:40]!r} is no whole number")
    if int(text) < least or (most is not None and int(text) > most):
        bounds = f"{least} to {most}" if most is not None else f"{least} or more"
        raise UsageError(f"{name}: {text} is not {bounds}")
    return int(text)


def local_path(text: str, otherwise: str = "/") -> str:
    """Return an address of this console as it is, and `otherwise` for one that leads elsewhere."""
    parts = urlsplit(text)
    elsewhere = parts.scheme or parts.netloc or not text.startswith("/") or text[1:2] in ("/", "\\")
    return otherwise if elsewhere or any(ord(each) < 33 for each in text) else text


def address(*parts: str, **query: object) -> str:
    """Return an address of the console: parts are quoted, and of the query what is not empty is in it."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    pairs = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return path + (f"?{urlencode(pairs)}" if pairs else "")


class Entry(NamedTuple):
    """`path` is the page's address; every page below it belongs to the entry. `key` follows a g."""

    path: str
    text: str
    key: str
    admin_only: bool = False


MENU = (
    Entry("/", "Overview", "o"),
    Entry("/topics", "Topics", "t"),
    Entry("/messages", "Messages", "m"),
    Entry("/groups", "Groups", "g"),
    Entry("/dead-letters", "Dead letters", "d"),
    Entry("/delayed", "Delayed", "y"),
    Entry("/transactions", "Transactions", "x"),
    Entry("/brokers", "Brokers", "b"),
    Entry("/accounts", "Accounts", "a", admin_only=True),
    Entry("/audit", "Audit log", "l", admin_only=True),
)
