"""Command `python -m spark_checks NAME`: runs a check, prints its findings, returns an exit status."""

import sys
from collections.abc import Sequence

from spark_checks.command import configure_log, own_session, run_command


def main(arguments: Sequence[str], *, submitted: bool = False) -> int:
    """Run the command and return its exit status. submitted: whether spark-submit started this process."""
    configure_log()
    return run_command(arguments, own_session, submitted=submitted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
