"""Settings of consumer groups, as administrators send them."""

from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.headers import SaveGroup


async def test_a_group_with_more_retry_queues_than_a_topic_may_have_is_refused(caller):
    group = GroupConfig(name="g", retry_queues=65_537)
    refusal = await caller.ask(SaveGroup(), encode_body(group), code=1)
    assert "retryQueueNums is 65537; the limit is 65536" in refusal.remark
