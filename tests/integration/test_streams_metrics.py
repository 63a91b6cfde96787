"""Restore metrics of real applications, from the Prometheus JMX exporter, compared with their changelogs.

Seen with Kafka Streams 3.9.1 under exactly_once_v2, a persistent store, JMX exporter 1.0.1 and 0.20.0:

- stream-task-metrics has restore-total, restore-rate and restore-remaining-records-total of each active task, thread-id
  being the stream thread's. That is so with the state updater, which is the default, and without it
  (`__state.updater.enabled__=false`); stream-state-updater-metrics, whose thread-id is a-StateUpdater-1, counts no
  records by task. They belong to the task on this thread: removed when it leaves, at 0 when it is assigned.
- restore-total is recorded at metrics.recording.level=DEBUG alone. At the default, INFO, it is there and stays 0.0
  while 450 records are restored. restore-remaining-records-total is recorded at INFO; it begins at the offsets that are
  to be read and falls by records, so that transaction markers stay: 1 or 2 when all is restored.
- 0.20.0 writes kafka_streams_stream_task_metrics_restore_total, 1.0.1 leaves `_total` out: ..._restore and
  ..._restore_remaining_records. Both write what is not recorded as 0.0 or NaN.
- The metrics are in 3.5.0 and not in 3.4.1 (TaskMetrics).
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from agent.config.sources import Streams
from agent.model.observations.base import Unavailable
from agent.model.observations.streams import TaskRestore
from agent.sources.streams.metrics_source import StreamsMetricsSource
from testbed.agent import Agent, logs_table
from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp
from testbed.streams.faults import forge_state, instances, lose_state
from testbed.streams.topics import feed, records, wait_until_processed
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, findings
from tests.integration.seen import Seen

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_THREAD = "a-StreamThread-1"

Make: TypeAlias = Callable[..., StreamsApp]
Pair: TypeAlias = Callable[..., tuple[StreamsApp, StreamsApp]]


@pytest.fixture
def make(broker: Cluster, tmp_path: Path) -> Iterator[Make]:
    """Start an application of two partitions with an exporter and some state: (name, exporter, level)."""
    made: list[StreamsApp] = []

    def start(name: str, exporter: str, level: str) -> StreamsApp:
        broker.create_topic(f"{name}-in", 2)
        app = StreamsApp(
            "3.9.1",
            broker.bootstrap_servers,
            name,
            tmp_path,
            input_topic=f"{name}-in",
            exporter=exporter,
            metrics_recording_level=level,
        )
        made.append(app)
        app.start()
        app.wait_until_running(2)
        _work(app, 50)
        return app

    yield start
    for app in made:
        app.kill()


def _work(app: StreamsApp, rounds: int) -> None:
    feed(app.bootstrap_servers, app.input_topic, rounds)
    wait_until_processed(app)


def _restart(app: StreamsApp, *, wiped: bool) -> None:
    """Stop cleanly, which writes checkpoints, and start again. wiped: without local state."""
    app.stop()
    if wiped:
        shutil.rmtree(app.state_dir)
    app.start()
    app.wait_until_running(2)


def _source(app: StreamsApp, seen: Seen) -> StreamsMetricsSource:
    settings = Streams.model_validate_json(json.dumps({"metrics": [app.metrics_url], "timeout": "30s"}))
    return StreamsMetricsSource(app.application_id, "main", app.application_id, settings, seen)


@pytest.mark.parametrize("exporter", ["1.0.1", pytest.param("0.20.0", marks=pytest.mark.acceptance)])
def test_totals_are_the_records_of_the_changelog(exporter: str, make: Make) -> None:
    """Only if the whole store is restored; from a checkpoint, with nothing left to restore, the total is 0."""
    app, seen = make(f"whole-{exporter.replace('.', '-')}", exporter, "DEBUG"), Seen()
    source = _source(app, seen)
    _restart(app, wiped=True)
    record_counts = Counter(record.partition for record in records(app.bootstrap_servers, app.changelog))
    assert len(record_counts) == 2
    for partition, count in record_counts.items():
        restore = seen.wait_for(source, TaskRestore, task=f"0_{partition}", restored_total=count)
        assert (restore.endpoint, restore.thread, restore.stores) == (app.metrics_url, _THREAD, ("counts",))
        assert restore.remaining is not None
        assert restore.remaining < count
    _restart(app, wiped=False)
    seen.mark()
    _work(app, 5)
    for partition in record_counts:
        seen.wait_for(source, TaskRestore, task=f"0_{partition}", thread=_THREAD, restored_total=0)
    source.close()


def test_unrecorded_total_is_unknown_rather_than_zero(make: Make) -> None:
    """At the level INFO the total is always 0. An instance that is down is unavailable."""
    app, seen = make("info", "1.0.1", "INFO"), Seen()
    source = _source(app, seen)
    _restart(app, wiped=True)
    _work(app, 5)
    restore = seen.wait_for(source, TaskRestore, task="0_0", thread=_THREAD)
    assert restore.restored_total is None
    assert restore.remaining is not None
    app.kill()
    assert app.metrics_url.removesuffix("/metrics") in seen.wait_for(source, Unavailable).reason
    source.close()


# --- in incidents


@pytest.fixture
def pair(broker: Cluster, tmp_path: Path) -> Iterator[Pair]:
    """Make two instances of an application that loses its state, not started: (name, version, properties)."""
    made: list[StreamsApp] = []

    def make(name: str, version: str, **properties: str) -> tuple[StreamsApp, StreamsApp]:
        broker.create_topic(f"{name}-in", 4)
        both = instances(
            "empty", version, broker.bootstrap_servers, name, tmp_path, input_topic=f"{name}-in", **properties
        )
        made.extend(both)
        return both

    yield make
    for app in made:
        app.kill()


def _agent(broker: Cluster, directory: Path, app: StreamsApp, table: str) -> Agent:
    """An agent that watches the store, with this table in its rules."""
    stores = f'[{{ application = "{app.application_id}", store = "{app.store}" }}]'
    options = {"rules.state_not_restored.stores": stores}
    return Agent(directory / "agent", {"main": addresses(broker)}, None, table, options=options)


def _wait_for_findings(agent: Agent, key: str) -> list[dict[str, Any]]:
    """Return the findings with decreased values once all of them have the key."""

    def find() -> list[dict[str, Any]] | None:
        standing = findings(agent.unmerged(), "state_not_restored")
        found = [finding for finding in standing if "values_fell" in finding["labels"]]
        return found if found and all(key in finding["current"] for finding in found) else None

    return wait_until(find, f"a decrease with {key}", 180)


@pytest.mark.acceptance
def test_incident_has_restored_offsets_from_metrics(broker: Cluster, tmp_path: Path, pair: Pair) -> None:
    """On 3.9.1, with forged checkpoints: no record of the changelog is restored."""
    first, second = pair("forged", "3.9.1", exporter="1.0.1", metrics_recording_level="DEBUG")
    metrics = json.dumps([first.metrics_url, second.metrics_url])
    table = f'[streams.forged]\nmetrics = {metrics}\nmetrics_interval = "1s"'
    with _agent(broker, tmp_path, first, table) as agent:
        agent.wait_until_watching()
        lost = forge_state(first, second)
        found = _wait_for_findings(agent, "restored")
    assert {finding["subject"]["partition"] for finding in found} <= {fall.partition for fall in lost.decreases}
    for finding in found:
        spanned = f"{finding['current']['spanned']:,}"
        assert finding["current"]["spanned"] > 40
        assert f"restored 0 of {spanned} offsets" in finding["detail"]
        assert finding["current"]["restored_by"].startswith(f"metrics of {second.metrics_url}")


@pytest.mark.acceptance
def test_incident_has_the_missing_checkpoint_from_logs(broker: Cluster, tmp_path: Path, pair: Pair) -> None:
    """On 2.1.0, which has no restore metrics: KAFKA-7672 itself."""
    first, second = pair("unrestored", "2.1.0")
    table = logs_table("shop", [str(first.log), str(second.log)], cluster="main")
    with _agent(broker, tmp_path, first, table) as agent:
        agent.wait_until_watching()
        lose_state(first, second, "empty")
        found = _wait_for_findings(agent, "no_checkpoint")
    for finding in found:
        assert "restored" not in finding["current"]
        assert "no checkpoint found" in finding["detail"]
        assert finding["current"]["no_checkpoint"].startswith(str(first.log))
