"""Measures the time of a step of dp::DataParallel over replicas on the CPU.

The arms run in one process and alternate in blocks of steps. A round is a
block of every arm, in one order in even rounds and in reverse order in odd
rounds (ABBA). A ratio compares two blocks of one round. --before names the
programs of another build, whose dp::DataParallel is measured, too.
"""

import argparse
import os

from tables import format_ratio, format_time, print_table
from worker import Workers, measure

TITLES = {
    "plain": "plain module, no replicas",
    "ours": "**dp::DataParallel**",
    "loop": "a loop over kept replicas, by hand",
    "libtorch": "LibTorch's replicate and parallel_apply, which clone at each "
                "call",
    "before": "dp::DataParallel of the other build",
}
# Steps per block: about half a second.
STEPS = {"mlp": 4, "small": 10}
MODELS = {"mlp": "8 x Linear(1024)", "small": "500 x Linear(16)"}


def report(model, replicas, times):
    print_table(
        f"A step, {MODELS[model]}, {replicas} replicas, 32 rows each, "
        f"{len(times['ours'])} rounds",
        ["arm", "ms a step", "ours / this"],
        [[TITLES[arm], format_time(times[arm]),
          "" if arm == "ours" else format_ratio(times["ours"], times[arm])]
         for arm in times])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--replicas", type=int, default=os.cpu_count())
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--before", help="folder of another build's programs")
    arguments = parser.parse_args()

    def start(folder, model):
        return Workers([f"{folder}/bench_dp", model, str(arguments.replicas)])

    for model in arguments.model or MODELS:
        now = start(arguments.build, model)
        order = {arm: (now, arm) for arm in TITLES if arm != "before"}
        if arguments.before:
            order["before"] = start(arguments.before, model), "ours"
        report(model, arguments.replicas,
               measure(order, arguments.rounds, STEPS[model]))


if __name__ == "__main__":
    main()
