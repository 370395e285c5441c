"""Answers requests for key-value settings, which operators keep here for everybody."""

from __future__ import annotations

from concurrent.futures import Future

from pyromq.errors import BrokerError, QueryNotFound
from pyromq.nameserver.kv import KvTable
from pyromq.remoting.bodies import KeyValues, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import DeleteKv, KvNamespace, KvValue, KvValueResponse, PutKv
from pyromq.store.table_file import when_saved


class AnsweringKv:
    """One value by its namespace and key: put, find, delete; and all values of a namespace."""

    def __init__(self, kv: KvTable) -> None:
        self._kv = kv

    @answers(PutKv)
    def put(self, header: PutKv, call: Call) -> Future[Reply]:
        if not header.namespace or not header.key:
            raise BrokerError("namespace or key is null")
        return when_saved(self._kv.put(header.namespace, header.key, header.value), Reply())

    @answers(KvValue)
    def value(self, header: KvValue, call: Call) -> Reply:
        value = self._kv.find(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return Reply(KvValueResponse(value=value))

    @answers(DeleteKv)
    def delete(self, header: DeleteKv, call: Call) -> Reply | Future[Reply]:
        saved = self._kv.delete(header.namespace, header.key)
        return Reply() if saved is None else when_saved(saved, Reply())

    @answers(KvNamespace)
    def namespace(self, header: KvNamespace, call: Call) -> Reply:
        entries = self._kv.namespace(header.namespace)
        if entries is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace}")
        return Reply(body=encode_body(KeyValues(table=entries)))
