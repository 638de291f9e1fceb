"""A step of DDP over ddp::mpi_group against the loop of one MPI_Allreduce for each
gradient: two ranks, Open MPI and MPICH, over shared memory and over TCP.

A round is a block of each way and of the loop, which is first in even rounds and
last in odd ones.
"""

import argparse
import os
import subprocess

from tables import format_interval, print_table

LIMIT = 600  # seconds
RUNS = [
    ("Open MPI, shared memory", "openmpi", [], {}),
    ("Open MPI, TCP", "openmpi", ["--mca", "btl", "self,tcp"], {}),
    ("MPICH, shared memory", "mpich", [], {}),
    ("MPICH, TCP", "mpich", [], {"MPIR_CVAR_NOLOCAL": "1"}),
]


def run(build, name, options, variables, rounds):
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [f"mpirun.{name}", *options, "-n", "2",
         os.path.join(build, f"bench_mpi_steps_{name}"), str(rounds)],
        env=environment, check=True, text=True, stdout=subprocess.PIPE, timeout=LIMIT)
    ratios = {}
    for line in done.stdout.splitlines():
        if line.count(";") == 2:  # MPI may print lines of its own
            network, way, ratio = line.split(";")
            ratios.setdefault((network, way), []).append(float(ratio))
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    for title, name, options, variables in RUNS:
        if not os.path.exists(f"{arguments.build}/bench_mpi_steps_{name}"):
            print(f"mpi: {title} is left out: mpicxx.{name} was not found when this "
                  "was built")
            continue
        ratios = run(arguments.build, name, options, variables, arguments.rounds)
        print_table(f"{title}: a step / with one MPI_Allreduce for each gradient, "
                    f"2 ranks, {arguments.rounds} rounds",
                    ["network", "way", "ratio"],
                    [[*key, format_interval(values, 3)] for key, values in ratios.items()])


if __name__ == "__main__":
    main()
