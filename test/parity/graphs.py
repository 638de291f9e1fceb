"""Does the same as graphs.cpp, with PyTorch's own DDP."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from passes_support import Trained, fill, inputs, run_cases, targets

STEPS = 4
WAYS = (2, 2), (0, 1), (1, 1), (0, 2), (1, 0), (2, 2)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.left = nn.Linear(4, 2)
        self.right = nn.Linear(4, 2)
        self.never = nn.Linear(4, 2)
        fill(self)

    def forward(self, x, way):
        hidden = torch.tanh(self.first(x))
        if way == 2:
            return self.left(hidden) + self.right(hidden)
        return self.left(hidden) if way == 0 else self.right(hidden)


def train_branches(log):
    trained = Trained(Branches(), find_unused_parameters=True)
    for step, ways in enumerate(WAYS):
        trained.optimizer.zero_grad()
        output = trained.model(inputs(step), ways[dist.get_rank()])
        F.mse_loss(output, targets(step)).backward()
        trained.optimizer.step()
        log.state(trained.net)


class Fixed(nn.Module):
    """A block that is used three times with PyTorch's reentrant checkpoint:
    its gradients come from nested passes, one for each use. Another layer
    is never used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.block = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        self.never = nn.Linear(4, 2)
        fill(self)

    def part(self, x):
        return torch.tanh(self.block(x))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for _ in range(3):
            x = checkpoint(self.part, x, use_reentrant=True)
        return self.last(x)


def train_fixed(log):
    trained = Trained(Fixed(), static_graph=True)
    for step in range(STEPS):
        trained.train(inputs(step), targets(step))
        log.state(trained.net)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(3, 2)
        self.right = nn.Linear(3, 2)
        fill(self)

    def forward(self, x):
        return self.left(x), torch.tanh(self.right(x))


def train_pair(log):
    """PyTorch averages in the second pass, when all gradients are complete."""
    trained = Trained(Pair())
    for step in range(STEPS):
        trained.optimizer.zero_grad()
        left, right = trained.model(inputs(step))
        F.mse_loss(left, targets(step)).backward()
        F.mse_loss(right, targets(step + 1)).backward()
        trained.optimizer.step()
        log.state(trained.net)


def train_nested(log):
    """A hook on the loss runs a nested pass, which computes the gradients of
    the right layer before the outer pass reaches the outputs."""
    trained = Trained(Pair())
    for step in range(STEPS):
        def hook(_):
            with torch.enable_grad():
                output = torch.tanh(trained.net.right(inputs(step)))
                F.mse_loss(output, targets(step + 1)).backward()

        trained.optimizer.zero_grad()
        left, _ = trained.model(inputs(step))
        loss = F.mse_loss(left, targets(step))
        loss.register_hook(hook)
        loss.backward()
        trained.optimizer.step()
        log.state(trained.net)


class Deep(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.block = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        self.parts = parts
        fill(self)

    def part(self, x):
        return F.dropout(torch.tanh(self.block(x)), 0.25, self.training)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for is_checkpointed in self.parts:
            x = (checkpoint(self.part, x, use_reentrant=False)
                 if is_checkpointed else self.part(x))
        return self.last(x)


def train_deep(log, *parts):
    trained = Trained(Deep(parts))
    torch.manual_seed(3 + dist.get_rank())
    for step in range(STEPS):
        trained.train(inputs(step), targets(step))
        log.note("next draw", torch.rand(2))
        log.state(trained.net)


CASES = {
    "unused": train_branches,
    "static_graph": train_fixed,
    "a_pass_for_each_output": train_pair,
    "nested_before_the_outputs": train_nested,
    "checkpoint_none": lambda log: train_deep(log, False, False, False),
    "checkpoint_once": lambda log: train_deep(log, False, True, False),
    "checkpoint_twice": lambda log: train_deep(log, True, True, False),
    "checkpoint_all": lambda log: train_deep(log, True, True, True),
}


def run(folder):
    run_cases(folder, CASES)
