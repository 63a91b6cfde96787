"""The cost of following a broker's log: the `logs` source on 100 MB, compared with `grep -E` on the same patterns.

Run as `python -m bench.logs [--mb N] [--version V] [--every N]`. A broker of the testbed writes the lines and is killed
once so that it recovers; they are repeated with increasing timestamps, and every 100th line matches. Measured is the
whole way from the file to the observations (read, split, match, decode, date), without rules and journal. grep counts
lines (`-c`), in the C locale and in that of LANG. Both read from the page cache; CPU time is compared, because other
load on the machine affects it less than wall time.
"""

import argparse
import os
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

from agent.config.sources import Logs
from agent.model.observations.base import Observation
from agent.model.observations.logs import LogLine
from agent.sources.logs.patterns import SHIPPED
from agent.sources.logs.source import LogSource
from testbed.kafka import Cluster

GOAL = 3.0
BROKER = 2005
_TIME = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]")
_PART = re.compile(r"\(\?P<\w+>|\(\?:|\[\^?(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL)
_CLASSES = {r"\d": "0-9", r"\s": "[:space:]", r"\w": "[:alnum:]_"}


def extended(pattern: str) -> str:
    """Return the pattern in the syntax of grep -E."""
    return "".join(map(_extended, _PART.findall(pattern)))


def _extended(part: str) -> str:
    if part.startswith("(?"):
        return "("
    if part in _CLASSES:
        return f"[{_CLASSES[part]}]"
    if part == r"\S":
        return "[^[:space:]]"
    if not part.startswith("["):
        return part
    sign, parts = ("[^", part[2:-1]) if part.startswith("[^") else ("[", part[1:-1])
    items = [item if len(item) == 3 else _CLASSES.get(item, item[-1]) for item in re.findall(r"\\.|.-.|.", parts)]
    return sign + "".join(sorted(items, key=lambda item: (item != "]", item == "-"))) + "]"


def broker_lines(version: str, folder: Path) -> list[str]:
    """Return the log of a broker that starts, serves, is killed and recovers."""
    with Cluster(version, (BROKER,), workdir=folder) as cluster:
        for number in range(5):
            cluster.create_topic(f"orders-{number}", 20)
        cluster.kill(BROKER)
        cluster.start(BROKER)
    return (folder / f"broker-{BROKER}.log").read_text(encoding="utf-8").splitlines()


def write(path: Path, lines: Sequence[str], size: int, every: int) -> int:
    """Repeat the lines up to `size` bytes, one in `every` of which matches. Return how many match."""
    matching = [line for line in lines if any(pattern.regex.search(line) for pattern in SHIPPED)]
    others, wanted = cycle(line for line in lines if line not in set(matching)), cycle(matching)
    at, written, number = datetime(2026, 1, 1, tzinfo=UTC), 0, 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            number += 1
            line = next(wanted if number % every == 0 else others)
            at += timedelta(milliseconds=1)
            stamp = f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}]"
            written += file.write(_TIME.sub(stamp, line, count=1) + "\n")
    return number // every


def ours(path: Path, folder: Path) -> tuple[int, float, float]:
    """Return how many lines are emitted of a new log, and how long that takes: CPU and wall time, s."""
    seen = 0
    size = path.stat().st_size

    def emit(batch: Collection[Observation]) -> None:
        nonlocal seen
        seen += len({fact.text for fact in batch if isinstance(fact, LogLine)})

    source = LogSource("bench", Logs(paths=(str(folder / "*.log"),)), (), emit)
    source.poll()
    os.link(path, folder / "server.log")
    begun, cpu = time.monotonic(), time.process_time()
    while sum(log.file.position for log in source._logs) < size:  # noqa: SLF001 - to know when it is finished
        source.poll()
    took = time.process_time() - cpu, time.monotonic() - begun
    source.close()
    return seen, *took


def grep(path: Path, patterns: Path, environment: Mapping[str, str]) -> tuple[int, float, float]:
    """Return how many lines grep finds, and how long that takes: CPU and wall time, s."""
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["grep", "-cE", "-f", str(patterns), str(path)], stdout=subprocess.PIPE, env=environment, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return int(done.stdout), cpu, time.monotonic() - begun


def main() -> None:
    """Write the log and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=100, help="Size of the log, MB. Default: 100.")
    parser.add_argument("--version", default="3.9.1", help="Broker version. Default: 3.9.1.")
    parser.add_argument("--every", type=int, default=100, help="One in N lines matches. Default: 100.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backflow-bench-") as name:
        folder = Path(name)
        (folder / "followed").mkdir()
        lines = broker_lines(arguments.version, folder)
        log, patterns = folder / "broker.log", folder / "patterns"
        matching = write(log, lines, arguments.mb * 1_000_000, arguments.every)
        patterns.write_text("".join(f"{extended(pattern.regex.pattern)}\n" for pattern in SHIPPED), encoding="utf-8")
        log.read_bytes()
        source = f"{arguments.mb} MB of Kafka {arguments.version}'s broker log"
        print(f"{source}, {len(SHIPPED)} patterns, {matching:,} lines match")
        plain = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
        found, cpu, passed = ours(log, folder / "followed")
        print(
            f"  source logs:      {found:>7,} lines, {cpu:6.2f} s CPU, {passed:6.2f} s ({arguments.mb / cpu:,.0f} MB/s)"
        )
        for what, environment in (
            ("LC_ALL=C", {**plain, "LC_ALL": "C"}),
            (f"LANG={plain.get('LANG', '')}", plain),
        ):
            count, theirs, passed = grep(log, patterns, environment)
            ratio = cpu / theirs
            print(
                f"  grep {what + ':':<14}{count:>6,} lines, {theirs:6.2f} s CPU, {passed:6.2f} s: ratio {ratio:.2f}"
                f" (goal: at most {GOAL:g})"
            )


if __name__ == "__main__":
    main()
