"""The console's pages: one module for each kind of thing, and a template for each page, `templates/NAME.html`.

To add a page:

1. Write a function that takes a `RequestContext` and returns a response. A page that only shows something ends with
   `return context.show("things.html", things=...)`. `context.clients()` gives access to the cluster (`admin()`,
   `reader()`, `snapshot()`, ...), `context.query` to the address. `Table` (`view/table.py`) reads filter, sorting and
   page from the address.
2. A function that changes something ends with `return context.done("What changed.", url)`. It reads `context.form`. The
   route checks session, role and form token, and writes the audit log. A raised `MQError` is shown on the page of the
   form.
3. List the functions in `ROUTES`: `view("/things", things)`, `change("/things/delete", delete, needs=Role.ADMIN,
   what="delete thing")`. List the module in `PAGES` below, and the page in `MENU` (`view/request_context.py`).
4. The template extends `base.html` and fills the blocks `title` and `main`. Every form contains `{{ csrf() }}`. Buttons
   of changes stand inside `{% if may("admin") %}`. `view/texts.py` has filters for numbers, times and sizes. Elements
   with an `id` and `data-live` are refreshed.
5. Test the page in `tests/console/pages`, with the `console` fixture, and list it in `tests/console/browser`.
"""

from types import ModuleType

from pyromq.console.pages import (
    account_pages,
    broker_pages,
    dead_letter_pages,
    delayed_pages,
    group_pages,
    message_pages,
    overview_pages,
    search_pages,
    send_page,
    topic_pages,
    transaction_pages,
)

PAGES: tuple[ModuleType, ...] = (
    overview_pages,
    topic_pages,
    search_pages,
    message_pages,
    send_page,
    group_pages,
    dead_letter_pages,
    delayed_pages,
    transaction_pages,
    broker_pages,
    account_pages,
)
