"""`backflow doctor` on a real cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.kafka import Cluster
from tests.integration.scenes import addresses, named

pytestmark = pytest.mark.integration


def test_a_cluster_that_answers_is_counted(kafka_3_9: Cluster, tmp_path: Path) -> None:
    kafka_3_9.create_topic(named("doctor"), 3)
    config = tmp_path / "rules.toml"
    table = "".join(f'{key} = "{value}"\n' for key, value in addresses(kafka_3_9).items())
    config.write_text(f"[clusters.main]\n{table}[spark]\nenabled = false\n", encoding="utf-8")
    command = [sys.executable, "-m", "agent", "doctor", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    kafka, zookeeper, *others = done.stdout.splitlines()
    assert kafka.startswith("ok        main/kafka                ")
    assert zookeeper.startswith("ok        main/zookeeper            3 brokers, ")
    assert [line for line in others if line.startswith("PROBLEM")] == ["PROBLEM   console"]
    assert (done.returncode, done.stderr) == (1, "")
