"""What the admin process's clients log: passed on to the source, and what their connections failed with."""

import logging
import queue
import re
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec

from agent.sources.background import run_in_thread
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.connection_failures import parse_failure
from agent.sources.kafka.admin.port_protocol import find_port_problem, split_servers
from agent.sources.kafka.admin.second_client_options import find_certificate_problem

_FAILED_CONNECTION = re.compile(r"FAIL \[[^]]*\] \[thrd:.*?\]: (.*)", re.DOTALL)
"""A log line about a connection, which has reasons that no call returns."""

_EXPLAIN_SECONDS = 20
"""How often a connection is made to find out what is wrong with a broker's certificate."""

Outgoing: TypeAlias = queue.SimpleQueue[Callable[[], protocol.FromProcess]]
"""Messages for the writer thread to build and send."""


class LogForwarder(logging.Handler):
    """Passes the clients' logs on; to librdkafka it takes the place of a `logging.Logger`."""

    def __init__(self, outgoing: Outgoing, properties: dict[str, str]) -> None:
        super().__init__(logging.WARNING)
        self._outgoing = outgoing
        self._properties = properties
        self._explained_at: dict[str, float] = {}
        self._ports: dict[str, str] = {}

    def log(self, level: int, text: str, *values: object) -> None:
        """Queue a log line of librdkafka."""
        line = text % values
        if (found := _FAILED_CONNECTION.match(line)) is not None:
            self.report(found[1])
        log_line = protocol.ClientLog(level, line)
        self._outgoing.put(lambda: log_line)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a log line of kafka-python."""
        self.log(record.levelno, "%s", record.getMessage())

    def report(self, text: str) -> None:
        """Queue what a connection failed with."""
        failure = parse_failure(text) or protocol.ConnectionFailure("", None, text)
        if failure.address in self._ports:
            failure = msgspec.structs.replace(failure, text=self._ports[failure.address])
        if "certificate verify failed" in text:
            if time.monotonic() - self._explained_at.get(failure.address, -_EXPLAIN_SECONDS) >= _EXPLAIN_SECONDS:
                self._explained_at[failure.address] = time.monotonic()
                run_in_thread("certificate", lambda: self._explain(failure))
        else:
            self._outgoing.put(lambda: failure)

    def examine_ports(self) -> None:
        """Queue which bootstrap servers are no listeners that we could talk to, and what they are instead."""
        servers = self._properties["bootstrap.servers"]
        if time.monotonic() - self._explained_at.get(servers, -_EXPLAIN_SECONDS) < _EXPLAIN_SECONDS:
            return
        self._explained_at[servers] = time.monotonic()
        is_tls = self._properties.get("security.protocol", "").lower() in ("ssl", "sasl_ssl")
        self._ports = {
            address: problem
            for address in split_servers(servers)
            if (problem := find_port_problem(address, is_tls=is_tls)) is not None
        }
        for address, problem in self._ports.items():
            failure = protocol.ConnectionFailure(address, None, problem)
            self._outgoing.put(partial(_same, failure))

    def _explain(self, failure: protocol.ConnectionFailure) -> None:
        """Queue the failure with what is wrong with the certificate, which librdkafka does not say."""
        problem = find_certificate_problem(self._properties, failure.address)
        text = f"the broker's certificate is not valid: {problem}" if problem else failure.text
        explained = msgspec.structs.replace(failure, text=text)
        self._outgoing.put(lambda: explained)


def _same(message: protocol.FromProcess) -> protocol.FromProcess:
    return message
