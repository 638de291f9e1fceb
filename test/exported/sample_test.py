"""The sample trains a network of Python on two ranks, and Python runs the result.

    python sample_test.py --ddprun DDPRUN --sample EXPORTED
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

import torch

TIMEOUT = 300  # seconds
EXPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                      "samples", "export_spirals.py")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ddprun", required=True)
    parser.add_argument("--sample", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "spirals.pt2")
        trained = os.path.join(folder, "trained.pt2")
        subprocess.run([sys.executable, EXPORT, plain], check=True, timeout=TIMEOUT)
        done = subprocess.run(
            [arguments.ddprun, "--nproc-per-node=2", arguments.sample, plain, trained],
            text=True, capture_output=True, timeout=TIMEOUT)
        accuracy = re.search(r"accuracy ([\d.]+)", done.stdout)
        if done.returncode != 0 or not accuracy or float(accuracy[1]) < 0.95:
            sys.exit(f"exit code {done.returncode}: {done.stdout} {done.stderr}")
        before = torch.export.load(plain).state_dict["layers.0.weight"]
        after = torch.export.load(trained).state_dict["layers.0.weight"]
        if before.shape != after.shape or torch.equal(before, after):
            sys.exit("Expected the trained weights in the saved file")


if __name__ == "__main__":
    main()
