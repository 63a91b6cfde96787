"""What the checks of brokers' logs share: what lies at the paths given, its entries as rows, how replicas differ."""
