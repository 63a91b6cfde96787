"""The kill matrix: an agent is killed at each named fault point, started again, and what Slack has is compared.

The real daemon runs in a process of its own against the strict Slack stand-in (`killed_agent`), and dies by SIGKILL
from inside, so that each of the `fault_points` is hit exactly. Run it with `make faults`.
"""

import argparse
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from testbed.fault_points import POINTS, UNSEARCHABLE, Point
from testbed.killed_agent import run_agent
from testbed.slack import Slack

_ID = re.compile(r"INC-[0-9A-F]{8}")
_SECONDS = 600

KNOWN_REASON = "the answer was lost, and the token may not look it up"


class Outcome(NamedTuple):
    """What the kills at one point did. reason: why what is doubled may be."""

    point: Point
    kills: int
    lost: int
    doubled: int
    reason: str = ""

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, and nothing doubled without a reason."""
        return self.kills > 0 and not self.lost and (not self.doubled or bool(self.reason))


class Matrix:
    """Runs the agent against one Slack stand-in per run, in processes forked from a server that has all modules."""

    def __init__(self, directory: Path) -> None:
        """directory: for the agents' state. Raises RuntimeError if a run without a kill delivers nothing."""
        self._directory = directory
        self._processes = get_context("forkserver")
        self._processes.set_forkserver_preload(["testbed.killed_agent"])
        counts = directory / "counts"
        with Slack() as slack:
            self._run(slack, directory / "reference", None, counts)
            self.reference = content(slack)
        if not self.reference:
            msg = "the agent delivered nothing without a kill"
            raise RuntimeError(msg)
        numbers = map(int, counts.read_text(encoding="ascii").split())
        self._calls = dict(zip(POINTS, numbers, strict=True))

    def kill_at(self, point: Point, times: int) -> Outcome:
        """Kill an agent at the point, at calls spread over the run, start it again, and compare."""
        reason = KNOWN_REASON if point in UNSEARCHABLE else ""
        kills = lost = doubled = 0
        for turn in range(times):
            try:
                is_killed, after = self._kill_once(point, turn, times, is_searchable=not reason)
            except RuntimeError as error:
                print(f"{point} {turn}: {error}", file=sys.stderr)  # noqa: T201
                lost += self.reference.total()
                continue
            missing, extra = self.reference - after, after - self.reference
            if missing or (extra and not reason):
                print(f"{point} {turn}: lost {dict(missing)}, doubled {dict(extra)}", file=sys.stderr)  # noqa: T201
            kills += is_killed
            lost += missing.total()
            doubled += extra.total()
        return Outcome(point, kills, lost, doubled, reason if doubled else "")

    def _kill_once(self, point: Point, turn: int, times: int, *, is_searchable: bool) -> tuple[bool, Counter[str]]:
        """Return whether the agent was killed at the point, and what Slack has in the end.

        A run can have fewer calls than the reference; the kill is then tried again at an earlier one.
        """
        first = point if point.after is None else point.after
        directory = self._directory / f"{(*POINTS, *UNSEARCHABLE).index(point)}-{turn}"
        calls = next((self._calls[known] for known in POINTS if known.target == first.target), 1)
        number = 1 + turn * calls // times
        while True:
            with Slack() as slack:
                if not is_searchable:
                    slack.withhold("channels:history")
                is_killed = self._run(slack, directory, (first, number))
                if is_killed and point.after is not None:
                    is_killed = self._run(slack, directory, (point, 1))
                self._run(slack, directory, None)
                after = content(slack)
            shutil.rmtree(directory)
            if is_killed or number == 1:
                return is_killed, after
            number //= 2

    def _run(self, slack: Slack, directory: Path, kill: tuple[Point, int] | None, counts: Path | None = None) -> bool:
        """Run an agent until it has delivered everything or dies; return whether it was killed. Raises RuntimeError."""
        directory.mkdir(exist_ok=True)
        process = self._processes.Process(target=run_agent, args=(directory, (slack.url, slack.token), kill, counts))
        process.start()
        process.join(_SECONDS)
        status = process.exitcode
        if status is None:
            process.kill()
        if status != 0 and (status != -signal.SIGKILL or kill is None):
            log = directory / "agent.log"
            tail = log.read_text(encoding="utf-8")[-2_000:] if log.exists() else ""
            msg = f"the agent ended with status {status}; it was to be killed at {kill}; its log:\n{tail}"
            raise RuntimeError(msg)
        return status != 0


def content(slack: Slack) -> Counter[str]:
    """Return what Slack has: each incident with its message's text, each line of its thread, each plot."""
    found: Counter[str] = Counter()
    for message in slack.messages():
        name = next(iter(_ID.findall(message.words)), message.words)
        found[f"{name}: {message.words}"] += 1
        replies = slack.threads.get(message.ts, ())
        found.update(f"{name}, thread: {line}" for reply in replies for line in reply.text.splitlines() if line.strip())
        found[f"{name}, thread: plot"] += sum(len(reply.files) for reply in replies)
    return +found


def table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the outcomes as lines of a table in Markdown."""
    yield "| fault point | killed | kills | lost | doubled |"
    yield "|---|---|---|---|---|"
    kills = lost = doubled = 0
    for outcome in outcomes:
        point, why = outcome.point, f": {outcome.reason}" if outcome.reason else ""
        yield f"| {point.name} | {point.moment} | {outcome.kills} | {outcome.lost} | {outcome.doubled}{why} |"
        kills, lost, doubled = kills + outcome.kills, lost + outcome.lost, doubled + outcome.doubled
    yield f"| **all** | | {kills} | {lost} | {doubled} |"


def main() -> int:
    """Print the table; return 1 if anything was lost, or doubled without a known reason, or a point not reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="kills at each point")
    parser.add_argument("--only", default="", help="parts of points' names, with commas between")
    parser.add_argument("--jobs", type=int, default=2, help="points at a time")
    arguments = parser.parse_args()
    wanted = [
        point for point in (*POINTS, *UNSEARCHABLE) if any(part in point.name for part in arguments.only.split(","))
    ]
    outcomes: list[Outcome] = []

    def outcomes_of(matrix: Matrix, pool: ThreadPoolExecutor) -> Iterator[Outcome]:
        for outcome in pool.map(lambda point: matrix.kill_at(point, arguments.times), wanted):
            outcomes.append(outcome)
            yield outcome

    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(arguments.jobs) as pool:
        for line in table(outcomes_of(Matrix(Path(directory)), pool)):
            print(line, flush=True)  # noqa: T201
    return int(not all(outcome.is_right for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
