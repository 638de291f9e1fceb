"""Does the same as optimizers.cpp, with PyTorch's fused optimizers, its
ZeroRedundancyOptimizer and its optimizer step in a communication hook."""

import functools

import torch
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer

from passes_support import Net, Trained, inputs, run_cases, targets

STEPS = 8
KINDS = {
    "sgd": functools.partial(
        torch.optim.SGD, lr=0.0625, momentum=0.75, dampening=0.25,
        weight_decay=0.125),
    "nesterov": functools.partial(
        torch.optim.SGD, lr=0.0625, momentum=0.75, nesterov=True),
    "adam": functools.partial(
        torch.optim.Adam, lr=0.0625, weight_decay=0.125),
    "amsgrad": functools.partial(
        torch.optim.Adam, lr=0.0625, betas=(0.5, 0.75), amsgrad=True),
    "adamw": functools.partial(
        torch.optim.AdamW, lr=0.0625, weight_decay=0.125),
}


def train(log, trained):
    for step in range(STEPS):
        if step == STEPS // 2:
            trained.optimizer.param_groups[0]["lr"] /= 4
        trained.train(inputs(step), targets(step))
        log.state(trained.net)


def fused(log, kind):
    trained = Trained(Net())
    trained.optimizer = KINDS[kind](trained.model.parameters(), fused=True)
    train(log, trained)


def sharded(log, kind):
    trained = Trained(Net())
    make = KINDS[kind]
    trained.optimizer = ZeroRedundancyOptimizer(
        trained.model.parameters(), make.func, fused=True, **make.keywords)
    ranks = trained.optimizer._param_to_rank
    log.note("owners", torch.tensor(
        [ranks[parameter] for parameter in trained.model.parameters()]))
    train(log, trained)


CASES = {
    **{f"fused_{kind}": functools.partial(fused, kind=kind) for kind in KINDS},
    **{f"sharded_{kind}": functools.partial(sharded, kind=kind)
       for kind in ("sgd", "adamw")},
}


def run(folder):
    run_cases(folder, CASES)
