"""Non-blocking Kafka admin client: sends requests to the admin process and collects results whenever they arrive."""

import subprocess
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import IO, BinaryIO, TypeAlias, cast

import msgspec
import structlog

from agent.clock import now_ms
from agent.config.child_processes import python_environment, python_module
from agent.config.credentials import CredentialError
from agent.sources.kafka.admin import frames, protocol
from agent.sources.kafka.admin.connection_failures import ConnectionFailures

Key: TypeAlias = tuple[Hashable, ...]

_RESTART_MS = 2_000
"""The shortest time between two starts of the process after it has ended by itself."""

_DECODER = msgspec.msgpack.Decoder(list[protocol.FromProcess])


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A request in flight. target: what has to respond; slowness is tracked per target. sent_at: ms."""

    key: Key
    target: Key
    sent_at: int
    request: protocol.Request


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A call and its result. at: when it arrived, ms."""

    call: Call
    at: int
    result: protocol.Result


class AdminClient:
    """Admin client with at most one call per key in flight, which does not wait for targets that were slow last time.

    The process is started when first needed, and again after it has ended. connection_failures: what it reported about
    its connections.
    """

    def __init__(self, read_setup: Callable[[], protocol.Setup], log: structlog.typing.FilteringBoundLogger) -> None:
        """read_setup: called for each start of the process, as secrets may have changed; may raise CredentialError."""
        self.connection_failures = ConnectionFailures()
        self._read_setup = read_setup
        self._setup: protocol.Setup | None = None
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0
        self._last_number = 0
        self._in_flight: dict[int, Call] = {}
        self._keys: set[Key] = set()
        self._awaited: set[int] = set()
        self._unsent: list[protocol.NumberedRequest] = []
        self._slow_targets: set[Key] = set()
        self._received: SimpleQueue[tuple[subprocess.Popen[bytes], protocol.FromProcess | None]] = SimpleQueue()

    @property
    def in_flight(self) -> list[Call]:
        """The calls without a result."""
        return list(self._in_flight.values())

    @property
    def age_ms(self) -> int:
        """The time since the process was started, ms."""
        return now_ms() - self._started_at

    def send(self, key: Key, request: protocol.Request, target: Key | None = None) -> None:
        """Send the request with the next collection of results.

        It is dropped if the last one with this key is in flight, or if the process cannot be started yet.
        """
        if key in self._keys or not self._ensure_running():
            return
        self._last_number += 1
        call = self._in_flight[self._last_number] = Call(key, target or key, now_ms(), request)
        self._keys.add(key)
        if call.target not in self._slow_targets:
            self._awaited.add(self._last_number)
        self._unsent.append(protocol.NumberedRequest(self._last_number, call.sent_at, request))

    def collect(self, wait_ms: int) -> list[CompletedCall]:
        """Return the completed calls after waiting up to `wait_ms` for what was sent since the last collection."""
        if self._unsent:
            self._write(*self._unsent)
            self._unsent.clear()
        deadline = time.monotonic() + wait_ms / 1000
        completed = []
        while True:
            seconds = max(deadline - time.monotonic(), 0) if self._awaited else 0
            try:
                process, message = self._received.get(block=seconds > 0, timeout=seconds)
            except Empty:
                break
            if process is not self._process:
                continue  # sent before it was replaced
            match message:
                case protocol.Response():
                    completed.append(self._complete(message, wait_ms))
                case protocol.ClientLog(level, text):
                    self._log.debug("librdkafka_log", text=text, severity=level)
                case protocol.ConnectionFailure() as failure:
                    self.connection_failures.add(failure, now_ms())
                case None:
                    completed += self._fail_all(process)
        self._slow_targets.update(self._in_flight[number].target for number in self._awaited)
        self._awaited.clear()
        return completed

    def restart(self) -> None:
        """Replace the process; calls in flight get no result."""
        self.close()
        for calls in (self._in_flight, self._keys, self._awaited, self._unsent):
            calls.clear()

    def is_outdated(self) -> bool:
        """Return whether the process works with other secrets than there are now."""
        try:
            return self._process is not None and self._read_setup() != self._setup
        except CredentialError:  # it is being written; the process goes on with the last one
            return False

    def close(self) -> None:
        """End the process at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError):  # it may have died with a request half read
                _pipe(process.stdin).close()

    def _ensure_running(self) -> bool:
        """Return whether the process runs, after starting it if it does not."""
        if self._process is None and self.age_ms >= _RESTART_MS:
            self._started_at = now_ms()
            try:
                self._setup = self._read_setup()
            except CredentialError as error:
                self.connection_failures.add(protocol.ConnectionFailure("", None, str(error)), now_ms())
                return False
            self._process = subprocess.Popen(
                python_module("agent.sources.kafka.admin.process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=python_environment(),
            )
            threading.Thread(target=self._read, args=(self._process,), name="kafka-admin", daemon=True).start()
            self._write(self._setup)
        return self._process is not None

    def _write(self, *messages: protocol.ToProcess) -> None:
        if self._process is not None:
            with suppress(OSError):  # it has died, as its reader is about to report
                frames.send(_pipe(self._process.stdin), *messages)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Queue the messages of a process until it ends. One that sends what cannot be decoded is ended."""
        try:
            with _pipe(process.stdout) as stream:
                while (messages := frames.receive(stream, _DECODER)) is not None:
                    for message in messages:
                        self._received.put((process, message))
        except msgspec.DecodeError as error:
            self._log.exception("kafka_client_undecodable", reason=str(error))
            process.kill()
        finally:
            process.wait()
            self._received.put((process, None))

    def _complete(self, response: protocol.Response, wait_ms: int) -> CompletedCall:
        call = self._in_flight.pop(response.number)
        self._keys.discard(call.key)
        self._awaited.discard(response.number)
        if response.at - call.sent_at > wait_ms:
            self._slow_targets.add(call.target)
        else:
            self._slow_targets.discard(call.target)
        return CompletedCall(call, response.at, response.result)

    def _fail_all(self, process: subprocess.Popen[bytes]) -> list[CompletedCall]:
        """Fail the calls in flight of a process that has ended by itself."""
        self._log.warning("kafka_client_exited", status=process.returncode)
        failure = protocol.Failure(-1, f"the Kafka client process exited with status {process.returncode}")
        failed = [CompletedCall(call, now_ms(), failure) for call in self._in_flight.values()]
        self.restart()
        return failed


def _pipe(stream: IO[bytes] | None) -> BinaryIO:
    if stream is None:
        msg = "the process was started without pipes"
        raise ValueError(msg)
    return cast("BinaryIO", stream)
