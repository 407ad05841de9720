#!/usr/bin/env python3
"""Under torchrun, mpirun and srun, as Debian has them: ranks are found, and a worker that dies leaves the others alone.
Usage: launchers_test.py BIN_DIR [TEST ...]"""
import place
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PYTHON = sys.executable
WORKERS = 3
# In $DIES rank 1 does, once the others have its word; these train on until they have heard that it is lost.
SCRIPT = """
import numpy, os, prd, signal, time
values, gradients = numpy.zeros(8, numpy.float32), numpy.ones(8, numpy.float32)
def apply():
    values[:] -= 0.1 * gradients
with prd.Session() as session:
    session.attach(values, gradients, apply)
    os.write(1, f"attached {session.rank} {session.workers}\\n".encode())
    dies = os.environ["DIES"]
    for _ in range(5):
        session.step()
    if dies and session.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while dies and session.progress.workers > 2:
        session.step()
        time.sleep(0.01)
    session.finish()
    os.write(1, f"finished {session.rank}\\n".encode())
"""
JOB = '[[job]]\nname = "*"\nengine = "p-reduce"\nlease_ms = 1000\nheartbeat_ms = 200\n[job.p-reduce]\ngroup_size = 2\n'


class Launchers(unittest.TestCase):
    def setUp(self):
        self.places = contextlib.ExitStack()
        self.addCleanup(self.places.close)
        self.folder = pathlib.Path(self.places.enter_context(tempfile.TemporaryDirectory(prefix="prd-test-")))
        self.script = self.folder / "train.py"
        self.script.write_text(SCRIPT)
        self.cluster = self.places.enter_context(place.Cluster(JOB))

    def launch(self, command, dies, job):
        """Runs it to its end. Returns its exit code, and what workers printed."""
        environment = place.environment(self.cluster, name=job or "", DIES="yes" if dies else "", OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                                        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if not job:
            del environment["PRD_JOB"]
        process = subprocess.Popen([str(word) for word in command], env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.fail(f"{command} does not end: {process.communicate()[0]}")
        return process.returncode, out

    def check(self, command, dies, code, job="launched", found=None):
        """All workers find their ranks and each other. Those that live finish."""
        returned, out = self.launch(command, dies, job)
        self.assertEqual(sorted(re.findall(r"attached (\d) (\d)", out)), [(str(rank), str(WORKERS)) for rank in range(WORKERS)], out)
        self.assertEqual(sorted(re.findall(r"finished (\d)", out)), ["0", "2"] if dies else ["0", "1", "2"], out)
        self.assertEqual(returned, code, out)
        runs = json.loads(subprocess.run([place.BIN / "prdctl", "--admin", self.cluster.admin, "--json", "jobs"], capture_output=True, text=True).stdout)
        self.assertEqual(runs["runs"][-1]["job"], found or job, out)

    def test_mpirun(self):
        if shutil.which("mpirun") is None:
            self.skipTest("Open MPI is not installed")
        command = ["mpirun", "--oversubscribe", "-np", WORKERS]
        self.check([*command, PYTHON, self.script], dies=False, code=0)
        # With this flag mpirun waits for the others, and says nothing of the death in its exit code.
        self.check([*command, "--enable-recovery", PYTHON, self.script], dies=True, code=0)
        # The library alone, from C++.
        code, out = self.launch([*command, place.BIN / "toy_worker", "--steps", 3, "--step-ms", 1, "--size", 100], False, "toy")
        self.assertEqual(code, 0, out)

    def test_torchrun(self):
        if subprocess.run([PYTHON, "-c", "import torch.distributed.run"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("PyTorch is not installed")
        # Debian 12's torchrun fails where it does not redirect and print (-r, -t): PyTorch 1.13 is not made for Python 3.11.
        command = [PYTHON, "-m", "torch.distributed.run", "-r", "1", "-t", "1", "--log_dir", self.folder / "logs", "--nproc_per_node", WORKERS,
                   "--monitor_interval", "1", "--master_port", place.cluster.free_port(), "--no_python"]
        self.check([*command, PYTHON, self.script], dies=False, code=0)
        # torchrun ends all workers when one fails. This one does not hear of it.
        self.check([*command, "sh", "-c", f'{PYTHON} "$@" || true', "sh", self.script], dies=True, code=0)

    def test_srun(self):
        programs = ("munged", "slurmctld", "slurmd", "srun")
        path = f"{os.environ['PATH']}:/usr/sbin"
        if any(shutil.which(name, path=path) is None for name in programs):
            self.skipTest("Slurm is not installed (munge, slurmctld, slurmd, slurm-client)")
        self.start_slurm(path)
        command = ["srun", "--ntasks", WORKERS, "--overcommit"]
        self.check([*command, "--job-name", "named", PYTHON, self.script], dies=False, code=0, job=None, found="named")
        self.check([*command, "--kill-on-bad-exit=0", "--no-kill", "--wait=0", PYTHON, self.script], dies=True, code=128 + signal.SIGKILL)

    def start_slurm(self, path):
        """A cluster of this host alone: its daemons are processes of this test, with all they have in its folder."""
        folder, host = self.folder, socket.gethostname().split(".")[0]
        cores = os.cpu_count()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        folder.chmod(0o755)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        config = folder / "slurm.conf"
        config.write_text(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={place.cluster.free_port()}
SlurmdPort={place.cluster.free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1
PartitionName=all Nodes={host} Default=YES OverSubscribe=FORCE:8
""")
        os.environ["SLURM_CONF"] = str(config)
        self.addCleanup(os.environ.pop, "SLURM_CONF")
        munge = [f"--{name}={folder}/{value}" for name, value in (("key-file", "key"), ("socket", "munge.sock"), ("pid-file", "munged.pid"),
                                                                  ("log-file", "munged.log"), ("seed-file", "munge.seed"))]
        for command in (["munged", "--foreground", "--force", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            log = self.places.enter_context(open(folder / f"{command[0]}.out", "w+"))
            process = subprocess.Popen([shutil.which(command[0], path=path), *command[1:]], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            self.places.callback(process.wait)
            self.places.callback(process.terminate)
            if command[0] == "munged":
                self.wait_for(lambda: (folder / "munge.sock").exists(), process, log)
        self.wait_for(lambda: "idle" in subprocess.run(["sinfo", "--noheader", "--format", "%t"], capture_output=True, text=True).stdout, process, log)

    def wait_for(self, it, process, log):
        end = time.monotonic() + 60
        while not it():
            if process.poll() is not None or time.monotonic() > end:
                log.seek(0)
                self.fail(f"{process.args[0]}: {log.read()[-2000:]}")
            time.sleep(0.05)


if __name__ == "__main__":
    unittest.main()
