"""Facts, findings and the value types of options: plain data, no I/O."""
