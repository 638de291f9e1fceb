"""Runs one rank of the step time benchmark with PyTorch's DDP: see
bench_steps.cpp."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORKLOADS = {"mlp": (8, 1024), "small": (500, 16)}
BATCH = 32


class Arm:
    def __init__(self, name, layers, width):
        net = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        for layer in net:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.data = torch.ones(BATCH, width)
        self.target = torch.zeros(BATCH, width)
        self.optimizer = torch.optim.SGD(net.parameters(), 1e-6)
        self.model = net if name == "python_plain" else DistributedDataParallel(
            net, gradient_as_bucket_view=name == "python_view")

    def step(self):
        loss = nn.functional.mse_loss(self.model(self.data), self.target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main(workload):
    dist.init_process_group("gloo")
    arms = {}
    for line in sys.stdin:
        name, steps = line.split()
        if name not in arms:
            arms[name] = Arm(name, *WORKLOADS[workload])
        arm = arms[name]
        dist.barrier()
        start = time.monotonic()
        for _ in range(int(steps)):
            arm.step()
        dist.barrier()
        if dist.get_rank() == 0:
            print(time.monotonic() - start, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
