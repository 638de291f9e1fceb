"""Trains with DataParallel and with DistributedDataParallel, on the CPU without
GPUs, and prints each device's traffic, memory and times. All other options go to
bench_dp_vs_ddp, whose --help lists them.
"""

import argparse
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     add_help=False)
    parser.add_argument("--build", required=True, help="folder of the programs")
    arguments, options = parser.parse_known_args()
    sys.exit(subprocess.call([f"{arguments.build}/bench_dp_vs_ddp", *options]))


if __name__ == "__main__":
    main()
