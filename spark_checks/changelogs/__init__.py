"""Changelogs of Kafka Streams stores: how changelog_restore reads, compares, explains and reports them."""
