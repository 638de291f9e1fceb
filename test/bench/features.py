"""Measures the cost of features of the wrapper in a training step.

Compares each feature to the wrapper without it, on two ranks that alternate as
in steps.py.
"""

import argparse

from steps import CHAINS, GPU_STEPS, MODELS, STEPS, Ranks, rank_count
from tables import format_ratio, format_time, print_table
from worker import measure

TITLES = {
    "autocast": "`AutocastGuard`, bfloat16",
    "checkpointed": "`checkpoint_activations` of each layer",
    "sync_batch_norm": "`SyncBatchNorm` after each layer / BatchNorm1d",
    "own_buffers": "BatchNorm1d after each layer, `broadcast_buffers(false)` / without",
    "find_unused": "`find_unused_parameters`",
    "accumulate4": "`NoSyncGuard` in three of four steps",
    "average8": "`ModelAverager` after each eighth step",
    "cast_exchange": "`CastExchange`, bfloat16",
    "power_sgd": "`PowerSGD`, rank 1",
    "zero": "`ZeroRedundancyOptimizer`, SGD",
}
# The baseline of features that are not compared to the plain wrapper.
WITHOUT = {"sync_batch_norm": "batch_norm", "own_buffers": "batch_norm"}
# Steps per block: some tenths of a second or more, a multiple of the steps of
# accumulate4 and average8.
BLOCK = 8


def report(model, count, times):
    def row(arm):
        other = WITHOUT.get(arm, "ours")
        return [TITLES[arm], format_time(times[arm]), format_time(times[other]),
                format_ratio(times[arm], times[other])]

    print_table(
        f"A step, {MODELS[model]}: ranks: {count}, {len(times['ours'])} rounds",
        ["feature", "ms a step", "without it", "ratio"],
        [row(arm) for arm in TITLES if arm in times])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", choices=CHAINS, action="append")
    parser.add_argument("--feature", choices=TITLES, action="append",
                        help="default: all")
    parser.add_argument("--gpu", action="store_true",
                        help="a rank on each of at most two GPUs")
    arguments = parser.parse_args()
    count = rank_count(arguments.gpu)
    features = arguments.feature or TITLES
    arms = ["ours", *features, *(WITHOUT[feature] for feature in features
                                 if feature in WITHOUT)]
    steps = GPU_STEPS if arguments.gpu else STEPS
    for model in arguments.model or [name for name in steps if name in CHAINS]:
        ranks = Ranks([f"{arguments.build}/bench_steps", model], count,
                      gpu=arguments.gpu)
        report(model, count, measure(
            {arm: (ranks, arm) for arm in arms}, arguments.rounds,
            GPU_STEPS[model] if arguments.gpu else BLOCK))


if __name__ == "__main__":
    main()
