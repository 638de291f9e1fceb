"""sharded learns alike with shards and with --ddp, needs less memory with shards, and
goes on from one file in both forms and on any number of ranks."""

import os
import unittest

from jobs import JobTest, ddprun, program

SHARDED = program("sharded")


class Sharded(JobTest):
    def train(self, ranks, *arguments):
        result = self.succeed([*ddprun(ranks), SHARDED, *arguments], LOGLEVEL="ERROR")
        self.assertEqual(result.err, "")
        losses = [(int(step), float(loss)) for step, loss in
                  result.find(r"step (\d+): loss (\S+)")]
        ((of, before, after),) = result.find(
            r"memory of (\d+) ranks: (\S+) MB before the model, (\S+) MB in training")
        self.assertEqual(int(of), ranks)
        ((accuracy,),) = result.find(r"test accuracy (\S+)")
        self.assertGreater(float(accuracy), 0.99)
        return losses, float(after) - float(before)

    def assert_near(self, losses, others):
        """Clipping has other last digits with shards, sums on other numbers of ranks."""
        self.assertEqual([step for step, _ in losses], [step for step, _ in others])
        for (step, loss), (_, other) in zip(losses, others):
            self.assertLess(abs(loss - other), 0.01 * loss + 1e-4, f"step {step}")

    def test_learns_as_copies_do(self):
        alone, _ = self.train(1)
        self.assertEqual([step for step, _ in alone], [5, 10, 15, 20])
        self.assertGreater(alone[0][1], 1)
        self.assertLess(alone[-1][1], 0.2)
        shards, of_shards = self.train(2)
        copies, of_copies = self.train(2, "--ddp")
        self.assert_near(shards, copies)
        self.assert_near(shards, alone)
        self.assertLess(of_shards, 0.9 * of_copies)
        shards, _ = self.train(3)
        self.assert_near(shards, alone)

    def test_one_file(self):
        """Each training goes on where the one before, of the other form, has ended."""
        path = os.path.join(self.folder, "net.pt")
        reached = 0
        sizes = []
        for ranks, *form in (2,), (3, "--ddp"), (2,):
            losses, _ = self.train(ranks, *form, path)
            self.assertEqual([step for step, _ in losses],
                             list(range(reached + 5, reached + 25, 5)))
            if reached > 0:
                self.assertLess(losses[0][1], 0.1)
            reached += 20
            sizes.append(os.path.getsize(path))
        # Parameters and two states of AdamW: of one model, not of each rank.
        self.assertLess(max(sizes), 1.01 * min(sizes))


if __name__ == "__main__":
    unittest.main()
