"""The Python environment of Spark's drivers and executors as an archive: Backflow and what it needs, as installed here.

It is a virtual environment without an interpreter: `bin/python` is a link to the one that each host must have.
"""

import sys
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution
from io import BytesIO
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agent.config.requirements import own_files

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Python's version of the environment: packages with native code run on no other."""

PYTHON = Path(sys.base_prefix, "bin", f"python{VERSION}")
"""The interpreter that Backflow's own environment was made from."""

REQUIREMENT = "backflow[spark]"
SPARKS_OWN = frozenset({"pyspark"})
"""What Spark adds to Python's path on each host, in its own version."""

_OWN = "backflow"
_COMPRESSION = 6


class PackingError(Exception):
    """The environment cannot be packed as it is installed here."""


def find_distributions(requirement: str = REQUIREMENT, without: frozenset[str] = SPARKS_OWN) -> list[Distribution]:
    """Return the installed distributions that a requirement needs, itself included, in order of their names.

    without: left out, with what only they need. Raises PackingError if one is missing.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    pending = [Requirement(requirement)]
    while pending:
        wanted = pending.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if name in without or (name, extra) in seen:
                continue
            seen.add((name, extra))
            found[name] = found.get(name) or _distribution(name)
            requirements = (Requirement(text) for text in found[name].requires or ())
            pending += [part for part in requirements if _applies(part, extra)]
    return [found[name] for name in sorted(found)]


def pack(target: Path, distributions: Sequence[Distribution], python: Path = PYTHON) -> None:
    """Write a .tar.gz of an environment with these distributions. python: the interpreter's path on the hosts.

    Raises PackingError if one was not installed by pip, OSError.
    """
    folder = Path("lib", f"python{VERSION}", "site-packages")
    partial = target.with_name(f".{target.name}.tmp")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=_COMPRESSION) as archive:
            settings = f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {VERSION}\n"
            _add_text(archive, "pyvenv.cfg", settings)
            _add_link(archive, "bin/python", str(python))
            _add_link(archive, "bin/python3", "python")
            for packed in distributions:
                for source, place in sorted(_files(packed)):
                    archive.add(source, str(folder / place), recursive=False, filter=_anonymous)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _distribution(name: str) -> Distribution:
    found = list(Distribution.discover(name=name))
    if not found:
        msg = f"{name} is not installed here: install {REQUIREMENT} with all that it needs"
        raise PackingError(msg)
    # A build leaves an .egg-info in the checkout; Python finds that first where it runs.
    return next((installed for installed in found if installed.read_text("RECORD") is not None), found[0])


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _files(packed: Distribution) -> Iterator[tuple[Path, Path]]:
    """Yield each file of a distribution, and its path below site-packages; commands and data files are left out."""
    if packed.files is None:
        msg = f"{packed.name} was not installed by pip, so that its files are unknown: install it into an environment"
        raise PackingError(msg)
    is_own = canonicalize_name(packed.name) == _OWN
    for file in packed.files:
        top, source = file.parts[0], Path(str(packed.locate_file(file)))
        is_cleaned = source.suffix == ".pyc" and not source.exists()  # images often go without compiled files
        if top not in ("..", "/") and not is_cleaned and not (is_own and not top.endswith(".dist-info")):
            yield source, Path(*file.parts)
    if is_own:  # an editable installation lists none of its packages' files
        yield from own_files()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the file as root's: on the hosts, no user has to have the same number as here."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(_anonymous(member), BytesIO(content))


def _add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    archive.addfile(_anonymous(member))
