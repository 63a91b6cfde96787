"""The command `backflow`."""
