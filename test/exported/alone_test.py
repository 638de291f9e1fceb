"""A program that links ddp::exported alone runs, and has no symbol of c10d.

    python alone_test.py --program EXPORTED_ALONE --net FILE.pt2
"""

import argparse
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--net", required=True)
    arguments = parser.parse_args()
    subprocess.run([arguments.program, arguments.net], check=True, timeout=60)
    symbols = subprocess.run(["nm", "-C", arguments.program], check=True, text=True,
                             capture_output=True, timeout=60).stdout.splitlines()
    if not any("ddp::ExportedModuleImpl" in symbol for symbol in symbols):
        sys.exit("Expected the symbols of ddp::ExportedModuleImpl")
    found = [symbol for symbol in symbols if "c10d" in symbol]
    if found:
        sys.exit("Expected no symbol of c10d, but got:\n" + "\n".join(found[:5]))


if __name__ == "__main__":
    main()
