"""Charges cards: tries again what may work later, gives up what never will."""

from collections.abc import Callable

from order_service.database import Database
from order_service.order import Order
from pyromq import ConsumeFrom, Consumer, ConsumerConfig, GiveUp


class CardDeclined(Exception):
    """The bank has said no; it will say so again."""


def billing(database: Database, charge: Callable[[str, int], None], namesrv: str | None = None) -> Consumer:
    """Return the consumer; `charge(card, cents)` asks the bank. Start as many processes of it as you like."""
    consumer = Consumer("billing", namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))

    @consumer.subscribe("orders", type=Order)
    def bill(orders: list[Order]) -> None:
        for order in orders:
            if database.is_paid(order.id):  # messages come at least once
                continue
            try:
                charge(order.card, order.cents)
            except CardDeclined as refusal:
                raise GiveUp(f"order {order.id}: {refusal}") from refusal  # to the dead letters
            database.add_payment(order.id, order.cents)  # any other exception: the message comes again

    return consumer
