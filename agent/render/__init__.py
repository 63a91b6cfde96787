"""Incidents as text, without markup."""
