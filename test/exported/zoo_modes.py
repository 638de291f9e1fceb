"""Models whose operators follow train() and eval(), or do not. The last step of
zoo_test.py is in eval(). Entries are as those of zoo.py.
"""

import torch
from torch import nn
from torch.nn import functional as F

MODES = {}
# The file does not say whether these follow the mode: they need a program for eval().
UNKNOWN = {"gpt", "dropped", "constant_dropout", "distant_dropout", "doubled_dropout",
           "constant_norm"}


class Subclass(nn.Dropout):
    pass


class Net(nn.Module):
    def __init__(self, **layers):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        for name, layer in layers.items():
            self.add_module(name, layer)


def entry(**layers):
    """Adds a model of these layers. The file holds lines of functions that are
    called forward alone, so each model has a class of its own."""
    def add(model):
        MODES[model.__name__] = lambda: (
            model(**{name: make() for name, make in layers.items()}),
            lambda: (torch.randn(4, 8, 8),), None)
        return model
    return add


@entry(norm=lambda: nn.BatchNorm1d(8, track_running_stats=False))
class untracked_norm(Net):
    def forward(self, x):
        x = self.layer(x)
        return self.norm(x) + F.batch_norm(x, None, None, training=True)


@entry(first=lambda: nn.InstanceNorm1d(8), affine=lambda: nn.InstanceNorm1d(8, affine=True),
       tracked=lambda: nn.InstanceNorm1d(8, track_running_stats=True))
class instance_norms(Net):
    def forward(self, x):
        x = self.layer(x)
        return self.first(x) + self.affine(x) + self.tracked(x) + F.instance_norm(x)


@entry()
class constant_dropout(Net):
    def forward(self, x):
        x = self.layer(x)
        x = F.dropout(x)
        x = F.dropout(x, 0.25, True)
        x = x + F.dropout(x.abs(), p=0.1, training=True)
        x = torch.dropout(x, 0.1, True)
        return torch.nn.functional.dropout1d(x, 0.1)


@entry()
class distant_dropout(Net):
    def with_dropout(self, x):
        return F.dropout(x, 0.1, self.training)

    def forward(self, x):
        x = self.with_dropout(self.layer(x))
        training = self.training
        x = F.dropout(x, 0.1, training)
        return F.dropout(
            x, 0.1,
            self.training)


@entry()
class doubled_dropout(Net):
    def forward(self, x):
        x = self.layer(x)
        return F.dropout(F.dropout(x, 0.1), 0.1, self.training)


@entry()
class constant_norm(Net):
    def forward(self, x):
        x = self.layer(x)
        return F.batch_norm(x, torch.zeros(8), torch.ones(8), training=True)


@entry()
class asked_dropout(Net):
    def forward(self, x):
        x = self.layer(x)
        x = F.dropout(x, training=self.training)
        x = F.dropout(x) if self.training else x
        x = F.dropout(x, 0.2 if self.training else 0.0)
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0)
        x = F.dropout(x, 0.2, training=False)
        x = F.alpha_dropout(x, 0.1, self.training)
        return F.feature_alpha_dropout(x, 0.1, self.training)


@entry(first=lambda: nn.Dropout(0.1), sub=lambda: Subclass(0.1),
       rows=lambda: nn.Dropout1d(0.1), alpha=lambda: nn.AlphaDropout(0.1),
       features=lambda: nn.FeatureAlphaDropout(0.1), rrelu=nn.RReLU)
class dropout_layers(Net):
    def forward(self, x):
        x = self.layer(x)
        x = self.sub(self.first(x))
        return self.rrelu(self.features(self.alpha(self.rows(x))))


@entry(attention=lambda: nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True))
class attention_layer(Net):
    def forward(self, x):
        x = self.layer(x)
        return (self.attention(x, x, x)[0]
                + self.attention(x, x, x, need_weights=False)[0])


@entry(lstm=lambda: nn.LSTM(8, 8, 2, dropout=0.2), gru=lambda: nn.GRU(8, 8, 2, dropout=0.2),
       rnn=lambda: nn.RNN(8, 8, 2, dropout=0.2))
class recurrent(Net):
    def forward(self, x):
        x = self.layer(x)
        return self.rnn(self.gru(self.lstm(x)[0])[0])[0]


@entry(embedding=lambda: nn.Embedding(4, 8, max_norm=0.5))
class renormalised(Net):
    def forward(self, x):
        x = self.layer(x)
        return x + self.embedding(torch.arange(4))[:, None]
