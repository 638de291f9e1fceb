"""A training that is killed after a checkpoint and resumes equals the undisturbed
training, bit for bit."""

import os
import random
import shutil
import signal
import tempfile
import unittest

from jobs import (JobTest, Result, ddprun, deadline, pid_of_rank, program,
                  read_until, reserved_port)

EPOCHS = 9
STEPS = 23  # in one epoch of the digits, for 1 or 2 ranks


class Resume(JobTest):
    wholes = {}  # by number of ranks

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.finished = holder.name  # final checkpoint of two ranks

    def train(self, every=None, epochs=EPOCHS, folder=None):
        """Adds checkpoints and --resume if `every` is given."""
        command = [program("train"), f"--epochs={epochs}", "--log-every=1",
                   "--print-hash"]
        if every:
            command += ["--checkpoint", folder or self.folder,
                        f"--checkpoint-every={every}", "--resume"]
        return command

    def undisturbed(self, ranks):
        """Returns the undisturbed training, which runs once per number of ranks. Two
        ranks write a checkpoint; the other numbers show that it changes nothing."""
        if ranks not in self.wholes:
            flags = {"every": 100, "folder": self.finished} if ranks == 2 else {}
            self.wholes[ranks] = self.succeed(
                [*ddprun(ranks), *self.train(**flags)])
        return self.wholes[ranks]

    def check_equal(self, first, second, whole):
        """Compares the log before the kill, and the end after it."""
        losses = dict(whole.losses())
        steps = max(int(title.split("/")[-1]) for title in losses)
        self.assertEqual(len(losses), EPOCHS * steps)
        self.assertLessEqual(set(first.losses()), set(losses.items()))
        self.assertEqual(second.losses(),
                         whole.losses()[-len(second.losses()):])
        self.assertEqual(second.hashes(), whole.hashes())
        self.assertEqual(second.score(), whole.score())

    def check_kill(self, ranks, every, steps):
        whole = self.undisturbed(ranks)
        process = self.start([*ddprun(ranks), *self.train(every)])
        before = read_until(process, "checkpoint saved", f" {steps} steps")
        process.send_signal(signal.SIGKILL)
        # At the end of the stream no worker is left that could write.
        with deadline([process], "the workers' end after their launcher's"):
            before += process.stdout.read()
            process.wait()
        first = Result(0, before, "")

        second = self.succeed([*ddprun(ranks), *self.train(every)])
        self.assertRegex(second.out, r"resumed from \S+ after \d+ epochs, ")
        self.assertGreater(len(second.losses()), 0)
        self.assertLessEqual(len(second.losses()), EPOCHS * STEPS - steps)
        self.check_equal(first, second, whole)

    def test_in_the_middle_of_an_epoch(self):
        self.check_kill(ranks=3, every=8, steps=40)

    def test_at_the_end_of_an_epoch(self):
        self.check_kill(ranks=2, every=1000, steps=STEPS)

    def test_restart_by_the_launcher(self):
        whole = self.undisturbed(2)
        run_id = f"resume_test_{os.getpid()}"
        process = self.start(
            [*ddprun(2, "--max-restarts=1", f"--rdzv-id={run_id}"),
             *self.train(every=5)])
        before = read_until(process, "checkpoint saved", " 30 steps")
        os.kill(pid_of_rank(1, run_id), signal.SIGKILL)
        with deadline([process], "the end of the job that was restarted"):
            after = process.stdout.read()
            self.assertEqual(process.wait(), 0, after)
        # The output after the kill has both runs of the workers.
        cut = after.index("resumed from")
        self.check_equal(Result(0, before + after[:cut], ""),
                         Result(0, after[cut:], ""), whole)

    def check_preempted(self, ranks, hosts):
        """Each host's launcher has its flags. Only the last launcher gets the signal,
        at a random step."""
        whole = self.undisturbed(ranks)
        total = len(whole.losses())
        epoch, step = random.randint(1, 2), random.randint(1, total // EPOCHS)
        with self.subTest(epoch=epoch, step=step):
            train = self.train(every=1000)
            flags = ["--on-preempt=USR1:200", "--max-restarts=3"]
            jobs = [self.start([*host, *flags, *train]) for host in hosts]
            place = f"epoch {epoch}/{EPOCHS} step {step}/"
            before = read_until(jobs[0], place)
            jobs[-1].send_signal(signal.SIGUSR1)
            with deadline(jobs, "the checkpoint and the end of all ranks"):
                before += jobs[0].stdout.read()
                for job in jobs[1:]:
                    job.stdout.read()
                self.assertEqual([job.wait() for job in jobs], [0] * len(jobs))
            first = Result(0, before, "")
            steps = len(first.losses())
            self.assertEqual(first.find(r"stopped after (\d+) steps, .*"),
                             [(str(steps),)])
            self.assertLess(steps, total)

            second = self.succeed([*ddprun(ranks), *train])
            self.assertEqual(len(second.losses()), total - steps)
            self.check_equal(first, second, whole)

    def test_one_of_two_hosts_preempted(self):
        with reserved_port() as store, reserved_port() as meeting:
            self.check_preempted(2, [
                ddprun(1, "--nnodes=2", f"--node-rank={host}",
                       "--master-addr=127.0.0.1", f"--master-port={store}",
                       f"--rdzv-conf=meeting_port={meeting}")
                for host in (0, 1)])

    def test_nothing_to_resume_and_nothing_left_to_train(self):
        whole = self.undisturbed(2)
        self.assertIn("starting from the beginning", whole.out)
        self.assertEqual(len(whole.losses()), EPOCHS * STEPS)
        again = self.succeed([*ddprun(2),
                              *self.train(every=100, folder=self.finished)])
        self.assertEqual(again.losses(), [])
        self.assertEqual(again.hashes(), whole.hashes())
        self.assertEqual(again.score(), whole.score())

    def test_other_number_of_ranks(self):
        self.undisturbed(2)
        shutil.copytree(self.finished, self.folder, dirs_exist_ok=True)
        result = self.succeed(
            [*ddprun(3), *self.train(every=5, epochs=EPOCHS + 2)])
        steps = {title.split()[1] for title, _ in result.losses()}
        last = EPOCHS + 2
        self.assertEqual(steps, {f"{last - 1}/{last}", f"{last}/{last}"})
        self.assertEqual(len(set(result.hashes().values())), 1)


if __name__ == "__main__":
    unittest.main()
