"""The versions of Kafka Streams that the testbed runs, and the class path of its application in each of them."""

from collections.abc import Mapping
from pathlib import Path

from testbed.artifacts import Distribution, jars
from testbed.java_sources import jar

_SOURCES = Path(__file__).parent / "java"
_LOG4J = "org.slf4j:slf4j-log4j12:1.7.25"
_RELOAD4J = ("ch.qos.reload4j:reload4j:1.2.25", "org.slf4j:slf4j-reload4j:1.7.36")

STREAMS: Mapping[str, Distribution] = {
    one.version: one
    for one in (
        # The last version with KAFKA-7672, and the first without.
        Distribution("kafka-streams", "2.1.0", ("org.apache.kafka:kafka-streams:2.1.0", _LOG4J)),
        Distribution("kafka-streams", "2.2.0", ("org.apache.kafka:kafka-streams:2.2.0", _LOG4J)),
        # Cooperative rebalances, exactly_once_v2, restore lines that count records.
        Distribution("kafka-streams", "3.9.1", ("org.apache.kafka:kafka-streams:3.9.1", *_RELOAD4J)),
    )
}

TOOLS = Distribution("kafka-tools", "3.9.1", ("org.apache.kafka:kafka-tools:3.9.1", *_RELOAD4J))
"""Kafka's command line, for all versions."""

EXPORTERS: Mapping[str, Distribution] = {
    version: Distribution("jmx-exporter", version, (f"io.prometheus.jmx:jmx_prometheus_javaagent:{version}",))
    for version in ("0.20.0", "1.0.1")  # the last of 0.x, and one of 1.x, which names metrics otherwise
}
"""The Prometheus JMX exporter as a Java agent, by version."""


def exporter_jar(version: str) -> Path:
    """The agent's jar. Raises ArtifactError."""
    return next(jars(EXPORTERS[version]).glob("*.jar"))


def application_class_path(version: str) -> str:
    """The application's classes, compiled now if they have not been before, and the jars of Kafka Streams.

    Raises ArtifactError.
    """
    libraries = jars(STREAMS[version])
    return f"{jar(_SOURCES, name=f'streams-{version}', libraries=libraries, release=17)}:{libraries}/*"
