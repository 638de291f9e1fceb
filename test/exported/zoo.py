"""Models that are exported and trained: builders of a module and of its inputs.

Each entry of ZOO is a function that returns (module, inputs of a step, dynamic
shapes). An input is drawn after torch.manual_seed, so that each step has its own.
The modules of EVAL_PROGRAMS have a program for eval(), too.
"""

import torch
from torch import nn
from torch.export import Dim

ZOO = {}
EVAL_PROGRAMS = {"two_programs"}


def entry(build):
    ZOO[build.__name__] = build
    return build


@entry
def mlp():
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 3))
    return net, lambda: (torch.randn(8, 6),), ({0: Dim("batch", max=64)},)


@entry
def mlp_double():
    net, _, shapes = mlp()
    return net.double(), lambda: (torch.randn(8, 6, dtype=torch.double),), shapes


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.norm2(self.conv(x)))
        return self.head(x.mean((2, 3)))


@entry
def residual():
    return Residual(), lambda: (torch.randn(4, 3, 8, 8),), ({0: Dim("batch", max=64)},)


@entry
def channels_last():
    net = Residual().to(memory_format=torch.channels_last)
    return net, lambda: (
        torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last),), None


@entry
def lstm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(5, 12, num_layers=2, dropout=0.2, batch_first=True)
            self.head = nn.Linear(12, 2)

        def forward(self, x):
            out, (hidden, cell) = self.lstm(x)
            return self.head(out[:, -1]), cell

    return Net(), lambda: (torch.randn(3, 7, 5),), None


@entry
def bigru():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(5, 8, bidirectional=True)
            self.head = nn.Linear(16, 2)

        def forward(self, x):
            return self.head(self.gru(x)[0])

    return Net(), lambda: (torch.randn(7, 3, 5),), None


@entry
def transformer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.encoder(self.embedding(tokens)))

    return Net(), lambda: (torch.randint(0, 20, (3, 9)),), None


@entry
def gpt():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.qkv = nn.Linear(16, 48)
            self.out = nn.Linear(16, 16)
            self.norm2 = nn.LayerNorm(16)
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

        def forward(self, x):
            batch, time, width = x.shape
            q, k, v = self.qkv(self.norm(x)).view(batch, time, 3, 2, 8).permute(
                2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
            x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
            return x + self.mlp(self.norm2(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 16)
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return x @ self.embedding.weight.t()

    return Net(), lambda: (torch.randint(0, 20, (3, 9)),), None


@entry
def unet():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(2, 6, 3, padding=1)
            self.middle = nn.Conv2d(6, 6, 3, padding=1)
            self.up = nn.ConvTranspose2d(6, 6, 2, stride=2)
            self.out = nn.Conv2d(12, 1, 1)

        def forward(self, x):
            a = torch.relu(self.down(x))
            b = torch.relu(self.middle(nn.functional.max_pool2d(a, 2)))
            return self.out(torch.cat([a, self.up(b)], 1))

    height, width = Dim("height", max=32), Dim("width", max=32)
    sizes = iter([(16, 16)] + [(8 + 2 * (i % 5), 12 + 2 * (i % 3)) for i in range(99)])
    return (Net(), lambda: (torch.randn(2, 2, *next(sizes)),),
            ({2: 2 * height, 3: 2 * width},))


@entry
def graph_net():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.message = nn.Linear(8, 8)
            self.update = nn.Linear(12, 4)

        def forward(self, nodes, edges):
            pairs = torch.cat([nodes[edges[0]], nodes[edges[1]]], 1)
            sums = nodes.new_zeros(nodes.size(0), 8).index_add(
                0, edges[1], torch.relu(self.message(pairs)))
            return self.update(torch.cat([nodes, sums], 1))

    counts = iter([11] + [5 + i for i in range(99)])
    return (Net(), lambda: (torch.randn(6, 4),
                            torch.randint(0, 6, (2, next(counts)))),
            (None, {1: Dim("edges", max=200)}))


@entry
def fourier():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(1, 6)
            self.weight = nn.Parameter(torch.randn(6, 6, 5, dtype=torch.cfloat) / 6)
            self.head = nn.Linear(6, 1)

        def forward(self, x):
            x = self.lift(x).transpose(1, 2)
            spectrum = torch.fft.rfft(x)
            low = torch.einsum("bim,iom->bom", spectrum[:, :, :5], self.weight)
            out = torch.zeros_like(spectrum)
            out = torch.cat([low, out[:, :, 5:]], 2)
            return self.head(torch.fft.irfft(out, n=x.size(2)).transpose(1, 2))

    return Net(), lambda: (torch.randn(3, 16, 1),), None


@entry
def vae():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(6, 8)
            self.decode = nn.Linear(4, 6)

        def forward(self, x):
            mean, log = self.encode(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (0.5 * log).exp()
            return {"out": self.decode(z), "kl": (mean.square() + log.exp() - log).mean()}

    return Net(), lambda: (torch.randn(8, 6),), None


@entry
def written_buffers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("average", torch.zeros(4))
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)

        def forward(self, x):
            y = self.linear(x) * self.scale
            with torch.no_grad():
                self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
                self.steps.add_(1)
            return y - self.average

    return Net(), lambda: (torch.randn(8, 4),), None


@entry
def cond():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Linear(4, 4)
            self.right = nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.left(x).sin(),
                              lambda x: self.right(x).cos(), (x,))

    return Net(), lambda: (torch.randn(3, 4),), None


@entry
def mask():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, mask):
            return self.linear(x).masked_fill(mask, 0.0).where(x > 0, -x)

    return Net(), lambda: (torch.randn(8, 4), torch.rand(8, 4) > 0.5), None


@entry
def autocast():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.second = nn.Linear(16, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = torch.relu(self.first(x))
            return self.second(y.float())

    return Net(), lambda: (torch.randn(8, 8),), None


@entry
def bfloat16():
    net, _, _ = mlp()
    return net.bfloat16(), lambda: (torch.randn(8, 6).bfloat16(),), None


@entry
def literal_device():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            positions = torch.arange(4, device=x.device, dtype=torch.float)
            return self.linear(x + positions) + torch.tensor([0.5, 1.0, 1.5, 2.0])

    return Net(), lambda: (torch.randn(8, 4),), None


@entry
def energy():
    """Forces are a matter of the caller: the gradient of the energy."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, positions):
            return self.layers(positions - positions.mean(0)).sum()

    return Net(), lambda: (torch.randn(5, 3),), None


@entry
def nested():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, pair, *, scale=2.0, extra=None):
            shift, more = pair
            y = self.linear(x) * scale + shift + more["k"]
            return {"y": y, "parts": [y.mean(), (y * 2,)]}

    return Net(), lambda: (torch.randn(3, 4), (torch.randn(4), {"k": torch.randn(4)})), None


@entry
def frozen():
    """A batch normalisation that stays in eval() while the rest trains."""
    class Net(Residual):
        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    return Net(), lambda: (torch.randn(4, 3, 8, 8),), None


@entry
def shared_memory():
    """A weight, its transpose, a frozen parameter and a buffer in one memory."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.third = nn.Linear(4, 4)
            weight = self.first.weight.detach()
            self.second.weight = nn.Parameter(weight.t())
            self.third.weight = nn.Parameter(weight, requires_grad=False)
            self.register_buffer("row", weight[1])

        def forward(self, x):
            x = self.second(self.first(x).tanh()).tanh()
            return self.third(x) + self.row.detach()

    return Net(), lambda: (torch.randn(8, 4),), None


@entry
def two_programs():
    """Asks for the mode itself: a program for train() and one for eval()."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 8)
            self.norm = nn.BatchNorm1d(8)
            self.second = nn.Linear(8, 4)

        def forward(self, x):
            y = self.norm(self.first(x))
            if self.training:
                return self.second(y + torch.randn_like(y))
            return self.second(y).softmax(1) + torch.dropout(x, 0.5, True)

    return Net(), lambda: (torch.randn(8, 4),), ({0: Dim("batch", max=64)},)
