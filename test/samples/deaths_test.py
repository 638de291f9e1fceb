"""ddprun jobs in which one rank is killed at a random moment of start-up, training
or end. Each job ends in time with the rank's exit code, and the survivors name the
rank. Plain, and once all ranks have joined also in a shell that hides the end from
ddprun. ctest runs a few; to run more:

    DDP_BIN=build/release/bin python3 test/samples/deaths_test.py \\
        --count=100 --seed=1
"""

import argparse
import collections
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid

from jobs import ddprun, environment, program

RANKS = 3
BOUND = 15  # seconds from the kill to the end of the job
START_BOUND = 120  # until the rank starts; for a whole undisturbed job
POLL = 0.01

# Commands of the jobs. Their undisturbed duration is measured once.
PROGRAMS = {
    "minimal": [program("minimal")],
    "parameter_server": [program("parameter_server"), "--mode=async",
                         "--epochs=4"],
}

Job = collections.namedtuple("Job", "program is_hidden rank moment")


class Failure(Exception):
    pass


def command_of(job):
    command = PROGRAMS[job.program]
    if job.is_hidden:
        return ["sh", "-c", " ".join(command) + " || echo has failed"]
    return command


def processes_of(run_id):
    """Returns (rank, program) by pid, for a job's workers and their children."""
    found = {}
    wanted = f"TORCHELASTIC_RUN_ID={run_id}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if wanted in variables:
                rank = next(int(entry[5:]) for entry in variables
                            if entry.startswith(b"RANK="))
                found[int(pid)] = rank, os.readlink(f"/proc/{pid}/exe")
        except (OSError, StopIteration):  # the process has ended, or begins
            pass
    return found


def end_all(process, run_id):
    process.kill()
    for pid in processes_of(run_id):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def play(job, undisturbed=None):
    """Runs a job. Returns the seconds from the kill to the end (from the start if
    no process was left to kill), whether it was killed, its code and its output.

    undisturbed: output of the job without a kill."""
    run_id = "deaths-" + uuid.uuid4().hex
    with tempfile.TemporaryFile() as out:
        start = time.monotonic()
        process = subprocess.Popen(
            [*ddprun(RANKS, f"--rdzv-id={run_id}"), *command_of(job)],
            env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            killed = kill_rank(process, job, run_id, start, out)
            since = killed or start
            limit = since + (BOUND if killed else START_BOUND)
            try:
                code = process.wait(max(limit - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                raise Failure(f"has not ended {BOUND} s after the kill") from None
            took = time.monotonic() - since
            left = processes_of(run_id)
            if left:
                raise Failure(f"left processes: {left}")
            out.seek(0)
            text = out.read().decode(errors="replace")
            check(job, bool(killed), code, text, undisturbed)
            return took, bool(killed), code, text
        except Failure as failure:
            states = "\n".join(f"{pid}: {entry}" for pid, entry in
                               processes_of(run_id).items())
            end_all(process, run_id)
            process.wait()
            out.seek(0)
            text = out.read().decode(errors="replace")
            raise Failure(f"{failure}\n{states}\n{text}") from None


def kill_rank(process, job, run_id, start, out):
    """Returns the time of the kill; None if the rank had ended before. A kill that
    is hidden counts from the program's first line, which says that all ranks have
    joined: without the launcher's help the others wait for a rank that does not
    join."""
    rank = None
    try:
        while process.poll() is None:
            now = time.monotonic()
            if job.is_hidden and not os.pread(out.fileno(), 1, 0):
                start = now
            rank = rank or open_rank(job, run_id)
            if rank and select.select([rank], [], [], 0)[0]:
                return None
            if rank and now - start >= job.moment:
                signal.pidfd_send_signal(rank, signal.SIGKILL)
                return time.monotonic()
            if now - start > START_BOUND:
                raise Failure("the rank has not come")
            time.sleep(POLL)
        return None
    finally:
        if rank:
            os.close(rank)


def open_rank(job, run_id):
    """Returns a pidfd of the job's rank, or None before the rank starts."""
    path = os.path.realpath(PROGRAMS[job.program][0])
    for pid, entry in processes_of(run_id).items():
        if entry == (job.rank, path):
            try:
                return os.pidfd_open(pid)
            except ProcessLookupError:
                pass
    return None


# Messages of the shell and of an exception. Without the shell ddprun may end a
# survivor before its message.
FAILED = re.compile(r"\[(\d)\] (?:has failed$|terminate called|.*what\(\))")


def check(job, was_killed, code, text, undisturbed):
    if not was_killed:
        if code != 0:
            raise Failure(f"nobody was killed, but it ended with {code}")
        return
    if job.is_hidden and code != 0:
        raise Failure(f"ended with {code}, expected 0 of the shells")
    # The signal may arrive when the rank has begun to exit, after all its work.
    was_done = len(text.splitlines()) == len(undisturbed.splitlines())
    if not job.is_hidden and code != 137 and not (code == 0 and was_done):
        raise Failure(f"ended with {code}, expected 137 of the killed rank")
    failed = {match[1] for match in map(FAILED.match, text.splitlines())
              if match} - {str(job.rank)}
    for rank in failed:
        own = "\n".join(line for line in text.splitlines()
                        if line.startswith(f"[{rank}] "))
        if not re.search(rf"\brank {job.rank}\b", own):
            raise Failure(f"rank {rank} does not name rank {job.rank}")


def undisturbed_run(name):
    """Returns duration and output."""
    took, was_killed, code, text = play(
        Job(name, is_hidden=False, rank=0, moment=START_BOUND))
    if was_killed or code != 0:
        raise Failure(f"undisturbed, it ended with {code}:\n{text}")
    return took, text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", choices=sorted(PROGRAMS))
    parser.add_argument("--show", action="store_true", help="what each job says")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    names = [options.program] if options.program else sorted(PROGRAMS)
    undisturbed = {name: undisturbed_run(name) for name in names}
    failures, longest, killed = 0, 0, 0
    for number in range(options.count):
        name = names[number % len(names)]
        duration, prints = undisturbed[name]
        job = Job(name, is_hidden=number // len(names) % 2 == 1,
                  rank=draw.randrange(RANKS),
                  moment=draw.uniform(0, duration))
        try:
            took, was_killed, code, text = play(job, prints)
            killed += was_killed
            longest = max(longest, took) if was_killed else longest
            print(f"{number}: {job}: "
                  f"{'ended' if was_killed else 'was over'} after {took:.2f} s "
                  f"with {code}", flush=True)
            if options.show:
                print(text)
        except Failure as failure:
            failures += 1
            print(f"{number}: {job}: {failure}", flush=True)
    print(f"{options.count} jobs of seed {options.seed}: {killed} ranks killed, "
          f"at most {longest:.1f} s from the kill to the end, "
          f"{failures} failures")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
