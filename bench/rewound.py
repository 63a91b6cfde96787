"""What open findings cost: CPU time of the core for each commit of groups that have moved back and not caught up.

Run as `python -m bench.rewound [--groups N]`, with the shipped rules. Each group commits once a second in ten
partitions. After a minute all of them move back, and go on from there. The longest second is what another rewind may
have to wait.
"""

import argparse
from functools import partial

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


def second_of(second: int, groups: int) -> list[Observation]:
    """Return what is observed in one second."""
    at = STARTED + second * 1_000
    offset = END // 2 + ADVANCE * second - (BACK if second >= REWOUND_S else 0)
    observed: list[Observation] = []
    if second % 10 == 0:
        observed += [
            LogOffsets(at=at, cluster="main", topic="orders", partition=number, log_start=0, log_end=END + second)
            for number in range(PARTITIONS)
        ]
    observed += [
        Commit(at=at, cluster="main", group=f"group-{group}", topic="orders", partition=number, offset=offset)
        for group in range(groups)
        for number in range(PARTITIONS)
    ]
    return observed


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=200)
    main(parser.parse_args().groups)
