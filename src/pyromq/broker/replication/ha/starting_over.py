"""Empties the data folder of a slave that cannot follow, because the master has deleted bytes that the slave lacks."""

from __future__ import annotations

from pyromq.broker.config import BrokerConfig, ConfiguredRole
from pyromq.broker.replication.cut_progress import cut_log
from pyromq.broker.replication.ha.log_comparison import ASK_SECONDS, LogComparison
from pyromq.broker.role import MASTER, request_address
from pyromq.clock import Clock
from pyromq.errors import MQError, StoreError, Unavailable
from pyromq.logs import logger_of
from pyromq.message import pack_address
from pyromq.net.address_server import is_url
from pyromq.net.channel import connected
from pyromq.remoting.bodies import ANSWER, ClusterTable, decode_body
from pyromq.remoting.headers import BrokerClusterInfo
from pyromq.store.disk import Disk
from pyromq.store.log_cut import LogCut
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

NO_EPOCH = 0  # masters and slaves of RocketMQ 4.9 have no epochs


async def start_over(config: BrokerConfig, clock: Clock, disk: Disk) -> None:
    """Empty the store of a slave whose log ends before its master's begins, if `haStartOver` is set.

    The log is moved into the folder `cut`. Must be called before the store is opened. If no master answers, the store
    is not changed. Raises the errors of `MessageStore.open`.
    """
    if config.role is not ConfiguredRole.SLAVE or not config.ha.start_over:
        return
    try:
        is_behind = await _is_behind(config, clock, disk)
    except StoreError:
        raise
    except MQError as error:
        logger.warning("the slave does not start over: its master cannot be reached: %s", error)
        return
    if is_behind:
        logger.warning("the slave starts over (haStartOver): its log ends before the master's log begins")
        cut_log(_store(config, clock, disk), LogCut(0, NO_EPOCH), config.data)


async def _is_behind(config: BrokerConfig, clock: Clock, disk: Disk) -> bool:
    master = await _master_address(config, clock)
    store = _store(config, clock, disk)
    try:
        store.open()
        return await LogComparison(store, clock, config.connections).is_behind(master)
    finally:
        store.close()


def _store(config: BrokerConfig, clock: Clock, disk: Disk) -> MessageStore:
    return MessageStore(config.store_config, clock, store_address=pack_address("127.0.0.1", 0), disk=disk)


async def _master_address(config: BrokerConfig, clock: Clock) -> str:
    """Return the address of the master's port for requests. Raises `Unavailable`."""
    if config.ha_master is not None:
        return request_address(config.ha_master)
    faults = []
    for address in config.namesrv:
        if is_url(address):
            continue
        try:
            async with connected(address, clock, config.connections) as channel:
                response = (await channel.call(BrokerClusterInfo(), timeout=ASK_SECONDS)).check()
        except MQError as error:
            faults.append(str(error))
            continue
        brokers = decode_body(ClusterTable, response.body, ANSWER).brokers
        if config.name in brokers and (master := brokers[config.name].addresses.get(MASTER)):
            return master
        faults.append(f"{address} knows no master of {config.name}")
    raise Unavailable("; ".join(faults) or "neither a name server nor haMasterAddress is set")
