"""Bits of field sysFlag of a record.

Source: RocketMQ 4.9.8, MessageSysFlag; kinds of compression: RocketMQ 5.
"""

from __future__ import annotations


class SysFlag:
    """The bits of field sysFlag of a record: compression, transaction state, and IPv6 addresses."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    HALF = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC  # also the mask of both transaction bits
    BORN_HOST_IPV6 = 0x10
    STORE_HOST_IPV6 = 0x20
    COMPRESSION_MASK = 0x700  # bits of the kind of compression; 0: zlib, as clients before RocketMQ 5 write
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300
