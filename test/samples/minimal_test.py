"""minimal learns its spirals, alone and on several ranks, and README shows its
source unchanged."""

import os
import re
import unittest

from jobs import JobTest, ddprun, program

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MINIMAL = program("minimal")


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


class Minimal(JobTest):
    def test_learns_and_shows_its_group(self):
        for launcher, lines in (([], ""),
                                (ddprun(3), "[0] ddp: 3 ranks over gloo, rank 0 "
                                 "on cpu\n")):
            result = self.succeed([*launcher, MINIMAL], DDP_QUIET="0", LOGLEVEL="ERROR")
            self.assertEqual(result.err, lines)
            losses = [float(loss) for _, loss in
                      result.find(r"epoch (\d+): loss (\S+)")]
            self.assertEqual(len(losses), 20, result.out)
            self.assertGreater(losses[0], 0.3)
            self.assertLess(losses[-1], 0.1)

    def test_readme_shows_it(self):
        shown = re.search(r"```cpp\n(.*?)```", read("README.md"), re.S)[1]
        source = read("samples", "minimal.cpp")
        main = source[source.index("int main()"):]
        self.assertIn(main, shown)
        for include in shown[:shown.index(main)].split("\n"):
            self.assertIn(include, source.split("\n"))


if __name__ == "__main__":
    unittest.main()
