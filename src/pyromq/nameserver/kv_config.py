"""Key-value settings in namespaces, stored in RocketMQ's file `kvConfig.json`."""

from __future__ import annotations

from functools import partial

import msgspec

from pyromq.errors import BrokerError, LimitReached, QueryNotFound
from pyromq.remoting.bodies import KeyValues, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import DeleteKv, KvNamespace, KvValue, KvValueResponse, PutKv
from pyromq.slow_work import Turns, completed
from pyromq.store.json_file import JsonFile
from pyromq.store.table_file import TableFile

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"  # a namespace; its entries map a topic to `broker-a:4;broker-b:4`


class _Table(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvTable:
    """The key-value settings of a name server; in memory only if there is no file.

    A change can be read once a thread has written the change to disk.
    """

    def __init__(self, file: JsonFile | None, *, max_bytes: int = 4 << 20) -> None:
        self._most = max_bytes
        self._size = 0
        self._file = file
        self._saving = TableFile(file, msgspec.json.encode) if file is not None else None
        self._turns = Turns()
        self._namespaces: dict[str, dict[str, str]] = {}  # never changed, only replaced: the thread encodes it

    def load(self) -> None:
        """Read the file of settings. Raises `StoreCorrupt` that names the file."""
        stored = self._file.read(partial(msgspec.json.decode, type=_Table)) if self._file is not None else None
        if stored is not None:
            self._namespaces = stored.config_table
            self._size = sum(
                _size(name, key, value) for name, entries in self._namespaces.items() for key, value in entries.items()
            )

    def close(self) -> None:
        """Block until all changes are on disk or have failed."""
        if self._saving is not None:
            self._saving.close()

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises `LimitReached` if all entries together would exceed the limit in bytes.

        Raises `StoreNotWritable` if the change cannot be saved; nothing changes then.
        """
        await self._turns.run(partial(self._put, namespace, key, value))

    async def _put(self, namespace: str, key: str, value: str) -> None:
        before = self.find(namespace, key)
        more = _size(namespace, key, value) - (0 if before is None else _size(namespace, key, before))
        if more > 0 and self._size + more > self._most:
            text = f"the value of {key[:80]} is not set, all together have {self._size} bytes: delete some"
            raise LimitReached("maxKvConfigBytes", self._most, text)
        await self._replace(namespace, self._namespaces.get(namespace, {}) | {key: value}, more)

    def find(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value, if there is one.

        Raises `StoreNotWritable` if the change cannot be saved; nothing changes then.
        """
        await self._turns.run(partial(self._delete, namespace, key))

    async def _delete(self, namespace: str, key: str) -> None:
        entries = dict(self._namespaces.get(namespace, {}))
        value = entries.pop(key, None)
        if value is not None:
            await self._replace(namespace, entries, -_size(namespace, key, value))

    def namespace(self, name: str) -> dict[str, str] | None:
        """Return a copy of the entries in a namespace; None if there is no such namespace."""
        entries = self._namespaces.get(name)
        return None if entries is None else dict(entries)

    async def _replace(self, namespace: str, entries: dict[str, str], more: int) -> None:
        namespaces = self._namespaces | {namespace: entries}
        if self._saving is not None:
            await completed(self._saving.save(lambda: _Table(namespaces)))
        self._namespaces = namespaces
        self._size += more


def _size(namespace: str, key: str, value: str) -> int:
    """Return the bytes that an entry takes in memory, including the overhead of Python objects."""
    return len(namespace) + len(key) + len(value) + 100


class KvConfigProcessor:
    """Answers requests that put, find and delete a value by namespace and key, and that list a namespace."""

    def __init__(self, kv: KvTable) -> None:
        self._kv = kv

    @answers(PutKv)
    async def put(self, header: PutKv, call: Call) -> Reply:
        if not header.namespace or not header.key:
            raise BrokerError("namespace or key is null")
        await self._kv.put(header.namespace, header.key, header.value)
        return Reply()

    @answers(KvValue)
    def value(self, header: KvValue, call: Call) -> Reply:
        value = self._kv.find(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return Reply(KvValueResponse(value=value))

    @answers(DeleteKv)
    async def delete(self, header: DeleteKv, call: Call) -> Reply:
        await self._kv.delete(header.namespace, header.key)
        return Reply()

    @answers(KvNamespace)
    def namespace(self, header: KvNamespace, call: Call) -> Reply:
        entries = self._kv.namespace(header.namespace)
        if entries is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace}")
        return Reply(body=encode_body(KeyValues(table=entries)))
