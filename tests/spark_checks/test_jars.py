"""The jars of Spark's Kafka connector: only those with the known checksums are used."""

import hashlib
from pathlib import Path

import pytest

from spark_checks import jars
from spark_checks.jars import CONNECTOR, Jar, JarsError, verified_jars, with_verified_jars

CONTENT = b"a jar"
JAR = Jar("org.example_some-jar_2.13-4.0.0.jar", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings with a folder and a repository of their own, in which one jar is known."""
    monkeypatch.setattr(jars, "_known_jars", lambda: iter([JAR]))
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">'
        f'<artifact pattern="{tmp_path}/repository/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    (tmp_path / "repository").mkdir()
    return {"spark.jars.ivy": str(tmp_path / "ivy"), "spark.jars.ivySettings": str(settings)}


def test_checksum_file_names_the_connector_and_what_it_needs() -> None:
    known = {":".join(jar.coordinates): jar.sha256 for jar in jars._known_jars()}
    assert CONNECTOR in known
    assert {name.split(":")[1] for name in known} == {
        *("commons-pool2", "kafka-clients", "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"),
    }
    assert all(len(bytes.fromhex(digest)) == 32 for digest in known.values())


def test_jar_in_the_folder_is_used_without_a_repository(conf: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "ivy" / "jars" / JAR.file
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    found = with_verified_jars(conf | {"spark.jars.packages": f"a:b:1,{CONNECTOR}", "spark.jars": "own.jar"})
    assert found == conf | {"spark.jars.packages": "a:b:1", "spark.jars": f"{path.as_uri()},own.jar"}


def test_changed_jar_in_the_folder_is_refused(conf: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "ivy" / "jars" / JAR.file
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(JarsError, match="is not the jar that was published") as refused:
        verified_jars(conf)
    assert str(path) in str(refused.value)
    assert hashlib.sha256(CONTENT + b"!").hexdigest() in str(refused.value)
    assert JAR.sha256 in str(refused.value)


def test_missing_jar_is_fetched_and_verified(conf: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "repository" / "some-jar_2.13.jar").write_bytes(CONTENT)
    assert [path.read_bytes() for path in verified_jars(conf)] == [CONTENT]


def test_wrong_jar_of_a_repository_never_reaches_the_folder(conf: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "repository" / "some-jar_2.13.jar").write_bytes(b"another jar")
    with pytest.raises(JarsError, match="is not the jar that was published"):
        verified_jars(conf)
    assert list((tmp_path / "ivy" / "jars").iterdir()) == []


def test_jar_that_no_repository_has_is_named(conf: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(JarsError, match=r"^org.example:some-jar_2.13:4.0.0 could not be fetched") as refused:
        verified_jars(conf)
    assert str(refused.value).endswith(f"put the jars into {tmp_path}/ivy/jars")


def test_settings_without_the_connector_are_left_alone() -> None:
    assert with_verified_jars({"spark.jars.packages": "a:b:1"}) == {"spark.jars.packages": "a:b:1"}
