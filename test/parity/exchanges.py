"""Cases of exchanges. exchanges.cpp does the same in C++."""

import collections

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    post_localSGD_hook as local_sgd, powerSGD_hook as power_sgd)
from torch.distributed.algorithms.model_averaging import (
    averagers, hierarchical_model_averager)
from torch.nn.parallel import DistributedDataParallel

from passes_support import Net, Trained, fill, inputs, numbers, run_cases, targets

STEPS = 8
START = 2


def wide():
    net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8),
                        nn.Tanh(), nn.Linear(8, 16))
    fill(net)
    return net


def power(log, rank, **options):
    """Uses one bucket. With several buckets, the callbacks of PyTorch's hook
    start all-reduces in the order in which others end, so the ranks' orders
    may differ."""
    net = wide()
    model = DistributedDataParallel(net)
    state = power_sgd.PowerSGDState(
        None, rank, START, min_compression_rate=1, **options)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.0625)
    for step in range(STEPS):
        optimizer.zero_grad()
        number = 10 * step + 3 * dist.get_rank()
        F.mse_loss(model(numbers((4, 12), number)),
                   numbers((4, 16), number + 1)).backward()
        log.note("gradient", net[0].weight.grad)
        optimizer.step()
        log.note("statistics",
                 torch.tensor(state.compression_stats()[1:]).double())
        log.state(net)


def post_local(log, averager, averages=False):
    trained = Trained(Net())
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    state = local_sgd.PostLocalSGDState(None, alone[dist.get_rank()], START,
                                        averages)
    trained.model.register_comm_hook(state, local_sgd.post_localSGD_hook)
    for step in range(STEPS):
        trained.train(inputs(step), targets(step))
        log.note("gradient", trained.net.first.weight.grad)
        averager.average_parameters(trained.model.parameters())
        log.state(trained.net)


def periodic(log, period, averages):
    post_local(log, averagers.PeriodicModelAverager(period, START), averages)


def hierarchical(log):
    """Averages over each half of the ranks in every step, and over all ranks
    in every third step."""
    ranks = dist.get_world_size()
    periods = collections.OrderedDict([(1, ranks // 2), (3, ranks)])
    post_local(log, hierarchical_model_averager.HierarchicalModelAverager(
        periods, START))


CASES = {
    "rank_1": lambda log: power(log, 1),
    "rank_2": lambda log: power(log, 2),
    "rank_4": lambda log: power(log, 4),
    "no_feedback": lambda log: power(log, 2, use_error_feedback=False),
    "no_warm_start": lambda log: power(log, 2, warm_start=False),
    "epsilon": lambda log: power(log, 2, orthogonalization_epsilon=1e-3,
                                 random_seed=11),
    "post_local": lambda log: periodic(log, 3, False),
    "post_local_groups": lambda log: periodic(log, 2, True),
    "hierarchical": hierarchical,
}


def run(folder, names=CASES):
    run_cases(folder, {name: CASES[name] for name in names})
