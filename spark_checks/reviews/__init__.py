"""The weekly review: what it measures in the journal and the state file, its page, its picture and its summary."""
