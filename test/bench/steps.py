"""Measures the time of a training step. The arms alternate in blocks of steps.

Uses two ranks over Gloo on the loopback interface, with one thread each. One
pair of processes runs the C++ arms, another pair the arms of PyTorch's DDP in
Python. All processes exist during the whole run; only the current arm
computes. A round is a block of every arm, in one order in even rounds and in
reverse order in odd rounds (ABBA). A ratio compares two blocks of one round.

With --gpu there is one rank for each of at most two GPUs, over NCCL. A rank
without peers has nothing to exchange. The arms with an AllReduce exchange all
the same, as PyTorch's DDP always does.

--before names the programs of another build, for example of an earlier commit:
its C++ arms alternate with the arms of this build, and the table contains the
ratio of each arm to its twin.
"""

import argparse
import os
import socket
import sys

from tables import format_ratio, format_time, print_table
from worker import Workers, measure

# In the order of the tables.
TITLES = {
    "plain": "plain module, C++ (no communication)",
    "floor": "plain module, an all-reduce of one number a step",
    "ours": "**ours**",
    "all_reduce": "**ours** with `AllReduce`",
    "ours_view": "**ours**, gradient_as_bucket_view",
    "all_reduce_view": "**ours** with `AllReduce`, gradient_as_bucket_view",
    "ours_fused": "**ours**, FusedSGD",
    "c10d": "c10d::Reducer from C++",
    "plain_fused": "plain module, C++, FusedSGD",
    "all_reduce_fused": "**ours** with `AllReduce`, FusedSGD",
    "all_reduce_recorded": "**ours** with `AllReduce`, FusedSGD, `GraphedStep`",
    "plain_momentum": "plain module, C++, with SGD's momentum",
    "ours_momentum": "**ours**, FusedSGD with momentum",
    "plain_adamw": "plain module, C++, with AdamW",
    "ours_adamw": "**ours**, FusedAdamW",
    "python_plain": "plain module, Python (no communication)",
    "python": "PyTorch DDP, Python",
    "python_view": "PyTorch DDP, Python, gradient_as_bucket_view",
    "python_fused": "PyTorch DDP, Python, fused SGD",
    "python_recorded": "PyTorch DDP, Python, fused SGD, step in a CUDA graph",
}
# In the order of a round.
ARMS = ["python_plain", "python", "ours", "c10d", "plain", "all_reduce", "ours_view",
        "ours_fused", "floor", "plain_momentum", "ours_momentum", "plain_adamw",
        "ours_adamw", "python_view"]
GPU_ARMS = ["python_plain", "python", "plain", "ours", "all_reduce",
            "all_reduce_view", "c10d", "plain_fused", "all_reduce_fused",
            "all_reduce_recorded", "python_view", "python_fused",
            "python_recorded"]
# The baseline of each arm.
PLAIN_OF = {"floor": "plain", "ours": "plain", "ours_view": "plain",
            "ours_fused": "plain", "all_reduce": "plain",
            "all_reduce_view": "plain", "all_reduce_fused": "plain_fused",
            "all_reduce_recorded": "plain_fused",
            "c10d": "plain", "python": "python_plain",
            "python_view": "python_plain", "ours_momentum": "plain_momentum",
            "ours_adamw": "plain_adamw"}
C10D_OF = dict.fromkeys(["ours", "ours_view", "ours_fused", "all_reduce",
                         "all_reduce_view", "all_reduce_fused"], "c10d")
PYTHON_OF = {"ours": "python", "ours_view": "python_view",
             "ours_fused": "python", "all_reduce": "python",
             "all_reduce_view": "python_view", "all_reduce_fused": "python_fused",
             "all_reduce_recorded": "python_recorded"}
# The same step, not recorded.
EAGER_OF = {"all_reduce_recorded": "all_reduce_fused",
            "python_recorded": "python_fused"}
# Arms that also exist in an earlier build.
TWINS = ["plain", "ours", "ours_view", "ours_fused", "c10d"]
# Steps per block: about half a second.
STEPS = {"mlp": 8, "small": 20, "resnet8": 1}
# On a GPU; also a multiple of the steps of accumulate4 and average8 of features.py.
GPU_STEPS = {"mlp": 200, "mlp256": 200, "wide": 8, "small": 24, "resnet8": 40}
MODELS = {"mlp": "8 x Linear(1024), batch 32",
          "mlp256": "8 x Linear(1024), batch 256",
          "wide": "8 x Linear(4096), batch 4096",
          "small": "1,000 parameters: 500 x Linear(16), batch 32",
          "resnet8": "ResNet-18 on 32 x 32 images, batch 8, with buffers"}
# Without buffers: the networks of the features have the same layers.
CHAINS = [model for model in MODELS if model != "resnet8"]


class Ranks(Workers):
    """The processes of a job's ranks, of one thread each.

    variables: of each rank. gpu: whether the processes see the GPUs.
    """

    def __init__(self, command, count=2, address="127.0.0.1", enter=None,
                 variables=None, gpu=False):
        hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        super().__init__(command, [
            dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count),
                 MASTER_ADDR=address, MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                 **hidden, **(variables[rank] if variables else {}))
            for rank in range(count)], enter)


def rank_count(gpu):
    """Returns 2; with GPUs one for each of at most two."""
    if not gpu:
        return 2
    import torch  # takes seconds
    count = min(torch.cuda.device_count(), 2)
    if count == 0:
        raise SystemExit("Expected a GPU for --gpu, but LibTorch sees none")
    return count


def title(model, count, rounds, gpu):
    return (f"A step, {MODELS[model]}: ranks: {count}, "
            f"{'NCCL' if gpu else 'Gloo on the loopback'}, {rounds} rounds")


def compare_to_others(model, rounds, steps, build, count, gpu):
    folder = os.path.dirname(os.path.abspath(__file__))
    cpp = Ranks([f"{build}/bench_steps", model], count, gpu=gpu)
    python = Ranks([sys.executable, f"{folder}/step_worker.py", model], count,
                   gpu=gpu)
    times = measure({arm: (python if arm.startswith("python") else cpp, arm)
                     for arm in (GPU_ARMS if gpu else ARMS)}, rounds, steps)
    columns = {"ratio to the plain module": PLAIN_OF,
               "to c10d::Reducer": C10D_OF,
               "to PyTorch DDP of the same mode": PYTHON_OF}
    if gpu:
        columns["to the same step, eager"] = EAGER_OF
    print_table(
        title(model, count, rounds, gpu), ["arm", "ms a step", *columns],
        [[TITLES[arm], format_time(times[arm]),
          *(format_ratio(times[arm], times[other_of[arm]]) if arm in other_of else ""
            for other_of in columns.values())]
         for arm in TITLES if arm in times])


def compare_to_before(model, rounds, steps, build, before, count, gpu):
    now = Ranks([f"{build}/bench_steps", model], count, gpu=gpu)
    then = Ranks([f"{before}/bench_steps", model], count, gpu=gpu)
    order = {}
    for arm in TWINS:
        order[arm] = now, arm
        order[f"{arm} before"] = then, arm
    times = measure(order, rounds, steps)
    print_table(
        title(model, count, rounds, gpu),
        ["arm", "ms a step", "before", "ratio to before"],
        [[TITLES[arm], format_time(times[arm]), format_time(times[f"{arm} before"]),
          format_ratio(times[arm], times[f"{arm} before"])] for arm in TWINS])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--gpu", action="store_true",
                        help="a rank on each of at most two GPUs")
    parser.add_argument("--before", help="folder of another build's programs")
    arguments = parser.parse_args()
    count = rank_count(arguments.gpu)
    steps = GPU_STEPS if arguments.gpu else STEPS
    for model in arguments.model or steps:
        common = model, arguments.rounds, steps.get(model, 1), arguments.build
        if arguments.before:
            compare_to_before(*common, arguments.before, count, arguments.gpu)
        else:
            compare_to_others(*common, count, arguments.gpu)


if __name__ == "__main__":
    main()
