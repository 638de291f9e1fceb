"""Runs one rank of PyTorch's DDP and fully_shard for all tests of
parity_test.py, because importing torch takes longer than most of the tests.

usage: oracle.py DIGITS_INPUT DIGITS_OUTPUT PASSES_OUTPUT PRECISION_OUTPUT
           EXCHANGES_OUTPUT OPTIMIZERS_OUTPUT GRAPHS_OUTPUT SHARDED_OUTPUT
"""

import os
import sys

import torch
import torch.distributed as dist

import ddp_digits
import exchanges
import graphs
import optimizers
import passes
import precision
import sharded
from passes_support import COLLECTIVE_LIMIT


def connect():
    """Joins the process group with the variables of ddprun, as programs under
    torchrun do: rank 0 by env://, the other ranks by a URL."""
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    url = "tcp://{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ)
    dist.init_process_group(
        "gloo", timeout=COLLECTIVE_LIMIT,
        **(dict(init_method=url, rank=rank, world_size=world) if rank else {}))
    if not dist.is_torchelastic_launched():
        raise RuntimeError("expected to be launched, as by torchrun")
    seen = torch.eye(world, dtype=torch.int64)[rank]
    dist.all_reduce(seen)
    if seen.tolist() != [1] * world:
        raise RuntimeError(f"expected each of {world} ranks once, got {seen}")


def main(digits, digits_output, passes_output, precision_output,
         exchanges_output, optimizers_output, graphs_output, sharded_output):
    connect()
    ddp_digits.train_variants(digits, digits_output)
    passes.run(passes_output)
    precision.run(precision_output)
    exchanges.run(exchanges_output)
    optimizers.run(optimizers_output)
    graphs.run(graphs_output)
    sharded.run(sharded_output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
