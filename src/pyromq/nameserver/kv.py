"""Key-value settings by namespace, kept in upstream's file `kvConfig.json`."""

from __future__ import annotations

from functools import partial

import msgspec

from pyromq.store.json_file import JsonFile

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"  # namespace: topic -> `broker-a:4;broker-b:4`


class _Table(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvTable:
    """The settings; every change is on disk when the call returns. Without a file they live in memory only."""

    def __init__(self, file: JsonFile | None) -> None:
        self._file = file
        self._namespaces: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file. Raises `StoreCorrupt` naming it."""
        stored = self._file.read(partial(msgspec.json.decode, type=_Table)) if self._file is not None else None
        if stored is not None:
            self._namespaces = stored.config_table

    def put(self, namespace: str, key: str, value: str) -> None:
        self._namespaces.setdefault(namespace, {})[key] = value
        self._save()

    def find(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        if self._namespaces.get(namespace, {}).pop(key, None) is not None:
            self._save()

    def namespace(self, name: str) -> dict[str, str] | None:
        """Return a copy of a namespace's entries; None where there is no such namespace."""
        entries = self._namespaces.get(name)
        return None if entries is None else dict(entries)

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(msgspec.json.encode(_Table(self._namespaces)))
