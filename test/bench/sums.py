"""Measures the sum of a bucket over ranks: in shared memory and over Gloo.

Ranks are processes of one thread each. The arms take turns (ABBA), and a ratio
compares two neighbours. Time is of one sum; CPU is of one rank.
"""

import argparse

from steps import Ranks
from tables import format_ratio, format_time, print_table
from worker import alternate

SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20,
         "4 MiB": 1 << 22, "32 MiB": 1 << 25, "64 MiB": 1 << 26}
ARMS = ["shared", "gloo"]


def microseconds(ranks, arm, size, count):
    """Returns the time and the CPU of one sum."""
    return [seconds / count * 1e6
            for seconds in ranks.ask(f"{arm} {size} {count}")]


def compare(program, ranks_count, rounds):
    rows = []
    for title, size in SIZES.items():
        ranks = Ranks([program], ranks_count)
        count = max(2, min(500, (1 << 25) // size))
        for arm in ARMS:
            microseconds(ranks, arm, size, count)  # warm-up
        results = alternate(
            ARMS, rounds, lambda arm: microseconds(ranks, arm, size, count))
        ranks.close()
        columns = {(arm, what): [result[what] for result in results[arm]]
                   for arm in ARMS for what in range(2)}
        rows.append(
            [title] +
            [format_time(columns[arm, what]) for what in range(2) for arm in ARMS] +
            [format_ratio(columns["shared", what], columns["gloo", what])
             for what in range(2)])
    print_table(
        f"A sum of float over {ranks_count} ranks, {rounds} rounds",
        ["", "shared memory, us", "Gloo, us", "shared, us of CPU",
         "Gloo, us of CPU", "ratio of time", "ratio of CPU"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    for ranks in (2, 4):
        compare(f"{arguments.build}/bench_sums", ranks, arguments.rounds)


if __name__ == "__main__":
    main()
