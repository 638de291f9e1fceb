"""Runs one rank of the step time benchmark with PyTorch's DDP or fully_shard:
see bench_steps.cpp."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

# Layers, width and batch size of each chain of arms.h.
CHAINS = {"mlp": (8, 1024, 32), "mlp256": (8, 1024, 256),
          "wide": (8, 4096, 4096), "small": (500, 16, 32)}


def chain(layers, width, batch):
    """Returns a network, its input and its target."""
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    for layer in net:
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    return net, torch.ones(batch, width), torch.zeros(batch, width)


def norm(before, after, kernel, stride=1):
    return (nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(after))


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.layers = nn.Sequential(*norm(before, after, 3, stride),
                                    nn.ReLU(inplace=True), *norm(after, after, 3))
        self.shortcut = (nn.Sequential() if stride == 1
                         else nn.Sequential(*norm(before, after, 1, stride)))

    def forward(self, x):
        return torch.relu_(self.layers(x) + self.shortcut(x))


def resnet():
    """The same for ResNet-18 and a batch of 8."""
    widths = [64, 64, 128, 256, 512]
    stages = [layer for before, after in zip(widths, widths[1:]) for layer in (
        Block(before, after, after // before), Block(after, after, 1))]
    net = nn.Sequential(*norm(3, 64, 3), nn.ReLU(inplace=True), *stages,
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return net, torch.rand(8, 3, 32, 32), torch.zeros(8, 10)


class Arm:
    def __init__(self, name, device, workload):
        net, data, target = (resnet() if workload == "resnet8"
                             else chain(*CHAINS[workload]))
        net.to(device)
        self.data, self.target = data.to(device), target.to(device)
        if name == "python_sharded":
            for layer in net:
                fully_shard(layer)
            self.model = fully_shard(net)
            self.optimizer = torch.optim.AdamW(net.parameters(), 1e-6)
            return
        self.optimizer = torch.optim.SGD(
            net.parameters(), 1e-6, fused=name in ("python_fused", "python_recorded"))
        self.model = net
        if name == "python_recorded":
            self.record(net)
        elif name != "python_plain":
            self.model = DistributedDataParallel(
                net, gradient_as_bucket_view=name == "python_view")

    def record(self, net):
        """Makes `step` replay a CUDA graph. As "Usage with
        DistributedDataParallel" in PyTorch's notes on CUDA semantics."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.model = DistributedDataParallel(net)
            for _ in range(11):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.step()
        self.step = graph.replay

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
        # As the notes ask for before a recording.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    def meet():
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    arms = {}
    for line in sys.stdin:
        name, steps = line.split()
        if name not in arms:
            arms[name] = Arm(name, device, workload)
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
