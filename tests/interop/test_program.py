"""What the interoperation tests stand on, itself tested without Java."""

from __future__ import annotations

from pathlib import Path

from tests.processes import free_port


def test_a_server_s_port_is_none_that_clients_are_given() -> None:
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert all(free_port(-2, 1) + 1 < given_from for _ in range(100))
