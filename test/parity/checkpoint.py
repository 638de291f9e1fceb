"""Files of ddp::Checkpoint and of torch.save are each other's.

usage: checkpoint.py PROGRAM   (built from checkpoint.cpp)
"""

import argparse
import collections
import os
import subprocess
import sys
import tempfile

import torch

PROGRAM = sys.argv[1]
NAMES = ["sgd", "sgd_momentum", "adam", "adamw", "rmsprop", "adagrad"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, bias=False)
        self.bn = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        return self.fc(x.mean((2, 3)))


def make_optimizer(name, params):
    optim = torch.optim
    return {
        "sgd": lambda: optim.SGD(params, lr=0.1),
        "sgd_momentum": lambda: optim.SGD(params, lr=0.1, momentum=0.9),
        "adam": lambda: optim.Adam(params, lr=0.01, amsgrad=True),
        "adamw": lambda: optim.AdamW(params, lr=0.01),
        "rmsprop": lambda: optim.RMSprop(
            params, lr=0.01, momentum=0.9, centered=True
        ),
        "adagrad": lambda: optim.Adagrad(params, lr=0.1),
    }[name]()


def run(*arguments):
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, check=True,
        timeout=240
    ).stdout


def train(net, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        net(batch).pow(2).mean().backward()
        optimizer.step()


def assert_close(ours, theirs, what):
    """Equal but for the order of the optimizer's own arithmetic."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), f"{what}: {list(ours)}"
        for key in theirs:
            assert_close(ours[key], theirs[key], f"{what}[{key!r}]")
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype, f"{what}: {ours.dtype}"
        torch.testing.assert_close(
            ours, theirs, rtol=2e-5, atol=2e-6, msg=lambda m: f"{what}: {m}"
        )
    else:
        assert ours == theirs, f"{what}: {ours} instead of {theirs}"


def check_optimizer(name, folder):
    """Python trains, C++ goes on, Python goes on."""
    torch.manual_seed(3)
    batches = [torch.randn(8, 1, 6, 6) for _ in range(9)]
    torch.save(batches[3:6], f"{folder}/data.pt")
    net = Net()
    optimizer = make_optimizer(name, net.parameters())
    train(net, optimizer, batches[:3])
    state = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 1,
        "step": 3,
        "args": argparse.Namespace(lr=0.1),
    }
    torch.save(state, f"{folder}/a.pt")
    drawn = run("train", name, f"{folder}/data.pt", f"{folder}/a.pt",
                f"{folder}/b.pt")

    ours = torch.load(f"{folder}/b.pt")  # weights_only is the default
    train(net, optimizer, batches[3:6])
    assert (ours["epoch"], ours["step"]) == (2, 6), ours
    assert_close(ours["model"], dict(net.state_dict()), "model")
    theirs = optimizer.state_dict()
    assert_close(ours["optimizer"]["state"], theirs["state"], name)
    for group, expected in zip(
        ours["optimizer"]["param_groups"], theirs["param_groups"]
    ):
        extra = set(group) - set(expected)
        assert extra <= {"decoupled_weight_decay"}, extra
        for key in group.keys() & expected.keys():
            assert_close(group[key], expected[key], f"{name}[{key!r}]")

    torch.set_rng_state(ours["rng"][0]["cpu"])
    assert torch.rand(1, dtype=torch.float64).item() == float(drawn)

    resumed = Net()
    resumed.load_state_dict(ours["model"])
    resumed_optimizer = make_optimizer(name, resumed.parameters())
    resumed_optimizer.load_state_dict(ours["optimizer"])
    train(resumed, resumed_optimizer, batches[6:])
    train(net, optimizer, batches[6:])
    assert_close(
        dict(resumed.state_dict()), dict(net.state_dict()), f"{name} resumed"
    )


def check_values(folder):
    """What torch.save writes is read, and written so that Python reads it."""
    base = torch.arange(24.0).reshape(2, 3, 4)
    dtypes = [
        torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
        torch.complex128,
    ]
    values = {
        "dtypes": {str(dtype): base.to(dtype) for dtype in dtypes},
        "whole": base,
        "part": base[:, 1:3],
        "transposed": base.transpose(0, 2),
        "channels_last": torch.randn(2, 3, 4, 5).to(
            memory_format=torch.channels_last
        ),
        "expanded": torch.ones(1, 3).expand(4, 3),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty matrix": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "list": [1, 2.5, "text", None, True, (1, "a"), [], {}],
        "ints": [0, 255, 256, 65535, 65536, -1, 2**31, -(2**31) - 1, 2**62],
        "text": "übergrößenträger" * 50,
        "ordered": collections.OrderedDict(b=1, a=2),
        "size": torch.Size([2, 3]),
        3: "an int key",
    }
    torch.save(values, f"{folder}/values.pt")
    run("copy", f"{folder}/values.pt", f"{folder}/copy.pt")
    copy = torch.load(f"{folder}/copy.pt")

    def same(ours, theirs, what):
        if isinstance(theirs, torch.Tensor):
            assert ours.dtype == theirs.dtype, what
            assert ours.shape == theirs.shape, what
            assert ours.stride() == theirs.stride(), what
            assert torch.equal(ours, theirs), what
        elif isinstance(theirs, dict):
            assert list(ours) == list(theirs), what
            for key in theirs:
                same(ours[key], theirs[key], f"{what}/{key}")
        elif isinstance(theirs, (list, tuple)):
            assert len(ours) == len(theirs), what
            for a, b in zip(ours, theirs):
                same(a, b, what)
        else:
            assert type(ours) is type(theirs) and ours == theirs, what

    same(copy, values, "copy")
    copy["whole"][0, 1, 0] = 100
    assert copy["part"][0, 0, 0] == 100, "shared memory was torn apart"


def check_model_files(folder):
    """Whatever Python saves of a model loads, or says why not."""
    net = Net()
    prefixed = {f"module.{k}": v for k, v in net.state_dict().items()}
    sparse = net.state_dict()
    sparse["fc.weight"] = sparse["fc.weight"].to_sparse()
    wide = net.state_dict() | {"fc.bias": torch.ones(4)}
    old = {"_use_new_zipfile_serialization": False}
    cases = [
        (net.state_dict(), {}, []),
        ({"model": net.state_dict()}, {}, []),
        ({"state_dict": prefixed, "args": argparse.Namespace(a=1)}, {}, []),
        (dict(net.named_parameters()) | dict(net.named_buffers()), {}, []),
        (net, {}, ["object of __main__.Net", "save model.state_dict()"]),
        ([1, 2], {}, ["expected a state dict, but got a list"]),
        ({"x": 1}, {}, ["a int under x"]),
        (wide, {}, ['"fc.bias": expected shape [3], but got [4]']),
        (sparse, {}, ["_rebuild_sparse_tensor under fc.weight"]),
        (Net().half().state_dict(), {}, ["dtype Float, but got Half"]),
        (net.state_dict(), old, ["not a file of torch.save"]),
        (net.state_dict(), {"pickle_protocol": 4}, ["pickle protocol 4"]),
    ]
    paths = [f"{folder}/model{i}.pt" for i in range(len(cases))]
    for path, (content, options, _) in zip(paths, cases):
        torch.save(content, path, **options)
    answers = run("fit", *paths).splitlines()
    assert len(answers) == len(cases), answers
    for path, answer, (_, _, phrases) in zip(paths, answers, cases):
        if not phrases:
            assert answer == "fits", answer
        for phrase in phrases:
            assert answer.startswith(f"Cannot load {path}: "), answer
            assert phrase in answer, answer


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            check_optimizer(name, folder)
        check_values(folder)
        check_model_files(folder)
        assert not [f for f in os.listdir(folder) if f.endswith(".tmp")]
    print("all equal")


if __name__ == "__main__":
    main()
