"""A name server's own settings."""

import pytest

from pyromq.errors import UsageError
from pyromq.nameserver.name_server_config import NameServerConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", -1), ("port", 65_536), ("broker_timeout_ms", 999), ("scan_interval_ms", 0)],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(UsageError, match=rf"name server setting \w* ?\(?{name}\)? is {value}; it must be "):
        NameServerConfig(**{name: value})
