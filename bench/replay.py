"""Replaying a journal: observations a second, and the share of it that reading alone takes.

Run as `python -m bench.replay [--hours N] [--topics N] [--groups N] [--partitions N] [--directory DIR]`: the journal of
a cluster without incidents is written first, as an agent writes it that polls once a second. Each group reads one topic
unevenly and commits every five seconds in each partition; each log is read every other second. CPU time of this
process; a month's is extrapolated.
"""

import argparse
import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from agent.cli.common import config_path, load_config
from agent.cli.replay import replay
from agent.engine.engine import Engine
from agent.engine.recorded import batches
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, Member, PartitionState
from agent.model.times import millis
from agent.storage.journal import reader
from agent.storage.journal.writer import Journal

CLUSTER, STARTED = "main", millis("2026-07-01T00:00:00Z")
_MONTH_S = 30 * 86_400
_EVERY_S = 5
_SEALED_MS = 3_700_000
"""How long after the last observation all segments are sealed."""


def write(directory: Path, seconds: int, topics: int, groups: int, partitions: int) -> None:
    """Write the journal."""
    chance = random.Random(1)
    ends = {(f"topic-{topic:03d}", partition): 100_000 for topic in range(topics) for partition in range(partitions)}
    read = {(group, partition): 90_000 for group in range(groups) for partition in range(partitions)}
    with closing(Journal(directory)) as journal:
        states: list[Observation] = [
            PartitionState(
                at=STARTED,
                cluster=CLUSTER,
                topic=topic,
                partition=partition,
                leader=1,
                replicas=(1, 2, 3),
                isr=(1, 2, 3),
            )
            for topic, partition in ends
        ]
        members = (Member(id="m"),)
        states += [
            GroupState(at=STARTED, cluster=CLUSTER, group=f"group-{group:04d}", state="Stable", members=members)
            for group in range(groups)
        ]
        journal.append(states)
        for number in range(1, seconds + 1):
            now = STARTED + 1000 * number
            batch: list[Observation] = []
            if number % 2:
                for place in ends:
                    ends[place] += chance.randint(100, 300)
                batch += [
                    LogOffsets(
                        at=now - 900,
                        since=now - 2_900,
                        cluster=CLUSTER,
                        topic=topic,
                        partition=partition,
                        log_start=0,
                        log_end=end,
                    )
                    for (topic, partition), end in ends.items()
                ]
            for group, partition in [place for place in read if (sum(place) + number) % _EVERY_S == 0]:
                topic = f"topic-{group % topics:03d}"
                read[group, partition] = max(
                    read[group, partition] + 1, ends[topic, partition] - chance.randint(0, 800)
                )
                batch.append(
                    Commit(
                        at=now - 400, seen_at=now - 390, cluster=CLUSTER, group=f"group-{group:04d}", topic=topic,
                        partition=partition, offset=read[group, partition], leader_epoch=4,
                    )
                )  # fmt: skip
            journal.append([*batch, Tick(at=now)])
            journal.flush()
            journal.seal(now)
        journal.seal(now + _SEALED_MS)


def main() -> int:
    """Parse the arguments, write, read and replay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--directory", type=Path, help="keep the journal here, or read the one that is there")
    arguments = parser.parse_args()
    settings = load_config(config_path(None), need_clusters=False)
    seconds = round(3600 * arguments.hours)
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        if not any(directory.glob("*/date=*")):
            write(directory, seconds, arguments.topics, arguments.groups, arguments.partitions)
        begin = time.process_time()
        count = sum(len(part) for chunk in reader.chunks(directory) for part in chunk)
        reading = time.process_time() - begin
        engine = Engine(settings.rules, settings.correlations, settings.incidents)
        begin = time.process_time()
        incidents = replay(batches([reader.chunks(directory)]), engine)
        whole = time.process_time() - begin
    print("| observations | of an hour | a second of CPU | of which reading | a month, minutes | incidents |")
    print("|---|---|---|---|---|---|")
    hours = seconds / 3600
    print(
        f"| {count:,} | {count / hours:,.0f} | {count / whole:,.0f} | {reading / whole:.2f} "
        f"| {whole * _MONTH_S / seconds / 60:.1f} | {len(incidents)} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
