"""Key-value settings: every name server has a table of its own."""

from __future__ import annotations

from pyromq.client.admin.brokers import ClusterBrokers
from pyromq.errors import QueryNotFound
from pyromq.remoting.bodies import KeyValues
from pyromq.remoting.headers import DeleteKv, KvNamespace, KvValue, KvValueResponse, PutKv


class ClusterKv:
    """Values by namespace and key, for `AsyncAdmin`; changes go to every name server."""

    def __init__(self, brokers: ClusterBrokers) -> None:
        self._brokers = brokers

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server."""
        await self._brokers.ask_name_servers(PutKv(namespace=namespace, key=key, value=value))

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a stored value; None if there is none."""
        try:
            response = await self._brokers.ask_name_server(KvValue(namespace=namespace, key=key))
        except QueryNotFound:
            return None
        return response.header(KvValueResponse).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server."""
        await self._brokers.ask_name_servers(DeleteKv(namespace=namespace, key=key))

    async def kv_namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace; {} if there are none."""
        try:
            return (await self._brokers.name_server(KvNamespace(namespace=namespace), KeyValues)).table
        except QueryNotFound:
            return {}
