"""Exported models train in C++ as the modules do in Python: losses, parameters and
buffers are equal bit for bit, and Python loads what C++ saves.

    python zoo_test.py --program TRAIN_EXPORTED [NAME...]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from zoo import ZOO  # noqa: E402

STEPS = 20
TIMEOUT = 300  # seconds


def loss_of(out):
    return sum(leaf.abs().square().float().mean()
               for leaf in torch.utils._pytree.tree_leaves(out))


def step_loss(name, module, inputs):
    if name != "energy":
        return loss_of(module(*inputs))
    positions = inputs[0].requires_grad_()
    energy = module(positions)
    forces, = torch.autograd.grad(energy, positions, create_graph=True)
    return energy.square() + forces.square().mean()


def train(name, module, all_inputs):
    # LibTorch's own SGD rounds the momentum of bfloat16 in another way.
    momentum = 0 if name == "bfloat16" else 0.9
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=momentum)
    losses = []
    module.train()
    torch.manual_seed(1)
    for inputs in all_inputs[:STEPS]:
        optimizer.zero_grad()
        loss = step_loss(name, module, inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    module.eval()
    losses.append(step_loss(name, module, all_inputs[STEPS]).item())
    return losses


def run(name, program, folder):
    """Returns the differences, as texts."""
    torch.manual_seed(0)
    module, draw, shapes = ZOO[name]()
    all_inputs = [draw() for _ in range(STEPS + 1)]
    kwargs = {"scale": 2.0, "extra": None} if name == "nested" else {}
    if name == "nested":
        shapes = None
    module.train()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    exported = torch.export.export(module, all_inputs[0], kwargs, dynamic_shapes=shapes)
    module.load_state_dict(state)
    path = os.path.join(folder, name + ".pt2")
    torch.export.save(exported, path)
    leaves = {f"{step}.{number}": leaf
              for step, inputs in enumerate(all_inputs)
              for number, leaf in enumerate(torch.utils._pytree.tree_leaves(inputs))}
    torch.save(leaves, path + ".inputs")
    expected = train(name, module, [
        torch.utils._pytree.tree_map(torch.Tensor.detach, inputs)
        for inputs in all_inputs])
    done = subprocess.run([program, name, path, str(STEPS)], capture_output=True,
                          text=True, timeout=TIMEOUT,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        return [f"exit code {done.returncode}: {done.stderr}"]
    found = []
    losses = [float(line) for line in done.stdout.split()]
    for step, (mine, theirs) in enumerate(zip(expected, losses, strict=True)):
        if mine != theirs:
            found.append(f"loss of step {step}: {mine!r} in Python, {theirs!r} in C++")
            break
    trained = torch.load(path + ".trained")
    for key, value in [*module.named_parameters(), *module.named_buffers()]:
        if key not in trained:
            found.append(f"{key} is missing")
        elif not torch.equal(trained[key], value):
            found.append(f"{key} differs")
    saved = torch.export.load(path + ".saved.pt2")
    for key, value in module.state_dict().items():
        if not torch.equal(saved.state_dict[key], value):
            found.append(f"{key} differs in the saved file")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("names", nargs="*", default=list(ZOO))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            found = run(name, arguments.program, folder)
            print(f"{name}: {'equal' if not found else '; '.join(found)}", flush=True)
            failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
