"""Makes message classes from the compiled descriptors in `rocketmq.binpb`.

Generated modules would bind pyromq to one major version of protobuf. The descriptors are in a pool of their own, so
that RocketMQ's official client can be loaded in the same process.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(Path(__file__).with_name("rocketmq.binpb").read_bytes()).file:
        pool.Add(file)
    return pool


def define(module: dict[str, object], file: str) -> None:
    """Define the messages, enums and enum values of a .proto file as names of a module."""
    found = _pool().FindFileByName(file)
    for name, message in found.message_types_by_name.items():
        module[name] = GetMessageClass(message)
    for name, enum in found.enum_types_by_name.items():
        module[name] = EnumTypeWrapper(enum)
        module.update({value.name: value.number for value in enum.values})
