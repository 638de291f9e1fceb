"""ring_allreduce counts the bytes that it sends: the ring sends 2(p-1)/p of the data,
the naive way p-1 times the data."""

import csv
import os
import unittest

from jobs import JobTest, ddprun, program, run

RING = program("ring_allreduce")
AROUND_MESSAGES = 4096  # bytes of a job of five ranks, far below the data


class Ring(JobTest):
    def measure(self, ranks, elements, *flags):
        return self.succeed([*ddprun(ranks), RING, "--no-cuda", "--rounds=2",
                             f"--elements={elements}", *flags])

    def sent(self, result, algorithm):
        """Returns the sent and the expected bytes, by rank. The kernel's count for the
        rank's sockets also has Gloo's overhead per message."""
        found = [tuple(map(int, numbers)) for numbers in result.find(
            algorithm + r": rank (\d+) sent (\d+) bytes, formula (\d+), \S+ "
            r"of the data; by its sockets (\d+)")]
        self.assertEqual([rank for rank, *_ in found],
                         list(range(len(found))))
        for _, bytes, _, wire in found:
            self.assertGreaterEqual(wire, bytes)
            self.assertLess(wire, bytes + AROUND_MESSAGES)
        return [(bytes, due) for _, bytes, due, _ in found]

    def check(self, ranks, elements, *flags):
        result = self.measure(ranks, elements, *flags)
        ring = self.sent(result, "ring")
        self.assertEqual(len(ring), ranks)
        # No rank omits more than two chunks, and the sum is exact.
        chunk = -(-elements // ranks)
        for bytes, due in ring:
            self.assertEqual(bytes, due)
            self.assertGreaterEqual(bytes, 4 * 2 * (elements - chunk))
            self.assertLessEqual(bytes, 4 * 2 * (elements - chunk + 1))
        self.assertEqual(sum(bytes for bytes, _ in ring),
                         4 * 2 * (ranks - 1) * elements)
        naive = 4 * (ranks - 1) * elements
        self.assertEqual(self.sent(result, "naive"), [(naive, naive)] * ranks)
        differences = result.find(
            r"(\w+): \d+\.\d+ ms \(median of 2, slowest rank\), "
            r"greatest difference to c10d (\S+)")
        self.assertEqual([name for name, _ in differences],
                         ["ring", "naive", "c10d"])
        for _, difference in differences:
            self.assertLess(float(difference), 1e-5)
        return result

    def test_bytes(self):
        # Chunks of unequal sizes, and ranks without a chunk.
        for ranks, elements in ((2, 1_000_001), (4, 3)):
            with self.subTest(ranks=ranks, elements=elements):
                self.check(ranks, elements)

    def test_alone(self):
        self.check(1, 10)

    def test_ratio_and_csv(self):
        file = os.path.join(self.folder, "cost.csv")
        result = self.check(3, 3000, f"--csv={file}")
        self.assertEqual(result.out.count("1.3333 of the data"), 4)
        self.assertEqual(result.out.count("2.0000 of the data"), 3)
        with open(file, newline="") as rows:
            rows = list(csv.DictReader(rows))
        self.assertEqual(
            [(row["algorithm"], row["rank"], row["bytes_sent"])
             for row in rows[:6]],
            [("ring", str(rank), "16000") for rank in range(3)] +
            [("naive", str(rank), "24000") for rank in range(3)])

    def test_bad_input(self):
        result = run([RING, "--rounds=0"])
        self.assertEqual(result.code, 2)
        self.assert_one_line(result.err, "--rounds")


if __name__ == "__main__":
    unittest.main()
