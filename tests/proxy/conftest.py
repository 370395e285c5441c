"""A proxy before a cluster, and RocketMQ 5 calls to it by the genuine gRPC library."""

from importlib.util import find_spec

import pytest

if find_spec("hpack") is None:  # the extra `grpc` is not installed
    collect_ignore_glob = ["*.py", "*/*.py"]
else:
    from tests.proxy.calls import Calls

    from pyromq.net.connection_config import ConnectionConfig
    from pyromq.proxy.proxy import Proxy
    from pyromq.proxy.proxy_config import ProxyConfig
    from pyromq.testing import Cluster

    @pytest.fixture
    async def cluster():
        async with Cluster() as cluster:
            yield cluster

    @pytest.fixture
    async def proxy(cluster, tmp_path):
        async with Proxy(ProxyConfig(namesrv=cluster.namesrv, port=0, data=tmp_path), cluster.clock) as proxy:
            yield proxy

    @pytest.fixture
    async def guarded(request, tmp_path):
        """A proxy before a cluster with topics `orders` and `payments`, and the accounts of the test module's `ACL`."""
        acl = tmp_path / "conf"
        acl.mkdir()
        (acl / "plain_acl.yml").write_text(request.module.ACL)
        owner = ConnectionConfig(access_key="admin-account", secret_key="secret-of-admin")
        async with Cluster(permissions=True, permissions_path=acl, connections=owner) as cluster:
            admin = await cluster.admin()
            for topic in ("orders", "payments"):
                await admin.create_topic(topic)
            config = ProxyConfig(namesrv=cluster.namesrv, port=0, data=tmp_path, acl=acl)
            async with Proxy(config, cluster.clock) as proxy:
                yield proxy

    @pytest.fixture
    async def calls(proxy):
        async with Calls(proxy.address) as calls:
            yield calls
