"""The messages that the demos' recorded journals make; `python -m tests.messages.golden` renews the texts beside it."""

import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from agent.config.loading import load
from agent.config.settings import Settings
from agent.engine.engine import Engine
from agent.engine.recorded import moments
from agent.model.encoding import from_json
from agent.model.findings import Incident, Severity, Status
from agent.model.observations.base import Unavailable
from agent.notify.policy import first_notification
from agent.notify.slack_blocks import content_of
from agent.render.report import report
from agent.render.thread import ThreadLog, thread_entry
from tests import samples

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "rules.toml"
DEMOS = ("reset", "flink-reset", "streams-state", "log-divergence", "job-resurrected")
STATES = "states"
_DECLARED = {"streams-state": ("stores = []", 'stores = [{ application = "shop", store = "counts" }]')}
"""What a demo edits in the shipped rules: the store that never decreases."""


def text_of(name: str) -> str:
    """Return what a demo's incidents, or the sample incidents in each state, read like."""
    parts = _states() if name == STATES else _demo(name)
    return "\n\n".join(parts) + "\n"


def stored(name: str) -> str:
    """Return the text on file."""
    return (HERE / f"{name}.txt").read_text(encoding="utf-8")


@cache
def incidents_of(demo: str) -> list[list[Incident]]:
    """Return the versions of each incident that is notified of, as the demo's journal makes them."""
    settings = _settings(demo)
    engine = Engine(settings.rules, settings.correlations, settings.incidents)
    with gzip.open(HERE / "journals" / f"{demo}.jsonl.gz") as lines:
        observations = [from_json(line) for line in lines]
    versions: dict[str, list[Incident]] = {}
    for incident in [*(found for batch in moments(observations) for found in engine.take(batch)), *engine.catch_up()]:
        if incident.id in versions or first_notification(incident).is_sent:
            versions.setdefault(incident.id, []).append(incident)
    return list(versions.values())


def _settings(demo: str) -> Settings:
    text = RULES.read_text(encoding="utf-8")
    shipped, declared = _DECLARED.get(demo, ("", ""))
    assert shipped in text
    with TemporaryDirectory() as directory:
        path = Path(directory) / "rules.toml"
        path.write_text(text.replace(shipped, declared) if shipped else text, encoding="utf-8")
        return load(path, need_clusters=False)


def _demo(name: str) -> Iterator[str]:
    """The first and the last message of each incident, and its thread."""
    for versions in incidents_of(name):
        first, last = versions[0], versions[-1]
        yield f"=== {first.id}: first message\n{_message(first)}"
        yield f"=== {last.id}: last message\n{_message(last)}"
        log, entries = ThreadLog(), []
        for version in versions:
            lines, log = thread_entry(log, version)
            entries += ["\n".join(lines)] if lines else []
        yield f"=== {last.id}: thread\n" + "\n--\n".join(entries)


def _message(incident: Incident) -> str:
    rendered = report(incident)
    return "\n".join([f"[{content_of(rendered)['text']}]", *rendered.lines()])


def _states() -> Iterator[str]:
    incident = samples.incident()
    outage = Unavailable(
        at=samples.at("23:25:20.0"), source="kafka", cluster="main", reason="no broker answers within 10 s"
    )
    states = {
        "open": incident,
        "recovered": samples.recovered(),
        "closed": replace(samples.recovered(), status=Status.CLOSED),
        "merged": replace(incident, status=Status.CLOSED, merged_into="INC-B00257", findings=(), causes=()),
        "withdrawn": replace(incident, status=Status.CLOSED, findings=(), causes=()),
        "out of date": replace(incident, sighted=False, unseen=(outage,)),
        "warning": replace(incident, severity=Severity.WARNING, causes=()),
        "many partitions": samples.burst(),
    }
    for state, version in states.items():
        yield f"=== {state}\n{_message(version)}"


def main() -> None:
    """Write all texts again."""
    for name in (*DEMOS, STATES):
        (HERE / f"{name}.txt").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main()
