"""Networks, logs and the runner of the cases of passes.py and precision.py."""

import datetime
import math
import signal
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COLLECTIVE_LIMIT = datetime.timedelta(seconds=10)
SECONDS_OF_A_CASE = 20


def numbers(shape, seed):
    indices = torch.arange(math.prod(shape))
    return ((indices * 7 + seed * 5).remainder(17) - 8).double().div(16).view(
        shape)


def inputs(step):
    return numbers((4, 3), 10 * step + 3 * dist.get_rank())


def others(step):
    return numbers((4, 3), 9 * step + 2 * dist.get_rank() + 5)


def targets(step):
    return numbers((4, 2), 6 * step + 4 * dist.get_rank() + 1)


def fill(net):
    net.double()
    with torch.no_grad():
        for seed, parameter in enumerate(net.parameters()):
            parameter.copy_(numbers(parameter.shape, seed))


class Net(nn.Module):
    def __init__(self, norm=False, outputs=2, bias=True):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.last = nn.Linear(4, outputs, bias)
        fill(self)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = self.decoder = nn.Linear(3, 3, False)
        fill(self)

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


class Trained:
    def __init__(self, net, **arguments):
        self.net = net
        self.model = DistributedDataParallel(net, **arguments)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.0625)

    def train(self, x, target):
        self.optimizer.zero_grad()
        F.mse_loss(self.model(x), target).backward()
        self.optimizer.step()


class Log:
    def __init__(self, path):
        self.file = open(path, "w")

    def begin(self, name):
        self.case = name
        self.step = 0

    def note(self, name, tensor):
        self.write(f"note {name}", tensor)

    def state(self, *nets):
        for i, net in enumerate(nets):
            number = f"{i}." if len(nets) > 1 else ""
            for name, tensor in net.named_parameters(remove_duplicate=False):
                self.write(f"parameter {number}{name}", tensor)
            for name, tensor in net.named_buffers():
                self.write(f"buffer {number}{name}", tensor)
        self.step += 1

    def write(self, what, tensor):
        values = " ".join(f"{value:.17g}" for value
                          in tensor.detach().double().flatten().tolist())
        print(f"{self.case}/{self.step}/{what}: {values}", file=self.file,
              flush=True)


def run_cases(folder, cases):
    log = Log(f"{folder}/{dist.get_rank()}")
    for name, run in cases.items():
        # If a case hangs, this is the last line before SIGALRM.
        print(f"case {name}", file=sys.stderr)
        signal.alarm(SECONDS_OF_A_CASE)
        log.begin(name)
        run(log)
    signal.alarm(0)
    log.file.close()
