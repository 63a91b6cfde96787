"""What Spark checks need on this host: PySpark and a JDK that Spark can start."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config.requirements import find_spark_problem

ROOT = Path(__file__).parents[2]


def install(home: Path, version: str, *modules: str) -> None:
    """Make a Java that prints this version, on standard error as Java does, and these modules."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    lines = "\n".join(modules)
    java.write_text(
        f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2026-10-20' >&2; else echo '{lines}'; fi
"""
    )
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return tmp_path / "jdk"


@pytest.mark.parametrize("version", ["17", "17.0.19", "25-ea"])
def test_a_whole_jdk_is_enough(home: Path, version: str) -> None:
    install(home, version, "java.base@17", "jdk.incubator.vector@17")
    assert find_spark_problem(remote=None) == ""


@pytest.mark.parametrize(("version", "found"), [("1.8.0_412", "Java 8"), ("11.0.2", "Java 11")])
def test_an_old_java_is_named(home: Path, version: str, found: str) -> None:
    install(home, version, "java.base")
    assert find_spark_problem(remote=None) == (
        f"Spark checks need Java 17, but {found} is in JAVA_HOME, {home}: install a JDK, 17 or newer, or set JAVA_HOME"
    )


def test_a_runtime_without_development_tools_is_too_little(home: Path) -> None:
    install(home, "21.0.1", "java.base@21", "java.sql@21")
    assert "lacks the module jdk.incubator.vector" in find_spark_problem(remote=None)


def test_a_missing_java_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spark_problem(remote=None).startswith(f"Spark checks need Java, but none is in JAVA_HOME, {home}: ")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home))
    assert find_spark_problem(remote=None).startswith("Spark checks need Java, but none is on the PATH: ")
    assert find_spark_problem(remote="sc://spark-1:15002") == ""


def test_missing_pyspark_names_its_extra() -> None:
    """Without site-packages, as in an environment into which only backflow was installed."""
    program = "from agent.config.requirements import find_spark_problem; print(find_spark_problem(remote='sc://a:1'))"
    printed = subprocess.check_output([sys.executable, "-S", "-c", program], cwd=ROOT, text=True)
    assert printed == "Spark checks need PySpark: install backflow[spark]\n"
