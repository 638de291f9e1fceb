"""A training on two hosts with two ranks each loses a host, resumes from its
checkpoint on the other host, and accepts the first host again when it returns. Each
step equals that of an undisturbed training.

If namespaces can be created, the host is lost by cutting its cable, so that the
other host does not notice its end; otherwise, over the loopback, its connections
break."""

import collections
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

from jobs import (JobTest, ddprun, deadline, pid_of_rank, program, read_until,
                  reserved_port)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../launcher/stress"))
import cut
import sandbox as machine

DIGITS = os.path.join(HERE, "../../samples/data/digits.csv")
BATCH = 64
STEPS = 11  # in one epoch
EPOCHS = 9
TOTAL = STEPS * EPOCHS
LOST_AT, BACK_AT = 16, 36  # steps; every fourth has a checkpoint
KEEP_ALIVE = os.environ.get("DDP_KEEP_ALIVE", "0.5")  # seconds; default: 5
MOST_POINTS = 0.5  # between two accuracies
MOST_LOSS = 1e-3  # between two losses of one step; rounding makes 1e-6
RUN_ID = f"elastic_test_{os.getpid()}"


def split(images):
    """Returns the images of two files for `train`, which tests with every fifth image
    of a class. The first file has STEPS whole training batches, so that any number of
    ranks makes the same steps; the second has all other images, for testing."""
    seen = collections.Counter()
    first, rest, learned = [], [], 0
    for image in images:
        if learned == STEPS * BATCH:
            rest += [image] * 5
            continue
        first.append(image)
        seen[image[-1]] += 1
        learned += seen[image[-1]] % 5 != 0
    return first, rest


def power_off(process):
    if process.poll() is None:
        machine.power_off(process.pid)
        process.wait()


class Loopback:
    """Both hosts are this machine."""
    address = "127.0.0.1"

    def start(self, test, host, command, **more):
        return test.start(command, **more)

    def lose(self, host, process):
        power_off(process)

    def mend(self, host):
        pass


class Cables:
    """Hosts with networks of their own."""
    address = cut.Switch.address(0)

    def __init__(self, switch):
        self.switch = switch

    def start(self, test, host, command, **more):
        return test.start(command, preexec_fn=self.switch.enter(host), **more)

    def lose(self, host, process):
        self.switch.cut(host, "silence")
        power_off(process)

    def mend(self, host):
        self.switch.heal(host, "silence")


class World:
    """Output of one group of workers: its size, its first step, and the losses of
    its steps."""

    def __init__(self, text):
        self.size = int(re.match(r"(\d+) ranks over", text)[1])
        self.begin = max(self._steps("resumed from", text), default=0)
        self.saved = max(self._steps("checkpoint saved:", text), default=0)
        self.losses = {
            (int(epoch) - 1) * STEPS + int(step): float(loss)
            for epoch, step, loss in re.findall(
                r"epoch (\d+)/\d+ step (\d+)/\d+: loss (\S+)", text)}

    @staticmethod
    def _steps(what, text):
        return map(int, re.findall(f"{what} .* (\\d+) steps", text))


def worlds(out):
    return [World(text) for text in re.findall(
        r"\d+ ranks over(?:.|\n)*?(?=\d+ ranks over|\Z)", out)]


class Elastic(JobTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("temporary"))
        with open(DIGITS) as file:
            parts = split(list(csv.reader(file)))
        for name, images in zip(("learned", "others"), parts):
            os.mkdir(self.path(name))
            with open(self.path(f"{name}/digits.csv"), "w") as file:
                csv.writer(file, lineterminator="\n").writerows(images)

    def path(self, name):
        return os.path.join(self.folder, name)

    def train(self, checkpoint):
        # Dropout would differ between ranks. Without it, other numbers of ranks
        # only change the rounding.
        return [program("train"), "--no-cuda", "--no-dropout", "--log-every=1",
                f"--batch-size={BATCH}", f"--epochs={EPOCHS}", "--data",
                self.path("learned"), "--checkpoint", self.path(checkpoint),
                "--checkpoint-every=4", "--resume"]

    def accuracy(self, checkpoint):
        """Returns the accuracy in percent, on images not used for training."""
        correct, count = self.succeed(
            [program("train"), "--no-cuda", "--mode=test", "--data",
             self.path("others"), "--checkpoint", self.path(checkpoint)]).score()
        self.assertGreater(count, 900)
        return 100 * correct / count

    def start_host(self, hosts, number, port):
        command = [
            # A lost host leaves its temporary folder.
            "env", "DDPRUN_TOKEN=secret", f"TMPDIR={self.path('temporary')}",
            *ddprun(2, "--nnodes=1:2", "--rdzv-backend=c10d",
                    f"--rdzv-endpoint={hosts.address}:{port}",
                    f"--rdzv-id={RUN_ID}", f"--node-rank={number}",
                    f"--rdzv-conf=is_host={number == 0:d},last_call_timeout=1,"
                    "keep_alive_interval=0.5", "--grace-period=1"),
            *self.train("disturbed")]
        process = hosts.start(self, number, command)
        self.addCleanup(power_off, process)
        return process

    def disturbed(self, hosts, port):
        """Returns rank 0's output."""
        first = self.start_host(hosts, 0, port)
        second = self.start_host(hosts, 1, port)
        out = read_until(first, "4 ranks over")
        out += read_until(first, "checkpoint saved", f" {LOST_AT} steps")
        hosts.lose(1, second)
        out += read_until(first, "2 ranks over")
        out += read_until(first, "checkpoint saved", f" {BACK_AT} steps")
        # The stopped rank waits for the host; the host's arrival ends it by
        # SIGKILL.
        os.kill(pid_of_rank(0, RUN_ID), signal.SIGSTOP)
        hosts.mend(1)
        second = self.start_host(hosts, 1, port)
        with deadline([first, second], "the end of the training"):
            out += first.stdout.read()
            second.stdout.read()
            self.assertEqual([first.wait(), second.wait()], [0, 0], out)
        return out

    def check(self, out, whole):
        """Each world resumes at the last save, and each of its steps equals that of
        the undisturbed training."""
        (expected,) = worlds(whole.out)
        self.assertEqual(sorted(expected.losses), list(range(1, TOTAL + 1)))
        found = worlds(out)
        self.assertEqual([world.size for world in found][-3:], [4, 2, 4], out)
        saved, most = 0, 0
        for world in found:
            # The world may have saved once more without printing it.
            self.assertIn(world.begin, range(saved, most + 1), out)
            self.assertEqual(
                list(world.losses),
                list(range(world.begin + 1, world.begin + 1 + len(world.losses))),
                out)
            for step, loss in world.losses.items():
                self.assertAlmostEqual(loss, expected.losses[step],
                                       delta=MOST_LOSS, msg=f"step {step}")
            saved, most = world.saved, max(world.losses, default=world.begin)
        self.assertEqual(most, TOTAL)
        self.assertGreaterEqual(found[-2].begin, LOST_AT)
        self.assertGreaterEqual(found[-1].begin, BACK_AT)

    def test_a_host_is_lost_and_returns(self):
        whole = self.succeed([*ddprun(4), *self.train("whole")])
        if HAS_NETWORKS:
            switch = cut.Switch(2)
            self.addCleanup(switch.close)
            out = self.disturbed(Cables(switch), 29400)
        else:
            with reserved_port() as port:
                out = self.disturbed(Loopback(), port)
        self.check(out, whole)
        self.assertLessEqual(
            abs(self.accuracy("disturbed") - self.accuracy("whole")),
            MOST_POINTS)

    def test_a_cut_cable_ends_two_static_hosts(self):
        """No rank notices the cut, and the collectives' time-out is half an hour, but
        each ddprun detects the loss of the other host and names it."""
        if not HAS_NETWORKS:
            self.skipTest("no rights for namespaces")
        switch = cut.Switch(2)
        self.addCleanup(switch.close)
        hosts = Cables(switch)
        jobs = [
            hosts.start(
                self, number,
                ["env", "DDPRUN_TOKEN=secret",
                 *ddprun(1, "--nnodes=2", f"--node-rank={number}",
                         f"--master-addr={hosts.address}",
                         f"--rdzv-conf=keep_alive_interval={KEEP_ALIVE}",
                         "--grace-period=1"),
                 program("train"), "--no-cuda", "--log-every=1",
                 "--epochs=100000", "--data", self.path("learned")],
                stderr=subprocess.STDOUT)
            for number in (0, 1)]
        read_until(jobs[0], "epoch 1/", " step 3/")
        switch.cut(1, "silence")
        with deadline(jobs, "the end of both hosts"):
            first, second = [job.stdout.read() for job in jobs]
            self.assertEqual([job.wait() for job in jobs], [1, 1],
                             first[-2000:] + second)
        self.assertRegex(first, r"host \S+ has vanished \(silent for 1500 ms\) and the "
                         "job cannot do without it")
        self.assertIn(f"the connection to {hosts.address}:29600, where the "
                      "hosts of the job meet, was lost", second)


if __name__ == "__main__":
    HAS_NETWORKS = bool(shutil.which("ip")) and machine.enter()
    if HAS_NETWORKS:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    unittest.main()
