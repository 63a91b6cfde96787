"""What the agent and a Spark check, in processes of their own, agree upon beside findings and exit status."""

PROGRESS, ENDED = "progress: ", "ended: "
"""How lines begin that say how far a check is, and with which status it has ended in a process that is kept."""

SUMMARY, PLOT = "summary.txt", "plot.png"
"""The files of its report: a summary in plain text, and a picture if there is one."""

TASKS = "Do now:"
"""The line of a summary below which tasks are listed."""
