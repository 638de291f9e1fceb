"""ddprun against torchrun: start, memory, and what follows a worker's death.

Each run starts workers that write the time of their main() and wait. The time
counts from the exec of the launcher to the last worker's main(). Memory is the
PSS of the launcher and of what it started but the workers. Then worker 0 is
killed: the time counts to the last of its peers' SIGTERM, and to the main() of
the last new worker. Runs take turns (ABBA); a ratio is that of two neighbours.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tables import format_ratio, median_interval, print_table

ROWS = ["exec to the last worker's main(), ms",
        "agent while they run, PSS, MiB",
        "death of a worker to the last peer's SIGTERM, ms",
        "death of a worker to the last new worker's main(), ms"]
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


def run(launcher, stamp, workers):
    """One number for each of ROWS."""
    with tempfile.TemporaryDirectory() as folder:
        def stamps(ranks, suffix):
            return [wait_for(f"{folder}/main{rank}.{suffix}") for rank in ranks]

        process = subprocess.Popen(
            [stamp, f"{folder}/start", *launcher, stamp, f"{folder}/main"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            first = stamps(range(workers), "0")
            pids = [pid for _, pid in first]
            start, agent = wait_for(f"{folder}/start")
            memory = sum(pss_kib(pid) for pid in [agent, *descendants(agent)]
                         if pid not in pids)
            death = time.monotonic_ns()
            os.kill(pids[0], signal.SIGKILL)
            stopped = stamps(range(1, workers), "0.stopped")
            second = stamps(range(workers), "1")
        finally:
            process.terminate()
            process.wait(TIMEOUT)

    def ms(since, until):
        return (max(stamp for stamp, _ in until) - since) / 1e6

    return [ms(start, first), memory / 1024, ms(death, stopped),
            ms(death, second)]


def compare(build, workers, rounds):
    torchrun = shutil.which("torchrun", path=os.path.dirname(sys.executable))
    options = ["--standalone", f"--nproc-per-node={workers}",
               "--max-restarts=1", "--no-python"]
    launchers = {"ddprun": [f"{build}/ddprun", *options],
                 "torchrun": [torchrun, *options]}
    results = {name: [] for name in launchers}
    for i in range(rounds):
        for name in launchers if i % 2 == 0 else reversed(launchers):
            results[name].append(
                run(launchers[name], f"{build}/bench_stamp", workers))
    rows = []
    for what, ours, theirs in zip(ROWS, zip(*results["ddprun"]),
                                  zip(*results["torchrun"])):
        rows.append([what] + [
            "{:.1f} [{:.1f}, {:.1f}]".format(*median_interval(values))
            for values in (ours, theirs)] + [
                format_ratio([b / a for a, b in zip(ours, theirs)])])
    print_table(f"Launchers, {workers} workers, {rounds} rounds",
                ["", *launchers, "torchrun / ddprun"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20,
                        help="with 2 workers; half of them with 64")
    arguments = parser.parse_args()
    compare(arguments.build, 2, arguments.rounds)
    compare(arguments.build, 64, max(arguments.rounds // 2, 1))


if __name__ == "__main__":
    main()
