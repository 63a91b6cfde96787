"""Restore metrics of real applications, given by the Prometheus JMX exporter, against what their changelogs hold.

Seen with Kafka Streams 3.9.1 under exactly_once_v2, a persistent store, JMX exporter 1.0.1 and 0.20.0:

- stream-task-metrics has restore-total, restore-rate and restore-remaining-records-total of each active task, thread-id
  being the stream thread's. That is so with the state updater, which is the default, and without it
  (`__state.updater.enabled__=false`); stream-state-updater-metrics, whose thread-id is a-StateUpdater-1, counts no
  records by task. They are of the task on this thread: gone when it goes, at 0 when it comes.
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

from agent.config.streams_section import Streams
from agent.model.observations import TaskRestore, Unavailable
from agent.sources.streams.metrics_source import StreamsMetricsSource
from testbed.agent import Agent, logs_table
from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp
from testbed.streams.changelog import records
from testbed.streams.faults import forge_state, instances, lose_state
from testbed.streams.input import feed, wait_until_processed
from testbed.streams.versions import EXPORTERS
from testbed.waiting import wait_until
from tests.integration.scenes import addresses, findings
from tests.integration.seen import Seen

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_THREAD = "a-StreamThread-1"

Make: TypeAlias = Callable[..., StreamsApp]
Pair: TypeAlias = Callable[..., tuple[StreamsApp, StreamsApp]]


@pytest.fixture
def make(broker: Cluster, tmp_path: Path) -> Iterator[Make]:
    """Starts an application of two partitions with an exporter and some state: (name, exporter, level)."""
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


def _again(app: StreamsApp, *, wiped: bool) -> None:
    """A clean stop, after which checkpoints say what the stores hold, and a start; wiped: without local state."""
    app.stop()
    if wiped:
        shutil.rmtree(app.state_dir)
    app.start()
    app.wait_until_running(2)


def _source(app: StreamsApp, seen: Seen) -> StreamsMetricsSource:
    settings = Streams.model_validate_json(json.dumps({"metrics": [app.metrics_url], "timeout": "30s"}))
    return StreamsMetricsSource(app.application_id, "main", app.application_id, settings, seen)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_totals_told_are_the_records_that_the_changelog_holds(exporter: str, make: Make) -> None:
    """Of a store that is restored as a whole. From a checkpoint, with nothing left to restore, the total is 0."""
    app, seen = make(f"whole-{exporter.replace('.', '-')}", exporter, "DEBUG"), Seen()
    source = _source(app, seen)
    _again(app, wiped=True)
    held = Counter(one.partition for one in records(app.bootstrap_servers, app.changelog))
    assert len(held) == 2
    for partition, count in held.items():
        told = seen.wait_for(source, TaskRestore, task=f"0_{partition}", restored_total=count)
        assert (told.endpoint, told.thread, told.stores) == (app.metrics_url, _THREAD, ("counts",))
        assert told.remaining is not None
        assert told.remaining < count
    _again(app, wiped=False)
    seen.mark()
    _work(app, 5)
    for partition in held:
        seen.wait_for(source, TaskRestore, task=f"0_{partition}", thread=_THREAD, restored_total=0)
    source.close()


def test_what_is_not_counted_is_not_told_as_nothing(make: Make) -> None:
    """At the recording level INFO the total is there and 0, whatever has been restored. That an instance is gone is
    said.
    """
    app, seen = make("info", "1.0.1", "INFO"), Seen()
    source = _source(app, seen)
    _again(app, wiped=True)
    _work(app, 5)
    told = seen.wait_for(source, TaskRestore, task="0_0", thread=_THREAD)
    assert told.restored_total is None
    assert told.remaining is not None
    app.kill()
    assert app.metrics_url.removesuffix("/metrics") in seen.wait_for(source, Unavailable).reason
    source.close()


# --- in incidents


@pytest.fixture
def pair(broker: Cluster, tmp_path: Path) -> Iterator[Pair]:
    """Makes two instances of an application that loses its state: (name, version, properties) -> neither started."""
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
    """An agent that watches the store, and what the table names."""
    stores = f'stores = [{{ application = "{app.application_id}", store = "{app.store}" }}]'
    return Agent(directory / "agent", {"main": addresses(broker)}, None, table, edits={"stores = []": stores})


def _told(agent: Agent, key: str) -> list[dict[str, Any]]:
    """What is told of values that fell, once all of it names the key."""

    def told() -> list[dict[str, Any]] | None:
        found = [one for one in findings(agent.standing(), "state_not_restored") if "values_fell" in one["labels"]]
        return found if found and all(key in one["current"] for one in found) else None

    return wait_until(told, f"a fall with {key}", 180)


@pytest.mark.acceptance
def test_an_incident_tells_by_metrics_what_was_restored(broker: Cluster, tmp_path: Path, pair: Pair) -> None:
    """On 3.9.1, after checkpoints that lie: nothing of what the changelog spans."""
    first, second = pair("forged", "3.9.1", exporter="1.0.1", metrics_recording_level="DEBUG")
    metrics = json.dumps([first.metrics_url, second.metrics_url])
    table = f'[streams.forged]\nmetrics = {metrics}\nmetrics_interval = "1s"'
    with _agent(broker, tmp_path, first, table) as agent:
        agent.wait_until_watching()
        lost = forge_state(first, second)
        told = _told(agent, "restored")
    assert {one["subject"]["partition"] for one in told} <= {one.partition for one in lost.falls}
    for one in told:
        spanned = f"{one['current']['spanned']:,}"
        assert one["current"]["spanned"] > 40
        words = f"restored: 0 of the {spanned} offsets that its changelog spans (metrics of {second.metrics_url})"
        assert words in one["detail"]


@pytest.mark.acceptance
def test_an_incident_tells_by_the_log_that_there_was_no_checkpoint(broker: Cluster, tmp_path: Path, pair: Pair) -> None:
    """On 2.1.0, where nothing tells how much was restored: KAFKA-7672 itself."""
    first, second = pair("unrestored", "2.1.0")
    table = logs_table("shop", [str(first.log), str(second.log)], cluster="main")
    with _agent(broker, tmp_path, first, table) as agent:
        agent.wait_until_watching()
        lose_state(first, second, "empty")
        told = _told(agent, "no_checkpoint")
    for one in told:
        assert "restored" not in one["current"]
        assert f"no checkpoint was found ({first.log}, " in one["detail"]
