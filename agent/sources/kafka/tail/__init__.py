"""Reads every commit from `__consumer_offsets`, instead of polling each group's last one."""
