"""inspect_sync shows the work of DDP: the sampler's split, gradients that become the
mean of the ranks' gradients, and all-reduces during the backward pass."""

import json
import os
import unittest

from jobs import JobTest, ddprun, program, run

INSPECT = program("inspect_sync")
SMALL = ["--no-cuda", "--image-shape=1,8,8", "--images=50", "--batch-size=12",
         "--steps=2"]
PARAMETERS = 32 * 10 + 64 * 289 + 128 * 257 + 10 * 129  # of the small CNN
# Order in which PyTorch's DistributedSampler shuffles 50 images; the ranks take
# them in turn. test/parity/sampler.py compares with PyTorch itself.
SHUFFLED = [44, 39, 7, 6, 17, 29, 21, 37, 33, 10, 31, 22]
FLAGS = 36  # elements that DDP may add for its own use
NUMBER = r" +(-?\d\.\d{6}e[+-]\d\d)"
TIME = r" +(\d+\.\d\d)"


class Inspect(JobTest):
    def inspect(self, ranks, *flags):
        return self.succeed([*ddprun(ranks), INSPECT, *SMALL, *flags])

    def gradients(self, result):
        """By parameter, one row per rank: norm before and after synchronization, first
        element before and after synchronization."""
        table = {}
        for name, rank, *numbers in result.find(r"(\S+) +(\d+)" + 4 * NUMBER):
            rows = table.setdefault(name, [])
            self.assertEqual(int(rank), len(rows))
            rows.append([float(number) for number in numbers])
        return table

    def reductions(self, result):
        return [(float(begin), float(end), int(hidden), int(elements))
                for begin, end, hidden, elements in result.find(
                    r" *(\d+\.\d\d)" + TIME + r" +(\d+) % +(\d+)")]

    def check(self, ranks, *flags):
        result = self.inspect(ranks, *flags)
        for rank in range(ranks):
            (indices,), = result.find(rf"rank {rank}: images([ \d]+)")
            self.assertEqual([int(index) for index in indices.split()],
                             SHUFFLED[rank::ranks])

        gradients = self.gradients(result)
        self.assertEqual(list(gradients), ["conv1.weight", "fc2.bias"])
        for rows in gradients.values():
            self.assertEqual(len(rows), ranks)
            norms, means, firsts, mean_firsts = zip(*rows)
            self.assertEqual(len(set(norms)), ranks)
            self.assertEqual(len(set(means)), 1)
            self.assertEqual(len(set(mean_firsts)), 1)
            self.assertAlmostEqual(mean_firsts[0], sum(firsts) / ranks, 6)

        (difference,), = result.find(
            r"all 8 parameters: greatest difference to the mean of the ranks "
            r"(\S+), equal bit for bit on all ranks")
        self.assertLess(float(difference), 1e-6)

        times = result.find(r" *(\d+)" + 8 * TIME)
        self.assertEqual([int(row[0]) for row in times], list(range(ranks)))
        for row in times:
            (forward, backward, compute, communication, hidden, exposed,
             optimizer, alone) = map(float, row[1:])
            for time in forward, backward, compute, optimizer, alone:
                self.assertGreater(time, 0)
            self.assertAlmostEqual(hidden + exposed, communication, delta=0.02)
            self.assertLessEqual(compute + exposed, backward + 0.02)
        return result

    def test_three_buckets(self):
        result = self.check(3, "--bucket-cap-mb=0.01")
        reductions = self.reductions(result)
        # fc2 with fc1, conv2, and conv1.
        self.assertEqual(len(reductions), 3)
        elements = sum(row[3] for row in reductions)
        self.assertGreaterEqual(elements, PARAMETERS)
        self.assertLessEqual(elements, PARAMETERS + FLAGS)
        for begin, end, hidden, _ in reductions:
            self.assertLessEqual(begin, end)
            self.assertLessEqual(hidden, 100)

    def test_one_bucket(self):
        result = self.check(2, "--bucket-cap-mb=100")
        self.assertEqual(len(self.reductions(result)), 1)

    def test_alone(self):
        result = self.inspect(1)
        self.assertEqual(self.reductions(result), [])
        for (norm, mean, first, mean_first), in self.gradients(
                result).values():
            self.assertEqual((norm, first), (mean, mean_first))

    def test_batch_norm(self):
        result = self.inspect(2, "--model=resnet18", "--parameters="
                              "layer1.0.bn1.weight,fc.weight")
        self.assertEqual(list(self.gradients(result)),
                         ["layer1.0.bn1.weight", "fc.weight"])
        self.assertIn("equal bit for bit on all ranks", result.out)

    def test_timeline(self):
        file = os.path.join(self.folder, "timeline.json")
        self.inspect(2, "--bucket-cap-mb=0.1", f"--timeline={file}")
        self.assertEqual(os.listdir(self.folder), ["timeline.json"])
        with open(file) as text:
            events = json.load(text)["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events
                 if event["name"] == "process_name"}
        self.assertEqual(names, {0: "rank 0", 1: "rank 1"})

        def spans(rank, name):
            return sorted((event["ts"], event["ts"] + event["dur"],
                           event["tid"]) for event in events
                          if event["pid"] == rank and event["name"] == name)

        reductions = [spans(rank, "ddp:all_reduce") for rank in (0, 1)]
        self.assertEqual(len(reductions[0]), len(reductions[1]))
        for rank in 0, 1:
            passes = spans(rank, "backward")
            self.assertEqual(len(passes), 2)
            self.assertEqual(len(spans(rank, "backward alone")), 2)
            for begin, end, _ in passes:
                inside = [span for span in reductions[rank]
                          if begin <= span[0] < end]
                self.assertEqual(2 * len(inside), len(reductions[rank]))
                self.assertGreater(len(inside), 1)
            # The all-reduces are in a row of their own, not in that of the
            # backward pass.
            threads = {thread for _, _, thread in reductions[rank]}
            self.assertNotIn(passes[0][2], threads)
        # On the ranks' common clock each all-reduce overlaps that of the other
        # rank.
        for (begin, end, _), (other_begin, other_end, _) in zip(*reductions):
            self.assertLess(begin, other_end)
            self.assertLess(other_begin, end)

    def test_bad_input(self):
        for flag, code in (("--parameters=fc3.bias", 1), ("--steps=0", 2),
                           ("--image-shape=1,4,4", 1)):
            result = run([INSPECT, "--no-cuda", flag])
            self.assertEqual(result.code, code)
            self.assert_one_line(result.err, "fc3.bias|--steps|6x6")


if __name__ == "__main__":
    unittest.main()
