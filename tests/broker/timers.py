"""What clients ask of a broker about messages that wait for their time."""

from pyromq.message import encode_properties
from pyromq.remoting.headers import RecallMessage

DAY = 86_400


async def timed(caller, clock, seconds, body=b"hello", *, key=None, queue_id=0):
    """Send a message that is due in so many seconds; return its handle."""
    properties = {"TIMER_DELIVER_MS": str(clock.now_ms() + round(seconds * 1000))}
    if key:
        properties["UNIQ_KEY"] = key
    return await caller.send("orders", body, queue_id=queue_id, properties=encode_properties(properties))


async def cancel(caller, handle, *, code=0, topic="orders"):
    return await caller.ask(RecallMessage(topic=topic, recall_handle=handle), code=code)
