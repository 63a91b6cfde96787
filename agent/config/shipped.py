"""The rules.toml that Backflow comes with: where it is, and which rules it has."""

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import tomli


def shipped() -> Path:
    """Return the path of the shipped rules.toml: in the checkout, else where the wheel installed it."""
    in_checkout = Path(__file__).resolve().parents[2] / "rules.toml"
    return in_checkout if in_checkout.exists() else Path(sys.prefix, "share", "backflow", "rules.toml")


@cache
def shipped_rules() -> Mapping[str, str]:
    """Return the kind of each shipped rule by its name; nothing if the file cannot be read."""
    try:
        rules = tomli.loads(shipped().read_text(encoding="utf-8"))["rules"]
    except OSError:
        return {}
    return {name: rule["kind"] for name, rule in rules.items()}
