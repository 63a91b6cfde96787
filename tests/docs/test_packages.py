"""What is installed beside the command: the runtime part of the lock file, man page, completions, Dockerfile."""

import json
import re
import shutil
import subprocess
from importlib.metadata import requires
from pathlib import Path

import pytest
import tomli
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agent.cli.main import main
from scripts.reference.manual import FILES

ROOT = Path(__file__).parents[2]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = ROOT / "package"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_the_packaged_file_is_what_the_code_generates(name: str) -> None:
    assert (PACKAGE / name).read_text(encoding="utf-8") == FILES[name](), "run `make reference`"


def test_all_packaged_files_are_in_the_wheel() -> None:
    listed = {path for paths in PROJECT["tool"]["setuptools"]["data-files"].values() for path in paths}
    assert listed == {"rules.toml", *(f"package/{name}" for name in FILES)}


def test_the_man_page_has_all_commands() -> None:
    page = FILES["backflow.1"]()
    for name in main.commands:
        assert f".SS backflow {name}".replace("-", "\\-") in page


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_the_man_page_is_formatted_without_warnings() -> None:
    formatted = subprocess.run(
        ["man", "--warnings", "--local-file", PACKAGE / "backflow.1"], capture_output=True, text=True, check=False
    )
    assert (formatted.returncode, formatted.stderr) == (0, "")


def test_the_completion_of_a_shell_completes_commands() -> None:
    environment = {"_BACKFLOW_COMPLETE": "bash_complete", "COMP_WORDS": "backflow test-", "COMP_CWORD": "1"}
    result = CliRunner().invoke(main, prog_name="backflow", env=environment)
    assert result.output.splitlines() == ["plain,test-alert", "plain,test-rules"]


def locked(*extras: str) -> set[str]:
    printed = subprocess.run([ROOT / "scripts/runtime_lock", *extras], capture_output=True, text=True, check=True)
    assert printed.stdout.count("--hash=sha256:") >= printed.stdout.count("==") > 0
    return {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", printed.stdout, re.MULTILINE)}


def needed(requirements: list[str]) -> set[str]:
    """Return the names of these packages and of all that they need, as their metadata here say."""
    found: set[str] = set()
    todo = [(Requirement(text), "") for text in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found or requirement.extras:
            found.add(name)
            todo += [
                (Requirement(text), inner) for text in requires(name) or () for inner in (requirement.extras or {""})
            ]
    return found


def test_the_runtime_lock_is_what_the_daemon_needs() -> None:
    names = locked()
    assert names == needed(PROJECT["project"]["dependencies"])
    assert not names & {"pytest", "mypy", "ruff", "pyspark", "setuptools"}


def test_an_extra_adds_its_packages_to_the_runtime_lock() -> None:
    project = PROJECT["project"]
    assert locked("spark") == needed(project["dependencies"] + project["optional-dependencies"]["spark"])


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", " ", DOCKERFILE)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_runs_as_an_ordinary_user_in_its_last_stage() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.*)$", last_stage, re.MULTILINE) == ["10001"]
    assert "pip" not in last_stage
    words = {word: json.loads(rest) for word, rest in instructions() if word in ("ENTRYPOINT", "CMD")}
    assert main.commands[words["CMD"][0]].name == "run"
    assert words["ENTRYPOINT"] == ["backflow"]


def test_the_build_copies_only_what_exists_and_is_not_ignored() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = []
    for word, rest in instructions():
        if word == "COPY" and rest.startswith("--from="):
            assert rest.split()[0].removeprefix("--from=") in stages
        elif word == "COPY":
            copied += [source.rstrip("/") for source in rest.split()[:-1]]
    assert sorted(copied) == sorted(allowed)
    for source in copied:
        assert (ROOT / source).exists(), source
    assert {"agent", "spark_checks", "testbed", "package"} <= set(copied), "setuptools installs them"


def test_the_image_has_the_python_of_the_project() -> None:
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"python:3.11-slim-bookworm"}
    assert PROJECT["project"]["requires-python"] == ">=3.11"
