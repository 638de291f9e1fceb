"""scripts/plot draws the files that samples write. Its computations and its calls
of matplotlib are tested everywhere; the pictures only if matplotlib is installed,
for example by ./scripts/test."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from importlib.machinery import SourceFileLoader

PLOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                    "scripts", "plot")
HEADER = "update,worker,staleness,loss\n"
SIZES = "gigabits,arm,ms\n"
HOSTS = "hosts,event,ms\n"
COSTS = "way,device,state,sent,received,memory_parameters,memory_results\n"


def load():
    loader = SourceFileLoader("plot", PLOT)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("plot", loader))
    loader.exec_module(module)
    return module


class PlotTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Without a cached list of fonts matplotlib scans all fonts.
        settings = tempfile.TemporaryDirectory()
        cls.addClassCleanup(settings.cleanup)
        cls.settings = settings.name

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def trace(self, name):
        """Writes a trace of two ranks with steps of 10, 8 and 9 ms."""
        def event(category, name, rank, begin, end):
            return {"ph": "X", "cat": category, "name": name, "pid": rank,
                    "ts": begin * 1000, "dur": (end - begin) * 1000}

        begins = [60, 70, 78, 87]
        events = [item for rank in (1, 0)
                  for begin, end in zip(begins, begins[1:])
                  for item in (event("scope", "forward", rank, begin, begin + 2),
                               event("scope", "optimizer", rank, end - 1, end))]
        return self.write(name, json.dumps({"traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0}, *events,
            event("compute", "f", 0, 81, 84),
            event("other", "aten::mm", 0, 82, 83),
            event("communication", "ddp:all_reduce", 1, 82, 90),
            event("communication", "ddp:all_reduce", 1, 60, 62),
            event("scope", "epoch", 0, 0, 99)]}))

    def command(self, *files):
        return [PLOT, "--out", os.path.join(self.folder, "out"), *files]

    def run_alone(self, *files, **environment):
        return subprocess.run(
            [sys.executable, *self.command(*files)], capture_output=True,
            text=True,
            env={**os.environ, "MPLCONFIGDIR": self.settings, **environment})

    def plot(self, *files):
        """Draws in this process, where matplotlib is imported once. Returns the
        error, which is empty after success."""
        settings = {"MPLCONFIGDIR": self.settings}
        with (unittest.mock.patch.dict(os.environ, settings),
              unittest.mock.patch.object(sys, "argv", self.command(*files))):
            try:
                load().main()
            except SystemExit as end:
                return end.code
        return ""


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


    def test_layers(self):
        path = self.write("layers.csv",
                          "room,includes\nbase,\njob,base\nwrap,base job\n")
        self.assertTrue(load().has_layers(path))
        self.assertEqual(load().read_layers(path),
                         (["base", "job", "wrap"], [[], [0], [0, 1]]))
        self.assertFalse(load().has_layers(self.write("a.csv", HEADER)))

    def test_other_layers(self):
        for text, error in (("room,includes\n", ValueError),
                            ("room,includes\njob,base\n", KeyError)):
            with self.assertRaises(error):
                load().read_layers(self.write("layers.csv", text))

    def test_sizes(self):
        path = self.write("links.csv", SIZES + "3,ours,5\n3,cap25,8\n"
                          "3,cap25,6\n1,ours,9\n")
        self.assertTrue(load().has_sizes(path))
        self.assertEqual(load().read_sizes(path),
                         {3: {"ours": [5], "cap25": [8, 6]}, 1: {"ours": [9]}})
        self.assertFalse(load().has_sizes(self.write("a.csv", HEADER)))
        for text in SIZES, SIZES + "3,cap25,6\n":
            with self.assertRaises(ValueError):
                load().read_sizes(self.write("links.csv", text))

    def test_hosts(self):
        path = self.write("hosts.csv", HOSTS + "10,meet,1\n10,leave,2\n"
                          "30,meet,3\n10,meet,4\n")
        self.assertTrue(load().has_hosts(path))
        self.assertEqual(load().read_hosts(path),
                         {"meet": {10: [1, 4], 30: [3]}, "leave": {10: [2]}})
        self.assertFalse(load().has_hosts(self.write("a.csv", HEADER)))
        with self.assertRaises(ValueError):
            load().read_hosts(self.write("hosts.csv", HOSTS))

    def test_step(self):
        # The step of median length is the third: 78 to 87.
        self.assertEqual(load().read_step(self.trace("trace.json")),
                         {0: {"forward": [(0, 2)], "compute": [(3, 3)]},
                          1: {"forward": [(0, 2)], "communication": [(4, 5)]}})

    def test_other_traces(self):
        for text in '{"traceEvents": []}', "[]", "{", '{"traceEvents": [{}]}':
            with self.assertRaises((ValueError, KeyError, TypeError)):
                load().read_step(self.write("a.json", text))


class Axes:
    """Records the calls of a drawing, by name."""

    def __init__(self):
        self.calls = {}

    def __getattr__(self, name):
        def keep(*values, **options):
            values = [value if isinstance(value, str) else list(value)
                      for value in values]
            self.calls.setdefault(name, []).append((values, options))
        return keep


class Plt:
    """The part of matplotlib.pyplot that the drawings use."""

    def subplots(self, *shape, **options):
        self.left, self.right = Axes(), Axes()
        return object(), (self.left, self.right)


class Drawings(PlotTest):
    def bars(self, axes):
        """Returns the places, heights and labels of each call."""
        return [(places, heights, options.get("label"))
                for (places, heights), options in axes.calls["bar"]]

    def check(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for (places, heights, label), (x, y, name) in zip(found, expected):
            self.assertEqual(label, name)
            for values, wanted in (places, x), (heights, y):
                self.assertEqual(len(values), len(wanted))
                for value, want in zip(values, wanted):
                    self.assertAlmostEqual(value, want)

    def test_costs(self):
        plt = Plt()
        load().draw_costs(plt, {
            "DP": [(10e6, 20e6, 3e6), (1e6, 2e6, 4e6)],
            "DDP": [(5e6, 6e6, 7e6), (5e6, 7e6, 8e6)]})
        self.check(self.bars(plt.left),
                   [([-0.2, 0.8], [30, 3], "DataParallel"),
                    ([0.2, 1.2], [11, 12], "DistributedDataParallel")])
        self.check(self.bars(plt.right),
                   [([-0.2, 0.8], [3, 4], "DataParallel"),
                    ([0.2, 1.2], [7, 8], "DistributedDataParallel")])
        for axes in plt.left, plt.right:
            (_, options), = [call for call in axes.calls["set"]
                             if "xticks" in call[1]]
            self.assertEqual(list(options["xticks"]), [0, 1])

    def test_losses_and_staleness(self):
        plt = Plt()
        load().draw(plt, {"one": ([4.0, 2.0], [0, 0]),
                          "two": ([8.0, 6.0, 4.0, 2.0], [0, 2, 2, 1])})
        lines = [(values, options["label"])
                 for (values,), options in plt.left.calls["plot"]]
        self.assertEqual(lines, [([4, 3], "one"), ([8, 7, 6, 5], "two")])
        self.check(self.bars(plt.right),
                   [([-0.2], [100], None),
                    ([0.2, 1.2, 2.2], [25, 25, 50], None)])
        self.assertEqual(plt.left.calls["set_yscale"], [(["log"], {})])


class Pictures(PlotTest):
    def test_without_matplotlib(self):
        self.write("matplotlib.py", "raise ImportError('not here')\n")
        result = self.run_alone(self.write("a.csv", HEADER),
                                PYTHONPATH=self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr,
                         "plot: needs the Python package matplotlib: "
                         "python3 -m pip install matplotlib\n")

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"),
                         "there is no matplotlib")
    def test_pictures(self):
        files = [
            self.write("synchronous.csv", HEADER + "".join(
                f"{i},0,0,{1 / (i + 1)}\n" for i in range(50))),
            self.write("bound_2.csv", HEADER + "".join(
                f"{i},{i % 2},{i % 3},{2 / (i + 1)}\n" for i in range(50)))]
        result = self.run_alone(*files)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(self.folder, "out.png"), "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        with open(os.path.join(self.folder, "out.svg")) as file:
            svg = file.read()
        self.assertIn("<!-- bound 2 -->", svg)
        self.assertIn("<!-- staleness of an update -->", svg)
        self.assertRegex(self.plot(os.path.join(self.folder, "none.csv")),
                         r"^plot: \S+none.csv: .*$")

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"),
                         "there is no matplotlib")
    def test_costs(self):
        costs = self.write("costs.csv", COSTS + "".join(
            f"{way},{device},0,{device + 1},2,3,4\n"
            for way in ("DP", "DDP") for device in range(3)))
        self.assertEqual(self.plot(costs), "")
        with open(os.path.join(self.folder, "out.svg")) as file:
            svg = file.read()
        self.assertIn("<!-- DistributedDataParallel -->", svg)
        self.assertIn("<!-- MB sent and received a step -->", svg)
        with open(costs, "a") as file:
            file.write("DP,3,0,1,2,3,4\n")
        self.assertRegex(self.plot(costs), r"^plot: \S+costs.csv: .*$")

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"),
                         "there is no matplotlib")
    def test_sizes(self):
        sizes = self.write("links.csv", SIZES + "".join(
            f"{rate},{arm},{i}\n" for rate in (3, 1) for i in range(3)
            for arm in ("ours", "cap1", "cap25", "plain")))
        self.assertEqual(self.plot(sizes), "")
        with open(os.path.join(self.folder, "out.svg")) as file:
            svg = file.read()
        self.assertIn("<!-- 3 Gbit/s -->", svg)
        self.assertIn("<!-- MiB of a bucket -->", svg)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"),
                         "there is no matplotlib")
    def test_hosts(self):
        hosts = self.write("hosts.csv", HOSTS + "".join(
            f"{count},all meet,{count + i}\n" for count in (10, 100)
            for i in range(3)))
        self.assertEqual(self.plot(hosts), "")
        with open(os.path.join(self.folder, "out.svg")) as file:
            svg = file.read()
        self.assertIn("<!-- all meet -->", svg)
        self.assertIn("<!-- 100 -->", svg)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"),
                         "there is no matplotlib")
    def test_steps(self):
        traces = [self.trace("one_bucket.json"), self.trace("two.json")]
        self.assertEqual(self.plot(*traces), "")
        with open(os.path.join(self.folder, "out.svg")) as file:
            svg = file.read()
        for text in "one bucket", "two", "rank 1", "communication":
            self.assertIn(f"<!-- {text} -->", svg)
        for name, text in (("other.json", "[]"), ("other.json", "{"),
                           ("other.csv", HEADER + "0,1,0,2.5\n")):
            self.assertRegex(self.plot(traces[0], self.write(name, text)),
                             r"^plot: .*other\.\w+: .*$")


if __name__ == "__main__":
    unittest.main()
