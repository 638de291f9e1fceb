"""scripts/plot draws the files that samples write. Its sums are tested
everywhere, its pictures where matplotlib is."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader

PLOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                    "scripts", "plot")
HEADER = "update,worker,staleness,loss\n"
COSTS = "way,device,state,sent,received,memory_parameters,memory_results\n"


def load():
    loader = SourceFileLoader("plot", PLOT)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("plot", loader))
    loader.exec_module(module)
    return module


def python_with_matplotlib():
    for python in sys.executable, "python3":
        probe = subprocess.run([python, "-c", "import matplotlib"],
                               capture_output=True)
        if probe.returncode == 0:
            return python
    return None


class PlotTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def plot(self, python, *files, **environment):
        return subprocess.run(
            [python, PLOT, "--out", os.path.join(self.folder, "out"), *files],
            capture_output=True, text=True,
            env={**os.environ, "MPLCONFIGDIR": self.folder, **environment})


class Numbers(PlotTest):
    def test_running_mean(self):
        self.assertEqual(load().running_mean([4, 2, 6, 1], 2), [4, 3, 4, 3.5])

    def test_shares(self):
        self.assertEqual(load().shares([0, 2, 2, 0]), [0.5, 0, 0.5])

    def test_read(self):
        path = self.write("a.csv", HEADER + "0,1,0,2.5\n1,0,3,nan\n")
        losses, staleness = load().read(path)
        self.assertEqual(losses[0], 2.5)
        self.assertEqual(staleness, [0, 3])

    def test_other_files(self):
        for text in "", "a,b\n1,2\n", HEADER, HEADER + "0,1,x,1\n":
            with self.assertRaises(ValueError):
                load().read(self.write("a.csv", text))

    def test_costs(self):
        path = self.write("costs.csv", COSTS + "DP,0,9,10,20,1,2\n"
                          "DP,1,9,11,21,3,4\nDDP,0,9,12,22,5,6\n"
                          "DDP,1,9,13,23,7,8\n")
        self.assertTrue(load().has_costs(path))
        self.assertEqual(load().read_costs(path),
                         {"DP": [(10, 20, 3), (11, 21, 7)],
                          "DDP": [(12, 22, 11), (13, 23, 15)]})
        self.assertFalse(load().has_costs(self.write("a.csv", HEADER)))

    def test_other_costs(self):
        for text, error in ((COSTS, ValueError),
                            (COSTS + "DP,0,9,10,20,1,2\n", ValueError),
                            (COSTS + "RING,0,9,10,20,1,2\n", KeyError)):
            with self.assertRaises(error):
                load().read_costs(self.write("costs.csv", text))


class Pictures(PlotTest):
    def test_without_matplotlib(self):
        self.write("matplotlib.py", "raise ImportError('not here')\n")
        result = self.plot(sys.executable, self.write("a.csv", HEADER),
                           PYTHONPATH=self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr,
                         "plot: needs the Python package matplotlib: "
                         "python3 -m pip install matplotlib\n")

    @unittest.skipUnless(python_with_matplotlib(), "there is no matplotlib")
    def test_pictures(self):
        python = python_with_matplotlib()
        files = [
            self.write("synchronous.csv", HEADER + "".join(
                f"{i},0,0,{1 / (i + 1)}\n" for i in range(50))),
            self.write("bound_2.csv", HEADER + "".join(
                f"{i},{i % 2},{i % 3},{2 / (i + 1)}\n" for i in range(50)))]
        result = self.plot(python, *files)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "out.png"), "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        with open(os.path.join(self.folder, "out.svg")) as file:
            svg = file.read()
        self.assertIn("<!-- bound 2 -->", svg)
        self.assertIn("<!-- staleness of an update -->", svg)
        result = self.plot(python, os.path.join(self.folder, "none.csv"))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^plot: \S+none.csv: .*\n$")

    @unittest.skipUnless(python_with_matplotlib(), "there is no matplotlib")
    def test_costs(self):
        costs = self.write("costs.csv", COSTS + "".join(
            f"{way},{device},0,{device + 1},2,3,4\n"
            for way in ("DP", "DDP") for device in range(3)))
        result = self.plot(python_with_matplotlib(), costs)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "out.svg")) as file:
            svg = file.read()
        self.assertIn("<!-- DistributedDataParallel -->", svg)
        self.assertIn("<!-- MB sent and received a step -->", svg)
        with open(costs, "a") as file:
            file.write("DP,3,0,1,2,3,4\n")
        result = self.plot(python_with_matplotlib(), costs)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^plot: \S+costs.csv: .*\n$")


if __name__ == "__main__":
    unittest.main()
