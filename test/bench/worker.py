"""Runs alternating blocks of steps of processes' arms."""

import os
import subprocess


class Workers:
    """Processes that run blocks of steps on command. The first one answers.

    variables: of each process, beside this one's. enter: for each process, a
    function that it calls first.
    """

    def __init__(self, command, variables=({"CUDA_VISIBLE_DEVICES": ""},),
                 enter=None):
        self.processes = [subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=enter and enter[i], env={**os.environ, **own})
            for i, own in enumerate(variables)]

    def ask(self, command):
        """Returns the numbers of the answer to a command to all."""
        for process in self.processes:
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
        answer = self.processes[0].stdout.readline()
        if not answer:
            raise SystemExit(
                f"Expected an answer to {command}, but the process ended")
        return [float(number) for number in answer.split()]

    def run(self, arm, steps):
        """Returns milliseconds per step."""
        return self.ask(f"{arm} {steps}")[0] / steps * 1000

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(60)


def alternate(names, rounds, run):
    """Returns {name: [the result of run(name) in each round]}: in one order in
    even rounds and in reverse order in odd rounds (ABBA)."""
    results = {name: [] for name in names}
    for i in range(rounds):
        for name in names if i % 2 == 0 else reversed(names):
            results[name].append(run(name))
    return results


def measure(order, rounds, steps):
    """Returns {name: [ms per step in each round]} and closes the workers.

    order: {name: (the workers, their name of the arm)}
    """
    def run(name):
        workers, arm = order[name]
        return workers.run(arm, steps)

    for name in order:
        run(name)  # warm-up
    times = alternate(order, rounds, run)
    for workers, _ in order.values():
        workers.close()
    return times
