"""Run Spark checks as processes with limits, on schedule or requested by incidents. The checks live in spark_checks."""
