"""What open findings cost: CPU time of the core for each commit of groups that have moved back and not caught up.

Run as `python -m bench.rewound [--groups N]`, with the shipped rules. Each group commits once a second in ten
partitions. After a minute all of them move back, and go on from there. The longest second is what another rewind may
have to wait. In the end other groups move back, one every ten seconds: the last line is what one of them costs.
"""

import argparse
import statistics
import sys
from functools import partial

from agent.engine.engine import Engine
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, LogOffsets
from bench.watch import STARTED, cpu, new_engine, through

PARTITIONS = 10
END, BACK, ADVANCE = 50_000, 10_000, 5
REWOUND_S = 60
PHASES = {
    "before": (0, REWOUND_S),
    "all move back": (REWOUND_S, REWOUND_S + 1),
    "the first 15 s": (REWOUND_S + 1, REWOUND_S + 16),
    "until they are final": (REWOUND_S + 16, REWOUND_S + 180),
    "after that": (REWOUND_S + 180, REWOUND_S + 360),
}
"""From which second until which."""
ENDS_S = max(end for _, end in PHASES.values())
LATE = 10
"""How many groups move back one by one in the end."""
LATE_EVERY_S = 10


def second_of(second: int, groups: int) -> list[Observation]:
    """Return what is observed in one second."""
    at = STARTED + second * 1_000
    offset = offset_of(second) - (BACK if second >= REWOUND_S else 0)
    observed: list[Observation] = []
    if second % 10 == 0:
        observed += [
            LogOffsets(at=at, cluster="main", topic="orders", partition=number, log_start=0, log_end=END + second)
            for number in range(PARTITIONS)
        ]
    for group in range(groups):
        observed += commits_of(f"group-{group}", at, offset)
    for late in range(LATE):
        if second <= moves_at(late):
            observed += commits_of(f"late-{late}", at, offset_of(second))
    return observed


def offset_of(second: int) -> int:
    """Return where a group is that has not moved back."""
    return END // 2 + ADVANCE * second


def moves_at(late: int) -> int:
    """Return within which second one of the late groups moves back."""
    return ENDS_S + (late + 1) * LATE_EVERY_S


def commits_of(group: str, at: int, offset: int) -> list[Observation]:
    """Return a group's commits of all partitions."""
    return [
        Commit(at=at, cluster="main", group=group, topic="orders", partition=number, offset=offset)
        for number in range(PARTITIONS)
    ]


def move_back(engine: Engine, late: int) -> None:
    """Let one of the late groups move back."""
    second = moves_at(late)
    changed = engine.take(commits_of(f"late-{late}", STARTED + second * 1_000 + 500, offset_of(second) - BACK))
    if not changed:
        sys.exit(f"The rewind of late-{late} was not found.")


def main(groups: int) -> None:
    """Print the cost of each phase."""
    engine = new_engine()
    for name, (begin, end) in PHASES.items():
        took, count = [], 0
        for second in range(begin, end):
            observed = second_of(second, groups)
            took.append(cpu(partial(through, engine, observed)))
            count += len(observed)
        cost = sum(took) / count * 1e6
        print(f"{name:<22} {cost:7.1f} us an observation, the longest second {max(took):5.2f} s", flush=True)
    costs, second = [], ENDS_S
    for late in range(LATE):
        while second <= moves_at(late):
            through(engine, second_of(second, groups))
            second += 1
        costs.append(cpu(partial(move_back, engine, late)))
    print(f"one more moves back    {statistics.median(costs) * 1e3:7.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=200)
    main(parser.parse_args().groups)
