"""Ten checks for a machine with one GPU that nobody has tried yet. Prints one
verdict line for each check; the output of every program is in a file of the
log folder. Exits with 1 unless no check failed.

usage: gpu_day.py [--stand-in] [--quick] [--only REGEX] BUILD LOGS

BUILD is a build folder with the target gpu_tests. With --stand-in the programs
run over the stand-in for the GPU (test/fake_gpu), as a rehearsal of this
program; "not here" then names each check that the stand-in cannot do. --quick
repeats nothing.

A check that has asserted nothing is a failure.
"""

import argparse
import glob
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

PROGRAM_LIMIT = 300  # seconds
# Output of two_ranks_faults.cpp after which a fault is injected.
TRAINS = re.compile(r"rank \d trains")


class Failed(Exception):
    pass


class NotHere(Exception):
    """This machine lacks what the check needs."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


class Rank:
    """One of two ranks in a process of its own, without a launcher, so that
    each rank has to end by itself."""

    def __init__(self, day, scenario, rank, port, environment):
        self.log = f"{day.logs}/{day.name}.rank{rank}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [day.program("gpu_two_ranks"), scenario], stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(day.environment, RANK=str(rank), WORLD_SIZE="2",
                         LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                         MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                         **environment))

    def output(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def wait_for(self, regex, limit):
        """Waits until the output matches."""
        end = time.monotonic() + limit
        while not re.search(regex, self.output()):
            expect(self.process.poll() is None and time.monotonic() < end,
                   f"no output {regex!r} within {limit} s: see {self.log}")
            time.sleep(0.01)  # polls a file

    def end(self, limit):
        """Waits for the end of the process and returns its exit code."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"still runs after {limit} s: see {self.log}")

    def ends_with_error(self, regex, limit):
        """Expects exit code 1, thus no std::terminate and no signal, and an
        error that matches."""
        code = self.end(limit)
        expect(code == 1, f"exit code 1 expected, but got {code}: see "
                          f"{self.log}")
        expect(re.search(regex, self.output()),
               f"no error {regex!r}: see {self.log}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Day:
    def __init__(self, given):
        self.build = os.path.abspath(given.build)
        self.logs = os.path.abspath(given.logs)
        self.stand_in = given.stand_in
        self.quick = given.quick
        self.only = given.only
        self.name = ""
        self.counts = {"passed": 0, "FAILED": 0, "not here": 0}
        self.environment = dict(os.environ, OMP_NUM_THREADS="1")
        if given.stand_in:
            self.environment.update(
                LD_LIBRARY_PATH=f"{self.build}/fake_gpu",
                LD_PRELOAD="libcudart.so.13:libcuda.so.1:libnccl.so.2",
                FAKE_GPU_DEVICES="1", FAKE_GPU_MODE="priority",
                FAKE_GPU_SEED="1")

    def program(self, name):
        path = f"{self.build}/bin/{name}"
        expect(os.path.exists(path), f"{path} is not built")
        return path

    def times(self, count):
        return 1 if self.quick else count

    def check(self, name, function, *arguments):
        if not re.search(self.only, name):
            return
        self.name = name
        start = time.monotonic()
        try:
            verdict, text = "passed", function(self, *arguments)
        except Failed as error:
            verdict, text = "FAILED", error
        except NotHere as reason:
            verdict, text = "not here", reason
        self.counts[verdict] += 1
        print(f"{verdict:9} {name:32} {time.monotonic() - start:5.0f} s  "
              f"{text}", flush=True)

    def run(self, command, limit=PROGRAM_LIMIT, codes=(0,), **environment):
        """Runs a program and returns its output, which is also appended to the
        check's log."""
        log = f"{self.logs}/{self.name}.log"
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=limit,
                env=dict(self.environment, **environment))
        except subprocess.TimeoutExpired as error:
            with open(log, "ab") as file:
                file.write(error.stdout or b"")
            raise Failed(f"still runs after {limit} s: see {log}")
        with open(log, "a") as file:
            file.write(f"$ {' '.join(command)}\n{done.stdout}")
        expect(done.returncode in codes,
               f"exit code {done.returncode}: see {log}")
        return done.stdout

    def two_ranks(self, scenario, **environment):
        """Runs both ranks by ddprun and expects each to say that it is
        right."""
        output = self.run([self.program("gpu_two_ranks"), scenario],
                          **environment)
        for rank in range(2):
            expect(f"rank {rank} is right" in output,
                   f"rank {rank} has checked nothing")
        return output

    def start_ranks(self, scenario, **environment):
        port = free_port()
        return [Rank(self, scenario, rank, port, environment)
                for rank in range(2)]

    def gpu_count(self):
        if self.stand_in:
            return int(self.environment["FAKE_GPU_DEVICES"])
        return len(self.run(["nvidia-smi", "-L"]).strip().splitlines())

    def used_memory(self):
        """Returns the used memory of each GPU in MiB."""
        if self.stand_in:
            return []  # ends with the process
        return [int(line) for line in self.run(
            ["nvidia-smi", "--query-gpu=memory.used",
             "--format=csv,noheader,nounits"]).split()]


def ask(day, program):
    """What has really run: a program that skipped all of its cases passes in
    ctest."""
    gpus = day.gpu_count()
    if program == "gpu_ddp_test" and gpus < 2:
        raise NotHere("its ranks are threads, which need 2 GPUs; check 2 has "
                      "ranks in processes")
    # Over the stand-in a program runs the cases that it would run on a GPU.
    output = day.run([day.program(program),
                      *["~[stand-in]"] * day.stand_in])
    counts = re.findall(r"(\d+) assertions?", output)
    skipped = output.count("skipped: ")
    expect(counts and int(counts[-1]) > 0, "nothing was asserted")
    expect(skipped == 0 or gpus < 3, f"{skipped} cases were skipped on {gpus} "
                                     "GPUs")
    return f"{counts[-1]} assertions, {skipped} cases need more GPUs"


def repeat_scenario(day, scenario):
    count = day.times(5)
    for _ in range(count):
        day.two_ranks(scenario)
    return f"{count} times"


def refuse_duplicate(day):
    """Two ranks of one host on one GPU end at once, with NCCL's reason."""
    ranks = day.start_ranks("share_a_gpu", NCCL_DEBUG="WARN",
                            CUDA_VISIBLE_DEVICES="0")
    try:
        for rank in ranks:
            rank.ends_with_error("Duplicate GPU|invalid usage", 60)
    finally:
        for rank in ranks:
            rank.kill()
    return "both ranks say so"


def die_in_collective(day):
    """SIGKILL at a random moment: the other rank says within ten seconds which
    rank has left, and nothing of either stays on the GPU."""
    dice = random.Random(day.environment.get("DDP_SEED", "1"))
    before = day.used_memory()
    count = day.times(20)
    for _ in range(count):
        ranks = day.start_ranks("train_on")
        try:
            for rank in ranks:
                rank.wait_for(TRAINS, 120)
            time.sleep(dice.uniform(0, 0.3))  # the moment
            victim = dice.randrange(2)
            ranks[victim].kill()
            ranks[1 - victim].ends_with_error(
                f"rank {victim}|connection to rank 0", 12)
        finally:
            for rank in ranks:
                rank.kill()
    after = day.used_memory()
    for mine, theirs in zip(before, after):
        expect(theirs < mine + 64,
               f"{mine} MiB of the GPU were used before, {theirs} after")
    return f"{count} deaths"


def stall(day):
    """A stopped rank: the other one ends at the group's time-out."""
    ranks = day.start_ranks("train_on", DDP_TEST_TIMEOUT="5")
    try:
        for rank in ranks:
            rank.wait_for(TRAINS, 120)
        ranks[1].process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        ranks[0].ends_with_error("timed out|timeout|time-out|5000|took longer",
                                 40)
        seconds = time.monotonic() - start
        expect(seconds > 3, f"rank 0 ended after {seconds:.1f} s, before the "
                            "time-out of 5 s")
        return f"ended after {seconds:.0f} s"
    finally:
        for rank in ranks:
            rank.kill()


def find_host_waits(day):
    output = day.two_ranks("host_waits")
    return f"{output.count('no wait in') // 2} options and exchanges"


def delay_producers(day):
    """Missing waits: without them a delayed gradient is read too early."""
    day.two_ranks("train", DDP_TEST_DELAY_MS="30")
    if day.stand_in:
        raise NotHere("a kernel takes no time on the stand-in, whose modes "
                      "delay all work instead; the program has run")
    return "every gradient 30 ms late"


def change_allocator(day, name, value):
    if day.stand_in and name != "PYTORCH_NO_CUDA_MEMORY_CACHING":
        raise NotHere(f"the stand-in has no {value}")
    for scenario in ("train", "life_cycle"):
        day.two_ranks(scenario, **{name: value})
    return f"{name}={value}"


def sanitize(day, tool):
    if day.stand_in:
        raise NotHere("compute-sanitizer needs a GPU")
    if not shutil.which("compute-sanitizer"):
        raise NotHere("no compute-sanitizer in PATH")
    # NCCL asks for kernels of other GPUs, and handles the error.
    options = ["--report-api-errors", "no"] if tool == "memcheck" else []
    output = day.run(["compute-sanitizer", "--tool", tool, *options,
                      "--error-exitcode", "9", day.program("gpu_nccl_test")],
                     limit=900)
    expect("ERROR SUMMARY: 0 errors" in output, "no summary without errors")
    return "0 errors in gpu_nccl_test"


def end_by_fault(day, scenario, error):
    """Rank 1 fails and stays failed: both ranks end with an error, not with a
    signal from a destructor that throws."""
    if day.stand_in and scenario == "fail_on_device":
        raise NotHere("a failed kernel does not poison the stand-in")
    ranks = day.start_ranks(scenario)
    try:
        ranks[1].ends_with_error(error, 120)
        ranks[0].ends_with_error("rank 1", 30)
    finally:
        for rank in ranks:
            rank.kill()
    return "both ranks end with an error"


def ask_doctor(day):
    if day.stand_in:
        raise NotHere("the doctor counts GPUs by nvidia-smi")
    output = day.run([day.program("ddprun"), "--doctor"])
    expect("over nccl" in output, "the doctor's all-reduce is not NCCL's")
    return "no error"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("build")
    parser.add_argument("logs")
    given = parser.parse_args()
    os.makedirs(given.logs, exist_ok=True)
    for old in glob.glob(f"{glob.escape(given.logs)}/*.log"):
        os.remove(old)
    day = Day(given)
    for program in ("gpu_nccl_test", "gpu_dp_test", "gpu_ddp_test"):
        day.check(f"1.{program}", ask, program)
    for scenario in ("train", "life_cycle", "leave_queued"):
        day.check(f"2.{scenario}", repeat_scenario, scenario)
    day.check("3.duplicate", refuse_duplicate)
    day.check("4.death", die_in_collective)
    day.check("5.stall", stall)
    day.check("6.host_waits", find_host_waits)
    day.check("7.delays", delay_producers)
    day.check("8.no_caching", change_allocator,
              "PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    day.check("8.expandable_segments", change_allocator,
              "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    day.check("8.malloc_async", change_allocator,
              "PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    for tool in ("memcheck", "initcheck"):
        day.check(f"9.{tool}", sanitize, tool)
    for scenario, error in (("out_of_memory", "out of memory|would exceed"),
                            ("fail_on_device", "device-side assert"),
                            ("abort_group", "abort")):
        day.check(f"10.{scenario}", end_by_fault, scenario, error)
    day.check("10.doctor", ask_doctor)
    print(", ".join(f"{count} {verdict}"
                    for verdict, count in day.counts.items())
          + f"; logs in {day.logs}")
    sys.exit(1 if day.counts["FAILED"] or not day.counts["passed"] else 0)


if __name__ == "__main__":
    main()
