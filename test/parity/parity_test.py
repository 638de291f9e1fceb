"""Trains with PyTorch's DDP and with ddp, from the same weights on the same
batches, and compares the results: bitwise with 2 ranks, where a sum has
only one order; with a tolerance of 1e-6 with 4 ranks, where Gloo's ring may
add in another order. FullyShardedDataParallel is compared to PyTorch's
fully_shard, with a tolerance of 1e-9; bitwise with param_dtype, except for
attention, which C++ and Python compute by different operators.

usage: parity_test.py DDPRUN PARITY DIGITS_CSV [TEST...]
"""

import functools
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch
import torch._dynamo  # or every forked rank imports it at its first step
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DistributedSampler

import checkpoint
import data_parallel
import ddp_digits
import exchanges
import graphs
import optimizers
import oracle
import passes
import precision
import sampler
import sharded
import sharded_checkpoint
from passes_support import COLLECTIVE_LIMIT

BATCHES = 24
TIMEOUT = 240
# In the order of oracle.py's arguments.
SIDES = ("passes", "precision", "exchanges", "optimizers", "graphs",
         "sharded")
# Cases with groups of more than one rank.
EXCHANGES_OF_4_RANKS = ["hierarchical"]
WITH_ATTENTION = "bfloat16_transformer"
# Cases that ddp refuses with an error. PyTorch reports the error one step
# later, or lets the ranks diverge.
REFUSED = {
    "penalty_without_a_bias/0/error":
        "these got none on rank {rank}: last.bias;",
    f"thawed/{passes.STEPS}/error": "Expected parameter first.weight to stay",
}


def write_input(folder, csv, world):
    """Writes images, labels, initial weights, and each rank's batches in the
    order of PyTorch's sampler: order[batch][rank][place]."""
    table = numpy.loadtxt(csv, delimiter=",", dtype=numpy.float32)
    os.makedirs(f"{folder}/state")
    (table[:, :64] / 16).tofile(f"{folder}/images")
    table[:, 64].astype(numpy.int64).tofile(f"{folder}/labels")
    ranks = []
    for rank in range(world):
        sampler = DistributedSampler(range(len(table)), world, rank, seed=7,
                                     drop_last=True)
        indices, epoch = [], 0
        while len(indices) < BATCHES * ddp_digits.BATCH:
            sampler.set_epoch(epoch)
            indices += sampler
            epoch += 1
        ranks.append(torch.tensor(indices[:BATCHES * ddp_digits.BATCH])
                     .view(BATCHES, ddp_digits.BATCH))
    ddp_digits.write_tensor(torch.stack(ranks, 1), f"{folder}/order")
    torch.manual_seed(3)
    for name, tensor in ddp_digits.Net().state_dict().items():
        ddp_digits.write_tensor(tensor, f"{folder}/state/{name}")


def run_ranks(command, world):
    subprocess.run([DDPRUN, "--standalone", f"--nproc-per-node={world}",
                    *command],
                   env=dict(os.environ, OMP_NUM_THREADS="1",
                            CUDA_VISIBLE_DEVICES=""),
                   check=True, timeout=TIMEOUT)


def start_alone(rank, world, folder):
    """Runs a rank of PyTorch's DDP, without a launcher."""
    if dist.is_torchelastic_launched():
        raise RuntimeError("expected to have no launcher")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store",
                            rank=rank, world_size=world,
                            timeout=COLLECTIVE_LIMIT)
    ddp_digits.train_variants(f"{folder}/input", f"{folder}/digits")
    exchanges.run(f"{folder}/exchanges", EXCHANGES_OF_4_RANKS)
    dist.destroy_process_group()


@functools.cache
def results_of_2_ranks():
    """Returns a folder with the input and the results of PyTorch on 2 ranks."""
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = holder.name
    write_input(f"{folder}/input", DIGITS_CSV, 2)
    sides = [f"{folder}/{side}" for side in SIDES]
    for side in sides:
        os.mkdir(side)
    run_ranks([sys.executable, oracle.__file__, f"{folder}/input",
               f"{folder}/digits", *sides], 2)
    return folder


@functools.cache
def results_of_4_ranks():
    """Same as above, for 4 ranks and fewer tests. The ranks are forks of this
    process, which need not import torch again."""
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = holder.name
    write_input(f"{folder}/input", DIGITS_CSV, 4)
    os.mkdir(f"{folder}/exchanges")
    torch.multiprocessing.start_processes(
        start_alone, (4, folder), 4, start_method="fork")
    return folder


def results_of(world):
    return results_of_2_ranks() if world == 2 else results_of_4_ranks()


def read_floats(file):
    dtype = (numpy.int64 if file.endswith("num_batches_tracked")
             else numpy.float32)
    return numpy.fromfile(file, dtype).astype(numpy.float64)


def is_buffer(name):
    """Returns True for buffers. PyTorch broadcasts rank 0's buffers before the
    next forward, ddp at the end of a pass: all ranks' buffers of ddp must
    equal those of PyTorch's rank 0. fully_shard broadcasts no buffers."""
    return "running" in name or "num_batches" in name


def read_log(file):
    """Returns {case/step/tensor: numbers}, as text with 17 digits."""
    with open(file) as lines:
        return dict(line.rstrip("\n").split(": ", 1) for line in lines)


@functools.cache
def results_of_ddp(world):
    """Returns a folder with the results of ddp, of one job for all tests."""
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = holder.name
    source = results_of(world)
    calls = ([[side, f"{folder}/{side}"] for side in SIDES] if world == 2 else
             [["exchanges", f"{folder}/exchanges", *EXCHANGES_OF_4_RANKS]])
    for _, output, *_ in calls:
        os.mkdir(output)
    command = [PARITY, "ddp_digits", f"{source}/input", f"{folder}/digits"]
    for call in calls:
        command += [",", *call]
    run_ranks(command, world)
    return folder


class Digits(unittest.TestCase):
    def for_each_tensor(self, theirs, ours, world, compare):
        names = ddp_digits.Net().state_dict().keys()
        for variant, rank, name in itertools.product(ddp_digits.VARIANTS,
                                                     range(world), names):
            source = 0 if is_buffer(name) else rank
            with self.subTest(variant=variant, rank=rank, tensor=name):
                compare(name, f"{theirs}/{variant}/{source}/{name}",
                        f"{ours}/{variant}/{rank}/{name}")

    def test_2_ranks_bit_for_bit(self):
        source, theirs = (f"{results_of(2)}/{name}"
                          for name in ("input", "digits"))
        ours = f"{results_of_ddp(2)}/digits"

        def compare(name, expected, actual):
            with open(expected, "rb") as a, open(actual, "rb") as b:
                self.assertEqual(a.read(), b.read())
            # Training has changed the tensor.
            start = read_floats(f"{source}/state/{name}")
            self.assertFalse(numpy.array_equal(start, read_floats(actual)))

        self.for_each_tensor(theirs, ours, 2, compare)

    def test_4_ranks_to_1e_6(self):
        theirs = f"{results_of(4)}/digits"
        ours = f"{results_of_ddp(4)}/digits"

        def compare(name, expected, actual):
            a, b = read_floats(expected), read_floats(actual)
            error = numpy.linalg.norm(a - b) / numpy.linalg.norm(a)
            self.assertLessEqual(error, 1e-6)

        self.for_each_tensor(theirs, ours, 4, compare)


def read_both(side, world=2):
    """Returns the logs of each rank, of PyTorch and of ddp."""
    return [[read_log(f"{folder}/{side}/{rank}") for rank in range(world)]
            for folder in (results_of(world), results_of_ddp(world))]


class BitForBit(unittest.TestCase):
    def compare(self, side, cases):
        theirs, ours = read_both(side)
        for rank, case in itertools.product(range(2), cases):
            with self.subTest(case=case, rank=rank):
                expected, actual = (
                    {key: value for key, value in log[rank].items()
                     if key.startswith(f"{case}/")}
                    for log in (theirs, ours))
                self.assertGreater(len(expected), 8)
                self.assertEqual(expected, actual)

    def test_precision(self):
        self.compare("precision", precision.CASES)

    def test_optimizers(self):
        self.compare("optimizers", optimizers.CASES)

    def test_graphs(self):
        self.compare("graphs", graphs.CASES)

    def test_sharded_in_bfloat16(self):
        self.compare("sharded",
                     sharded.CASES_IN_BFLOAT16.keys() - {WITH_ATTENTION})


class Close(unittest.TestCase):
    def compare(self, logs, cases, relative=1e-9, absolute=1e-9):
        theirs, ours = logs
        for rank, case in itertools.product(range(len(theirs)), cases):
            with self.subTest(case=case, rank=rank):
                expected, actual = (
                    {key: numpy.array(value.split(), float)
                     for key, value in log[rank].items()
                     if key.startswith(f"{case}/")}
                    for log in (theirs, ours))
                self.assertGreater(len(expected), 8)
                self.assertEqual(expected.keys(), actual.keys())
                for key, values in expected.items():
                    if is_buffer(key):
                        values = numpy.array(theirs[0][key].split(), float)
                    numpy.testing.assert_allclose(
                        actual[key], values, relative, absolute,
                        err_msg=key)

    def test_exchanges_of_2_ranks(self):
        """The tolerance is needed because PyTorch's PowerSGD also feeds back
        differences of gradients that it does not compress, whose sum over
        the ranks is zero except for rounding."""
        self.compare(read_both("exchanges"), exchanges.CASES)

    def test_exchanges_of_4_ranks(self):
        self.compare(read_both("exchanges", 4), EXCHANGES_OF_4_RANKS)

    def test_sharded(self):
        self.compare(read_both("sharded"), sharded.CASES)

    def test_sharded_in_bfloat16(self):
        self.compare(read_both("sharded"), [WITH_ATTENTION], relative=2**-8,
                     absolute=2**-10)


class Passes(unittest.TestCase):
    def test_2_ranks_bit_for_bit(self):
        theirs, ours = read_both("passes")
        for rank, case in itertools.product(range(2), passes.CASES):
            with self.subTest(case=case, rank=rank):
                self.assertGreaterEqual(sum(key.startswith(f"{case}/")
                                            for key in theirs[rank]), 8)
                self.assertEqual(
                    {key: theirs[0 if is_buffer(key) else rank][key]
                     for key in theirs[rank] if key.startswith(f"{case}/")},
                    {key: value for key, value in ours[rank].items()
                     if key.startswith(f"{case}/") and key not in REFUSED})
        for rank, (key, text) in itertools.product(range(2), REFUSED.items()):
            with self.subTest(error=key, rank=rank):
                self.assertIn(text.format(rank=rank),
                              ours[rank].get(key, "no error"))
        for key, value in ours[0].items():
            if "/parameter " in key:
                with self.subTest(equal_on_both_ranks=key):
                    self.assertEqual(value, ours[1][key])


class ShardedCheckpoints(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("safetensors"),
                         "needs the package safetensors")
    def test_folders(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        sharded_checkpoint.check(run_ranks, PARITY, holder.name)


class WithoutRanks(unittest.TestCase):
    """Runs last, because it trains in this process, from which other tests fork."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def test_checkpoint(self):
        checkpoint.check(PARITY, self.folder)

    def test_data_parallel(self):
        for replicas in 2, 3, 4:
            data_parallel.check(PARITY, replicas, self.folder)

    def test_sampler(self):
        sampler.check(PARITY)


if __name__ == "__main__":
    DDPRUN, PARITY, DIGITS_CSV = sys.argv[1:4]
    # As in the ranks; forked ranks inherit the setting.
    torch.set_num_threads(1)
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
