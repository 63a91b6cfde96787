"""What the Kafka source logs: each thing once. Makes no calls."""

from collections.abc import Collection, Iterable, Mapping

import structlog

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.streams import StreamsApplication
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import Call, CompletedCall

_REFUSABLE = {
    protocol.DescribeBrokerSettings: "broker settings",
    protocol.ListTypedGroups: "streams and share groups",
    protocol.ListShareOffsets: "offsets of share groups (before Kafka 4.2)",
    protocol.DescribeOpenTransaction: "producers of open transactions",
}
"""Requests without which the rest of a cluster is observed -> what they read, for the log."""

log = structlog.get_logger(__name__)


class SourceLog:
    """Logs what is found, and what cannot be read although everything else can."""

    def __init__(self, cluster: str, groups: NameFilter, topics: NameFilter, declared: Collection[str]) -> None:
        """Log for a cluster. declared: changelogs of stores whose values rules check."""
        self._cluster = cluster
        self._declared = declared
        self._logged: set[tuple[str, str]] = set()
        self._unchecked_filters = {"groups": groups, "topics": topics}

    def add(self, completed: CompletedCall) -> None:
        """Log what a result shows for the first time."""
        self._log_undecodable_tasks(completed)
        self._log_refusals(completed)
        self._log_unmatched_patterns(completed)

    def add_polled_commits(self, reason: str) -> None:
        """Log why commits are not read from the offsets topic."""
        if self._is_new("commits", reason):
            log.info("commits_polled", cluster=self._cluster, reason=reason)

    def add_undecodable_records(self, counts: Mapping[str, int]) -> None:
        """Log why records of the offsets topic could not be decoded. counts: how many so far, by reason."""
        for reason, number in counts.items():
            if self._is_new("records", reason):
                log.warning("offsets_topic_undecodable", cluster=self._cluster, reason=reason, records=number)

    def _log_undecodable_tasks(self, completed: CompletedCall) -> None:
        match completed:
            case CompletedCall(
                call=Call(request=protocol.ListTasks(group)), result=protocol.Tasks(undecodable=str(reason))
            ):
                if self._is_new(group, reason):
                    log.warning("streams_tasks_undecodable", cluster=self._cluster, application=group, reason=reason)

    def _log_refusals(self, completed: CompletedCall) -> None:
        """Log once what is refused although everything else can be read: rules then know less than they could."""
        request, result = completed.call.request, completed.result
        refused: list[tuple[str, protocol.Failure | None]] = []
        match result:
            case protocol.Failure() if isinstance(request, tuple(_REFUSABLE)):
                refused = [(_REFUSABLE[type(request)], result)]
            case protocol.Settings(topics):
                refused = [
                    ("topic settings", topic) for topic in topics.values() if isinstance(topic, protocol.Failure)
                ]
            case protocol.Topics(reassignments=failure):
                refused = [("reassignments", failure)]
        for subject, failure in refused:
            if failure is not None and failure.is_refusal and self._is_new(subject, failure.text):
                log.warning("kafka_refuses", cluster=self._cluster, subject=subject, reason=failure.text)

    def _log_unmatched_patterns(self, completed: CompletedCall) -> None:
        """Log, after the first list of groups and of topics, patterns of rules.toml that match none."""
        match completed.result:
            case protocol.Groups(names, failures=[]):
                key = "groups"
            case protocol.Metadata(brokers=[_, *_], topics=names):
                key = "topics"
            case _:
                return
        selected = self._unchecked_filters.pop(key, NameFilter())
        for pattern, nearest in selected.unmatched(names).items():
            log.warning("pattern_matches_nothing", cluster=self._cluster, key=key, pattern=pattern, nearest=nearest)

    def add_applications(self, facts: Iterable[Observation]) -> None:
        """Log each application once, and again when it has other stores."""
        for fact in facts:
            if isinstance(fact, StreamsApplication) and self._is_new(fact.application, str(fact.stores)):
                stores = [store for store, _ in fact.stores]
                log.info(
                    "streams_application_found",
                    cluster=self._cluster,
                    application=fact.application,
                    instances=fact.instances,
                    stores=stores,
                    declared=[store for store in stores if fact.changelog(store) in self._declared],
                )

    def _is_new(self, application: str, text: str) -> bool:
        is_new = (application, text) not in self._logged
        self._logged.add((application, text))
        return is_new
