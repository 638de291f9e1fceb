"""Checks that dp::DataParallel splits, gathers and trains as PyTorch's
nn.DataParallel.

The latter is GPU only, but only because of its primitives: broadcast, scatter
and gather of tensors. Here they are replaced by chunk, clone and cat. All
decisions are made by PyTorch's own code: DataParallel.forward, replicate,
scatter_kwargs and the recursion of gather.
See data_parallel.cpp.
"""

import subprocess
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import _functions, comm, scatter_gather


def copies(tensors, devices):
    """Copies tensors for each device. The first device gets the tensors
    themselves."""
    return [[t.view_as(t) if i == 0 else t.clone() for t in tensors]
            for i, _ in enumerate(devices)]


class Broadcast:
    @staticmethod
    def apply(devices, *tensors):
        return [t for device in copies(tensors, devices) for t in device]


class Scatter:
    @staticmethod
    def apply(devices, chunk_sizes, dim, tensor):
        assert chunk_sizes is None
        return tensor.chunk(len(devices), dim)


class Gather:
    @staticmethod
    def apply(_, dim, *tensors):
        if all(t.dim() == 0 for t in tensors) and dim == 0:
            warnings.warn("Was asked to gather along dimension 0")
            tensors = [t.view(1) for t in tensors]
        return torch.cat(tensors, dim)


_functions.Broadcast = Broadcast
comm.broadcast_coalesced = copies
scatter_gather.Scatter = Scatter
scatter_gather.Gather = Gather


class DataParallel(nn.DataParallel):
    def __init__(self, module, replicas):
        nn.Module.__init__(self)
        self.module = module
        self.dim = 0
        self.device_ids = list(range(replicas))
        self.output_device = 0
        self.src_device_obj = torch.device("cpu")

    def parallel_apply(self, replicas, inputs, kwargs):
        return [replica(*args, **named) for replica, args, named
                in zip(replicas, inputs, kwargs, strict=True)]


class Net(nn.Module):
    """A smooth network, so that rounding errors stay small."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 6 * 6, 10)

    def forward(self, inputs, scale):
        x = torch.tanh(self.bn(self.conv(inputs[0]))).flatten(1)
        scores = self.fc(x) * scale
        more = {"rows": [torch.full((1,), x.size(0))], "features": [x, x * 2]}
        return scores, more, F.cross_entropy(scores, inputs[1])


def train(net, replicas, images, labels, batches):
    model = DataParallel(net, replicas)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    outputs = []
    for batch in batches:
        scores, more, losses = model([images[batch], labels[batch]], 0.5)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        outputs += [scores, more["rows"][0], more["features"][1], losses]
    return [tensor.detach() for tensor in outputs]


def compare(ours, theirs, what):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5,
                               msg=lambda text: f"{what}: {text}")


def check(program, replicas, folder):
    torch.manual_seed(replicas)
    images, labels = torch.randn(40, 1, 8, 8), torch.randint(10, (40,))
    # Includes batches with fewer images than replicas, and uneven splits.
    sizes = [16, 7, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15] * 3
    batches = [torch.randperm(40)[:size] for size in sizes]
    net = Net()
    start = {name: t.clone() for name, t in net.state_dict().items()}
    torch.save({"state": start, "images": images, "labels": labels,
                "batches": batches}, f"{folder}/input.pt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("once")
        outputs = train(net, replicas, images, labels, batches)
    assert len(caught) == 1, caught
    done = subprocess.run(
        [program, "data_parallel", str(replicas), f"{folder}/input.pt", f"{folder}/output.pt"],
        capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Was asked to gather along dimension 0") == 1, (
        done.stderr)
    result = torch.load(f"{folder}/output.pt")
    names = ("scores", "rows", "features", "losses")
    assert len(result["outputs"]) == len(outputs)
    for i, (ours, theirs) in enumerate(zip(result["outputs"], outputs)):
        compare(ours, theirs, f"{replicas} replicas, batch of "
                f"{sizes[i // len(names)]}: {names[i % len(names)]}")
    for name, theirs in net.state_dict().items():
        compare(result["state"][name], theirs, f"{replicas} replicas: {name}")
        # Training has changed the tensor.
        assert not torch.equal(start[name], theirs), name
