"""Writes the networks that exported_module_test trains.

    python export_net.py FILE.pt2

FILE.pt2.shared.pt2 has tensors that share memory, and FILE.pt2.shared_eval.pt2 is
its program for eval().
"""

import sys
import warnings

import torch
from torch import nn


class Shared(nn.Module):
    """A layer and its transpose; a buffer and its expansion; a table and its row."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight = nn.Parameter(self.a.weight.detach().t())
        self.register_buffer("one", torch.ones(1, 6))
        self.register_buffer("many", self.one.expand(3, 6))
        self.register_buffer("table", torch.ones(2, 6), persistent=False)
        self.row = self.table[1]

    def forward(self, x):
        if not self.training:
            return x * self.row
        self.table.mul_(0.5)
        self.one.mul_(0.5)
        return self.b(self.a(x)) * self.row + self.many.sum(0)


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))
    program = torch.export.export(net.train(), (torch.ones(8, 6),),
                                  dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, sys.argv[1])
    shared = Shared()
    for is_training, name in ((True, ".shared.pt2"), (False, ".shared_eval.pt2")):
        program = torch.export.export(shared.train(is_training), (torch.ones(8, 6),))
        torch.export.save(program, sys.argv[1] + name)


if __name__ == "__main__":
    main()
