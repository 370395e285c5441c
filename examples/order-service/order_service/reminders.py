"""Reminds customers who have not paid when their message's time has come."""

from order_service.database import Database
from pyromq import ConsumeFrom, Consumer, ConsumerConfig


def reminders(database: Database, namesrv: str | None = None) -> Consumer:
    consumer = Consumer("reminders", namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))

    @consumer.subscribe("reminders", type=str)
    def remind(order_ids: list[str]) -> None:
        for order_id in order_ids:
            if not database.is_paid(order_id):
                database.add_reminder(order_id)  # a mail, in a real shop

    return consumer
