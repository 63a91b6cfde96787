"""rules.toml as typed settings."""
