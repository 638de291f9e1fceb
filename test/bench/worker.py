"""Blocks of steps of one process's arms, which take turns."""

import os
import subprocess


class Worker:
    """A process that runs blocks of steps on command."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))

    def run(self, arm, steps):
        """Milliseconds a step."""
        self.process.stdin.write(f"{arm} {steps}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"Expected a time of arm {arm}, but it ended")
        return float(answer) / steps * 1000

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def measure(command, arms, rounds, steps):
    """{arm: [ms a step in each round]}"""
    worker = Worker(command)
    for arm in arms:
        worker.run(arm, steps)  # to warm up
    times = {arm: [] for arm in arms}
    for i in range(rounds):
        for arm in arms if i % 2 == 0 else reversed(arms):
            times[arm].append(worker.run(arm, steps))
    worker.close()
    return times
