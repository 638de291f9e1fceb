"""Measures the time of a training step. The arms alternate in blocks of steps.

Uses two ranks over Gloo on the loopback interface, with one thread each. One
pair of processes runs the C++ arms, another pair the arms of PyTorch's DDP in
Python. All processes exist during the whole run; only the current arm
computes. A round is a block of every arm, in one order in even rounds and in
reverse order in odd rounds (ABBA). A ratio compares two blocks of one round.

With --gpu there is one rank for each of at most two GPUs, over NCCL. A rank
without peers has nothing to exchange: the arms with an AllReduce show what the
wrapper adds when it exchanges all the same, as PyTorch's DDP always does.

--before names the programs of another build, for example of an earlier commit:
a third pair of processes runs its arms, alternating with those of this build,
and the table contains the ratio of each arm to its twin.
"""

import argparse
import os
import socket
import subprocess
import sys

from tables import format_ratio, format_time, print_table

CPP_ARMS = ["plain", "floor", "ours", "all_reduce", "ours_view", "ours_fused",
            "c10d", "plain_momentum", "ours_momentum", "plain_adamw", "ours_adamw"]
PYTHON_ARMS = ["python_plain", "python", "python_view"]
TITLES = {
    "plain": "plain module, C++ (no communication)",
    "plain_fused": "plain module, C++, FusedSGD",
    "floor": "plain module, an all-reduce of one number a step",
    "ours": "**ours**",
    "ours_view": "**ours**, gradient_as_bucket_view",
    "ours_fused": "**ours**, FusedSGD",
    "all_reduce": "**ours** with `AllReduce`",
    "all_reduce_view": "**ours** with `AllReduce`, gradient_as_bucket_view",
    "all_reduce_fused": "**ours** with `AllReduce`, FusedSGD",
    "all_reduce_recorded": "**ours** with `AllReduce`, FusedSGD, `GraphedStep`",
    "c10d": "c10d::Reducer from C++",
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
# The baseline of each arm.
PLAIN_OF = {"floor": "plain", "ours": "plain", "ours_view": "plain",
            "ours_fused": "plain", "all_reduce": "plain",
            "all_reduce_view": "plain", "all_reduce_fused": "plain_fused",
            "all_reduce_recorded": "plain_fused",
            "c10d": "plain", "python": "python_plain",
            "python_view": "python_plain", "ours_momentum": "plain_momentum",
            "ours_adamw": "plain_adamw"}
C10D_OF = {"ours": "c10d", "ours_view": "c10d", "ours_fused": "c10d",
           "all_reduce": "c10d", "all_reduce_view": "c10d", "all_reduce_fused": "c10d"}
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
GPU_ARMS = ["plain", "ours", "all_reduce", "all_reduce_view", "c10d", "plain_fused",
            "all_reduce_fused", "all_reduce_recorded"]
GPU_PYTHON_ARMS = [*PYTHON_ARMS, "python_fused", "python_recorded"]
MODELS = {"mlp": "8 x Linear(1024), batch 32",
          "mlp256": "8 x Linear(1024), batch 256",
          "wide": "8 x Linear(4096), batch 4096",
          "small": "1,000 parameters: 500 x Linear(16), batch 32",
          "resnet8": "ResNet-18 on 32 x 32 images, batch 8, with buffers"}
# Without buffers, for the features, whose networks are built of the same layers.
CHAINS = [model for model in MODELS if model != "resnet8"]


class Ranks:
    """Processes of one thread each that run blocks of steps on command.

    enter: for each rank, what its process calls first. variables: of each rank.
    gpu: whether the processes see the GPUs.
    """

    def __init__(self, command, count=2, address="127.0.0.1", enter=None,
                 variables=None, gpu=False):
        hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.processes = [subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=enter and enter[rank],
            env=dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank),
                     WORLD_SIZE=str(count), MASTER_ADDR=address,
                     MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                     **hidden, **(variables or [{}] * count)[rank]))
            for rank in range(count)]

    def ask(self, command):
        """Returns the numbers with which rank 0 answers a command to all."""
        for process in self.processes:
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
        answer = self.processes[0].stdout.readline()
        if not answer:
            raise SystemExit(
                f"Expected an answer to {command}, but rank 0 ended")
        return [float(number) for number in answer.split()]

    def run(self, arm, steps):
        """Returns milliseconds per step."""
        return self.ask(f"{arm} {steps}")[0] / steps * 1000

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(60)


def measure(order, rounds, steps):
    """Returns {name: [ms per step in each round]}.

    order: {name: (the ranks, their name of the arm)}
    """
    for ranks, arm in order.values():
        ranks.run(arm, steps)  # warm-up
    times = {name: [] for name in order}
    for i in range(rounds):
        for name in order if i % 2 == 0 else reversed(order):
            ranks, arm = order[name]
            times[name].append(ranks.run(arm, steps))
    for ranks in {id(ranks): ranks for ranks, _ in order.values()}.values():
        ranks.close()
    return times


def rank_count(gpu):
    """Returns 2; with GPUs one for each of at most two."""
    if not gpu:
        return 2
    import torch  # takes seconds
    count = min(torch.cuda.device_count(), 2)
    if count == 0:
        raise SystemExit("Expected a GPU for --gpu, but LibTorch sees none")
    return count


def compare_to_others(model, rounds, build, gpu):
    folder = os.path.dirname(os.path.abspath(__file__))
    count = rank_count(gpu)
    cpp = Ranks([f"{build}/bench_steps", model], count, gpu=gpu)
    python = Ranks([sys.executable, f"{folder}/step_worker.py", model], count,
                   gpu=gpu)
    order = ["python_plain", "python", "ours", "c10d", "plain", "all_reduce", "ours_view",
             "ours_fused", "floor", "plain_momentum", "ours_momentum",
             "plain_adamw", "ours_adamw", "python_view"]
    if gpu:
        order = ["python_plain", "python", *GPU_ARMS, "python_view",
                 "python_fused", "python_recorded"]
    times = measure(
        {arm: (python if arm in GPU_PYTHON_ARMS else cpp, arm) for arm in order},
        rounds, (GPU_STEPS if gpu else STEPS).get(model, 1))

    def ratio(arm, other):
        if other is None:
            return ""
        return format_ratio([a / b for a, b in zip(times[arm], times[other])])

    columns = {"ratio to the plain module": PLAIN_OF,
               "to c10d::Reducer": C10D_OF,
               "to PyTorch DDP of the same mode": PYTHON_OF}
    if gpu:
        columns["to the same step, eager"] = EAGER_OF
    print_table(
        f"A step, {MODELS[model]}: ranks: {count}, "
        f"{'NCCL' if gpu else 'Gloo on the loopback'}, {rounds} rounds",
        ["arm", "ms a step", *columns],
        [[TITLES[arm], format_time(times[arm])] +
         [ratio(arm, other_of.get(arm)) for other_of in columns.values()]
         for arm in (GPU_ARMS + GPU_PYTHON_ARMS if gpu
                     else CPP_ARMS + PYTHON_ARMS)])


def compare_to_before(model, rounds, build, before):
    now = Ranks([f"{build}/bench_steps", model])
    then = Ranks([f"{before}/bench_steps", model])
    order = {}
    for arm in TWINS:
        order[arm] = now, arm
        order[f"{arm} before"] = then, arm
    times = measure(order, rounds, STEPS[model])
    print_table(
        f"A step, {MODELS[model]}: 2 ranks, Gloo on the loopback, "
        f"{rounds} rounds",
        ["arm", "ms a step", "before", "ratio to before"],
        [[TITLES[arm], format_time(times[arm]), format_time(times[twin]),
          format_ratio([a / b for a, b in zip(times[arm], times[twin])])]
         for arm, twin in [(arm, f"{arm} before") for arm in TWINS]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--gpu", action="store_true",
                        help="a rank on each of at most two GPUs")
    parser.add_argument("--before", help="folder of another build's programs")
    arguments = parser.parse_args()
    for model in arguments.model or (GPU_STEPS if arguments.gpu else STEPS):
        if arguments.before:
            compare_to_before(model, arguments.rounds, arguments.build,
                              arguments.before)
        else:
            compare_to_others(model, arguments.rounds, arguments.build,
                              arguments.gpu)


if __name__ == "__main__":
    main()
