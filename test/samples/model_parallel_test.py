"""model_parallel: two stages compute the same as the undivided network, on one
rank and under DistributedDataParallel."""

import csv
import json
import os
import unittest

from jobs import JobTest, ddprun, program, run

MODEL = program("model_parallel")
SMALL = ["--rounds=1", "--width=64", "--batch-size=60"]


class ModelParallel(JobTest):
    def check(self, ranks, *flags):
        devices = ",".join(2 * ranks * ["cpu"])
        result = self.succeed([*ddprun(ranks), MODEL, *SMALL,
                               f"--devices={devices}", *flags])
        passes = result.find(
            r" *(\d+) +\S+ +\d+ % +(\d+) % +(\d+) % +\S+ +(\S+) scores, (\S+) "
            r"gradients")
        for _, _, _, scores, gradients in passes:
            self.assertLess(float(scores), 1e-5)
            self.assertLess(float(gradients), 1e-5)

        (difference,), = result.find(
            r"difference to the undivided network on whole batches: (\S+)")
        self.assertLess(float(difference), 1e-3)
        hashes = result.hashes()
        self.assertEqual(sorted(hashes), [str(rank) for rank in range(ranks)])
        self.assertEqual(len(set(hashes.values())), 1)
        return result, passes

    def test_ranks(self):
        for ranks in 1, 3:
            with self.subTest(ranks=ranks):
                result, passes = self.check(ranks)
                self.assertEqual([row[:2] for row in passes],
                                 [("1", "100"), ("2", "75"), ("4", "62"),
                                  ("8", "56")])
                # Without micro-batches the stages never work at the same time.
                self.assertEqual(passes[0][2], "0")
                losses = result.find(r"step (\d+): loss (\S+)")
                self.assertEqual([step for step, _ in losses],
                                 ["1", "10", "20", "30", "40"])
                self.assertLess(float(losses[-1][1]), float(losses[0][1]))
                if ranks == 3:
                    self.check_traffic(result)

    def check_traffic(self, result):
        """Checks the traffic of three ranks."""
        first = 64 * 64 + 64 + 2 * (64 * 64 + 64)
        second = 2 * (64 * 64 + 64) + 64 * 10 + 10
        self.assertIn(f"stage 1 on cpu: {first} parameters; stage 2 on cpu: "
                      f"{second} parameters", result.out)
        (activations,), = result.find(
            r"between the stages of a rank: (\d+) activations .*")
        self.assertEqual(int(activations), 4 * 20 * 64)
        (gradients,), = result.find(r"between the ranks: (\d+) gradients .*")
        self.assertEqual(int(gradients), 4 * 2 * 2 * (first + second) // 3)

    def test_files(self):
        table = os.path.join(self.folder, "times.csv")
        timeline = os.path.join(self.folder, "timeline.json")
        self.check(2, f"--csv={table}", f"--timeline={timeline}",
                   "--micro-batches=1,5", "--steps=1")
        with open(table, newline="") as rows:
            self.assertEqual([(row["micro_batches"], row["ideal"])
                              for row in csv.DictReader(rows)],
                             [("1", "1"), ("5", "0.6")])
        with open(timeline) as text:
            events = json.load(text)["traceEvents"]
        for rank in range(2):
            threads = []
            for stage in "stage 1", "stage 2":
                spans = [event for event in events
                         if (event["pid"], event["name"]) == (rank, stage)]
                self.assertEqual(len(spans), 5)
                threads.append({event["tid"] for event in spans})
            self.assertEqual([len(found) for found in threads], [1, 1])
            self.assertNotEqual(*threads)

    def test_bad_input(self):
        for flag, code, text in (
                ("--devices=cpu", 1, "two devices"),
                ("--micro-batches=0", 2, "--micro-batches")):
            result = run([MODEL, flag])
            self.assertEqual(result.code, code)
            self.assert_one_line(result.err, text)


if __name__ == "__main__":
    unittest.main()
