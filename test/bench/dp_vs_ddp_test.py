"""bench_dp_vs_ddp counts the bytes that DataParallel and DistributedDataParallel send and
hold: closed forms of model size, batch size and number of devices."""

import csv
import os
import unittest

from jobs import JobTest, program, run

PROGRAM = program("bench_dp_vs_ddp")
PIXELS, CLASSES, FLOAT = 64, 10, 4
AROUND_MESSAGES = 4096  # bytes per rank and step


def mlp_sizes(width):
    """Returns the number of elements of each parameter."""
    return [PIXELS * width, width, width * width, width, width * CLASSES,
            CLASSES]


CNN_SIZES = [32 * 9, 32, 64 * 32 * 9, 64, 256 * 128, 128, 128 * CLASSES,
             CLASSES]


class DpVsDdp(JobTest):
    def measure(self, replicas, *flags):
        """Returns the result, and the rows of each way."""
        file = os.path.join(self.folder, "costs.csv")
        result = self.succeed([PROGRAM, f"--replicas={replicas}", "--no-cuda",
                               "--steps=3", f"--csv={file}", *flags])
        self.assertEqual(result.err, "")
        with open(file, newline="") as rows:
            rows = [{name: value if name == "way" else int(value)
                     for name, value in row.items()}
                    for row in csv.DictReader(rows)]
        ways = [[row for row in rows if row["way"] == way]
                for way in ("DP", "DDP")]
        for way in ways:
            self.assertEqual([row["device"] for row in way],
                             list(range(replicas)))
        return result, *ways

    def check_dp(self, rows, parameters, chunks):
        others = rows[1:]
        for row, chunk in zip(rows, chunks):
            self.assertEqual(row["inputs"], chunk * PIXELS * FLOAT)
            self.assertEqual(row["outputs"], chunk * CLASSES * FLOAT)
            self.assertEqual(row["all_reduce"], 0)
        for row in others:
            self.assertEqual(row["state"], parameters)
            self.assertEqual(row["gradients"], parameters)
            self.assertEqual(row["received"], parameters + row["inputs"])
            self.assertEqual(row["sent"], parameters + row["outputs"])
        self.assertEqual(rows[0]["state"], 0)
        self.assertEqual(rows[0]["gradients"], 0)
        self.assertEqual(rows[0]["sent"],
                         sum(row["received"] for row in others))
        self.assertEqual(rows[0]["received"],
                         sum(row["sent"] for row in others))

    def check_ddp(self, result, rows, sizes):
        ranks, parameters = len(rows), sum(sizes) * FLOAT
        given = parameters + 36 * FLOAT  # with the ranks' marks
        for row in rows:
            self.assertEqual(row["all_reduce"], given)
            self.assertAlmostEqual(row["sent"], 2 * (ranks - 1) / ranks * given,
                                   delta=0.5)
            self.assertEqual(row["received"], row["sent"])
            for kind in "state", "inputs", "outputs", "gradients":
                self.assertEqual(row[kind], 0)
        # At the start DDP broadcasts the parameters, then the plan of their
        # buckets.
        self.assertEqual(
            result.find(r"DDP broadcasts (\d+) bytes at the start, (\d+) a "
                        r"step"),
            [(str(parameters + 8 * len(sizes)), "0")])
        sockets = result.find(r"DDP (\d+): its sockets sent (\d+) bytes a step")
        self.assertEqual([int(rank) for rank, _ in sockets],
                         list(range(ranks)))
        sent = sum(int(bytes) for _, bytes in sockets)
        self.assertGreaterEqual(sent, 2 * (ranks - 1) * given)
        self.assertLess(sent, 2 * (ranks - 1) * given + ranks * AROUND_MESSAGES)

    def check_memory(self, dp, ddp, parameters, momentum):
        state = parameters if momentum else 0
        for row in dp + ddp:
            holds = row is dp[0] or row in ddp
            self.assertEqual(row["memory_parameters"], parameters)
            self.assertEqual(row["memory_gradients"],
                             parameters if holds else 0)
            self.assertEqual(row["memory_optimizer"], state if holds else 0)
        for replica, rank in zip(dp, ddp):
            self.assertEqual(replica["memory_activations"],
                             rank["memory_activations"])
            self.assertGreater(rank["memory_activations"], 0)

    def check_results(self, row, images):
        """Scores and their logarithms, and a few numbers of the loss."""
        tensors = 2 * images * CLASSES * FLOAT
        self.assertGreaterEqual(row["memory_results"], tensors)
        self.assertLess(row["memory_results"], tensors + 64)

    def check_parameters(self, result):
        ((steps, difference),) = result.find(
            r"parameters after (\d+) steps: ranks equal bit for bit, greatest "
            r"relative difference of DP and DDP (\S+)")
        self.assertEqual(steps, "5")
        self.assertLess(float(difference), 1e-5)

    def check(self, replicas, sizes, chunks, *flags, momentum=True):
        parameters = FLOAT * sum(sizes)
        result, dp, ddp = self.measure(replicas,
                                       f"--batch-size={sum(chunks)}", *flags)
        self.check_dp(dp, parameters, chunks)
        self.check_ddp(result, ddp, sizes)
        self.check_memory(dp, ddp, parameters, momentum)
        self.check_results(dp[0], sum(chunks))
        for row, chunk in zip(ddp, chunks):
            self.check_results(row, chunk)
        for row in dp[1:]:
            self.assertEqual(row["memory_results"], 0)
        self.check_parameters(result)
        self.assertEqual(len(result.find(
            r"time of a step, median \[quartiles\] of 3 taken in turns: "
            r"DP \S+ \[\S+ \S+\] ms, DDP \S+ \[\S+ \S+\] ms \(slowest rank\), "
            r"DP / DDP \S+ \[\S+ \S+\]")), 1, result.out)
        return dp, ddp

    def test_mlp(self):
        for replicas, width, chunks in (2, 16, (10, 10)), (3, 40, (3, 3, 1)):
            with self.subTest(replicas=replicas):
                rows, _ = self.check(replicas, mlp_sizes(width), chunks,
                                     "--model=mlp", f"--width={width}")
                # Outputs of both hidden layers; all other tensors are views or
                # freed.
                self.assertEqual([row["memory_activations"] for row in rows],
                                 [2 * chunk * width * FLOAT
                                  for chunk in chunks])

    def test_cnn(self):
        self.check(3, CNN_SIZES, (22, 22, 20))

    def test_without_momentum(self):
        self.check(2, mlp_sizes(8), (8, 8), "--model=mlp", "--width=8",
                   "--momentum=0", momentum=False)

    def test_alone(self):
        result, dp, ddp = self.measure(1, "--model=mlp", "--width=8")
        for row in dp + ddp:
            for kind in "state", "gradients", "all_reduce", "sent", "received":
                self.assertEqual(row[kind], 0)
            row.pop("way"), row.pop("inputs"), row.pop("outputs")
        self.assertEqual(dp, ddp)
        self.check_parameters(result)

    def test_bad_input(self):
        for flags, code, pattern in (
                (["--replicas=0"], 2, "--replicas"),
                (["--replicas=two"], 2, "--replicas"),
                (["--model=rnn"], 2, "--model"),
                (["--steps=0"], 2, "--steps"),
                (["--replicas=9", "--batch-size=8"], 1,
                 r"^\S+: Expected a --batch-size of which each of 9 "
                 "replicas gets a part, but got 8"),
                (["--replicas=3", "--batch-size=4"], 1, "but got 4 in parts "
                 "of 2. Take a multiple of 3"),
                (["--batch-size=2000"], 1, r"^\S+: Expected a --batch-size of at most "
                 "1442, the number of images, but got 2000"),
                (["--steps=1", "--csv=/no/such/folder/costs.csv"], 1,
                 "/no/such/folder/costs.csv")):
            with self.subTest(flags=flags):
                result = run([PROGRAM, "--no-cuda", *flags])
                self.assertEqual(result.code, code)
                self.assert_one_line(result.err, pattern)


if __name__ == "__main__":
    unittest.main()
