"""The parts of a running agent without its sources of Kafka, for tests of what it shows."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from agent.checks.runner import Checks
from agent.config.loading import loads
from agent.daemon.health import Health
from agent.daemon.loops import Progress
from agent.daemon.pipeline import Pipeline
from agent.daemon.status import CheckRuns, Parts, StatusReader
from agent.engine.engine import Engine
from agent.model.observations.base import Observation, Tick
from agent.notify.console import Console
from agent.notify.dispatcher import Dispatcher
from agent.sources.logs.source import LogSource
from agent.storage.incidents import IncidentStore
from agent.storage.journal.writer import Journal

ROOT = Path(__file__).parents[1]


class Running(NamedTuple):
    """A pipeline with a console as its receiver and a source that follows log files."""

    reader: StatusReader
    pipeline: Pipeline
    source: LogSource
    dispatcher: Dispatcher
    health: Health


@contextmanager
def running(directory: Path, observations: Iterable[Observation] = ()) -> Iterator[Running]:
    """Run the agent's parts; the observations have been evaluated when the block begins."""
    tables = f"[agent]\nstate_directory = '{directory}'\n[logs.app]\npaths = ['{directory}/*.log']\ntime_zone = 'UTC'\n"
    text = (ROOT / "rules.toml").read_text(encoding="utf-8") + tables + "[spark]\nenabled = false\n"
    settings = loads(text, "rules.toml", need_clusters=False)
    (directory / "app.log").touch()
    with ExitStack() as stack:
        store = stack.enter_context(IncidentStore(directory / "state.sqlite3", ["console"]))
        journal = Journal(directory / "journal", store.position)
        stack.callback(journal.close)
        health = Health()
        dispatcher = Dispatcher(store.path, Console(StringIO()))
        engine = Engine(settings.rules, settings.correlations, settings.incidents)
        pipeline = Pipeline(
            journal, store, engine, retention=settings.journal.retention, wake={"console": dispatcher.wake},
            health=health,
        )  # fmt: skip
        checks = Checks(settings, pipeline.put_check_result)
        source = LogSource("app", settings.logs["app"], [], pipeline.put)
        stack.callback(source.close)
        progress = Progress([], {"pipeline": lambda: pipeline.ticks})
        parts = Parts(
            directory, [source], pipeline, {"console": dispatcher}, checks, health, progress, list(settings.rules)
        )
        evaluated = list(observations)
        pipeline.take(evaluated)
        if evaluated:  # as an agent that has been suspended since: the time until now is not evaluated minute by minute
            stopped = max(observation.seen for observation in evaluated)
            pipeline.take([Tick(at=stopped), Tick(at=stopped + 1_000)])
        pipeline.start()
        stack.callback(pipeline.close, 10)
        dispatcher.start()
        stack.callback(dispatcher.close, 10)
        yield Running(StatusReader(parts, CheckRuns(), patience=60), pipeline, source, dispatcher, health)
