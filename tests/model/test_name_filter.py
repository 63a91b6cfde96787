"""Name filters: which patterns match none of the names."""

from agent.model.name_filter import NameFilter

NAMES = ["orders", "orders-eu", "payments"]


def test_patterns_without_a_match_have_the_nearest_names() -> None:
    selected = NameFilter(include=["order", "pay*", "zebra-*"], exclude=["nothing-*"])
    assert selected.unmatched(NAMES) == {"order": ["orders", "orders-eu"], "zebra-*": []}


def test_the_default_matches_everything_even_if_there_is_nothing() -> None:
    assert NameFilter().unmatched([]) == {}
