"""Signs requests with access keys, as RocketMQ does.

    Signature = Base64(HMAC-SHA1(secret key, values of all fields but its own, by their names in order, and the body))

Source: RocketMQ 4.9.8, AclClientRPCHook, AclUtils.combineRequestContent, AclSigner, PlainAccessValidator.parse.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from pyromq import speedups
from pyromq.errors import UsageError

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.fast_acl import FrameSigner

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
# Brokers of 4.9 leave this field out of signatures, because clients up to 4.9.3 added the field after signing.
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"

# Limit of characters in account name and token for compiled signing; plain Python signs longer ones.
_MAX_COMPILED = 1000

UNSIGNED = frozenset({SIGNATURE, UNIQUE_KEY_QUERY})


class Signer(Protocol):
    """Signs the requests that a connection sends."""

    def sign(self, fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Return the fields to add to a request with these fields (as on the wire) and this body."""


@dataclass(frozen=True, slots=True)
class AccessKeySigner:
    """Signs requests with the keys of an account. Signers with equal keys are equal; `repr` hides the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    # Token of temporary keys; brokers of 4.9 only include the token in the signature.
    security_token: str | None = field(default=None, repr=False)

    # Compiled signer of frames.
    compiled: FrameSigner | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            missing = "secret_key" if self.access_key else "access_key"
            raise UsageError(
                f"{missing} is empty: an account is its access key and its secret key together; give"
                f" ConnectionConfig.{missing}, --{missing.replace('_', '-')} or PYROMQ_{missing.upper()}"
            )

        if speedups.is_active and len(self.access_key) + len(self.security_token or "") < _MAX_COMPILED:
            added = list(self._added().items())
            text = ",".join(f"{_json(name)}:{_json(value)}" for name, value in [*added, (SIGNATURE, "")])
            object.__setattr__(self, "compiled", FrameSigner(self.secret_key, added, text[:-1].encode()))

    def sign(self, fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Return the fields to add: access key, token if any, and the signature over all fields and the body."""
        added = self._added()
        content = signed_content({**fields, **added}, body)
        added[SIGNATURE] = signature(self.secret_key, content)
        return added

    def _added(self) -> dict[str, str]:
        token = {} if self.security_token is None else {SECURITY_TOKEN: self.security_token}
        return {ACCESS_KEY: self.access_key, **token}


def frame_signer(signer: Signer) -> FrameSigner | None:
    """Return the compiled form of a signer, which signs whole frames; None if there is none."""
    return signer.compiled if type(signer) is AccessKeySigner else None


def signed_content(fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes that are signed: the values of the fields in order of their names, then the body."""
    values = [fields[name] for name in sorted(fields) if name not in UNSIGNED]
    return "".join(values).encode() + body


def signature(secret_key: str, content: bytes) -> str:
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()
