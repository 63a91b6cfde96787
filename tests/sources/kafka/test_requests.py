"""Which requests a poll sends; with real brokers: tests/integration/test_kafka_source.py."""

import structlog

from agent.model.observations.kafka import GroupState
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.client import AdminClient, Call, CompletedCall, Key
from agent.sources.kafka.requests import Requests
from agent.sources.kafka.tail.commit_tail import CommitTail
from agent.sources.kafka.tail.group_turns import GroupTurns
from tests.sources.kafka.state.cluster_results import apply, new_state


class _Client(AdminClient):
    """Notes what would be sent."""

    def __init__(self) -> None:
        super().__init__(lambda: protocol.Setup("main", {}, 1_000), structlog.get_logger())
        self.sent: list[protocol.Request] = []

    def send(self, key: Key, request: protocol.Request, target: Key | None = None) -> None:
        del key, target
        self.sent.append(request)

    def sent_since(self) -> set[tuple[str, str]]:
        """Return what was sent about groups since the last call."""
        sent, self.sent = self.sent, []
        groups = (protocol.DescribeGroup, protocol.ListCommits)
        return {(type(request).__name__, request.group) for request in sent if isinstance(request, groups)}


def test_commits_are_read_of_groups_that_are_described_late() -> None:
    """A coordinator may need longer than a step of a poll waits, always, for one of its groups or for all of them."""
    state, client = new_state(), _Client()
    apply(state, protocol.ListGroups(), protocol.Groups({"early": "classic", "late": "classic"}, []))
    requests = Requests(
        client,
        state,
        GroupTurns(lambda _: False),
        CommitTail("main", dict, lambda _: True, lambda _: None),
        watch_partitions=False,
        reads_log=False,
        log_is_readable=lambda: False,
        is_followed=lambda _: False,
    )

    def describe(group: str) -> None:
        call = Call(("states", group), ("states", group), 1, protocol.DescribeGroup(group))
        result = GroupState(at=2, cluster="main", group=group, state="Stable", simple=False)
        requests.add(CompletedCall(call, 2, result))

    described = {("DescribeGroup", "early"), ("DescribeGroup", "late")}
    for late_response in (False, True, False, True):
        for position, send in enumerate(requests.rounds):
            if position == 1 and late_response:
                describe("late")  # to the request of the poll before
            send()
            if position == 1:
                describe("early")
        due = {("ListCommits", "early"), ("ListCommits", "late")} if late_response else {("ListCommits", "early")}
        assert client.sent_since() == described | due
