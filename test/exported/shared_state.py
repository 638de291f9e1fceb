"""Models whose parameters, buffers and constants share memory: entries of PROGRAMS."""

import torch
from torch import nn

from programs import Net, program


def parameter_over(tensor, trained=True):
    """A parameter in the memory of a view of another one."""
    return nn.Parameter(tensor.detach(), requires_grad=trained)


def two(change, width=4, **parts):
    """Two linear layers, after a change of their weights."""
    net = Net(lambda m, x: m.b(m.a(x).tanh()), a=nn.Linear(width, width),
              b=nn.Linear(width, width), **parts)
    change(net)
    return net, lambda: (torch.randn(5, width),)


def written(forward, **parts):
    """A linear layer, and buffers that its forward reads or writes."""
    return (Net(forward, a=nn.Linear(4, 4), **parts), lambda: (torch.randn(5, 4),))


@program
def tied():
    def change(net):
        net.b.weight = net.a.weight
    return two(change)


@program
def tied_thrice():
    def change(net):
        net.c.weight = net.b.weight = net.a.weight
    net, draw = two(change, c=nn.Linear(4, 4))
    net.run = lambda m, x: m.c(m.b(m.a(x).tanh()).tanh())
    return net, draw


@program
def transposed():
    def change(net):
        net.b.weight = parameter_over(net.a.weight.t())
    return two(change)


@program
def two_over_one_memory():
    def change(net):
        net.b.weight = parameter_over(net.a.weight)
    return two(change)


@program
def tied_and_transposed():
    def change(net):
        net.b.weight = net.a.weight
        net.c.weight = parameter_over(net.a.weight.t())
    net, draw = two(change, c=nn.Linear(4, 4))
    net.run = lambda m, x: m.c(m.b(m.a(x).tanh()).tanh())
    return net, draw


@program
def frozen_over_trained():
    def change(net):
        net.b.weight = parameter_over(net.a.weight, trained=False)
    return two(change)


@program
def trained_over_frozen():
    def change(net):
        net.a.weight.requires_grad = False
        net.b.weight = parameter_over(net.a.weight.t())
    return two(change)


@program
def tied_frozen():
    def change(net):
        net.a.weight.requires_grad = False
        net.b.weight = net.a.weight
    return two(change)


@program
def overlapping_parameters():
    def change(net):
        memory = torch.randn(6, 4) / 2
        net.a.weight = nn.Parameter(memory[:4])
        net.b.weight = nn.Parameter(memory[2:])
    return two(change)


@program
def flat_parameters():
    def change(net):
        memory = torch.randn(40) / 2
        net.a.weight = nn.Parameter(memory[:16].view(4, 4))
        net.a.bias = nn.Parameter(memory[16:20])
        net.b.weight = nn.Parameter(memory[20:36].view(4, 4))
        net.b.bias = nn.Parameter(memory[36:])
    return two(change)


@program
def columns():
    def change(net):
        memory = torch.randn(4, 8) / 2
        net.a.weight = nn.Parameter(memory[:, ::2])
        net.b.weight = nn.Parameter(memory[:, 1::2])
    return two(change)


@program
def convolution_over_linear():
    conv = nn.Conv1d(2, 4, 2)
    linear = nn.Linear(4, 4)
    conv.weight = parameter_over(linear.weight.view(4, 2, 2))
    return (Net(lambda m, x: m.linear(m.conv(x).mean(2).tanh()), conv=conv,
                linear=linear), lambda: (torch.randn(3, 2, 6),))


@program
def embedding_and_head():
    head = nn.Linear(12, 6, bias=False)
    embedding = nn.Embedding(6, 12)
    head.weight = parameter_over(embedding.weight.view(6, 12))
    return (Net(lambda m, x: m.head(m.embedding(x).tanh()), head=head,
                embedding=embedding), lambda: (torch.randint(0, 6, (3, 5)),))


@program
def double_memory():
    net, _ = transposed()
    net.double()  # parts the two
    net.b.weight = parameter_over(net.a.weight.t())
    return net, lambda: (torch.randn(5, 4, dtype=torch.double),)


@program
def average_over_weight():
    """A buffer in the memory of a weight, as an average that was never parted."""
    def change(net):
        net.register_buffer("average", net.a.weight.detach())
        net.run = lambda m, x: m.b(m.a(x).tanh()) - (x @ m.average).detach()
    return two(change)


@program
def row_of_weight():
    def change(net):
        net.register_buffer("row", net.a.weight.detach()[1])
        net.register_buffer("diagonal", net.b.weight.detach().diagonal())
        net.run = lambda m, x: (m.b(m.a(x).tanh()) * m.row.detach()
                                + m.diagonal.detach())
    return two(change)


@program
def buffer_over_frozen():
    def change(net):
        net.a.weight.requires_grad = False
        net.register_buffer("first", net.a.weight.detach())
        net.run = lambda m, x: m.b(m.a(x).tanh()) @ m.first
    return two(change)


@program
def slices_of_buffers():
    memory = torch.randn(8, 4)

    def forward(m, x):
        y = m.a(x)
        m.first.add_(y.detach().mean(0) * 0.1)
        m.middle.mul_(0.9)
        return y * m.whole.mean(0) + m.middle.sum(0)

    return written(forward, first=memory[0], middle=memory[2:5], whole=memory)


@program
def transposed_buffer():
    memory = torch.randn(4, 4)

    def forward(m, x):
        m.table[0].add_(x.mean(0))
        return m.a(x) @ m.turned

    return written(forward, table=memory, turned=memory.t())


@program
def expanded_buffer():
    memory = torch.randn(1, 4)

    def forward(m, x):
        y = m.a(x)
        m.one.add_(y.detach().mean(0, keepdim=True))
        return y * m.many.mean(0) + m.alone.sum(0)

    return written(forward, one=memory, many=memory.expand(3, 4),
                   alone=torch.ones(1, 4).expand(6, 4))


@program
def windows():
    memory = torch.randn(9)

    def forward(m, x):
        m.signal.mul_(0.9).add_(0.1)
        return m.a(x) + m.windows.mean(0)

    return written(forward, signal=memory, windows=memory.unfold(0, 4, 1))


@program
def statistics_in_one_buffer():
    norms = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    memory = torch.zeros(2, 4), torch.ones(2, 4)
    for i, norm in enumerate(norms):
        norm.running_mean, norm.running_var = memory[0][i], memory[1][i]
    norms[1].num_batches_tracked = norms[0].num_batches_tracked
    return written(lambda m, x: m.second(m.a(m.first(x))) + m.means.sum(0),
                   first=norms[0], second=norms[1], means=memory[0])


@program
def counters():
    memory = torch.zeros(3, dtype=torch.long)

    def forward(m, x):
        m.steps.add_(1)
        return m.a(x) * m.all.sum() / (1 + m.pair.sum())

    return written(forward, steps=memory[1], all=memory, pair=memory[1:])


@program
def not_persistent():
    """Constants: a buffer that is not persistent, and a plain tensor over it."""
    def forward(m, x):
        m.table.mul_(0.9)
        return m.a(x) * m.row + m.turned.sum(0)

    net, draw = written(forward)
    net.register_buffer("table", torch.randn(4, 4), persistent=False)
    net.register_buffer("turned", net.table.t(), persistent=False)
    net.row = net.table[1]
    return net, draw


@program
def expanded_parameter():
    def change(net):
        net.b.bias = nn.Parameter(torch.randn(1).expand(4))
    return two(change)
