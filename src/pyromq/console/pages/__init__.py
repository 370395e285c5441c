"""The console's pages. A page is one module here and one template, `templates/NAME.html`.

How to make one:

1. Write functions that take a `RequestContext` and return a response. One that shows something ends with
   `return visit.show("things.html", things=...)`; what it needs of the cluster it asks `await visit.clients()` for
   (`admin`, `reader`, `snapshot()`, ...), what it needs of the address `visit.query` for. A table is a `Table`
   (`view/table.py`), which reads filter, sort and page from the address itself.
2. One that changes something ends with `return visit.done("what happened", url)`. It reads `visit.form`; signing
   in, the right role, the form's token and the line in the audit log are seen to before and after it. A `MQError`
   that it raises is shown as it is, where the form was.
3. List them in `ROUTES`: `view("/things", things)`, `change("/things/delete", delete, needs=Role.ADMIN,
   what="delete a thing")`; and list the module in `PAGES` here, for the menu in `view/menu.py`.
4. The template extends `base.html` and fills `title` and `main`; forms begin with `{{ csrf() }}`, buttons of changes
   stand inside `{% if may("admin") %}`. Numbers, times and the like have filters (`view/texts.py`); parts that
   should stay fresh are elements with an `id` and `data-live`.
5. Test it in `tests/console/pages`, with the `console` fixture, and add it to the list in `tests/console/browser`.
"""

from types import ModuleType

from pyromq.console.pages import (
    accounts,
    audit,
    batches,
    broker,
    brokers,
    dead_letters,
    delayed,
    group,
    groups,
    message,
    messages,
    overview,
    redriving,
    sending,
    sign_in,
    topic,
    topics,
    transactions,
)

PAGES: tuple[ModuleType, ...] = (
    *(overview, topics, topic, messages, message, sending, groups, group),
    *(dead_letters, redriving, delayed, transactions, batches),
    *(brokers, broker),
    *(accounts, audit, sign_in),
)
