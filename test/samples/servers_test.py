"""Parameter servers: the synchronous mode equals DistributedDataParallel's training,
the asynchronous mode learns with a bounded staleness and after workers die, and both
views of two_views are the same training."""

import csv
import os
import unittest

from jobs import (JobTest, collect, ddprun, each_rank, program, read_until,
                  run, run_each)

SYNC = [program("parameter_server")]
ASYNC = [*SYNC, "--mode=async"]
TWO_VIEWS = program("two_views")
TRAIN_IMAGES, TEST_IMAGES = 1442, 355
# The small CNN for 8x8 images: float32 weights and biases of conv1, conv2, fc1
# and fc2.
PARAMETER_BYTES = 4 * (32 * 1 * 9 + 32 + 64 * 32 * 9 + 64 +
                       (64 * 2 * 2) * 128 + 128 + 128 * 10 + 10)


def steps(workers, epochs, batch=32):
    share = -(-TRAIN_IMAGES // workers)
    return epochs * -(-share // batch)


def read_csv(file):
    with open(file, newline="") as rows:
        return list(csv.DictReader(rows))


class Servers(JobTest):
    def accuracies(self, result, pattern, at_least=0.95):
        found = [tuple(map(int, groups)) for groups in result.find(pattern)]
        self.assertTrue(found, result.out)
        for correct, count in found:
            self.assertEqual(count, TEST_IMAGES)
            self.assertGreaterEqual(correct / count, at_least)
        return found


class SyncSgd(Servers):
    def check(self, servers, workers, epochs):
        file = os.path.join(self.folder, "updates.csv")
        result = self.succeed(
            [*ddprun(servers + workers), *SYNC, f"--servers={servers}",
             "--compare-ddp", f"--epochs={epochs}", "--csv", file])
        rows = read_csv(file)
        self.assertEqual([int(row["update"]) for row in rows],
                         list(range(steps(workers, epochs))))
        self.assertEqual({row["staleness"] for row in rows}, {"0"})
        (difference,), = result.find(r"largest difference of a parameter: (.*)")
        scores = [self.accuracies(
            result, way + r"test accuracy \S+ % \((\d+) of (\d+)\)(?:, .*)?",
            at_least=0.9 if epochs >= 5 else 0.5)
            for way in (r"worker \d: ", "DistributedDataParallel: ")]
        self.assertEqual(len(scores[0]), workers)
        self.assertEqual(len(set(scores[0])), 1)
        if workers <= 2:
            self.assertEqual(float(difference), 0)
            self.assertEqual(scores[0][:1], scores[1])
        else:  # other order of three gradients
            self.assertLess(float(difference), 1e-6)
        return result, [float(row["loss"]) for row in rows]

    def test_one_server(self):
        result, losses = self.check(servers=1, workers=2, epochs=5)
        self.assertLess(sum(losses[-10:]), 0.2 * sum(losses[:10]))
        moved = steps(2, epochs=5) * PARAMETER_BYTES / 2**20
        received, = result.find(r"server 0: \d+ updates, .* sent, "
                                r"(\S+) MiB received")
        self.assertAlmostEqual(float(received[0]), 2 * moved, delta=0.1)
        sent = result.find(r"worker \d: .*, (\S+) MiB sent, .*")
        self.assertEqual(len(sent), 2)
        for mebibytes, in sent:
            self.assertAlmostEqual(float(mebibytes), moved, delta=0.1)

    def test_two_servers_and_three_workers(self):
        self.check(servers=2, workers=3, epochs=2)


class AsyncSgd(Servers):
    def check(self, servers, workers, bound, *flags, epochs=3, at_least=0.75):
        file = os.path.join(self.folder, "updates.csv")
        result = self.succeed(
            [*ddprun(servers + workers), *ASYNC, f"--servers={servers}",
             f"--staleness-bound={bound}", f"--epochs={epochs}", "--csv", file,
             *flags])
        scores = self.accuracies(
            result, r"worker \d+: test accuracy \S+ % \((\d+) of (\d+)\), .*",
            at_least)
        self.assertEqual(len(scores), workers)
        self.assertEqual(len(set(scores)), 1)  # all end with the same network
        of_each = steps(workers, epochs)
        stalest = result.find(
            r"server \d: (\d+) updates, at most (\d+) updates stale, .*")
        self.assertEqual(len(stalest), servers)
        for updates, staleness in stalest:
            self.assertEqual(int(updates), workers * of_each)
            self.assertLessEqual(int(staleness), bound)
        rows = read_csv(file)
        bars = result.find(r"staleness +(\d+): +(\d+) (#*)")
        most = max(int(count) for _, count, _ in bars)
        for staleness, count, bar in bars:
            self.assertEqual(
                sum(row["staleness"] == staleness for row in rows), int(count))
            self.assertAlmostEqual(len(bar), 50 * int(count) / most, delta=0.51)
        self.assertEqual(sum(int(count) for _, count, _ in bars), len(rows))
        for worker in range(workers):
            self.assertEqual(
                sum(row["worker"] == str(worker) for row in rows), of_each)
        return result

    def test_learns(self):
        self.check(1, 3, 8, epochs=10, at_least=0.9)

    def test_two_servers_in_turns(self):
        self.check(2, 2, 0)

    def test_slow_worker(self):
        result = self.check(1, 3, 5, "--slow-worker=60")
        # The other workers reach the bound.
        self.assertTrue(result.find(r"staleness +5: +[1-9].*"))


class Deaths(Servers):
    def test_asynchronous_worker(self):
        with each_rank(4, [*ASYNC, "--log-every=1", "--epochs=5"]) as processes:
            read_until(processes[2], "step 10 of")
            processes[2].kill()
            results = collect(processes)
        self.assertEqual([result.code for result in results], [0, 0, -9, 0])
        self.assertIn("server 0: worker 1 died", results[0].lines)
        # The servers did not wait for the worker at the end, either.
        self.assertNotIn("destroy_process_group", results[0].err)
        for rank in 1, 3:
            self.accuracies(
                results[rank],
                r"worker \d+: test accuracy \S+ % \((\d+) of (\d+)\), .*",
                at_least=0.75)


class BadInput(JobTest):
    def test_no_worker(self):
        result = run(SYNC)
        self.assertEqual(result.code, 1)
        self.assert_one_line(
            result.err, "at least one server and one worker, but got 1 "
                        "server in a world of 1 rank;")

    def test_file_that_cannot_be(self):
        file = os.path.join(self.folder, "none", "updates.csv")
        results = run_each(2, [*SYNC, "--epochs=1", "--csv", file])
        self.assertEqual(results[0].code, 1)
        self.assert_one_line(results[0].err, file)

    def test_usage(self):
        for command in ([*SYNC, "--servers=0"], [*ASYNC, "--slow-worker=-1"],
                        [TWO_VIEWS, "--replicas=0"]):
            result = run(command)
            self.assertEqual(result.code, 2)
            self.assert_one_line(result.err, command[-1].split("=")[0])


class TwoViews(Servers):
    def check(self, replicas, epochs, at_least):
        result = self.succeed([TWO_VIEWS, f"--replicas={replicas}",
                               f"--epochs={epochs}"])
        found = result.find(r"(?:parameter server|all-reduce): +test accuracy "
                            r"\S+ % \((\d+) of \d+\), parameters (\S+)")
        self.assertEqual(len(found), 2, result.out)
        self.assertEqual(found[0], found[1])
        self.assertGreaterEqual(int(found[0][0]) / TEST_IMAGES, at_least)
        (difference,), = result.find(
            r"largest difference from a training without replicas: (.*)")
        self.assertLess(float(difference), 1e-3)
        rows = result.find(r"replica (\d+) +(\d+) +(\d+) +(\d+) +(\d+)")
        self.assertEqual(len(rows), replicas)
        for row in rows:
            replica, *moved = map(int, row)
            server = PARAMETER_BYTES * (1 if replica else replicas - 1)
            self.assertEqual(moved[:2], [server, server])
            ring = 2 * (replicas - 1) / replicas * PARAMETER_BYTES
            for count in moved[2:]:  # to the nearest element of 8 parameters
                self.assertAlmostEqual(count, ring, delta=8 * 8 * replicas)

    def test_replicas(self):
        self.check(replicas=3, epochs=2, at_least=0.8)


if __name__ == "__main__":
    unittest.main()
