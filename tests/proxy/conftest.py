"""A proxy before a cluster, and RocketMQ 5 calls to it by the genuine gRPC library."""

from importlib.util import find_spec

import pytest

if find_spec("hpack") is None:  # the extra `grpc` is not installed
    collect_ignore_glob = ["*.py", "*/*.py"]
else:
    from tests.proxy.calls import Calls

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
    async def calls(proxy):
        async with Calls(proxy.address) as calls:
            yield calls
