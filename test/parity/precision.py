"""Does the same as precision.cpp, with PyTorch's DDP, autocast and GradScaler."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from passes_support import Net, Trained, inputs, others, run_cases, targets

STEPS = 8
DTYPES = torch.bfloat16, torch.float16


def small_scaler():
    return torch.amp.GradScaler("cpu", init_scale=1024, growth_factor=4.0,
                                backoff_factor=0.25, growth_interval=2)


def note_scaler(log, scaler):
    state = scaler.state_dict()
    log.note("scaler", torch.tensor(
        [state["scale"], state["growth_factor"], state["backoff_factor"],
         state["growth_interval"], state["_growth_tracker"]]))


def flaw(step):
    """Returns the factor of this rank's loss, which is not finite for one rank
    in some steps."""
    bad = {2: (1, math.inf), 5: (0, math.nan), 6: (1, -math.inf)}
    rank, factor = bad.get(step, (-1, 1.0))
    return factor if dist.get_rank() == rank else 1.0


def scaled(log):
    trained = Trained(Net())
    scaler = small_scaler()
    note_scaler(log, scaler)
    for step in range(STEPS):
        trained.optimizer.zero_grad()
        loss = F.mse_loss(trained.model(inputs(step)), targets(step))
        scaler.scale(loss * flaw(step)).backward()
        log.note("gradient", trained.net.first.weight.grad)
        scaler.unscale_(trained.optimizer)
        log.note("unscaled", trained.net.first.weight.grad)
        nn.utils.clip_grad_value_(trained.model.parameters(), 0.125)
        scaler.step(trained.optimizer)
        scaler.update()
        note_scaler(log, scaler)
        log.state(trained.net)


def two_optimizers(log):
    net = Net()
    first = torch.optim.SGD(net.first.parameters(), 0.0625)
    last = torch.optim.SGD(net.last.parameters(), 0.0625)
    scaler = small_scaler()
    for step in range(STEPS):
        net.zero_grad()
        outputs = net(inputs(step)), net(others(step))
        losses = [F.mse_loss(output, targets(step)) for output in outputs]
        if step % 3 == 1:
            losses[1] = losses[1] + (net.first.weight * math.inf).sum()
        a, b = scaler.scale(losses)
        (a + b).backward()
        scaler.step(last)
        scaler.step(first)
        scaler.update()
        note_scaler(log, scaler)
        log.state(net)


def new_scales(log):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.0625)
    scaler = small_scaler()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(net(inputs(step)), targets(step))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if step == 1:
            scaler.update(100.0)
        elif step == 3:
            scaler.update(torch.tensor(7.0))
        else:
            scaler.update()
        if step == 4:
            scaler.set_growth_interval(3)
            scaler.set_growth_factor(1.5)
        note_scaler(log, scaler)
        log.state(net)


def sparse(log):
    table = nn.Embedding(5, 3, sparse=True).double()
    net = Net()
    with torch.no_grad():
        table.weight.copy_(torch.arange(15).view(5, 3) / 16)
    parameters = [*table.parameters(), *net.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.0625)
    scaler = small_scaler()
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = torch.tensor([step % 5, 3, 3, 1])
        loss = F.mse_loss(net(table(rows)), targets(step))
        scaler.scale(loss * (math.inf if step == 4 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        note_scaler(log, scaler)
        log.note("table", table.weight)
        log.state(net)


def code(tensor):
    """Returns a code of the dtype that is the same in both languages."""
    return torch.tensor({torch.float32: 0, torch.bfloat16: 1,
                         torch.float16: 2}[tensor.dtype])


def nested(log):
    net = Net().float()
    for dtype in DTYPES:
        with torch.autocast("cpu", dtype):
            outer = net(inputs(0).float())
            with torch.autocast("cpu", enabled=False):
                off = net(inputs(1).float())
                with torch.autocast("cpu"):
                    again = net(inputs(2).float())
            with torch.autocast("cpu", DTYPES[0], cache_enabled=False):
                inner = net(inputs(3).float())
            loss = F.mse_loss(outer, targets(0).float())
        outside = net(inputs(4).float())
        outputs = outer, off, again, inner, loss, outside
        for i, output in enumerate(outputs):
            log.note(f"dtype {i}", code(output))
            log.note(f"output {i}", output)
        net.zero_grad()
        sum(output.float().sum() for output in outputs).backward()
        log.note("gradient", net.first.weight.grad)
        log.state(net)


def mixed(log, dtype):
    """Combines autocast, scaled losses and DDP."""
    trained = Trained(Net().float())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
    for step in range(STEPS):
        trained.optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            output = trained.model(inputs(step).float())
            loss = F.mse_loss(output, targets(step).float())
        scaler.scale(loss * flaw(step)).backward()
        scaler.step(trained.optimizer)
        scaler.update()
        note_scaler(log, scaler)
        log.state(trained.net)


def wire(log, hook):
    trained = Trained(Net().float())
    trained.model.register_comm_hook(None, hook)
    for step in range(STEPS):
        trained.train(inputs(step).float(), targets(step).float())
        log.note("gradient", trained.net.first.weight.grad)
        log.state(trained.net)


CASES = {
    "scaled": scaled,
    "two_optimizers": two_optimizers,
    "new_scales": new_scales,
    "sparse": sparse,
    "nested": nested,
    "mixed_bf16": lambda log: mixed(log, torch.bfloat16),
    "mixed_half": lambda log: mixed(log, torch.float16),
    "wire_bf16": lambda log: wire(log, default_hooks.bf16_compress_hook),
    "wire_half": lambda log: wire(log, default_hooks.fp16_compress_hook),
}


def run(folder):
    run_cases(folder, CASES)
