"""dp::DataParallel in whole programs: dp_minimal learns what minimal learns, on any
number of replicas; loss_in_module and uneven_split do not change the gradients; the
traffic of all three equals its closed form."""

import math
import unittest

from jobs import JobTest, program, run

MINIMAL = program("minimal")
DP_MINIMAL = program("dp_minimal")
LOSS_IN_MODULE = program("loss_in_module")
UNEVEN_SPLIT = program("uneven_split")


def devices(replicas):
    return f"--devices={','.join(['cpu'] * replicas)}"


def chunks(rows, replicas):
    """Chunk sizes of Tensor.chunk, with 0 for replicas without a chunk."""
    each = math.ceil(rows / replicas)
    return [max(0, min(each, rows - i * each)) for i in range(replicas)]


class DpMinimal(JobTest):
    STEPS = 20 * 1024 // 16
    PARAMETER_BYTES = 4 * (2 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2)

    def losses(self, result):
        losses = [float(loss) for _, loss in
                  result.find(r"epoch (\d+): loss (\S+)")]
        self.assertEqual(len(losses), 20, result.out)
        return losses

    def test_any_number_of_replicas(self):
        plain = self.losses(self.succeed([MINIMAL]))
        for replicas in 0, 3:  # 0: no device is named
            with self.subTest(replicas=replicas):
                result = self.succeed([DP_MINIMAL, *["cpu"] * replicas])
                losses = self.losses(result)
                for expected, loss in zip(plain, losses):
                    self.assertAlmostEqual(loss, expected, delta=1e-4)
                self.assertLess(losses[-1], 0.1)
                moved = self.STEPS * self.PARAMETER_BYTES
                self.assertEqual(
                    result.find(r"cpu: (\d+) bytes of parameters to it, (\d+) "
                                r"bytes of gradients from it"),
                    [("0", "0")] * min(replicas, 1) +
                    [(str(moved), str(moved))] * (replicas - 1))

    def test_bad_device(self):
        result = run([DP_MINIMAL, "cpu", "gpu"])
        self.assertEqual(result.code, 1)
        self.assert_one_line(result.err, "gpu")


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

    def test_a_replica_without_images(self):
        self.check(3, 12, [4, 0, 8], "--chunk-sizes=4,0,8")

    def test_bad_sizes(self):
        """split_test has the other cases."""
        for sizes, code, pattern in (
                ("10,10,10", 1, "batch of 30 rows for chunk_sizes .*, but got 64"),
                ("8,28,x", 2, "--chunk-sizes")):
            result = run([UNEVEN_SPLIT, devices(3), f"--chunk-sizes={sizes}"])
            self.assertEqual(result.code, code)
            self.assertEqual(result.out, "")
            self.assert_one_line(result.err, pattern)


if __name__ == "__main__":
    unittest.main()
