"""Measures a training step of two hosts with a link of limited rate between them.

Each host is a network namespace with one rank, of one thread on a core of its own.
The arms take turns as in steps.py. "cap5" has buckets of 5 MiB. A ratio to the best
fixed size is to the arm of the smallest median. At last, two hosts with two ranks
each: the bytes that each host sends in a step.
"""

import argparse
import csv
import json
import os
import subprocess
import sys

import numpy

import features
from steps import Ranks
from tables import format_ratio, format_time, print_table
from worker import measure

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             "../launcher/stress"))
import cut
import sandbox

CAPS = ["cap1", "cap2", "cap5", "cap8", "cap12", "cap25", "cap50"]
ARMS = ["ours", *CAPS, "c10d", "plain"]
MODELS = {"mlp256": "8 x Linear(1024), batch 256",
          "resnet": "ResNet-18 on 32 x 32 images, batch 32",
          "transformer": "6 layers of a transformer, width 256, batch 16 x 64"}
# Steps per block: about a second.
STEPS = {"mlp256": 4, "resnet": 2, "transformer": 2}


def host(switch, number):
    """Returns the function that a process of the host calls first."""
    enter = switch.enter(number)

    def call():
        enter()
        os.sched_setaffinity(0, {number % os.cpu_count()})
    return call


def start(switch, program, model, hosts):
    """Starts a rank for each number of a host."""
    return Ranks([program, model], len(hosts), switch.address(0),
                 [host(switch, number) for number in hosts],
                 [{"GLOO_SOCKET_IFNAME": f"cable{number}"} for number in hosts])


def write_csv(path, gigabits, times):
    """Appends a line for each block, for scripts/plot."""
    with open(path, "a", newline="") as file:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(["gigabits", "arm", "ms"])
        for arm, values in times.items():
            writer.writerows([gigabits, arm, value] for value in values)


def compare_sizes(ranks, model, gigabits, rounds, csv_file):
    times = measure({arm: (ranks, arm) for arm in ARMS}, rounds, STEPS[model])
    if csv_file:
        write_csv(csv_file, gigabits, times)
    best = min(CAPS, key=lambda arm: numpy.median(times[arm]))
    print_table(
        f"A step, {MODELS[model]}: 2 hosts, {gigabits} Gbit/s, {rounds} rounds; "
        f"the best fixed size is {best}",
        ["arm", "ms a step", "ratio to the best fixed size", "to c10d::Reducer"],
        [[arm, format_time(times[arm]), format_ratio(times[arm], times[best]),
          format_ratio(times[arm], times["c10d"])] for arm in ARMS])


def baseline_of(arm):
    """The arm of DistributedDataParallel with the same optimizer."""
    return arm.replace("sharded_whole", "ours").replace("sharded", "ours") \
        if arm.startswith("sharded") else "ours"


def compare_features(ranks, arms, model, gigabits, rounds):
    baseline = {baseline_of(arm): baseline_of(arm) for arm in arms}
    baseline.update((arm, baseline_of(arm)) for arm in arms)
    times = measure({arm: (ranks, arm) for arm in baseline}, rounds, features.BLOCK)
    print_table(
        f"A step, {MODELS[model]}: 2 hosts, {gigabits} Gbit/s, {rounds} rounds",
        ["arm", "ms a step", "baseline", "ratio"],
        [[arm, format_time(times[arm]), baseline[arm],
          format_ratio(times[arm], times[baseline[arm]])]
         for arm in times])


def sent_bytes(number):
    link, = json.loads(subprocess.run(
        ["ip", "-s", "-j", "link", "show", f"port{number}"], check=True,
        capture_output=True).stdout)
    return link["stats64"]["rx"]["bytes"]


def count_bytes(switch, program, arm, per_host, steps=5):
    """Returns the bytes that each host sends in a step."""
    ranks = start(switch, program, "mlp256",
                  [rank // per_host for rank in range(2 * per_host)])
    ranks.run(arm, 2)  # buckets are made again after the first pass
    before = [sent_bytes(number) for number in range(2)]
    ranks.run(arm, steps)
    sent = [sent_bytes(number) - before[number] for number in range(2)]
    ranks.close()
    return [count / steps for count in sent]


def print_bytes(switch, program):
    gradients = 4 * 8 * 1024 * 1025
    print_table(
        f"Bytes that a host sends in a step / {gradients} bytes of gradients: "
        f"{MODELS['mlp256']}, 2 hosts",
        ["arm", "ranks a host", "first host", "second host"],
        [[arm, per_host,
          *(f"{count / gradients:.3f}"
            for count in count_bytes(switch, program, arm, per_host))]
         for arm, per_host in (("ours", 2), ("ours", 1), ("sharded_adamw", 1),
                               ("sharded_whole_adamw", 1))])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--feature", action="append",
                        help="an arm of feature_arms.cpp, instead of sizes of buckets")
    parser.add_argument("--rate", type=float, action="append",
                        help="Gbit/s [10, 3, 1]")
    parser.add_argument("--csv", metavar="FILE",
                        help="append the times of the sizes, of one model")
    if not sandbox.enter():
        raise SystemExit("links: expected the rights to make namespaces")
    arguments = parser.parse_args()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    switch = cut.Switch(2)
    for model in arguments.model or MODELS:
        for gigabits in arguments.rate or (10, 3, 1):
            for number in range(2):
                switch.shape(number, gigabits)
            ranks = start(switch, f"{arguments.build}/bench_steps", model, range(2))
            if arguments.feature:
                compare_features(ranks, arguments.feature, model, gigabits,
                                 arguments.rounds)
            else:
                compare_sizes(ranks, model, gigabits, arguments.rounds,
                              arguments.csv)
    if not arguments.feature:
        print_bytes(switch, f"{arguments.build}/bench_steps")


if __name__ == "__main__":
    main()
