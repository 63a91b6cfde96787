"""Backflow's daemon: sources in, rules and correlation in the middle, notifiers out."""
