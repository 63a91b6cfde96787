"""docs/spark.md names what exists, and all of it."""

import re
from pathlib import Path

from spark_checks.__main__ import check, names
from spark_checks.options import COMMON

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


def test_every_check_has_its_row() -> None:
    """And no row is about another one."""
    assert sorted(re.findall(r"^\| `(\w+)` \|", TEXT.partition("## ")[0], flags=re.MULTILINE)) == names()


def test_every_common_option_is_explained_and_no_option_is_invented() -> None:
    """Options of one check alone may be left to its --help."""
    common = {name for option in COMMON for name in option.opts}
    known = common | {name for one in names() for option in check(one).PARAMS for name in option.opts}
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - {"--help", "--json", "--broker", "--out", "--batch"}
    assert common <= told <= known
