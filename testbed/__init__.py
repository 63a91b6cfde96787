"""Real ZooKeeper and Kafka on loopback, with faults as verbs, and a strict Slack stand-in. The agent never uses it."""
