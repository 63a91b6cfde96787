"""Calls to the Kafka client process: asked once, waited for a little, taken whenever they answer. Who asks: kafka."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import IO, BinaryIO, TypeAlias, cast

import msgspec
import structlog

from agent.sources.availability import now_ms
from agent.sources.kafka import admin_protocol as wire

Key: TypeAlias = tuple[Hashable, ...]

_RESTART_MS = 2_000
"""A client that ends is not started again sooner than this after its last start."""

_FROM_CLIENT = msgspec.msgpack.Decoder(wire.FromClient)


@dataclass(frozen=True, slots=True)
class Call:
    """A call in flight. whom: who is to answer, as far as slowness goes. asked: when, ms."""

    key: Key
    whom: Key
    asked: int
    question: wire.Question


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A call that was answered at `at`, ms."""

    call: Call
    at: int
    result: wire.Result


class Calls:
    """Never two calls for one key at a time, and no waiting for whoever did not answer in time when last asked.

    The client process is started when first needed, and again when it has ended. complaint: what it last told of its
    connections.
    """

    def __init__(self, setup: wire.Setup, log: structlog.typing.FilteringBoundLogger) -> None:
        self.complaint: str | None = None
        self._setup = setup
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0
        self._numbers = 0
        self._flying: dict[int, Call] = {}
        self._keys: set[Key] = set()
        self._awaited: set[int] = set()
        self._slow: set[Key] = set()
        self._said: SimpleQueue[tuple[subprocess.Popen[bytes], wire.FromClient | None]] = SimpleQueue()

    @property
    def flying(self) -> list[Call]:
        """What has not been answered yet."""
        return list(self._flying.values())

    @property
    def age(self) -> int:
        """How long ago the client was started, ms."""
        return now_ms() - self._started

    def ask(self, key: Key, question: wire.Question, whom: Key | None = None) -> None:
        """Put the question, unless the last one under this key is still in flight or no client is to be had now."""
        if key in self._keys or not self._running():
            return
        self._numbers += 1
        call = self._flying[self._numbers] = Call(key, whom or key, now_ms(), question)
        self._keys.add(key)
        if call.whom not in self._slow:
            self._awaited.add(self._numbers)
        self._send(wire.Asked(self._numbers, question))

    def collect(self, patience: int) -> list[CheckResult]:
        """What has been answered, after waiting up to `patience` ms for what was asked since the last collection."""
        deadline = time.monotonic() + patience / 1000
        answers = []
        while True:
            waiting = max(deadline - time.monotonic(), 0) if self._awaited else 0
            try:
                process, message = self._said.get(block=waiting > 0, timeout=waiting)
            except Empty:
                break
            if process is not self._process:
                continue  # said before it was replaced
            match message:
                case wire.Answered(number, at, result):
                    answers.append(self._answered(number, at, result, patience))
                case wire.Line(level, text):
                    self._log.debug(text, level=level)
                case wire.Complaint(text):
                    self.complaint = text
                case None:
                    answers += self._ended(process)
        self._slow.update(self._flying[number].whom for number in self._awaited)
        self._awaited.clear()
        return answers

    def renew(self) -> None:
        """Replace the client; what is in flight will not be answered."""
        self.close()
        self._flying.clear()
        self._keys.clear()
        self._awaited.clear()

    def close(self) -> None:
        """End the client at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError):  # it may have died with a question half read
                _pipe(process.stdin).close()

    def _running(self) -> bool:
        """Whether there is a client to ask, after starting one where there is none."""
        if self._process is None and self.age >= _RESTART_MS:
            self._started = now_ms()
            path = os.pathsep.join(filter(None, sys.path))  # the client finds this package where we did
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agent.sources.kafka.admin_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
            )
            threading.Thread(target=self._read, args=(self._process,), name="kafka-client", daemon=True).start()
            self._send(self._setup)
        return self._process is not None

    def _send(self, message: wire.ToClient) -> None:
        if self._process is not None:
            with suppress(OSError):  # it has died, as its reader is about to tell
                wire.send(_pipe(self._process.stdin), message)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Take down what a client says until it ends."""
        with _pipe(process.stdout) as stream:
            while (message := wire.receive(stream, _FROM_CLIENT)) is not None:
                self._said.put((process, message))
        process.wait()
        self._said.put((process, None))

    def _answered(self, number: int, at: int, result: wire.Result, patience: int) -> CheckResult:
        call = self._flying.pop(number)
        self._keys.discard(call.key)
        self._awaited.discard(number)
        if at - call.asked > patience:
            self._slow.add(call.whom)
        else:
            self._slow.discard(call.whom)
        return CheckResult(call, at, result)

    def _ended(self, process: subprocess.Popen[bytes]) -> list[CheckResult]:
        """The client has ended by itself: nothing in flight will be answered."""
        self._log.warning("the Kafka client ended, and is started again", status=process.returncode)
        failure = wire.Failure(-1, f"the Kafka client ended with status {process.returncode}")
        answers = [CheckResult(call, now_ms(), failure) for call in self._flying.values()]
        self.renew()
        return answers


def _pipe(stream: IO[bytes] | None) -> BinaryIO:
    """A pipe of a process that was started with one."""
    if stream is None:
        msg = "the process was started without pipes"
        raise ValueError(msg)
    return cast("BinaryIO", stream)
