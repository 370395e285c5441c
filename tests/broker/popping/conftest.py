import pytest
from tests.broker.popping.poppers import Popper


@pytest.fixture
def popper(orders, clock):
    """A consumer of group g that pops topic orders, of four queues."""
    return Popper(orders, clock)
