"""The jars of the systems under test: pinned Maven coordinates, resolved once by the Ivy in PySpark's jars; what is not
in Maven comes by pip.

They are kept outside the tree, in $XDG_CACHE_HOME (or ~/.cache)/backflow/<name>-<version>. Nothing is started here.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
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
# In each folder of the cache: what it was filled from.
_ORIGIN = "coordinates"
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default"/>'


class Distribution(NamedTuple):
    """A system under test and what makes it run: Maven coordinates (group:artifact:version), and a source package of
    PyPI (name==version) whose folder deps/lib is full of jars, which is how Flink publishes its distribution.
    """

    name: str
    version: str
    coordinates: tuple[str, ...]
    package: str | None = None


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

    Raises ArtifactError.
    """

    def resolve(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            if distribution.coordinates:
                _resolve(distribution, folder, Path(scratch))
            if distribution.package:
                _unpack(distribution.package, folder, Path(scratch))

    package = (distribution.package,) if distribution.package else ()
    name = f"{distribution.name}-{distribution.version}"
    return cached(name, "\n".join((*distribution.coordinates, *package)), resolve)


def cached(name: str, origin: str, fill: Callable[[Path], None]) -> Path:
    """The folder of this name in the cache; filled now unless it was filled from the same origin before.

    Safe to call from several processes at once: one fills, the others wait.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backflow"
    home.mkdir(parents=True, exist_ok=True)
    folder = home / name
    with (home / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _ORIGIN).exists() or (folder / _ORIGIN).read_text() != origin:
            with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=home) as scratch:
                fresh = Path(scratch) / "fresh"
                fresh.mkdir()
                fill(fresh)
                (fresh / _ORIGIN).write_text(origin)
                shutil.rmtree(folder, ignore_errors=True)
                fresh.rename(folder)
    return folder


def class_path(distribution: Distribution) -> str:
    """The distribution's jars as Java's -cp takes them."""
    return f"{jars(distribution)}/*"


def _resolve(distribution: Distribution, folder: Path, scratch: Path) -> None:
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
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0 or not any(folder.iterdir()):
        told = "\n".join(line for line in done.stdout.splitlines() if "::" in line or "ERROR" in line or "WARN" in line)
        system = f"{distribution.name} {distribution.version}"
        msg = f"The jars of {system} could not be resolved; is the network there? Ivy says:\n{told}"
        raise ArtifactError(msg)


def _unpack(package: str, folder: Path, scratch: Path) -> None:
    """Take the jars out of a source package; pip builds nothing of it, but asks its setup.py for its metadata."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(scratch), package]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        msg = f"The package {package} could not be downloaded; is the network there? pip says:\n{done.stdout}"
        raise ArtifactError(msg)
    (archive,) = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        for member in packed:
            path = Path(member.name)
            content = packed.extractfile(member)
            if path.match("*/deps/lib/*.jar") and content is not None:
                with (folder / path.name).open("wb") as jar:
                    shutil.copyfileobj(content, jar)


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
