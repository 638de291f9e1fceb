"""Models that are trained as Python trains their exported programs. Entries are as
those of zoo.py.
"""

from torch import nn

PROGRAMS = {}


def program(build):
    """Adds a function that returns a module and a function that draws inputs; and,
    if they have any, the dynamic shapes of Net's inputs."""
    def entry_of_zoo():
        module, draw, *shapes = build()
        return module, draw, tuple(shapes) or None

    PROGRAMS[build.__name__] = entry_of_zoo
    return build


class Net(nn.Module):
    """A module of parts: modules, parameters and buffers by name."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, (nn.Module, nn.Parameter)):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *inputs):
        return self.run(self, *inputs)
