"""What the Kafka source makes of answers: late ones, refusals, half ones."""

from agent.model.config_types import NameFilter
from agent.model.observations import BrokerRegistration, Commit, GroupState, LogOffsets, Observation, PartitionState
from agent.sources.availability import SOURCE, AvailabilityTracker, Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka import admin_protocol as wire
from agent.sources.kafka.admin_client import Call, CheckResult
from agent.sources.kafka.changes import KafkaChanges

_REFUSED, _UNKNOWN_TOPIC, _NOT_COORDINATOR = (
    wire.Failure(30, "refused"),
    wire.Failure(3, "?"),
    wire.Failure(16, "moved"),
)
_HANGS = wire.Failure(-185, "timed out")


def _view(*known: Observation) -> KafkaChanges:
    view = KafkaChanges("main", NameFilter(), NameFilter(), ChangeDetector(), known, watch_partitions=True)
    view.begin()
    return view


def _answer(view: KafkaChanges, question: wire.Question, result: wire.Result, asked: int = 1, at: int = 2) -> None:
    name = question.group if isinstance(question, wire.ListCommits | wire.DescribeGroup) else ""
    kinds = {wire.ListCommits: "commits", wire.DescribeGroup: "states"}
    key = (kinds.get(type(question), type(question).__name__), name)
    view.take(CheckResult(Call(key, key, asked, question), at, result))


def _layout(view: KafkaChanges, brokers: list[int], leaders: dict[int, int], at: int = 2) -> None:
    _answer(view, wire.Layout(), wire.Metadata(brokers, {"t": leaders}), at=at)


def _ends(view: KafkaChanges, end: int, asked: int) -> None:
    _answer(view, wire.ListOffsets([("t", 0)]), wire.Offsets([wire.LogRange("t", 0, 0, end, None)]), asked=asked)


def _unseen(view: KafkaChanges, *overdue: Call, complaint: str | None = None) -> dict[Unit, str]:
    return view.unseen(overdue, complaint, AvailabilityTracker("kafka", "main"))


def _commits(*offsets: int) -> wire.Commits:
    return wire.Commits([wire.CommittedOffset("t", number, one, None, None) for number, one in enumerate(offsets)])


def test_an_offset_no_longer_listed_is_forgotten_once() -> None:
    """Known from before or from this run: null, and then nothing more."""
    view = _view(Commit(at=1, cluster="main", group="g", topic="t", partition=1, offset=5))
    _answer(view, wire.ListCommits("g"), _commits(7))
    told = [(one.partition, one.offset) for one in view.facts() if isinstance(one, Commit)]
    assert told == [(0, 7), (1, None)]
    _answer(view, wire.ListCommits("g"), _commits())
    assert [(one.partition, one.offset) for one in view.facts() if isinstance(one, Commit)] == [(0, None)]
    _answer(view, wire.ListCommits("g"), _commits())
    assert view.facts() == []


def test_one_partition_that_is_refused_is_neither_forgotten_nor_everybodys_trouble() -> None:
    """The group's other commits are told; this one is Unavailable."""
    view = _view(Commit(at=1, cluster="main", group="g", topic="t", partition=1, offset=5))
    offsets = [wire.CommittedOffset("t", 0, 7, None, None), wire.CommittedOffset("t", 1, -1, None, _REFUSED)]
    _answer(view, wire.ListCommits("g"), wire.Commits(offsets))
    assert [(one.partition, one.offset) for one in view.facts() if isinstance(one, Commit)] == [(0, 7)]
    assert list(_unseen(view)) == [Unit("g", "t", 1)]


def test_an_end_of_minus_1001_is_unknown_not_a_fall() -> None:
    """The leader is away: Unavailable for the partition, and no log offsets."""
    view = _view()
    _layout(view, [1], {0: 1})
    _ends(view, -1001, asked=5)
    assert [one for one in view.facts() if isinstance(one, LogOffsets)] == []
    assert list(_unseen(view)) == [Unit(None, "t", 0)]
    _ends(view, 10, asked=6)
    assert [one.at for one in view.facts() if isinstance(one, LogOffsets)] == [6]
    assert _unseen(view) == {}


def test_a_late_answer_of_a_former_leader_is_no_news() -> None:
    """It was asked before the new leader was: neither its offsets nor its failure count."""
    view = _view()
    _layout(view, [1, 2], {0: 2})
    _ends(view, 10, asked=9)
    view.facts()
    _ends(view, 12, asked=5)
    _ends(view, -1001, asked=5)
    assert view.facts() == []
    late = Call(("offsets", 1), ("offsets", 1), 5, wire.ListOffsets([("t", 0)]))
    assert _unseen(view, late) == {}


def test_offsets_that_no_leader_told_are_missed_until_a_later_call_tells_them() -> None:
    """A broker lost power with a call to it under way; whoever leads after it answers another call."""
    view = _view()
    _layout(view, [1, 2], {0: 1})
    _ends(view, 10, asked=2)
    view.give_up([Call(("offsets", 1), ("offsets", 1), 5, wire.ListOffsets([("t", 0)]))])
    assert list(_unseen(view)) == [Unit(None, "t", 0)]
    _layout(view, [2], {0: 2})
    _ends(view, 12, asked=9)
    assert _unseen(view) == {}


def test_a_partition_without_a_leader_is_not_asked_for_but_missed() -> None:
    """Others are asked of their leaders."""
    view = _view()
    _layout(view, [1], {0: -1, 1: 1})
    assert view.by_leader() == {1: [("t", 1)]}
    assert list(_unseen(view)) == [Unit(None, "t", 0)]


def test_a_group_that_moved_makes_the_client_out_of_date_and_is_not_asked_for_commits() -> None:
    """Librdkafka would ask the old coordinator for ever, and crash on its refusal."""
    view = _view(GroupState(at=1, cluster="main", group="g", state="Stable"))
    assert (view.out_of_date, view.groups_in_sight) == (False, ["g"])
    _answer(view, wire.DescribeGroup("g"), _NOT_COORDINATOR)
    assert (view.out_of_date, view.groups_in_sight) == (True, [])
    assert list(_unseen(view)) == [Unit("g")]
    view.begin()
    _answer(view, wire.DescribeGroup("g"), wire.Group("Stable", simple=False, members=[]))
    assert (view.out_of_date, view.groups_in_sight, _unseen(view)) == (False, ["g"], {})


def test_a_broker_that_leaves_makes_the_client_out_of_date_and_one_that_comes_does_not() -> None:
    """It is told as gone, and as there once it is back; a broker that knows of nobody is not believed."""
    view = _view()
    for brokers, out_of_date in (([1, 2], False), ([1], True), ([], False), ([1, 2], False)):
        view.begin()
        _layout(view, brokers, {})
        assert view.out_of_date == out_of_date
    told = [(one.broker, one.gone) for one in view.facts() if isinstance(one, BrokerRegistration)]
    assert told == [(1, False), (2, False), (1, False), (2, True), (1, False), (2, False)]


def test_a_topic_unknown_to_one_broker_is_deleted_only_when_unknown_again() -> None:
    """A broker whose metadata lags deletes nothing."""
    state = PartitionState(
        at=1, cluster="main", topic="t", partition=0, leader=1, replicas=(1,), isr=(1,), topic_id="x"
    )
    view, question = _view(state), wire.DescribeTopics(["t"])
    topic = wire.Topic("x", [wire.Partition(0, 1, [1], [1])])
    results: list[wire.Topic | wire.Failure] = [_UNKNOWN_TOPIC, topic, _UNKNOWN_TOPIC, _UNKNOWN_TOPIC]
    for result in results:
        assert view.topics == ["t"]
        _answer(view, question, wire.Topics({"t": result}))
    told = [one.replicas for one in view.facts() if isinstance(one, PartitionState)]
    assert told == [(1,), ()]
    assert view.topics == []


def test_a_dead_group_is_asked_for_until_its_commits_are_gone() -> None:
    """Then it is forgotten, with what could not be seen of it."""
    view = _view(Commit(at=1, cluster="main", group="g", topic="t", partition=0, offset=5))
    dead = wire.Group("Dead", simple=None, members=[])
    _answer(view, wire.DescribeGroup("g"), dead)
    assert view.groups == ["g"]
    _answer(view, wire.ListCommits("g"), _commits())
    _answer(view, wire.DescribeGroup("g"), dead)
    assert view.groups == []


def test_silence_is_the_sources_own_blindness_and_a_refusal_is_not() -> None:
    """Where nobody answers, the client's complaint says why; a broker that says no has answered."""
    view = _view()
    assert _unseen(view) == {}
    _answer(view, wire.ListCommits("g"), _HANGS)
    assert _unseen(view) == {SOURCE: "No broker of main answers: timed out"}
    assert _unseen(view, complaint="connection refused")[SOURCE].endswith("connection refused")
    _answer(view, wire.ListCommits("g"), _REFUSED)
    assert list(_unseen(view)) == [Unit("g")]
