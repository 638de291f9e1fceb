"""Writes the network that samples/exported.cpp trains.

    python export_spirals.py spirals.pt2
"""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.Tanh(),
                                    nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1),
                                    nn.Linear(64, 2))

    def forward(self, x):
        return torch.log_softmax(self.layers(x), 1)


def main():
    torch.manual_seed(0)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Net().train(), (torch.zeros(16, 2),),
                                  dynamic_shapes=({0: batch},))
    torch.export.save(program, sys.argv[1])


if __name__ == "__main__":
    main()
