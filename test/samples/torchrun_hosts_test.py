"""Jobs of torchrun on several hosts meet again after a restart.

Two real agents on this machine, and workers with the variables of agents whose
number changes. The store is torchrun's, which outlives the attempts, or rank
0's.
"""

import multiprocessing
import os
import socket
import subprocess
import tempfile
import time
import unittest
from datetime import timedelta

import torch.distributed.run

from jobs import program

HELLO = program("hello")
PATIENCE = 120

# The worker of host B with local rank 1 ends before it joins the first attempt.
WORKER = """
if [ "$HOST_NAME" = B ] && [ "$LOCAL_RANK" = 1 ] && mkdir "$1" 2>/dev/null
then
  sleep 1; exit 3
fi
exec "$2"
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
    return [process.communicate()[0] for process in processes]


# Agents are forks of this process, which need not import torch again.
AGENTS = multiprocessing.get_context("fork")


def run_agent(arguments, output, variables):
    os.environ.update(variables)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.distributed.run.main(arguments)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class TwoAgents(unittest.TestCase):
    def run_agents(self, **variables):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "worker.sh")
            with open(script, "w", encoding="utf-8") as file:
                file.write(WORKER)
            arguments = [
                "--nnodes=2", "--nproc-per-node=2", "--max-restarts=3",
                "--monitor-interval=0.2", "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                "--no-python", "sh", script,
                os.path.join(folder, "has_ended"), HELLO]
            outputs = [os.path.join(folder, host) for host in ("A", "B")]
            agents = [
                AGENTS.Process(target=run_agent, args=(
                    arguments, output,
                    dict(HOST_NAME=host, OMP_NUM_THREADS="1", **variables)))
                for host, output in zip(("A", "B"), outputs)]
            for agent in agents:
                agent.start()
            deadline = time.monotonic() + PATIENCE
            for agent in agents:
                agent.join(max(0, deadline - time.monotonic()))
            codes = [agent.exitcode for agent in agents]
            for agent in agents:
                agent.terminate()  # an agent ends its workers
            for agent in agents:
                agent.join(5)
                agent.kill()
                agent.join()
            outputs = [read(output) for output in outputs]
        self.assertEqual(codes, [0, 0], "\n".join(outputs))
        self.assertIn("exitcode: 3", outputs[1].replace(" :", ":"))

    def test_a_worker_ends_before_it_joins(self):
        self.run_agents()

    def test_without_the_shared_store(self):
        self.run_agents(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


class ChangingHosts(unittest.TestCase):
    def test_sizes(self):
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True,
                              wait_for_workers=False,
                              timeout=timedelta(seconds=5))
        for attempt, hosts in enumerate((3, 2, 3)):
            ranks = [
                subprocess.Popen(
                    [HELLO],
                    env=dict(os.environ, RANK=str(rank),
                             WORLD_SIZE=str(hosts), LOCAL_RANK="0",
                             LOCAL_WORLD_SIZE="1", GROUP_WORLD_SIZE=str(hosts),
                             MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=str(store.port),
                             TORCHELASTIC_USE_AGENT_STORE="True",
                             TORCHELASTIC_RUN_ID="none",
                             # Of the ranks' own agents.
                             TORCHELASTIC_RESTART_COUNT=str(
                                 attempt if rank < 2 else 0),
                             GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True)
                # The highest ranks come first, before rank 0.
                for rank in reversed(range(hosts))]
            deadline = time.monotonic() + PATIENCE
            while (time.monotonic() < deadline
                   and any(rank.poll() is None for rank in ranks)):
                time.sleep(0.05)
            codes = [rank.poll() for rank in ranks]
            outputs = end(ranks)
            self.assertEqual(codes, [0] * hosts,
                             f"{hosts} hosts\n" + "\n".join(outputs))


if __name__ == "__main__":
    unittest.main()
