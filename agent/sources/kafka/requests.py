"""What a poll of a Kafka cluster requests, in which order."""

from collections.abc import Callable, Sequence

from agent.clock import now_ms
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import AdminClient, CompletedCall
from agent.sources.kafka.state.cluster_state import ClusterState
from agent.sources.kafka.tail.commit_tail import CommitTail
from agent.sources.kafka.tail.group_turns import GroupTurns

_PARTITIONS_PER_CALL = 500
"""librdkafka searches its list once per partition: 10,000 in one call cost four times the CPU of 20 calls (2.16)."""

_COMMITS_AT_ONCE = 10_000
"""About how many committed offsets a poll reads of groups that are then followed in the log: all at once would need
memory that is never needed again."""

_LIST_MS = 10_000
"""How often groups are listed while all commits are read in the log, which shows new groups with their first commit."""

_RETRY_MS = 600_000
"""How long after a refusal the types of groups are requested again: the brokers may have been upgraded."""


class Requests:
    """Sends the requests of a poll through the admin client."""

    def __init__(
        self,
        client: AdminClient,
        state: ClusterState,
        turns: GroupTurns,
        tail: CommitTail,
        *,
        watch_partitions: bool,
        reads_log: bool,
        log_is_readable: Callable[[], bool],
        is_followed: Callable[[str], bool],
    ) -> None:
        """Request what the state lacks, and groups in turns. tail, reads_log: how and whether commits are in the log.

        log_is_readable: returns whether groups are followed there once they have been polled. is_followed: returns
        whether a group is, so that it is not polled.
        """
        self._client, self._state, self._turns, self._tail = client, state, turns, tail
        self._watch_partitions = watch_partitions
        self._reads_log, self._log_is_readable, self._is_followed = reads_log, log_is_readable, is_followed
        self._list_at = self._list_types_at = 0
        self._answered: set[str] = set()
        """Groups whose coordinator has answered since commits were last requested."""

    @property
    def rounds(self) -> Sequence[Callable[[], None]]:
        """What to call to send the requests of a poll, each once the responses to those before it are in."""
        return (
            self._send_groups_and_metadata,
            self._send_group_states,
            self._send_tasks,
            self._send_commits,
            self._send_log_offsets,
            self._send_topics_and_stable_offsets,
            self._send_settings_and_transactions,
        )

    def add(self, completed: CompletedCall) -> None:
        """Update with a result: whose commits may be requested, and that types of groups are listed only later."""
        request, result = completed.call.request, completed.result
        if isinstance(request, protocol.ListTypedGroups) and isinstance(result, protocol.Failure) and result.is_final:
            self._list_types_at = completed.at + _RETRY_MS
        if isinstance(request, protocol.DescribeGroup | protocol.DescribeTypedGroup):
            self._answered.add(request.group)

    def _send_groups_and_metadata(self) -> None:
        if not self._tail.is_current or now_ms() - self._list_at >= _LIST_MS:
            self._list_at = now_ms()
            self._client.send(("groups",), protocol.ListGroups())
        if self._watch_partitions and now_ms() >= self._list_types_at:
            self._client.send(("typed groups",), protocol.ListTypedGroups())
        self._client.send(("metadata",), protocol.FetchMetadata(self._state.needed_topics))

    def _send_group_states(self) -> None:
        for group in self._turns.take_due(self._state.groups, now_ms()):
            match self._state.type_of(group):
                case "streams" | "share" as kind:
                    self._client.send(("states", group), protocol.DescribeTypedGroup(group, kind))
                case _:
                    request = protocol.DescribeGroup(group, complete=not self._state.is_described(group))
                    self._client.send(("states", group), request)

    def _send_tasks(self) -> None:
        for group in self._state.streams.awaiting_tasks:
            self._client.send(("tasks", group), protocol.ListTasks(group))

    def _send_commits(self) -> None:
        """Request commits of groups whose coordinator has just answered: one that refuses crashes librdkafka."""
        answered, self._answered = self._answered, set()
        due = [group for group in self._state.readable_groups if group in answered and not self._is_followed(group)]
        if due and self._log_is_readable():
            due = self._turns.take_to_read(due, self._state.committed.groups_with(_COMMITS_AT_ONCE))
        for group in due:
            if self._state.type_of(group) == "share":
                self._client.send(("commits", group), protocol.ListShareOffsets(group))
            else:
                complete = self._reads_log or not self._state.committed.is_settled(group)
                self._client.send(("commits", group), protocol.ListCommits(group, complete=complete))

    def _send_log_offsets(self) -> None:
        in_flight = {
            (call.target, partition)
            for call in self._client.in_flight
            if isinstance(call.request, protocol.ListOffsets)
            for partition in call.request.partitions
        }
        for leader, led in self._state.partitions_by_leader(now_ms()).items():
            target = ("offsets", leader)
            partitions = [place for place in led if (target, place) not in in_flight] if in_flight else led
            for start in range(0, len(partitions), _PARTITIONS_PER_CALL):
                chunk = partitions[start : start + _PARTITIONS_PER_CALL]
                if self._state.logs.is_due(chunk, now_ms()):
                    request = protocol.ListOffsets(leader, chunk, complete=not self._state.logs.are_settled(chunk))
                    self._client.send((*target, chunk[0]), request, target)

    def _send_topics_and_stable_offsets(self) -> None:
        topics = self._state.watched_topics
        if topics:
            self._client.send(("topics",), protocol.DescribeTopics(topics))
        checked_topics, checked_groups = self._state.due_checks(now_ms())
        if checked_topics:
            self._client.send(("check topics",), protocol.CheckTopics(checked_topics))
        for group in checked_groups:
            self._client.send(("check group", group), protocol.CheckGroup(group))
        for leader, partitions in self._state.due_stable_offsets(now_ms()).items():
            target = ("offsets", leader)
            for start in range(0, len(partitions), _PARTITIONS_PER_CALL):
                chunk = partitions[start : start + _PARTITIONS_PER_CALL]
                self._client.send(("stable", leader, chunk[0]), protocol.ListStableOffsets(leader, chunk), target)

    def _send_settings_and_transactions(self) -> None:
        now = now_ms()
        for request in self._state.due_transactions(now):
            self._client.send(("transaction", request.topic, request.partition), request)
        brokers, topics = self._state.due_settings(now)
        for broker in brokers:
            self._client.send(("broker settings", broker), protocol.DescribeBrokerSettings(broker))
        if topics:
            self._client.send(("topic settings",), protocol.DescribeTopicSettings(topics))
