"""Log files of brokers, ZooKeeper, Flink and clients, followed line by line."""
