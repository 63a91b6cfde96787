"""The source that polls Flink clusters."""
