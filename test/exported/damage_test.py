"""Files of torch.export that are damaged, too new or too old, or have what is not
supported, are errors of one line.

    python damage_test.py --program DAMAGED_EXPORTED [--count N] [--seed S]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import warnings
import zipfile

import torch
from torch import nn

SETTINGS = argparse.Namespace()
TIMEOUT = 3600  # seconds
MODEL = "models/model.json"


def export(path, module, inputs=None, shapes=None, kwargs=None):
    torch.manual_seed(0)
    program = torch.export.export(module, inputs or (torch.ones(8, 6),), kwargs,
                                  dynamic_shapes=shapes)
    torch.export.save(program, path)
    return program


def net():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5),
                         nn.Linear(4, 2))


class Odd(nn.Module):
    """Has what the plain network has not: control flow, sizes, lists."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, *, scale=2.0):
        with torch.no_grad():
            y = x * scale
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(y)
        y = torch.cat([x, y.float()]).view(2 * x.shape[0], -1, 2).split(1, 2)[0]
        return {"y": torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(),
                                (y,))}


class Guarded(nn.Module):
    """Holds for even numbers of rows, and asks for more."""

    def forward(self, x):
        n = x.shape[0]
        if n % 2 == 0 and n ** 0.5 > 2 and max(n, 3) // 2 < 9:
            x = x.view(-1, 2, 6).sum(1)
        return x


def records_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name)
                for name in archive.namelist()}


def write(path, records):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr("net/" + name, data)


def run(*arguments):
    """Returns the output of a run of damaged_exported that succeeds."""
    done = subprocess.run([SETTINGS.program, *arguments], text=True,
                          capture_output=True, timeout=TIMEOUT)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode} of {done.args}: "
                             f"{done.stdout}{done.stderr[-4000:]}")
    return done.stdout


def without_metadata(members):
    """Drops the stack traces of a program, which are most of its text."""
    return {**members, "metadata": {}} if "metadata" in members else members


class DamageTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def path(self, name="net.pt2"):
        return os.path.join(self.folder, name)

    def error_of(self, path):
        return run("load", path)

    def changed(self, change):
        """Returns the error of a file whose program was changed."""
        export(self.path(), net())
        records = records_of(self.path())
        program = json.loads(records[MODEL])
        change(program)
        records[MODEL] = json.dumps(program).encode()
        write(self.path(), records)
        return self.error_of(self.path())

    def test_a_whole_file(self):
        self.assertEqual(self.changed(lambda program: None), "")

    def test_another_schema(self):
        error = self.changed(
            lambda program: program["schema_version"].update(major=9))
        self.assertIn("Expected models/model.json.schema_version.major to be 8",
                      error)

    def test_all_missing_operators_are_named(self):
        def change(program):
            nodes = program["graph_module"]["graph"]["nodes"]
            nodes[0]["target"] = "torch.ops.mine.first.default"
            nodes[1]["target"] = "torch.ops.higher_order.while_loop"
        error = self.changed(change)
        self.assertIn("torch.ops.mine.first.default", error)
        self.assertIn("torch.ops.higher_order.while_loop", error)

    def test_a_size_of_the_export(self):
        export(self.path(), net(), (torch.ones(4, 6),))
        self.assertRegex(self.error_of(self.path()),
                         "Expected dimension 0 of input input to be 4, as in the "
                         "export, but got 8")
        export(self.path(), net(), shapes=({0: torch.export.Dim("b", max=7)},),
               inputs=(torch.ones(4, 6),))
        self.assertRegex(self.error_of(self.path()),
                         r"Expected inputs with input\.size\(\)\[0\] <= 7, as in the "
                         r"export, but got input of sizes \[8, 6\]")

    def test_a_program_that_returns_buffers(self):
        program = export(self.path(), net())
        torch.export.save(program.run_decompositions(), self.path())
        self.assertIn("export without run_decompositions()",
                      self.error_of(self.path()))

    def test_other_files(self):
        with open(self.path("text"), "w", encoding="utf-8") as file:
            file.write("no zip")
        self.assertIn("to be a program that can be trained", self.error_of(
            self.path("text")))
        torch.save({"x": torch.ones(2)}, self.path("state.pt"))
        self.assertIn("no file of torch.export.save", self.error_of(
            self.path("state.pt")))
        self.assertIn("missing.pt2", self.error_of(self.path("missing.pt2")))

    def test_weights_outside_of_their_record(self):
        export(self.path(), net())
        config = "data/weights/model_weights_config.json"
        for member, value in (("sizes", [{"as_int": 400}, {"as_int": 6}]),
                              ("strides", [{"as_int": 2**62}, {"as_int": 1}]),
                              ("storage_offset", {"as_int": 2**63 - 1}),
                              ("sizes", [{"as_int": -1}, {"as_int": 6}])):
            records = records_of(self.path())
            weights = json.loads(records[config])
            weights["config"]["0.weight"]["tensor_meta"][member] = value
            records[config] = json.dumps(weights).encode()
            write(self.path("changed.pt2"), records)
            self.assertIn("config.0.weight.tensor_meta",
                          self.error_of(self.path("changed.pt2")))

    def test_a_file_of_pytorch_2_8(self):
        export(self.path(), net())
        records = records_of(self.path())
        for name in [name for name in records if name.startswith("data/weights/")]:
            del records[name]
        records["data/weights/model.pt"] = b"pickled"
        write(self.path(), records)
        self.assertIn("it is no file of torch.export.save of PyTorch 2.10 or later; "
                      "export it again there", self.error_of(self.path()))

    def test_infinity_as_an_argument(self):
        class Clamp(nn.Module):
            def forward(self, x, most=float("inf"), *, least=-float("inf")):
                return x.clamp(least, most)
        export(self.path(), Clamp(), kwargs={"most": float("inf"),
                                             "least": -float("inf")})
        self.assertEqual(self.error_of(self.path()), "")

    def test_a_number_as_a_dtype(self):
        class Halved(nn.Module):
            def forward(self, x):
                return x.to(torch.float16).sum(dtype=torch.float32)
        export(self.path(), Halved())
        records = records_of(self.path())
        program = records[MODEL].decode()
        for kind in ("as_int", "as_bool"):
            records[MODEL] = re.sub(r'"as_scalar_type": *\d+',
                                    f'"{kind}": ' + ("482" if kind == "as_int" else "true"),
                                    program).encode()
            write(self.path(), records)
            self.assertIn("to be as_scalar_type", self.error_of(self.path()))

    def test_guards(self):
        export(self.path(), Guarded(), shapes=({0: torch.export.Dim.AUTO},))
        records = records_of(self.path())
        program = json.loads(records[MODEL])
        self.assertIn("(L['x'].size()[0] % 2) == 0", program["guards_code"])

        def error_with(guards, check="load"):
            program["guards_code"] = guards
            records[MODEL] = json.dumps(program).encode()
            write(self.path("changed.pt2"), records)
            return run(check, self.path("changed.pt2"))

        for guard in ("(L['x'].size()[0] % 3) == 0", "1 // (L['x'].size()[0] - 8) > 0",
                      "L['x'].stride()[0] == 5 and " * 500 + "True",
                      "math.inf - math.inf == math.inf"):
            error = error_with([guard])
            self.assertIn(f"Expected inputs with {guard[:300]}", error)
            self.assertLess(len(error), 800)
        unreadable = ["open('x')", "L['z'].size()[0] > 1", "L['it\\'s \"q\"'] > 1",
                      "(" * 100000, "L['x'" + "[0]" * 30000, "not " * 30000, "\té\n",
                      "True" + " + 0" * 25000, "1 < L['x'].size()[0] < 9",
                      "round(L['x'].size()[0] / 3, 1) > 2", "math.sin(L['x'].size()[0]) < 2"]
        error = error_with(unreadable)
        for guard in unreadable:
            self.assertIn(guard[:300], error)
        self.assertLess(len(error), 5000)
        self.assertEqual(error_with(unreadable, "unguarded"), "")
        self.assertEqual(error_with(["L['x'].size()[0] == 8" + " + 0" * 2500,
                                     "1 <= 2" + " and 1 <= 2" * 2000]), "")

    def test_nested_too_deep(self):
        export(self.path(), net())
        records = records_of(self.path())
        records[MODEL] = b"[" * 100000
        write(self.path(), records)
        self.assertIn("nested at most 200 deep", self.error_of(self.path()))

    def test_damaged_files(self):
        paths = [self.path("net.pt2"), self.path("odd.pt2"), self.path("guarded.pt2")]
        export(paths[2], Guarded(), shapes=({0: torch.export.Dim.AUTO},))
        export(paths[0], net(), shapes=({0: torch.export.Dim("b")},))
        export(paths[1], Odd(), kwargs={"scale": 2.0},
               shapes={"x": {0: torch.export.Dim("b")}, "scale": None})
        for path in paths:
            records = records_of(path)
            program = json.loads(records[MODEL], object_hook=without_metadata)
            write(path, {**records, MODEL: json.dumps(program).encode()})
            self.assertEqual(self.error_of(path), "")
        print(run("fuzz", str(SETTINGS.count), str(SETTINGS.seed), *paths))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tests", nargs="*")
    parser.parse_args(namespace=SETTINGS)
    warnings.simplefilter("ignore")
    unittest.main(argv=[sys.argv[0], *SETTINGS.tests], verbosity=2)


if __name__ == "__main__":
    main()
