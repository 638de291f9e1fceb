"""Files of torch.export that are damaged, too new or too old, or have what is not
supported, are errors of one line.

    python damage_test.py --program TRAIN_EXPORTED [--count N] [--seed S]
"""

import argparse
import json
import os
import random
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
SLOWEST = 10  # seconds for a file that takes some milliseconds
BATCH = 200
MODEL = "models/model.json"


def export(path, module, inputs=None, shapes=None):
    torch.manual_seed(0)
    program = torch.export.export(module, inputs or (torch.ones(8, 6),),
                                  dynamic_shapes=shapes)
    torch.export.save(program, path)
    return program


def net():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5),
                         nn.Linear(4, 2))


def records_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name)
                for name in archive.namelist()}


def write(path, records):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr("net/" + name, data)


def errors_of(paths):
    """Returns the error of each file, "" for none."""
    errors = []
    for first in range(0, len(paths), BATCH):
        batch = paths[first:first + BATCH]
        done = subprocess.run([SETTINGS.program, "damaged", *batch], text=True,
                              capture_output=True, timeout=SLOWEST * BATCH)
        lines = done.stdout.splitlines()
        if done.returncode != 0 or len(lines) != len(batch):
            raise AssertionError(f"{batch[len(lines)]}: exit code "
                                 f"{done.returncode}: {done.stderr[-2000:]}")
        for path, line in zip(batch, lines, strict=True):
            seconds, _, error = line.partition(" ")
            if float(seconds) > SLOWEST:
                raise AssertionError(f"{path} takes {seconds} s")
            errors.append(error)
    return errors


def mutate(text, dice):
    """Changes a JSON text in one to three places, most of them to other JSON."""
    values = ["null", "-1", "0", "9223372036854775807", "1e308", "[]", "{}", '""',
              "true", '"x"', "[[[[]]]]", '{"as_int": 3}']
    for _ in range(dice.randint(1, 3)):
        tokens = list(re.finditer(r'"[^"]*"|-?\d+|true|false|null|[\[\]{}:,]', text))
        token = dice.choice(tokens)
        other = dice.choice([dice.choice(tokens)[0], dice.choice(values), ""])
        text = text[:token.start()] + other + text[token.end():]
    return text


class DamageTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def path(self, name="net.pt2"):
        return os.path.join(self.folder, name)

    def error_of(self, path):
        return errors_of([path])[0]

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
                         "Expected dimension 0 of input input to be from 0 to 7")

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
        torch.export.save(torch.export.export(
            Clamp(), (torch.ones(8, 6),), {"most": float("inf"),
                                           "least": -float("inf")}), self.path())
        self.assertEqual(self.error_of(self.path()), "")

    def test_nested_too_deep(self):
        export(self.path(), net())
        records = records_of(self.path())
        records[MODEL] = b"[" * 100000
        write(self.path(), records)
        self.assertIn("nested at most 200 deep", self.error_of(self.path()))

    def test_damaged_programs(self):
        dice = random.Random(SETTINGS.seed)
        export(self.path(), net(), shapes=({0: torch.export.Dim("b")},))
        records = records_of(self.path())
        texts = [name for name in records if name.endswith(".json")]
        paths = []
        for number in range(SETTINGS.count):
            name = dice.choice(texts)
            paths.append(self.path(f"{number}.pt2"))
            write(paths[-1], {**records,
                              name: mutate(records[name].decode(), dice).encode()})
            if len(paths) == BATCH or number == SETTINGS.count - 1:
                errors_of(paths)
                for path in paths:
                    os.remove(path)
                paths = []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.parse_args(namespace=SETTINGS)
    warnings.simplefilter("ignore")
    unittest.main(argv=[sys.argv[0]], verbosity=2)


if __name__ == "__main__":
    main()
