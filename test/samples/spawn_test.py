"""spawn starts its own ranks, and names the rank that failed."""

import unittest

from jobs import JobTest, program, run

SPAWN = program("spawn")


class Spawn(JobTest):
    def test_ranks_train_as_one(self):
        for ranks in 1, 2, 3:
            result = self.succeed([SPAWN, f"--ranks={ranks}", "--no-cuda"])
            (parent,), = result.find(r"all ranks of process (\d+) are done")
            self.assertEqual(
                sorted(result.find(r"rank (\d) of (\d), process \d+ of parent "
                                   r"(\d+): slope (\S+)")),
                [(str(rank), str(ranks), parent, "3.0000")
                 for rank in range(ranks)])

    def test_without_a_number(self):
        result = self.succeed([SPAWN])
        self.assertIn("slope 3.0000", result.out)

    def test_environment_of_a_launcher_is_replaced(self):
        result = self.succeed([SPAWN, "--ranks=2", "--no-cuda"], RANK="5",
                              WORLD_SIZE="6", MASTER_ADDR="no-such-host",
                              MASTER_PORT="1")
        self.assertEqual(result.out.count("slope 3.0000"), 2)

    def test_failure(self):
        result = run([SPAWN, "--ranks=3", "--fail-rank=2", "--no-cuda"])
        self.assertEqual(result.code, 1)
        self.assertEqual(result.out, "")
        self.assert_one_line(result.err,
                             r"^\S+: rank 2 threw: it fails because --fail-rank=2 ")

    def test_bad_input(self):
        for flag, code in ("--ranks=0", 1), ("--ranks=x", 2):
            result = run([SPAWN, flag])
            self.assertEqual(result.code, code)
            self.assert_one_line(result.err, "ranks|nprocs=0")


if __name__ == "__main__":
    unittest.main()
