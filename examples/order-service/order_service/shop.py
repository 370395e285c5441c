"""Takes orders: a row in the database and a message, both or neither."""

from datetime import timedelta

from order_service.database import Database
from order_service.order import Order
from pyromq import Decision, Message, StoredMessage, TransactionProducer

PATIENCE = timedelta(minutes=15)  # then a customer who has not paid is reminded


class Shop:
    def __init__(self, database: Database, namesrv: str | None = None) -> None:
        self._database = database
        self._producer = TransactionProducer("shop", namesrv, check=self._check)

    def __enter__(self) -> "Shop":
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def place(self, order: Order) -> None:
        """Keep the order. Whoever subscribes to `orders` hears of it if, and only if, it was kept."""
        with self._producer.transaction(Message.json("orders", order, keys=order.id)) as transaction:
            self._database.add_order(order.id, transaction.transaction_id)
        self._producer.send(Message.json("reminders", order.id, keys=order.id, delay=PATIENCE))

    def _check(self, half: StoredMessage) -> Decision:
        """The broker asks this when it did not hear how a transaction ended: the database knows."""
        return Decision.COMMIT if self._database.has_transaction(half.message_id) else Decision.ROLLBACK
