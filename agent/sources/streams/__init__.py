"""Sources of Kafka Streams applications: changelogs, restore metrics, and what their consumer groups show."""
