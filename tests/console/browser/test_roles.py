"""Viewers and operators in a real browser: each link and button that a page shows them works, and none is refused."""

import pytest
from tests.console.browser.conftest import Page, serving
from tests.console.browser.shop import open_shop
from tests.console.browser.test_browser import PAGES
from tests.waiting import wait_until

PASSWORD = "correct horse"
ROLES = {"vera": "viewer", "olaf": "operator"}
ONLY_FOR_MORE = {  # pages that a role may not open, and to which no page may lead it
    "viewer": ("/send", "/new-", "/groups/billing/reset", "/redrive", "/change", "/accounts", "/audit"),
    "operator": ("/new-", "/change", "/accounts", "/audit"),
}

# Everything that can be pressed on a page, and what comes of it: links are followed, forms are sent as they are shown.
PRESS = r"""
const done = arguments[arguments.length - 1], seen = new Set(arguments[0]);
const kind = (address, method) => method + " " + address.pathname.replace(/\d+|[0-9A-F]{16,}/g, "N");
const press = async () => {
  const found = [];
  const ask = async (address, options, method, name) => {
    const of = kind(address, method);
    if (seen.has(of) || address.origin !== location.origin || address.pathname === "/sign-out") return;
    seen.add(of);
    const answer = await fetch(address, options);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const notice = [...page.querySelectorAll("#notices .failed")].map((each) => each.textContent).join(" ");
    found.push({ of, name, status: answer.status, notice });
  };
  for (const link of document.querySelectorAll("a[href]"))
    await ask(new URL(link.href), {}, "GET", link.textContent.trim());
  for (const form of document.forms) {
    if (form.method === "dialog") continue;
    for (const button of form.querySelectorAll("button:not([type=button], [disabled])")) {
      const fields = new FormData(form, button), address = new URL(form.action), name = button.textContent.trim();
      for (const each of ["body", "name"]) if (fields.get(each) === "") fields.set(each, "hello");
      if (form.method === "get") {
        for (const [field, value] of fields) address.searchParams.set(field, value);
        await ask(address, {}, "GET", name);
      } else await ask(address, { method: "POST", body: fields }, `POST ${name.replace(/\d+/g, "N")}`, name);
    }
  }
  return { found, seen: [...seen] };
};
press().then(done, (error) => done({ found: [{ of: String(error), status: 0, notice: "" }], seen: [] }));
"""
UNTICKED = "select the attempts to commit"  # what a form says whose boxes nobody has ticked


@pytest.fixture(scope="module")
def signed(chromium, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("roles")) as (_, base, namesrv), open_shop(namesrv):
        chromium.delete_all_cookies()
        page = Page(chromium, base)
        page.driver.set_script_timeout(120)
        for name, role in {"anna": "admin", **ROLES}.items():
            page.open("/accounts")
            page.find(f"select[name=role] option[value={role}]").click()
            page.fill(name=name, password=PASSWORD, password_again=PASSWORD)
            page.press("Save account")
            if role == "admin":
                wait_until(lambda: page.driver.title.startswith("Sign in"))
                page.fill(name=name, password=PASSWORD)
                page.press("Sign in")
                wait_until(lambda: page.driver.title.startswith("Overview"))
            else:
                wait_until(lambda name=name: f"Account {name} is saved" in page.text)
        yield page


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ROLES)
def test_what_a_role_is_shown_works_and_nothing_that_is_refused_is_shown(signed, name):
    role = ROLES[name]
    signed.driver.delete_all_cookies()
    signed.open("/sign-in")
    signed.fill(name=name, password=PASSWORD)
    signed.press("Sign in")
    wait_until(lambda: signed.driver.title.startswith("Overview"))
    seen, wrong, pressed = [], [], []
    for path in PAGES:
        signed.open(path)
        is_closed = any(part in path for part in ONLY_FOR_MORE[role])
        assert ("This needs the role" in signed.text) is is_closed, path
        if is_closed:
            continue
        answer = signed.driver.execute_async_script(PRESS, seen)
        seen = answer["seen"]
        pressed += answer["found"]
        for each in answer["found"]:
            missing = each["status"] in (400, 404) and "nothing" in path
            fine = each["status"] == 200 or missing
            if not fine or (each["notice"] and UNTICKED not in each["notice"]):
                wrong.append((path, each))
    assert not wrong, "\n".join(map(str, wrong))
    forms = {each["of"] for each in pressed if each["of"].startswith("POST")}
    assert len(pressed) > 40
    for each in (
        "POST Redrive N messages /dead-letters/accounting/redrive",
        "POST Cancel /delayed/reminders/cancel",
        "POST Commit /transactions-batch",
        "POST Reset N queues /groups/billing/reset",
        "POST Send /send",
    ):
        assert (each in forms) is (role == "operator"), forms
