"""What a name server tells Prometheus."""

from pyromq.metrics.exposition import Exposition
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.slow_work import run_blocking


async def test_brokers_and_topics_are_told():
    async with NameServer(NameServerConfig(port=0)) as name_server:
        exposition = Exposition(100)
        run_blocking(name_server.metrics().tell(exposition))
        text = "".join(line for lines in exposition._lines.values() for line in lines)

        labels = f'{{node_type="nameserver",node_id="{name_server.address}"}}'
        assert f"pyromq_namesrv_brokers{labels} 0\n" in text
        assert f"pyromq_namesrv_topics{labels} 0\n" in text
        assert set(name_server.metrics().faults().values()) == {""}
