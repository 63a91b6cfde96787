"""Parameters with which a test runs several times: `make test` has some of them, `make acceptance` the others."""

import pytest

KAFKA_VERSIONS = ("kafka_0_11", pytest.param("kafka_3_9", marks=pytest.mark.acceptance), "kafka_4_1")
"""Clusters of the testbed, as names of fixtures."""

SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.acceptance) for seed in (2, 3)))
"""What simulated histories are drawn from, where Spark takes many seconds for each."""
