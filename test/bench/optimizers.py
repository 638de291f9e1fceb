"""Measures the time of an optimizer's step alone, fused and LibTorch's.

A round is a block of every arm, in one order in even rounds and in reverse
order in odd rounds (ABBA). A ratio compares two blocks of one round.
"""

import argparse

from tables import format_ratio, median_interval, print_table
from worker import Worker, measure

KINDS = ["SGD", "SGD with momentum", "Adam", "AdamW"]
MODELS = {"mlp": "8 x Linear(1024)",
          "small": "1,000 parameters: 500 x Linear(16)"}
# Steps per block: some tenths of a second.
STEPS = {"mlp": 10, "small": 40}


def arms(kind):
    name = kind.replace(" ", "_")
    return f"fused_{name}", name


def report(model, times):
    print_table(
        f"An optimizer's step alone, {MODELS[model]}, "
        f"{len(times['SGD'])} rounds",
        ["optimizer", "LibTorch's, ms", "fused, ms", "fused / LibTorch's"],
        [[kind] +
         ["{:.3f} [{:.3f}, {:.3f}]".format(*median_interval(times[arm]))
          for arm in reversed(arms(kind))] +
         [format_ratio([a / b for a, b in zip(*map(times.get, arms(kind)))])]
         for kind in KINDS])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", choices=MODELS, action="append")
    arguments = parser.parse_args()
    every_arm = [arm for kind in KINDS for arm in arms(kind)]
    for model in arguments.model or MODELS:
        worker = Worker([f"{arguments.build}/bench_optimizers", model])
        report(model, measure({arm: (worker, arm) for arm in every_arm},
                              arguments.rounds, STEPS[model]))


if __name__ == "__main__":
    main()
