"""Starts samples alone, under a launcher or rank by rank, and reads their output.
DDP_BIN is the folder of the built programs."""

import contextlib
import os
import re
import socket
import subprocess
import tempfile
import threading
import unittest

BIN = os.environ["DDP_BIN"]
TIMEOUT = 240  # seconds, for a job that hangs: ten times any duration
JOB_VARIABLES = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_\w+|GROUP_\w+|ROLE_\w+|MASTER_\w+|PET_\w+"
    r"|TORCHELASTIC_\w+|OMP_NUM_THREADS")


def program(name):
    return os.path.join(BIN, name)


def environment(**more):
    """Returns this environment without a launcher's variables. One thread per rank:
    sums then have the same order under every launcher. Without the library's line
    about the group, so that errors are the only lines."""
    kept = {name: value for name, value in os.environ.items()
            if not JOB_VARIABLES.fullmatch(name)}
    return {**kept, "OMP_NUM_THREADS": "1", "DDP_QUIET": "1", **more}


class Result:
    def __init__(self, code, out, err):
        self.code = code
        # ddprun prefixes each line with "[rank] ".
        self.lines = [re.sub(r"^\[\d+\] ", "", line)
                      for line in out.splitlines()]
        self.out, self.err = out, err

    def find(self, pattern):
        """Returns the groups of each line that matches the whole pattern."""
        found = [re.fullmatch(pattern, line) for line in self.lines]
        return [match.groups() for match in found if match]

    def losses(self):
        return self.find(r"(epoch \S+ step \S+): loss (\S+)")

    def hashes(self):
        """Returns the parameters' hash by rank."""
        return dict(self.find(r"rank (\d+): parameters ([0-9a-f]{16})"))

    def score(self):
        """Returns the numbers of correct and of all test images."""
        (score,) = self.find(
            r"test accuracy \S+ % \((\d+) of (\d+)\), "
            r"\d+ ranks?, \S+ s")
        return tuple(map(int, score))


def run(command, **more):
    done = subprocess.run(command, env=environment(**more), text=True,
                          capture_output=True, timeout=TIMEOUT)
    return Result(done.returncode, done.stdout, done.stderr)


def ddprun(ranks, *flags):
    return [program("ddprun"), f"--nproc-per-node={ranks}", *flags]


@contextlib.contextmanager
def deadline(processes, what):
    """Limits the time of waits for the processes. If it is over, the processes are
    killed, which ends the wait, and the test fails with `what`."""
    is_over = threading.Event()

    def end():
        is_over.set()
        for process in processes:
            process.kill()

    timer = threading.Timer(TIMEOUT, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if is_over.is_set():
            raise AssertionError(f"took more than {TIMEOUT} s: {what}")


def read_until(process, text, more=""):
    """Returns a process's output up to and including a line with both texts."""
    lines = []
    with deadline([process], f"waiting for '{text}' and '{more}'"):
        for line in process.stdout:
            lines.append(line)
            if text in line and more in line:
                return "".join(lines)
    raise AssertionError(f"ended before '{text}' and '{more}':\n" +
                         "".join(lines))


def pid_of_rank(rank, run_id):
    """Returns a worker of a job, found by its launcher's variables."""
    wanted = {f"RANK={rank}".encode(),
              f"TORCHELASTIC_RUN_ID={run_id}".encode()}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted <= set(file.read().split(b"\0")):
                    return int(pid)
        except OSError:  # ended, or another user's
            pass
    raise AssertionError(f"no rank {rank} of job {run_id}")


@contextlib.contextmanager
def reserved_port():
    """Reserves a port: bound, but without a listener, so that only a program that sets
    SO_REUSEADDR, too, such as c10d's store, can listen on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield str(holder.getsockname()[1])


@contextlib.contextmanager
def each_rank(ranks, command):
    """Starts every rank as a separate process without a launcher to stop it, and kills
    all ranks at the end."""
    with reserved_port() as port:
        processes = [
            subprocess.Popen(
                command, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(RANK=str(rank), LOCAL_RANK=str(rank),
                                WORLD_SIZE=str(ranks),
                                LOCAL_WORLD_SIZE=str(ranks),
                                MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
            for rank in range(ranks)]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.communicate()


def collect(processes):
    """Returns the results of processes that end by themselves."""
    with deadline(processes, f"{processes[0].args} on {len(processes)} ranks"):
        outputs = [process.communicate() for process in processes]
    return [Result(process.returncode, *output)
            for process, output in zip(processes, outputs)]


def run_each(ranks, command):
    with each_rank(ranks, command) as processes:
        return collect(processes)


class JobTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def start(self, command, **more):
        """Starts a job. Its output is in its `stdout`."""
        process = subprocess.Popen(command, env=environment(), text=True,
                                   stdout=subprocess.PIPE, **more)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        return process

    def succeed(self, command, **more):
        result = run(command, **more)
        self.assertEqual(result.code, 0, result.out + result.err)
        return result

    def assert_one_line(self, text, pattern):
        """Checks that `text` is one line and contains the pattern."""
        self.assertRegex(text, pattern)
        self.assertEqual(text.count("\n"), 1, text)
