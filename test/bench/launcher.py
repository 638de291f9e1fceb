"""Compares ddprun and torchrun: start, memory, and reaction to a worker's death.

Each run starts workers that write the time of their main() and wait. The
workers use no C library, whose start would take longer than the measured time.
Start time: from the exec of the launcher to the last worker's main(). Memory:
PSS of the launcher and of all its processes except the workers. Then worker 0
is killed. Reaction time: until the last of its peers receives SIGTERM, and
until the main() of the last new worker. With two hosts, two launchers perform
the rendezvous over the loopback interface: times start at the exec of the
first launcher, the memory is the sum of both, and the peers are those on the
other host. Runs alternate (ABBA); a ratio compares two neighbouring runs.
--before names the programs of another build, whose ddprun replaces torchrun.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tables import format_ratio, format_time, print_table
from worker import alternate

ROWS = ["exec to the last worker's main(), ms",
        "agent while they run, PSS, MiB",
        "death of a worker to the last peer's SIGTERM, ms",
        "death of a worker to the last new worker's main(), ms"]
TIMEOUT = 60
# The folder of all files, including the launchers' own, so that no disk
# influences the comparison.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def wait_for(*files):
    """Waits for one of the files. Returns the numbers of the first that
    exists: nanoseconds and process id."""
    end = time.monotonic() + TIMEOUT
    while True:
        for file in filter(os.path.exists, files):
            with open(file) as lines:
                text = lines.read()
            if text.endswith("\n"):  # otherwise the file is still being written
                return [int(number) for number in text.split()]
        if time.monotonic() > end:
            sys.exit(f"Expected {files} within {TIMEOUT} s, but none came")
        time.sleep(0.005)


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


def run(launchers, build, workers):
    """Returns one number for each of ROWS. Each launcher is a host with
    `workers` workers."""
    ranks = range(len(launchers) * workers)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(dir=MEMORY))

        def stamps(ranks, *suffixes):
            return [wait_for(*(f"{folder}/main{rank}.{suffix}"
                               for suffix in suffixes)) for rank in ranks]

        for host, launcher in enumerate(launchers):
            stack.callback(stop, subprocess.Popen(
                [f"{build}/bench_stamp", f"{folder}/start{host}", *launcher,
                 f"{build}/bench_worker", f"{folder}/main"],
                env={**os.environ, "TMPDIR": folder},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        first = stamps(ranks, "0")
        pids = [pid for _, pid in first]
        starts = [wait_for(f"{folder}/start{host}")
                  for host in range(len(launchers))]
        memory = sum(pss_kib(pid) for _, agent in starts
                     for pid in [agent, *descendants(agent)] if pid not in pids)
        for rank in ranks:
            os.remove(f"{folder}/main{rank}.0")
        death = time.monotonic_ns()
        os.kill(pids[0], signal.SIGKILL)
        peers = ranks[1:] if len(launchers) == 1 else ranks[workers:]
        stopped = stamps(peers, "0.stopped")
        # torchrun counts no restart if a worker of another host has died.
        second = stamps(ranks, "0", "1")

    def ms(since, until):
        return (max(stamp for stamp, _ in until) - since) / 1e6

    return [ms(min(start for start, _ in starts), first), memory / 1024,
            ms(death, stopped), ms(death, second)]


def stop(process):
    process.terminate()
    process.wait(TIMEOUT)


def hosts_of(launcher, hosts, workers):
    """Returns the command lines of a job's launchers."""
    options = [f"--nproc-per-node={workers}", "--max-restarts=1", "--no-python"]
    if hosts == 1:
        return [[launcher, "--standalone", *options]]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    return [[launcher, *options, f"--nnodes={hosts}", "--rdzv-backend=c10d",
             f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench",
             f"--rdzv-conf=is_host={host == 0:d}"] for host in range(hosts)]


def compare(launchers, build, workers, rounds, hosts=1):
    """Compares two launchers, given as {name: program}."""
    results = alternate(launchers, rounds, lambda name: run(
        hosts_of(launchers[name], hosts, workers), build, workers))
    rows = []
    ours, theirs = launchers
    for what, a, b in zip(ROWS, zip(*results[ours]), zip(*results[theirs])):
        rows.append([what, format_time(a), format_time(b), format_ratio(b, a),
                     format_ratio(a, b)])
    where = f"{hosts} hosts of " if hosts > 1 else ""
    print_table(f"Launchers, {where}{workers} workers, {rounds} rounds",
                ["", ours, theirs, f"{theirs} / {ours}", f"{ours} / {theirs}"],
                rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=20,
                        help="with 2 workers and 1 or 2 hosts; half with 64")
    parser.add_argument("--before", help="folder of another build's programs")
    arguments = parser.parse_args()
    build = arguments.build
    launchers = {"ddprun": f"{build}/ddprun"}
    if arguments.before:
        launchers["before"] = f"{arguments.before}/ddprun"
    else:
        launchers["torchrun"] = shutil.which(
            "torchrun", path=os.path.dirname(sys.executable))
    compare(launchers, build, 2, arguments.rounds)
    compare(launchers, build, 64, max(arguments.rounds // 2, 1))
    compare(launchers, build, 2, arguments.rounds, hosts=2)


if __name__ == "__main__":
    main()
