"""Does the same as ddp_digits.cpp, with PyTorch's own DDP."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 16

# name: (arguments of DDP, batches per step, whether some batches omit aux)
VARIANTS = {
    "default": ({}, 1, False),
    "bucket_view": ({"gradient_as_bucket_view": True}, 1, False),
    "many_buckets": ({"bucket_cap_mb": 0.001}, 1, False),
    "listed_buckets": ({"bucket_cap_mb_list": [0.0005, 0.002]}, 1, False),
    "no_sync": ({}, 2, False),
    "no_sync_bucket_view": ({"gradient_as_bucket_view": True}, 2, False),
    "unused": ({"find_unused_parameters": True}, 1, True),
    "no_sync_unused": ({"find_unused_parameters": True}, 2, True),
}


class Net(nn.Module):
    """A smooth network: a relu that changes sides by a rounding error would
    separate two runs by far more than the error."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc1 = nn.Linear(256, 64)
        self.fc2 = nn.Linear(64, 10)
        self.aux = nn.Linear(256, 10)

    def forward(self, x, with_aux):
        x = torch.tanh(self.bn1(self.conv1(x)))
        x = F.avg_pool2d(torch.tanh(self.bn2(self.conv2(x))), 2).flatten(1)
        logits = self.fc2(torch.tanh(self.fc1(x)))
        return logits + self.aux(x) if with_aux else logits


def write_tensor(tensor, file):
    tensor.detach().contiguous().numpy().tofile(file)


def read_tensor(file, dtype, shape):
    # A copy, because memory of the allocator is aligned as in C++.
    return torch.from_file(file, size=os.path.getsize(file) // dtype.itemsize,
                           dtype=dtype).clone().view(shape)


def save(net, folder):
    os.makedirs(folder)
    for name, tensor in net.state_dict().items():
        write_tensor(tensor, os.path.join(folder, name))


def load(net, folder):
    for name, tensor in net.state_dict().items():
        tensor.copy_(read_tensor(os.path.join(folder, name), tensor.dtype,
                                 tensor.shape))


def train(net, arguments, batches_per_step, leaves_out_aux, images, labels,
          order):
    model = DistributedDataParallel(net, **arguments)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9,
                                weight_decay=1e-4)
    for i, indices in enumerate(order):
        steps = (i + 1) % batches_per_step == 0
        with_aux = not leaves_out_aux or (i + dist.get_rank()) % 3 == 0
        with contextlib.nullcontext() if steps else model.no_sync():
            logits = model(images.index_select(0, indices), with_aux)
            F.cross_entropy(logits, labels.index_select(0, indices)).backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()


def train_variants(source, target):
    rank = dist.get_rank()
    images = read_tensor(f"{source}/images", torch.float32, (-1, 1, 8, 8))
    labels = read_tensor(f"{source}/labels", torch.int64, (-1,))
    order = read_tensor(f"{source}/order", torch.int64,
                        (-1, dist.get_world_size(), BATCH))[:, rank]
    for name, variant in VARIANTS.items():
        net = Net()
        load(net, f"{source}/state")
        train(net, *variant, images, labels, order)
        save(net, f"{target}/{name}/{rank}")
