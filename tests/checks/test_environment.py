"""The packed Python environment: what it contains, and that its interpreter runs with it alone."""

import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import Distribution, version
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.utils import canonicalize_name

from agent.checks.environment import PYTHON, REQUIREMENT, VERSION, PackingError, find_distributions, pack
from agent.cli.main import main


def names(distributions: list[Distribution]) -> set[str]:
    return {canonicalize_name(found.name) for found in distributions}


def test_it_has_what_checks_need_but_not_spark() -> None:
    found = names(find_distributions())
    assert found >= {"backflow", "pyarrow", "pandas", "numpy", "msgspec", "matplotlib", "python-dateutil"}
    assert not found & {"pyspark", "py4j", "grpcio", "pytest", "moto", "colorama"}


def test_extras_and_what_they_need_are_followed() -> None:
    assert names(find_distributions("kazoo[sasl]")) == {"kazoo", "pure-sasl"}
    assert names(find_distributions("kazoo")) == {"kazoo"}
    assert names(find_distributions("pandas", frozenset({"numpy", "python-dateutil"}))) >= {"pandas", "pytz"}


def test_a_missing_package_is_named() -> None:
    with pytest.raises(PackingError, match=rf"no-such-package is not installed here: install {REQUIREMENT[:8]}"):
        find_distributions("no-such-package")


def test_what_a_build_leaves_in_a_checkout_does_not_hide_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "msgspec.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: msgspec\nVersion: 0\n")
    (left / "SOURCES.txt").write_text("pyproject.toml\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert version("msgspec") == "0"
    assert [found.version for found in find_distributions("msgspec")] != ["0"]


def test_a_package_without_a_list_of_files_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "foreign.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1\n")
    with pytest.raises(PackingError, match="foreign was not installed by pip"):
        pack(tmp_path / "env.tar.gz", [Distribution.at(folder)])
    assert [path.name for path in tmp_path.iterdir()] == ["foreign.dist-info"]


def test_files_that_are_gone_fail_unless_they_are_compiled_ones(tmp_path: Path) -> None:
    folder = tmp_path / "own.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (folder / "RECORD").write_text("own/__pycache__/a.cpython-311.pyc,,\nown.dist-info/METADATA,,\n../bin/own,,\n")
    pack(tmp_path / "env.tar.gz", [Distribution.at(folder)])
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        assert [Path(name).name for name in archive.getnames()] == ["pyvenv.cfg", "python", "python3", "METADATA"]
    (folder / "RECORD").write_text("own/a.py,,\n")
    with pytest.raises(FileNotFoundError, match=r"own/a\.py"):
        pack(tmp_path / "env.tar.gz", [Distribution.at(folder)])


def test_the_unpacked_interpreter_imports_from_the_archive(tmp_path: Path) -> None:
    pack(tmp_path / "env.tar.gz", find_distributions("backflow", frozenset({"pyarrow", "numpy", "confluent-kafka"})))
    unpacked = tmp_path / "moved" / "env"
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        archive.extractall(unpacked, filter="tar")
    (tmp_path / "env.tar.gz").unlink()
    script = "import sys, agent, msgspec, spark_checks, importlib.metadata as m; print(m.version('backflow'));"
    script += "print(agent.__file__, msgspec.__file__, spark_checks.__file__, sys.prefix, sep='\\n')"
    done = subprocess.run(
        [unpacked / "bin/python", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env={}
    )
    packed, *places = done.stdout.splitlines()
    assert packed == version("backflow")
    assert all(place.startswith(str(unpacked)) for place in places)
    packages = unpacked / f"lib/python{VERSION}/site-packages"
    assert (packages / "spark_checks/jars.sha256").exists()
    assert not (packages / "testbed").exists()
    assert not (packages / "pyarrow").exists()


def test_the_interpreter_is_the_one_of_the_hosts(tmp_path: Path) -> None:
    pack(tmp_path / "env.tar.gz", [], Path("/opt/python/bin/python3.11"))
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        assert archive.getmember("bin/python").linkname == "/opt/python/bin/python3.11"
        settings = archive.extractfile("pyvenv.cfg")
        assert settings is not None
        assert b"home = /opt/python/bin\n" in settings.read()
    assert shutil.which(PYTHON) is not None
    assert Path(sys.base_prefix) in PYTHON.parents


def test_the_command_says_why_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["spark-package", "--out", str(tmp_path / "file" / "spark")])
    assert result.exit_code == 3
    assert result.stderr.startswith(f"the files in {tmp_path}/file/spark are not complete: [Errno 20] Not a directory")
