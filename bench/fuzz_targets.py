"""What `bench.fuzz` feeds: each parser of input that Backflow does not control, with samples and its documented error.

A parser is called as the daemon calls it, from the bytes that arrive to the observations or rows that come out.
"""

import http.client
import io
import json
import random
import re
import struct
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kazoo.protocol.states import ZnodeStat

from agent.config.loading import load
from agent.config.problems import SettingsError
from agent.config.schedules import trigger
from agent.config.shipped import shipped
from agent.config.sources import Logs
from agent.config.warnings import secret_problems
from agent.engine.engine import Engine
from agent.kafka_log.log_directory import LogDirectoryError, list_partitions
from agent.kafka_log.segments import read_rows
from agent.model.encoding import encodable, to_json
from agent.model.findings import Incident
from agent.model.observations.base import Observation, not_after
from agent.notify.base import Message, NotDelivered, message_of
from agent.notify.slack import Slack
from agent.notify.slack_webhook import Webhook
from agent.sources.flink.high_availability import decode_leader
from agent.sources.flink.jobs import make_checkpoints, make_flink_job
from agent.sources.flink.positions import parse_offsets
from agent.sources.flink.rest import (
    CheckpointStatistics,
    ConfigEntry,
    JobDetails,
    JobsOverview,
    Metric,
    OldJobsOverview,
    RestEndpoint,
    VertexDetails,
)
from agent.sources.http import RequestError
from agent.sources.kafka.admin.streams_assignment import UndecodableAssignmentError, decode_assignment
from agent.sources.logs.source import LogSource
from agent.sources.streams.metrics_source import _fetch_task_metrics, _select_tasks
from agent.sources.zookeeper.znodes import (
    CONTROLLER,
    PARTITION_STATE,
    TOPICS,
    UndecodableError,
    ZnodeDecoder,
    broker_of,
    decode_reassignments,
    decode_topic,
    partition_state_path,
)
from agent.storage.journal.reader import entries
from agent.storage.journal.writer import Journal
from agent.storage.outbox import Row
from bench.fuzz_inputs import damaged
from testbed.killed_agent import workload
from tests.kafka_log import writer

_TESTS = Path(__file__).parents[1] / "tests"
_NOW = 1_795_215_600_000
_CONFIG = """
[clusters.main]
bootstrap_servers = "kafka-1:9092,kafka-2:9092"
zookeeper = "zk-1:2181/kafka"
poll_interval = "2s"
groups = { include = ["orders-*"], exclude = ["*-test"] }
kafka = { "security.protocol" = "SASL_SSL", "sasl.mechanisms" = "PLAIN" }
log_directories = { 1 = ["/var/lib/kafka"] }
[flink.jobs]
rest = ["http://flink-1:8081"]
kafka = "main"
[streams.shop]
metrics = ["http://shop-1:9404/metrics"]
[logs.brokers]
paths = ["/var/log/kafka/*.log"]
time_zone = "Europe/Berlin"
[slack]
channel = "alerts"
token_env = "TOKEN"
routes = [{ channel = "urgent", severities = ["critical"] }]
[checks.offset_history]
schedule = "03:00"
window = "14d"
[rules.disk]
kind = "log_pattern"
pattern = "No space left on device (?P<path>/[a-z]+)"
severity = "critical"
"""
_METRICS = b"""# HELP jvm_threads_current Current thread count
up 1.0
kafka_streams_stream_task_metrics_restore_total{task_id="0_1",thread_id="shop-StreamThread-1"} 120.0
kafka_streams_stream_task_metrics_restore_remaining_records_total{task_id="0_1",thread_id="shop-StreamThread-1"} 7
kafka_streams_stream_task_metrics_process_total{task_id="0_1",thread_id="shop-StreamThread-1",} 9.5E3
kafka_streams_stream_state_metrics_restore_rate{task_id="0_1",thread_id="a",rocksdb_state_id="totals"} NaN 1795215600
kafka_stream_task_restore_total{kafka_version="3.9.1",task_id="1_0",thread_id="b \\"x\\" \\n"} +Inf
"""


class Target(NamedTuple):
    """A parser.

    samples: valid inputs. read: takes one input; draws what else it needs. error: what it may raise, and nothing else.
    """

    samples: Sequence[bytes]
    read: Callable[[bytes, random.Random], None]
    error: tuple[type[Exception], ...] = ()


def _check(observations: Collection[Observation]) -> None:
    """Take these observations as the pipeline does, and print them as `backflow replay` does."""
    for observation in encodable(observations):
        to_json(not_after(observation, _NOW))


def _config(folder: Path) -> Target:
    path = folder / "rules.toml"
    tables = re.split(r"\n(?=\[)", shipped().read_text(encoding="utf-8"))
    mistakes = (_TESTS / "config" / "mistakes.txt").read_text(encoding="utf-8")
    broken = ["\n".join(line for line in block.splitlines() if line[:2] != "=>") for block in mistakes.split("\n\n")]
    samples = [text.encode() for text in (_CONFIG, *re.split(r"\n(?=\[)", _CONFIG), *tables, *broken)]

    def read(content: bytes, draw: random.Random) -> None:
        path.write_bytes(content)
        settings = load(path, need_clusters=draw.random() < 0.5)
        secret_problems(settings, path)
        for check in settings.checks.values():
            if check.schedule:
                trigger(check.schedule)

    return Target(samples, read, (SettingsError,))


def _znode_samples() -> list[bytes]:
    topic = {"version": 3, "topic_id": "x", "partitions": {"0": [1, 2], "1": [2]}, "adding_replicas": {"0": [3]}}
    state = {"controller_epoch": 7, "leader": 1, "version": 1, "leader_epoch": 4, "isr": [1, 2]}
    reassigned = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3]}]}
    address = b"akka.tcp://flink@host:6123/user/dispatcher"
    long = struct.pack(">IB", 0xACED0005, 0x77) + bytes([len(address) + 2]) + struct.pack(">H", len(address)) + address
    return [
        *(json.dumps(fields).encode() for fields in (topic, state, reassigned, {"version": 1, "brokerid": 2005})),
        *(long, long + b"sr\0\x0ejava.util.UUID" + bytes(range(32))),
    ]


def _read_znode(content: bytes, draw: random.Random) -> None:
    numbers = (draw.choice((0, 1, 2**40, 2**63 - 1, -1, _NOW)) for _ in iter(int, 1))
    stat = ZnodeStat(*(next(numbers) for _ in ZnodeStat._fields))
    decoder = ZnodeDecoder("main", [])
    steps: tuple[Callable[[], object], ...] = (
        lambda: decoder.reassignments.update(decode_reassignments((content, stat))),
        lambda: _check([decoder.controller((content, stat), (b"7", stat), _NOW, None)]),
        lambda: _check([decoder.controller((b'{"brokerid": 1}', stat), (content[:9], stat), _NOW, None)]),
        lambda: _check(
            [decoder.registered(broker_of(f"/brokers/ids/{content[:9].decode('latin-1')}"), stat, _NOW, None)]
        ),
        lambda: decode_leader(CONTROLLER, content),
        lambda: _read_topic(decoder, content, stat),
    )
    _read_any(steps, UndecodableError)


def _read_any(steps: Sequence[Callable[[], object]], refusal: type[Exception]) -> None:
    """Take each step; raise the refusal if all refuse."""
    refused = []
    for step in steps:
        try:
            step()
        except refusal as error:
            refused.append(error)
    if len(refused) == len(steps):
        raise refused[0]


def _read_topic(decoder: ZnodeDecoder, content: bytes, stat: ZnodeStat) -> None:
    valid = b'{"partitions": {"0": [1, 2]}}', stat
    PARTITION_STATE.fullmatch(partition_state_path("t", 0))
    observed = [
        decoder.partition("t", 0, decode_topic(f"{TOPICS}/t", valid), (content, stat), now=_NOW, read_at=None),
        decoder.partition(
            *("t", 0, decode_topic(f"{TOPICS}/t", (content, stat)), (b'{"leader":1,"leader_epoch":0,"isr":[1]}', stat)),
            now=_NOW,
            read_at=_NOW,
        ),
    ]
    _check(observed)


class _Answering(RestEndpoint):
    """An endpoint that answers with the same content to every request."""

    content = b""

    def get(self, path: str, accept: str, deadline: float) -> bytes:
        """Return the content."""
        del path, accept, deadline
        return self.content


_ENDPOINT = _Answering("http://flink-1:8081")
_TYPES: tuple[Any, ...] = (
    *(JobsOverview, OldJobsOverview, JobDetails, VertexDetails, CheckpointStatistics),
    *(tuple[Metric, ...], tuple[ConfigEntry, ...]),
)


def _rest_samples() -> list[bytes]:
    found = []
    for path in sorted((_TESTS / "sources" / "samples").glob("flink-*.json")):
        found += [json.dumps(answer).encode() for answer in json.loads(path.read_text(encoding="utf-8")).values()]
    offsets = [
        {"id": "0.source.KafkaSourceReader.topic.t.partition.0.currentOffset", "value": "120"},
        {"id": "3.work.KafkaConsumer.topic.t.partition.1.committed_offsets", "value": "7"},
        {"id": "0.Source__x.KafkaConsumer.current-offsets.t-1", "value": "9"},
    ]
    return [*found, json.dumps(offsets).encode(), b""]


def _read_rest(content: bytes, _: random.Random) -> None:
    _ENDPOINT.content = content
    _read_any([partial(_read_as, kind) for kind in _TYPES], RequestError)


def _read_as(kind: Any) -> None:
    match decoded := _ENDPOINT.fetch("/jobs", kind, 0.0):
        case JobsOverview() | OldJobsOverview():
            _check([make_flink_job("main", job, None, _NOW) for job in decoded.jobs])
        case CheckpointStatistics():
            made = make_checkpoints("main", "0" * 32, decoded, _NOW)
            _check([] if made is None else [made])
        case VertexDetails():
            [subtask.task_manager_host for subtask in decoded.subtasks]
        case tuple() if kind is _TYPES[-2]:
            parse_offsets("0" * 32, decoded)


def _read_metrics(content: bytes, _: random.Random) -> None:
    _ENDPOINT.content = content
    _select_tasks(_fetch_task_metrics(_ENDPOINT, "/metrics", 0.0), "shop")


def _log_lines(folder: Path) -> Target:
    samples = []
    for path in sorted((_TESTS / "sources" / "logs" / "samples").glob("*.log")):
        lines = path.read_bytes().splitlines(keepends=True)
        samples += [b"".join(lines[begin : begin + 5]) for begin in range(0, min(len(lines), 200), 5)]
    logs = folder / "logs"
    logs.mkdir()
    path = logs / "server.log"
    path.touch()
    patterns = [r"(?i)No space left (?P<topic>\w+)-(?P<partition>\d+)", r"\bOutOfMemory\w*", "[^\\x00-\\x7f]{3,9}"]
    sources: dict[str, LogSource] = {}

    def read(content: bytes, draw: random.Random) -> None:
        encoding = draw.choice(("utf-8", "utf-8", "utf-8", "latin-1", "utf-16"))
        if encoding not in sources:
            settings = Logs(paths=(str(path),), encoding=encoding, time_zone="Europe/Berlin")
            sources[encoding] = LogSource("brokers", settings, patterns, _check)
        if path.stat().st_size > 1_000_000:
            path.write_bytes(b"")
        with path.open("ab") as file:
            file.write(content + b"\n")
        sources[encoding].poll()

    return Target(samples, read)


class _Socket:
    """A socket from which a prepared answer is read."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def sendall(self, content: bytes) -> None:
        """Take the request."""

    def makefile(self, _: str) -> io.BytesIO:
        """Return the answer."""
        return io.BytesIO(self._answer)

    def close(self) -> None:
        """Do nothing."""

    def setsockopt(self, *_: int) -> None:
        """Do nothing."""


def _slack_answers() -> Target:
    incident = _incident()
    slack = Slack("xoxb-stand-in", lambda _: "alerts", base_url="http://slack.invalid/api/")
    webhook = Webhook("http://slack.invalid/services/x")
    answer = b""

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = _Socket(answer)

    class Handler(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, request)

    opener = urllib.request._opener  # type: ignore[attr-defined] # noqa: SLF001 - that of agent.notify.slack
    opener.handle_open["http"] = [Handler()]
    opener.handle_open["http"][0].add_parent(opener)
    handle = {"channel": "C0000000001", "ts": "1795215600.000100"}
    row = Row(seq=1, revision=1, incident=incident)
    plot = message_of(row._replace(number=2, check_report=1, plot=b"\x89PNG"))
    messages: tuple[Message, ...] = (message_of(row), message_of(row._replace(number=1, lines=("Closed.",))), plot)

    def read(content: bytes, draw: random.Random) -> None:
        nonlocal answer
        answer = content
        message, known = draw.choice(messages), draw.choice((None, handle))
        if draw.random() < 0.1:
            slack.identify()
        elif draw.random() < 0.1:
            webhook.deliver(message, None)
        elif draw.random() < 0.5:
            slack.deliver(message, known)
        else:
            slack.find(message, known, _NOW)

    return Target(list(_slack_samples(incident)), read, (NotDelivered,))


def _slack_samples(incident: Incident) -> Iterator[bytes]:
    mark = {"event_type": "backflow_incident", "event_payload": {"id": incident.id}}
    posted = {"type": "message", "ts": "1795215600.000100", "text": "x", "metadata": mark, "files": [{"name": "a.png"}]}
    bodies: tuple[dict[str, Any], ...] = (
        {"ok": True, "channel": "C0000000001", "ts": "1795215600.000100", "message": posted},
        {"ok": True, "messages": [posted], "has_more": True, "response_metadata": {"next_cursor": "bmV4dA=="}},
        {"ok": True, "messages": [posted, {**posted, "files": None}], "response_metadata": None},
        {"ok": True, "channels": [{"id": "C0000000001", "name": "alerts"}], "response_metadata": {"next_cursor": ""}},
        {"ok": True, "upload_url": "http://slack.invalid/upload/v1/F01", "file_id": "F01", "files": [{"id": "F01"}]},
        {"ok": True, "team": "T", "user": "U"},
        {"ok": False, "error": "ratelimited"},
        {"ok": False, "error": "missing_scope", "needed": "x", "response_metadata": {"messages": ["[ERROR] no"]}},
        {"ok": False, "error": "internal_error"},
    )
    kind = b"Content-Type: application/json; charset=utf-8\r\n"
    for body in bodies:
        content = json.dumps(body).encode()
        yield b"HTTP/1.1 200 OK\r\n" + kind + b"Content-Length: %d\r\n\r\n" % len(content) + content
        yield b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n" + content
        yield (
            b"HTTP/1.1 200 OK\r\n"
            + kind
            + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
            % (
                len(content),
                content,
            )
        )
    yield b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 30\r\n\r\n"
    yield b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\n\r\n<html>busy</html>"
    yield b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.invalid/\r\n\r\n"
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: text/html\r\n\r\n<html>login</html>"


def _incident() -> Incident:
    settings = load(shipped(), need_clusters=False)
    engine = Engine(settings.rules, settings.correlations, settings.incidents)
    return next(incident for incident in engine.take(workload()) if incident.findings)


def _assignment_samples() -> list[bytes]:
    lines = (_TESTS / "sources" / "samples" / "streams-assignments.jsonl").read_text(encoding="utf-8").splitlines()
    return [bytes.fromhex(json.loads(line)["assignment"]) for line in lines]


def _read_assignment(content: bytes, _: random.Random) -> None:
    decode_assignment(content)


def _segments(folder: Path) -> Target:
    logs = folder / "kafka"
    partition = logs / "t-0"
    partition.mkdir(parents=True)
    log = partition / f"{7_000:020d}.log"
    small = {
        log.with_suffix(".index"): struct.pack(">iiii", 3, 80, 9, 400),
        log.with_suffix(".timeindex"): struct.pack(">qiqi", 1_000, 3, 1_004, 9),
        partition / "leader-epoch-checkpoint": b"0\n2\n0 7000\n4 7003\n",
        logs / "replication-offset-checkpoint": b"0\n1\nt 0 7010\n",
        logs / "meta.properties": b"version=1\nbroker.id=1\ncluster.id=x\n",
    }
    formats = [(magic, codec) for magic in (0, 1, 2) for codec in writer.CODECS if magic == 2 or codec != "zstd"]
    parts = [
        writer.entry(magic, codec, 7_000 + 10 * number, 3 if codec != "none" or magic == 2 else 1, timestamp=1_000)
        for number, (magic, codec) in enumerate(formats)
    ]
    samples = [b"".join(parts), *parts, *(b"".join(parts[number : number + 3]) for number in range(len(parts)))]

    def read(content: bytes, draw: random.Random) -> None:
        log.write_bytes(content)
        for path, sample in small.items():
            path.write_bytes(damaged(sample, list(small.values()), draw) if draw.random() < 0.2 else sample)
        for found in list_partitions(1, str(logs)):
            for segment in found.segments:
                for _ in read_rows(segment, lambda _: None, deep=draw.random() < 0.5):
                    pass

    return Target(samples, read, (LogDirectoryError,))


def _journal(folder: Path) -> Target:
    files: list[tuple[Path, bytes]] = []
    for name in ("sealed", "open"):
        journal = Journal(folder / name)
        for observation in workload()[:60]:
            journal.append([observation])
            if observation.at % 3 == 0:
                journal.flush()
        journal.flush()
        files += [
            (path.relative_to(folder / name), path.read_bytes()) for path in (folder / name).rglob("_*.arrow")
        ]  # a stream is complete after each flush
        journal.close()
        files += [(path.relative_to(folder / name), path.read_bytes()) for path in (folder / name).rglob("*.parquet")]
    suffixes = {path.suffix: path for path, _ in files}
    directory = folder / "journal"

    def read(content: bytes, draw: random.Random) -> None:
        path = directory / suffixes[".parquet" if content[-4:] == b"PAR1" or draw.random() < 0.1 else ".arrow"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        reasons: list[str] = []
        for _, observation in entries(directory, unreadable=lambda _, reason: reasons.append(reason)):
            to_json(observation)
        Journal(directory, unreadable=lambda _, reason: reasons.append(reason)).close()
        for _ in entries(directory, unreadable=lambda _, reason: reasons.append(reason)):
            pass
        for left in path.parent.iterdir():
            with suppress(FileNotFoundError):
                left.unlink()

    return Target([content for _, content in files], read)


TARGETS: Mapping[str, Callable[[Path], Target]] = {
    "config": _config,
    "znodes": lambda _: Target(_znode_samples(), _read_znode, (UndecodableError,)),
    "REST": lambda _: Target(_rest_samples(), _read_rest, (RequestError,)),
    "Prometheus text": lambda _: Target([_METRICS, *_METRICS.splitlines()], _read_metrics, (RequestError,)),
    "log lines": _log_lines,
    "Slack answers": lambda _: _slack_answers(),
    "assignments": lambda _: Target(_assignment_samples(), _read_assignment, (UndecodableAssignmentError,)),
    "Kafka segments": _segments,
    "journal files": _journal,
}
"""All targets by name, each made with an empty folder in which it may write."""
