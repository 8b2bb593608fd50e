"""A cluster for the tests of this folder; each test writes to topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_cluster import KafkaCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[KafkaCluster]:
    """A running cluster that tests only write to and read from."""
    with KafkaCluster() as running:
        yield running


@pytest.fixture
def own_cluster() -> Iterator[KafkaCluster]:
    """A cluster to be paused or killed."""
    with KafkaCluster() as running:
        yield running
