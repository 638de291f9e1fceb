"""ddprun against torchrun: time until all workers run, and the agent's memory.

Each run starts 2 workers that write the time of their main() and wait. The time
counts from the exec of the launcher to the last worker's main(). Memory is the
PSS of the launcher and of what it started but the workers. Runs take turns
(ABBA); a ratio is that of two neighbours.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

from tables import format_ratio, median_interval, print_table

WORKERS = 2
TIMEOUT = 60


def wait_for(file):
    """Its numbers: nanoseconds and process."""
    end = time.monotonic() + TIMEOUT
    while not os.path.exists(file):
        if time.monotonic() > end:
            sys.exit(f"Expected {file} within {TIMEOUT} s, but it did not come")
        time.sleep(0.005)
    with open(file) as lines:
        return [int(number) for number in lines.read().split()]


def descendants(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as children:
            found += [int(child) for child in children.read().split()]
    return found + [pid for child in found for pid in descendants(child)]


def pss_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines
                    if line.startswith("Pss:"))


def run(launcher, stamp):
    """Milliseconds to the last worker's main(), MiB of the agent."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [stamp, f"{folder}/start", *launcher, stamp, f"{folder}/main"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            stamps = [wait_for(f"{folder}/main{rank}")
                      for rank in range(WORKERS)]
            workers = [worker for _, worker in stamps]
            start, agent = wait_for(f"{folder}/start")
            memory = sum(pss_kib(pid) for pid in [agent, *descendants(agent)]
                         if pid not in workers)
        finally:
            process.terminate()
            process.wait(TIMEOUT)
    return (max(stamp for stamp, _ in stamps) - start) / 1e6, memory / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torchrun = shutil.which("torchrun", path=os.path.dirname(sys.executable))
    options = ["--standalone", f"--nproc-per-node={WORKERS}", "--no-python"]
    launchers = {"ddprun": [f"{arguments.build}/ddprun", *options],
                 "torchrun": [torchrun, *options]}
    times, memory = ({name: [] for name in launchers} for _ in range(2))
    for i in range(arguments.rounds):
        for name in launchers if i % 2 == 0 else reversed(launchers):
            ms, mib = run(launchers[name], f"{arguments.build}/bench_stamp")
            times[name].append(ms)
            memory[name].append(mib)

    def row(what, values):
        return [what] + ["{:.1f} [{:.1f}, {:.1f}]".format(
            *median_interval(values[name])) for name in launchers] + [
                format_ratio([b / a for a, b in zip(values["ddprun"],
                                                    values["torchrun"])])]

    print_table(f"Launchers, {WORKERS} workers, {arguments.rounds} rounds",
                ["", *launchers, "torchrun / ddprun"],
                [row("exec to the last worker's main(), ms", times),
                 row("agent while they run, PSS, MiB", memory)])


if __name__ == "__main__":
    main()
