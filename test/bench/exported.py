"""The forward of a transformer of some 80 operators as an ExportedModule, by TorchScript in
C++, and in Python: one thread, training mode without dropout.

Each round runs a block of every way, in one order in even rounds and in reverse
order in odd rounds (ABBA).
"""

import argparse
import os
import sys
import tempfile
import time
import warnings

import torch

from tables import format_interval, format_ratio, print_table
from worker import Workers, measure

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                                "exported"))
from zoo import ZOO  # noqa: E402

STEPS = 100  # per block


class Python:
    """The module itself, used as `Workers`."""

    def __init__(self, module, inputs):
        self.module, self.inputs = module, inputs

    def run(self, _, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self.module(*self.inputs)
        return (time.perf_counter() - start) / steps * 1000

    def close(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    module, draw, _ = ZOO["transformer"]()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    inputs = draw()
    with tempfile.TemporaryDirectory() as folder:
        exported, script = f"{folder}/net.pt2", f"{folder}/net.pt"
        program = torch.export.export(module, inputs)
        torch.export.save(program, exported)
        torch.jit.save(torch.jit.trace(module, inputs, check_trace=False), script)
        worker = Workers([f"{arguments.build}/bench_exported", exported, script])
        times = measure({"ExportedModule": (worker, "exported"),
                         "TorchScript": (worker, "torchscript"),
                         "Python": (Python(module, inputs), "")},
                        arguments.rounds, STEPS)
    calls = sum(node.op == "call_function" for node in program.graph.nodes)
    print_table(
        f"Forward of a transformer of {calls} operators, {arguments.rounds} rounds",
        ["way", "us", "ExportedModule / way"],
        [[name, format_interval([1000 * value for value in values], 0),
          format_ratio(times["ExportedModule"], values)]
         for name, values in times.items()])


if __name__ == "__main__":
    main()
