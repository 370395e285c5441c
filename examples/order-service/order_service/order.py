"""What the parts of the service say to each other."""

from dataclasses import dataclass


@dataclass
class Order:
    """An order, as it travels in a message's body."""

    id: str
    card: str
    cents: int
