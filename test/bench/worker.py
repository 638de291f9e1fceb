"""Runs alternating blocks of steps of one process's arms."""

import os
import subprocess


class Worker:
    """A process that runs blocks of steps on command."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))


    def run(self, arm, steps):
        """Returns milliseconds per step."""
        self.process.stdin.write(f"{arm} {steps}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"Expected a time of arm {arm}, but it ended")
        return float(answer) / steps * 1000

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def measure(order, rounds, steps):
    """Returns {name: [ms per step in each round]}.

    order: {name: (a Worker, its name of the arm)}
    """
    for worker, arm in order.values():
        worker.run(arm, steps)  # warm-up
    times = {name: [] for name in order}
    for i in range(rounds):
        for name in order if i % 2 == 0 else reversed(order):
            worker, arm = order[name]
            times[name].append(worker.run(arm, steps))
    for worker in {id(worker): worker for worker, _ in order.values()}.values():
        worker.close()
    return times
