"""Compares FullyShardedDataParallel to DistributedDataParallel: the time of a
step with AdamW, on ranks that alternate as in steps.py, and the memory of all
ranks together, each in processes of its own.
"""

import argparse
import os
import sys

from steps import Ranks
from tables import format_ratio, format_time, print_table
from worker import measure

MODELS = {"mlp": "8 x Linear(1024), batch 32",
          "transformer": "6 x TransformerEncoderLayer(256), batch 16 x 64 words"}
# Steps per block.
STEPS = {"mlp": 8, "transformer": 1}
# Arms: DistributedDataParallel and FullyShardedDataParallel.
PAIRS = {"LibTorch's AdamW": ("ours_libtorch_adamw", "sharded_libtorch_adamw"),
         "FusedAdamW": ("ours_adamw", "sharded_adamw")}
WHOLE = {"FusedAdamW, `reshard_after_forward(false)`":
             ("ours_adamw", "sharded_whole_adamw")}
COUNTS = 2, 4
WAYS = {"shared memory": {}, "Gloo": {"DDP_SHARED_MEMORY": "0"}}
# Large tensors fragment glibc's heap, in each run to another degree. With a fixed
# threshold malloc maps each of them separately.
MALLOC = {"default": {},
          "`MALLOC_MMAP_THRESHOLD_=1048576`":
              {"MALLOC_MMAP_THRESHOLD_": "1048576"}}
MEMORY_RUNS = 5


def step_rows(build, model, count, way, rounds):
    ranks = Ranks([f"{build}/bench_steps", model], count,
                  variables=[WAYS[way]] * count)
    pairs = PAIRS | (WHOLE if way == "Gloo" else {})
    times = measure({arm: (ranks, arm) for pair in pairs.values()
                     for arm in pair}, rounds, STEPS[model])
    for title, (ours, sharded) in pairs.items():
        yield [MODELS[model], title, way, count, format_time(times[ours]),
               format_time(times[sharded]),
               format_ratio(times[sharded], times[ours])]


def fsdp_rows(build, count, rounds):
    """Compares gathered units to PyTorch's fully_shard, which has a unit for each
    layer and LibTorch's AdamW."""
    variables = [WAYS["Gloo"]] * count
    folder = os.path.dirname(os.path.abspath(__file__))
    ours = Ranks([f"{build}/bench_steps", "mlp"], count, variables=variables)
    theirs = Ranks([sys.executable, f"{folder}/step_worker.py", "mlp"], count,
                   variables=variables)
    times = measure({"ours": (ours, "sharded_libtorch_adamw"),
                     "theirs": (theirs, "python_sharded")}, rounds, STEPS["mlp"])
    yield [MODELS["mlp"], count, format_time(times["theirs"]),
           format_time(times["ours"]),
           format_ratio(times["ours"], times["theirs"])]


def memory_of(build, arm, count, variables):
    """Returns MB of the parameters and of all ranks, the latter a median."""
    answers = []
    for _ in range(MEMORY_RUNS):
        ranks = Ranks([f"{build}/bench_sharding", arm], count,
                      variables=[variables] * count)
        answers.append(ranks.ask(""))
        ranks.close()
    return sorted(answers)[MEMORY_RUNS // 2]


def memory_row(build, count, way, title):
    (parameters, ours), (_, sharded) = (
        memory_of(build, arm, count, WAYS[way] | MALLOC[title])
        for arm in ("ours", "sharded"))
    return [count, way, title, f"{ours:.0f}", f"{ours / parameters:.2f}",
            f"{sharded:.0f}", f"{sharded / parameters:.2f}",
            f"{sharded / ours:.3f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    arguments = parser.parse_args()
    print_table(
        f"A step with AdamW, {arguments.rounds} rounds",
        ["model", "optimizer", "ranks over", "ranks", "DistributedDataParallel, ms",
         "FullyShardedDataParallel, ms", "ratio"],
        [row for model in arguments.model or MODELS
         for way in arguments.way or WAYS for count in COUNTS
         for row in step_rows(arguments.build, model, count, way,
                              arguments.rounds)])
    print_table(
        f"A step over Gloo, LibTorch's AdamW, {arguments.rounds} rounds",
        ["model", "ranks", "PyTorch's fully_shard, ms",
         "FullyShardedDataParallel, ms", "ratio"],
        [row for count in COUNTS
         for row in fsdp_rows(arguments.build, count, arguments.rounds)])
    print_table(
        "Memory of all ranks, 16 x Linear(1024), LibTorch's AdamW, "
        f"{MEMORY_RUNS} runs",
        ["ranks", "ranks over", "malloc", "DistributedDataParallel, MB",
         "/ parameters", "FullyShardedDataParallel, MB", "/ parameters", "ratio"],
        [memory_row(arguments.build, count, way, title)
         for way in arguments.way or WAYS for count in COUNTS
         for title in MALLOC])


if __name__ == "__main__":
    main()
