"""One training of the example trainers: a daemon with a config, the workers, and what they have left."""
import collections
import json
import os
import pathlib
import resource
import struct
import subprocess
import tempfile
import time

import daemon
import processes
from processes import ToolError

JOB = "measured"
START_S = 60
END_S = 600
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "worker/python"
SNAPSHOT = struct.Struct("<8sQiiqqqd")  # worker/examples/snapshot.cc: magic, parameters, rank, final, time, ...

CONFIG = """\
[daemon]
listen = "tcp://127.0.0.1:{port}"
admin = "ipc://{dir}/admin.sock"
state_dir = "{dir}/state"

[[job]]
name = "{job}"
engine = "{engine}"
workers = {workers}
{keys}
[job.{engine}]
{table}
"""


def cpu_s():
    """Of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Training:
    """Use in a with statement, which starts the daemon. `keys`, `table`: lines of [[job]] and of the engine's table."""

    def __init__(self, bin_dir, engine, workers, keys=(), table=()):
        self.bin = pathlib.Path(bin_dir)
        self.engine = engine
        self.workers = workers
        self.keys, self.table = keys, table
        self.children = {}  # workers, by rank: the newest of each
        self._all = processes.Children()

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="prd-measure-")
        self.dir = pathlib.Path(self._temporary.name)
        (self.dir / "snapshots").mkdir()
        self._cpu_s = cpu_s()
        self.port = processes.free_port()
        (self.dir / "prd.toml").write_text(
            CONFIG.format(
                port=self.port, dir=self.dir, job=JOB, engine=self.engine, workers=self.workers,
                keys="\n".join(self.keys), table="\n".join(self.table),
            )
        )  # fmt: skip
        try:
            with daemon.ReadySocket(self.dir) as ready:
                self.prd = self._all.start(
                    "prd", [self.bin / "prd", "--config", self.dir / "prd.toml"], self.dir / "prd.log", ready.environment
                )
                ready.wait(self.prd.process.poll, self.prd.log, START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._all.end()
        self._temporary.cleanup()

    def log(self, rank):
        return self.dir / f"worker-{rank}.jsonl"

    def environment(self):
        """Of a worker, but for its rank."""
        return {
            "PRD_CONTROLLER": f"tcp://127.0.0.1:{self.port}", "PRD_JOB": JOB, "PRD_WORLD_SIZE": str(self.workers), "PYTHONPATH": str(PACKAGE),
            "PRD_LIBRARY": str(self.bin.resolve().parent / "worker/libprd.so.0"), **ONE_THREAD,
        }  # fmt: skip

    def start(self, rank, program, arguments, output=None):
        """Starts a worker, in the place of an earlier one perhaps. `output`: where to if not to what printed() reads."""
        environment = {**self.environment(), "PRD_RANK": str(rank)}
        number = len(list(self.dir.glob(f"worker-{rank}.*.log")))
        command = ["nice", "-n", "10", self.bin / program, *map(str, arguments)]
        self.children[rank] = self._all.start(
            f"worker {rank}", command, self.dir / f"worker-{rank}.{number}.log", environment,
            output=output or self.dir / f"worker-{rank}.out",
        )  # fmt: skip
        return self.children[rank]

    def lines(self, rank):
        """Of the worker's step log (--log), as far as they are written."""
        try:
            return [json.loads(line) for line in self.log(rank).read_bytes().split(b"\n")[:-1] if line]
        except FileNotFoundError:
            return []

    def steps(self, rank):
        return [line for line in self.lines(rank) if "iteration" in line]

    def wait_for_steps(self, rank, count):
        """Until that worker has logged so many. It writes its log twice a second at least, if it writes snapshots."""
        deadline = time.monotonic() + END_S
        while len(self.steps(rank)) < count:
            if not self.children[rank].running():
                raise ToolError(self.children[rank].how_it_ended())
            if time.monotonic() > deadline:
                raise ToolError(f"worker {rank} has not made {count} steps within {END_S} s")
            time.sleep(0.05)

    def wait(self):
        """For the end of all workers, and then of the daemon. Gives the processor time of all, in seconds."""
        processes.wait_all(self.children.values(), END_S, "the start")
        self.prd.process.terminate()
        processes.wait_all([self.prd], START_S, "SIGTERM")
        return round(cpu_s() - self._cpu_s, 1)

    def printed(self, rank, name):
        """All values of that name that the worker has printed, in order."""
        lines = (self.dir / f"worker-{rank}.out").read_text().splitlines()
        return [json.loads(line)[name] for line in lines if f'"{name}"' in line]

    def records(self):
        """The history of the ended run. REQUIRES: wait."""
        out = self.dir / "records.jsonl"
        command = [self.bin / "prdctl", "--state-dir", self.dir / "state", "export", JOB, "--format", "jsonl", "-o", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolError(f"prdctl export: {done.stderr}")
        with open(out, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def snapshots(self):
        """By rank: (header's time, whether it is final, path), by time."""
        found = collections.defaultdict(list)
        for path in (self.dir / "snapshots").glob("snapshot-*.bin"):
            with open(path, "rb") as file:
                header = SNAPSHOT.unpack(file.read(SNAPSHOT.size))
            found[header[2]].append((header[4], bool(header[3]), path))
        return {rank: sorted(of) for rank, of in found.items()}

    def evaluations(self, model, last_s, every_ms):
        """Accuracies of the averaged model at the end, and of the final one. REQUIRES: wait."""
        snapshots = self.snapshots()
        end = max(time_ns for of in snapshots.values() for time_ns, final, _ in of if not final)
        for of in snapshots.values():
            for time_ns, _, path in of:
                if time_ns < end - last_s * 1e9:
                    path.unlink()
        command = [
            self.bin / "prd-evaluate", "--model", model, "--snapshot-dir", self.dir / "snapshots", "--workers",
            str(self.workers), "--every-ms", str(every_ms), "--keep",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ, **ONE_THREAD))
        if done.returncode != 0:
            raise ToolError(f"prd-evaluate: {done.stderr}")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [line for line in lines if not line["final"]], next(line for line in lines if line["final"])
