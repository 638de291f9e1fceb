"""Faults of a job and their expected results. A fault is a function of the Run: it
causes the fault and returns the exit codes that each host may end with."""

import os
import shutil
import signal
import socket

import sandbox as machine
from job import PORT, Case
from sandbox import STOP_SIGNALS, kill

DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)


class Run:
    """A job at the time of its fault, and its expected results."""

    def __init__(self, job, stage, random):
        self.job, self.case, self.box = job, job.case, job.box
        self.stage, self.random = stage, random
        # True if all workers have started and no other event is going on.
        self.is_settled = stage == "running"

    def restarts_left(self):
        return self.case.restarts - (self.stage == "restarting")

    def any_worker(self):
        """Returns None if no worker has started."""
        self.job.read()
        workers = self.job.workers()
        return self.random.choice(sorted(workers.values())) if workers else None

    def alike(self, *codes):
        """All hosts end with the same one of these codes."""
        extra = () if self.is_settled else (0,)
        return {host.number: {*codes, *extra} for host in self.job.hosts}

    def without(self, host, *codes):
        """`host` ends with one of these codes; the others go on if they can."""
        if not self.is_settled:
            codes = (*codes, 0)
        if self.stage == "restarting":
            codes = (*codes, 137)  # the code of the worker that failed first
        can_go_on = self.case.elastic and host.number != 0
        others = {0} if can_go_on else {1}
        if not self.is_settled:
            others |= {0, 1}
        if self.stage == "restarting":
            others.add(137)
        return {entry.number: set(codes) if entry is host else others
                for entry in self.job.hosts}

    def any_host(self):
        return self.random.choice(self.job.hosts)


def _worker_ends(run, number, code):
    worker = run.any_worker()
    if worker is None:
        return run.alike(0)
    kill(worker, number)
    left = run.restarts_left()
    if run.is_settled or run.stage == "restarting":
        codes = {0} if left > 0 else {code}
    else:
        codes = {code} if left == 0 else {0}
    # A worker that is killed while all workers are stopped is no new failure.
    return run.alike(*codes, *([0] if run.stage == "restarting" else []))


def kill_worker(run):
    deadly = [number for number in DEADLY
              if number != signal.SIGTERM or "deaf" not in run.case.habits]
    number = run.random.choice(deadly)
    return _worker_ends(run, number, 128 + number)


def worker_fails(run):
    """The worker writes an error file, which the report quotes."""
    if not run.is_settled:
        return kill_worker(run)
    expected = _worker_ends(run, signal.SIGUSR1, 3)
    run.words = "it was told to"
    return expected


def two_hosts_fail(run):
    """One worker of each of two hosts fails, almost at once. Each ddprun reports the
    failure of its own worker, and the others report one of the two."""
    hosts = run.random.sample(run.job.hosts, 2)
    numbers = run.random.sample((signal.SIGKILL, signal.SIGSEGV,
                                 signal.SIGABRT), 2)
    run.job.read()
    workers = [run.random.choice(sorted(run.job.workers(host).values()))
               for host in hosts]
    for worker, number in zip(workers, numbers):
        kill(worker, number)
        run.box.wait(lambda: False, run.random.choice((0, 0.001, 0.01)))
    codes = [0 if run.restarts_left() > 0 else 128 + number for number in numbers]
    return run.alike(*codes)


def worker_ends_early(run):
    if run.is_settled:
        kill(run.any_worker(), signal.SIGUSR2)
    return run.alike(0)


def stopped_worker(run):
    """A stopped worker does not react to the end of the job, which comes anyway."""
    run.job.wait(lambda: run.job.ready() > 0, 5)
    worker = run.any_worker()
    if worker is None:
        return run.alike(0)
    kill(worker, signal.SIGSTOP)
    host = run.any_host()
    if not run.is_settled:
        run.job.release()
    host.signal(signal.SIGTERM)
    return run.without(host, 143)


def kill_grandchild(run):
    workers = set(run.job.workers().values())
    others = [pid for pid in run.box.processes() if pid not in workers
              and machine._command(pid).startswith("sleep")]
    if others:
        kill(run.random.choice(others), signal.SIGKILL)
    return run.alike(0)


def signal_host(run):
    """Sends a stop signal to ddprun, once or twice."""
    host, number = run.any_host(), run.random.choice(STOP_SIGNALS)
    for _ in range(run.random.choice((1, 2))):
        host.signal(number)
    return run.without(host, 128 + number,
                       *(() if run.is_settled else (-number,)))


def kill_ddprun(run):
    host = run.any_host()
    run.dead = host
    host.signal(signal.SIGKILL)
    return run.without(host, -9)


def kill_watcher(run):
    host = run.any_host()
    run.box.wait(lambda: host.watcher() or host.status() is not None, 5)
    watcher = host.watcher()
    if watcher:
        kill(watcher, signal.SIGKILL)
    return run.alike(0)


def kill_coordinator(run):
    host = run.job.hosts[0]
    host.power_off()
    run.dead = host
    return run.without(host, -9)


def power_off(run):
    host = run.any_host()
    host.power_off()
    run.dead = host
    return run.without(host, -9)


def pause_ddprun(run):
    """The pause is shorter than the time that the others wait."""
    host = run.any_host()
    if host.watcher():
        host.signal(signal.SIGSTOP)
        run.box.wait(lambda: False, run.random.uniform(0, 0.3))
        host.signal(signal.SIGCONT)
    return run.alike(0)


def frozen_worker(run):
    """SIGKILL does not end the worker: the job ends in time and names it."""
    if not run.is_settled or not run.box.freezer:
        return kill_worker(run)
    host = run.any_host()
    worker = run.random.choice(sorted(run.job.workers(host).values()))
    run.box.freeze(worker)
    host.signal(signal.SIGTERM)
    run.words = f"(pid {worker}): still there after SIGKILL"
    run.thaws = True
    return run.without(host, 143)


def out_of_memory(run):
    """The kernel kills the worker that uses all memory."""
    if not run.case.has_little_memory:
        return kill_worker(run)
    kill(run.any_worker(), signal.SIGALRM)
    run.words = "memory was full: the kernel has killed 1 process in this time"
    return run.alike(0 if run.restarts_left() > 0 else 137)


def crash_loop(run):
    run.attempts = run.case.restarts + 1
    return {host.number: {3} for host in run.job.hosts}


def port_taken(run):
    """Another program uses the port before the hosts start."""
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", PORT))
        stranger.listen()
        run.job.start()
        run.job.wait(run.job.is_over)
    run.words = str(PORT)
    return run.alike(1)


def _second_job(run, change):
    """Starts another host with other options, which is refused."""
    host = run.job.start([change.get(option.split("=")[0], option)
                          for option in run.case.arguments(1, "127.0.0.1")])
    run.job.wait(lambda: host.status() is not None)
    return {**run.alike(0), host.number: {1, 2}}


def other_run_id(run):
    return _second_job(run, {"--rdzv-id": "--rdzv-id=another"})


def other_size(run):
    return _second_job(run, {"--nnodes": "--nnodes=7"})


def taken_rank(run):
    """A second host requests the rank of the first."""
    run.words = "of one host, but got it from"
    return _second_job(run, {})


def another_job(run):
    """A second job runs on the same host; both succeed."""
    run.job.start(Case(workers=2).arguments(0, "127.0.0.1"))
    return run.alike(0)


def late_host(run):
    """A host waits for a place until the job is over."""
    host = run.job.start(run.case.arguments(len(run.job.hosts), "127.0.0.1"))
    run.job.wait(lambda: host.watcher() is not None, 5)
    run.box.wait(lambda: False, run.random.uniform(0, 0.2))
    return {**run.alike(0), host.number: {2} if run.case.static else {0}}


def come_and_go(run):
    """Hosts of an elastic job leave, die and join; the first one stays."""
    expected = {0: {0}}
    there = list(run.job.hosts[1:])
    for host in there:
        expected[host.number] = {0}
    for _ in range(run.random.randint(2, 5)):
        if there and run.random.random() < 0.6:
            host = there.pop(run.random.randrange(len(there)))
            way, codes = run.random.choice((
                (lambda: host.signal(signal.SIGTERM), {143}),
                (lambda: host.signal(signal.SIGKILL), {-9}),
                (host.power_off, {-9})))
            way()
            expected[host.number] = codes
            if codes == {-9}:
                run.dead = host
        elif len(there) + 1 < run.case.hosts:
            worlds = run.job.ready()
            host = run.job.start(
                run.case.arguments(len(run.job.hosts), "127.0.0.1"))
            # From now on the host handles signals and removes its files.
            run.job.wait(lambda: host.watcher() or host.status() is not None)
            there.append(host)
            expected[host.number] = {0}
            run.job.wait(lambda: run.job.ready() > worlds, 10)
        run.box.wait(lambda: False, run.random.uniform(0, 0.1))
    # A host that joins while a loss is handled gets the place of the lost host.
    worlds = run.job.ready()
    run.job.wait(lambda: run.job.ready() > worlds, 0.7)
    return expected


def partition(run):
    """One host's cable is cut, for a moment or for good; or the host loses its
    connections, its speed, or both its cable and its power."""
    host = run.random.choice(run.job.hosts)
    way = run.random.choice(("silence", "half", "down", "slow", "reset",
                             "power"))
    run.told = way
    if way == "power":
        run.switch.cut(host.number, "silence")
        host.power_off()
        run.dead = host
        return run.without(host, -9)
    run.switch.cut(host.number, way)
    if way in ("slow", "reset"):  # a reset host connects again and keeps its place
        return run.alike(0)
    if run.random.random() < 0.5:
        # Less than half the time after which a silent host counts as vanished.
        run.box.wait(lambda: False, run.random.uniform(0, 0.4))
        run.switch.heal(host.number, way)
        run.told += ", healed"
        return run.alike(0)
    # Hosts that still reach the first host go on with it, if they are enough.
    stay = {0} if host.number == 0 else {
        entry.number for entry in run.job.hosts if entry is not host}
    return {entry.number: {0} if run.case.elastic and entry.number in stay
            else {1} for entry in run.job.hosts}


def lost_packets(run):
    """One host's cable loses packets, for the rest of the job."""
    host, percent = run.any_host(), run.random.choice((1, 10))
    run.told = f"{percent} % of host {host.number}'s"
    run.switch.lose(host.number, percent)
    run.box.wait(lambda: False, run.random.uniform(0.1, 1))
    # A loss of 10 % may drop all messages in the time after which a host counts
    # as vanished.
    return run.alike(0) if percent == 1 else run.alike(0, 1)


# The habits with processes that end with a killed ddprun, also without a
# cgroup.
IN_GROUP = ("deaf", "child", "group")
STAGES = ("before", "rendezvous", "starting", "running", "restarting", "ending")

# By name: the function, the stages of the fault, and its requirements.
FAULTS = {
    "a worker dies": (kill_worker, STAGES, {}),
    "a worker fails": (worker_fails, STAGES, {}),
    "workers of two hosts die": (two_hosts_fail, ("running",),
                                 {"hosts": (2, 3)}),
    "a worker ends early": (worker_ends_early, ("running",), {"hosts": (1,)}),
    "a stopped worker": (stopped_worker, ("running",), {}),
    "a grandchild dies": (kill_grandchild, ("running", "ending"), {}),
    "a signal to ddprun": (signal_host, STAGES, {}),
    "ddprun dies": (kill_ddprun, STAGES, {"habits": IN_GROUP}),
    "the watcher dies": (kill_watcher, STAGES, {}),
    "ddprun pauses": (pause_ddprun, STAGES[1:], {}),
    "a host dies": (power_off, STAGES, {"habits": False}),
    "the coordinator's host dies": (kill_coordinator, STAGES,
                                    {"hosts": (2, 3), "habits": False}),
    "a worker beyond SIGKILL": (frozen_worker, ("running",), {"hosts": (1,)}),
    "memory is full": (out_of_memory, ("running",),
                       {"hosts": (1,), "memory": True}),
    "a crash loop": (crash_loop, ("running",), {"crash": True}),
    "the port is another program's": (port_taken, ("before",),
                                      {"hosts": (2,), "static": False,
                                       "starts": False}),
    "another job's host": (other_run_id, ("running",), {"hosts": (2, 3)}),
    "another number of hosts": (other_size, ("running",), {"hosts": (2, 3)}),
    "another host's rank": (taken_rank, ("running",),
                            {"hosts": (2, 3), "static": True,
                             "elastic": False}),
    "another job": (another_job, ("before", *STAGES[2:]), {}),
    "a late host": (late_host, ("running",), {"hosts": (2, 3)}),
    "hosts come and go": (come_and_go, ("running",),
                          {"hosts": (2, 3), "elastic": True,
                           "habits": IN_GROUP}),
    "a cut cable": (partition, ("running",), {"hosts": (2, 3), "cables": True}),
    "lost packets": (lost_packets, ("rendezvous", "starting", "running"),
                     {"hosts": (2, 3), "cables": True}),
}
if not shutil.which("nft"):  # needed to drop packets
    del FAULTS["lost packets"]
