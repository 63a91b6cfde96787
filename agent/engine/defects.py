"""What becomes of an exception in one rule or observation: it must not silence the others."""

from collections.abc import Callable
from typing import TypeAlias

SetAside: TypeAlias = Callable[[str, Exception], None]
"""Called with what failed, such as `rule lag`, and its error, after which the rest goes on."""


def propagate(part: str, error: Exception) -> None:
    """Raise the error: a defect must show in tests and in a replay."""
    del part
    raise error
