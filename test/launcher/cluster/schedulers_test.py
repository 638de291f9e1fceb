"""Starts ddprun, and programs without it, with the real Slurm, Open MPI and MPICH
on two hosts that are network namespaces. Skips a scheduler that is not installed
(Debian: slurmctld, slurmd and slurm-client; openmpi-bin; mpich).

    python3 schedulers_test.py --ddprun DDPRUN [--all-reduce DDPRUN_ALLREDUCE]
                               [--train TRAIN] [--mpi-programs FOLDER]

Needs root, or namespaces for users, and util-linux and iproute2.
"""

import argparse
import collections
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "stress"))
import sandbox  # noqa: E402

SKIPPED = 77
TIMEOUT = 120  # seconds; more than ten times any run
NODES = {"node0": "10.209.0.1", "node1": "10.209.0.2"}
SHOW = ("echo worker $RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
        "$MASTER_ADDR $TORCHELASTIC_RUN_ID $MASTER_PORT")
SETTINGS = argparse.Namespace()


def found(*programs):
    """Returns the programs' paths, also in /usr/sbin; None if one is missing."""
    paths = [shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
             for name in programs]
    return paths if all(paths) else None


class Hosts:
    """node0 is this network namespace, node1 a second one."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="ddp-schedulers-", dir="/tmp")
        subprocess.run(["mount", "-t", "tmpfs", "none", self.folder],
                       check=True)
        self._own_names()
        self._other = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c",
                                        "hostname node1; ip link set lo up; "
                                        "echo up; exec sleep infinity"],
                                       stdout=subprocess.PIPE, text=True)
        self._other.stdout.readline()
        pid = str(self._other.pid)
        self.enter_node1 = ["nsenter", "-t", pid, "--net", "--uts"]
        for command in (
                ["hostname", "node0"],
                ["ip", "link", "set", "lo", "up"],
                ["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1",
                 "netns", pid],
                ["ip", "addr", "add", NODES["node0"] + "/24", "dev", "v0"],
                ["ip", "link", "set", "v0", "up"],
                [*self.enter_node1, "ip", "addr", "add", NODES["node1"] + "/24",
                 "dev", "v1"],
                [*self.enter_node1, "ip", "link", "set", "v1", "up"]):
            subprocess.run(command, check=True)
        # Replaces ssh: HOST COMMAND...
        self.agent = self.write(
            "agent", "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
            "host=$1; shift\n[ $host = node0 ] && exec sh -c \"$*\"\n"
            f"exec {' '.join(self.enter_node1)} sh -c \"$*\"\n", 0o755)

    def _own_names(self):
        lines = ["127.0.0.1 localhost"]
        lines += [f"{address} {name}" for name, address in NODES.items()]
        path = self.write("hosts", "\n".join(lines) + "\n")
        subprocess.run(["mount", "--bind", path, "/etc/hosts"], check=True)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def close(self):
        self._other.kill()
        self._other.wait()
        subprocess.run(["umount", "-l", self.folder], check=False)
        os.rmdir(self.folder)


Result = collections.namedtuple("Result", "code out err")


def run(command, **variables):
    """Runs a command in a session of its own, and kills it if it hangs."""
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "DDPRUN_TOKEN": "secret", **variables})
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{command} hangs: {out} {err}") from None
    return Result(process.returncode, out, err)


class Scheduler:
    """Tests for every scheduler. `task_a_host` and `tasks` return command lines that
    start one task on each of two hosts, and three tasks in all."""

    hosts = None
    variables = {}

    def of_workers(self, result, count):
        """Returns group rank, address of rank 0 and job, by rank."""
        self.assertEqual(result.code, 0, result)
        lines = re.findall(r"\[(\d+)\] worker (.*)$", result.out, re.M)
        self.assertEqual(sorted(int(rank) for rank, _ in lines),
                         list(range(count)), result)
        workers = {}
        for rank, line in lines:
            words = line.split()
            self.assertEqual(words[:2], [rank, str(count)], result)
            workers[int(rank)] = words[2:]
        return workers

    def too_many_tasks(self, command):
        return self.tasks(command)

    def ddprun(self, *arguments):
        return [SETTINGS.ddprun, *arguments]

    def test_one_ddprun_a_host(self):
        result = run(self.task_a_host(
            self.ddprun("--nproc-per-node=2", "sh", "-c", SHOW)),
            **self.variables)
        workers = self.of_workers(result, 4)
        self.assertEqual([workers[rank][0] for rank in range(4)],
                         ["0", "0", "1", "1"], result)
        self.assertEqual(len({tuple(worker[1:]) for worker in workers.values()}),
                         1, result)
        hosts, address = workers[0][1:3]
        self.assertEqual(hosts, "2")
        self.assertIn(socket.gethostbyname(address), NODES["node0"])

    def test_a_failure_on_one_host_ends_both(self):
        result = run(self.task_a_host(self.ddprun(
            "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 600")),
            **self.variables)
        self.assertNotEqual(result.code, 0, result)
        self.assertIn("rank 1", result.err)
        self.assertIn("exit code 7", result.err)

    def test_several_ddpruns_a_host_are_refused(self):
        result = run(self.too_many_tasks(
            self.ddprun("sh", "-c", "echo started")), **self.variables)
        self.assertNotEqual(result.code, 0, result)
        self.assertIn("expected one ddprun a host", result.err)
        self.assertNotIn("started", result.out)

    def test_a_program_without_ddprun_finds_its_rank(self):
        if not SETTINGS.all_reduce:
            self.skipTest("there is no program with LibTorch")
        # MASTER_ADDR is for schedulers that do not give the host of rank 0.
        result = run(self.tasks([SETTINGS.all_reduce, "1"]),
                     **{"MASTER_ADDR": "node0", **self.variables})
        self.assertEqual(result.code, 0, result)
        self.assertEqual(re.findall(r"^ranks (\d+)$", result.out, re.M), ["3"],
                         result)


@unittest.skipUnless(found("slurmctld", "slurmd", "srun", "sinfo"),
                     "Slurm is not installed")
class SlurmTest(Scheduler, unittest.TestCase):
    CONFIGURATION = """
        ClusterName=test
        SlurmctldHost=node0
        SlurmUser=root
        SlurmdUser=root
        AuthType=auth/none
        CredType=cred/none
        AuthInfo=cred_expire=5
        StateSaveLocation={folder}/slurm
        SlurmdSpoolDir={folder}/spool_%n
        SlurmctldPidFile={folder}/slurmctld.pid
        SlurmdPidFile={folder}/%n.pid
        SlurmctldLogFile={folder}/slurmctld.log
        SlurmdLogFile={folder}/%n.log
        SlurmdParameters=config_overrides
        ProctrackType=proctrack/linuxproc
        TaskPlugin=task/none
        SwitchType=switch/none
        MpiDefault=none
        SelectType=select/cons_tres
        JobAcctGatherType=jobacct_gather/none
        AccountingStorageType=accounting_storage/none
        NodeName=node[0-1] CPUs=4
        PartitionName=all Nodes=ALL Default=YES State=UP
        """

    @classmethod
    def setUpClass(cls):
        folder = cls.hosts.folder
        os.mkdir(f"{folder}/slurm")
        cls.variables = {"SLURM_CONF": cls.hosts.write(
            "slurm.conf",
            re.sub(r"\n *", "\n", cls.CONFIGURATION).format(folder=folder))}
        controller, daemon = found("slurmctld", "slurmd")
        cls.daemons = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL,
                             env={**os.environ, **cls.variables})
            for command in ([controller, "-D"], [daemon, "-D", "-N", "node0"],
                            [*cls.hosts.enter_node1, daemon, "-D", "-N",
                             "node1"])]
        end = time.monotonic() + TIMEOUT
        while "idle 2" not in run(["sinfo", "-h", "-o", "%t %D"],
                                  **cls.variables).out:
            if time.monotonic() > end:
                raise AssertionError("Slurm's nodes do not come up")

    @classmethod
    def tearDownClass(cls):
        for process in cls.daemons:
            process.kill()
            process.wait()

    def task_a_host(self, command):
        return ["srun", "--nodes=2", "--ntasks-per-node=1", *command]

    def tasks(self, command):
        return ["srun", "--nodes=2", "--ntasks=3", *command]

    def test_the_code_of_the_worker_is_srun_s(self):
        result = run(self.task_a_host(self.ddprun(
            "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 600")),
            **self.variables)
        self.assertEqual(result.code, 7, result)

    def test_a_batch_script_is_a_job_of_its_host(self):
        output = os.path.join(self.hosts.folder, "batch.out")
        script = self.hosts.write(
            "script", f"#!/bin/sh\n'{SETTINGS.ddprun}' --nproc-per-node=2 sh -c "
            f"'{SHOW}'\n")
        result = run(["sbatch", "--wait", "--nodes=2", "-o", output, script],
                     **self.variables)
        with open(output, encoding="utf-8") as file:
            workers = self.of_workers(result._replace(out=file.read()), 2)
        self.assertEqual(workers[0][1], "1")


    def train(self, name, script):
        """Submits a script and returns its job's number and output file."""
        output = os.path.join(self.hosts.folder, name)
        result = run(["sbatch", "--parsable", "--nodes=2", "--requeue",
                      "--open-mode=append", "-o", output,
                      self.hosts.write(name + ".sh", script)], **self.variables)
        self.assertEqual(result.code, 0, result)
        return result.out.strip(), output

    def await_text(self, output, pattern, count=1):
        """Waits until the file has the pattern so often, and returns its text."""
        end = time.monotonic() + TIMEOUT
        text = ""
        while len(re.findall(pattern, text)) < count:
            self.assertLess(time.monotonic(), end, text)
            time.sleep(0.05)
            if os.path.exists(output):
                with open(output, encoding="utf-8") as file:
                    text = file.read()
        return text

    def test_a_preempted_training_goes_on_bit_for_bit(self):
        if not SETTINGS.train:
            self.skipTest("there is no program with LibTorch")
        # The lines of samples/cluster/train.sbatch.
        script = (
            "#!/bin/sh\nexport OMP_NUM_THREADS=1\ncode=0\n"
            "srun --ntasks-per-node=1 --kill-on-bad-exit=0 "
            f"'{SETTINGS.ddprun}' --on-preempt=USR1:60 --preempt-code=85 "
            f"'{SETTINGS.train}' --no-cuda --epochs=8 --print-hash "
            "--checkpoint '%s' --resume || code=$?\n"
            "echo \"srun: $code\"\n"
            "[ $code -eq 85 ] && exec scontrol requeue $SLURM_JOB_ID\n"
            "exit $code\n")
        hashes = r"rank (\d): parameters ([0-9a-f]{16})"
        folder = self.hosts.folder
        _, output = self.train("undisturbed", script % f"{folder}/undisturbed_cp")
        undisturbed = self.await_text(output, r"srun: \d+")
        self.assertIn("srun: 0", undisturbed)
        job, output = self.train("preempted", script % f"{folder}/preempted_cp")
        self.await_text(output, "epoch 2/8")
        # With linuxproc the signal reaches each process of the job.
        run(["scancel", "--signal=USR1", job], **self.variables)
        text = self.await_text(output, r"srun: \d+", count=2)
        self.assertEqual(re.findall(r"srun: (\d+)", text), ["85", "0"], text)
        self.assertEqual(len(re.findall(hashes, undisturbed)), 2, undisturbed)
        self.assertEqual(sorted(re.findall(hashes, text)[-2:]),
                         sorted(re.findall(hashes, undisturbed)), text)


class MpiScheduler(Scheduler):
    """Tests for MPI. `mpi` is the library's name in the names of programs."""

    def run_program(self, name, hosts, count, *arguments):
        program = os.path.join(SETTINGS.mpi_programs or "",
                               f"{name}_{self.mpi}")
        if not os.path.exists(program):
            self.skipTest("there is no program for this MPI")
        result = run(self.mpirun(hosts, count, "env", *arguments[1:], program,
                                 *arguments[:1]), **self.variables)
        self.assertEqual(result.code, 0, result)
        return result

    def test_groups_over_mpi(self):
        for hosts, count, level, cases in (
                ("node0:2", 2, "SINGLE", "*"),
                ("node0:2,node1:2", 4, "SERIALIZED", "~[large]")):
            with self.subTest(hosts=hosts):
                result = self.run_program("mpi_group_test", hosts, count, cases,
                                          f"MPI_LEVEL={level}")
                self.assertEqual(
                    len(re.findall("All tests passed", result.out)), count,
                    result)

    def test_the_sample(self):
        result = self.run_program("mpi_minimal", "node0:1,node1:1", 2)
        self.assertRegex(result.out, r"y = (3|2\.9\d*) x \+ -(1|0\.9\d*), loss")


@unittest.skipUnless(found("mpirun.openmpi"), "Open MPI is not installed")
class OpenMpiTest(MpiScheduler, unittest.TestCase):
    mpi = "openmpi"

    def mpirun(self, hosts, count, *command):
        return [
            "mpirun.openmpi", "--allow-run-as-root", "--mca", "plm", "rsh",
            "--mca", "plm_rsh_agent", self.hosts.agent, "--mca",
            "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", "v0,v1",
            "--mca", "btl_tcp_if_include", "10.209.0.0/24", "--mca",
            "btl_base_warn_component_unused", "0",
            "--host", hosts, "-n", str(count), *command]

    def task_a_host(self, command):
        return self.mpirun("node0:1,node1:1", 2, *command)

    def tasks(self, command):
        return self.mpirun("node0:2,node1:1", 3, *command)


@unittest.skipUnless(found("mpirun.mpich"), "MPICH is not installed")
class MpichTest(MpiScheduler, unittest.TestCase):
    mpi = "mpich"
    # MPICH gives neither the host of rank 0 nor a number of the job.
    variables = {"MASTER_ADDR": "node0"}

    def mpirun(self, hosts, count, *command):
        return ["mpirun.mpich", "-launcher", "ssh", "-launcher-exec",
                self.hosts.agent, "-hosts", hosts, "-n", str(count), *command]

    def task_a_host(self, command):
        return self.mpirun("node0:1,node1:1", 2, *command)

    def tasks(self, command):
        return self.mpirun("node0:2,node1:1", 3, *command)

    def too_many_tasks(self, command):
        # The same number on each host, because a host knows only its own.
        return self.mpirun("node0:2,node1:2", 4, *command)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ddprun", required=True)
    parser.add_argument("--all-reduce")
    parser.add_argument("--train", help="the sample")
    parser.add_argument("--mpi-programs", help="their folder")
    parser.add_argument("filters", nargs="*")
    parser.parse_args(namespace=SETTINGS)
    schedulers = (SlurmTest, OpenMpiTest, MpichTest)
    missing = [each for each in schedulers
               if getattr(each, "__unittest_skip__", False)]
    for each in missing:
        print(f"skipped: {each.__unittest_skip_why__}, see ./scripts/test "
              "--schedulers", flush=True)
    if len(missing) == len(schedulers):
        return SKIPPED
    if not sandbox.enter():
        print("skipped: no rights for namespaces")
        return SKIPPED
    hosts = Hosts()
    try:
        Scheduler.hosts = hosts
        done = unittest.main(argv=[sys.argv[0], *SETTINGS.filters], exit=False,
                             verbosity=2)
    finally:
        hosts.close()
    return 0 if done.result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
