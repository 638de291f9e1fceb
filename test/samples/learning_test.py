"""train learns, equally on all ranks, from every data set and under both
launchers."""

import os
import random
import struct
import sys
import tempfile
import unittest

from jobs import JobTest, ddprun, program, run

TRAIN = program("train")
RANDOM = random.Random(0)


def idx(sizes, values):
    header = struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes)
    return header + bytes(values)


class Learning(JobTest):
    def hash_of(self, result, ranks):
        """Returns the hash of the parameters, which is equal on all ranks."""
        hashes = result.hashes()
        self.assertEqual(sorted(hashes), [str(rank) for rank in range(ranks)])
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        return hashes["0"]


class Digits(Learning):
    def test_three_ranks(self):
        result = self.succeed(
            [*ddprun(3), TRAIN, "--epochs=7", "--print-hash"])
        correct, count = result.score()
        self.assertEqual(count, 355)
        self.assertGreaterEqual(correct / count, 0.97)
        self.assertNotIn("\r", result.out)  # without a terminal
        self.hash_of(result, 3)


class TwoRanks(Learning):
    """One training with which other jobs are compared."""
    FLAGS = [TRAIN, "--print-hash", "--epochs=2", "--log-every=1"]

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.checkpoint = ["--checkpoint", holder.name]
        cls.trained = run([*ddprun(2), *cls.FLAGS, *cls.checkpoint])
        assert cls.trained.code == 0, cls.trained.out + cls.trained.err

    def test_torchrun(self):
        torchrun = [sys.executable, "-m", "torch.distributed.run",
                    "--no-python", "--standalone", "--nproc-per-node=2"]
        theirs = self.succeed([*torchrun, *self.FLAGS])
        self.assertEqual(len(theirs.hashes()), 2)
        self.assertEqual(theirs.hashes(), self.trained.hashes())
        self.assertEqual(len(theirs.losses()), 2 * 23)
        self.assertEqual(theirs.losses(), self.trained.losses())

    def test_seed(self):
        """Equal seeds give equal parameters: see test_torchrun."""
        other = self.succeed([*ddprun(2), *self.FLAGS, "--seed=1"])
        self.assertNotEqual(self.hash_of(other, 2),
                            self.hash_of(self.trained, 2))

    def test_checkpoint(self):
        tested = self.succeed(
            [*ddprun(3), TRAIN, "--mode=test", *self.checkpoint])
        self.assertEqual(tested.score(), self.trained.score())
        self.assertNotIn("epoch", tested.out)


class MixedPrecision(Learning):
    def train(self, *flags):
        result = self.succeed(
            [*ddprun(2), TRAIN, "--print-hash", "--log-every=1", *flags])
        self.hash_of(result, 2)
        return result

    def test_bf16(self):
        result = self.train("--amp=bf16", "--epochs=5")
        correct, count = result.score()
        self.assertGreaterEqual(correct / count, 0.95)
        self.assertEqual(len(result.losses()), 5 * 23)  # without a scale

    def test_fp16(self):
        """Uses few images, because a CPU's fp16 convolutions are slow."""
        result = self.train("--amp=fp16", "--epochs=2", "--dataset=synthetic",
                            "--model=cnn", "--image-shape=1,8,8",
                            "--images=64", "--batch-size=16")
        scales = [float(scale) for _, scale in result.find(
            r"epoch \S+ step \S+: loss (\S+), scale (\S+)")]
        self.assertEqual(len(scales), 2 * 4)
        # Too few steps for the scale to grow: it stays, or halves after a
        # skipped step.
        for before, after in zip([65536.0] + scales, scales):
            self.assertIn(after, (before, before / 2))


class Steps(Learning):
    """Parts of a step, and clipped gradients."""

    def train(self, *flags):
        result = self.succeed([*ddprun(2), TRAIN, "--print-hash", "--epochs=1",
                               "--no-dropout", "--log-every=1", *flags])
        self.hash_of(result, 2)
        return [float(loss) for _, loss in result.losses()]

    def test_parts_and_clipped_gradients(self):
        whole = self.train()
        # 32 images, also one image at a time. No gradient's norm is 1000.
        for flags in ["--accumulate=3"], ["--accumulate=100", "--clip-norm=1000"]:
            for expected, loss in zip(whole, self.train(*flags), strict=True):
                self.assertAlmostEqual(loss, expected, delta=1e-3)
        # Gradients of a tiny norm hardly move the parameters.
        self.assertGreater(self.train("--clip-norm=1e-6")[-1], whole[-1] + 0.1)


class Testing(JobTest):
    def test_no_checkpoint(self):
        result = run([TRAIN, "--mode=test", "--checkpoint", self.folder])
        self.assertEqual(result.code, 1)
        self.assert_one_line(result.err, "Expected a checkpoint in "
                             f"{self.folder}, but got none")


class Formats(JobTest):
    def write(self, name, content):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)

    def check(self, *flags, tested):
        result = self.succeed([TRAIN, "--epochs=1", "--batch-size=8", *flags])
        self.assertEqual(result.score()[1], tested)

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
        self.check("--dataset=cifar10", "--data", self.folder, "--model=cnn",
                   tested=3)

    def test_fewer_test_images_than_ranks(self):
        result = self.succeed([*ddprun(2), TRAIN, "--dataset=synthetic",
                               "--model=cnn", "--image-shape=1,8,8",
                               "--images=10"])
        self.assertEqual(result.score()[1], 1)


if __name__ == "__main__":
    unittest.main()
