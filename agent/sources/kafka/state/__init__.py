"""What brokers' responses show of a cluster. Makes no calls."""
