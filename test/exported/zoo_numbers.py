"""Models that compute with numbers: sizes, floats and values of item(), where an
operator expects a tensor or a number of another type. Entries are as those of zoo.py.
"""

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

NUMBERS = {}


def entry(make=lambda: nn.Linear(6, 6), draw=lambda rows: torch.randn(rows, 6),
          fixed=False):
    """Adds a model of one layer and a function forward(self, x, y, n): y is the
    layer's output, and n the number of rows, which differs from step to step."""
    def add(forward):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = make()

            def forward(self, x):
                return forward(self, x, self.layer(x), x.shape[0])

        def build():
            rows = iter([8] + [8 if fixed else 4 + 2 * (i % 5) for i in range(200)])
            return Net(), lambda: (draw(next(rows)),), ({0: Dim.AUTO},)

        NUMBERS[forward.__name__] = build
        return forward
    return add


@entry()
def mean_by_hand(self, x, y, n):
    return y.square().sum() / n


@entry()
def times_size(self, x, y, n):
    return y * n + n - n * y + (n - y) + n / (y.abs() + 1)


@entry()
def root_of_size(self, x, y, n):
    return y * (n ** -0.5) + y / torch.sym_sqrt(n) + n ** 2 * y


@entry()
def positions(self, x, y, n):
    return y + torch.arange(n)[:, None] / n


@entry()
def greatest_item(self, x, y, n):
    return y * x.max().item()


@entry()
def number_of_items(self, x, y, n):
    count = (x > 0).sum().item()
    return y * count + y.sum() / (count + 1)


@entry()
def integers(self, x, y, n):
    numbers = torch.arange(n)
    return (y + (numbers // 3 * n)[:, None] + (numbers % 3 + n / 2)[:, None]
            + (numbers * 2.5 * n)[:, None])


@entry()
def narrow(self, x, y, n):
    y, wide = y.bfloat16(), x.double()
    return y * n + y * (n ** -0.5) + (wide * n / 3 + wide.max().item()).sum()


@entry()
def scalars(self, x, y, n):
    y = torch.add(y, y, alpha=1 / n) + torch.addcmul(y, y, y, value=1 / n)
    return y.clamp(-n / 4, n / 4).masked_fill(x > 1, 1 / n).lerp(y, 1 / n)


@entry(fixed=True)
def powers(self, x, y, n):
    return torch.pow(n / 4, y) + torch.pow(y.abs() + 1, n / 8) + y.abs() ** (1 / n)


@entry()
def filled(self, x, y, n):
    return (y + torch.full((n, 1), n / 2) + y.new_full((n, 1), n)
            + torch.arange(0, 2 * n, 2)[:, None] + torch.arange(0.5, n, 1)[:, None])


@entry()
def chosen(self, x, y, n):
    return torch.where(y > 0, y, 1 / n) + torch.where(y > 0, n, y) + (y > 1 / n) * y


@entry(fixed=True)
def float_parameters(self, x, y, n):
    y = F.leaky_relu(y, 1 / n) + F.elu(y, n) + F.softplus(y, n) + F.hardtanh(y, -n, n)
    return F.layer_norm(y, (6,), eps=1 / n) + F.threshold(y, 1 / n, n)


@entry(fixed=True)
def padded(self, x, y, n):
    return F.pad(y, (0, 2), value=1 / n) + F.pad(y, (2, 0), value=n)


@entry(make=lambda: nn.Linear(6, 8))
def attention(self, x, y, n):
    heads = y.view(n, 2, 4).transpose(0, 1)
    return (heads @ heads.transpose(1, 2) * n ** -0.5).softmax(-1) @ heads


@entry(make=lambda: nn.BatchNorm1d(6), fixed=True)
def norm(self, x, y, n):
    return F.group_norm(y, 2, eps=2.0 ** -n) * n + F.normalize(y, eps=1 / n)


@entry()
def phases(self, x, y, n):
    z = torch.exp(1j * y) * (0.5 - 2j) + 3j
    return torch.view_as_real(z * n).sum(-1)


@entry(fixed=True)
def dropped(self, x, y, n):
    return F.dropout(y, 1 / n, self.training)


@entry()
def lengths(self, x, y, n):
    first = x[0].abs().sum().item()
    second = torch.tensor(n).item()
    return y * first / second + y.sum(0) / second + (y > 0) / n


@entry()
def compared(self, x, y, n):
    order = torch.arange(n)
    return (y * (order < n // 2)[:, None] + y * order.eq(n - 1)[:, None]
            + torch.remainder(y, n) + torch.fmod(n * y, 3) + torch.floor_divide(y.detach(), n))


@entry(make=lambda: nn.Conv2d(3, 4, 3, padding=1),
       draw=lambda rows: torch.randn(2 + rows % 3, 3, 8, 6), fixed=True)
def resized(self, x, y, n):
    return F.interpolate(y, scale_factor=(y.shape[2] / 4, 2.0), mode="bilinear")
