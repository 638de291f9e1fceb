"""Measures the time of an optimizer's step alone, fused and LibTorch's.

A round is a block of every arm, in one order in even rounds and in reverse
order in odd rounds (ABBA). A ratio compares two blocks of one round.
"""

import argparse

from tables import format_interval, format_ratio, print_table
from worker import Workers, measure

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
        [[kind, format_interval(theirs, 3), format_interval(fused, 3),
          format_ratio(fused, theirs)]
         for kind in KINDS
         for fused, theirs in [map(times.get, arms(kind))]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", choices=MODELS, action="append")
    arguments = parser.parse_args()
    every_arm = [arm for kind in KINDS for arm in arms(kind)]
    for model in arguments.model or MODELS:
        worker = Workers([f"{arguments.build}/bench_optimizers", model])
        report(model, measure({arm: (worker, arm) for arm in every_arm},
                              arguments.rounds, STEPS[model]))


if __name__ == "__main__":
    main()
