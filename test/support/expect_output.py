"""Runs a command. Fails unless it exits with an expected code and its output
contains an expected text. ctest's PASS_REGULAR_EXPRESSION alone would also
pass a program that crashes after printing its line.

usage: expect_output.py [--codes 0,1] [--never REGEX] REGEX COMMAND [ARGUMENT ...]
"""

import argparse
import re
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--codes", default="0")
    parser.add_argument("--never")
    parser.add_argument("regex")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    done = subprocess.run(given.command, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    problems = []
    if done.returncode not in {int(code) for code in given.codes.split(",")}:
        problems.append(f"exit code {given.codes}, but got {done.returncode}")
    if not re.search(given.regex, done.stdout, re.DOTALL):
        problems.append(f"output that matches {given.regex}")
    if given.never and (found := re.search(given.never, done.stdout)):
        problems.append(f"no output that matches {given.never}, but got "
                        f"{found.group()}")
    for problem in problems:
        print(f"expected {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
