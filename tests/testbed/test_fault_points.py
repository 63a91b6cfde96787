"""The points at which the agent is killed are calls that it has."""

from pkgutil import resolve_name

import pytest

from testbed.fault_points import POINTS, UNSEARCHABLE


@pytest.mark.parametrize("target", sorted({point.target for point in (*POINTS, *UNSEARCHABLE)}))
def test_every_fault_point_is_a_call(target: str) -> None:
    assert callable(resolve_name(target))
