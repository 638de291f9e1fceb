"""Checks that ddp::Checkpoint::save_sharded and torch.distributed.checkpoint
with the files of HuggingFace can read each other's folders, bit for bit. See
sharded_checkpoint.cpp.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
NAMES = ["adamw", "sgd"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 133, 5)
        self.bn = torch.nn.BatchNorm2d(133)
        self.fc = torch.nn.Linear(133, 133)
        self.tied = self.fc.weight
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        return torch.nn.functional.linear(self.fc(x), self.tied) * self.scale


def make_optimizer(name, net):
    if name == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def tensors_of(net, optimizer):
    """Returns what the folder has of a model and its optimizer, and the flat
    state of the optimizer."""
    state = get_optimizer_state_dict(net, optimizer, options=FLAT)
    tensors = {key: value for key, value in state.items()
               if isinstance(value, torch.Tensor)}
    return {**get_model_state_dict(net), "optimizer": tensors}, state


def assert_equal(actual, expected, where):
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), (where, actual.keys())
        for key, value in expected.items():
            assert_equal(actual[key], value, f"{where}.{key}")
    else:
        assert actual.dtype == expected.dtype, where
        assert torch.equal(actual, expected), where


def check_ours(folder):
    """Python reads the folders of 3 ranks, and resumes."""
    for name in NAMES:
        expected = torch.load(f"{folder}/{name}.pt")
        net = Net()
        optimizer = make_optimizer(name, net)
        tensors, state = tensors_of(net, optimizer)
        dcp.load(tensors, no_dist=True,
                 storage_reader=dcp.HuggingFaceStorageReader(
                     f"{folder}/{name}"))
        set_optimizer_state_dict(
            net, optimizer, {**state, **tensors.pop("optimizer")}, options=FLAT)
        set_model_state_dict(net, tensors)
        assert_equal(net.state_dict(), expected["model"], name)
        ids = {id(parameter): number for number, parameter
               in enumerate(optimizer.param_groups[0]["params"])}
        assert len(ids) == len(expected["optimizer"]["state"]), name
        # The order of the parameters may differ.
        names = [key for key, _ in Net().named_parameters()]
        theirs = [names.index(key) for key, _ in net.named_parameters()]
        assert_equal(
            {number: optimizer.state_dict()["state"][number]
             for number in theirs},
            expected["optimizer"]["state"], name)
        rest = torch.load(f"{folder}/{name}/training.pt")
        assert rest["optimizer"]["param_groups"] == (
            expected["optimizer"]["param_groups"]), name


def save_theirs(rank, world, folder):
    """Two ranks of fully_shard train and save."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store",
                            rank=rank, world_size=world)
    for name in NAMES:
        torch.manual_seed(5)
        net = Net()
        fully_shard(net)
        optimizer = make_optimizer(name, net)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(2, 3, 8, 8)).square().mean().backward()
            optimizer.step()
        tensors, _ = tensors_of(net, optimizer)
        tensors.pop("tied")  # Python's writer refuses a second name
        # One of the folders has the prefix "model.".
        if name == "sgd":
            optimizer_tensors = tensors.pop("optimizer")
            tensors = {"model": tensors, "optimizer": optimizer_tensors}
        dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(
            f"{folder}/{name}", save_distributed=True))
        whole, _ = tensors_of(net, optimizer)

        def full(value):
            if isinstance(value, dict):
                return {key: full(item) for key, item in value.items()}
            return value.full_tensor() if hasattr(value, "full_tensor") else value

        whole = full(whole)
        if rank == 0:
            torch.save(whole, f"{folder}/{name}.pt")
    dist.destroy_process_group()


def check_theirs(folder, out):
    """The files that ours wrote after loading the folders of fully_shard."""
    parameters = [key for key, _ in Net().named_parameters()]
    for name in NAMES:
        ours = torch.load(f"{out}/{name}.pt")
        expected = torch.load(f"{folder}/{name}.pt")
        states = {f"state.{parameters[number]}.{key}": value
                  for number, state in ours["optimizer"]["state"].items()
                  for key, value in state.items()}
        assert_equal(states, expected.pop("optimizer"), name)
        assert_equal(dict(ours["model"]), dict(expected), name)


def check(run_ranks, program, folder):
    """run_ranks(command, world): runs a command as the ranks of a job."""
    ours, theirs = (f"{folder}/{name}" for name in ("ours", "theirs"))
    os.mkdir(ours)
    os.mkdir(theirs)
    # First, because the other checks train in this process.
    torch.multiprocessing.start_processes(
        save_theirs, (2, theirs), 2, start_method="fork")
    run_ranks([program, "sharded_checkpoint", "save", ours], 3)
    check_ours(ours)
    for world in 1, 3:
        out = f"{folder}/out{world}"
        os.mkdir(out)
        run_ranks([program, "sharded_checkpoint", "load", theirs, out], world)
        check_theirs(theirs, out)
