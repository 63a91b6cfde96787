"""Fuzzing of everything that Backflow reads and does not write itself: damaged inputs, and how each parser took them.

Run as `python -m bench.fuzz [--inputs N] [--only NAME,...] [--seed S]`. It fails if a parser raises anything but its
documented error, takes more than --milliseconds of CPU time for an input, grows by more than --growth MiB, or dies.
Each target runs in a process of its own with at most --memory MiB of address space, which hostile inputs could exhaust.
An input that failed is in build/fuzz, and `--only NAME --seed S --first NUMBER --inputs 1` repeats it.
"""

import argparse
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from agent.model.text import visible
from bench.fuzz_inputs import damaged
from bench.fuzz_targets import TARGETS

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

_KEPT = Path("build", "fuzz")
_HUNG_S = 120
"""How long a parser may take for one input, by the wall clock, before it is killed."""

_WARM = 0.2
"""The share of inputs after which memory must no longer grow."""

_MOST_DEATHS = 20


class Task(NamedTuple):
    """The inputs of these numbers for a target, by its name.

    milliseconds: CPU time that an input may take. growth, memory: growth and address space, MiB.
    """

    name: str
    seed: str
    numbers: range
    milliseconds: int
    growth: int
    memory: int


class Report(NamedTuple):
    """How a target took its inputs.

    read, refused: numbers of inputs. slowest: CPU ms of an input. grown: MiB. failures: by what failed, how often and
    the number of the first input.
    """

    read: int
    refused: int
    slowest: float
    grown: float
    failures: dict[str, tuple[int, int]]


def fuzz(task: Task, folder: Path, progress: "Synchronized[int]") -> Report:
    """Feed the target, which may write in the folder, with the inputs."""
    target, numbers = TARGETS[task.name](folder), task.numbers
    read = refused = 0
    slowest = 0.0
    failures: dict[str, tuple[int, int]] = {}
    warm, warm_at = 0.0, numbers.start + int(len(numbers) * _WARM)

    def fail(what: str, content: bytes, number: int) -> None:
        count, first = failures.get(what, (0, number))
        failures[what] = count + 1, first
        if not count:
            keep(task.name, number, content)

    for number in numbers:
        progress.value = number
        if number == warm_at:
            warm = _resident()
        draw = random.Random(f"{task.seed} {task.name} {number}")
        content = draw.choice(target.samples)
        content = content if number < len(target.samples) else damaged(content, target.samples, draw)
        begun = time.process_time()
        try:
            target.read(content, draw)
        except target.error as error:
            refused += 1
            if not _is_clear(str(error)):
                fail(f"message with characters that do not show: {_described(error)[:60]}", content, number)
        except Exception as error:  # noqa: BLE001 - any other error is what is looked for
            fail(_described(error), content, number)
        else:
            read += 1
        took = (time.process_time() - begun) * 1_000
        slowest = max(slowest, took)
        if took > task.milliseconds:
            fail(f"took more than {task.milliseconds} ms", content, number)
    grown = _resident() - warm
    if grown > task.growth:
        fail(f"memory grew by {grown:,.0f} MiB", b"", numbers.start)
    return Report(read, refused, slowest, grown, failures)


def keep(name: str, number: int, content: bytes) -> None:
    """Write an input that failed to build/fuzz."""
    _KEPT.mkdir(parents=True, exist_ok=True)
    (_KEPT / f"{name.replace(' ', '-')}-{number}").write_bytes(content)


def run(task: Task) -> Report:
    """Fuzz a target in a process of its own; one that dies or hangs is followed by another from the next input."""
    deaths: dict[str, tuple[int, int]] = {}
    context = multiprocessing.get_context("fork")  # with what is imported already
    while task.numbers and len(deaths) < _MOST_DEATHS:
        progress = context.Value("q", task.numbers.start, lock=False)
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(task, progress, sending))
        process.start()
        sending.close()
        ended = _wait(process, receiving, progress)
        if isinstance(ended, Report):
            return ended._replace(failures=deaths | ended.failures)
        number = progress.value
        deaths[f"{ended} at input {number}"] = 1, number
        task = task._replace(numbers=range(number + 1, task.numbers.stop))
    return Report(0, 0, 0, 0, deaths)


def main() -> int:
    """Print how each target took its inputs; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs for each target. Default: 100,000.")
    parser.add_argument("--only", default="", help="names of targets, with commas between. Default: all.")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**9)), help="Default: drawn.")
    parser.add_argument("--first", type=int, default=0, help="number of the first input. Default: 0.")
    parser.add_argument("--milliseconds", type=int, default=1_000, help="CPU time for an input. Default: 1,000.")
    parser.add_argument("--growth", type=int, default=100, help="growth of memory, MiB. Default: 100.")
    parser.add_argument("--memory", type=int, default=4_096, help="address space, MiB. Default: 4,096.")
    arguments = parser.parse_args()
    limits = arguments.milliseconds, arguments.growth, arguments.memory
    numbers = range(arguments.first, arguments.first + arguments.inputs)
    wanted = [name for name in TARGETS if not arguments.only or name in arguments.only.split(",")]
    print(f"seed {arguments.seed}; {len(numbers):,} inputs each; at most {limits[0]:,} ms and {limits[2]:,} MiB")
    print("| input | read | refused | slowest, ms | growth, MiB | failures |")
    print("|---|---|---|---|---|---|", flush=True)
    failed = False
    for name in wanted:
        report = run(Task(name, arguments.seed, numbers, *limits))
        failures = sum(times for times, _ in report.failures.values())
        figures = (report.read, report.refused, report.slowest, report.grown, failures)
        print(f"| {name} | {' | '.join(f'{figure:,.0f}' for figure in figures)} |", flush=True)
        for what, (times, first) in report.failures.items():
            print(f"  {times:,} times, first input {first}: {what}", file=sys.stderr, flush=True)
        failed = failed or bool(report.failures)
    return int(failed)


def _work(task: Task, progress: "Synchronized[int]", sending: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (task.memory << 20, task.memory << 20))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder:
        sending.send(fuzz(task, Path(folder), progress))


def _wait(
    process: "multiprocessing.process.BaseProcess", receiving: Connection, progress: "Synchronized[int]"
) -> Report | str:
    """Return the report, or how the process ended without one."""
    number, since = progress.value, time.monotonic()
    while not receiving.poll(1):
        if progress.value != number:
            number, since = progress.value, time.monotonic()
        elif time.monotonic() - since > _HUNG_S:
            process.kill()
            process.join()
            return f"hung for {_HUNG_S} s"
    try:
        report: Report = receiving.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        if code >= 0:
            msg = f"the process ended with status {code}; its traceback is above"
            raise RuntimeError(msg) from None
        return f"killed by {signal.Signals(-code).name}"
    process.join()
    return report


def _described(error: Exception) -> str:
    """Return the error with the last place in our own code that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}agent{os.sep}" in frame.filename] or frames
    return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}: {str(error)[:120]!r}"


def _is_clear(message: str) -> bool:
    """Return whether a message can be printed: it is there, and a line of it forges no other."""
    return bool(message.strip()) and all(visible(line) == line for line in message.split("\n"))


def _resident() -> float:
    """Return the memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    sys.exit(main())
