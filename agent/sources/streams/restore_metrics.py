"""What an instance of Kafka Streams tells of its tasks' restores, out of metrics in Prometheus format. Pure.

The metrics are those of KIP-869 (TaskMetrics in 3.5 to 4.1): restore-total, which is recorded at the level DEBUG alone,
and restore-remaining-records-total, both of the type stream-task-metrics with the tags thread-id and task-id. They are
the stream thread's, state updater or not. The JMX exporter names them kafka_streams_stream_task_metrics_restore_total
(1.x leaves the last part out), Micrometer kafka_stream_task_restore_total.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_OF_A_TASK = re.compile(r"\w*_(?:restore|restore_remaining_records|process)(?:_total)?\{[^}]*\btask_id=", re.ASCII)
_NAME = re.compile(r"_(restore|restore_remaining_records|process)(?:_total)?$", re.ASCII)
_OF_A_STORE = re.compile(r"\w*_(?:restore|put|flush)_rate\{[^}]*_state_id=", re.ASCII)
_SHOWN = 80
_STORE, _NODE = "_state_id", "processor_node_id"


class TaskMetrics(NamedTuple):
    """A task on a thread; the fields as TaskRestore has them."""

    task: str
    thread: str
    stores: tuple[str, ...]
    restored_total: int | None
    remaining: int | None


def task_metrics(text: str) -> list[TaskMetrics]:
    """Each task of the answer, by thread and task. Raises ValueError, a sentence, where it is not in the format."""
    values: dict[tuple[str, str], dict[str, int | None]] = defaultdict(dict)
    stores: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in _samples(text):
        place = (one.labels.get("task_id", ""), one.labels.get("thread_id", ""))
        names = [value for label, value in one.labels.items() if label.endswith(_STORE)]
        if names:
            stores[place].update(names)
        elif _NODE not in one.labels and (name := _NAME.search(one.name)):
            values[place][name[1]] = _count(one.value)
    return [
        TaskMetrics(*place, tuple(sorted(stores[place])), _restored(told), told.get("restore_remaining_records"))
        for place, told in sorted(values.items())
        if "restore" in told
    ]


def _samples(text: str) -> Iterable[Sample]:
    """The samples that matter. An application gives thousands: only these are parsed, and the first for its format."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    wanted = [line for line in lines if _OF_A_TASK.match(line) or _OF_A_STORE.match(line)]
    if not lines:
        msg = "there are none"
        raise ValueError(msg)
    parsed = lines[0]
    try:
        list(text_string_to_metric_families(parsed))
        parsed = "\n".join(wanted)
        return [one for family in text_string_to_metric_families(parsed) for one in family.samples]
    except (ValueError, LookupError, TypeError) as error:  # the parser trusts that there is a name, a value, ...
        msg = f"cannot read {parsed[:_SHOWN]!r}"
        raise ValueError(msg) from error


def _count(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def _restored(told: dict[str, int | None]) -> int | None:
    """At INFO the total is there and stays 0: that is believed only of a task that counts what it processes, too, which
    it does at DEBUG as well.
    """
    return told["restore"] if told["restore"] or told.get("process") else None
