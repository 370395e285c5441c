"""What a broker tells Prometheus, after real sends and reads."""

import threading

import pytest

from pyromq.broker.broker import Broker
from pyromq.metrics.endpoint import Scraping
from pyromq.metrics.exposition import Exposition
from pyromq.slow_work import run_blocking
from pyromq.store.log import commit_log

COMMON = 'cluster="DefaultCluster",node_type="broker",node_id="broker-a"'


@pytest.fixture
def scraped(broker):
    """Scrape the broker and return values by name and the labels behind the common ones."""
    scraping = Scraping([broker.metrics()], 10_000)

    async def scrape():
        text = b"".join(await scraping.text()).decode()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name.replace(COMMON + ",", "").replace(COMMON, ""): float(value) for name, value in lines}

    return scrape


READ = 'consumer_group="c",topic="orders",is_retry="false",is_system="false"'
QUEUE = 'consumer_group="c",topic="orders",queue_id='


async def test_messages_are_told_by_topic_and_by_who_reads_them(orders, scraped):
    for body in (b"1", b"2", b"3"):
        await orders.send("orders", body)
    await orders.messages("orders")
    found = await scraped()

    assert found['rocketmq_messages_in_total{topic="orders",is_system="false"}'] == 3
    assert found['rocketmq_throughput_in_total{topic="orders",is_system="false"}'] > 300
    assert found[f"rocketmq_messages_out_total{{{READ}}}"] == 3
    assert found[f"rocketmq_throughput_out_total{{{READ}}}"] > 300
    assert found["pyromq_connections{}"] == 1


async def test_lag_is_told_in_messages_and_time_by_group_topic_and_queue(broker, orders, scraped, clock):
    broker.offsets.commit("c", "orders", 0, 1)
    for queue_id, count in ((0, 3), (1, 1)):
        for _ in range(count):
            await orders.send("orders", queue_id=queue_id)
            await clock.advance(2.0)
    found = await scraped()

    assert found[f"rocketmq_consumer_lag_messages{{{READ}}}"] == 3
    assert found[f"rocketmq_consumer_lag_latency{{{READ}}}"] == 6_000
    lags = [found[f'pyromq_consumer_queue_lag_messages{{{QUEUE}"{queue_id}"}}'] for queue_id in range(4)]
    seconds = [found[f'pyromq_consumer_queue_lag_seconds{{{QUEUE}"{queue_id}"}}'] for queue_id in range(4)]
    assert (lags, seconds) == ([2, 1, 0, 0], [6, 2, 0, 0])


async def test_a_record_on_the_disk_is_read_by_a_thread_and_once(broker, orders, scraped, clock, monkeypatch):
    broker.offsets.commit("c", "orders", 0, 0)
    await orders.send("orders")
    await clock.advance(2.0)
    loaded = []
    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    monkeypatch.setattr(type(broker.store.disk), "is_resident", lambda *_: False)
    monkeypatch.setattr(
        type(broker.store.disk),
        "load",
        lambda disk, views: loaded.append(threading.current_thread() is threading.main_thread()),
    )
    lags = []
    for _ in range(2):
        found = await scraped()
        lags.append(found[f'pyromq_consumer_queue_lag_seconds{{{QUEUE}"0"}}'])

    # The log's first record each time; once the queue's entry, and the record that it leads to.
    assert (lags, loaded) == ([2, 2], [False] * 4)


async def test_a_group_that_has_caught_up_or_left_a_topic_has_no_lag(broker, orders, scraped):
    await orders.send("orders")
    broker.offsets.commit("c", "orders", 0, 1)
    assert (await scraped())[f"rocketmq_consumer_lag_messages{{{READ}}}"] == 0

    await orders.beat("me", group="c", topics=("others",))
    assert f"rocketmq_consumer_lag_messages{{{READ}}}" not in await scraped()


async def test_members_are_told_by_language_and_version(orders, scraped):
    await orders.beat("me", group="c", producer="p")
    found = await scraped()
    producers = [name for name in found if name.startswith("rocketmq_producer_connections")]
    consumers = [name for name in found if name.startswith("rocketmq_consumer_connections")]

    assert len(producers) == len(consumers) == 1
    assert 'language="python",version="v' in producers[0]
    assert consumers[0].startswith('rocketmq_consumer_connections{consumer_group="c",language="python"')
    assert consumers[0].endswith('protocol_type="remoting",consume_mode="push",is_system="false"}')


async def test_what_waits_for_its_time_is_told(orders, scraped):
    await orders.send("orders", properties="DELAY\x013\x02")
    found = await scraped()

    assert found['pyromq_delay_level_messages{level="3"}'] == 1
    assert found['pyromq_delay_level_messages{level="4"}'] == 0


async def test_the_store_and_the_broker_are_told(broker, orders, scraped):
    await orders.send("orders")
    found = await scraped()

    assert found["rocketmq_topic_number{}"] == len(broker.topics)
    assert found["pyromq_store_takes_messages{}"] == 1
    assert found["pyromq_log_bytes{}"] == broker.store.max_log_offset > 0
    assert 0 < found["pyromq_disk_used_ratio{}"] < 1
    assert found['rocketmq_storage_message_reserve_time{storage_type="local",storage_medium="disk"}'] >= 0


async def test_details_are_left_out_before_groups(broker, caller):
    await caller.create_topic("wide", queues=200)
    for group in ("a", "b"):
        broker.offsets.commit(group, "wide", 0, 0)
    exposition = Exposition(150)
    run_blocking(broker.metrics().tell(exposition))
    run_blocking(exposition.text())
    text = "".join(line for lines in exposition._lines.values() for line in lines)

    assert exposition.left_out
    assert text.count("rocketmq_consumer_lag_messages{") == 2
    assert len(exposition) == 150


async def test_a_broker_is_ready_when_a_name_server_knows_it(config, clock, broker):
    assert set(broker.metrics().faults().values()) == {""}

    config.data = config.data / "other"
    config.store = None
    config.namesrv = ("127.0.0.1:1",)
    async with Broker(config, clock) as lonely:
        assert lonely.metrics().faults()["name servers"] == "none of 127.0.0.1:1 knows this broker"


async def test_a_broker_whose_store_takes_nothing_is_not_ready(broker, scraped, monkeypatch):
    monkeypatch.setattr(type(broker.store), "refusal", "the disk is full")

    assert broker.metrics().faults()["store"] == "the disk is full"
    assert (await scraped())["pyromq_store_takes_messages{}"] == 0
