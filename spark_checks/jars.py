"""The jars of Spark's Kafka connector: fetched once by the Ivy in PySpark, and verified each time before Spark starts.

Their checksums are in jars.sha256, which `sha256sum --check` reads in the folder of the jars.
"""

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

import pyspark

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""It is internal to Spark and must be of Spark's minor version."""

PACKAGES = "spark.jars.packages"
_HOME = ".ivy2.5.2"
"""Spark 4.0's own folder for jars, in the home directory (MavenUtils.scala); `spark.jars.ivy` names another."""

_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default" transitive="false"/>'
_IVY_FILE = """\
<ivy-module version="2.0">
  <info organisation="backflow" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{}</dependencies>
</ivy-module>
"""
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="all"/>
  <resolvers><chain name="all">{}</chain></resolvers>
</ivysettings>
"""


class JarsError(Exception):
    """A jar cannot be fetched, or is not the one that it should be."""


class Jar(NamedTuple):
    """A jar and its SHA-256, in hexadecimal digits. file: its name as Spark's Ivy writes it."""

    file: str
    sha256: str

    @property
    def coordinates(self) -> tuple[str, str, str]:
        """Maven's group, artifact and version."""
        group, _, rest = self.file.removesuffix(".jar").partition("_")
        artifact, _, version = rest.rpartition("-")
        return group, artifact, version


def packages(conf: Mapping[str, str]) -> list[str]:
    """Return the Maven coordinates in Spark's settings."""
    return [package for package in conf.get(PACKAGES, "").split(",") if package]


def with_verified_jars(conf: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings with the connector's verified jars in place of its coordinates. Raises JarsError."""
    if CONNECTOR not in packages(conf):
        return dict(conf)
    paths = [path.as_uri() for path in verified_jars(conf)]
    others = ",".join(package for package in packages(conf) if package != CONNECTOR)
    given = [conf["spark.jars"]] if conf.get("spark.jars") else []
    changed = {name: value for name, value in conf.items() if name != PACKAGES}
    return changed | {"spark.jars": ",".join([*paths, *given])} | ({PACKAGES: others} if others else {})


def verified_jars(conf: Mapping[str, str]) -> list[Path]:
    """Return the connector's jars, fetched now if they are missing. conf: Spark's settings. Raises JarsError."""
    home = Path(conf.get("spark.jars.ivy") or Path.home() / _HOME).absolute()
    folder, jars = home / "jars", list(_known_jars())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (home / "backflow.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if missing := [jar for jar in jars if not (folder / jar.file).exists()]:
                with tempfile.TemporaryDirectory(prefix=".backflow-", dir=home) as scratch:
                    _fetch(missing, Path(scratch), home / "cache", conf)
                    for jar in missing:
                        _verify(Path(scratch, jar.file), jar)
                        Path(scratch, jar.file).rename(folder / jar.file)
    except OSError as error:
        msg = f"The folder of Spark's Kafka connector cannot be written: {error.filename}: {error.strerror}"
        raise JarsError(msg) from error
    for jar in jars:
        _verify(folder / jar.file, jar)
    return [folder / jar.file for jar in jars]


def _known_jars() -> Iterator[Jar]:
    for line in files("spark_checks").joinpath("jars.sha256").read_text(encoding="ascii").splitlines():
        digest, _, file = line.partition("  ")
        yield Jar(file, digest)


def _verify(path: Path, jar: Jar) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != jar.sha256:
        msg = (
            f"{path} is not the jar that was published: its SHA-256 is {digest}, not {jar.sha256}. It was not used. "
            "Find out who changed it, or the repository that it came from; delete it, and it will be fetched again"
        )
        raise JarsError(msg)


def _fetch(jars: list[Jar], target: Path, cache: Path, conf: Mapping[str, str]) -> None:
    """Fetch the jars into the folder `target`, from the repositories that Spark would ask."""
    settings, module = target / "settings.xml", target / "ivy.xml"
    settings.write_text(_SETTINGS.format("".join(_resolvers(conf))), encoding="utf-8")
    module.write_text(_IVY_FILE.format("".join(_DEPENDENCY.format(*jar.coordinates) for jar in jars)), encoding="utf-8")
    java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
    command = [java, "-jar", str(_ivy()), "-settings", conf.get("spark.jars.ivySettings") or str(settings)]
    command += ["-cache", str(cache), "-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{target}/[organization]_[artifact]-[revision].[ext]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # noqa: S603 - Java
    missing = [jar for jar in jars if not (target / jar.file).exists()]
    if missing:
        names = ", ".join(":".join(jar.coordinates) for jar in missing)
        lines = done.stdout.decode(errors="replace").splitlines()
        reasons = [line.strip() for line in lines if "Host " in line or "ERROR" in line.upper()][:1]
        msg = (
            f"{names} could not be fetched from Maven Central or the repositories in spark.jars.repositories, which is "
            f"needed once{': ' if reasons else ''}{''.join(reasons)}. Without a network, put the jars into "
            f"{cache.parent}/jars"
        )
        raise JarsError(msg)


def _resolvers(conf: Mapping[str, str]) -> Iterator[str]:
    """Yield Ivy's resolvers; its own default in Maven's layout is Maven Central."""
    first = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY", "")
    for number, root in enumerate([first, *conf.get("spark.jars.repositories", "").split(",")]):
        if root or not number:
            place = f" root={quoteattr(root)}" if root else ""
            yield f'<ibiblio name="{number}" m2compatible="true"{place}/>'


def _ivy() -> Path:
    return next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
