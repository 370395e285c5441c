"""Runs all three parts in one process against `pyromq serve`, with a bank that is down once and declines one card."""

import time
from pathlib import Path

from order_service.billing import CardDeclined, billing
from order_service.database import Database
from order_service.order import Order
from order_service.reminders import reminders
from order_service.shop import Shop

calls = 0


def charge(card: str, cents: int) -> None:
    global calls
    if card == "declined":
        raise CardDeclined("insufficient funds")
    calls += 1
    if calls == 1:
        raise ConnectionError("the bank does not answer")
    print(f"charged {cents / 100:.2f} to {card}")


def main() -> None:
    database = Database(Path("orders.db"))
    with billing(database, charge), reminders(database), Shop(database) as shop:
        now = int(time.time())
        shop.place(Order(f"{now}-1", "visa", 1999))
        shop.place(Order(f"{now}-2", "declined", 500))
        print("placed; the first payment is tried again after ten seconds, Ctrl-C ends")
        try:
            time.sleep(3600)
        except KeyboardInterrupt:
            pass


main()
