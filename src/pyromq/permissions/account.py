"""One account: its keys, its rights, and the addresses from which its requests need no signature.

Rights on groups are stored under the names of the retry topics, as in RocketMQ. Source: RocketMQ 4.9.8,
PlainAccessResource, Permission, PlainPermissionManager.checkPerm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyromq.names import NOT_FOR_CLIENTS, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX
from pyromq.permissions.address_patterns import AddressPattern

DENY = 1
ANY = 2  # only for needed rights: either PUB or SUB
PUB = 4
SUB = 8

SHORTEST = 7  # least number of characters in an access key or a secret key

RIGHTS: Mapping[str, int] = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
_NAMES = {DENY: "DENY", ANY: "PUB or SUB", PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB|SUB"}

Need = tuple[str, int]  # a needed right: a topic, or the retry topic of a group, with the right


@dataclass(frozen=True, slots=True)
class Account:
    """An account in the ACL files.

    `rights` has the right on each topic, and on each group under the name of its retry topic.
    """

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    from_addresses: AddressPattern = field(default_factory=lambda: AddressPattern(""))
    default_topic_right: int = DENY
    default_group_right: int = DENY
    rights: Mapping[str, int] = field(default_factory=dict)

    def lacks(self, needs: list[Need]) -> Need | None:
        """Return the first of these rights that the account lacks, else None.

        An administrator without listed rights lacks none.
        """
        if self.admin and not self.rights:
            return None
        return next((need for need in needs if not self._allows(*need)), None)

    def right_on(self, resource: str) -> int:
        """Return the account's right on a topic, or on a group given by its retry topic.

        The listed right applies, else the default.
        """
        own = self.rights.get(resource)
        if own is not None:
            return own
        if resource.startswith(RETRY_PREFIX):
            return self.default_group_right
        if not self.admin and (resource in NOT_FOR_CLIENTS or resource.startswith(SYSTEM_TOPIC_PREFIX)):
            return DENY  # these topics have other users' messages; unlike in RocketMQ the default does not apply
        return self.default_topic_right

    def _allows(self, resource: str, needed: int) -> bool:
        owned = self.right_on(resource)
        if owned & DENY:
            return False
        return bool(owned & (PUB | SUB if needed & ANY else needed))


def right_name(right: int) -> str:
    """Return a right as ACL files spell rights, for example `PUB|SUB`."""
    return _NAMES.get(right, str(right))


def resource_name(resource: str) -> str:
    """Return `topic X` or, for the retry topic of a group, `group X`."""
    is_group = resource.startswith(RETRY_PREFIX)
    return f"group {resource.removeprefix(RETRY_PREFIX)}" if is_group else f"topic {resource}"
