"""A rank of PyTorch's DDP, for all tests of parity_test.py: importing torch
takes longer than most of what is then asked of it.

usage: oracle.py DIGITS_INPUT DIGITS_OUTPUT PASSES_OUTPUT PRECISION_OUTPUT
           EXCHANGES_OUTPUT OPTIMIZERS_OUTPUT GRAPHS_OUTPUT
"""

import sys

import torch.distributed as dist

import ddp_digits
import exchanges
import graphs
import optimizers
import passes
import precision
from passes_support import COLLECTIVE_LIMIT


def main(digits, digits_output, passes_output, precision_output,
         exchanges_output, optimizers_output, graphs_output):
    dist.init_process_group("gloo", timeout=COLLECTIVE_LIMIT)
    ddp_digits.train_variants(digits, digits_output)
    passes.run(passes_output)
    precision.run(precision_output)
    exchanges.run(exchanges_output)
    optimizers.run(optimizers_output)
    graphs.run(graphs_output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
