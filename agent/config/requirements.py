"""What Spark checks need on this host beyond the configuration: PySpark, and the JDK that Spark would start."""

import os
import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from agent.config.child_processes import JAVA, child_environment

OWN_PACKAGES = ("agent", "spark_checks")
"""Backflow's own packages that Spark's Python workers import."""


def own_files() -> Iterator[tuple[Path, Path]]:
    """Yield each file of our own packages except compiled ones, and its path below the folder of the packages."""
    for package in OWN_PACKAGES:
        spec = find_spec(package)
        for home in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
            for path in sorted(home.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    yield path, path.relative_to(home.parent)


JAVA_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

_MODULE = "jdk.incubator.vector"
"""Spark 4 starts with this module, which a Java runtime without development tools may lack."""

_BASE = re.compile(r"^java\.base@(\d+)", re.MULTILINE)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
"""Java 8 calls itself 1.8."""
_START_S = 30


def find_pyspark_problem() -> str:
    """Return what to do about missing PySpark, as a sentence without its period; empty if it is installed."""
    return "" if find_spec("pyspark") else "Spark checks need PySpark: install backflow[spark]"


def find_spark_problem(*, remote: str | None) -> str:
    """Return why Spark checks cannot run here and what to do, as a sentence without its period; empty if they can.

    remote: the Spark Connect server on which they run, in place of a master; then no Java is needed here.
    """
    problem = find_pyspark_problem()
    if problem or remote is not None:
        return problem
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    where = f"in JAVA_HOME, {home}" if home else "on the PATH"
    advice = f"install a JDK, {JAVA_VERSION} or newer, or set JAVA_HOME"
    try:
        modules = _output_of(java, "--list-modules")
        # Java 8 has no modules, and one start is half the wait of two.
        version = _BASE.search(modules) or _VERSION.search(_output_of(java, "-version"))
        if version is None or int(version[1]) < JAVA_VERSION:
            found = f"Java {version[1]}" if version else "no working Java"
            return f"Spark checks need Java {JAVA_VERSION}, but {found} is {where}: {advice}"
        if _MODULE not in modules:
            return f"Spark checks need a whole JDK, but the Java {where} lacks the module {_MODULE}: {advice}"
    except (OSError, subprocess.TimeoutExpired):
        return f"Spark checks need Java, but none is {where}: {advice}"
    return ""


def _output_of(java: str, option: str) -> str:
    """Return what Java prints for the option, on either stream. Raises OSError, TimeoutExpired."""
    completed = subprocess.run(
        [java, option],
        env=child_environment(JAVA),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_START_S,
        check=False,
        text=True,
        errors="replace",
    )
    return completed.stdout
