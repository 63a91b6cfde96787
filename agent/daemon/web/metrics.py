"""Metrics of the agent for Prometheus, read when they are scraped. None has a label per group, topic or incident."""

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

import psutil
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from agent.clock import now_ms
from agent.daemon.status import StatusReader, is_about, open_incidents
from agent.model.findings import Severity, Status
from agent.notify.retries import DELIVERY_FAILURES
from agent.notify.slack_buttons import Button

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OPEN_STATES = (Status.OPEN.value, Status.RECOVERED.value)


def exposition(reader: StatusReader) -> bytes:
    """Return all metrics in Prometheus' text format. Raises TimeoutError if the pipeline does not answer."""
    registry = CollectorRegistry()
    registry.register(_Metrics(reader))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Metrics(Collector):
    def __init__(self, reader: StatusReader) -> None:
        self._reader = reader

    def describe(self) -> list[Metric]:
        """Return nothing: names are checked by tests, not on each scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of now."""
        yield from self._process()
        yield from self._sources()
        yield from self._pipeline()
        yield from self._deliveries()
        yield from self._incidents()
        yield from self._checks()
        yield from self._heartbeat()
        yield from self._buttons()
        yield from self._archive()

    def _process(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("backflow_build_info", "The version that runs; always 1.", labels=["version"])
        build.add_metric([version("backflow")], 1)
        yield build
        yield GaugeMetricFamily("backflow_uptime_seconds", "Time since the start.", value=self._reader.uptime)
        memory = GaugeMetricFamily(
            "backflow_resident_memory_bytes",
            "Resident memory of the agent and of its child processes: Kafka clients and Spark checks.",
            labels=["process"],
        )
        agent = psutil.Process()
        memory.add_metric(["agent"], agent.memory_info().rss)
        memory.add_metric(["children"], sum(map(_resident_memory, agent.children(recursive=True))))
        yield memory
        stuck = len(self._reader.parts.progress.stuck())
        yield GaugeMetricFamily(
            "backflow_stuck_loops", "Loops that have made no progress for two minutes.", value=stuck
        )
        yield GaugeMetricFamily(
            "backflow_failed_parts",
            "Parts of Backflow that do not work; `backflow status` names them.",
            value=len(self._reader.parts.health.problems),
        )

    def _sources(self) -> Iterator[Metric]:
        labels = ["cluster", "source"]
        age = GaugeMetricFamily(
            "backflow_source_last_read_age_seconds",
            "Time since the source was last read; since the start if it has not been.",
            labels=labels,
        )
        unavailable = GaugeMetricFamily(
            "backflow_source_unavailable_parts",
            "Groups, topics, partitions and whole clusters that the source cannot read.",
            labels=labels,
        )
        now, reports = now_ms(), self._reader.unavailable()
        for source in self._reader.parts.sources:
            names = [source.cluster, source.name]
            read_at = source.read_at
            age.add_metric(names, self._reader.uptime if read_at is None else max(0, now - read_at) / 1000)
            own = [report for report in reports if is_about(report, source)]
            unavailable.add_metric(names, len(own))
        yield from (age, unavailable)

    def _pipeline(self) -> Iterator[Metric]:
        pipeline = self._reader.parts.pipeline
        yield GaugeMetricFamily(
            "backflow_pipeline_queued_observations", "Observations that wait for the pipeline.", value=pipeline.queued
        )
        yield GaugeMetricFamily(
            "backflow_pipeline_delay_seconds", "How long a batch waits before evaluation.", value=pipeline.delay / 1000
        )

    def _deliveries(self) -> Iterator[Metric]:
        pending = GaugeMetricFamily(
            "backflow_outbox_pending_incidents", "Incidents with a pending delivery.", labels=["receiver"]
        )
        age = GaugeMetricFamily(
            "backflow_outbox_oldest_seconds",
            "How long the oldest delivery that is due has waited, at most since the start; 0 if none is.",
            labels=["receiver"],
        )
        delivered = CounterMetricFamily(
            "backflow_deliveries", "Deliveries that the receiver has confirmed.", labels=["receiver"]
        )
        failed = CounterMetricFamily(
            "backflow_delivery_failures", "Attempts to deliver that failed.", labels=["receiver", "reason"]
        )
        for receiver in self._reader.receivers():
            name = [receiver.receiver]
            pending.add_metric(name, receiver.pending)
            age.add_metric(name, receiver.oldest_ms / 1000)
            delivered.add_metric(name, receiver.delivered)
            for reason in DELIVERY_FAILURES:
                failed.add_metric([*name, reason], receiver.failed.get(reason, 0))
        yield from (pending, age, delivered, failed)

    def _incidents(self) -> Iterator[Metric]:
        incidents = list(open_incidents(self._reader.current_incidents()))
        by_rule = GaugeMetricFamily(
            "backflow_incidents",
            "Incidents that are not closed, by status and the rule of their worst finding.",
            labels=["status", "rule"],
        )
        numbers = Counter((incident.status, incident.rule) for incident in incidents)
        for rule in sorted({*self._reader.parts.rules, *(incident.rule for incident in incidents)}):
            for status in _OPEN_STATES:
                by_rule.add_metric([status, rule], numbers[status, rule])
        yield by_rule
        by_severity = GaugeMetricFamily("backflow_open_incidents", "Open incidents by severity.", labels=["severity"])
        severities = Counter(incident.severity for incident in incidents if incident.status == Status.OPEN.value)
        for severity in Severity:
            by_severity.add_metric([severity.value], severities[severity.value])
        yield by_severity

    def _checks(self) -> Iterator[Metric]:
        durations = SummaryMetricFamily(
            "backflow_check_duration_seconds", "Duration of Spark checks since the start.", labels=["check", "outcome"]
        )
        for (check, outcome), (number, total) in sorted(self._reader.check_runs.durations.items()):
            durations.add_metric([check, outcome], number, total / 1000)
        yield durations
        last = GaugeMetricFamily(
            "backflow_check_last_run_timestamp_seconds", "When a Spark check last ended.", labels=["check", "cluster"]
        )
        failed = GaugeMetricFamily(
            "backflow_check_last_run_failed",
            "Whether the last run of a Spark check failed.",
            labels=["check", "cluster"],
        )
        for run in self._reader.check_runs.last:
            last.add_metric([run.check, run.cluster], run.at / 1000)
            failed.add_metric([run.check, run.cluster], run.outcome == "failed")
        running, waiting = self._reader.parts.checks.load
        yield from (last, failed)
        yield GaugeMetricFamily("backflow_checks_running", "Spark checks in progress.", value=running)
        yield GaugeMetricFamily("backflow_checks_waiting", "Spark checks that wait or are not due yet.", value=waiting)

    def _heartbeat(self) -> Iterator[Metric]:
        sent = GaugeMetricFamily("backflow_heartbeat_last_sent_timestamp_seconds", "When a heartbeat last arrived.")
        failures = CounterMetricFamily(
            "backflow_heartbeat_failures", "Heartbeats that were not sent or did not arrive."
        )
        if self._reader.heartbeat is not None:
            sent.add_metric([], (self._reader.heartbeat.sent_at or 0) / 1000)
            failures.add_metric([], self._reader.heartbeat.failures)
        yield from (sent, failures)

    def _buttons(self) -> Iterator[Metric]:
        connected = GaugeMetricFamily("backflow_slack_socket_connected", "Whether presses of buttons in Slack arrive.")
        pressed = CounterMetricFamily("backflow_slack_presses", "Presses that were answered.", labels=["button"])
        failed = CounterMetricFamily("backflow_slack_press_failures", "Presses that could not be done or answered.")
        malformed = CounterMetricFamily("backflow_slack_malformed", "Messages of Slack's socket that cannot be read.")
        buttons = self._reader.buttons()
        if buttons is not None:
            connected.add_metric([], buttons.is_connected)
            failed.add_metric([], buttons.failed)
            malformed.add_metric([], buttons.malformed)
            for button in Button:
                pressed.add_metric([button.removeprefix("backflow_")], buttons.pressed.get(button.value, 0))
        yield from (connected, pressed, failed, malformed)

    def _archive(self) -> Iterator[Metric]:
        pending = GaugeMetricFamily("backflow_journal_archive_pending_files", "Sealed files that are not archived.")
        age = GaugeMetricFamily(
            "backflow_journal_archive_oldest_seconds", "How long the oldest of them has waited; 0 if there is none."
        )
        archived = CounterMetricFamily("backflow_journal_archived_files", "Files that were archived.")
        failed = CounterMetricFamily("backflow_journal_archive_failures", "Attempts to archive that failed.")
        archive = self._reader.archive()
        if archive is not None:
            pending.add_metric([], archive.pending)
            age.add_metric([], archive.oldest_ms / 1000)
            archived.add_metric([], archive.archived)
            failed.add_metric([], archive.failed)
        yield from (pending, age, archived, failed)


def _resident_memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended meanwhile
        return 0
