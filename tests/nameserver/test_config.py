"""A name server's own settings."""

import pytest

from pyromq.errors import UsageError
from pyromq.nameserver.config import BLACK_LIST, JAVA_NAMES, LIVE, NameServerConfig
from pyromq.remoting.connection_limits import ConnectionLimits


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", -1), ("port", 65_536), ("broker_timeout_ms", 999), ("scan_interval_ms", 0)],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(UsageError, match=f"name server setting {name} is {value}; it must be "):
        NameServerConfig(**{name: value})


def test_every_java_name_is_a_field():
    fields = set(NameServerConfig.__dataclass_fields__)
    fields |= {f"connection_limits.{name}" for name in ConnectionLimits.__dataclass_fields__}
    assert set(JAVA_NAMES.values()) <= fields
    assert JAVA_NAMES.keys() >= LIVE
    assert not LIVE & BLACK_LIST
