"""Numbers of keys by hashes are what a dict by the keys would hold."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.sources.kafka.tail import key_numbers
from agent.sources.kafka.tail.key_numbers import MISSING, KeyNumbers

KEYS = [f"key-{number}".encode() for number in range(40)]
ACTIONS = st.sampled_from(["of", "of", "of", "remove", "remove_all", "replace"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ACTIONS, st.lists(st.integers(0, len(KEYS) - 1), max_size=30)), max_size=20))
def test_numbers_by_hashes_are_those_of_a_dict(
    monkeypatch: pytest.MonkeyPatch, actions: list[tuple[str, list[int]]]
) -> None:
    monkeypatch.setattr(key_numbers, "_PLACES", 2)
    monkeypatch.setattr(key_numbers, "_AFTER_LAST", 1)
    known: dict[bytes, int] = {}

    def ask(key: bytes) -> int:
        if key in KEYS[:5]:
            return -1  # without setting it
        known[key] = len(known) % 7
        numbers.set(key, known[key])
        return known[key]

    numbers = KeyNumbers(ask)
    for action, chosen in actions:
        keys = [KEYS[number] for number in chosen]
        if action == "of":
            found = numbers.of(keys).tolist()
            assert found == [known.get(key, -1) for key in keys]
        elif action == "remove":
            for key in keys:
                numbers.remove(key)
                known.pop(key, None)
        elif action == "remove_all":
            numbers.remove_all(3)
            known = {key: number for key, number in known.items() if number != 3}
        else:
            numbers.replace(np.array([6, 5, 4, 3, 2, 1, 0]))
            known = {key: 6 - number for key, number in known.items()}
        assert [numbers.get(key) for key in KEYS] == [known.get(key, MISSING) for key in KEYS]


@given(st.lists(st.integers(0, 100), unique=True, max_size=60))
def test_keys_with_hashes_next_to_each_other_are_kept_apart(starts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_numbers, "_PLACES", 16)
        patch.setattr(key_numbers, "_AFTER_LAST", 1)
        patch.setattr(key_numbers, "hash", lambda key: int.from_bytes(key, "big") << 3, raising=False)
        numbers = KeyNumbers(lambda _: MISSING)
        keys = [bytes([start]) for start in starts]
        for number, key in enumerate(keys):
            numbers.set(key, number)
        assert numbers.of(keys).tolist() == list(range(len(keys)))
        assert numbers.get(b"\xff") == MISSING


def test_a_record_without_a_key_is_asked_for_as_an_empty_one() -> None:
    asked: list[bytes] = []

    def ask(key: bytes) -> int:
        asked.append(key)
        return 9

    assert KeyNumbers(ask).of([None, b"k", None]).tolist() == [9, 9, 9]
    assert asked == [b"", b"k", b""]
