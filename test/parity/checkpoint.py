"""Checks that ddp::Checkpoint and torch.save can read each other's files. See
checkpoint.cpp.
"""

import argparse
import collections
import io
import os
import subprocess
import warnings

import numpy
import torch

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


class Program:
    """A process that makes all calls, because its start takes longer than a call."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)

    def call(self, *arguments):
        """Returns the exit code and the output."""
        self.process.stdin.write("\t".join(("checkpoint", *arguments)) + "\n")
        self.process.stdin.flush()
        output = ""
        for line in self.process.stdout:
            if line.startswith("exit "):
                return int(line.split()[1]), output.removesuffix("\n")
            output += line
        raise AssertionError(f"{arguments}: {output}")

    def run(self, *arguments):
        """Returns the output of a call that succeeds."""
        code, output = self.call(*arguments)
        assert code == 0, (arguments, output)
        return output

    def close(self):
        self.process.communicate()


def make_scaler():
    return torch.amp.GradScaler(
        "cpu", init_scale=2.0**10, growth_factor=4.0, growth_interval=4)


def train(net, optimizer, batches, scaler):
    for batch in batches:
        optimizer.zero_grad()
        scaler.scale(net(batch).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def assert_close(ours, theirs, what):
    """Checks equality except for rounding by the optimizer's order of
    operations."""
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


def check_optimizer(program, name, folder):
    """Python trains, C++ resumes, Python resumes."""
    torch.manual_seed(3)
    batches = [torch.randn(8, 1, 6, 6) for _ in range(9)]
    torch.save(batches[3:6], f"{folder}/data.pt")
    net = Net()
    optimizer = make_optimizer(name, net.parameters())
    scaler = make_scaler()
    train(net, optimizer, batches[:3], scaler)
    state = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "epoch": 1,
        "step": 3,
        "rng": torch.get_rng_state(),
        "args": argparse.Namespace(lr=0.1),
    }
    torch.save(state, f"{folder}/a.pt")
    drawn = program.run("train", name, f"{folder}/data.pt", f"{folder}/a.pt",
                        f"{folder}/b.pt")

    ours = torch.load(f"{folder}/b.pt")  # weights_only is the default
    train(net, optimizer, batches[3:6], scaler)
    assert (ours["epoch"], ours["step"]) == (2, 6), ours
    assert_close(ours["model"], dict(net.state_dict()), "model")
    assert ours["scaler"] == scaler.state_dict(), ours["scaler"]
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
    resumed_scaler = torch.amp.GradScaler("cpu")
    resumed_scaler.load_state_dict(ours["scaler"])
    train(resumed, resumed_optimizer, batches[6:], resumed_scaler)
    train(net, optimizer, batches[6:], scaler)
    assert resumed_scaler.state_dict() == scaler.state_dict()
    assert_close(
        dict(resumed.state_dict()), dict(net.state_dict()), f"{name} resumed"
    )


def check_lbfgs(program, folder):
    """A file with the state of LBFGS is one error."""
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters())
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                "scaler": make_scaler().state_dict()}, f"{folder}/a.pt")
    code, output = program.call("train", "sgd", f"{folder}/data.pt",
                                f"{folder}/a.pt", f"{folder}/b.pt")
    assert code != 0
    assert "its optimizer is LBFGS" in output, output


def all_dtypes():
    """Returns a tensor of each dtype that torch.save supports, with arbitrary
    bits."""
    dtypes = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    tensors = {}
    for dtype in sorted(dtypes, key=str):
        if str(dtype).startswith(("torch.qint", "torch.quint")):
            continue  # see check_refusals
        bits = torch.arange(1, 33, dtype=torch.uint8) * 37 % 251
        try:
            tensor = (bits % 2).bool() if dtype == torch.bool else bits.view(
                dtype)
            torch.save(tensor, io.BytesIO())
        except Exception:  # PyTorch cannot save the value either
            continue
        tensors[str(dtype)] = tensor
    assert len(tensors) > 20, tensors.keys()
    return tensors


def same(ours, theirs, what):
    """Checks that two values are bitwise equal and have the same types."""
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype, what
        assert ours.shape == theirs.shape, what
        assert ours.stride() == theirs.stride(), what
        assert ours.storage_offset() == theirs.storage_offset(), what
        assert ours.is_conj() == theirs.is_conj(), what
        assert ours.is_neg() == theirs.is_neg(), what
        a, b = ours.untyped_storage(), theirs.untyped_storage()
        assert bytes(a) == bytes(b), what
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), what
        for key, value in zip(ours, theirs.values()):
            same(ours[key], value, f"{what}/{key}")
    elif isinstance(theirs, (list, tuple)):
        assert isinstance(ours, list) == isinstance(theirs, list), what
        assert len(ours) == len(theirs), what
        for i, (a, b) in enumerate(zip(ours, theirs)):
            same(a, b, f"{what}/{i}")
    else:
        assert type(ours) is type(theirs), what
        assert ours == theirs or ours != ours and theirs != theirs, what


def all_values():
    base = torch.arange(24.0).reshape(2, 3, 4)
    complex_base = torch.randn(2, 3, dtype=torch.complex64)
    return {
        "dtypes": all_dtypes(),
        "conjugate": complex_base.conj(),
        "negative": torch.randn(2, 3, dtype=torch.complex64).conj().imag,
        "both": complex_base.conj().neg(),
        "conjugate half": complex_base.to(torch.complex32).conj(),
        "its base": complex_base,
        "counter": collections.Counter("abca"),
        "default": collections.defaultdict(list, a=[1]),
        "complex": [1j, complex(-0.0, float("inf"))],
        "floats": [0.1, -0.0, float("inf"), float("nan")],
        "deep": deep_tuple(400),
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


def deep_tuple(depth):
    value = ()
    for _ in range(depth):
        value = (value,)
    return value


def without_check_sums(value, path):
    torch.serialization.set_crc32_options(False)
    torch.save(value, path)
    torch.serialization.set_crc32_options(True)


WRITERS = {
    **{
        f"protocol {protocol}": lambda value, path, protocol=protocol:
            torch.save(value, path, pickle_protocol=protocol)
        for protocol in (2, 3, 4, 5)
    },
    "without check sums": without_check_sums,
}


def check_values(program, folder):
    """C++ reads the values that torch.save writes, and writes files for
    Python."""
    values = all_values()
    for name, write in WRITERS.items():
        write(values, f"{folder}/values.pt")
        program.run("copy", f"{folder}/values.pt", f"{folder}/copy.pt")
        copy = torch.load(f"{folder}/copy.pt")
        same(copy, values, name)
        copy["whole"][0, 1, 0] = 100
        assert copy["part"][0, 0, 0] == 100, "shared memory was torn apart"
        copy["its base"][1, 2] = 3 + 4j
        assert copy["conjugate"][1, 2] == 3 - 4j, name


class Scaled(torch.Tensor):
    pass


def check_refusals(program, folder):
    """Other values are opaque: C++ refuses to copy them."""
    contained = []
    contained.append(contained)
    quantized = torch.quantize_per_tensor(
        torch.ones(3), 0.1, 10, torch.quint8)
    cases = {
        "_rebuild_sparse_tensor": torch.eye(3).to_sparse(),
        "_rebuild_sparse_tensor ": torch.eye(3).to_sparse_csr(),
        "_rebuild_qtensor": quantized,
        "_rebuild_meta_tensor_no_storage": torch.ones(2, device="meta"),
        "_rebuild_nested_tensor": torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)]),
        "Scaled": torch.ones(3).as_subclass(Scaled),
        "contains itself": contained,
        "a Python object of int": 2**64,
        "set": {1, 2},
        "numpy": numpy.ones(3),
        "numpy ": numpy.float64(0.1),
        "FloatStorage": torch.ones(3).storage(),
        "torch.float32": torch.float32,
        "a key that is no int": {(1, 2): 3},
        "a key that is no int ": {None: 3},
        "a key that is no int  ": {float("nan"): 3},
        "Namespace": argparse.Namespace(a=1),
    }
    expected = []
    paths = []
    for name, write in WRITERS.items():
        for phrase, value in cases.items():
            paths.append(f"{folder}/no{len(paths)}.pt")
            expected.append((name, phrase.strip()))
            write({"x": value}, paths[-1])
    answers = program.run("copies", *paths).splitlines()
    assert len(answers) == len(expected), answers
    for answer, (name, phrase) in zip(answers, expected):
        assert answer.startswith("Cannot ") and phrase in answer, (name, answer)


def check_model_files(program, folder):
    """Every model file of Python loads, or the error explains why not."""
    net = Net()
    prefixed = {f"module.{k}": v for k, v in net.state_dict().items()}
    sparse = net.state_dict()
    sparse["fc.weight"] = sparse["fc.weight"].to_sparse()
    wide = net.state_dict() | {"fc.bias": torch.ones(4)}
    twice = {f"module.{k}": v for k, v in prefixed.items()}
    old = {"_use_new_zipfile_serialization": False}
    conversion = ["before PyTorch 1.6", "torch.save(torch.load(path), path)"]
    cases = [
        (twice, {}, []),
        ({"model": "name of the net", "state_dict": prefixed}, {}, []),
        (net.state_dict(), {}, []),
        ({"model": net.state_dict()}, {}, []),
        ({"state_dict": prefixed, "args": argparse.Namespace(a=1)}, {}, []),
        (dict(net.named_parameters()) | dict(net.named_buffers()), {}, []),
        (net, {}, [f"object of {__name__}.Net", "save model.state_dict()"]),
        ([1, 2], {}, ["expected a state dict, but got a list"]),
        ({"model": net}, {}, [f"object of {__name__}.Net under model"]),
        ({"x": 1}, {}, ["a int under x"]),
        (wide, {}, ['"fc.bias": expected shape [3], but got [4]']),
        (sparse, {}, ["_rebuild_sparse_tensor under fc.weight"]),
        (Net().half().state_dict(), {}, []),
        ({k: v.long() for k, v in net.state_dict().items()}, {},
         ["dtype Float, but got Long"]),
        (net.state_dict(), old, conversion),
        (net.state_dict(), old | {"pickle_protocol": 4}, conversion),
        (net.state_dict(), {"pickle_protocol": 4}, []),
        (net.state_dict(), {"pickle_protocol": 5}, []),
        (net.state_dict(), {"pickle_protocol": 1}, ["protocol 0 or 1"]),
    ]
    paths = [f"{folder}/model{i}.pt" for i in range(len(cases))]
    for path, (content, options, _) in zip(paths, cases):
        torch.save(content, path, **options)
    answers = program.run("fit", *paths).splitlines()
    assert len(answers) == len(cases), answers
    for path, answer, (_, _, phrases) in zip(paths, answers, cases):
        if not phrases:
            assert answer == "fits", answer
        for phrase in phrases:
            assert answer.startswith(f"Cannot load {path}: "), answer
            assert phrase in answer, answer


def negative_view(tensor):
    """Returns -tensor, as a view with the negative bit."""
    view = torch.complex(torch.zeros_like(tensor), tensor).conj().imag
    assert view.is_neg()
    return view


def check_habits(program, folder):
    """Typical contents of Python checkpoints besides plain tensors."""
    net = Net()
    optimizer = make_optimizer("adam", net.parameters())
    scaler = make_scaler()
    train(net, optimizer, [torch.randn(8, 1, 6, 6)], scaler)
    model = net.state_dict()
    state = optimizer.state_dict()
    model["fc.weight"] = negative_view(model["fc.weight"])
    state["state"][2]["exp_avg"] = negative_view(state["state"][2]["exp_avg"])
    state["param_groups"][0]["betas"] = (0, 0.9)
    scaling = scaler.state_dict() | {"scale": torch.tensor(512.0)}
    torch.save({"model": model, "optimizer": state, "scaler": scaling},
               f"{folder}/habits.pt")
    torch.save([], f"{folder}/none.pt")
    program.run("train", "adam", f"{folder}/none.pt", f"{folder}/habits.pt",
                f"{folder}/resumed.pt")
    ours = torch.load(f"{folder}/resumed.pt")
    assert torch.equal(ours["model"]["fc.weight"], model["fc.weight"])
    for i, fields in state["state"].items():
        for key, value in fields.items():
            mine = ours["optimizer"]["state"][i][key]
            assert torch.equal(mine, value), (i, key)
    assert ours["scaler"] == scaler.state_dict() | {"scale": 512.0}, ours
    group, = ours["optimizer"]["param_groups"]
    assert (group["lr"], group["betas"]) == (0.01, (0.0, 0.9)), group


def check(path, folder):
    program = Program(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            check_optimizer(program, name, folder)
        check_lbfgs(program, folder)
        check_values(program, folder)
        check_refusals(program, folder)
        check_model_files(program, folder)
        check_habits(program, folder)
    program.close()
    assert not [f for f in os.listdir(folder) if f.endswith(".tmp")]
