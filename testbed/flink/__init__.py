"""Real Flink clusters with ZooKeeper high availability on loopback, their jobs, and what has happened to such jobs."""
