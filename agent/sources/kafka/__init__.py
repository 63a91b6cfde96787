"""The Kafka source and its admin client, which runs in a child process."""
