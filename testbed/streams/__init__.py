"""Kafka Streams applications on a broker of the testbed, and the loss of their state (KAFKA-7672)."""
