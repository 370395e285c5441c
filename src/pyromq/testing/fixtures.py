"""A pytest plugin: the fixture `pyromq_cluster`. Loads nothing of pyromq until a test asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyromq.testing.cluster import Cluster

try:
    from pytest_asyncio import fixture as async_fixture
except ImportError:  # other ways to run async tests take plain async fixtures
    async_fixture = pytest.fixture  # type: ignore[assignment]  # the same for the one use below


@async_fixture
async def pyromq_cluster() -> AsyncIterator[Cluster]:
    """A name server and a broker in this process, on free ports, with a temporary folder and a clock of their own."""
    from pyromq.testing.cluster import Cluster

    async with Cluster() as cluster:
        yield cluster
