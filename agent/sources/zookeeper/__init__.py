"""The source that watches Kafka's znodes in ZooKeeper."""
