"""train learns, equally on all ranks, from every data set and under both
launchers."""

import os
import pty
import random
import struct
import sys
import threading
import unittest

from jobs import JobTest, ddprun, deadline, environment, program, run

import subprocess

TRAIN = program("train")
EPOCHS = "--epochs=10"  # enough for 98 %
RANDOM = random.Random(0)


def idx(sizes, values):
    header = struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes)
    return header + bytes(values)


class Digits(JobTest):
    def check_accuracy(self, command):
        correct, count = self.succeed(command).score()
        self.assertEqual(count, 355)
        self.assertGreaterEqual(correct / count, 0.97)

    def test_alone(self):
        self.check_accuracy([TRAIN, EPOCHS])

    def test_two_ranks(self):
        self.check_accuracy([*ddprun(2), TRAIN, EPOCHS])

    def test_four_ranks(self):
        self.check_accuracy([*ddprun(4), TRAIN, EPOCHS])


class EqualParameters(JobTest):
    def check_hashes(self, ranks, *flags):
        result = self.succeed([*ddprun(ranks), TRAIN, "--print-hash", *flags])
        hashes = result.hashes()
        self.assertEqual(sorted(hashes), [str(rank) for rank in range(ranks)])
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        return hashes["0"]

    def test_digits(self):
        found = [self.check_hashes(ranks, "--epochs=3")
                 for ranks in (1, 2, 3, 4)]
        # Dropout differs between the ranks, so no two numbers of ranks agree.
        self.assertEqual(len(set(found)), 4)

    def test_seed(self):
        found = [self.check_hashes(2, "--epochs=1", f"--seed={seed}")
                 for seed in (0, 1, 0)]
        self.assertEqual(found[0], found[2])
        self.assertNotEqual(found[0], found[1])

    def test_batch_norm(self):
        self.check_hashes(2, "--dataset=synthetic", "--image-shape=3,8,8",
                          "--images=48", "--batch-size=16", "--epochs=2")


class Torchrun(JobTest):
    def test_same_program(self):
        flags = [TRAIN, "--print-hash", "--epochs=2", "--log-every=1"]
        torchrun = [sys.executable, "-m", "torch.distributed.run",
                    "--no-python", "--standalone", "--nproc-per-node=2"]
        theirs = self.succeed([*torchrun, *flags])
        ours = self.succeed([*ddprun(2), *flags])
        self.assertEqual(len(theirs.hashes()), 2)
        self.assertEqual(theirs.hashes(), ours.hashes())
        self.assertEqual(len(theirs.losses()), 2 * 23)
        self.assertEqual(theirs.losses(), ours.losses())


class Testing(JobTest):
    def test_checkpoint(self):
        trained = self.succeed([*ddprun(2), TRAIN, "--epochs=2",
                                "--checkpoint", self.folder])
        test = [TRAIN, "--mode=test", "--checkpoint", self.folder]
        for launcher in ([], ddprun(2), ddprun(3)):
            tested = self.succeed([*launcher, *test])
            self.assertEqual(tested.score(), trained.score())
            self.assertNotIn("epoch", tested.out)

    def test_no_checkpoint(self):
        result = run([TRAIN, "--mode=test", "--checkpoint", self.folder])
        self.assertEqual(result.code, 1)
        self.assert_one_line(result.err, "checkpoint.pt")


class Formats(JobTest):
    def write(self, name, content):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)

    def check(self, *flags, tested):
        result = self.succeed([*ddprun(2), TRAIN, "--epochs=1",
                               "--batch-size=8", "--print-hash", *flags])
        self.assertEqual(result.score()[1], tested)
        self.assertEqual(len(set(result.hashes().values())), 1)

    def test_mnist(self):
        for part, count in ("train", 20), ("t10k", 5):
            self.write(f"{part}-images-idx3-ubyte",
                       idx((count, 28, 28), RANDOM.randbytes(count * 784)))
            self.write(f"{part}-labels-idx1-ubyte",
                       idx((count,), (i % 10 for i in range(count))))
        self.check("--dataset=mnist", "--data", self.folder, tested=5)

    def test_cifar10(self):
        for part in ("data_batch_1", "data_batch_2", "data_batch_3",
                     "data_batch_4", "data_batch_5", "test_batch"):
            self.write(f"{part}.bin", b"".join(
                bytes([label]) + RANDOM.randbytes(3072) for label in (3, 1, 4)))
        self.check("--dataset=cifar10", "--data", self.folder, tested=3)

    def test_fewer_test_images_than_ranks(self):
        result = run([*ddprun(3), TRAIN, "--dataset=synthetic",
                      "--model=cnn", "--image-shape=1,8,8", "--images=20"])
        self.assertNotEqual(result.code, 0)
        self.assertIn("Expected an image to test for each of 3 ranks, but got "
                      "2. Start fewer ranks.", result.err)


class Terminal(JobTest):
    def test_bar(self):
        ours, theirs = pty.openpty()
        shown = []

        def read():
            try:
                while chunk := os.read(ours, 4096):
                    shown.append(chunk)
            except OSError:  # EIO: the program has ended
                pass

        with subprocess.Popen([TRAIN, "--epochs=1"], stdout=theirs,
                              env=environment()) as process:
            os.close(theirs)
            reader = threading.Thread(target=read)
            reader.start()
            with deadline([process], "the end of a training on a terminal"):
                self.assertEqual(process.wait(), 0)
                reader.join()
        os.close(ours)
        text = b"".join(shown).decode()
        self.assertRegex(text, r"epoch 1/1 \[=* *\] 1/23  loss \d\.\d{4}")
        self.assertIn("\r\x1b[K", text)

    def test_plain_lines(self):
        self.assertNotIn("\r", self.succeed([TRAIN, "--epochs=1"]).out)


if __name__ == "__main__":
    unittest.main()
