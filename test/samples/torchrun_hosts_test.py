"""Jobs of torchrun on several hosts meet again after a restart.

Two real agents on this machine, and workers with the variables of agents whose
number changes. The store is torchrun's, which outlives the attempts, or rank
0's.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta

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


class TwoAgents(unittest.TestCase):
    def run_agents(self, **variables):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "worker.sh")
            with open(script, "w", encoding="utf-8") as file:
                file.write(WORKER)
            agents = [
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run",
                     "--nnodes=2", "--nproc-per-node=2", "--max-restarts=3",
                     "--monitor-interval=0.2", "--rdzv-backend=c10d",
                     f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                     "--no-python", "sh", script,
                     os.path.join(folder, "has_ended"), HELLO],
                    env=dict(os.environ, HOST_NAME=host, OMP_NUM_THREADS="1",
                             **variables),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True)
                for host in ("A", "B")]
            deadline = time.monotonic() + PATIENCE
            while (time.monotonic() < deadline
                   and any(agent.poll() is None for agent in agents)):
                time.sleep(0.1)
            codes = [agent.poll() for agent in agents]
            for agent in agents:
                agent.terminate()  # an agent ends its workers
            time.sleep(0 if codes == [0, 0] else 5)
            outputs = end(agents)
        self.assertEqual(codes, [0, 0], "\n".join(outputs))
        self.assertIn("exitcode: 3", outputs[1].replace(" :", ":"))

    def test_a_worker_ends_before_it_joins(self):
        self.run_agents()

    def test_without_the_shared_store(self):
        self.run_agents(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


class ChangingHosts(unittest.TestCase):
    def test_sizes(self):
        import torch.distributed as dist
        store = dist.TCPStore("127.0.0.1", 0, is_master=True,
                              wait_for_workers=False,
                              timeout=timedelta(seconds=5))
        for attempt, hosts in enumerate((3, 2, 3, 2)):
            size = 2 * hosts
            ranks = [
                subprocess.Popen(
                    [HELLO],
                    env=dict(os.environ, RANK=str(rank),
                             WORLD_SIZE=str(size), LOCAL_RANK=str(rank % 2),
                             LOCAL_WORLD_SIZE="2", GROUP_WORLD_SIZE=str(hosts),
                             MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=str(store.port),
                             TORCHELASTIC_USE_AGENT_STORE="True",
                             TORCHELASTIC_RUN_ID="none",
                             # Of the ranks' own agents.
                             TORCHELASTIC_RESTART_COUNT=str(
                                 attempt if rank < 4 else 0),
                             GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    text=True)
                # The highest ranks come first, before rank 0.
                for rank in reversed(range(size))]
            deadline = time.monotonic() + PATIENCE
            while (time.monotonic() < deadline
                   and any(rank.poll() is None for rank in ranks)):
                time.sleep(0.05)
            codes = [rank.poll() for rank in ranks]
            outputs = end(ranks)
            self.assertEqual(codes, [0] * size,
                             f"{hosts} hosts\n" + "\n".join(outputs))


if __name__ == "__main__":
    unittest.main()
