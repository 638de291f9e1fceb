"""Hosts with networks of their own, connected by cables to a switch. Cables can be cut."""

import os
import signal
import subprocess

import sandbox as machine


class Switch:
    def __init__(self, count):
        self.networks = []
        self._do("ip link add switch type bridge; ip link set switch up")
        for host in range(count):
            holder = os.fork()
            if holder == 0:
                machine.system("unshare", machine.CLONE_NEWNET)
                signal.pause()
            while os.readlink(f"/proc/{holder}/ns/net") == os.readlink(
                    "/proc/self/ns/net"):
                pass
            self._do(
                f"ip link add port{host} type veth peer name cable{host};"
                f"ip link set cable{host} netns {holder};"
                f"ip link set port{host} master switch up")
            self.networks.append(os.open(f"/proc/{holder}/ns/net", os.O_RDONLY))
            self.inside(host, f"ip link set lo up; ip link set cable{host} up;"
                        f"ip address add {self.address(host)}/24 dev cable{host}")
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)

    @staticmethod
    def address(host):
        return f"10.77.0.{host + 1}"

    def _do(self, command, setup=None):
        subprocess.run(["sh", "-ec", command], check=True, preexec_fn=setup,
                       stdout=subprocess.DEVNULL)

    def enter(self, host):
        return lambda: machine.system("setns", self.networks[host],
                                      machine.CLONE_NEWNET)

    def inside(self, host, command):
        self._do(command, self.enter(host))

    def cut(self, host, way):
        if way == "silence":  # no packets pass, without an error
            self._do(f"ip link set port{host} nomaster")
        elif way == "half":  # it only receives
            for other in range(len(self.networks)):
                if other != host:
                    self.inside(host, f"ip neigh replace {self.address(other)} "
                                "lladdr 02:00:00:00:00:99 nud permanent "
                                f"dev cable{host}")
        elif way == "down":
            self._do(f"ip link set port{host} down")
        elif way == "slow":  # 56 kbit/s
            self.inside(host, f"tc qdisc replace dev cable{host} root tbf "
                        "rate 56kbit burst 4000 latency 500ms")
        elif way == "reset":  # its connections end, on both sides
            self.inside(host, "ss -K dst 10.77.0.0/24 2>/dev/null")

    def shape(self, host, gigabits):
        """Limits what it sends to this many Gbit/s."""
        self.inside(host, f"tc qdisc replace dev cable{host} root tbf "
                    f"rate {gigabits}gbit burst 256kb latency 50ms")

    def lose(self, host, percent):
        """Drops this share of its packets at random, in both directions."""
        self.inside(host, "nft add table inet loss")
        for way, name in ("input", "iifname"), ("output", "oifname"):
            self.inside(host, f"nft add chain inet loss {way} "
                        f"'{{ type filter hook {way} priority 0; }}';"
                        f"nft add rule inet loss {way} {name} != lo "
                        f"numgen random mod 100 '<' {percent} drop")

    def heal(self, host, way):
        if way == "silence":
            self._do(f"ip link set port{host} master switch")
        elif way == "half":
            self.inside(host, f"ip neigh flush nud permanent dev cable{host}")
        elif way == "down":
            self._do(f"ip link set port{host} up")

    def close(self):
        for host, network in enumerate(self.networks):
            os.close(network)
            # The port may still exist after its network.
            self._do(f"ip link delete port{host} 2>/dev/null || true")
        self._do("ip link delete switch")
