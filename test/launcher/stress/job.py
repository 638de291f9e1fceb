"""A job of one or several hosts, each a ddprun of this machine."""

import collections
import dataclasses
import os

import sandbox as machine

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.sh")
BOUND = 30  # seconds; most jobs take a fraction of one
PORT = 29400

Event = collections.namedtuple(
    "Event", "what rank size restarts pid ddprun host port")


@dataclasses.dataclass
class Case:
    """The randomly chosen properties of a job, except for its fault."""
    hosts: int = 1
    workers: int = 1
    restarts: int = 0
    elastic: bool = False
    static: bool = False
    habits: tuple = ()
    has_cgroup: bool = True
    has_little_memory: bool = False

    def arguments(self, host, address):
        options = [f"--nproc-per-node={self.workers}",
                   f"--max-restarts={self.restarts}", "--grace-period=0.3"]
        if self.hosts > 1:
            least = 1 if self.elastic else self.hosts
            options += [
                f"--nnodes={least}:{self.hosts}" if self.elastic
                else f"--nnodes={self.hosts}",
                f"--rdzv-backend={'static' if self.static else 'c10d'}",
                f"--rdzv-endpoint={address}:{PORT}", "--rdzv-id=job",
                "--rdzv-conf=keep_alive_interval=0.5,last_call_timeout=0.3,"
                f"join_timeout=3{'' if self.static else f',is_host={host == 0:d}'}"]
            if self.static:
                options.append(f"--node-rank={host}")
        return [*options, "sh", WORKER, *self.habits]


class Host:
    def __init__(self, box, pid, number, folder):
        self.box, self.pid, self.number, self.folder = box, pid, number, folder

    def watcher(self):
        """Returns None before ddprun starts its watcher, from when on ddprun
        handles signals, and after ddprun's end."""
        for child in machine.children(self.pid):
            try:
                with open(f"/proc/{child}/comm") as file:
                    if file.read() == "ddp-watcher\n":
                        return child
            except OSError:
                pass
        return None

    def status(self):
        """Returns a negative number after a signal, None while ddprun runs."""
        return self.box.statuses.get(self.pid)

    def text(self):
        with open(f"{self.folder}/err", errors="replace") as file:
            return file.read()

    def signal(self, number, pid=None):
        machine.kill(pid or self.pid, number)

    def power_off(self):
        machine.power_off(self.pid)


class Job:
    """Its workers report through a pipe, whose end is the end of all of the job's
    processes, and wait until another pipe is closed."""

    def __init__(self, box, case, ddprun, number, address="127.0.0.1",
                 setups=()):
        self.box, self.case, self.ddprun = box, case, ddprun
        self.address, self.setups = address, setups
        self.folder = f"{box.notes}/{number}"
        os.makedirs(self.folder)
        self.hosts = []
        self.events = []
        self._rest = b""
        self._events, self._told = os.pipe()
        os.set_blocking(self._events, False)
        self._wait, self._go = os.pipe()

    def start(self, arguments=None):
        """Starts another host."""
        number = len(self.hosts)
        folder = f"{self.folder}/{number}"
        os.makedirs(folder)
        setup = self.setups[number] if self.setups else None

        def enter():
            if not self.case.has_cgroup:
                self.box.hide_cgroups()
            if self.case.has_little_memory:
                self.box.limit_memory()
            if setup:
                setup()

        with open("/dev/null") as null, open(f"{folder}/out", "w") as out, \
                open(f"{folder}/err", "w") as err:
            pid = self.box.spawn(
                [self.ddprun,
                 *(arguments or self.case.arguments(number, self.address))],
                {0: null.fileno(), 1: out.fileno(), 2: err.fileno(),
                 8: self._told, 9: self._wait}, enter)
        host = Host(self.box, pid, number, folder)
        self.hosts.append(host)
        return host

    def read(self):
        try:
            self._rest += os.read(self._events, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            what, *numbers = line.decode().split()
            self.events.append(Event(what, *map(int, numbers)))

    def wait(self, holds, seconds=BOUND):
        def holds_now():
            self.read()
            return holds()
        return self.box.wait(holds_now, seconds)

    def is_over(self):
        return all(host.status() is not None for host in self.hosts)

    def worlds(self):
        """Returns the ranks of each world by their reports: {(restarts, port,
        size): {what: [rank]}}, with the last world last."""
        worlds = {}
        for event in self.events:
            told = worlds.setdefault(
                (event.restarts, event.port, event.size), {})
            told.setdefault(event.what, []).append(event.rank)
        return worlds

    def ready(self):
        """Returns the number of worlds in which all workers were ready."""
        return sum(len(set(told.get("ready", []))) == size
                   for (_, _, size), told in self.worlds().items())

    def workers(self, host=None):
        """Returns the processes of the last world by rank; of one host, if given."""
        found = {}
        for event in self.events:
            if host is None or event.ddprun == host.pid:
                found[event.rank] = event.pid
        return found

    def release(self):
        """Lets present and future workers end."""
        if self._go is not None:
            os.close(self._go)
            self._go = None

    def close(self):
        self.release()
        for file in (self._events, self._told, self._wait):
            os.close(file)
