"""The modules of masters and slaves as in RocketMQ 4.9: a master sends its log, and a slave follows the log."""

from __future__ import annotations

from pyromq.broker.config import ConfiguredRole
from pyromq.broker.confirmation import ReplicaRule
from pyromq.broker.modules import BrokerModule, Step
from pyromq.broker.replication.ha.allowed_peers import AllowedPeers
from pyromq.broker.replication.ha.ha_client import HaClient, Master
from pyromq.broker.replication.ha.ha_service import HaService
from pyromq.broker.role import request_address
from pyromq.broker.shared_state import SharedState
from pyromq.message import join_address


def _ignored(end: int) -> None:
    """Ignore a slave's report: slaves of a replica set confirm nothing."""


def sending_log(state: SharedState) -> BrokerModule:
    """Return the module that sends the log to slaves while the broker is the master.

    A broker without slaves gets an empty module. With SYNC_MASTER, replies to sends wait until one slave has the
    messages. The slaves of a replica set get only confirmed messages, because slaves of RocketMQ 4.9 cannot cut their
    logs. No reply waits for these slaves.
    """
    config = state.config
    if not config.serves_slaves:
        return BrokerModule()
    is_set = bool(config.failover.etcd)
    peers = AllowedPeers(config.ha.allowed_peers, state.clock, host=config.host, registered=state.registering.hosts)
    service = state.ha_service = HaService(
        state.store,
        state.clock,
        config.ha,
        replicated=_ignored if is_set else state.confirmation.replicated,
        allows=peers.allows,
        fetch=state.cold_reads.fetch,
    )
    # A broker with port 0 knows its port only after it listens, and `port` + 1 may then be in use.
    takes_any_port = config.port == 0

    def require_slave() -> None:
        if config.role is ConfiguredRole.SYNC_MASTER:
            rule = ReplicaRule(config.ha.slave_timeout_ms / 1000, has_replica=service.has_replica)
            state.confirmation.require_replicas(rule)

    async def start() -> None:
        port = config.failover.slave_port if is_set else config.ha.port
        if port is None:
            port = 0 if takes_any_port else config.port + 1
        await service.start(config.host, port)
        state.role.serve_slaves_at(join_address(config.advertised_ip, service.port))

    return BrokerModule(
        master_only=True,
        repair=require_slave,  # `repair` runs before the first request
        start=start,
        steps=[Step(service.step, service.alarm)],
        stop=service.stop,
        close=service.close,
    )


def following_log(state: SharedState) -> BrokerModule:
    """Return the module by which a slave's log follows its master's; an empty module for any other broker."""
    config, role = state.config, state.role
    if config.role is not ConfiguredRole.SLAVE:
        return BrokerModule()
    client = state.ha_client = HaClient(state.store, state.clock, config.ha, connections=config.connections)

    def apply_role() -> None:
        """Follow the master that is known now. If the master is unknown, the slave keeps its connection."""
        if role.is_master:
            client.follow(None)
        elif ha_address := config.ha_master or role.ha_address:
            client.follow(Master(ha_address, role.master_address or request_address(ha_address)))

    async def start() -> None:
        role.listen(apply_role)
        apply_role()

    return BrokerModule(start=start, stop=client.stop)
