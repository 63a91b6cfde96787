"""Real Kafka, ZooKeeper, Flink, Kafka Streams and Spark on loopback, with faults, and a strict Slack stand-in."""
