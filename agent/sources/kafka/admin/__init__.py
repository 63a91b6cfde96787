"""The process that asks brokers, and what the Kafka source asks it."""
