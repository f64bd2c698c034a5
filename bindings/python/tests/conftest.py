"""A cluster for each module, and pools in both of its racks."""

import pytest

import rackpool


@pytest.fixture(scope="module")
def cluster():
    with rackpool.cluster(racks=2) as started:
        yield started


@pytest.fixture
def pool(cluster):
    with cluster.connect(0) as joined:
        yield joined


@pytest.fixture
def other(cluster):
    with cluster.connect(1) as joined:
        yield joined
