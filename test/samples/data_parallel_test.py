"""dp::DataParallel in whole programs: dp_train learns the same on any number of
replicas; loss_in_module and uneven_split do not change the gradients; the traffic
of all three equals its closed form."""

import math
import os
import subprocess
import unittest

import torch

from jobs import JobTest, environment, program, read_until, run

DP_TRAIN = program("dp_train")
LOSS_IN_MODULE = program("loss_in_module")
UNEVEN_SPLIT = program("uneven_split")
TRAIN_IMAGES, TEST_IMAGES = 1442, 355
# The small CNN for 8x8 images: float32 weights and biases of conv1, conv2, fc1
# and fc2.
PARAMETER_BYTES = 4 * (32 * 1 * 9 + 32 + 64 * 32 * 9 + 64 +
                       (64 * 2 * 2) * 128 + 128 + 128 * 10 + 10)
IMAGE_BYTES, SCORE_BYTES = 8 * 8 * 4, 10 * 4


def devices(replicas):
    return f"--devices={','.join(['cpu'] * replicas)}"


def chunks(rows, replicas):
    """Chunk sizes of Tensor.chunk, with 0 for replicas without a chunk."""
    each = math.ceil(rows / replicas)
    return [max(0, min(each, rows - i * each)) for i in range(replicas)]


def batches(images, batch):
    return [min(batch, images - first) for first in range(0, images, batch)]


class DpTrain(JobTest):
    def train(self, *flags):
        return self.succeed([DP_TRAIN, *flags])

    def traffic(self, result):
        """By replica: state, inputs, outputs, gradients."""
        rows = result.find(
            r"replica (\d+), cpu +(\d+) +(\d+) +(\d+) +(\d+)")
        self.assertEqual([int(row[0]) for row in rows],
                         list(range(len(rows))))
        return [tuple(map(int, row[1:])) for row in rows]

    def check_traffic(self, result, replicas, batch, epochs,
                      images=(TRAIN_IMAGES, TEST_IMAGES)):
        training, tests = [epochs * batches(count, batch) for count in images]
        expected = []
        for replica in range(replicas):
            rows = [chunks(size, replicas)[replica]
                    for size in training + tests]
            steps = [chunks(size, replicas)[replica] for size in training]
            copies = PARAMETER_BYTES if replica > 0 else 0
            expected.append((copies * sum(map(bool, rows)),
                             IMAGE_BYTES * sum(rows),
                             SCORE_BYTES * sum(rows) if replicas > 1 else 0,
                             copies * sum(map(bool, steps))))
        self.assertEqual(self.traffic(result), expected)

    def check_accuracy(self, replicas):
        result = self.train(devices(replicas), "--epochs=10")
        correct, count = result.score()
        self.assertEqual(count, TEST_IMAGES)
        self.assertGreaterEqual(correct / count, 0.97)
        self.assertRegex(result.lines[1], rf"{replicas} replicas? on cpu")
        self.check_traffic(result, replicas, batch=64, epochs=10)

    def test_one_replica(self):
        self.check_accuracy(1)

    def test_two_replicas(self):
        self.check_accuracy(2)

    def test_three_replicas(self):
        self.check_accuracy(3)

    def test_fewer_images_than_replicas(self):
        result = self.train(devices(3), "--batch-size=2", "--epochs=1",
                            "--dataset=synthetic", "--model=cnn",
                            "--image-shape=1,8,8", "--images=90")
        self.check_traffic(result, replicas=3, batch=2, epochs=1,
                           images=(90, 9))
        self.assertEqual(self.traffic(result)[2], (0, 0, 0, 0))

    def test_batch_norm(self):
        result = self.train(devices(2), "--dataset=synthetic", "--images=20",
                            "--image-shape=3,8,8", "--batch-size=8")
        self.assertEqual(result.score()[1], 2)


class Parameters(JobTest):
    def model(self, replicas, *flags):
        """Returns the checkpoint's model, read by Python's torch.load."""
        folder = os.path.join(self.folder, str(replicas))
        self.succeed([DP_TRAIN, devices(replicas), "--checkpoint", folder,
                      "--epochs=2", *flags])
        return torch.load(os.path.join(folder, "checkpoint.pt"))["model"]

    def test_equal_for_any_number_of_replicas(self):
        one = self.model(1, "--no-dropout")
        for replicas in 2, 3:
            other = self.model(replicas, "--no-dropout")
            self.assertEqual(list(other), list(one))
            for name in one:
                torch.testing.assert_close(
                    other[name], one[name], rtol=1e-3, atol=1e-4)

    def test_dropout(self):
        one, two = self.model(1), self.model(2)
        self.assertFalse(torch.allclose(one["fc1.weight"], two["fc1.weight"],
                                        rtol=1e-2, atol=1e-3))


class Checkpoint(JobTest):
    def train(self, *flags):
        return self.succeed([DP_TRAIN, devices(2), "--no-dropout",
                             "--checkpoint", self.folder, *flags])

    def test_the_plain_module_loads_it(self):
        trained = self.train("--epochs=2")
        for tester in ([program("train")], [DP_TRAIN, devices(3)]):
            tested = self.succeed([*tester, "--mode=test", "--checkpoint",
                                   self.folder])
            self.assertEqual(tested.score(), trained.score())

    def test_resume(self):
        """A killed training resumes as if it had not been interrupted."""
        file = os.path.join(self.folder, "checkpoint.pt")
        command = [DP_TRAIN, devices(2), "--no-dropout", "--epochs=3",
                   "--checkpoint", self.folder, "--resume"]
        whole = self.succeed(command)
        self.assertIn("starting from the beginning", whole.out)
        expected = torch.load(file)["model"]
        os.remove(file)

        with subprocess.Popen(command, env=environment(), text=True,
                              stdout=subprocess.PIPE) as process:
            read_until(process, "checkpoint saved")
            process.kill()
        resumed = self.succeed(command)
        self.assertRegex(resumed.out, r"resumed from \S+ after [12] epochs")
        self.assertEqual(resumed.score(), whole.score())
        found = torch.load(file)["model"]
        for name in expected:
            self.assertTrue(torch.equal(found[name], expected[name]), name)


class LossInModule(JobTest):
    """Columns: loss outside, inside as a vector, inside by dp::mean."""

    def check(self, replicas, batch, classes, side):
        result = self.succeed(
            [LOSS_IN_MODULE, devices(replicas), f"--batch-size={batch}",
             f"--classes={classes}", f"--side={side}"])
        pixels = side * side
        rows = chunks(batch, replicas)
        others = batch - rows[0]

        def row(name):
            (cells,) = result.find(name + 3 * r" +(\S+)")
            return [float(cell) for cell in cells]

        # Whole outputs, against one number per replica.
        outputs = 4 * classes * pixels * others
        numbers = 4 * (replicas - 1)
        self.assertEqual(row("outputs to the first device, bytes"),
                         [outputs, numbers, numbers])
        images, labels = 4 * 3 * pixels * others, 8 * pixels * others
        self.assertEqual(row("inputs to the others, bytes"),
                         [images, images + labels, images + labels])

        outside, vector, mean = row("loss")
        self.assertAlmostEqual(outside, math.log(classes), delta=0.5)
        self.assertAlmostEqual(mean, outside, delta=2e-6)
        _, vector, mean = row("gradients: difference from loss outside")
        self.assertLess(mean, 1e-5)
        if len(set(rows)) == 1:
            self.assertLess(vector, 1e-5)
        else:
            self.assertGreater(vector, 1e-3)
        self.assertEqual(
            result.err.count("will instead unsqueeze and return a vector"),
            1 if replicas > 1 else 0)

        # Scores and their logarithms, of all rows or only of the replica's own,
        # and the features of its own rows.
        features = 4 * 16 * pixels * rows[0]
        for memory, scored in zip(row("first device, memory of forward, bytes"),
                                  (batch, rows[0], rows[0])):
            expected = 2 * 4 * classes * pixels * scored + features
            self.assertAlmostEqual(memory / expected, 1, delta=0.05)

    def test_even(self):
        self.check(replicas=2, batch=8, classes=21, side=32)

    def test_uneven(self):
        self.check(replicas=3, batch=16, classes=21, side=64)

    def test_one_replica(self):
        self.check(replicas=1, batch=4, classes=50, side=16)

    def test_bad_input(self):
        for flag, code in ("--devices=tpu", 1), ("--side=0", 2):
            result = run([LOSS_IN_MODULE, flag])
            self.assertEqual(result.code, code)
            self.assertEqual(result.out, "")
            self.assert_one_line(result.err, flag.split("=")[0])


class UnevenSplit(JobTest):
    """Columns: even, uneven."""

    PARAMETER_BYTES = 4 * (32 * 28 + 64 * 289 + 128 * (64 * 14 * 14 + 1)
                           + 10 * 129)

    def check(self, replicas, batch, expected, *flags):
        result = self.succeed(
            [UNEVEN_SPLIT, devices(replicas), f"--batch-size={batch}",
             "--steps=2", *flags])
        table = result.find(r"replica (\d+) +(\d+) +(\d+) +(\S+) +(\S+)")
        self.assertEqual([int(line[0]) for line in table],
                         list(range(replicas)))
        even = chunks(batch, replicas)
        self.assertEqual([int(line[1]) for line in table], even)
        self.assertEqual([int(line[2]) for line in table], expected)
        for line in table:
            for images, milliseconds in zip(line[1:3], line[3:5]):
                self.assertEqual(float(milliseconds) > 0, int(images) > 0)

        def row(name):
            (cells,) = result.find(name + 2 * r" +(\d+)")
            return [int(cell) for cell in cells]

        away = [batch - even[0], batch - expected[0]]
        self.assertEqual(row("inputs sent"),
                         [4 * 3 * 32 * 32 * images for images in away])
        self.assertEqual(row("outputs received"),
                         [4 * 10 * images for images in away])
        # Each other replica with images gets the parameters.
        copies = [self.PARAMETER_BYTES * sum(map(bool, rows[1:]))
                  for rows in (even, expected)]
        self.assertEqual(row("parameters sent"), copies)
        self.assertEqual(row("gradients received"), copies)
        even_memory, memory = row("memory of forward, at most")
        self.assertAlmostEqual(memory / even_memory, expected[0] / even[0],
                               delta=0.02)
        (differences,) = result.find(
            r"gradients: difference from the plain module's (\S+) even, "
            r"(\S+) uneven")
        for difference in differences:
            self.assertLess(float(difference), 1e-5)

    def test_default(self):
        self.check(3, 64, [13, 26, 25])

    def test_sizes(self):
        self.check(3, 64, [8, 28, 28], "--chunk-sizes=8,28,28")

    def test_weights(self):
        self.check(2, 10, [3, 7], "--chunk-weights=0.25,0.75")

    def test_a_replica_without_images(self):
        self.check(3, 12, [4, 0, 8], "--chunk-sizes=4,0,8")

    def test_bad_sizes(self):
        """split_test has the other cases."""
        for flags, code, pattern in (
                (["--chunk-sizes=10,10,10"], 1,
                 "batch of 30 rows for chunk_sizes .*, but got 64"),
                (["--chunk-weights=1,2"], 1, "chunk_weights .* 2"),
                (["--chunk-sizes=8,28,x"], 2, "--chunk-sizes"),
                (["--chunk-sizes=8,28,28", "--chunk-weights=1,2,2"], 2,
                 "--chunk-")):
            result = run([UNEVEN_SPLIT, devices(3), *flags])
            self.assertEqual(result.code, code)
            self.assertEqual(result.out, "")
            self.assert_one_line(result.err, pattern)


class BadInput(JobTest):
    def check(self, command, code, pattern):
        result = run(command)
        self.assertEqual(result.code, code)
        self.assert_one_line(result.err, pattern)

    def test_devices(self):
        for names, pattern in (("gpu", "--devices, but got gpu"),
                               ("cuda:1000", "GPUs below .* cuda:1000"),
                               # Without a GPU this is the first error.
                               ("0,0", "cuda:0 twice|GPUs below 0 .* 0")):
            self.check([DP_TRAIN, f"--devices={names}"], 1, pattern)

    def test_usage(self):
        for flag in "--batch-size=0", "--gpus=0", "--resume":
            self.check([DP_TRAIN, flag], 2, flag.split("=")[0])

    def test_no_checkpoint(self):
        self.check([DP_TRAIN, "--mode=test", "--checkpoint", self.folder], 1,
                   "checkpoint.pt")


if __name__ == "__main__":
    unittest.main()
