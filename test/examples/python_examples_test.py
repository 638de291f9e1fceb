"""Runs the Python example of docs/from_torchrun.md under ddprun and torchrun.

usage: python_examples_test.py DDPRUN   (with a Python that imports torch)
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

DDPRUN = os.path.abspath(sys.argv.pop(1))
PAGE = os.path.join(os.path.dirname(__file__), "../../docs/from_torchrun.md")
TIMEOUT = 240  # seconds, for a job that hangs: ten times any duration
# Each line is one write: the ranks share a pipe, and an unbuffered print() writes its
# end separately.
TRAINING = """
import sys

dist.init_process_group("gloo")
rank, steps = dist.get_rank(), int(sys.argv[1])
step = 0
while step != steps:
    step += 1
    report(f"step {step}")
    text = open(progress).read() if progress else "nothing"
    dist.barrier()
    if step == 1:
        print(f"reported {text}\\n", end="", flush=True)
    if stop_requested():
        print(f"saved {step}\\n", end="", flush=True)
        break
dist.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@contextlib.contextmanager
def job(launcher, steps, **more):
    """Starts the example with two ranks; their first step has ended."""
    with open(PAGE) as page:
        (example,) = re.findall(r"^```python\n(.*?)^```$", page.read(), re.M | re.S)
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "train.py")
        with open(script, "w") as file:
            file.write(example + TRAINING)
        command = [*launcher, "--nproc-per-node=2", script, str(steps)]
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("PET_")}
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**env, "PYTHON_EXEC": sys.executable, **more})
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def lines(process, word, count):
    """Reads the output until `count` lines have the word, and returns what follows
    it in each."""
    found = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, f"the output has ended without {count} lines with {word}"
        found += re.findall(rf"\b{word} (.*)", line)
    return found


def end_wait(*_):
    raise TimeoutError(f"the job still ran after {TIMEOUT} s")


class PythonExamples(unittest.TestCase):
    def setUp(self):
        signal.signal(signal.SIGALRM, end_wait)
        signal.alarm(TIMEOUT)

    def test_progress_is_reported_to_ddprun(self):
        with job([DDPRUN, "--hang-timeout=600"], 2) as process:
            self.assertEqual(lines(process, "reported", 2), ["step 1"] * 2)
            self.assertEqual(process.wait(), 0)

    def test_without_options_and_under_torchrun_both_do_nothing(self):
        for launcher in [DDPRUN], TORCHRUN:
            with self.subTest(launcher), job(launcher, 2) as process:
                self.assertEqual(lines(process, "reported", 2), ["nothing"] * 2)
                self.assertEqual(process.wait(), 0)

    def test_a_signal_lets_all_ranks_save_the_same_step(self):
        with job([DDPRUN, "--on-preempt=USR1:120"], -1) as process:
            lines(process, "reported", 2)
            process.send_signal(signal.SIGUSR1)
            self.assertEqual(len(set(lines(process, "saved", 2))), 1)
            self.assertEqual(process.wait(), 0)

    def test_a_request_of_one_host_lets_all_ranks_save_the_same_step(self):
        with tempfile.TemporaryDirectory() as folder:
            with job(TORCHRUN, -1, DDPRUN_JOB_DIR=folder) as process:
                lines(process, "reported", 2)
                with open(os.path.join(folder, "stop_1"), "w") as file:
                    file.write("signal=SIGUSR1 seconds=60\n")
                self.assertEqual(len(set(lines(process, "saved", 2))), 1)
                self.assertEqual(process.wait(), 0)


if __name__ == "__main__":
    unittest.main()
