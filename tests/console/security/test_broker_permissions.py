"""A broker with accounts: the console asks it as whoever is signed in, and shows a refusal as it was said."""

import pytest
from tests.console.conftest import PASSWORD, browsing

from pyromq import ConnectionConfig
from pyromq.console.console_config import ConsoleConfig
from pyromq.console.security.console_accounts import ConsoleAccounts
from pyromq.message import Message
from pyromq.testing import Cluster

SECRET = "secret-12345678"
ACL = f"""accounts:
- {{accessKey: operators, secretKey: {SECRET}, admin: true}}
- {{accessKey: readers, secretKey: {SECRET}, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}}
"""


@pytest.fixture
async def guarded(tmp_path):
    """A cluster that asks who asks; clients that the cluster gives are the operators'."""
    folder = tmp_path / "permissions"
    folder.mkdir()
    (folder / "plain_acl.yml").write_text(ACL)
    connections = ConnectionConfig(access_key="operators", secret_key=SECRET)
    async with Cluster(permissions=True, permissions_path=folder, connections=connections) as cluster:
        await (await cluster.admin()).create_topic("orders", 2)
        await (await cluster.admin()).create_topic("secrets", 1)
        await (await cluster.producer()).send(Message("secrets", b"top secret"))
        yield cluster


@pytest.fixture
async def browser(guarded, tmp_path):
    """A console whose own keys may everything; those of vera, rosa and wim may little, otto's are the operators'."""
    data = tmp_path / "console"
    data.mkdir()
    accounts = ConsoleAccounts(data / "accounts.json")
    for name, role, key in (
        ("rosa", "admin", "readers"),
        ("vera", "viewer", "readers"),
        ("otto", "admin", "operators"),
    ):
        accounts.save(name, role=role, password=PASSWORD, access_key=key, secret_key=SECRET)
    accounts.save("wim", role="viewer", password=PASSWORD, access_key="readers", secret_key="another-12345678")
    config = ConsoleConfig(guarded.namesrv, data, connections=guarded.connections, snapshot_seconds=0.001)
    async with browsing(config) as browser:
        yield browser


FIELDS = {"id": "0", "setting": "transactionCheckMax", "before": "15", "value": "7"}
FORM = "/brokers/broker-a/change?setting=transactionCheckMax&value=7"


async def test_what_a_viewers_keys_may_not_read_is_refused_as_the_broker_says_it(browser, guarded):
    await browser.sign_in("vera")
    assert "secrets" in await browser.get("/topics")  # accounts may see what there is
    page = (await browser.client.get("/messages?topic=secrets")).text
    assert "Account readers needs SUB on" in page
    assert "top secret" not in page
    await browser.post("/sign-out")
    await browser.sign_in("otto")
    assert "top secret" in await browser.get("/messages?topic=secrets")


async def test_keys_that_may_not_change_are_refused_by_the_broker_whatever_the_role(browser, guarded):
    browser.form_at = FORM
    await browser.sign_in("rosa")
    page = await browser.post("/brokers/broker-a/change", back=FORM, **FIELDS)
    assert "Account readers is not an administrator, which this needs." in page
    entry = browser.console.audit.recent()[0]
    assert (entry.account, entry.outcome) == ("rosa", "failed") and "not an administrator" in entry.error
    await browser.post("/sign-out")
    await browser.sign_in("otto")
    page = await browser.post("/brokers/broker-a/change", back=FORM, **FIELDS)
    assert "transactionCheckMax of broker broker-a is &#39;7&#39; now" in page


async def test_a_wrong_secret_key_is_named_and_the_broker_is_not_said_to_be_silent(browser, guarded):
    await browser.sign_in("wim")
    for path, status in (("/", 200), ("/topics", 200), ("/brokers/broker-a", 200), ("/brokers/broker-a/settings", 403)):
        page = await browser.get(path, status=status)
        assert "signature does not match account readers" in page
        assert "not answer" not in page and "no answer" not in page
    assert '<span class="badge bad">refuses</span>' in await browser.get("/brokers")
