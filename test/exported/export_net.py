"""Writes the network that exported_module_test trains.

    python export_net.py FILE.pt2
"""

import sys
import warnings

import torch
from torch import nn


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))
    program = torch.export.export(net.train(), (torch.ones(8, 6),),
                                  dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, sys.argv[1])


if __name__ == "__main__":
    main()
