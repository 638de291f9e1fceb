"""Injects faults at every stage of random ddprun jobs.

After each fault nothing is left of the job, and the exit codes and messages of
ddprun match the fault.

    python3 stress.py --ddprun build/launcher/bin/ddprun --seed 1 --count 1000

Needs root, or user namespaces, and util-linux and iproute2: each run isolates
itself as a machine of its own. Losing packets needs nftables, and filling memory
needs cgroups of version 1. A failure names the case, which can be repeated:
--seed 1 --only 17.
"""

import argparse
import collections
import os
import random
import re
import signal
import sys
import time

import cut
import faults
import job as jobs
import sandbox as machine

SKIPPED = 77
HABITS = ("deaf", "child", "group", "daemon", "hidden")


class Wrong(Exception):
    pass


def draw(box, rng, name):
    fault, stages, needs = faults.FAULTS[name]
    case = jobs.Case(
        hosts=rng.choice(needs.get("hosts", (1, 1, 1, 2, 3))),
        workers=rng.randint(1, 3), restarts=rng.choice((0, 0, 1, 2)),
        has_cgroup=rng.random() < 0.5)
    stage = rng.choice(stages)
    if stage == "restarting":
        case.restarts = max(case.restarts, 1)
    if case.hosts > 1:
        case.elastic = needs.get("elastic", rng.random() < 0.3)
        case.static = (not case.elastic
                       and needs.get("static", rng.random() < 0.4))
    habits = needs.get("habits", HABITS)
    if habits:
        case.habits = tuple(rng.sample(habits, rng.choice((0, 0, 1, 2))))
    if needs.get("crash"):
        case.habits = ("fail",)
    case.has_little_memory = needs.get("memory", False) and bool(box.memory)
    return fault, stage, case, needs


def bring_to(run, stage):
    """Starts the hosts and waits for the stage of the fault. In the rendezvous the
    last of several hosts starts after the fault."""
    job, hosts = run.job, run.case.hosts
    late = 1 if stage == "rendezvous" and hosts > 1 else 0
    for _ in range(hosts - late):
        job.start()
    moment = run.random.choice((0, 0, run.random.uniform(0, 0.02)))
    if stage in ("starting", "running", "restarting", "ending"):
        what = "started" if stage == "starting" else "ready"
        if not job.wait(lambda: job.ready() > 0 or job.is_over()
                        or (what == "started" and job.events)):
            raise Wrong(f"no worker is {what}")
    if stage == "restarting":
        machine.kill(run.any_worker(), signal.SIGKILL)
    elif stage == "ending":
        job.release()
    elif stage == "rendezvous":
        moment = run.random.uniform(0, 0.1)
    if moment and stage != "running":
        job.wait(lambda: False, moment)
    return late


def explains(code, text):
    """Returns whether ddprun's output fits its exit code."""
    if code == 0:
        return True
    if code == -signal.SIGKILL or code < 0:
        return True  # no output was possible
    if code > 128:
        return signal.Signals(code - 128).name in text
    if code == 3:
        return "exit code 3" in text
    return "ddprun: " in text


def check_ends(run, expected):
    for host in run.job.hosts:
        code = host.status()
        if code not in expected[host.number]:
            raise Wrong(f"host {host.number} ended with {code}, but expected "
                        f"{sorted(expected[host.number])}")
        if not explains(code, host.text()):
            raise Wrong(f"host {host.number} ended with {code} and does not "
                        "say why")
    texts = "".join(host.text() for host in run.job.hosts)
    if run.words and run.words not in texts:
        raise Wrong(f"nobody says {run.words!r}")
    if run.attempts:
        told = {int(number) for number in
                re.findall(r"again: restart (\d+) of", texts)}
        if told != set(range(1, run.attempts)):
            raise Wrong(f"expected {run.attempts} attempts")
    for what in ("internal error", "Sanitizer", "terminate called"):
        if what in texts:
            raise Wrong(f"somebody says {what!r}")


def check_worlds(run):
    """Checks that no rank occurs twice in one world, and none exceeds its size."""
    for world, told in run.job.worlds().items():
        for what, ranks in told.items():
            if len(set(ranks)) != len(ranks) or max(ranks) >= world[2]:
                raise Wrong(f"world {world} has {what} ranks {sorted(ranks)}")


def check_left(run, patience):
    """Returns the seconds until no process was left."""
    begin = time.monotonic()
    if not run.box.wait(lambda: not run.box.processes(), patience):
        raise Wrong(f"after {patience} s there is "
                    + "; ".join(run.box.left()))
    seconds = time.monotonic() - begin
    left = run.box.left()
    if run.thaws:  # a process is still in it
        left = [what for what in left if what.split()[0] != "cgroup"]
    if run.dead:  # files of a killed host stay
        left = [what for what in left if what.split()[0] not in
                ("file", "cgroup")]
    if left:
        raise Wrong("there is " + "; ".join(left))
    return seconds


def run_case(box, options, number):
    """Takes the faults in turn; all other properties are random."""
    rng = random.Random(f"{options.seed}.{number}")
    names = [name for name in faults.FAULTS
             if options.fault is None or options.fault in name]
    name = names[number % len(names)]
    fault, stage, case, needs = draw(box, rng, name)
    switch = cut.Switch(case.hosts) if needs.get("cables") else None
    job = jobs.Job(box, case, options.ddprun, number,
                   *((switch.address(0), [switch.enter(host) for host in
                                          range(case.hosts)])
                     if switch else ()))
    run = faults.Run(job, stage, rng)
    run.switch = switch
    run.words = run.attempts = run.dead = None
    run.thaws = False
    run.told = ""
    try:
        late = 0
        if needs.get("starts", True):
            late = bring_to(run, stage)
        expected = fault(run)
        for _ in range(late):
            host = job.start()
            expected.setdefault(host.number, {0, 1, *expected[0]})
        if rng.random() < 0.5:
            worlds = job.ready()
            job.wait(lambda: job.ready() > worlds or job.is_over(), 0.3)
        # Workers that end now would make a job succeed that is expected to
        # fail.
        job.wait(lambda: all(host.status() is not None
                             or 0 in expected[host.number]
                             for host in job.hosts), 10)
        job.release()
        if not job.wait(job.is_over):
            raise Wrong("hosts " + ", ".join(
                str(host.number) for host in job.hosts
                if host.status() is None) + " do not end")
        if run.thaws:
            box.thaw()
        seconds = check_left(run, options.patience)
        job.read()
        check_ends(run, expected)
        check_worlds(run)
        return name, stage, seconds, None
    except Wrong as error:
        said = "".join(f"\n--- host {host.number} ({host.status()})\n"
                       + host.text() for host in job.hosts)
        return name, stage, 0, (
            f"case {number} of seed {options.seed}: {name} ({run.told}), "
            f"{stage}: {error}\n{case}{said}\n{job.worlds()}")
    finally:
        box.clear()
        job.close()
        if switch:
            switch.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ddprun", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--only", type=int, help="this case alone")
    parser.add_argument("--fault", help="those that have it in their name")
    parser.add_argument("--patience", type=float, default=20, help="seconds in "
                        "which all must be gone")
    options = parser.parse_args()
    options.ddprun = os.path.abspath(options.ddprun)
    if not machine.enter():
        print("skipped: no namespaces can be made")
        sys.exit(SKIPPED)
    box = machine.Sandbox()
    failures, times = [], []
    counts = collections.Counter()
    numbers = range(options.count) if options.only is None else [options.only]
    begin = time.monotonic()
    try:
        for number in numbers:
            name, stage, seconds, failure = run_case(box, options, number)
            counts[name, stage] += 1
            times.append(seconds)
            if failure:
                failures.append(failure)
                print(failure, flush=True)
    finally:
        box.close()
    times.sort()
    for (name, stage), count in sorted(counts.items()):
        print(f"{count:5} x {name}, {stage}")
    print(f"{len(times)} faults in {time.monotonic() - begin:.0f} s, "
          f"{len(failures)} wrong; after the end all was gone in "
          f"{times[len(times) // 2] * 1e3:.1f} ms (median), "
          f"{times[len(times) * 99 // 100] * 1e3:.1f} (99 %), "
          f"{times[-1] * 1e3:.1f} (most)")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
