"""Counts the instructions that a reducer adds to a step, with callgrind.

Runs one process over a backend without peers, with 500 x Linear(16), so the
count contains the reducer's own work and no communication. The plain module is
subtracted. Autograd creates its 1,000 gradient accumulators anew in every
step, except with c10d::Reducer, which keeps them; this saving is part of its
result. --before names the programs of another build, which are counted, too.
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


def count(build, arm, steps, profiles):
    with tempfile.TemporaryDirectory() as folder:
        profile = (f"{profiles}/callgrind.{arm}.out"
                   if profiles else f"{folder}/callgrind.out")
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", "--toggle-collect=measured_steps",
             f"--callgrind-out-file={profile}",
             f"{build}/bench_instructions", MODEL, arm, str(steps)],
            env=dict(os.environ, ATEN_CPU_CAPABILITY="default",
                     OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
            stderr=subprocess.PIPE, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"callgrind of {arm} ended with {done.returncode}:\n"
                 f"{done.stderr}")
    return int(found[1])


def added_by_arms(build, steps, profiles):
    """Returns the instructions of the plain module, and the instructions that
    each arm adds, per parameter and step."""
    plain = count(build, "plain", steps, profiles)
    return plain / steps / PARAMETERS, {
        arm: (count(build, arm, steps, profiles) - plain) / steps / PARAMETERS
        for arm in ARMS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profiles", help="folder that keeps the profiles, for "
                        "callgrind_annotate")
    parser.add_argument("--before", help="folder of another build's programs")
    arguments = parser.parse_args()
    if arguments.profiles:
        os.makedirs(arguments.profiles, exist_ok=True)
    plain, added = added_by_arms(arguments.build, arguments.steps,
                                 arguments.profiles)
    header = ["arm", "instructions", "ratio to c10d::Reducer"]
    rows = [[title, f"{added[arm]:,.0f}", f"{added[arm] / added['c10d']:.3f}"]
            for arm, title in ARMS.items()]
    if arguments.before:
        plain_before, before = added_by_arms(arguments.before, arguments.steps,
                                             None)
        header += ["before", "of the whole step, to before"]
        for row, arm in zip(rows, ARMS):
            whole = (plain + added[arm]) / (plain_before + before[arm])
            row += [f"{before[arm]:,.0f}", f"{whole:.4f}"]
    print_table(
        f"Instructions per parameter and step above the plain module "
        f"({plain:,.0f}): 500 x Linear(16), backend without peers, "
        f"{arguments.steps} steps", header, rows)


if __name__ == "__main__":
    main()
