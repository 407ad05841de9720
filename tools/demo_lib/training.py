"""One training run of the demo: prd with a config, the workers, and the evaluator beside them."""
import json
import os
import pathlib
import subprocess
import time

import daemon
import engines
import history
import options as command_line
import processes
import summary
from processes import ToolError

JOB = "demo"
START_S = 120  # for all workers to load, join and begin
END_S = 60  # from the last worker's end to the last evaluation
PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "worker/python"
EXAMPLE = PACKAGE / "examples/fashion_mnist.py"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

CONFIG = """\
# Written by tools/demo. Between runs of different engines, only the line `engine` differs.
[daemon]
listen = "ipc://{dir}/workers.sock"
admin = "ipc://{dir}/admin.sock"
state_dir = "{dir}/state"
{keys}
[[job]]
name = "{job}"
engine = "{engine}"
workers = {workers}
{goal}{job_keys}
{tables}
"""

KEYS = """\
curve_secret_key_file = "{dir}/prd.key"
curve_authorized_keys_file = "{dir}/workers.pub"
"""


class Settings:
    """What all runs of a demo have in common: the parsed options, and where things are."""

    def __init__(self, options, bin_dir, work_dir):
        self.options = options
        self.bin = pathlib.Path(bin_dir)
        self.dir = pathlib.Path(work_dir)

    @property
    def measure(self):
        return command_line.measure(self.options)

    def share_done(self, evaluation):
        """How much of a run is done at an evaluation: 1 at its end."""
        if self.options.seconds:
            return evaluation["time_s"] / self.options.seconds
        return evaluation["samples"] / command_line.examples(self.options)


class Run:
    """The run of one engines.Engine. .evaluations grows as it goes."""

    def __init__(self, settings, engine, progress):
        self.settings = settings
        self.engine = engine
        self.progress = progress
        self.dir = settings.dir / engine.file_name
        self.config = self.dir / "prd.toml"
        self.evaluations = []
        self.killed = set()  # ranks
        self._unread = 0

    def check_config(self):
        """Raises ToolError if prd would refuse the config, so that no run before this one is in vain."""
        (self.dir / "snapshots").mkdir(parents=True)
        if self.settings.options.keys:
            for name in ("prd", "workers"):
                self.program("prdctl keygen", "prdctl", "keygen", self.dir / name)
        self.write_config()
        self.program(f"{self.engine.text}: prd --check-config", "prd", "--config", self.config, "--check-config")

    def run(self, children, ready):
        """ready: called once prd is. REQUIRES: check_config."""
        prd = self.start_prd(children)
        ready()
        workers = [self.start_worker(children, rank) for rank in range(self.settings.options.workers)]
        evaluator = self.start_evaluator(children)
        prd = self.watch(children, prd, workers, evaluator)
        processes.wait_all([evaluator], END_S, "the end of the training")
        self.read_evaluations()
        self.check_replicas()
        prd.process.terminate()
        processes.wait_all([prd], END_S, "SIGTERM")

    # Starting.

    def write_config(self):
        options = self.settings.options
        self.config.write_text(
            CONFIG.format(
                dir=self.settings.dir, job=JOB, engine=self.engine.name, workers=options.workers,
                goal="" if options.seconds else f"goal_samples = {command_line.examples(options)}\n",
                job_keys="".join(line + "\n" for line in self.engine.job_lines()),
                keys=KEYS.format(dir=self.dir) if options.keys else "",
                tables=engines.tables(self.engine, options.engines, options.group_size),
            )
        )

    def start_prd(self, children):
        """Starts the daemon and waits until it is ready."""
        with daemon.ReadySocket(self.dir) as ready:
            prd = children.start(
                "prd", [self.settings.bin / "prd", "--config", self.config], self.dir / "prd.log", ready.environment
            )
            ready.wait(prd.process.poll, prd.log, 30)
        return prd

    def start_worker(self, children, rank):
        options = self.settings.options
        program = [
            self.settings.bin / "prd-train", "--data", options.data, "--model", options.model,
            "--shards", options.shards,
        ]  # fmt: skip
        if options.model == "hyperplane":
            program = [self.settings.bin / "prd-train-hyperplane"]
        elif options.torch:
            program = ["/usr/bin/python3", "-B", EXAMPLE, *program[1:]]
        command = [
            *program, "--batch", str(options.batch), "--lr", str(options.lr), "--lr-decay", str(options.lr_decay),
            "--seed", str(options.seed), "--step-ms", str(options.step_ms),
            "--snapshot-dir", self.dir / "snapshots", "--snapshot-ms", str(max(1, options.evaluate_ms // 2)),
            "--log", self.dir / f"worker-{rank}.jsonl",
        ]  # fmt: skip
        if options.seconds:
            command += ["--seconds", str(options.seconds)]
        for slow, factor in options.slow.items():
            command += ["--slow", f"{slow}:{factor}"]
        if options.inject:
            command += ["--inject", options.inject]
        environment = {
            "PRD_CONTROLLER": f"ipc://{self.settings.dir}/workers.sock",
            "PRD_JOB": JOB,
            "PRD_RANK": str(rank),
            "PRD_WORLD_SIZE": str(options.workers),
            "PYTHONPATH": str(PACKAGE),
            "PRD_LIBRARY": os.environ.get("PRD_LIBRARY") or str(self.settings.bin.resolve().parent / "worker/libprd.so.0"),
            **ONE_THREAD,
        }
        if options.keys:
            environment["PRD_CURVE_SERVER_KEY"] = (self.dir / "prd.pub").read_text(encoding="ascii").split()[0]
            environment["PRD_CURVE_SECRET_KEY_FILE"] = str(self.dir / "workers.key")
        return children.start(f"worker {rank}", command, self.dir / f"worker-{rank}.log", environment)

    def start_evaluator(self, children):
        options = self.settings.options
        command = [
            self.settings.bin / "prd-evaluate",
            "--data", options.data, "--model", options.model, "--seed", str(options.seed),
            "--snapshot-dir", self.dir / "snapshots",
            "--workers", str(options.workers), "--every-ms", str(options.evaluate_ms), "--timeout-s", str(START_S),
        ]  # fmt: skip
        return children.start(
            "prd-evaluate", command, self.dir / "evaluate.log", ONE_THREAD, self.dir / "evaluations.jsonl"
        )

    # Watching.

    def read_evaluations(self):
        """Takes in the evaluator's lines that are complete by now."""
        with open(self.dir / "evaluations.jsonl", "rb") as file:
            file.seek(self._unread)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._unread += len(line)
                self.evaluations.append(json.loads(line))

    def watch(self, children, prd, workers, evaluator):
        """Follows the training until all workers have ended, by the job's goal or their time. Gives prd."""
        limit_s = self.settings.options.limit_s
        kills = sorted(self.settings.options.kill, key=lambda kill: kill[1])
        begun = time.monotonic()
        training_since = None
        while workers:
            for child in (prd, *workers, evaluator):
                if not child.running() and (child is prd or child.process.returncode != 0):
                    raise ToolError(child.how_it_ended())
            workers = [worker for worker in workers if worker.running()]
            self.read_evaluations()
            now = time.monotonic()
            if self.evaluations and training_since is None:
                training_since = now
            done = self.settings.share_done(self.evaluations[-1]) if self.evaluations else 0
            self.progress.show(self, begun)
            if training_since is None and now - begun > START_S + 10:
                raise ToolError(f"the training did not begin within {START_S} s")
            if training_since is not None and now - training_since > limit_s:
                raise ToolError(
                    f"{self.engine.text}: {done:.0%} of the run within the time limit of {limit_s:.0f} s; allow more "
                    "with --limit-s"
                )
            if training_since is not None and kills and now - training_since >= kills[0][1]:
                prd, workers = self.kill(kills.pop(0)[0], children, prd, workers)
            time.sleep(0.1)
        self.progress.done(self, begun)
        return prd

    def kill(self, who, children, prd, workers):
        """kill -9 of prd, which is started again, or of a worker, which is not."""
        if who == "prd":
            prd.process.kill()
            prd.process.wait()
            prd = self.start_prd(children)
            self.progress.note("             killed prd, and started it again")
            return prd, workers
        victim = next((worker for worker in workers if worker.name == f"worker {who}"), None)
        if victim is None:
            raise ToolError(f"worker {who} had ended when it was to be killed")
        victim.process.kill()
        victim.process.wait()
        self.killed.add(who)
        self.progress.note(f"             killed worker {who}")
        return prd, [worker for worker in workers if worker is not victim]

    # What it gave.

    def check_replicas(self):
        final = next((e for e in self.evaluations if e["final"]), None)
        if final is None:
            raise ToolError("prd-evaluate printed no final line")
        workers = self.settings.options.workers - len(self.killed)
        if final["live"] != workers or final["spread"] != 0:
            raise ToolError(
                f"{self.engine.text}: {final['live']} of {workers} workers ended, with models that differ by up to "
                f"{final['spread']}; all should have the same"
            )

    def logs(self):
        logs = []
        for rank in range(self.settings.options.workers):
            with open(self.dir / f"worker-{rank}.jsonl", encoding="utf-8") as file:
                logs.append(summary.WorkerLog(file))
        return logs

    def result(self):
        """The object for summary.json. Raises ToolError."""
        logs = self.logs()
        name = self.engine.name
        for log in logs:
            if log.start["engine"] != name:
                raise ToolError(f"worker {log.start['rank']} trained under {log.start['engine']}, not {name}")
        records = self.dir / "records.jsonl"
        self.prdctl("export", JOB, "--format", "jsonl", "-o", records)
        with open(records, encoding="utf-8") as file:
            counts = history.counts(file)
        options = self.settings.options
        # Where the first one stopped: after that fewer train.
        stop_ns = min(log.steps[-1]["end_ns"] for log in logs if log.finished and log.steps)
        measured = summary.Measured(self.engine, logs, self.evaluations, stop_ns, counts)
        return summary.summarize(
            measured, self.settings.measure, options.target, options.group_size, bool(options.inject)
        )

    def program(self, what, name, *arguments):
        """Runs a program to its end. Raises ToolError if it does not end well."""
        command = [self.settings.bin / name, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        except OSError as error:
            raise ToolError(f"{name} cannot be started: {error}") from None
        if done.returncode != 0:
            raise ToolError(f"{what} ended with exit code {done.returncode}: {done.stderr.strip()}")

    def prdctl(self, command, *arguments):
        """Runs prdctl on the history of the ended run. Raises ToolError."""
        self.program(f"prdctl {command}", "prdctl", "--state-dir", self.settings.dir / "state", command, *arguments)

    def check_history(self):
        """Every decision of the run follows from what came before it: the history is whole."""
        self.prdctl("replay", JOB)

    def export_trace(self, output):
        """Writes the run as a trace that Perfetto opens."""
        self.prdctl("export", JOB, "--format", "trace", "-o", output)
