"""The jars of the systems under test, resolved or compiled once into a cache.

Maven coordinates are pinned and resolved by the Ivy in PySpark's jars; what Maven does not have comes from pip; our own
Java is compiled at first use. The cache is $XDG_CACHE_HOME (or ~/.cache)/backflow/<name>-<version>. Nothing is started
here.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
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
# The file in each cache folder that records what the folder was filled from.
_ORIGIN = "coordinates"
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default"/>'


class Distribution(NamedTuple):
    """A system under test and the jars that it needs.

    coordinates: Maven's group:artifact:version. package: a source package on PyPI (name==version) whose folder deps/lib
    holds jars, which is how Flink publishes its distribution.
    """

    name: str
    version: str
    coordinates: tuple[str, ...]
    package: str | None = None


KAFKA: Mapping[str, Distribution] = {
    distribution.version: distribution
    for distribution in (
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
        # The last minor version with ZooKeeper; brings ZooKeeper 3.8.4.
        Distribution(
            "kafka",
            "3.9.1",
            (
                "org.apache.kafka:kafka_2.13:3.9.1",
                "ch.qos.reload4j:reload4j:1.2.25",
                "org.slf4j:slf4j-reload4j:1.7.36",
            ),
        ),
        # Streams groups (KIP-1071) and share groups (KIP-932) are no longer previews.
        Distribution(
            "kafka",
            "4.3.1",
            (
                "org.apache.kafka:kafka_2.13:4.3.1",
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

KAFKA_TOOLS = Distribution(
    "kafka-tools",
    "3.9.1",
    (
        "org.apache.kafka:kafka-tools:3.9.1",
        "ch.qos.reload4j:reload4j:1.2.25",
        "org.slf4j:slf4j-reload4j:1.7.36",
    ),
)
"""The command line tools that operators use; kafka-transactions.sh is org.apache.kafka.tools.TransactionsCommand."""

HADOOP = Distribution(
    "hadoop",
    "3.4.1",
    (
        "org.apache.hadoop:hadoop-client-minicluster:3.4.1",
        "org.bouncycastle:bcpkix-jdk18on:1.78.1",  # the next two are needed, and left out of the one before
        "org.glassfish.jaxb:jaxb-runtime:2.3.1",
        "ch.qos.reload4j:reload4j:1.2.25",
        "org.slf4j:slf4j-reload4j:1.7.36",
    ),
)
"""Hadoop of the version that PySpark's jars have; the servers of YARN are in the jar for Hadoop's own tests."""


class ArtifactError(Exception):
    """Java or jars are missing; the message says what to do."""


@cache
def java() -> str:
    """Return the path of Java 17 or newer. Raises ArtifactError if there is none."""
    path = shutil.which("java")
    if path is None:
        msg = "Java 17 or newer is needed to run Kafka and is not on the PATH (Debian: openjdk-17-jre-headless)."
        raise ArtifactError(msg)
    output = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < 17:
        msg = f"Java 17 or newer is needed to run Kafka, but {path} reports: {output.partition(chr(10))[0]}."
        raise ArtifactError(msg)
    return path


def java_home() -> Path:
    """Return the folder of the Java that `java` returns. Raises ArtifactError."""
    return Path(java()).resolve().parents[1]


def jars(distribution: Distribution) -> Path:
    """Return the folder of the distribution's jars, resolved now if not cached. Raises ArtifactError."""

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
    """Return the cache folder of this name, filled now unless it was filled from the same origin before.

    Safe to call from several processes at once: one of them fills the folder while the others wait.
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
    """Return the distribution's jars as a value for Java's -cp."""
    return f"{jars(distribution)}/*"


def jar(*folders: Path, name: str, libraries: Path | None = None, release: int = 8) -> Path:
    """Return the jar of the classes compiled from the sources in `folders`.

    name: its name in the cache. libraries: a folder of jars to compile against. release: the Java release of the class
    files. Raises ArtifactError if the Java on the PATH has no compiler, or if the compiler rejects the sources.
    """
    sources = sorted(source for folder in folders for source in folder.glob("*.java"))
    library_jars = sorted(map(str, libraries.glob("*.jar"))) if libraries else []
    origin = "\n".join((str(release), *library_jars, *(source.read_text() for source in sources)))
    digest = hashlib.sha256(origin.encode()).hexdigest()[:12]

    def build(folder: Path) -> None:
        classes = folder / "classes"
        _compile(sources, library_jars, release, classes)
        with zipfile.ZipFile(folder / "classes.jar", "w") as packed:
            for file in sorted(classes.rglob("*.class")):
                packed.write(file, file.relative_to(classes))

    return cached(f"java-{name}-{digest}", origin, build) / "classes.jar"


def _resolve(distribution: Distribution, folder: Path, scratch: Path) -> None:
    (scratch / "settings.xml").write_text(_SETTINGS)
    dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in distribution.coordinates)
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
        problems = "\n".join(
            line for line in done.stdout.splitlines() if "::" in line or "ERROR" in line or "WARN" in line
        )
        system = f"{distribution.name} {distribution.version}"
        msg = f"The jars of {system} could not be resolved. Check the network. Ivy printed:\n{problems}"
        raise ArtifactError(msg)


def _unpack(package: str, folder: Path, scratch: Path) -> None:
    """Extract the jars of a source package. pip builds nothing, but runs setup.py for the metadata."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(scratch), package]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        msg = f"The package {package} could not be downloaded. Check the network. pip printed:\n{done.stdout}"
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
    """Return the path of Ivy's jar in PySpark, which is located, not imported: an import would take a second."""
    spec = find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for jar in Path(place, "jars").glob("ivy-*.jar"):
            return jar
    msg = "PySpark, whose Ivy resolves Kafka's jars, is not installed; run `make setup`."
    raise ArtifactError(msg)


def _compile(sources: Sequence[Path], libraries: Sequence[str], release: int, classes: Path) -> None:
    # Run as a module of the Java on the PATH, so that javac need not be there. -proc:none: some jars hold annotation
    # processors.
    command = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-Xlint:-options", "-proc:none"]
    command += ["--release", str(release), "-cp", ":".join(libraries), "-d", str(classes), *map(str, sources)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        msg = f"The Java in {sources[0].parent} could not be compiled (a JDK is needed, 17 or newer):\n{done.stdout}"
        raise ArtifactError(msg)


def main() -> int:
    """Resolve all Kafka jars now, so that tests and the demo need no network later."""
    print(f"Jars of {', '.join(f'{kafka.name} {kafka.version}' for kafka in KAFKA.values())} ...")  # noqa: T201  # progress
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
