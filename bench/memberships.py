"""What finding when groups had members takes after a restart, against reading the same states of groups as objects.

Run as `python -m bench.memberships [--groups N] [--days N]`: each group has a heartbeat every ten minutes, and is
without members for 70 minutes now and then.
"""

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from agent.model.observations.kafka import GroupState, Member
from agent.model.times import millis
from agent.sources.base import HEARTBEAT_MS
from agent.storage.journal.memberships import membership_changes
from agent.storage.journal.reader import read
from agent.storage.journal.writer import Journal

_NOW = millis("2026-11-20T12:00:00Z")
_DAY_MS = 86_400_000
_MEMBERS = (Member(id="consumer-1-8b5c9f1e", partitions=tuple(("orders", number) for number in range(8))),)


def _write(directory: Path, groups: int, days: int) -> None:
    with closing(Journal(directory)) as journal:
        for beat in range(days * _DAY_MS // HEARTBEAT_MS + 1):
            at = _NOW - days * _DAY_MS + beat * HEARTBEAT_MS
            states = []
            for number in range(groups):
                is_away = (beat // 7 + number) % 50 == 0
                state, members = ("Empty", ()) if is_away else ("Stable", _MEMBERS)
                states.append(GroupState(at=at, cluster="main", group=f"g-{number}", state=state, members=members))
            journal.append(states)
            journal.flush()


def main() -> int:
    """Parse the arguments, write and read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--days", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary, "journal")
        _write(directory, arguments.groups, arguments.days)
        begin = time.process_time()
        changes = sum(1 for _ in membership_changes(directory, _NOW - arguments.days * _DAY_MS, _NOW))
        seconds, begin = time.process_time() - begin, time.process_time()
        rows = sum(1 for _ in read(directory, kinds=["group_state"]))
        as_objects = time.process_time() - begin
    print("| states of groups | changes found | CPU, s | us a state | as objects, CPU, s |")
    print("|---|---|---|---|---|")
    print(f"| {rows:,} | {changes:,} | {seconds:.1f} | {seconds / rows * 1e6:.1f} | {as_objects:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
