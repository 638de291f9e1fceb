"""Checks that ddp's sampler returns the indices of
torch.utils.data.DistributedSampler. See sampler.cpp.
"""

import itertools
import subprocess

from torch.utils.data import DistributedSampler

SIZES = [0, 1, 2, 3, 5, 8, 13, 64, 100, 1797]
WORLDS = [1, 2, 3, 4, 7, 16]
SEEDS = [0, 42, -1, 2**40]
EPOCHS = [0, 1, 5]


def cases():
    for size, world, drop_last in itertools.product(SIZES, WORLDS, [0, 1]):
        ranks = sorted({0, world // 2, world - 1})
        for rank in ranks:
            yield size, world, rank, 0, 0, 0, drop_last
            for seed, epoch in itertools.product(SEEDS, EPOCHS):
                yield size, world, rank, 1, seed, epoch, drop_last
    # randperm uses another algorithm for long permutations.
    yield 100_003, 3, 1, 1, 7, 2, 0


def python_indices(size, world, rank, shuffle, seed, epoch, drop_last):
    sampler = DistributedSampler(
        range(size), world, rank, bool(shuffle), seed, bool(drop_last)
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def check(program):
    all_cases = list(cases())
    text = "".join(" ".join(map(str, case)) + "\n" for case in all_cases)
    done = subprocess.run(
        [program, "sampler"], input=text, capture_output=True, text=True, check=True,
        timeout=240
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(all_cases), (len(lines), len(all_cases))
    for case, line in zip(all_cases, lines):
        ours = [int(index) for index in line.split()]
        theirs = python_indices(*case)
        assert ours == theirs, f"{case}: {ours[:9]} instead of {theirs[:9]}"
