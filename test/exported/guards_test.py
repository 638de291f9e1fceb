"""An exported program in C++ accepts the sizes that Python's accepts.

    python guards_test.py --program GUARDED_EXPORTED [--all] [NAME...]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from zoo_guards import GUARDS, Pair, sizes_near  # noqa: E402

# A guard that C++ cannot read: round to decimals.
REFUSED = ("rounded_tenths",)
FEW = ("even", "half", "rounded_tenths", "more_bits", "either", "mixed", "pairs",
       "doubled", "derived", "double", "total", "nested", "named_tuple", "numbers")
TIMEOUT = 300  # seconds


def plain(value):
    """The same without named tuples, which a file of tensors cannot hold."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(plain(one) for one in value)
    return value


def is_accepted(module, args, kwargs):
    try:
        module(*args, **kwargs)
        return True
    except Exception:  # each kind of error refuses the sizes
        return False


def differences(program, path, name, count):
    make_module, make_inputs, sizes, shapes = GUARDS[name]
    torch.manual_seed(0)
    args, kwargs = make_inputs(*sizes)
    torch.export.save(
        torch.export.export(make_module(), args, kwargs, dynamic_shapes=shapes), path)
    all_sizes = sizes_near(sizes, count, seed=1)
    calls = [make_inputs(*one) for one in all_sizes]
    torch.save(plain(calls), path + ".calls")
    done = subprocess.run([program, path], text=True, capture_output=True,
                          timeout=TIMEOUT)
    if name in REFUSED and "guards" in done.stderr:
        return
    if done.returncode != 0 or name in REFUSED:
        yield f"exit code {done.returncode}: {done.stderr}"
        return
    module = torch.export.load(path).module()
    lines = done.stdout.splitlines()
    for one, (args, kwargs), line in zip(all_sizes, calls, lines, strict=True):
        # Python takes odd sizes of a dimension 2*d, of which no input is d.
        expected = (one[0] % 2 == 0 if name == "doubled" else
                    is_accepted(module, args, kwargs))
        if (line == "ok") != expected:
            yield f"{one} is {'' if expected else 'not '}accepted in Python: {line}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.serialization.add_safe_globals([Pair])
    failed = 0
    names = arguments.names or (GUARDS if arguments.all else FEW)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = os.path.join(folder, name + ".pt2")
            for text in differences(arguments.program, path, name,
                                    100 if arguments.all else 20):
                failed += 1
                print(f"{name}: {text}", flush=True)
    print(f"{len(names)} models, {failed} differences")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
