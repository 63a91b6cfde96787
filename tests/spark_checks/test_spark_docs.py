"""docs/explanation/spark-checks.md names every check and option, and nothing else."""

import re
from pathlib import Path

from spark_checks.command import check_names, load_check
from spark_checks.options import COMMON

TEXT = (Path(__file__).parents[2] / "docs" / "explanation" / "spark-checks.md").read_text(encoding="utf-8")


def test_every_check_has_a_row() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", TEXT.partition("## ")[0], flags=re.MULTILINE)) == check_names()


def test_common_options_are_explained_and_all_options_exist() -> None:
    common = {name for option in COMMON for name in option.opts}
    known = common | {name for check in check_names() for option in load_check(check).PARAMS for name in option.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - {"--help", "--json", "--broker", "--out", "--batch"}
    assert common <= named <= known
