"""A group is looked for where Kafka keeps it."""

import pytest

from agent.model.group_partition import partition_of


@pytest.mark.parametrize(
    ("group", "hash_code"),
    [
        ("g1", 3_242),
        ("console-consumer-12345", 158_455_506),
        ("", 0),
        ("\U0001f600x", 54_959_989),
        ("topic-113583-group", -943_945_843),
    ],
)
def test_the_hash_is_that_of_java(group: str, hash_code: int) -> None:
    """As String.hashCode of Java 17 gives it."""
    for count in (4, 50, 51):
        assert partition_of(group, count) == abs(hash_code) % count


def test_the_hash_without_a_positive_counterpart_counts_as_0() -> None:
    """-2147483648 is that of this one."""
    assert partition_of("polygenelubricants", 51) == 0
