"""What `changelog_restore` is made of: reading changelogs, finding falls in them, and the rebalances before these."""
