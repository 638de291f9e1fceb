"""Exported models train in C++ as the modules do in Python: losses, parameters and
buffers are equal bit for bit, in one process and on two ranks under Python's DDP, ours
and FullyShardedDataParallel. On four ranks, which are added in another order, they are close. Python loads
what C++ saves. Without --all the test trains 40 models, and a few of them on two ranks.

The models of PROGRAMS are compared with the program that torch.export.load reads,
under SGD and AdamW. In C++ they are converted to double and back after a step, and
a clone makes the last step.

    python zoo_test.py --program TRAIN_EXPORTED [--ranks N] [--all]
        [--seed S] [NAME...]
"""

import argparse
import faulthandler
import os
import re
import subprocess
import sys
import tempfile
import warnings

import torch
from torch.utils._pytree import tree_leaves, tree_map

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import families  # noqa: E402,F401
import shared_state  # noqa: E402,F401
from programs import PROGRAMS  # noqa: E402
from zoo import EVAL_PROGRAMS, ZOO  # noqa: E402
from zoo_guards import TRAINED  # noqa: E402
from zoo_modes import MODES, UNKNOWN  # noqa: E402
from zoo_numbers import NUMBERS  # noqa: E402

STEPS = 20
COUNTS = (1, 2, 4)  # of ranks
PROGRAMS.update(TRAINED)
TIMEOUT = 300  # seconds for all models on one number of ranks
CLOSE = 1e-6
ALL = {**ZOO, **NUMBERS, **MODES}  # several ranks train those of ZOO alone
PROGRAM_STEPS = 5
OPTIMIZERS = ("sgd", "adamw")
# Neither Python nor C++ trains these.
REFUSED = {"expanded_parameter": "refers to a single memory location"}
# The models of each run of the tests; --all adds the others.
USUAL = (
    "residual", "lstm", "transformer", "gpt", "unet", "graph_net", "fourier", "vae",
    "written_buffers", "cond", "autocast", "bfloat16", "literal_device", "energy", "nested",
    "frozen", "shared_memory", "two_programs", "mlp",
    "times_size", "root_of_size", "number_of_items", "narrow", "scalars", "chosen", "compared",
    "instance_norms", "distant_dropout", "asked_dropout", "dropout_layers", "attention_layer",
    "transposed", "tied_and_transposed", "two_over_one_memory", "overlapping_parameters",
    "average_over_weight", "slices_of_buffers", "expanded_parameter", "vision_transformer",
    "rotary")
# Models of USUAL that two ranks train.
USUAL_ON_RANKS = ("residual", "transformer", "written_buffers", "cond", "shared_memory")


def loss_of(out):
    return sum(leaf.abs().square().float().mean() for leaf in tree_leaves(out))


def step_loss(name, module, inputs):
    if name != "energy":
        return loss_of(module(*inputs))
    positions = inputs[0].requires_grad_()
    energy = module(positions)
    forces, = torch.autograd.grad(energy, positions, create_graph=True)
    return energy.square() + forces.square().mean()


def make_optimizer(kind, parameters, momentum=0.9):
    if kind == "adamw":
        return torch.optim.AdamW(parameters, 0.01)
    return torch.optim.SGD(parameters, 0.01, momentum=momentum, weight_decay=0.01)


def train(name, module, all_inputs, rank, ranks):
    if rank > 0:  # rank 0's values are broadcast
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1)
    model = torch.nn.parallel.DistributedDataParallel(module) if ranks > 1 else module
    # LibTorch's own SGD rounds the momentum of bfloat16 in another way.
    momentum = 0 if name == "bfloat16" else 0.9
    optimizer = make_optimizer("sgd", module.parameters(), momentum)
    losses = []
    model.train()
    torch.manual_seed(1 + rank)
    for inputs in all_inputs[:STEPS]:
        optimizer.zero_grad()
        loss = step_loss(name, model, inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if ranks > 1:
        # PyTorch's DDP would do so before the next forward, ours has done it.
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)
    module.eval()
    losses.append(step_loss(name, module, all_inputs[STEPS]).item())
    return losses


def make_files(name, path, seed):
    """Exports a model. Returns its state and a list of each rank's inputs."""
    torch.manual_seed(seed)
    module, draw, shapes = ALL[name]()
    all_inputs = [[draw() for _ in range(STEPS + 1)] for _ in range(max(COUNTS))]
    kwargs = {"scale": 2.0, "extra": None} if name == "nested" else {}
    state = {key: value.clone() for key, value in module.state_dict().items()}

    def export(to):
        program = torch.export.export(module, all_inputs[0][0], kwargs,
                                      dynamic_shapes=shapes)
        torch.export.save(program, to)

    if name in EVAL_PROGRAMS or name in UNKNOWN:
        module.eval()
        export(path.replace(".pt2", ".eval.pt2"))
    module.train()
    export(path)
    for rank, inputs in enumerate(all_inputs):
        torch.save({f"{step}.{number}": leaf
                    for step, one in enumerate(inputs)
                    for number, leaf in enumerate(tree_leaves(one))},
                   f"{path}.inputs{rank}")
    return state, [tree_map(torch.Tensor.detach, inputs) for inputs in all_inputs]


def run_rank(rank, ranks, folder, files):
    """Trains all models in Python, and writes their losses and tensors."""
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    # LibTorch makes its pool of threads anew after a fork. If two threads of
    # backward() did that at once, it would abort.
    torch.set_num_threads(1)
    if ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store{ranks}", rank=rank,
            world_size=ranks)
    for name, (state, all_inputs) in files.items():
        module, _, _ = ALL[name]()
        module.load_state_dict(state)
        losses = train(name, module, all_inputs[rank], rank, ranks)
        # Tied parameters are there under each of their names.
        tensors = [*module.named_parameters(remove_duplicate=False),
                   *module.named_buffers(remove_duplicate=False)]
        torch.save((losses, {key: value.detach() for key, value in tensors}),
                   os.path.join(folder, f"{name}.pt2.python{rank}"))
    if ranks > 1:
        # A rank that ends before it has read all messages resets connections.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def differences(name, path, rank, ranks):
    def is_equal(mine, theirs):
        close = 2**-8 if name == "bfloat16" else CLOSE
        return (torch.equal(mine, theirs) if ranks <= 2 else
                torch.allclose(mine, theirs, rtol=close, atol=close))

    losses, tensors = torch.load(f"{path}.python{rank}")
    with open(f"{path}.losses{rank}", encoding="utf-8") as file:
        other_losses = [float(line) for line in file]
    for step, (mine, theirs) in enumerate(zip(losses, other_losses, strict=True)):
        if not is_equal(torch.tensor(mine), torch.tensor(theirs)):
            yield f"loss of step {step}: {mine!r} in Python, {theirs!r} in C++"
            break
    trained = torch.load(f"{path}.trained{rank}")
    saved = torch.export.load(path + ".saved.pt2").state_dict if ranks == 1 else {}
    seen = set()
    for key, value in tensors.items():
        # C++ knows a tied parameter under the first of its names.
        is_alias = value.data_ptr() in seen and value.numel() > 0
        seen.add(value.data_ptr())
        if not is_alias and key not in trained:
            yield f"{key} is missing"
        elif key in trained and not is_equal(trained[key], value):
            yield f"{key} differs"
        if key in saved and not is_equal(saved[key], value):
            yield f"{key} differs in the saved file"


def prepare():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)


def train_in_cpp(program, paths, ranks=1, steps=STEPS, optimizer="sgd"):
    """Returns the error of a training of all models, "" for none."""
    try:
        done = subprocess.run([program, str(steps), str(ranks), optimizer, *paths],
                              text=True, capture_output=True, timeout=TIMEOUT,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired as error:
        return f"no end within {TIMEOUT} s: {error.stderr}"
    return f"exit code {done.returncode}: {done.stderr}" if done.returncode else ""


def check(program, ranks, folder, files):
    """Prints a line for each model that differs. Returns their number."""
    # A fork has the modules that its parent has imported. The parent runs no
    # backward().
    torch.multiprocessing.start_processes(
        run_rank, (ranks, folder, files), ranks, start_method="fork")
    paths = {name: os.path.join(folder, name + ".pt2") for name in files}
    failed = compare(program, paths, ranks, "")
    paths.pop("shared_memory", None)
    return failed + (compare(program, paths, ranks, "s") if ranks > 1 and paths else 0)


def compare(program, paths, ranks, way):
    """As check. The ranks of the way "s" share the parameters, each of which needs
    memory of its own."""
    error = train_in_cpp(program, paths.values(), f"{ranks}{way}")
    if error:
        print(f"{ranks}{way} ranks: {error}", flush=True)
        return 1
    failed = 0
    for name, path in paths.items():
        found = [f"rank {rank}: {one}" for rank in range(ranks)
                 for one in differences(name, path, rank, ranks)]
        if found:
            print(f"{ranks}{way} ranks: {name}: {'; '.join(found)}", flush=True)
            failed += 1
    equal = "equal" if ranks <= 2 else "close"
    print(f"{ranks}{way} ranks: {len(paths) - failed} of {len(paths)} models {equal}",
          flush=True)
    return failed


def check_unknown(program, folder, names):
    """Prints a line for each model that runs in eval() without a program for it.
    Returns their number."""
    failed = 0
    for name in names:
        path = os.path.join(folder, name + ".pt2")
        os.remove(path.replace(".pt2", ".eval.pt2"))
        error = train_in_cpp(program, [path])
        if "Expected an ExportedModuleOptions::eval_program" not in error:
            print(f"{name}: no refusal in eval(), but: {error}", flush=True)
            failed += 1
    return failed


def make_program(name, folder, seed):
    """Exports a model of PROGRAMS for each optimizer. Returns the inputs."""
    torch.manual_seed(seed)
    module, draw, shapes = {**PROGRAMS, **NUMBERS}[name]()
    all_inputs = [draw() for _ in range(PROGRAM_STEPS)]
    program = torch.export.export(module.train(), all_inputs[0],
                                  dynamic_shapes=shapes)
    for optimizer in OPTIMIZERS:
        path = os.path.join(folder, f"{name}.{optimizer}.pt2")
        torch.export.save(program, path)
        torch.save({f"{step}.{number}": leaf for step, one in enumerate(all_inputs)
                    for number, leaf in enumerate(one)}, path + ".inputs0")
    return all_inputs


def train_program(path, optimizer, all_inputs):
    """Trains as train_exported does, whose last step is that of a clone."""
    module = torch.export.load(path).module()
    losses = []
    torch.manual_seed(1)
    for step, inputs in enumerate(all_inputs):
        if step in (0, PROGRAM_STEPS - 1):
            stepper = make_optimizer(optimizer, module.parameters())
        stepper.zero_grad()
        loss = loss_of(module(*inputs))
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    tensors = [*module.named_parameters(remove_duplicate=False),
               *module.named_buffers(remove_duplicate=False)]
    torch.save((losses, {key: value.detach() for key, value in tensors}),
               path + ".python0")


def check_programs(program, folder, names, seed):
    """Prints a line for each model that differs. Returns their number."""
    failed = set()
    inputs = {name: make_program(name, folder, seed) for name in names}
    for optimizer in OPTIMIZERS:
        paths = {name: os.path.join(folder, f"{name}.{optimizer}.pt2")
                 for name in names}
        refusals = {}
        for name in names:
            try:
                train_program(paths[name], optimizer, inputs[name])
            except RuntimeError as refusal:
                refusals[name] = str(refusal)
        cpp = train_in_cpp(program, paths.values(), 1, PROGRAM_STEPS, optimizer)
        for name, path in paths.items():
            refusal = refusals.get(name, "")
            in_cpp = cpp.partition(path + ": ")[2].partition("\n")[0]
            refused = REFUSED.get(name, "^$")
            found = []
            if not (re.search(refused, refusal) and re.search(refused, in_cpp)):
                found = [f"Python: {refusal}", f"C++: {in_cpp}"]
            elif name not in REFUSED:
                found = (differences(name, path, 0, 1)
                         if os.path.exists(path + ".trained0") else [cpp])
            text = "; ".join(found)
            if text:
                print(f"{name}, {optimizer}: {text}", flush=True)
                failed.add(name)
    print(f"{len(names) - len(failed)} of {len(names)} programs equal", flush=True)
    return len(failed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--ranks", type=int, choices=COUNTS, action="append")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = arguments.names or ([*ALL, *PROGRAMS] if arguments.all else USUAL)
    is_usual = names is USUAL
    on_ranks = USUAL_ON_RANKS if is_usual else ZOO
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: make_files(name, os.path.join(folder, name + ".pt2"),
                                  arguments.seed)
                 for name in names if name in ALL}
        failed = sum(check(arguments.program, ranks, folder,
                           {name: file for name, file in files.items()
                            if ranks == 1 or name in on_ranks})
                     for ranks in (arguments.ranks or COUNTS[:2 if is_usual else None])
                     if files)
        failed += check_unknown(arguments.program, folder,
                                [name for name in files if name in UNKNOWN])
        programs = [name for name in names if name in PROGRAMS]
        programs += NUMBERS if arguments.all else []
        if programs:
            failed += check_programs(arguments.program, folder, programs,
                                     arguments.seed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
