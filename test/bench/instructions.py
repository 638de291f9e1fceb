"""Instructions that a reducer adds to a step, counted by callgrind.

One process over a backend without peers, 500 x Linear(16): what is counted is
the reducer's own work, without communication. The plain module is subtracted;
autograd makes its 1,000 gradient accumulators anew in every step, and a reducer
keeps them, which is a saving that is part of the result.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

from tables import print_table

MODEL, PARAMETERS = "small", 1000
ARMS = {"ours": "**ours**", "ours_view": "**ours**, gradient_as_bucket_view",
        "c10d": "c10d::Reducer"}


def count(arm, steps, arguments):
    with tempfile.TemporaryDirectory() as folder:
        profile = (f"{arguments.profiles}/callgrind.{arm}.out"
                   if arguments.profiles else f"{folder}/callgrind.out")
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", "--toggle-collect=measured_steps",
             f"--callgrind-out-file={profile}",
             f"{arguments.build}/bench_instructions", MODEL, arm, str(steps)],
            env=dict(os.environ, ATEN_CPU_CAPABILITY="default",
                     OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
            stderr=subprocess.PIPE, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"callgrind of {arm} ended with {done.returncode}:\n"
                 f"{done.stderr}")
    return int(found[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profiles", help="folder that keeps the profiles, for "
                        "callgrind_annotate")
    arguments = parser.parse_args()
    if arguments.profiles:
        os.makedirs(arguments.profiles, exist_ok=True)
    plain = count("plain", arguments.steps, arguments)
    added = {arm: (count(arm, arguments.steps, arguments) - plain) /
             arguments.steps / PARAMETERS for arm in ARMS}
    print_table(
        f"Instructions per parameter and step above the plain module "
        f"({plain / arguments.steps / PARAMETERS:,.0f}): 500 x Linear(16), "
        f"backend without peers, {arguments.steps} steps",
        ["arm", "instructions", "ratio to c10d::Reducer"],
        [[title, f"{added[arm]:,.0f}", f"{added[arm] / added['c10d']:.3f}"]
         for arm, title in ARMS.items()])


if __name__ == "__main__":
    main()
