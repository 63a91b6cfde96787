"""Facts in, incidents out: pure."""
