"""The whole service against a cluster in this process, whose clock the tests turn."""

import time

import pytest
from order_service.billing import CardDeclined, billing
from order_service.database import Database
from order_service.order import Order
from order_service.reminders import reminders
from order_service.shop import Shop


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path / "orders.db")


def wait_until(condition, cluster, *, seconds_pass=0):
    """Wait for as long as it takes; each round, so many seconds pass for the servers."""
    for _ in range(6000):
        if condition():
            return
        if seconds_pass:
            cluster.advance(seconds_pass)
        time.sleep(0.01)
    raise AssertionError("it never came true")


def test_an_order_is_paid_although_the_bank_is_down_at_first(pyromq_cluster, database):
    calls = []

    def charge(card, cents):
        calls.append((card, cents))
        if len(calls) == 1:
            raise ConnectionError("the bank does not answer")

    with billing(database, charge, pyromq_cluster.namesrv), Shop(database, pyromq_cluster.namesrv) as shop:
        shop.place(Order("1", "visa", 1999))
        wait_until(lambda: database.is_paid("1"), pyromq_cluster, seconds_pass=1)
    assert calls == [("visa", 1999)] * 2


def test_a_declined_card_is_a_dead_letter_with_the_reason(pyromq_cluster, database):
    def charge(card, cents):
        raise CardDeclined("insufficient funds")

    admin = pyromq_cluster.admin()
    with billing(database, charge, pyromq_cluster.namesrv), Shop(database, pyromq_cluster.namesrv) as shop:
        shop.place(Order("2", "visa", 500))
        wait_until(lambda: "%DLQ%billing" in admin.topics(), pyromq_cluster)
    assert not database.is_paid("2")


def test_who_has_not_paid_is_reminded_after_a_quarter_of_an_hour(pyromq_cluster, database):
    with reminders(database, pyromq_cluster.namesrv), Shop(database, pyromq_cluster.namesrv) as shop:
        shop.place(Order("3", "visa", 100))
        pyromq_cluster.advance(14 * 60)
        assert not database.is_reminded("3")
        wait_until(lambda: database.is_reminded("3"), pyromq_cluster, seconds_pass=10)


def test_nobody_hears_of_an_order_that_could_not_be_kept(pyromq_cluster, database):
    heard = []
    with (
        billing(database, lambda card, cents: heard.append(card), pyromq_cluster.namesrv),
        Shop(database, pyromq_cluster.namesrv) as shop,
    ):
        shop.place(Order("4", "visa", 100))
        with pytest.raises(Exception, match="UNIQUE"):  # the database refuses a second order of this id
            shop.place(Order("4", "stolen", 100))
        wait_until(lambda: database.is_paid("4"), pyromq_cluster)
        pyromq_cluster.advance(60)  # the broker asks, and `check` answers ROLLBACK
    assert heard == ["visa"]
