"""Replicas on brokers' disks: how log_segments and replica_divergence read and compare them."""
