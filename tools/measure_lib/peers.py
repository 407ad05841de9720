"""prd's engines and their peers, with one model and one loop (peer_worker.py): how fast, what a death costs, what is learned."""
import ast
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

import processes
from training import ONE_THREAD, Training

FOLDER = pathlib.Path(__file__).resolve().parent
LIGHTHOUSE = ["--min_replicas", "1", "--join_timeout_ms", "1000"]
NEEDS = {"DistributedDataParallel": "torch", "torchft DDP": "torchft", "torchft DiLoCo": "torchft", "hivemind": "hivemind"}
SETTINGS = {
    "alone": "no other worker is heard of: the bound",
    "DistributedDataParallel": "gloo",
    "torchft DDP": "gloo, lighthouse with a join timeout of 1 s (default: 60 s)",
    "torchft DiLoCo": "the same; sync_every 20, outer SGD 0.7 with Nesterov momentum 0.9",
    "hivemind": "use_local_updates, an epoch of 20 steps a worker, matchmaking 1 s",
}
# Workers, model, milliseconds of sleep in a step, and those of the last worker. killed: that one dies, and is started again 3 s
# later. joins: that one starts when a quarter of the time is over.
CASES = {
    "4 equal": dict(workers=4, size="small", sleep_ms=40, last_ms=40),
    "4, one 5 times slower": dict(workers=4, size="small", sleep_ms=40, last_ms=200),
    "8, one 5 times slower": dict(workers=8, size="small", sleep_ms=40, last_ms=200),
    "4, one killed": dict(workers=4, size="small", sleep_ms=40, last_ms=40, killed=True),
    "4, one joins": dict(workers=4, size="small", sleep_ms=40, last_ms=40, joins=True),
    "no sleep, small, 2": dict(workers=2, size="small", sleep_ms=0, last_ms=0),
    "no sleep, small, 4": dict(workers=4, size="small", sleep_ms=0, last_ms=0),
    "no sleep, 160 tensors, 2": dict(workers=2, size="tensors", sleep_ms=0, last_ms=0),
    "no sleep, 1,000 tensors, 2": dict(workers=2, size="more tensors", sleep_ms=0, last_ms=0),
    "no sleep, wide, 2": dict(workers=2, size="wide", sleep_ms=0, last_ms=0),
    "no sleep, wide, 4": dict(workers=4, size="wide", sleep_ms=0, last_ms=0),
}
# Why a peer is left out of a case.
CANNOT = {
    ("DistributedDataParallel", "killed"): "it ends with the worker", ("DistributedDataParallel", "joins"): "its number of workers is fixed",
    ("alone", "killed"): "it has no others", ("alone", "joins"): "it has no others",
}  # fmt: skip
START_S = 180


class Worker:
    """A process of peer_worker.py, and what it printed."""

    def __init__(self, python, settings, environment, log):
        self.begins, self.ready, self.cpu_s, self.steps, self.thrown, self.losses = None, None, None, [], [], []
        self.process = subprocess.Popen([python, "-B", FOLDER / "peer_worker.py", json.dumps(settings)], stdout=subprocess.PIPE, stderr=log, text=True,
                                        env={**os.environ, **ONE_THREAD, **environment}, start_new_session=True)  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            what, *numbers = line.split()
            if what in ("begins", "ready"):
                setattr(self, what, float(numbers[0]))
            elif what == "cpu":
                self.cpu_s = float(numbers[0])
            elif what == "e":
                self.losses.append((float(numbers[0]), float(numbers[1])))
            elif what in ("s", "x"):
                (self.steps if what == "s" else self.thrown).append(float(numbers[0]))

    def end(self):
        """hivemind leaves processes behind: all of its session go."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.reader.join()


def missing(python, peer):
    """Why the peer cannot be measured with this Python; None: it can."""
    module = NEEDS.get(peer, "torch")
    try:
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True)
    except OSError as error:
        return f"--python: {error}"
    return None if done.returncode == 0 else f"{module} cannot be imported: {done.stderr.strip().splitlines()[-1]}"


def lines_changed(peer):
    """Of a script that trains alone: the statements of the peer's class in peer_worker.py, and of those that it is made of."""
    tree = ast.parse((FOLDER / "peer_worker.py").read_text())
    kinds = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    peers = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "PEERS")
    kind = {key.value: value.id for key, value in zip(peers.keys, peers.values)}.get(peer, "Prd")
    count = 0
    while kind != "Alone":
        for node in ast.walk(kinds[kind]):
            said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            count += isinstance(node, ast.stmt) and not said and not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Return))
        kind = kinds[kind].bases[0].id
    return count


def run(options, peer, case, seconds):
    """One case under one peer, as a JSON object."""
    engine, table = options.prd.get(peer) or next(iter(options.prd.values()))  # of a daemon that no other peer asks
    first = case["workers"] - case.get("joins", False)
    with Training(options.bin, engine, first, (), table) as training:
        environment, lighthouse = training.environment(), None
        log = open(training.dir / "peers.err", "w+")
        if peer.startswith("torchft"):
            port = processes.free_port()
            command = [pathlib.Path(options.python).parent / "torchft_lighthouse", *LIGHTHOUSE, "--bind", f"[::]:{port}"]
            lighthouse = subprocess.Popen(command, stdout=log, stderr=log)
            environment["TORCHFT_LIGHTHOUSE"] = f"http://localhost:{port}"
        workers, dead, later = [], None, what_comes_later(case)

        def start(rank):
            settings = dict(peer=peer, rank=rank, workers=case["workers"], size=case["size"], folder=str(training.dir), evaluates=case["sleep_ms"] > 0,
                            sleep_ms=case["last_ms"] if rank == case["workers"] - 1 else case["sleep_ms"])  # fmt: skip
            return Worker(options.python, settings, dict(environment, PRD_RANK=str(rank)), log)

        def failed(why):
            log.seek(0)
            raise processes.ToolError(f"{why}: {log.read()[-600:]}")

        try:
            workers = [start(rank) for rank in range(first)]
            until = time.monotonic() + START_S
            while any(worker.ready is None for worker in workers):
                if time.monotonic() > until or any(worker.process.poll() is not None for worker in workers):
                    failed("a worker does not start")
                time.sleep(0.05)
            began = time.monotonic() + 3  # the first steps make connections
            ends = began + seconds
            (training.dir / "go.new").write_text(str(ends))
            (training.dir / "go.new").rename(training.dir / "go")
            if later:
                time.sleep(began + seconds / 4 - time.monotonic())
                if later == "killed":
                    dead = workers[-1]
                    os.killpg(dead.process.pid, signal.SIGKILL)
                    killed = time.monotonic()
                    time.sleep(3)
                workers.append(start(case["workers"] - 1))
            while time.monotonic() < ends + 15 and any(worker.process.poll() is None for worker in workers):
                time.sleep(0.05)
        finally:
            for worker in workers:
                worker.end()
            if lighthouse is not None:
                lighthouse.kill()
                lighthouse.wait()
        found = {"steps_per_s": round(sum(began <= t < ends for worker in workers for t in worker.steps) / seconds, 1)}
        thrown = sum(began <= t < ends for worker in workers for t in worker.thrown)
        if thrown:
            found["thrown_away_per_s"] = round(thrown / seconds, 1)
        if found["steps_per_s"] == 0:
            failed("no worker makes steps")
        used = [(worker.cpu_s, len(worker.steps) + len(worker.thrown)) for worker in workers if worker.cpu_s is not None]
        if used:
            found["cpu_ms_per_step"] = round(1000 * sum(cpu for cpu, _ in used) / max(1, sum(steps for _, steps in used)), 2)
        times = sorted(t for worker in workers for t in worker.steps)
        losses = [(round(sum(t <= at for t in times) * 32), loss) for at, loss in workers[0].losses]
        at = [loss for samples, loss in losses if samples >= options.samples]
        if losses:
            found["loss_at_samples"] = round(at[0], 3) if at else None
        if dead is not None:
            survivors = [worker for worker in workers if worker is not dead][: case["workers"] - 1]
            found["gap_s"] = round(max(gap(worker.steps, killed, ends) for worker in survivors), 2)
        if later:
            new = workers[-1]
            found["newcomer_s"] = round(new.steps[0] - new.begins, 2) if new.steps and new.begins else None
            if later == "joins" and new.begins:
                found["gap_s"] = round(max(gap(worker.steps, new.begins, ends) for worker in workers[:-1]), 2)
        return found


def what_comes_later(case):
    return next((what for what in ("killed", "joins") if case.get(what)), None)


def gap(steps, since, until):
    """The longest time between two steps that ends after `since`."""
    first = max((i for i, t in enumerate(steps) if t <= since), default=0)
    times = [t for t in steps[first:] if t <= until] + [until]
    return max((b - a for a, b in zip(times, times[1:])), default=until - since)


def measure(options):
    """All cases under all peers, which take turns; a JSON line with the medians for each, and one for each peer with its settings.

    options.prd: (engine, lines of its table) by the name that it has as a peer.
    """
    peers = []
    for peer in ["alone", *NEEDS, *options.prd]:
        if not any(name in peer for name in options.peer):
            continue
        why = missing(options.python, peer)
        if why is None:
            peers.append(peer)
        print(json.dumps({"what": "peers", "peer": peer, **({"absent": why} if why else {"settings": SETTINGS.get(peer) or ", ".join(options.prd[peer][1]) or "defaults",
                          "lines_changed": lines_changed(peer)})}), flush=True)  # fmt: skip
    for name, case in CASES.items():
        if not any(part in name for part in options.case):
            continue
        able = [peer for peer in peers if (peer, what_comes_later(case)) not in CANNOT]
        runs = {peer: [] for peer in able}
        for _ in range(options.rounds):
            alone = None
            for peer in able:
                try:
                    found = run(options, peer, case, options.seconds)
                except processes.ToolError as error:
                    print(f"tools/measure: {name}, {peer}: {error}", file=sys.stderr)
                    continue
                step_ms = 1000 * case["workers"] / found["steps_per_s"]
                if peer == "alone":
                    alone = step_ms
                elif alone is not None and case["sleep_ms"] == 0:
                    found["own_ms_per_step"] = round(step_ms - alone, 2)
                runs[peer].append(found)
        for peer in peers:
            line = {"what": "peers", "case": name, "peer": peer}
            if peer not in able:
                line["absent"] = CANNOT[peer, what_comes_later(case)]
            elif runs[peer]:
                keys = dict.fromkeys(key for one in runs[peer] for key in one)
                line["runs"] = len(runs[peer])
                for key in keys:
                    told = [one[key] for one in runs[peer] if one.get(key) is not None]
                    line[key] = round(statistics.median(told), 3) if told else None
            else:
                line["absent"] = "no run came to its end"
            print(json.dumps(line), flush=True)
    return 0
