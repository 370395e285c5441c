"""Who listens on a port, as far as /proc tells."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.platforms.linux import port_owner

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")

LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_our_own_port_is_ours(family, host):
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    with socket.create_server((host, 0), family=family) as listener:
        owner = port_owner(listener.getsockname()[1])
    name = Path("/proc/self/comm").read_text().strip()
    assert owner == f"{name} (pid {os.getpid()})"


def test_another_programs_port_is_named():
    program = [sys.executable, "-c", LISTEN]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        owner = port_owner(int(process.stdout.readline()))
        assert owner is not None
        assert owner.endswith(f"(pid {process.pid})")
        process.stdin.write("\n")


def test_a_port_where_nobody_listens_has_no_owner():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connected:
            local = connected.getsockname()[1]
            assert port_owner(local) is None  # connected, not listening
    assert port_owner(port) is None
