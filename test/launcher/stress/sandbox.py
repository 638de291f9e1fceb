"""An isolated machine for jobs: namespaces in which all leftovers of a job can be
found, because nothing else is in them."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
CLONE_NEWNS, CLONE_NEWNET, MNT_DETACH = 0x20000, 0x40000000, 2
_libc = ctypes.CDLL(None, use_errno=True)


def system(call, *arguments):
    if getattr(_libc, call)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")


def enter():
    """Moves this program into namespaces, once. Returns False without the rights
    for that."""
    if os.environ.pop("DDP_STRESS_INSIDE", ""):
        return True
    command = ["unshare", "--net", "--ipc", "--uts", "--mount", "--pid",
               "--fork", "--kill-child", "--mount-proc",
               *(["--map-root-user"] if os.geteuid() != 0 else [])]
    try:
        can = subprocess.run([*command, "true"], capture_output=True).returncode
    except FileNotFoundError:
        can = 1
    if can != 0:
        return False
    os.environ["DDP_STRESS_INSIDE"] = "1"
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def _is_mounted(kind, where, *options):
    os.makedirs(where, exist_ok=True)
    return subprocess.run(["mount", "-t", kind, *options, "none", where],
                          capture_output=True).returncode == 0


class Sandbox:
    """Has an empty folder, /dev/shm and cgroup."""

    def __init__(self):
        # Not in TMPDIR, which may be in the /dev/shm that is hidden below.
        base = tempfile.mkdtemp(prefix="ddp-stress-", dir="/tmp")
        subprocess.run(["mount", "-t", "tmpfs", "none", base], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        self.temporary, self.notes = f"{base}/tmp", f"{base}/notes"
        for folder in (self.temporary, self.notes):
            os.makedirs(folder)
        _is_mounted("tmpfs", "/dev/shm")
        self.cgroups = None
        if _is_mounted("cgroup2", f"{base}/cgroup2"):
            # Other machines may see the same hierarchy.
            self.cgroups = tempfile.mkdtemp(prefix="stress.",
                                            dir=f"{base}/cgroup2")
            own = f"{self.cgroups}/own"
            os.makedirs(own)
            with open(f"{own}/cgroup.procs", "w") as file:
                file.write(str(os.getpid()))
            self.cgroups = own
        self.freezer = None
        if _is_mounted("cgroup", f"{base}/freezer", "-o", "freezer"):
            self.freezer = tempfile.mkdtemp(prefix="stress.",
                                            dir=f"{base}/freezer")
        self.memory = self._small_memory(base)
        self.base = base
        self.statuses = {}

    @staticmethod
    def _small_memory(base):
        """Makes a cgroup of 64 MiB. Returns None without cgroups of version 1."""
        if not _is_mounted("cgroup", f"{base}/memory", "-o", "memory"):
            return None
        folder = tempfile.mkdtemp(prefix="stress.", dir=f"{base}/memory")
        for name in "memory.limit_in_bytes", "memory.memsw.limit_in_bytes":
            if os.path.exists(f"{folder}/{name}"):
                with open(f"{folder}/{name}", "w") as file:
                    file.write(str(64 << 20))
        return folder

    def spawn(self, argv, files, setup=None):
        """Starts a program with only the descriptors in `files`."""
        # A signal before the exec must not reach this interpreter's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        pid = os.fork()
        if pid == 0:
            try:
                # A shell ignores these signals in processes that it starts in
                # the background.
                for number in STOP_SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                if setup:
                    setup()
                copies = {to: os.dup(file) for to, file in files.items()}
                for to, file in copies.items():
                    os.dup2(file, to)
                os.closerange(max(files) + 1, 1024)
                os.execvpe(argv[0], argv,
                           {**os.environ, "TMPDIR": self.temporary,
                            "XDG_RUNTIME_DIR": self.temporary,
                            "DDPRUN_TOKEN": "secret"})
            finally:
                os._exit(98)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid

    def reap(self):
        """Records the exit status of ended children, which include all orphans."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.statuses[pid] = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            pass

    def wait(self, holds, seconds):
        """Returns whether `holds` became true within the time."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
            self.reap()
        return True

    def processes(self):
        self.reap()
        return [int(name) for name in os.listdir("/proc")
                if name.isdigit() and int(name) != os.getpid()]

    def left(self):
        """Describes everything that is there besides this process."""
        found = [f"process {pid} {_command(pid)}" for pid in self.processes()]
        found += [f"file {self.temporary}/{name}"
                  for name in os.listdir(self.temporary)]
        found += [f"shared memory {name}" for name in os.listdir("/dev/shm")]
        if self.cgroups:
            found += [f"cgroup {entry.name}"
                      for entry in os.scandir(self.cgroups) if entry.is_dir()]
        for table in ("tcp", "tcp6"):
            with open(f"/proc/net/{table}") as lines:
                found += [f"listening socket {line.split()[1]}"
                          for line in lines if line.split()[3] == "0A"]
        with open("/proc/net/unix") as lines:
            found += [f"socket {line.split()[-1]}" for line in lines
                      if line.split()[-1][0] in "/@"]
        with open("/proc/sysvipc/shm") as lines:
            found += ["System V memory"] * (len(lines.readlines()) - 1)
        return found

    def clear(self):
        """Removes leftovers of a job before the next one."""
        self.thaw()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait(lambda: not self.processes(), 10)
        for folder in (self.temporary, "/dev/shm"):
            subprocess.run(["find", folder, "-mindepth", "1", "-delete"])
        if self.cgroups:
            subprocess.run(["find", self.cgroups, "-mindepth", "1", "-type",
                            "d", "-delete"])

    def hide_cgroups(self):
        """Called in a child, which can then create no cgroups."""
        if not self.cgroups:
            return
        system("unshare", CLONE_NEWNS)
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts.readlines():
                if " - cgroup2 " in line:
                    system("umount2", line.split()[4].encode(), MNT_DETACH)

    def limit_memory(self):
        """Called in a child: limits its memory and that of its children."""
        with open(f"{self.memory}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    def freeze(self, pid):
        """Until thaw() not even SIGKILL ends the process, as if a driver held it."""
        self._write_freezer("tasks", pid)
        self._write_freezer("freezer.state", "FROZEN")

    def thaw(self):
        if self.freezer:
            self._write_freezer("freezer.state", "THAWED")

    def _write_freezer(self, name, value):
        with open(f"{self.freezer}/{name}", "w") as file:
            file.write(str(value))

    def close(self):
        self.clear()
        for folder in self.freezer, self.memory:
            if folder:
                os.rmdir(folder)
        if self.cgroups:
            parent = os.path.dirname(self.cgroups)
            with open(f"{os.path.dirname(parent)}/cgroup.procs", "w") as file:
                file.write(str(os.getpid()))
            os.rmdir(self.cgroups)
            os.rmdir(parent)
        subprocess.run(["umount", "-R", self.base])
        subprocess.run(["umount", "-l", self.base], capture_output=True)
        os.rmdir(self.base)


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("\0", " ").strip()[:100]
    except OSError:
        return "(gone)"


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def descendants(pid):
    return [found for child in children(pid)
            for found in (child, *descendants(child))]


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def power_off(pid):
    """Kills a process and all its descendants together, as a power failure does."""
    stopped = []
    while True:
        alive = [each for each in (pid, *descendants(pid))
                 if each not in stopped]
        if not alive:
            break
        for each in alive:
            kill(each, signal.SIGSTOP)
        stopped += alive
    for each in stopped:
        kill(each, signal.SIGKILL)
