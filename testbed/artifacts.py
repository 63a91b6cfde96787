"""The jars of the systems under test: pinned Maven coordinates, resolved once by the Ivy in PySpark's jars.

They are kept outside the tree, in $XDG_CACHE_HOME (or ~/.cache)/backflow/<name>-<version>. Nothing is started here.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Ivy's own default for "ibiblio" in Maven layout is the public repository. Nothing else: neither ~/.m2 nor ~/.ivy2,
# where other tools leave POMs without their jars.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true"/></resolvers>
</ivysettings>
"""
_IVY_FILE = """\
<ivy-module version="2.0">
  <info organisation="backflow" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default"/>'


class Distribution(NamedTuple):
    """A system under test and the Maven coordinates (group:artifact:version) that make it run."""

    name: str
    version: str
    coordinates: tuple[str, ...]


KAFKA: Mapping[str, Distribution] = {
    one.version: one
    for one in (
        # The version of the flink-reset report; brings ZooKeeper 3.4.10. It needs jaxb-api since JDK 9 left it out.
        Distribution(
            "kafka",
            "0.11.0.0",
            (
                "org.apache.kafka:kafka_2.12:0.11.0.0",
                "org.slf4j:slf4j-log4j12:1.7.25",
                "javax.xml.bind:jaxb-api:2.3.1",
            ),
        ),
        # The last line with ZooKeeper; brings ZooKeeper 3.8.4.
        Distribution(
            "kafka",
            "3.9.1",
            (
                "org.apache.kafka:kafka_2.13:3.9.1",
                "ch.qos.reload4j:reload4j:1.2.25",
                "org.slf4j:slf4j-reload4j:1.7.36",
            ),
        ),
        # KRaft only.
        Distribution(
            "kafka",
            "4.1.1",
            (
                "org.apache.kafka:kafka_2.13:4.1.1",
                "ch.qos.reload4j:reload4j:1.2.25",
                "org.slf4j:slf4j-reload4j:1.7.36",
            ),
        ),
    )
}


class ArtifactError(Exception):
    """Java or the jars cannot be had; the message says what to do."""


@cache
def java() -> str:
    """The path of a Java of version 17 or newer. Raises ArtifactError where there is none."""
    path = shutil.which("java")
    if path is None:
        msg = "Java 17 or newer is needed to run Kafka and is not on the PATH (Debian: openjdk-17-jre-headless)."
        raise ArtifactError(msg)
    told = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < 17:
        msg = f"Java 17 or newer is needed to run Kafka, but {path} says: {told.partition(chr(10))[0]}."
        raise ArtifactError(msg)
    return path


def jars(distribution: Distribution) -> Path:
    """The folder with the distribution's jars, resolved now if this machine has not resolved them before.

    Safe to call from several processes at once: one resolves, the others wait. Raises ArtifactError.
    """
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"{distribution.name}-{distribution.version}"
    pinned = "\n".join(distribution.coordinates)
    with (home / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _resolved(folder) != pinned:
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=home) as scratch:
                _resolve(distribution, Path(scratch))
                fresh = Path(scratch) / "jars"
                (fresh / "coordinates").write_text(pinned)
                shutil.rmtree(folder, ignore_errors=True)
                fresh.rename(folder)
    return folder


def class_path(distribution: Distribution) -> str:
    """The distribution's jars as Java's -cp takes them."""
    return f"{jars(distribution)}/*"


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backflow"


def _resolved(folder: Path) -> str | None:
    """The coordinates that the folder was resolved for."""
    pinned = folder / "coordinates"
    return pinned.read_text() if pinned.exists() else None


def _resolve(distribution: Distribution, scratch: Path) -> None:
    (scratch / "settings.xml").write_text(_SETTINGS)
    dependencies = "".join(_DEPENDENCY.format(*one.split(":")) for one in distribution.coordinates)
    (scratch / "ivy.xml").write_text(_IVY_FILE.format(name=distribution.name, dependencies=dependencies))
    command = [
        java(),
        "-jar",
        str(_ivy()),
        "-settings",
        str(scratch / "settings.xml"),
        "-cache",
        str(scratch / "cache"),
    ]
    command += [
        "-ivy",
        str(scratch / "ivy.xml"),
        "-confs",
        "default",
        "-types",
        "jar",
        "bundle",
    ]  # log4j 1.2 is a bundle
    command += ["-retrieve", f"{scratch}/jars/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0 or not (scratch / "jars").is_dir():
        told = "\n".join(line for line in done.stdout.splitlines() if "::" in line or "ERROR" in line or "WARN" in line)
        system = f"{distribution.name} {distribution.version}"
        msg = f"The jars of {system} could not be resolved; is the network there? Ivy says:\n{told}"
        raise ArtifactError(msg)


def _ivy() -> Path:
    """Ivy's jar among PySpark's. PySpark is only located: importing it would cost a second."""
    spec = find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for jar in Path(place, "jars").glob("ivy-*.jar"):
            return jar
    msg = "PySpark, whose jars hold the Ivy that resolves Kafka's, is not installed here; run `make setup`."
    raise ArtifactError(msg)


def main() -> int:
    """Resolve everything now, so that tests and the demo need no network later."""
    print(f"Jars of {', '.join(f'{one.name} {one.version}' for one in KAFKA.values())} ...")  # noqa: T201  # progress
    try:
        with ThreadPoolExecutor() as pool:
            for folder in pool.map(jars, KAFKA.values()):
                print(f"  {folder}")  # noqa: T201
    except ArtifactError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
