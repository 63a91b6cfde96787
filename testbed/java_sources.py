"""Java that runs on the systems under test, compiled at first use into the cache."""

import hashlib
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from testbed.artifacts import ArtifactError, cached, java


def jar(*folders: Path, name: str, libraries: Path | None = None, release: int = 8) -> Path:
    """The jar of the classes in some folders. name: how it is called in the cache.

    libraries: a folder of jars that they are compiled against. release: the Java whose class files are wanted. Raises
    ArtifactError where the Java on the PATH has no compiler, or the compiler does not like the sources.
    """
    sources = sorted(one for folder in folders for one in folder.glob("*.java"))
    jars = sorted(map(str, libraries.glob("*.jar"))) if libraries else []
    origin = "\n".join((str(release), *jars, *(one.read_text() for one in sources)))
    digest = hashlib.sha256(origin.encode()).hexdigest()[:12]

    def build(folder: Path) -> None:
        classes = folder / "classes"
        _compile(sources, jars, release, classes)
        with zipfile.ZipFile(folder / "classes.jar", "w") as packed:
            for one in sorted(classes.rglob("*.class")):
                packed.write(one, one.relative_to(classes))

    return cached(f"java-{name}-{digest}", origin, build) / "classes.jar"


def _compile(sources: Sequence[Path], jars: Sequence[str], release: int, classes: Path) -> None:
    # As a module of the very Java that runs it all: javac itself need not be on the PATH. -proc:none: some of the jars
    # hold annotation processors.
    command = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-Xlint:-options", "-proc:none"]
    command += ["--release", str(release), "-cp", ":".join(jars), "-d", str(classes), *map(str, sources)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        where = sources[0].parent
        msg = f"The Java in {where} could not be compiled (a JDK is needed, 17 or newer):\n{done.stdout}"
        raise ArtifactError(msg)
