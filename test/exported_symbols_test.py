"""Shared libraries export the internal functions that users' programs need.

usage: exported_symbols_test.py --nm NM --libraries FILE... --users FILE...

The libraries hide names of ddp::detail and dp::detail but for those in
cmake/exported_details.map. The users are object files or archives.
"""

import argparse
import subprocess
import sys

# nm's letters of symbols that other files define or give a value.
UNDEFINED = "Uwv"


def symbols(nm, files, *options):
    """Returns (defined, undefined) names."""
    text = subprocess.run([nm, "-C", *options, *files], check=True,
                          capture_output=True, text=True, timeout=120).stdout
    defined, undefined = set(), set()
    for line in text.splitlines():
        kind, separator, name = line[17:].partition(" ")
        if separator and len(kind) == 1:
            (undefined if kind in UNDEFINED else defined).add(name)
    return defined, undefined


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", required=True)
    parser.add_argument("--libraries", nargs="+", required=True)
    parser.add_argument("--users", nargs="+", required=True)
    given = parser.parse_args()
    exported, _ = symbols(given.nm, given.libraries, "-D")
    own, needed = symbols(given.nm, given.users)
    missing = sorted(name for name in needed - own - exported
                     if "dp::detail::" in name)
    hidden = [name for name in exported if name.startswith("ddp::detail::")]
    print(f"users need {len(needed & exported)} exported symbols, "
          f"{len(hidden)} of ddp::detail are exported")
    if missing:
        sys.exit("\n".join(
            ["Expected the libraries to export symbols that users need, but they "
             "hide these; add them to cmake/exported_details.map:", *missing]))
    if not needed & exported:
        sys.exit("Expected users that need the libraries, but got none")


if __name__ == "__main__":
    main()
