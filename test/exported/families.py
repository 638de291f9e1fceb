"""Small models of the families of a model zoo: entries of PROGRAMS."""

import math

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from programs import Net, program

BATCH = Dim("batch", max=64)


def images(*sizes):
    return lambda: (torch.randn(*sizes),)


def tokens(count, *sizes):
    return lambda: (torch.randint(0, count, sizes),)


def attend(q, k, v, heads, mask=None):
    """Attention of heads over tensors of (batch, time, width)."""
    def split(x):
        return x.unflatten(2, (heads, -1)).transpose(1, 2)

    out = F.scaled_dot_product_attention(split(q), split(k), split(v), attn_mask=mask)
    return out.transpose(1, 2).flatten(2)


# Vision

@program
def bottleneck():
    def run(m, x):
        y = torch.relu(m.norm1(m.conv1(m.stem(x))))
        y = torch.relu(m.norm2(m.conv2(y)))
        return m.head(torch.relu(m.stem(x) + m.conv3(y)).mean((2, 3)))

    return (Net(run, stem=nn.Conv2d(3, 8, 3, 2, 1), conv1=nn.Conv2d(8, 4, 1),
                norm1=nn.BatchNorm2d(4), conv2=nn.Conv2d(4, 4, 3, 1, 1),
                norm2=nn.BatchNorm2d(4), conv3=nn.Conv2d(4, 8, 1),
                head=nn.Linear(8, 3)), images(4, 3, 8, 8), ({0: BATCH},))


@program
def mobilenet():
    def run(m, x):
        y = F.hardswish(m.norm(m.depth(m.expand(x))))
        y = y * F.hardsigmoid(m.excite(F.relu6(m.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return m.project(y).flatten(1).mean(1)

    return (Net(run, expand=nn.Conv2d(3, 12, 1, bias=False),
                depth=nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
                norm=nn.BatchNorm2d(12, momentum=0.01), squeeze=nn.Conv2d(12, 4, 1),
                excite=nn.Conv2d(4, 12, 1), project=nn.Conv2d(12, 3, 1)),
            images(4, 3, 8, 8))


@program
def densenet():
    def run(m, x):
        for layer in m.layers:
            x = torch.cat([x, layer(x)], 1)
        return m.head(F.avg_pool2d(x, 2).flatten(1))

    layers = nn.ModuleList(
        nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(inplace=True), nn.Conv2d(c, 3, 3, 1, 1))
        for c in (3, 6, 9))
    return Net(run, layers=layers, head=nn.Linear(192, 4)), images(2, 3, 8, 8)


@program
def convnext():
    def run(m, x):
        y = m.norm(m.depth(x).permute(0, 2, 3, 1))
        y = m.scale * m.narrow(F.gelu(m.wide(y)))
        return x + y.permute(0, 3, 1, 2)

    return (Net(run, depth=nn.Conv2d(6, 6, 7, padding=3, groups=6),
                norm=nn.LayerNorm(6, eps=1e-6), wide=nn.Linear(6, 24),
                narrow=nn.Linear(24, 6), scale=nn.Parameter(torch.full((6,), 0.1))),
            images(2, 6, 8, 8))


@program
def vision_transformer():
    def run(m, x):
        x = m.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1) + m.positions
        return m.head(m.encoder(x)[:, 0])

    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, "gelu", batch_first=True,
                                       norm_first=True)
    return (Net(run, patches=nn.Conv2d(3, 8, 4, 4), token=nn.Parameter(torch.zeros(1, 1, 8)),
                positions=nn.Parameter(torch.randn(1, 5, 8) * 0.02),
                encoder=nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
                head=nn.Linear(8, 3)), images(3, 3, 8, 8), ({0: BATCH},))


@program
def shifted_windows():
    def run(m, x):
        b, h, w, c = x.shape
        x = torch.roll(x, (-1, -1), (1, 2)).view(b, h // 2, 2, w // 2, 2, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        bias = m.bias[m.index].view(4, 4, 2).permute(2, 0, 1)
        x = attend(*m.qkv(x).chunk(3, 2), 2, bias)
        x = x.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5)
        return m.norm(torch.roll(x.reshape(b, h, w, c), (1, 1), (1, 2)))

    return (Net(run, qkv=nn.Linear(6, 18), bias=nn.Parameter(torch.randn(9, 2)),
                index=torch.randint(0, 9, (16,)), norm=nn.LayerNorm(6)),
            images(2, 4, 4, 6))


@program
def feature_pyramid():
    def run(m, x):
        a = torch.relu(m.first(x))
        b = torch.relu(m.second(a))
        top = F.interpolate(m.side(b), size=a.shape[-2:], mode="nearest")
        return m.out(a + top), F.interpolate(b, scale_factor=2, mode="bilinear")

    return (Net(run, first=nn.Conv2d(3, 6, 3, 2, 1), second=nn.Conv2d(6, 6, 3, 2, 1),
                side=nn.Conv2d(6, 6, 1), out=nn.Conv2d(6, 2, 3, 1, 1)),
            images(2, 3, 12, 12))


@program
def detector():
    def run(m, x):
        out = m.head(F.leaky_relu(m.conv(x), 0.1)).view(x.shape[0], 2, 7, 4, 4)
        ys, xs = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        place = out[:, :, :2].sigmoid() + torch.stack([xs, ys]).float()
        size = out[:, :, 2:4].exp() * m.anchors.view(1, 2, 2, 1, 1)
        return torch.cat([place, size], 2), out[:, :, 4:].log_softmax(2)

    return (Net(run, conv=nn.Conv2d(3, 8, 3, 2, 1), head=nn.Conv2d(8, 14, 1),
                anchors=torch.tensor([[1.0, 2.0], [2.0, 1.0]])), images(2, 3, 8, 8))


@program
def spatial_transformer():
    def run(m, x):
        theta = m.place(F.max_pool2d(x, 4).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return m.conv(F.grid_sample(x, grid, align_corners=False))

    return (Net(run, place=nn.Linear(8, 6), conv=nn.Conv2d(2, 3, 3)),
            images(2, 2, 8, 8))


@program
def super_resolution():
    def run(m, x):
        return F.pixel_shuffle(m.up(F.prelu(m.conv(x), m.slope)), 2)

    return (Net(run, conv=nn.Conv2d(1, 8, 5, padding=2), up=nn.Conv2d(8, 4, 3, padding=1),
                slope=nn.Parameter(torch.full((8,), 0.25))),
            images(2, 1, 6, 6), ({0: BATCH},))


@program
def style():
    net = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 6, 3),
                        nn.InstanceNorm2d(6, affine=True), nn.ELU(),
                        nn.Upsample(scale_factor=2), nn.ReplicationPad2d(1),
                        nn.Conv2d(6, 3, 3), nn.GroupNorm(3, 3), nn.Hardtanh())
    return net, images(2, 3, 6, 6)


# Language

@program
def masked_words():
    def run(m, x):
        y = m.norm(m.words(x) + m.positions.weight[:x.shape[1]] + m.kinds(x % 2))
        y = m.encoder(y, src_key_padding_mask=x == 0)
        return F.cross_entropy(m.head(m.drop(y)).flatten(0, 1), x.flatten(),
                               ignore_index=0, label_smoothing=0.1)

    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
    return (Net(run, words=nn.Embedding(12, 8, padding_idx=0), kinds=nn.Embedding(2, 8),
                positions=nn.Embedding(9, 8), norm=nn.LayerNorm(8),
                encoder=nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
                drop=nn.Dropout(0.1), head=nn.Linear(8, 12)),
            lambda: (torch.cat([torch.randint(1, 12, (3, 5)),
                                torch.zeros(3, 2, dtype=torch.long)], 1),))


@program
def rotary():
    def turn(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def run(m, x):
        y = m.words(x)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * m.scale
        q, k, v = (p(y).unflatten(2, (2, -1)).transpose(1, 2) for p in (m.q, m.k, m.v))
        q, k = turn(q, m.cos, m.sin), turn(k, m.cos, m.sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = m.out(y.transpose(1, 2).flatten(2))
        return m.down(F.silu(m.gate(y)) * m.up(y)) @ m.words.weight.t()

    angles = torch.outer(torch.arange(6.0), 10 ** -torch.arange(2.0))
    linear = {name: nn.Linear(8, 8, bias=False) for name in ("q", "k", "v", "out")}
    return (Net(run, words=nn.Embedding(11, 8), scale=nn.Parameter(torch.ones(8)),
                gate=nn.Linear(8, 12, bias=False), up=nn.Linear(8, 12, bias=False),
                down=nn.Linear(12, 8, bias=False), cos=angles.cos(), sin=angles.sin(),
                **linear), tokens(11, 2, 6))


@program
def grouped_queries():
    def run(m, x):
        q = m.q(x).view(x.shape[0], -1, 4, 3)
        k, v = (p(x).view(x.shape[0], -1, 2, 3).repeat_interleave(2, 2)
                for p in (m.k, m.v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(3) + m.bias
        scores = scores.masked_fill(m.future, float("-inf")).softmax(-1)
        return m.out(torch.einsum("bhij,bjhd->bihd", scores, v).flatten(2))

    distance = torch.arange(5)[None] - torch.arange(5)[:, None]
    return (Net(run, q=nn.Linear(6, 12), k=nn.Linear(6, 6), v=nn.Linear(6, 6),
                out=nn.Linear(12, 6), bias=0.1 * distance.float(), future=distance > 0),
            images(2, 5, 6))


@program
def mixture_of_experts():
    def run(m, x):
        weights, chosen = m.gate(x).softmax(-1).topk(2, -1)
        out = torch.stack([torch.relu(x @ m.first[i]) @ m.second[i] for i in range(4)], 1)
        picked = out.gather(1, chosen[:, :, None].expand(-1, -1, out.shape[2]))
        return (picked * weights[:, :, None]).sum(1), m.gate(x).logsumexp(-1)

    return (Net(run, gate=nn.Linear(6, 4), first=nn.Parameter(torch.randn(4, 6, 8) / 3),
                second=nn.Parameter(torch.randn(4, 8, 6) / 3)),
            images(7, 6), ({0: BATCH},))


@program
def bag_of_words():
    def run(m, x):
        return m.head(m.bag(x)).log_softmax(1)

    return (Net(run, bag=nn.EmbeddingBag(20, 6, mode="mean"), head=nn.Linear(6, 4)),
            tokens(20, 5, 7))


@program
def characters():
    def run(m, x):
        y = m.letters(x).transpose(1, 2)
        return m.head(torch.cat([conv(y).relu().amax(2) for conv in m.convs], 1))

    return (Net(run, letters=nn.Embedding(15, 5), head=nn.Linear(9, 2),
                convs=nn.ModuleList(nn.Conv1d(5, 3, size) for size in (2, 3, 4))),
            tokens(15, 4, 10))


@program
def translation():
    def run(m, source, target):
        encoded, hidden = m.encoder(m.words(source))
        decoded, _ = m.decoder(m.words(target), hidden)
        weights = torch.bmm(decoded, encoded.transpose(1, 2)).softmax(2)
        return m.head(torch.cat([decoded, torch.bmm(weights, encoded)], 2))

    return (Net(run, words=nn.Embedding(13, 6), encoder=nn.GRU(6, 8, batch_first=True),
                decoder=nn.GRU(6, 8, batch_first=True), head=nn.Linear(16, 13)),
            lambda: (torch.randint(0, 13, (2, 6)), torch.randint(0, 13, (2, 4))))


@program
def encoder_decoder():
    def run(m, x, y):
        return m.decoder(y, m.encoder(x), tgt_mask=m.mask)

    return (Net(run, encoder=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                decoder=nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
                mask=torch.ones(4, 4).triu(1).bool()),
            lambda: (torch.randn(2, 5, 8), torch.randn(2, 4, 8)))


@program
def state_space():
    def run(m, x):
        step = F.softplus(m.step(x))[..., None]
        decay = torch.exp(step * -m.rate.exp())
        given = step * m.into(x)[:, :, None] * x[..., None]
        state, out = torch.zeros_like(given[:, 0]), []
        for t in range(5):
            state = decay[:, t] * state + given[:, t]
            out.append((state * m.read(x)[:, t, None]).sum(-1))
        return torch.stack(out, 1) + x * m.skip

    return (Net(run, step=nn.Linear(6, 6), into=nn.Linear(6, 3), read=nn.Linear(6, 3),
                rate=nn.Parameter(torch.rand(6, 3)), skip=nn.Parameter(torch.ones(6))),
            images(2, 5, 6))


# Graphs

def edges(nodes, count, *features):
    return lambda: (torch.randn(nodes, 4), torch.randint(0, nodes, (2, count)),
                    *(torch.randn(count, width) for width in features))


EDGES = (None, {1: Dim("edges", max=99)})


@program
def graph_convolution():
    def run(m, x, adjacency):
        degree = adjacency.sum(1).clamp(min=1).rsqrt()
        spread = degree[:, None] * adjacency * degree
        return spread @ m.second(F.dropout(torch.relu(spread @ m.first(x)), 0.2))

    return (Net(run, first=nn.Linear(4, 8), second=nn.Linear(8, 3)),
            lambda: (torch.randn(6, 4), (torch.rand(6, 6) > 0.5).float()))


@program
def graph_attention():
    def run(m, x, e):
        h = m.lift(x)
        score = F.leaky_relu((h[e[0]] * m.left).sum(1) + (h[e[1]] * m.right).sum(1), 0.2)
        score = (score - score.max()).exp()
        total = torch.zeros(x.shape[0]).index_add(0, e[1], score)
        part = (score / (total[e[1]] + 1e-9))[:, None] * h[e[0]]
        return F.elu(torch.zeros_like(h).index_add(0, e[1], part))

    return (Net(run, lift=nn.Linear(4, 5), left=nn.Parameter(torch.randn(5)),
                right=nn.Parameter(torch.randn(5))), edges(6, 12), EDGES)


@program
def graph_sage():
    def run(m, x, e):
        index = e[1][:, None].expand(-1, 4)
        mean = torch.zeros_like(x).scatter_reduce(0, index, x[e[0]], "mean",
                                                  include_self=False)
        return F.normalize(m.own(x) + m.others(mean), dim=1)

    return Net(run, own=nn.Linear(4, 5), others=nn.Linear(4, 5)), edges(6, 12), EDGES


@program
def graph_isomorphism():
    def run(m, x, e):
        x = (1 + m.epsilon) * x + torch.zeros_like(x).scatter_add(
            0, e[1][:, None].expand(-1, 4), x[e[0]])
        return m.layers(x).sum(0)

    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return (Net(run, layers=layers, epsilon=nn.Parameter(torch.zeros(1))),
            edges(6, 12), EDGES)


@program
def edge_networks():
    def run(m, x, e, features):
        weights = m.edge(features).view(-1, 4, 4)
        sent = torch.bmm(weights, x[e[0]][:, :, None]).squeeze(2)
        return m.cell(torch.zeros_like(x).index_add(0, e[1], sent), x)

    return (Net(run, edge=nn.Linear(3, 16), cell=nn.GRUCell(4, 4)), edges(5, 8, 3))


@program
def equivariant():
    def run(m, x, places, e):
        away = places[e[0]] - places[e[1]]
        far = away.square().sum(1, keepdim=True)
        sent = F.silu(m.message(torch.cat([x[e[0]], x[e[1]], far], 1)))
        moved = places.index_add(0, e[1], away * m.weight(sent) / (1 + far.sqrt()))
        return m.update(torch.cat(
            [x, x.new_zeros(x.shape[0], 6).index_add(0, e[1], sent)], 1)), moved

    return (Net(run, message=nn.Linear(9, 6), weight=nn.Linear(6, 1),
                update=nn.Linear(10, 4)),
            lambda: (torch.randn(5, 4), torch.randn(5, 3),
                     torch.stack([torch.arange(5), torch.arange(5).roll(1)])))


@program
def pooled_graph():
    def run(m, x, adjacency):
        score = torch.tanh(x @ m.score / m.score.norm())
        best, index = score.topk(3)
        kept = x[index] * best[:, None]
        return m.head(adjacency[index][:, index] @ kept)

    return (Net(run, score=nn.Parameter(torch.randn(4)), head=nn.Linear(4, 2)),
            lambda: (torch.randn(6, 4), torch.rand(6, 6)))


# Audio

@program
def mel_spectrum():
    def run(m, x):
        power = torch.stft(x, 16, 8, window=m.window, return_complex=True).abs().square()
        return m.conv(torch.log(m.filters @ power + 1e-6))

    return (Net(run, window=torch.hann_window(16), filters=torch.rand(5, 9),
                conv=nn.Conv1d(5, 4, 3)), images(2, 64))


@program
def separation():
    def run(m, x):
        y = torch.relu(m.encoder(x))
        mask = torch.sigmoid(m.mask(m.norm(y))).view(2, 2, 8, -1)
        return m.decoder((mask * y[:, None]).flatten(0, 1)).view(2, 2, -1)

    return (Net(run, encoder=nn.Conv1d(1, 8, 4, 2, bias=False), norm=nn.GroupNorm(1, 8),
                mask=nn.Conv1d(8, 16, 1), decoder=nn.ConvTranspose1d(8, 1, 4, 2)),
            images(2, 1, 20))


@program
def dilated_waves():
    def run(m, x):
        skips = 0
        for i, (gate, out) in enumerate(zip(m.gates, m.outs)):
            a, b = gate(F.pad(x, (2 ** i, 0))).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            skips, x = skips + y, x + out(y)
        return m.head(torch.relu(skips))

    return (Net(run, gates=nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2 ** i)
                                         for i in range(3)),
                outs=nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(3)),
                head=nn.Conv1d(4, 5, 1)), images(2, 4, 12))


@program
def speech():
    def run(m, x):
        y = m.conv(x[:, None]).flatten(1, 2).permute(2, 0, 1)
        return m.head(m.lstm(y)[0]).log_softmax(2)

    return (Net(run, conv=nn.Conv2d(1, 2, 3, padding=1), head=nn.Linear(12, 5),
                lstm=nn.LSTM(12, 6, bidirectional=True)), images(2, 6, 9))


@program
def cosine_transform():
    def run(m, x):
        frames = x.unfold(1, 8, 4) * m.window
        return m.rnn(torch.log1p(frames @ m.cosines.t()).nan_to_num())[0]

    cosines = torch.cos(torch.outer(torch.arange(4.0), torch.arange(8.0) + 0.5) * 0.39)
    return (Net(run, window=torch.hamming_window(8), cosines=cosines,
                rnn=nn.RNN(4, 5, batch_first=True)),
            lambda: (torch.rand(2, 24),))


@program
def filter_bank():
    """Band-pass filters of learned edges, as in SincNet."""
    def run(m, x):
        low = m.low.abs()
        high = low + m.band.abs()
        filters = (torch.sinc(2 * high[:, None] * m.times) * high[:, None]
                   - torch.sinc(2 * low[:, None] * m.times) * low[:, None])
        return F.max_pool1d(F.conv1d(x, filters[:, None] * m.window).abs(), 3)

    return (Net(run, low=nn.Parameter(torch.rand(4) / 8), times=torch.arange(-4.0, 5),
                band=nn.Parameter(torch.rand(4) / 8), window=torch.hann_window(9)),
            images(2, 1, 30))


# Diffusion

def waves(times, width):
    rates = torch.exp(-torch.arange(width // 2) * 2.0 / width)
    angles = times[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


@program
def denoising():
    def run(m, x, times):
        noise = torch.randn_like(x)
        keep = m.schedule[times][:, None, None, None]
        noisy = keep.sqrt() * x + (1 - keep).sqrt() * noise
        shift = m.time(F.silu(waves(times, 6)))[:, :, None, None]
        y = F.silu(m.norm(m.down(noisy) + shift))
        return F.mse_loss(m.up(y), noise)

    return (Net(run, schedule=torch.linspace(0.99, 0.01, 10), time=nn.Linear(6, 8),
                down=nn.Conv2d(1, 8, 3, 2, 1), norm=nn.GroupNorm(2, 8),
                up=nn.ConvTranspose2d(8, 1, 4, 2, 1)),
            lambda: (torch.randn(3, 1, 8, 8), torch.randint(0, 10, (3,))))


@program
def guidance():
    def run(m, x, label):
        label = torch.where(torch.rand(label.shape) < 0.3, 4, label)
        return m.out(torch.tanh(m.into(x) + m.labels(label)))

    return (Net(run, into=nn.Linear(5, 8), labels=nn.Embedding(5, 8), out=nn.Linear(8, 5)),
            lambda: (torch.randn(6, 5), torch.randint(0, 4, (6,))), ({0: BATCH}, {0: BATCH}))


@program
def diffusion_transformer():
    def run(m, x, times):
        shift, scale, gate = m.modulate(F.silu(waves(times, 6)))[:, None].chunk(3, 2)
        y = F.layer_norm(x, (6,)) * (1 + scale) + shift
        return x + gate * m.out(attend(*m.qkv(y).chunk(3, 2), 2))

    return (Net(run, modulate=nn.Linear(6, 18), qkv=nn.Linear(6, 18), out=nn.Linear(6, 6)),
            lambda: (torch.randn(2, 4, 6), torch.randint(0, 10, (2,))))


@program
def latent_codes():
    def run(m, x):
        y = m.encode(x)
        far = torch.cdist(y, m.codes)
        code = m.codes[far.argmin(1)]
        straight = y + (code - y).detach()
        return m.decode(straight), (code - y.detach()).square(), (y - code.detach())

    return (Net(run, encode=nn.Linear(5, 3), codes=nn.Parameter(torch.randn(7, 3)),
                decode=nn.Linear(3, 5)), images(6, 5))


@program
def score_matching():
    def run(m, x):
        sigma = torch.exp(torch.empty(x.shape[0], 1).uniform_(-2, 1))
        noise = torch.randn(x.shape)
        score = m.net(torch.cat([x + sigma * noise, sigma.log()], 1)) / sigma
        return (sigma * score + noise).square().mean(1)

    net = nn.Sequential(nn.Linear(5, 12), nn.Softplus(), nn.Linear(12, 4))
    return Net(run, net=net), images(6, 4), ({0: BATCH},)


@program
def flow():
    """Coupling layers with the logarithm of their determinant."""
    def run(m, x):
        total = 0
        for layer in m.layers:
            a, b = x.chunk(2, 1)
            scale, shift = layer(a).chunk(2, 1)
            scale = torch.tanh(scale)
            x, total = torch.cat([b * scale.exp() + shift, a], 1), total + scale.sum(1)
        return 0.1 * (x @ m.mix).square().sum(1) - total - torch.slogdet(m.mix)[1]

    return (Net(run, layers=nn.ModuleList(nn.Linear(2, 4) for _ in range(3)),
                mix=nn.Parameter(torch.eye(4) + 0.1)), images(6, 4))


# Time series

@program
def temporal_convolution():
    conv = [nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 3, 3, dilation=d))
            for d in (1, 2)]

    def run(m, x):
        y = F.pad(x, (2, 0))
        y = F.pad(F.dropout(torch.relu(m.first(y)), 0.1), (4, 0))
        return x + m.second(y)

    return Net(run, first=conv[0], second=conv[1]), images(2, 3, 10)


@program
def basis_expansion():
    def run(m, x):
        total = 0
        for block in m.blocks:
            back, fore = block(x).split([8, 3], 1)
            x, total = x - back, total + fore
        return total

    blocks = (nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 11)) for _ in range(3))
    return Net(run, blocks=nn.ModuleList(blocks)), images(4, 8), ({0: BATCH},)


@program
def forecast_density():
    def run(m, x):
        y, _ = m.lstm(x[:, :-1])
        mean, scale = m.head(y).chunk(2, 2)
        scale = F.softplus(scale) + 1e-3
        return ((x[:, 1:] - mean) / scale).square() / 2 + scale.log()

    return (Net(run, lstm=nn.LSTM(1, 6, batch_first=True), head=nn.Linear(6, 2)),
            images(3, 8, 1))


@program
def own_predictions():
    def run(m, x):
        state = torch.zeros(x.shape[0], 6)
        value, out = x, []
        for _ in range(4):
            state = m.cell(value, state)
            value = m.head(state)
            out.append(value)
        return torch.cat(out, 1)

    return Net(run, cell=nn.GRUCell(1, 6), head=nn.Linear(6, 1)), images(3, 1)


@program
def seasons():
    def run(m, x):
        trend = F.avg_pool1d(F.pad(x[:, None], (2, 2), mode="replicate"), 5, 1)[:, 0]
        spectrum = torch.fft.rfft(x - trend)
        kept = spectrum * (spectrum.abs() >= spectrum.abs().topk(2).values[:, -1:])
        return m.trend(trend) + m.season(torch.fft.irfft(kept, n=12))

    return Net(run, trend=nn.Linear(12, 4), season=nn.Linear(12, 4)), images(3, 12)


@program
def patches_of_time():
    def run(m, x):
        mean, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        y = m.lift(((x - mean) / scale).unfold(1, 4, 2))
        y = m.layer(y)
        return m.head(y.flatten(1)) * scale + mean

    return (Net(run, lift=nn.Linear(4, 6), head=nn.Linear(30, 3),
                layer=nn.TransformerEncoderLayer(6, 2, 12, 0.1, batch_first=True)),
            images(3, 12))


@program
def kalman():
    def run(m, x):
        state, cov, out = torch.zeros(2, 1), torch.eye(2), []
        for t in range(4):
            state, cov = m.move @ state, m.move @ cov @ m.move.t() + m.noise.diag().exp()
            gain = torch.linalg.solve(m.see @ cov @ m.see.t() + 0.1, m.see @ cov).t()
            state = state + gain @ (x[t].view(1, 1) - m.see @ state)
            cov = cov - gain @ m.see @ cov
            out.append(state)
        return torch.cat(out, 1)

    return (Net(run, move=nn.Parameter(torch.eye(2) * 0.9), see=nn.Parameter(torch.ones(1, 2)),
                noise=nn.Parameter(torch.zeros(2))), images(4))


# Reinforcement learning

@program
def dueling():
    def run(m, x, action):
        y = torch.relu(m.lift(x))
        gain = m.gain(y)
        values = m.value(y) + gain - gain.mean(1, keepdim=True)
        return F.smooth_l1_loss(values.gather(1, action[:, None])[:, 0], x.sum(1))

    return (Net(run, lift=nn.Linear(4, 8), gain=nn.Linear(8, 3), value=nn.Linear(8, 1)),
            lambda: (torch.randn(5, 4), torch.randint(0, 3, (5,))), ({0: BATCH}, {0: BATCH}))


@program
def clipped_policy():
    def run(m, x, action, old, gain):
        y = torch.tanh(m.body(x))
        logs = m.policy(y).log_softmax(1)
        ratio = (logs.gather(1, action[:, None])[:, 0] - old).exp()
        bonus = -(logs.exp() * logs).sum(1).mean()
        loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return loss + (m.value(y)[:, 0] - gain).square().mean() - 0.01 * bonus

    return (Net(run, body=nn.Linear(4, 8), policy=nn.Linear(8, 3), value=nn.Linear(8, 1)),
            lambda: (torch.randn(5, 4), torch.randint(0, 3, (5,)), torch.randn(5),
                     torch.randn(5)))


@program
def squashed_gaussian():
    def run(m, x):
        mean, log = m.policy(x).chunk(2, 1)
        log = log.clamp(-5, 2)
        noise = torch.randn_like(mean)
        action = torch.tanh(mean + log.exp() * noise)
        density = (-0.5 * noise.square() - log - torch.log(1 - action.square() + 1e-6)).sum(1)
        return m.value(torch.cat([x, action], 1))[:, 0] - m.weight.exp() * density

    return (Net(run, policy=nn.Linear(4, 4), value=nn.Linear(6, 1),
                weight=nn.Parameter(torch.zeros(()))), images(5, 4))


@program
def noisy_layers():
    def run(m, x):
        def shape(noise):
            return noise.sign() * noise.abs().sqrt()

        a, b = shape(torch.randn(3)), shape(torch.randn(4))
        return F.linear(x, m.weight + m.spread * torch.outer(a, b), m.bias + m.shift * a)

    return (Net(run, weight=nn.Parameter(torch.randn(3, 4)), bias=nn.Parameter(torch.zeros(3)),
                spread=nn.Parameter(torch.full((3, 4), 0.1)),
                shift=nn.Parameter(torch.full((3,), 0.1))), images(5, 4))


@program
def target_network():
    def run(m, x):
        for name in ("weight", "bias"):
            mine, slow = getattr(m.net, name), getattr(m, "slow_" + name)
            slow.mul_(0.9).add_(mine.detach(), alpha=0.1)
        target = F.linear(x, m.slow_weight, m.slow_bias).amax(1)
        return m.net(x)[:, 0] - target

    net = nn.Linear(4, 3)
    return (Net(run, net=net, slow_weight=net.weight.detach().clone(),
                slow_bias=net.bias.detach().clone()), images(5, 4))


@program
def distribution_of_returns():
    def run(m, x, reward):
        mass = m.net(x).softmax(1)
        moved = (reward[:, None] + 0.9 * m.atoms).clamp(-2, 2)
        at = (moved + 2) / 4 * 8
        low = at.floor().long().clamp(0, 7)
        part = at - low
        target = torch.zeros(x.shape[0], 9)
        target = target.scatter_add(1, low, mass.detach() * (1 - part))
        target = target.scatter_add(1, low + 1, mass.detach() * part)
        return -(target * mass.log()).sum(1)

    return (Net(run, net=nn.Linear(4, 9), atoms=torch.linspace(-2, 2, 9)),
            lambda: (torch.randn(5, 4), torch.randn(5)))


@program
def recurrent_values():
    def run(m, x, done):
        h, c, out = torch.zeros(3, 5), torch.zeros(3, 5), []
        for t in range(4):
            keep = 1 - done[t].float()[:, None]
            h, c = m.cell(x[t], (h * keep, c * keep))
            out.append(m.head(h))
        return torch.stack(out)

    return (Net(run, cell=nn.LSTMCell(4, 5), head=nn.Linear(5, 2)),
            lambda: (torch.randn(4, 3, 4), torch.rand(4, 3) > 0.7))


# Physics

@program
def sine_layers():
    def run(m, x):
        y = torch.sin(30 * m.first(x))
        return m.last(torch.sin(30 * m.second(y)))

    return (Net(run, first=nn.Linear(2, 8), second=nn.Linear(8, 8), last=nn.Linear(8, 1)),
            lambda: (torch.rand(9, 2),), ({0: BATCH},))


@program
def fourier_operator():
    def run(m, x):
        y = m.lift(x[..., None])
        modes = torch.fft.rfft2(y, dim=(1, 2))
        low = torch.einsum("bxyi,ioxy->bxyo", modes[:, :3, :3], m.weight)
        out = torch.zeros_like(modes)
        out = torch.cat([torch.cat([low, out[:, :3, 3:]], 2), out[:, 3:]], 1)
        return m.head(F.gelu(torch.fft.irfft2(out, s=x.shape[1:], dim=(1, 2)) + m.skip(y)))

    return (Net(run, lift=nn.Linear(1, 3), skip=nn.Linear(3, 3), head=nn.Linear(3, 1),
                weight=nn.Parameter(torch.randn(3, 3, 3, 3, dtype=torch.cfloat) / 9)),
            images(2, 6, 6))


@program
def runge_kutta():
    def run(m, x):
        for _ in range(3):
            a = m.net(x)
            b = m.net(x + 0.05 * a)
            c = m.net(x + 0.05 * b)
            d = m.net(x + 0.1 * c)
            x = x + 0.1 / 6 * (a + 2 * b + 2 * c + d)
        return x

    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return Net(run, net=net), lambda: (torch.randn(4, 2, dtype=torch.double),)


@program
def periodic_lattice():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"), nn.CELU(),
                        nn.Conv2d(4, 1, 3, padding=1, padding_mode="circular"))
    return (Net(lambda m, x: m.net(x).mean((1, 2, 3)) - (x * x.roll(1, 2)).mean((1, 2, 3)),
                net=net), lambda: (torch.randn(2, 1, 6, 6).sign(),))


@program
def molecules():
    def run(m, kinds, places):
        far = torch.cdist(places, places) + torch.eye(places.shape[0])
        basis = torch.exp(-(far[..., None] - m.centres).square() * 4)
        x = m.kinds(kinds)
        sent = m.filter(basis) * x[None]
        x = x + F.softplus(m.update(sent.sum(1))) - math.log(2)
        return m.head(x).mean()

    return (Net(run, kinds=nn.Embedding(5, 6), centres=torch.linspace(0, 3, 7),
                filter=nn.Linear(7, 6), update=nn.Linear(6, 6), head=nn.Linear(6, 1)),
            lambda: (torch.randint(0, 5, (6,)), torch.randn(6, 3)))


@program
def hamiltonian():
    """The gradient of a quadratic energy, by hand."""
    def run(m, x):
        q, p = x.chunk(2, 1)
        form = torch.tril(m.factor) @ torch.tril(m.factor).t()
        return torch.cat([p @ form, -torch.sin(q) * m.force.exp()], 1)

    return (Net(run, factor=nn.Parameter(torch.randn(3, 3)),
                force=nn.Parameter(torch.zeros(3))), images(5, 6), ({0: BATCH},))


@program
def complex_amplitudes():
    def run(m, x):
        state = torch.complex(x, torch.zeros_like(x)) @ torch.matrix_exp(
            1j * (m.energy + m.energy.conj().t()))
        return (state @ m.readout).abs().square()

    return (Net(run, energy=nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat) / 3),
                readout=nn.Parameter(torch.randn(3, 2, dtype=torch.cfloat))),
            images(4, 3))


@program
def sets_of_particles():
    def run(m, x, mask):
        y = torch.relu(m.inner(x)).masked_fill(~mask[..., None], 0)
        return m.outer(torch.cat([y.sum(1), y.amax(1)], 1))

    return (Net(run, inner=nn.Linear(4, 6), outer=nn.Linear(12, 2)),
            lambda: (torch.randn(3, 5, 4), torch.rand(3, 5) > 0.3))
