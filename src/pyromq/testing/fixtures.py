"""A pytest plugin with the fixture `pyromq_cluster`. pyromq is imported only when a test uses the fixture."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyromq.testing.blocking_cluster import BlockingCluster
    from pyromq.testing.cluster import Cluster

try:
    from pytest_asyncio import fixture as async_fixture
except ImportError:  # without pytest-asyncio: other async plugins accept plain async fixtures
    async_fixture = pytest.fixture  # type: ignore[assignment]  # the same for the one use below


@pytest.fixture
def pyromq_cluster(request: pytest.FixtureRequest) -> Cluster | BlockingCluster:
    """A name server and a broker in this process, on free ports, with a temporary folder and a clock of their own.

    An `async def` test gets a `Cluster` on its own event loop, other tests a `BlockingCluster`, for blocking clients.
    """
    kind = "_pyromq_async" if inspect.iscoroutinefunction(request.function) else "_pyromq_blocking"
    return request.getfixturevalue(f"{kind}_cluster")  # type: ignore[no-any-return]


@async_fixture
async def _pyromq_async_cluster() -> AsyncIterator[Cluster]:
    from pyromq.testing.cluster import Cluster

    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
def _pyromq_blocking_cluster() -> Iterator[BlockingCluster]:
    from pyromq.testing.blocking_cluster import BlockingCluster

    with BlockingCluster() as cluster:
        yield cluster
