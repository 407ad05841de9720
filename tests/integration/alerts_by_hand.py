#!/usr/bin/env python3
"""Each alert on the fault that it is for: a real daemon, real workers, a real Prometheus with config/prometheus.

Not among the tests, since it takes minutes and needs Debian's package prometheus, and root for links and disks:
  tests/integration/alerts_by_hand.py BIN_DIR [ALERT ...]
Prints a line per alert: the seconds from the fault to the firing alert. Fails if one took over 60.
"""
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import cluster
import hosts

BIN = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin"
CONFIG = pathlib.Path(__file__).resolve().parents[2] / "config/prometheus"
ALLOWED_S = 60


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


class Prometheus:
    def __init__(self, target, inside=()):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="prd-prometheus-"))
        self.port = cluster.free_port()
        self.url = f"http://127.0.0.1:{self.port}/api/v1/"
        text = (CONFIG / "prometheus.yml").read_text()
        assert "127.0.0.1:9464" in text
        (self.dir / "prometheus.yml").write_text(text.replace("127.0.0.1:9464", target))
        shutil.copy(CONFIG / "prd.rules.yml", self.dir)
        self.log = open(self.dir / "log", "w")
        self.process = subprocess.Popen(
            [*inside, "prometheus", f"--config.file={self.dir}/prometheus.yml", f"--storage.tsdb.path={self.dir}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def firing(self):
        with contextlib.suppress(OSError):
            return {a["labels"]["alertname"] for a in get(self.url + "alerts")["data"]["alerts"] if a["state"] == "firing"}
        return set()

    def value(self, query):
        with contextlib.suppress(OSError):
            found = get(self.url + "query?query=" + urllib.request.quote(query))["data"]["result"]
            return float(found[0]["value"][1]) if found else 0
        return 0


def wait_for(what, done, seconds):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"no {what} within {seconds} s")
        time.sleep(0.25)


def fires(prometheus, alert, fault, within=2 * ALLOWED_S):
    """Makes the fault once steps are seen and no alert fires; gives the seconds until the alert does."""
    wait_for("steps in Prometheus", lambda: prometheus.value("sum(prd_job_steps_total)") > 20, 60)
    time.sleep(11)  # a second scrape, and an evaluation
    assert alert not in prometheus.firing(), f"{alert} fires before its fault: {prometheus.firing()}"
    begun = time.monotonic()
    fault()
    wait_for(alert, lambda: alert in prometheus.firing(), within)
    return time.monotonic() - begun


@contextlib.contextmanager
def job(engine, workers=2, lease_ms=3000, jobs="", **of_worker):
    port = cluster.free_port()
    text = f'[[job]]\nname = "toy"\nengine = "{engine}"\nworkers = {workers}\nlease_ms = {lease_ms}\nheartbeat_ms = 500\n{jobs}'
    with cluster.Cluster(BIN, text, daemon=f'metrics = "127.0.0.1:{port}"') as c:
        started = [c.worker(rank, steps=10**6, step_ms=50, **of_worker) for rank in range(workers)]
        with Prometheus(f"127.0.0.1:{port}") as prometheus:
            yield c, started, prometheus


def down():
    with job("p-reduce") as (c, _, prometheus):
        return fires(prometheus, "PrdDown", c.kill_daemon)


def solo():
    with job("p-reduce") as (_, workers, prometheus):
        return fires(prometheus, "PrdSoloTraining", workers[1].kill)


def no_progress():
    """A worker's training loop hangs, and all others wait for it; its process says that it lives."""
    with tempfile.TemporaryDirectory(prefix="prd-hang-") as folder:
        hang = pathlib.Path(folder) / "hang"
        with job("all-reduce", args=["--hang-file", hang]) as (_, _, prometheus):
            return fires(prometheus, "PrdNoProgress", hang.touch)


def differ():
    """A worker comes back, to an optimizer whose momentum is no state of the replica."""
    with job("all-reduce", workers=3, velocity="own") as (c, workers, prometheus):
        def comes_back():
            workers[2].kill()
            c.worker(2, steps=10**6, step_ms=50, velocity="own")

        return fires(prometheus, "PrdReplicasDiffer", comes_back)


def start_waits():
    """Of another job's first two workers one comes."""
    with job("p-reduce", jobs='[[job]]\nname = "late"\nengine = "p-reduce"\nworkers = 2\n') as (c, _, prometheus):
        return fires(prometheus, "PrdStartWaits", lambda: c.worker(0, job="late", env={"PRD_START_TIMEOUT_MS": "1200000"}))


def flapping():
    with job("p-reduce", workers=3) as (c, workers, prometheus):
        over = threading.Event()

        def flap():
            worker = workers[2]
            while not over.is_set():
                worker.kill()
                worker = c.worker(2, steps=10**6, step_ms=50)
                over.wait(6)

        thread = threading.Thread(target=flap)
        try:
            return fires(prometheus, "PrdWorkerFlapping", thread.start)
        finally:
            over.set()
            thread.join()


@contextlib.contextmanager
def small_disk(c, size):
    state = c.dir / "state"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(state)], check=True)
    try:
        yield state
    finally:
        subprocess.run(["umount", "-l", str(state)], check=False)


def disk(alert, size, filler):
    port = cluster.free_port()
    c = cluster.Cluster(BIN, '[[job]]\nname = "toy"\nengine = "p-reduce"\nworkers = 2\n', daemon=f'metrics = "127.0.0.1:{port}"')
    with small_disk(c, size) as state, c:
        for rank in range(2):
            c.worker(rank, steps=10**6, step_ms=50)
        with Prometheus(f"127.0.0.1:{port}") as prometheus:
            def fill():
                subprocess.run(["dd", "if=/dev/zero", f"of={state}/filler", "bs=64k", *filler], stderr=subprocess.DEVNULL, check=False)

            return fires(prometheus, alert, fill)


def cut():
    """Two hosts with a worker each; nothing that one sends reaches the other."""
    text = '[[job]]\nname = "toy"\nengine = "all-reduce"\nworkers = 2\nlease_ms = 5000\n'
    port = cluster.free_port()
    with hosts.Hosts(3, "1gbit") as at, cluster.Cluster(BIN, text, inside=at.enter(0), address=at.address(0),
                                                        daemon=f'metrics = "127.0.0.1:{port}"') as c:  # fmt: skip
        for rank in range(2):
            c.worker(rank, steps=10**6, step_ms=50, inside=at.enter(rank + 1))
        # Prometheus is asked where it runs: in the daemon's namespace.
        with Prometheus(f"127.0.0.1:{port}", inside=at.enter(0)) as prometheus:
            inside = at.enter(0)

            def ask(path):
                done = subprocess.run([*inside, sys.executable, "-c", f"import urllib.request as u; print(u.urlopen('{prometheus.url}{path}', timeout=9).read().decode())"],
                                      capture_output=True, text=True, timeout=30)  # fmt: skip
                if done.returncode != 0:
                    raise OSError(done.stderr)
                return json.loads(done.stdout)

            global get
            plain, get = get, lambda url: ask(url.removeprefix(prometheus.url))
            try:
                return fires(prometheus, "PrdLinkBroken", lambda: at.cut(1, 2))
            finally:
                get = plain


ALERTS = {
    "PrdDown": down, "PrdSoloTraining": solo, "PrdWorkerFlapping": flapping, "PrdLinkBroken": cut, "PrdNoProgress": no_progress,
    "PrdReplicasDiffer": differ, "PrdStartWaits": start_waits, "PrdHistoryStalled": lambda: disk("PrdHistoryStalled", "96m", []),
    "PrdDiskLow": lambda: disk("PrdDiskLow", "700m", ["count=6400"]),  # 400 MiB of it
}  # fmt: skip


def main():
    late = False
    for name in sys.argv[2:] or ALERTS:
        took = ALERTS[name]()
        late = late or took > ALLOWED_S
        print(f"{name}: {took:.0f} s", flush=True)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
