"""Models whose forward asks for sizes, so that an exported program holds for some
sizes only (guards). GUARDS holds, by name, a module, a function that makes inputs
(arguments and keyword arguments) from sizes, the sizes of the export, and the
dynamic shapes.
"""

import collections
import itertools
import math

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree

AUTO = Dim.AUTO
GUARDS = {}
Pair = collections.namedtuple("Pair", "left right")
_pytree._register_namedtuple(Pair, serialized_type_name="zoo_guards.Pair")


def rows(*sizes):
    """A tensor of three columns for each size."""
    return tuple(torch.randn(size, 3) for size in sizes), {}


def vectors(*sizes):
    return tuple(torch.randn(size) for size in sizes), {}


def one(*sizes):
    return (torch.randn(*sizes),), {}


def entry(*sizes, make=rows, shapes=None):
    def add(forward):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.full((), 1.5))

        Net.forward = forward
        dynamic = shapes or tuple({0: AUTO} for _ in sizes)
        GUARDS[forward.__name__] = (Net, make, sizes, dynamic)
        return forward
    return add


def branch(*sizes, make=rows, shapes=None):
    """Adds a model with a branch on a condition of sizes."""
    def add(condition):
        count = len(make(*sizes)[0])

        def forward(self, x, y=None):
            sums = x.sum() if count == 1 else x.sum() + y.sum()
            n = x.shape[0]
            asked = condition(n) if count == 1 else condition(n, y.shape[0])
            return sums * self.scale if asked else sums - self.scale

        def alone(self, x):
            return forward(self, x)
        used = forward if count == 2 else alone
        used.__name__ = condition.__name__
        entry(*sizes, make=make, shapes=shapes)(used)
        return condition
    return add


for name, condition, *sizes in (
        ("even", lambda n: n % 2 == 0, 8),
        ("odd", lambda n: n % 2 == 1, 7),
        ("not_of_three", lambda n: not n % 3 == 0, 8),
        ("half", lambda n: int(n * 0.5) == 4, 8),
        ("rounded_up", lambda n: math.ceil(n / 2) == 3, 6),
        ("rounded_down", lambda n: math.floor(n / 3) == 2, 8),
        ("no_eight", lambda n: n == 8, 7),
        ("above", lambda n: n > 5, 8),
        ("between", lambda n: n >= 4 and n < 10, 8),
        ("chained", lambda n: 2 < n < 9, 8),
        ("outside", lambda n: n < 4 or n > 10, 8),
        ("third", lambda n: n // 3 == 2, 8),
        ("square", lambda n: n ** 2 > 50, 8),
        ("cube", lambda n: n * n * n - 2 * n > 400, 8),
        ("root", lambda n: n ** 0.5 > 2.5, 8),
        ("symbolic_root", lambda n: torch.sym_sqrt(n) > 2.5, 8),
        ("quarter", lambda n: n / 4 == 2.0, 8),
        ("inverse", lambda n: 1 / n < 0.2, 8),
        ("tenth", lambda n: n * 0.1 > 0.3, 8),
        ("rounded", lambda n: round(n * 0.3) == 2, 7),
        ("rounded_tenths", lambda n: round(n / 3, 1) == 2.3, 7),
        ("as_number", lambda n: int(n > 4) == 1, 8),
        ("tall", lambda n: n - 6 + n // 4 * 2 > 5, 8),
        ("negated", lambda n: torch.sym_not(n > 10), 8),
        ("bits", lambda n: n & 1 == 0, 8),
        ("more_bits", lambda n: (n | 1) ^ 3 == 10, 8),
        ("logarithm", lambda n: math.log2(n) > 2.5, 8),
        ("sine", lambda n: math.sin(n) > 0.5, 8),
        ("negative", lambda n: (3 - n) // 2 == -3 and (3 - n) % 4 == 3, 8),
        ("loops", lambda n: sum(1 for _ in range(n // 4)) == 2, 8),
        ("at_least", lambda n, m: n >= m, 8, 6),
        ("double", lambda n, m: n == 2 * m, 8, 4),
        ("total", lambda n, m: n + m == 10, 6, 4),
        ("area", lambda n, m: n * m > 20, 8, 6),
        ("difference", lambda n, m: n - m < 3, 8, 6),
        ("distance", lambda n, m: abs(n - m) < 3, 6, 8),
        ("quotients", lambda n, m: n // 2 > m // 3, 8, 6),
        ("divides", lambda n, m: n % m == 0, 8, 4),
        ("remainder", lambda n, m: n % (m + 1) > 1, 8, 4),
        ("power", lambda n, m: n ** m < 1000, 5, 4),
        ("greatest", lambda n, m: max(n, m) == 8, 8, 6),
        ("least", lambda n, m: min(n, m, 5) == 5, 8, 6),
        ("symbolic_extremes", lambda n, m: torch.sym_max(n, m) - torch.sym_min(n, 3) > m,
         8, 6),
        ("ratio", lambda n, m: n / m > 1.5, 8, 4),
        ("either", lambda n, m: n % 2 == 0 or (m % 2 == 0 and not n > m), 7, 8),
        ("mixed", lambda n, m: (n + m) % 4 // 2 * 3 - n / 2 < m * 0.75, 7, 8)):
    condition.__name__ = name
    branch(*sizes)(condition)


@entry(8)
def pairs(self, x):
    return x.view(-1, 2, 3).sum(1) * self.scale


@entry(12)
def triples(self, x):
    return x.reshape(3, -1, 3)[0] + x[: x.shape[0] // 3] * self.scale


@entry(8, 4, make=vectors)
def strided(self, x, y):
    return x[::2] * self.scale + y


@entry(8, 4, make=vectors)
def sliced(self, x, y):
    return x[: x.shape[0] // 2] * self.scale + y


@entry(9, 4, make=vectors)
def pooled(self, x, y):
    return torch.max_pool1d(x[None, None], 2)[0, 0] * self.scale + y


@entry(8, 8, make=vectors)
def broadcast(self, x, y):
    return x * self.scale + y


@entry(5, 4, make=vectors)
def joined(self, x, y):
    return torch.cat([x, y * self.scale]).view(3, -1)


@entry(8, make=vectors)
def halves(self, x):
    first, second = x.chunk(2)
    return first * self.scale + second


@entry(4, 6, make=one, shapes=({0: AUTO, 1: AUTO},))
def enough_elements(self, x):
    return x * self.scale if x.numel() > 20 else x


@entry(4, 6, make=lambda a, b: ((torch.randn(b, a).t(),), {}), shapes=({0: AUTO, 1: AUTO},))
def strides(self, x):
    return x * self.scale if x.stride()[1] > x.stride()[0] + 2 else x


@entry(4, 6, 2, make=lambda a, b, c: (
    (torch.randn(a + c, b)[c:], torch.randn(a, b)), {}), shapes=({0: AUTO, 1: AUTO},) * 2)
def same_shapes(self, x, y):
    return x * self.scale + y if x.shape == y.shape and x.storage_offset() > 1 else x


@entry(6, 8, make=one, shapes=({0: AUTO, 1: AUTO},))
def skip(self, x):
    low = torch.max_pool2d(x[None, None], 2)
    return x * self.scale + torch.nn.functional.interpolate(low, scale_factor=2)[0, 0]


@entry(8, make=vectors, shapes=({0: 2 * Dim("d")},))
def doubled(self, x):
    return x * self.scale


@entry(9, make=vectors, shapes=({0: Dim("d", max=12) + 1},))
def one_more(self, x):
    return x * self.scale


def two_derived():
    d = Dim("d", min=3, max=9)
    return {0: 2 * d}, {0: 3 * d + 1}


@entry(8, 13, make=vectors, shapes=two_derived())
def derived(self, x, y):
    return x.sum() * self.scale + y.sum()


@entry(4, 7, 8, make=vectors, shapes=(lambda d: ({0: d}, {0: 2 * d - 1}, {0: 2 * d}))(
    Dim("d", min=3, max=9)))
def from_root(self, x, y, z):
    return x.sum() * self.scale + y.sum() + z.sum()


@entry(8, make=vectors, shapes=({0: Dim("d", min=4, max=9)},))
def ranged(self, x):
    return x * self.scale


@entry(4, 3, 12, make=lambda a, b, c: ((torch.randn(a, b), torch.randn(c)), {}),
       shapes=({0: AUTO, 1: AUTO}, {0: AUTO}))
def flattened(self, x, y):
    return x.reshape(-1) * self.scale + y


@entry(6, 8, make=lambda a, b: ((torch.randn(a), {
    "a": [torch.randn(3), torch.randn(b)], "it s": (torch.randn(b),)}), {}),
    shapes=({0: AUTO}, {"a": [None, {0: AUTO}], "it s": ({0: AUTO},)}))
def nested(self, x, more):
    y = more["a"][1] + more["it s"][0]
    return x.sum() * self.scale + y if x.shape[0] < y.shape[0] else x


@entry(6, 8, make=lambda a, b: ((torch.randn(a),), {
    "t": torch.randn(b), "s": torch.randn(b)}),
    shapes={"x": {0: AUTO}, "s": {0: AUTO}, "t": {0: AUTO}})
def keywords(self, x, *, s, t):
    return x.sum() * self.scale + s + t if x.shape[0] < s.shape[0] else x


@entry(6, 8, make=vectors, shapes={"args": ({0: AUTO}, {0: AUTO})})
def positional(self, *args):
    x, y = args
    return x.sum() * self.scale + y if x.shape[0] < y.shape[0] else x


@entry(6, 8, make=lambda a, b: ((Pair(torch.randn(a), Pair(torch.randn(b), torch.randn(b))),),
                                {}),
       shapes=(Pair({0: AUTO}, Pair({0: AUTO}, {0: AUTO})),))
def named_tuple(self, p):
    y = p.right.left + p.right.right
    return p.left.sum() * self.scale + y if p.left.shape[0] < y.shape[0] else p.left


@entry(8, 12, make=lambda a, n: ((torch.randn(a), n), {}), shapes=({0: AUTO}, Dim.DYNAMIC))
def numbers(self, x, n):
    return x * self.scale * n if n % 2 == 0 and n > x.shape[0] else x


@entry(8, 8, make=lambda a, n: ((n, torch.randn(a)), {}), shapes=(AUTO, {0: AUTO}))
def number_is_size(self, n, x):
    return x * self.scale + torch.ones(n)


@entry(8, 7, make=lambda a, n: ((torch.randn(a), n), {}), shapes=({0: AUTO}, Dim.DYNAMIC))
def remainders(self, x, n):
    return x * self.scale if -n // 3 == -3 and -n % 3 == 2 and n % 4 < 4 else x


def trained(name):
    """Returns an entry as those of zoo.py, with the sizes of the export."""
    make_module, make_inputs, sizes, shapes = GUARDS[name]
    return lambda: (make_module(), lambda: make_inputs(*sizes)[0], shapes)


TRAINED = {name: trained(name) for name in (
    "even", "half", "rounded_up", "no_eight", "between", "cube", "root", "rounded",
    "negated", "more_bits", "loops", "double", "divides", "greatest", "either", "mixed",
    "pairs", "triples", "strided", "joined", "halves", "skip", "from_root", "flattened")}


def sizes_near(sizes, count, seed):
    """Sizes around those of the export, and the export's own."""
    if len(sizes) == 1:
        return [(size,) for size in range(18)]
    choices = list(itertools.product(range(1, 14), repeat=len(sizes)))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(choices), generator=generator)
    return [sizes, *(choices[i] for i in order[:count])]
