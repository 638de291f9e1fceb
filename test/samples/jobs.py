"""Starts the samples, alone, under a launcher or rank by rank, and reads what
they print. The folder of the built programs is in DDP_BIN."""

import os
import re
import socket
import subprocess
import tempfile
import unittest

BIN = os.environ["DDP_BIN"]
TIMEOUT = 240  # a bound for a job that hangs, no expectation
JOB_VARIABLES = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_\w+|GROUP_\w+|ROLE_\w+|MASTER_\w+|PET_\w+"
    r"|TORCHELASTIC_\w+|OMP_NUM_THREADS")


def program(name):
    return os.path.join(BIN, name)


def environment(**more):
    """This one without what a launcher sets. One thread a rank: sums are then
    formed in one order, whoever starts the ranks."""
    kept = {name: value for name, value in os.environ.items()
            if not JOB_VARIABLES.fullmatch(name)}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


class Result:
    def __init__(self, code, out, err):
        self.code = code
        # ddprun puts "[rank] " before a line.
        self.lines = [re.sub(r"^\[\d+\] ", "", line)
                      for line in out.splitlines()]
        self.out, self.err = out, err

    def find(self, pattern):
        """The groups of each line that the pattern matches as a whole."""
        found = [re.fullmatch(pattern, line) for line in self.lines]
        return [match.groups() for match in found if match]

    def losses(self):
        return self.find(r"(epoch \S+ step \S+): loss (\S+)")

    def hashes(self):
        """By rank."""
        return dict(self.find(r"rank (\d+): parameters ([0-9a-f]{16})"))

    def score(self):
        """Correct and all test images."""
        (score,) = self.find(
            r"test accuracy \S+ % \((\d+) of (\d+)\), "
            r"\d+ (?:rank|replica)s?, \S+ s")
        return tuple(map(int, score))


def run(command, **more):
    done = subprocess.run(command, env=environment(**more), text=True,
                          capture_output=True, timeout=TIMEOUT)
    return Result(done.returncode, done.stdout, done.stderr)


def ddprun(ranks, *flags):
    return [program("ddprun"), f"--nproc-per-node={ranks}", *flags]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start_each(ranks, command):
    """Every rank as a process of its own, with no launcher to stop it."""
    port = free_port()
    return [
        subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE,
                         env=environment(RANK=str(rank), LOCAL_RANK=str(rank),
                                         WORLD_SIZE=str(ranks),
                                         LOCAL_WORLD_SIZE=str(ranks),
                                         MASTER_ADDR="127.0.0.1",
                                         MASTER_PORT=port))
        for rank in range(ranks)]


def collect(processes):
    """The results of processes that end by themselves."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT)
                   for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Result(process.returncode, *output)
            for process, output in zip(processes, outputs)]


def run_each(ranks, command):
    return collect(start_each(ranks, command))


class JobTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def succeed(self, command, **more):
        result = run(command, **more)
        self.assertEqual(result.code, 0, result.out + result.err)
        return result

    def assert_one_line(self, text, pattern):
        """`text` is one line, and the pattern is found in it."""
        self.assertRegex(text, pattern)
        self.assertEqual(text.count("\n"), 1, text)
