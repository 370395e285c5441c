"""What tools ask about the running broker."""

from pyromq.remoting.headers import (
    AllProducers,
    BrokerState,
    BrokerStatistics,
    ConsumerConnections,
    ProducerConnections,
    UpdateConsumerOffset,
)

# What the tools of 4.9.8 read, and what else the genuine broker answers (spec of request 28).
BOLD = {
    "brokerVersionDesc",
    "bootTimestamp",
    "putTps",
    "getTransferedTps",
    "commitLogMaxOffset",
    "commitLogDiskRatio",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "earliestMessageTimeStamp",
}
OTHERS = {
    "brokerVersion",
    "runtime",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageAverageSize",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "commitLogMinOffset",
    "consumeQueueDiskRatio",
    "msgPutTotalTodayNow",
    "msgGetTotalTodayNow",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "remainHowManyDataToFlush",
    "commitLogDirCapacity",
}
# Genuine brokers have them, and here they could only be made up.
NOT_MEASURED = {
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "pullThreadPoolQueueCapacity",
    "putLatency99",
    "putLatency999",
    "putMessageDistributeTime",
    "putMessageEntireTimeMax",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "remainTransientStoreBufferNumbs",
    "startAcceptSendRequestTimeStamp",
}


async def test_the_state_has_every_key_that_tools_read(caller):
    table = (await caller.body(BrokerState())).table
    assert set(table) >= BOLD | OTHERS
    assert not set(table) & NOT_MEASURED
    assert (table["brokerVersion"], table["brokerVersionDesc"]) == ("409", "V4_9_8")


async def test_the_state_counts_what_is_sent(caller, clock):
    await clock.advance(61)
    for _ in range(20):
        await caller.send("orders", b"x" * 100)
    table = (await caller.body(BrokerState())).table
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 1 seconds ]"
    assert (table["putMessageTimesTotal"], table["msgPutTotalTodayNow"]) == ("20", "20")
    assert table["commitLogMaxOffset"] == table["putMessageSizeTotal"]
    rates = [float(rate) for rate in table["putTps"].split()]
    assert len(rates) == 3
    assert rates[0] > 0


async def test_a_statistic_is_answered_for_what_was_counted(caller, clock):
    await caller.send("orders")
    await clock.advance(10)
    await caller.send("orders")
    await clock.advance(10)
    stats = await caller.body(BrokerStatistics(stats_name="TOPIC_PUT_NUMS", stats_key="orders"))
    assert (stats.minute.sum, stats.minute.tps, stats.minute.average) == (2, 0.1, 1.0)
    refused = await caller.ask(BrokerStatistics(stats_name="TOPIC_PUT_NUMS", stats_key="nothing"), code=1)
    assert refused.remark == "The stats <TOPIC_PUT_NUMS> <nothing> not exist"


async def test_how_far_a_group_is_behind_is_said_of_each_queue(caller, clock):
    await caller.create_topic("orders")
    sizes = [await caller.send("orders", b"x", queue_id=0) for _ in range(3)]
    log_end = int((await caller.body(BrokerState())).table["commitLogMaxOffset"])
    await caller.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=1))
    await clock.advance(5)

    async def fall(name, key):
        return (await caller.body(BrokerStatistics(stats_name=name, stats_key=key))).minute.sum

    assert await fall("GROUP_GET_FALL_SIZE", "0@orders@g") == log_end * 2 // len(sizes)
    assert await fall("GROUP_GET_FALL_TIME", "0@orders@g") == 5_000
    await caller.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=3))
    assert await fall("GROUP_GET_FALL_SIZE", "0@orders@g") == 0
    for key in ("1@orders@g", "x@orders@g", "orders@g", ""):
        await caller.ask(BrokerStatistics(stats_name="GROUP_GET_FALL_TIME", stats_key=key), code=1)


async def test_groups_without_clients_are_refused(caller):
    refused = await caller.ask(ConsumerConnections(consumer_group="nobody"), code=206)
    assert refused.remark == "the consumer group[nobody] not online"
    refused = await caller.ask(ProducerConnections(producer_group="nobody"), code=1)
    assert refused.remark == "the producer group[nobody] not exist"


async def test_producers_are_shown_with_their_addresses(caller, clock):
    await caller.beat("one", producer="p")
    address = "{}:{}".format(*caller.channel.local_address)
    (connection,) = (await caller.body(ProducerConnections(producer_group="p"))).connections
    assert (connection.client_id, connection.client_address, connection.version) == ("one", address, 409)
    groups = (await caller.body(AllProducers())).groups
    assert [(client.client_id, client.remote_address) for client in groups["p"]] == [("one", f"/{address}")]
    assert groups["p"][0].last_update_ms == clock.now_ms()


async def test_a_disk_is_as_full_as_others_than_root_find_it(caller, monkeypatch):
    disk = (1000, 201, 700)  # in all, used and free; and 99 for root alone
    monkeypatch.setattr("pyromq.store.retention.shutil.disk_usage", lambda folder: disk)

    table = (await caller.body(BrokerState())).table

    assert table["commitLogDiskRatio"] == "0.23"
