"""Does the same as sharded.cpp, with PyTorch's fully_shard (FSDP2)."""

import functools
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from passes_support import run_cases

STEPS = 10
BATCH = 4
WORDS = 50


def integers(shape, seed, limit):
    indices = torch.arange(math.prod(shape))
    return ((indices * 7919 + seed * 104729).remainder(10007).remainder(limit)
            .view(shape))


def numbers(shape, seed):
    return (integers(shape, seed, 10007) - 5003).double().div(4096)


def seed_of(number):
    return 100 + 2 * number + dist.get_rank()


def fill(net):
    net.double()
    with torch.no_grad():
        for seed, (_, parameter) in enumerate(
                net.named_parameters(remove_duplicate=False)):
            parameter.copy_(numbers(parameter.shape, seed) / 8)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 160)
        self.second = nn.Linear(160, 96)
        self.last = nn.Linear(96, 8)
        fill(self)

    def forward(self, number):
        x = numbers((BATCH, 32), seed_of(number)).to(self.last.weight.dtype)
        x = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return F.mse_loss(x, numbers((BATCH, 8), -seed_of(number)).to(x.dtype))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 96)
        self.encoder = self.decoder = nn.Linear(96, 96, False)
        fill(self)

    def forward(self, number):
        x = numbers((BATCH, 16), seed_of(number)).to(self.encoder.weight.dtype)
        x = torch.tanh(self.first(x))
        x = self.decoder(torch.tanh(self.encoder(x)))
        return F.mse_loss(x, numbers((BATCH, 96), -seed_of(number)).to(x.dtype))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.last = nn.Linear(1024, 8)
        fill(self)

    def forward(self, number):
        x = self.first(numbers((BATCH, 2, 8, 8), seed_of(number)))
        x = self.last(torch.tanh(self.norm(x)).flatten(1))
        return F.mse_loss(x, numbers((BATCH, 8), -seed_of(number)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0)
        self.last = nn.Linear(32, WORDS)
        fill(self)

    def forward(self, number):
        x = self.words(integers((6, BATCH), seed_of(number), WORDS))
        return F.cross_entropy(
            self.last(self.encoder(x)).flatten(0, 1),
            integers((6 * BATCH,), seed_of(number) + 7, WORDS))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 32)
        self.last = nn.Linear(32, 8)
        fill(self)

    def forward(self, number):
        x = numbers((5, BATCH, 16), seed_of(number)).to(self.last.weight.dtype)
        x = self.last(self.lstm(x)[0][-1])
        return F.mse_loss(x, numbers((BATCH, 8), -seed_of(number)).to(x.dtype))


def train(log, make, has_momentum=False, max_norm=0, passes=1,
          policy=MixedPrecisionPolicy()):
    net = make()
    for layer in net.children():
        fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    optimizer = (
        torch.optim.SGD(net.parameters(), 0.0625, momentum=0.75) if has_momentum
        else torch.optim.AdamW(net.parameters(), 0.015625, weight_decay=0.125))
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(1, passes + 1):
            net.set_requires_gradient_sync(i == passes)
            number = step * passes + i
            loss = net(number)
            log.note(f"loss {number}", loss)
            loss.backward()
        if max_norm:
            norm = nn.utils.clip_grad_norm_(net.parameters(), max_norm)
            log.note(f"norm {step}", norm.full_tensor())
        optimizer.step()
    if policy.param_dtype:
        for name, shard in net.named_parameters():
            log.note(f"leaves of {name}", shard.full_tensor())
    for name, shard in net.named_parameters(remove_duplicate=False):
        log.write(f"parameter {name}",
                  shard.full_tensor().to(dtype=policy.param_dtype))
    for name, buffer in net.named_buffers():
        log.write(f"buffer {name}", buffer)


def frozen():
    net = Mlp()
    net.second.requires_grad_(False)
    return net


def train_bfloat16(log, make, reduce_dtype=None, **arguments):
    train(log, lambda: make().float(), has_momentum=True, **arguments,
          policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                      reduce_dtype=reduce_dtype))


CASES = {
    "mlp": functools.partial(train, make=Mlp, has_momentum=True),
    "tied": functools.partial(train, make=Tied),
    "convolution": functools.partial(train, make=Convolution,
                                     has_momentum=True),
    "transformer": functools.partial(train, make=Transformer, max_norm=0.125),
    "recurrent": functools.partial(train, make=Recurrent, has_momentum=True,
                                   passes=3),
    "frozen": functools.partial(train, make=frozen),
    "float_mlp": functools.partial(train, make=lambda: Mlp().float(),
                                   has_momentum=True),
}
CASES_IN_BFLOAT16 = {
    "bfloat16_mlp": functools.partial(train_bfloat16, make=Mlp),
    "bfloat16_mlp_sums_of_float": functools.partial(
        train_bfloat16, make=Mlp, reduce_dtype=torch.float),
    "bfloat16_tied": functools.partial(
        train_bfloat16, make=Tied, reduce_dtype=torch.float),
    "bfloat16_transformer": functools.partial(
        train_bfloat16, make=Transformer, max_norm=0.125,
        reduce_dtype=torch.float),
    "bfloat16_recurrent": functools.partial(
        train_bfloat16, make=Recurrent, passes=3),
}


def run(folder):
    run_cases(folder, {**CASES, **CASES_IN_BFLOAT16})
