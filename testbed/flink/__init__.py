"""Flink clusters with ZooKeeper high availability on loopback, their jobs, and the Flink incidents."""
