"""Measures the rendezvous of hosts over the loopback interface.

The coordinator has a process of its own; all other hosts are in a second
process. Both share the cores of this machine, so the time of the rendezvous is
that of all hosts together. The coordinator's part is its CPU time.
"""

import argparse
import subprocess

from tables import median_interval, print_table

HOSTS = (10, 30, 100, 300, 1000)
EVENTS = {0: "all hosts meet", 5: "one host is replaced"}  # by column
TIMEOUT = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the programs")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--csv", metavar="FILE",
                        help="each round's times, for scripts/plot")
    arguments = parser.parse_args()
    rounds = {hosts: [] for hosts in HOSTS}
    for _ in range(arguments.rounds):
        for hosts in HOSTS:
            text = subprocess.run(
                [f"{arguments.build}/bench_hosts", str(hosts)], check=True,
                stdout=subprocess.PIPE, text=True, timeout=TIMEOUT).stdout
            rounds[hosts].append([float(number) for number in text.split()])

    if arguments.csv:
        with open(arguments.csv, "w") as file:
            file.write("hosts,event,ms\n")
            for hosts, found in rounds.items():
                for numbers in found:
                    for column, event in EVENTS.items():
                        file.write(f"{hosts},{event},{numbers[column]}\n")

    def cells(column, form="{:.1f} [{:.1f}, {:.1f}]"):
        return [form.format(*median_interval(
            [numbers[column] for numbers in rounds[hosts]])) for hosts in HOSTS]

    print_table(f"Hosts that meet, {arguments.rounds} rounds",
                ["hosts", *map(str, HOSTS)],
                [["until all have their world, ms", *cells(0)],
                 ["the coordinator's CPU, ms", *cells(1)],
                 ["messages a host, both ways", *cells(2, "{:.1f}")],
                 ["bytes a host, both ways", *cells(3, "{:.0f}")],
                 ["memory of the coordinator, KiB", *cells(4, "{:.0f}")],
                 ["one leaves, another comes: next world, ms", *cells(5)],
                 ["the coordinator's CPU, ms", *cells(6)]])


if __name__ == "__main__":
    main()
