"""docs/features.md names tests that ctest runs: each row has some, or says why not.

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
CASE = re.compile(r"\bTEST_CASE\(\s*((?:" + TEXT + r"\s*)+)[,)]")
# A row without tests begins with one of these.
REASONS = ("Not there", "Not of C++", "Not of DDP", "Not in PyTorch",
           "Does nothing in PyTorch")


@functools.cache
def jobs():
    """(command, variables) of each test of the build folder."""
    build, *ctest = sys.argv[1:]
    text = subprocess.run(
        [*(ctest or ["ctest"]), "--show-only=json-v1"], cwd=build, check=True,
        capture_output=True, text=True, timeout=60).stdout
    found = []
    for test in json.loads(text)["tests"]:
        variables = {}
        for one in test.get("properties", []):
            if one["name"] == "ENVIRONMENT":
                variables = dict(entry.split("=", 1) for entry in one["value"])
        found.append((test.get("command", []), variables))
    return found


def is_catch_program(file):
    return (os.path.isfile(file) and os.access(file, os.X_OK)
            and b"list-test-names-only" in pathlib.Path(file).read_bytes())


@functools.cache
def run_cases():
    """The names of all cases of Catch2 that ctest runs. Hidden ones, and those
    that a command leaves out, are not among them."""
    names = set()
    asked = set()
    for command, variables in jobs():
        # The modes and seeds of one program have the same cases.
        key = (*command, "LD_PRELOAD" in variables)
        if key in asked or not command or not is_catch_program(command[0]):
            continue
        asked.add(key)
        filters = command[1:] or ["~[.]"]
        listed = subprocess.run(
            [command[0], *filters, "--list-test-names-only"], timeout=120,
            env=os.environ | variables, capture_output=True, text=True)
        names |= {line.strip() for line in listed.stdout.splitlines()}
    return names


@functools.cache
def run_modules():
    """The Python files that ctest runs, with those of their folder that they
    import."""
    files = [pathlib.Path(word) for command, _ in jobs() for word in command
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
    """Methods of test cases, keys of tables of cases, functions that check, and
    the whole of a program."""
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
    """The names of a file's tests that ctest runs."""
    if file.suffix == ".py":
        return python_cases(file)
    names = {"".join(re.findall(TEXT, found[0]))
             for found in CASE.findall(file.read_text())}
    return {name for name in names if name in run_cases()}


def rows(page):
    """(line, what is tested, by what) of each row of each table."""
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|") or line.startswith("|---"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] != "PyTorch":
            yield number, cells


def problems(page, tests):
    """What is wrong with the page, by lines; the tests lie in that folder."""
    found = []
    for number, cells in rows(page):
        def say(problem):
            found.append(f"docs/features.md:{number}: {problem}")

        if len(cells) != 2 or not all(cells):
            say(f"expected a feature and its tests or a reason, got {cells}")
            continue
        # What looks like a test and is not read as one would not be checked.
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


class Features(unittest.TestCase):
    def test_every_named_test_exists(self):
        page = PAGE.read_text()
        self.assertGreater(len(list(rows(page))), 100)
        self.assertEqual("", "\n".join(problems(page, ROOT / "test")))

    def test_what_is_wrong_is_found(self):
        for row, problem in {
                "| a | |": "expected a feature",
                "| a | Not there. | b |": "expected a feature",
                "| a | `ddp/none_test.cpp`: \"b\" |": "got ddp/none_test.cpp",
                "| a | `ddp/join_test.cpp`: \"b\" |": 'got "b"',
                "| a | `parity/passes.py`: \"b\" |": 'got "b"',
                "| a | `ddp/join_test.cpp` |": "got `ddp/join_test.cpp`",
                "| a | `ddp/join_test.cpp` \"b\" |": 'got "b"',
                "| a | Yes, and it is tested. |": "expected a test, or one of",
                "| a | `parity/passes_support.py`: \"fill\" |": 'got "fill"',
                "| a | `dp/link_test.cpp`: "
                "\"a peer that stops while it is sent to\" |": "that ctest runs",
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
    unittest.main(argv=sys.argv[:1], verbosity=2)
