"""docs/features.md names tests that exist: each row has some, or says why not.

usage: features_test.py   (needs no LibTorch)
"""

import functools
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "features.md"

# `ddp/join_test.cpp`: "one case", "another one"
REFERENCE = re.compile(r'`([\w/]+\.(?:cpp|py))`: ("[^"]+"(?:, "[^"]+")*)')
TEXT = r'"((?:[^"\\]|\\.)*)"'
CASE = re.compile(r"\bTEST_CASE\(\s*((?:" + TEXT + r"\s*)+)[,)]")
PYTHON = re.compile(r'^\s*(?:def (\w+)|class (\w+)|"([^"]+)":)', re.MULTILINE)


@functools.cache
def cases_of(file):
    """The names of a file's tests."""
    text = file.read_text()
    if file.suffix == ".py":
        return {name for names in PYTHON.findall(text) for name in names if name}
    return {"".join(re.findall(TEXT, found[0])) for found in CASE.findall(text)}


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
                    say(f'expected a test of {name}, got "{case}"')
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
    unittest.main(argv=sys.argv, verbosity=2)
