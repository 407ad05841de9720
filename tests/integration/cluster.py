"""A daemon and workers as real processes, for the integration tests. Standard library only."""
from concurrent import futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/job_lib"))
import daemon as daemon_lib
from processes import free_port

DEADLINE_S = 90  # for whatever a test waits for; none depends on being quicker


class Worker:
    """A toy_worker process; its lines, as they come, are in .lines."""

    def __init__(self, cluster, rank, steps=20, step_ms=20, size=10_000, job="toy", leave=False, inside=(), device=False, controller=None,
                 velocity="none", args=(), env=(), program="toy_worker"):
        """inside: the command that runs another one where the worker is to be; device: of the stand-in's, its model is on one;
        controller: the daemon's endpoint as this worker is told it; velocity: of momentum, "own" or "state";
        args: more for its command line; env: more of its environment; program: another one, which takes `args` alone."""
        usual = {"PRD_CONTROLLER": controller or cluster.endpoint, "PRD_JOB": job, "PRD_TIMEOUT_MS": "60000"}
        env = {**os.environ, **usual, **cluster.keys, **dict(env)}
        if rank is not None:
            env["PRD_RANK"] = str(rank)
        command = [*inside, f"{cluster.bin}/{program}"]
        if program == "toy_worker":
            command += ["--steps", str(steps), "--step-ms", str(step_ms), "--size", str(size), "--velocity", velocity]
        command += args
        if leave:
            command.append("--leave")
        if device:  # a stand-in for CUDA and NCCL: tests/standin
            env["PRD_CUDA_MODULE"] = f"{cluster.bin}/libprd_standin_module.so"
            command += ["--device", "cuda:0"]
        self.lines = []
        self.came = []  # when, by time.monotonic
        self.changed = threading.Condition()
        self.log = open(cluster.dir / f"worker-{rank}-{time.monotonic_ns()}.err", "w+")
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(json.loads(line))
                self.came.append(time.monotonic())
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, predicate, what, deadline_s=DEADLINE_S):
        """Waits until a line fits, or fails saying what was waited for."""
        end = time.monotonic() + deadline_s
        with self.changed:
            while not any(predicate(line) for line in self.lines):
                left = end - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self.reader.is_alive()):
                    raise AssertionError(f"no {what}; the worker said {self.lines[-3:]} {self._stderr()}")
                self.changed.wait(min(left, 0.2))
        return next(line for line in self.lines if predicate(line))

    def steps(self):
        return [line for line in self.lines if "step" in line]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.reader.join()
        self.process.stdout.close()
        self.log.close()

    def end(self):
        """Waits for a good end and returns its last line."""
        line, code = self._last()
        if code != 0:
            raise AssertionError(f"the worker ended with {code}; it said {self.lines[-3:]} {self._stderr()}")
        return line

    def fail(self):
        """Waits for an end with an error and returns what it says."""
        line, code = self._last()
        if code != 1 or "error" not in line:
            raise AssertionError(f"the worker ended with {code}, not with an error; it said {self.lines[-3:]} {self._stderr()}")
        return line["error"]

    def _last(self):
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker does not end; it said {self.lines[-3:]}") from None
        self.reader.join()
        self.process.stdout.close()
        return (self.lines[-1] if self.lines else {}), code

    def stop(self):
        """Puts it to sleep."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self):
        self.process.send_signal(signal.SIGCONT)

    def _stderr(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()[-2000:]


def wait_until(check, what):
    end = time.monotonic() + DEADLINE_S
    while not check():
        if time.monotonic() > end:
            raise AssertionError(f"not seen: {what}")
        time.sleep(0.1)


def first_to_end(workers):
    """Waits for any of these to end, and returns it."""
    with futures.ThreadPoolExecutor(len(workers)) as pool:
        waits = {pool.submit(w.process.wait, DEADLINE_S): w for w in workers}
        done, _ = futures.wait(waits, return_when=futures.FIRST_COMPLETED)
        for w in workers:
            w.process.kill()  # the others' waits end too
        return waits[done.pop()]


class Cluster:
    """One daemon with a state directory of its own. Use in a with statement: it leaves nothing behind."""

    def __init__(self, bin_dir, jobs, daemon="", inside=(), address="127.0.0.1"):
        """inside: the command that runs another one where the daemon is to be; address: its own there, with keys for all
        workers unless `daemon` names a key."""
        self.bin = bin_dir
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="prd-test-"))
        self.port = free_port()
        self.endpoint = f"tcp://[{address}]:{self.port}" if ":" in address else f"tcp://{address}:{self.port}"
        self.inside = inside
        self.keys = {}  # what a worker has in its environment to be let in
        if address != "127.0.0.1" and "curve_secret_key_file" not in daemon:
            lines, self.keys = daemon_lib.make_keys(self.bin, self.dir)
            daemon += lines
        self.admin = f"ipc://{self.dir}/admin.sock"
        self.config = self.dir / "prd.toml"
        self.config.write_text(
            f'[daemon]\nlisten = "{self.endpoint}"\nadmin = "{self.admin}"\n'
            f'state_dir = "{self.dir}/state"\nlog_level = "debug"\n{daemon}\n{jobs}\n'
        )
        self.daemon = None
        self.workers = []
        self.log = open(self.dir / "prd.log", "a+")

    def __enter__(self):
        try:
            self.start_daemon()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.close()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(20)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start_daemon(self):
        with daemon_lib.ReadySocket(self.dir) as ready:
            self.daemon = subprocess.Popen(
                [*self.inside, f"{self.bin}/prd", "--config", str(self.config)],
                env=dict(os.environ, **ready.environment), stdout=self.log, stderr=self.log,
            )
            ready.wait(self.daemon.poll, self.dir / "prd.log", DEADLINE_S)

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def stop_daemon(self):
        self.daemon.send_signal(signal.SIGTERM)
        code = self.daemon.wait(30)
        if code != 0:
            raise AssertionError(f"prd ended with {code} on SIGTERM: {self.daemon_log()}")

    def daemon_log(self):
        return (self.dir / "prd.log").read_text()[-3000:]

    def worker(self, rank, **options):
        self.workers.append(Worker(self, rank, **options))
        return self.workers[-1]

    def prdctl(self, *args, offline=False):
        """Runs prdctl --json on the running daemon, or on its files, and returns what it printed."""
        where = ["--state-dir", f"{self.dir}/state"] if offline else ["--admin", self.admin]
        done = subprocess.run([f"{self.bin}/prdctl", *where, "--json", *args], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"prdctl {args} ended with {done.returncode}: {done.stderr}")
        return done.stdout
