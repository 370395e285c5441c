"""What was deleted is forgotten: names of topics do not pile up in a broker that lives for months."""

import gc

import pytest

from pyromq import AsyncAdmin, AsyncProducer, Message
from pyromq.testing import Cluster

NAME = "deleted-one"


def holders_of(part: str) -> list[str]:
    """Return the containers of which a key or a value is a text that holds `part`."""
    gc.collect()
    found = []
    for each in gc.get_objects():
        kind = type(each)  # `isinstance` fails at a weak proxy of an earlier test whose object is gone
        texts = [*each, *each.values()] if issubclass(kind, dict) else each if issubclass(kind, (set, list)) else ()
        if any(isinstance(text, str) and part in text for text in list(texts)):
            found.append(repr(each))
    return found


@pytest.mark.slow  # all objects of the process are looked at
async def test_no_name_of_a_deleted_topic_is_kept():
    async with Cluster() as cluster:
        async with AsyncAdmin(cluster.namesrv) as admin, AsyncProducer("sends", cluster.namesrv) as producer:
            for number in range(3):
                topic = "-".join((NAME, str(number)))
                await admin.create_topic(topic, queues=2)
                await producer.send(Message(topic, b"x", keys=["k"]))
                await admin.delete_topic(topic)
        del producer
        await cluster.clock.advance(120)
        left = holders_of("-".join((NAME, "")))
    assert left == []
