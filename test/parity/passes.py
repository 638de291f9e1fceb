"""Does the same as passes.cpp, with PyTorch's own DDP."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from passes_support import (Net, Tied, Trained, inputs, others, run_cases,
                            targets)

STEPS = 4


def distance(critic, step):
    of_fakes = critic.model(others(step)).mean()
    of_reals = critic.model(inputs(step)).mean()
    return of_fakes - of_reals


def penalty(critic, step):
    mixed = (inputs(step) * 0.75 + others(step) * 0.25).requires_grad_()
    scores = critic.model(mixed)
    slope, = torch.autograd.grad(scores.sum(), mixed, create_graph=True)
    lengths = torch.square(slope).sum(1).sqrt()
    return torch.square(lengths - 1).mean() * 10


def train_critic(log, bias, backward):
    critic = Trained(Net(outputs=1, bias=bias))
    for step in range(STEPS):
        critic.optimizer.zero_grad()
        backward(critic, step)
        critic.optimizer.step()
        log.state(critic.net)


def penalty_in_the_loss(log):
    def backward(critic, step):
        loss = distance(critic, step)
        (loss + penalty(critic, step)).backward()

    train_critic(log, True, backward)


def penalty_with_a_pass(log):
    def backward(critic, step):
        distance(critic, step).backward()
        penalty(critic, step).backward()

    train_critic(log, False, backward)


def train_against(log, thaws_before_backward):
    generator = Trained(Net(norm=True, outputs=3))
    critic = Trained(Net(outputs=1))
    for step in range(STEPS):
        critic.optimizer.zero_grad()
        fakes = generator.model(others(step)).detach()
        of_fakes = critic.model(fakes).mean()
        (of_fakes - critic.model(inputs(step)).mean()).backward()
        critic.optimizer.step()

        critic.net.requires_grad_(False)
        generator.optimizer.zero_grad()
        made = generator.model(inputs(step))
        loss = -critic.model(made).mean()
        if thaws_before_backward:
            critic.net.requires_grad_(True)
        loss.backward()
        generator.optimizer.step()
        critic.net.requires_grad_(True)
        log.state(generator.net, critic.net)


def look_on_rank_0(model, net, step, log):
    if dist.get_rank() != 0:
        return
    model.eval()
    net(others(step)).sum().backward()
    log.note("gradient of this rank", net.first.weight.grad)
    x = others(step).requires_grad_()
    slopes = torch.autograd.grad(model(x).sum(), (x, net.first.weight))
    log.note("slope", slopes[0])
    log.note("slope of the weight", slopes[1])
    model(x).sum().backward(inputs=[x])
    log.note("slope by backward", x.grad)
    net.requires_grad_(False)
    model(x).sum().backward()
    net.requires_grad_(True)
    log.note("slope through frozen layers", x.grad)
    model.train()


def train_and_look(log, norm=False, **arguments):
    """Bypasses the wrapper if there are buffers: a forward with gradients on
    rank 0 alone would broadcast them, and the ranks' broadcasts would no
    longer match."""
    trained = Trained(Net(norm), **arguments)
    for step in range(STEPS):
        look_on_rank_0(trained.net if norm else trained.model, trained.net,
                       step, log)
        trained.train(inputs(step), targets(step))
        log.state(trained.net)


def evaluation(log):
    """Bypasses the wrapper, which would wait for the other rank's next
    forward."""
    trained = Trained(Net(norm=True))
    for step in range(STEPS + 1):
        if dist.get_rank() == 0:
            trained.model.eval()
            with torch.no_grad():
                log.note("evaluated", trained.net(others(step)))
            trained.model.train()
        dist.barrier()
        if step < STEPS:
            trained.train(inputs(step), targets(step))
        log.state(trained.net)


def train_and_eval(log):
    trained = Trained(Net(norm=True))
    modules = trained.model, trained.net
    for step in range(STEPS):
        modules[step % 2].train()
        trained.train(inputs(step), targets(step))
        log.state(trained.net)
        modules[step // 2 % 2].eval()
        with torch.no_grad():
            log.note("evaluated", trained.model(others(step)))
        log.state(trained.net)


def freeze_in_epoch(log, epoch):
    trained = Trained(Net(norm=True), find_unused_parameters=True)
    for step in range(3 * STEPS):
        trained.net.first.requires_grad_(step // STEPS != epoch)
        trained.train(inputs(step), targets(step))
        log.state(trained.net)


def thawed(log):
    net = Net()
    net.first.requires_grad_(False)
    trained = Trained(net)
    for step in range(STEPS):
        trained.train(inputs(step), targets(step))
        log.state(net)
    net.first.requires_grad_(True)
    trained.train(inputs(0), targets(0))
    gradients = [torch.empty(4, 3).double() for _ in range(2)]
    dist.all_gather(gradients, net.first.weight.grad)
    assert not torch.equal(*gradients), "averaged: then ours can be, too"


def tied_weight(log):
    trained = Trained(Tied())
    for step in range(STEPS):
        trained.train(inputs(step), others(step))
        log.state(trained.net)


def maml(log):
    trained = Trained(Net())
    for step in range(STEPS):
        loss = F.mse_loss(trained.model(inputs(step)), targets(step))
        parameters = list(trained.net.parameters())
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        fast = [p - slope * 0.5 for p, slope in zip(parameters, slopes)]
        hidden = torch.tanh(F.linear(others(step), fast[0], fast[1]))
        output = F.linear(hidden, fast[2], fast[3])
        trained.optimizer.zero_grad()
        F.mse_loss(output, targets(step + 1)).backward()
        trained.optimizer.step()
        log.state(trained.net)


def no_sync_after_a_forward(log):
    """Bypasses the wrapper: the forward alone would turn the pass in no_sync
    into a synchronised one."""
    trained = Trained(Net())
    weight = trained.net.first.weight
    for step in range(STEPS):
        trained.net(others(step))
        trained.optimizer.zero_grad()
        with trained.model.no_sync():
            F.mse_loss(trained.model(inputs(step)), targets(step)).backward()
        log.note("of this rank", weight.grad)
        F.mse_loss(trained.model(others(step)), targets(step)).backward()
        log.note("averaged", weight.grad)
        trained.optimizer.step()
        log.state(trained.net)


def join(log, by_all):
    trained = Trained(Net())
    for counts in (2, 4), (3, 0):
        with trained.model.join(divide_by_initial_world_size=by_all):
            for step in range(counts[dist.get_rank()]):
                trained.train(inputs(step), targets(step))
                log.note(f"weight {step}", trained.net.first.weight)
        log.state(trained.net)


# penalty_without_a_bias is an error in C++ only: PyTorch reports it a step
# later.
CASES = {
    "penalty_in_the_loss": penalty_in_the_loss,
    "penalty_with_a_pass": penalty_with_a_pass,
    # The same sums. If all forwards precede the passes, PyTorch silently does
    # not reduce the second pass.
    "penalty_after_the_loss": penalty_with_a_pass,
    "frozen_critic": lambda log: train_against(log, False),
    "critic_thawed_before_backward": lambda log: train_against(log, True),
    "saliency": train_and_look,
    "saliency_with_unused": lambda log: train_and_look(
        log, find_unused_parameters=True),
    "saliency_with_buffers": lambda log: train_and_look(log, norm=True),
    "evaluation": evaluation,
    "train_and_eval": train_and_eval,
    "frozen_first_epoch": lambda log: freeze_in_epoch(log, 0),
    "frozen_second_epoch": lambda log: freeze_in_epoch(log, 1),
    "thawed": thawed,
    "tied_weight": tied_weight,
    "maml": maml,
    "no_sync_after_a_forward": no_sync_after_a_forward,
    "join": lambda log: join(log, True),
    "join_by_live_ranks": lambda log: join(log, False),
}


def run(folder):
    run_cases(folder, CASES)
