"""The agent's journal as Spark reads and maintains it."""
