"""Replicas that differ after a power loss (KAFKA-3919): the checks find exactly what Kafka's dump tool shows."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from testbed.kafka import Cluster
from testbed.power_loss import SILENT, STRADDLING, PowerLoss, create, power_loss
from tests.integration.scenes import named

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_CUT_AT_THREE_PLACES: Mapping[int, float] = {2005: 0.9, 2011: 0.8, 2024: 0.7}


def test_batch_across_the_high_watermark_is_found_by_both_checks(kafka_0_11: Cluster) -> None:
    """The follower appended a whole batch: its offsets decrease, and it differs from the leader before that point."""
    truth = _two_replicas(kafka_0_11, "snappy", STRADDLING)
    assert len(truth.decreases) == 1
    assert truth.diverged[2005, 2011].first == truth.leader_end < truth.decreases[0].current
    _assert_found_exactly(truth)


@pytest.mark.acceptance
@pytest.mark.parametrize(("codec", "others"), [("gzip", STRADDLING), ("snappy", SILENT), ("gzip", SILENT)])
def test_other_variants_of_the_power_loss_are_found(kafka_0_11: Cluster, codec: str, others: int) -> None:
    """If the follower truncates to the new end, no offset decreases: the replicas only differ."""
    truth = _two_replicas(kafka_0_11, codec, others)
    assert len(truth.decreases) == (1 if others == STRADDLING else 0)
    _assert_found_exactly(truth)


@pytest.mark.acceptance
@pytest.mark.parametrize("codec", ["snappy", "gzip"])
@pytest.mark.parametrize("leader", _CUT_AT_THREE_PLACES)
def test_three_replicas_cut_at_three_places_are_distinguished(kafka_0_11: Cluster, codec: str, leader: int) -> None:
    topic = named("three")
    # The preferred leader, so that no election gives another replica's records to the broker that returns last.
    create(kafka_0_11, topic, sorted(_CUT_AT_THREE_PLACES, key=lambda broker: broker != leader))
    truth = power_loss(kafka_0_11, topic, keep=_CUT_AT_THREE_PLACES, leader=leader, codec=codec)
    longer = [broker for broker, share in _CUT_AT_THREE_PLACES.items() if share > _CUT_AT_THREE_PLACES[leader]]
    assert {pair for pair in truth.diverged if leader in pair} == {(broker, leader) for broker in longer}
    _assert_found_exactly(truth)


def _two_replicas(cluster: Cluster, codec: str, others: int) -> PowerLoss:
    topic = named("two")
    create(cluster, topic, [2005, 2011])
    return power_loss(cluster, topic, keep={2005: 0.9}, leader=2005, codec=codec, others=others)


def _assert_found_exactly(truth: PowerLoss) -> None:
    """Assert that both checks find all faults on the disks of running brokers and nothing else."""
    faults = _check("log_segments", truth)
    assert [
        (fault["labels"], fault["subject"], fault["position"], fault["previous"], fault["current"], fault["severity"])
        for fault in faults
    ] == [
        (
            ["offsets_went_back"],
            {**_place(truth), "broker": dip.broker, "file": f"{dip.file.parent.name}/{dip.file.name}"},
            dip.position,
            {"offset": dip.previous},
            {"offset": dip.current},
            "critical",
        )
        for dip in truth.decreases
    ]
    differences = _check("replica_divergence", truth)
    by_pair = {tuple(finding["subject"]["brokers"]): finding for finding in differences}
    assert len(by_pair) == len(differences)
    assert by_pair.keys() == truth.diverged.keys()
    for pair, difference in truth.diverged.items():
        finding = by_pair[pair]
        sides = [finding["previous"], finding["current"]]
        assert finding["subject"] == {**_place(truth), "brokers": list(pair)}
        assert [side["broker"] for side in sides] == list(pair)
        assert tuple(side["records"] for side in sides) == difference.alone
        offsets = [side["offset"] for side in sides if side["offset"] is not None]
        last_offsets = [side["last_offset"] for side in sides if side["last_offset"] is not None]
        assert (min(offsets), max(last_offsets)) == (difference.first, difference.last)
        assert finding["records"]["lost"] == max(difference.alone)


def _place(truth: PowerLoss) -> dict[str, Any]:
    return {"cluster": "main", "topic": truth.topic, "partition": truth.partition}


def _check(name: str, truth: PowerLoss) -> list[dict[str, Any]]:
    """Return the findings that the command prints; its exit status must fit them."""
    command = [sys.executable, "-m", "spark_checks", name, "--topic", truth.topic, "--master", "local[2]"]
    for broker, directory in truth.directories.items():
        command += ["--path", f"{broker}={directory}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if findings else 0), done.stderr
    return findings
