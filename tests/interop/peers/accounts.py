"""The accounts of tests with permissions: an operator, an account that sends, and one that consumes."""

from __future__ import annotations

from pyromq import ConnectionConfig

ACCOUNTS = """
accounts:
- {accessKey: operators, secretKey: secret-of-operators, admin: true}
- {accessKey: writer-1, secretKey: secret-of-writer-1, defaultTopicPerm: PUB}
- {accessKey: reader-1, secretKey: secret-of-reader-1, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


def connections(account: str) -> ConnectionConfig:
    return ConnectionConfig(access_key=account, secret_key=f"secret-of-{account}")
