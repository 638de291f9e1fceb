"""Measures the rendezvous of hosts by a real etcd on the loopback interface.

Each host is a process. All processes share the cores of this machine, so the
times are those of all hosts together.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from tables import median_interval, print_table

HOSTS = (10, 100, 1000)
TIMEOUT = 600


class Etcd:
    """An etcd server that only this benchmark uses."""

    def __init__(self, folder):
        ports = []
        for _ in range(2):
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                ports.append(one.getsockname()[1])
        self.port = ports[0]
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", folder, "--name", "bench",
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"bench={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end:
                    self.close()
                    sys.exit("Expected etcd to listen within 30 s")
                time.sleep(0.05)

    def counts(self):
        """Returns, since the start of the server: CPU time in ms, the number
        of calls and watches started, and the bytes in both directions."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
        cpu_ms = (int(user) + int(system)) * 1000 / os.sysconf("SC_CLK_TCK")
        with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()

        def total(*names):
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                       if line.split("{")[0].split(" ")[0] in names)

        return [cpu_ms, total("grpc_server_started_total"),
                total("etcd_network_client_grpc_received_bytes_total",
                      "etcd_network_client_grpc_sent_bytes_total")]

    def close(self):
        self.process.kill()
        self.process.wait(TIMEOUT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not shutil.which("etcd"):
        sys.exit("Expected etcd in PATH, but there is none: install etcd-server")
    rounds = {hosts: [] for hosts in HOSTS}
    with tempfile.TemporaryDirectory() as folder:
        etcd = Etcd(folder)
        try:
            for i in range(arguments.rounds):
                for hosts in HOSTS:
                    before = etcd.counts()
                    text = subprocess.run(
                        [f"{arguments.build}/bench_etcd", str(etcd.port),
                         f"job{hosts}-{i}", str(hosts)], check=True,
                        stdout=subprocess.PIPE, text=True,
                        timeout=TIMEOUT).stdout
                    cpu_ms, calls, size = (
                        after - one for one, after in
                        zip(before, etcd.counts()))
                    rounds[hosts].append(
                        [*map(float, text.split()), cpu_ms, calls / hosts,
                         size / hosts])
        finally:
            etcd.close()

    def cells(column, form="{:.0f} [{:.0f}, {:.0f}]"):
        return [form.format(*median_interval(
            [numbers[column] for numbers in rounds[hosts]])) for hosts in HOSTS]

    print_table(f"Hosts that meet by etcd, {arguments.rounds} rounds",
                ["hosts", *map(str, HOSTS)],
                [["until all have their world, ms", *cells(0)],
                 ["the coordinator's host is lost, another comes: next world, "
                  "ms", *cells(1)],
                 ["etcd's CPU for both, ms", *cells(4)],
                 ["calls of etcd a host, for both", *cells(5, "{:.1f}")],
                 ["their bytes a host, both ways", *cells(6, "{:.0f}")],
                 ["memory of the coordinator's process, KiB",
                  *cells(2, "{:.0f}")],
                 ["memory of another host's process, KiB", *cells(3, "{:.0f}")]])


if __name__ == "__main__":
    main()
