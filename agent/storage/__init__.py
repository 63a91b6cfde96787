"""The state file and the journal."""
