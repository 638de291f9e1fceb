"""Runs one rank of the step time benchmark with PyTorch's DDP: see
bench_steps.cpp."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Layers, width and batch size of each workload of arms.h.
WORKLOADS = {"mlp": (8, 1024, 32), "mlp256": (8, 1024, 256),
             "wide": (8, 4096, 4096), "small": (500, 16, 32)}


class Arm:
    def __init__(self, name, device, layers, width, batch):
        net = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        for layer in net:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        net.to(device)
        self.data = torch.ones(batch, width, device=device)
        self.target = torch.zeros(batch, width, device=device)
        self.optimizer = torch.optim.SGD(net.parameters(), 1e-6)
        self.model = net if name == "python_plain" else DistributedDataParallel(
            net, gradient_as_bucket_view=name == "python_view")

    def step(self):
        loss = nn.functional.mse_loss(self.model(self.data), self.target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main(workload):
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    def meet():
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    arms = {}
    for line in sys.stdin:
        name, steps = line.split()
        if name not in arms:
            arms[name] = Arm(name, device, *WORKLOADS[workload])
        arm = arms[name]
        meet()
        start = time.monotonic()
        for _ in range(int(steps)):
            arm.step()
        meet()
        if dist.get_rank() == 0:
            print(time.monotonic() - start, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
