"""Finds topics, groups and brokers by a part of their name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from pyromq.console.cluster.cluster_snapshot import ClusterSnapshot
from pyromq.console.view.request_context import address

KINDS = {"topic": "topics", "group": "groups", "broker": "brokers"}  # the first part of a page's address, by kind
MAX_WORDS = 10  # limit of words in one search: a name with more is improbable
MAX_SIMILAR = 5  # limit of similar names for a name that does not exist
SIMILAR = 0.7  # least similarity, as in difflib: two letters of `orders` may be wrong


@dataclass(frozen=True, slots=True)
class FoundName:
    """A name in the cluster. `kind` is one of `KINDS`; `note` is the kind of an internal topic or group."""

    kind: str
    name: str
    note: str = ""

    @property
    def link(self) -> str:
        return address(KINDS[self.kind], self.name)


def found_names(snapshot: ClusterSnapshot, text: str, kinds: Iterable[str] = KINDS) -> list[FoundName]:
    """Return the names that contain every word of a string, in upper or lower case; the best match comes first.

    The order is: names of users before internal names, then equal names, names that begin with the text, names with a
    word that begins with the text, all others; then short names first.
    """
    words = text.casefold().split()[:MAX_WORDS]
    if not words:
        return []
    found = [each for each in _names(snapshot, kinds) if all(word in each.name.casefold() for word in words)]
    return sorted(found, key=lambda each: (bool(each.note), _distance(each.name, words[0]), len(each.name), each.name))


def similar_names(snapshot: ClusterSnapshot, text: str, kinds: Iterable[str] = KINDS) -> list[FoundName]:
    """Return the names that are spelled most like a string, for a string that no name contains."""
    by_name: dict[str, list[FoundName]] = {}
    for each in _names(snapshot, kinds):
        if not each.note:
            by_name.setdefault(each.name.casefold(), []).append(each)
    close = get_close_matches(text.casefold(), by_name, MAX_SIMILAR, SIMILAR)
    return [each for name in close for each in by_name[name]]


def equal_names(snapshot: ClusterSnapshot, text: str) -> list[FoundName]:
    """Return the things with exactly this name; without one, those whose name differs only in upper or lower case."""
    folded = [each for each in _names(snapshot, KINDS) if each.name.casefold() == text.casefold()]
    return [each for each in folded if each.name == text] or folded


def _names(snapshot: ClusterSnapshot, kinds: Iterable[str]) -> Iterable[FoundName]:
    if "topic" in kinds:
        for topic in snapshot.topics.values():
            yield FoundName("topic", topic.name, "" if topic.kind == "normal" else topic.kind)
    if "group" in kinds:
        for group in snapshot.groups.values():
            yield FoundName("group", group.name, "system" if group.is_system else "")
    if "broker" in kinds:
        for name in snapshot.brokers:
            yield FoundName("broker", name)


def _distance(name: str, word: str) -> int:
    """Return how far a word is from the beginning of a name: 0 equal, 1 at it, 2 at a part's, 3 else."""
    name = name.casefold()
    if name.startswith(word):
        return 0 if name == word else 1
    at = name.find(word)
    return 2 if at > 0 and not name[at - 1].isalnum() else 3
