"""docs/features.md names tests that ctest runs: each row names tests, or a reason.

usage: features_test.py BUILD [CTEST]   (a build folder with its tests built)
"""

import ast
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "features.md"

# `ddp/join_test.cpp`: "one case", "another one"
REFERENCE = re.compile(r'`([\w/]+\.(?:cpp|py))`: ("[^"]+"(?:, "[^"]+")*)')
TEXT = r'"((?:[^"\\]|\\.)*)"'
# A row without tests begins with one of these reasons.
REASONS = ("Not there", "Not of C++", "Not of DDP", "Not in PyTorch",
           "Does nothing in PyTorch")

# Without GPUs, tests with the first label skip, and tests with the second one
# run on the stand-in (test/fake_gpu).
GPU_LABELS = {"gpu", "fake_gpu"}


@functools.cache
def jobs():
    """Returns (command, variables, labels) of each test of the build folder."""
    build, *ctest = sys.argv[1:]
    text = subprocess.run(
        [*(ctest or ["ctest"]), "--show-only=json-v1"], cwd=build, check=True,
        capture_output=True, text=True, timeout=60).stdout
    found = []
    for test in json.loads(text)["tests"]:
        properties = {one["name"]: one["value"]
                      for one in test.get("properties", [])}
        variables = dict(entry.split("=", 1)
                         for entry in properties.get("ENVIRONMENT", []))
        found.append((test.get("command", []), variables,
                      set(properties.get("LABELS", []))))
    return found


def is_catch_program(file):
    return (os.path.isfile(file) and os.access(file, os.X_OK)
            and b"list-test-names-only" in pathlib.Path(file).read_bytes())


def listed_cases(text, folder):
    """Returns (file, name) of each line "NAME\\t@FILE:LINE"; paths are relative to the
    compiler's folder."""
    return [(pathlib.Path(folder, found[2]).resolve(), found[1]) for found in
            re.finditer(r"^(.*)\t@(.+):\d+$", text, re.MULTILINE)]


@functools.cache
def run_cases():
    """Returns the labels of the jobs that run each case of Catch2, by (file, name).
    Omits hidden cases, and cases that a command leaves out."""
    labels_of = {}
    listed = {}
    # One program has the same cases on GPUs and on the stand-in, in all modes and
    # with all seeds. Without a GPU it lists them only on the stand-in.
    for command, variables, labels in sorted(
            jobs(), key=lambda job: "LD_PRELOAD" not in job[1]):
        if not command or not is_catch_program(command[0]):
            continue
        key = tuple(command)
        if key not in listed:
            filters = command[1:] or ["~[.]"]
            listed[key] = listed_cases(subprocess.run(
                [command[0], *filters, "--list-test-names-only",
                 "--verbosity", "high"],
                timeout=120, env=os.environ | variables,
                capture_output=True, text=True).stdout, sys.argv[1])
        for case in listed[key]:
            labels_of.setdefault(case, set()).update(labels)
    return labels_of


@functools.cache
def run_modules():
    """Returns the Python files that ctest runs, and the files of their folders that
    they import."""
    files = [pathlib.Path(word) for command, _, _ in jobs() for word in command
             if word.endswith(".py")]
    found = set()
    while files:
        file = files.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            files += [file.parent / f"{name}.py" for name in names]
    return found


def python_cases(file):
    """Returns methods of test cases, keys of tables of cases, functions that check,
    and main, for a whole program."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            if node.name.startswith(("test_", "check_")) or node.name == "main":
                names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if all(isinstance(t, ast.Name) and t.id.isupper() for t in node.targets):
                names |= {key.value for key in node.value.keys
                          if isinstance(key, ast.Constant)}
    return names if file in run_modules() else set()


@functools.cache
def cases_of(file):
    """Returns the names of a file's tests that ctest runs."""
    if file.suffix == ".py":
        return python_cases(file)
    return {name for where, name in run_cases() if where == file.resolve()}


def needs_gpu(file, name):
    """Returns whether all jobs that run this case need GPUs or the stand-in."""
    labels = run_cases().get((file.resolve(), name), set())
    return bool(labels) and labels <= GPU_LABELS


def rows(page):
    """Returns (line, feature, tests) of each row of each table."""
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|") or line.startswith("|---"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] != "PyTorch":
            yield number, cells


def problems(page, tests):
    """Returns the page's errors by line; `tests` is the folder of the tests."""
    found = []
    for number, cells in rows(page):
        def say(problem):
            found.append(f"docs/features.md:{number}: {problem}")

        if len(cells) != 2 or not all(cells):
            say(f"expected a feature and its tests or a reason, got {cells}")
            continue
        # Text that looks like a test but is not parsed as one would not be
        # checked.
        for rest in re.findall(r'`[^`]*\.(?:cpp|py)`|"[^"]*"?',
                               REFERENCE.sub("", cells[1])):
            say(f'expected `FILE`: "CASE", "CASE", got {rest}')
        for name, cases in REFERENCE.findall(cells[1]):
            file = tests / name
            if not file.is_file():
                say(f"expected a file below test/, got {name}")
                continue
            for case in re.findall(TEXT, cases):
                if case not in cases_of(file):
                    say(f'expected a test of {name} that ctest runs, got "{case}"')
        if not REFERENCE.search(cells[1]) and not cells[1].startswith(REASONS):
            say(f"expected a test, or one of {REASONS}")
    return found


def cases_for_gpus(page, tests):
    """Returns (file, name) of each case on the page that needs GPUs or the stand-in."""
    return sorted({(name, case) for _, cells in rows(page)
                   for name, cases in REFERENCE.findall(cells[-1])
                   for case in re.findall(TEXT, cases)
                   if needs_gpu(tests / name, case)})


class Features(unittest.TestCase):
    maxDiff = None

    def test_every_named_test_exists(self):
        page = PAGE.read_text()
        self.assertGreater(len(list(rows(page))), 100)
        self.assertEqual("", "\n".join(problems(page, ROOT / "test")))
        on_gpus = cases_for_gpus(page, ROOT / "test")
        self.assertNotEqual([], on_gpus)
        print(f"\nWithout GPUs {len(on_gpus)} named cases run on the stand-in "
              "(test/fake_gpu) alone:")
        for file, case in on_gpus:
            print(f'  {file}: "{case}"')

    def test_cases_are_their_files(self):
        lines = ('a, "b"\t@/x/one_test.cpp:12\nb\t@../two_test.cpp:7\n'
                 "filters: 2\n")
        self.assertEqual(
            [(pathlib.Path("/x/one_test.cpp"), 'a, "b"'),
             (pathlib.Path("/y/two_test.cpp"), "b")],
            listed_cases(lines, "/y/build"))

    def test_what_is_wrong_is_found(self):
        for row, problem in {
                "| a | |": "expected a feature",
                "| a | Not there. | b |": "expected a feature",
                "| a | `ddp/none_test.cpp`: \"b\" |": "got ddp/none_test.cpp",
                "| a | `ddp/join_test.cpp`: \"b\" |": 'got "b"',
                # A case of another file of the same program.
                "| a | `ddp/mean_test.cpp`: \"a world of one joins at once\" |":
                    'got "a world of one joins at once"',
                "| a | `parity/passes.py`: \"b\" |": 'got "b"',
                "| a | `ddp/join_test.cpp` |": "got `ddp/join_test.cpp`",
                "| a | `ddp/join_test.cpp` \"b\" |": 'got "b"',
                "| a | Yes, and it is tested. |": "expected a test, or one of",
                "| a | `parity/passes_support.py`: \"fill\" |": 'got "fill"',
        }.items():
            with self.subTest(row=row):
                self.assertIn(problem, "\n".join(problems(row, ROOT / "test")))
        for row in ("| a | Not there. |",
                    "| a | `parity/passes.py`: \"join\" |",
                    "| a | `ddp/join_test.cpp`: \"a world of one joins at once\","
                    " \"even inputs end no join early\". Why. |"):
            with self.subTest(row=row):
                self.assertEqual([], problems(row, ROOT / "test"))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.splitlines()[2])
    unittest.main(argv=sys.argv[:1], verbosity=2)
