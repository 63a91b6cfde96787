"""Which partitions are watched."""

from agent.model.name_filter import NameFilter
from agent.sources.kafka.state.watched_partitions import WatchedPartitions


def test_partitions_are_selected_committed_to_or_changelogs() -> None:
    changelogs = {"app-store-changelog"}
    watched = WatchedPartitions(NameFilter(include=["orders"]), changelogs.__contains__)
    watched.leaders = {
        "orders": {0: 1, 1: 2},
        "payments": {0: 1, 1: -1},
        "app-store-changelog": {0: 2},
        "other": {0: 1},
    }
    watched.update({("payments", 1)})
    assert watched.by_leader == {1: [("orders", 0)], 2: [("orders", 1), ("app-store-changelog", 0)]}
    assert watched.without_leader == [("payments", 1)]
    assert watched.topics == {"orders", "payments", "app-store-changelog"}
    watched.update({("payments", 0), ("payments", 1)})
    assert watched.by_leader[1] == [("orders", 0), ("payments", 0)]
    changelogs.clear()
    watched.update({("payments", 0)})
    assert watched.topics == {"orders", "payments"}
    watched.leaders = {"orders": {0: 2}}
    watched.update({("payments", 0)})
    assert watched.by_leader == {2: [("orders", 0)]}
