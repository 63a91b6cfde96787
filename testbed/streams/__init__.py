"""Kafka Streams applications on loopback, and how they lose their state (KAFKA-7672)."""
