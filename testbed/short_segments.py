"""The agent with journal segments of a few seconds, so that an archive gets them while a scenario runs."""

from functools import partial

from agent.cli.main import main
from agent.daemon import daemon
from agent.storage.journal.writer import Journal

_SEGMENT_MS = 5_000

if __name__ == "__main__":
    setattr(daemon, "Journal", partial(Journal, segment_ms=_SEGMENT_MS))  # noqa: B010 - mypy forbids to assign a type
    main()
