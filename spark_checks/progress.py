"""Progress of Spark's stages while a check runs, from interfaces that Spark documents.

Classic Spark writes an event log, a JSON line for each event (EventLoggingListener.scala); a Spark Connect server sends
progress with its responses.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from spark_checks.options import Progress

_FOLDER = "spark.backflow.events"
"""The setting that names the folder of the event log if we switched it on."""


class _Stage(Protocol):
    """A stage as Spark Connect's client reports it (pyspark.sql.connect.shell.progress.StageInfo)."""

    @property
    def stage_id(self) -> int: ...
    @property
    def num_tasks(self) -> int: ...
    @property
    def num_completed_tasks(self) -> int: ...


class StageCounts:
    """How many tasks of all stages are done; neither number that is reported ever decreases.

    Finished stages keep counting, and waiting stages count from the start of their job.
    """

    def __init__(self, progress: Progress, what: str) -> None:
        """Take where to report, and what the tasks are called."""
        self._progress, self._what = progress, what
        self._done: dict[int, int] = {}
        self._tasks: dict[int, int] = {}
        self._last = (0, 0)

    def take_event(self, event: Mapping[str, Any]) -> None:
        """Count an event of the event log."""
        match event["Event"]:
            case "SparkListenerJobStart":
                for stage in event["Stage Infos"]:
                    self._take(stage["Stage ID"], 0, stage["Number of Tasks"])
            case "SparkListenerTaskEnd" if event["Task End Reason"]["Reason"] == "Success":
                number = event["Stage ID"]
                self._take(number, self._done.get(number, 0) + 1, 0)
            case "SparkListenerStageCompleted":
                stage = event["Stage Info"]
                self._take(stage["Stage ID"], stage["Number of Tasks"], stage["Number of Tasks"])
            case _:
                pass  # what happens beside stages and tasks

    def take_stages(self, stages: Iterable[_Stage] | None, *_: object, **__: object) -> None:
        """Count and report what a Spark Connect server says about the stages of an operation."""
        for stage in stages or ():
            self._take(stage.stage_id, stage.num_completed_tasks, stage.num_tasks)
        self.report()

    def report(self) -> None:
        """Report the numbers if they have changed."""
        tasks = sum(self._tasks.values())
        done = sum(min(done, self._tasks[number]) for number, done in self._done.items())
        if tasks and (done, tasks) != self._last:
            self._last = (done, tasks)
            self._progress(f"{done}/{tasks} {self._what}")

    def _take(self, number: int, done: int, tasks: int) -> None:
        self._tasks[number] = max(tasks, self._tasks.get(number, 0))
        self._done[number] = max(done, self._done.get(number, 0))


def event_log(folder: Path) -> dict[str, str]:
    """Return the settings of classic Spark for an event log in an empty folder, as `report_stages` reads it."""
    return {
        _FOLDER: str(folder),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.buffer.kb": "1k",  # the end of a task is not flushed
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


@contextmanager
def report_stages(spark: SparkSession, progress: Progress, what: str, every: float = 1.0) -> Iterator[None]:
    """Report how many tasks of all stages are done while the body runs. every: in s; what: names the tasks.

    Nothing is reported if the settings of classic Spark have an event log of their own.
    """
    counts = StageCounts(progress, what)
    if is_remote():
        spark.registerProgressHandler(counts.take_stages)
        try:
            yield
        finally:
            spark.removeProgressHandler(counts.take_stages)
    elif (folder := spark.conf.get(_FOLDER, None)) is not None:
        (log,) = Path(folder).iterdir()
        with log.open("rb") as events, _follow(events, counts, every):
            yield
    else:
        yield


@contextmanager
def _follow(events: IO[bytes], counts: StageCounts, every: float) -> Iterator[None]:
    """Count the events that are written while the body runs."""
    ended = threading.Event()
    events.seek(max(events.seek(0, 2) - 1, 0))

    def read() -> None:
        rest = b""
        skipped = 1  # what ends the last line so far: Spark may have written only a part of it
        while not ended.wait(every):
            *lines, rest = (rest + events.read()).split(b"\n")
            for line in lines[skipped:]:
                counts.take_event(json.loads(line))
            skipped = max(0, skipped - len(lines))
            counts.report()

    thread = threading.Thread(target=read, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
