"""Flink jobs, their checkpoints and job graphs: how job_history searches, explains and reports them."""
