#!/usr/bin/env python3
"""A daemon under siege by a stranger and by a tenant with quotas, all attacks at once, beside a job of somebody else.

Usage, as root: siege_by_hand.py BIN_DIR [SECONDS]. First the job alone, then the same with the attackers. Prints one JSON
line with the job's groups per second and its p99 before and during, the daemon's memory, and the time that /healthz took.
Exit code 1: the daemon has ended.
"""
import itertools
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request

import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release/bin").resolve()
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 600
TENANT, STRANGER = 65534, 65533
JOBS = """
[[identity]]
name = "tenant"
users = ["65534"]
jobs = ["t-*"]
max_jobs = 4
max_workers = 16
max_connections = 32
max_messages_per_s = 2000

[[job]]
name = "*"
engine = "all-reduce"
workers = 2
lease_ms = 10000
"""
GREETING = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".ljust(64, b"\0")
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
PING = b"\x04\x07\x04PING\0\0"


def dial(path, shake=True):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(2)
    sock.connect(path)
    if shake:
        sock.sendall(GREETING + READY)
        sock.recv(4096)
    return sock


def for_ever(act):
    """Again and again, whatever happens to it."""
    while True:
        try:
            act()
        except OSError:
            time.sleep(0.01)


def half_greetings(path):
    held = []
    for _ in range(200):
        held.append(dial(path, shake=False))
        held[-1].sendall(GREETING[:10])
    time.sleep(0.2)


def endless_parts(path):
    sock, part = dial(path), struct.pack(">BQ", 3, 4000) + bytes(4000)
    while True:
        sock.sendall(part)


def heartbeats_and_gone(path):
    sock = dial(path)
    sock.sendall((b"\0\x04none" * 50 + PING) * 40)
    sock.close()


def unread_answers(path, request):
    socks = [dial(path) for _ in range(8)]
    for sock in socks:
        for _ in range(50):
            sock.sendall(b"\x01\0" + b"\0" + bytes([len(request)]) + request)
    time.sleep(2)


def slow_heads(port):
    socks = []
    for _ in range(40):
        socks.append(socket.create_connection(("127.0.0.1", port), 2))
    for byte in b"GET /metrics HTTP/1.1\r\n":
        for sock in socks:
            sock.sendall(bytes([byte]))
        time.sleep(1)


def unique_jobs(environment):
    for number in itertools.count():
        worker = dict(environment, PRD_JOB=f"t-{os.getpid()}-{number}", PRD_RANK="0")
        subprocess.run([BIN / "toy_worker", "--steps", "1", "--leave"], env=worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def readers(admin, job):
    prdctl = [BIN / "prdctl", "--admin", admin]
    for command in itertools.cycle([["export", job], ["jobs"], ["workers", job]]):
        subprocess.run([*prdctl, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def attack(user, act, *args):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)  # with what it starts
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.nice(5)
        for_ever(lambda: act(*args))
    return pid


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1))] if values else None


def measure(c, port, seconds, job):
    """The job's steps, the daemon's memory in MB, and /healthz, for so long."""
    workers = [cluster.Worker(c, rank, steps=1_000_000, step_ms=5, size=1000, job=job) for rank in (0, 1)]
    for worker in workers:
        worker.wait_for(lambda line: line.get("step", 0) > 20, "steps")
    memory, health = [], []
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        asked = time.monotonic()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10).read()
            health.append(time.monotonic() - asked)
        except OSError:
            health.append(10.0)
        status = pathlib.Path(f"/proc/{c.daemon.pid}/status").read_text(encoding="ascii")
        memory.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
        time.sleep(0.5)
    came = [at for at in workers[0].came if at > begin]
    for worker in workers:
        worker.close()
    pauses = [b - a for a, b in zip(came, came[1:])]
    return {"groups_per_s": round(len(came) / seconds, 1), "p99_ms": round(1000 * quantile(pauses, 0.99), 1),
            "longest_s": round(max(pauses), 2), "memory_mb_most": round(max(memory)), "healthz_s_most": round(max(health), 3)}


def main():
    port = cluster.free_port()
    c = cluster.Cluster(str(BIN), JOBS, daemon=f'metrics = "127.0.0.1:{port}"\n')
    tcp, c.endpoint = c.endpoint, f"ipc://{c.dir}/workers"
    c.config.write_text(c.config.read_text(encoding="utf-8").replace(tcp, c.endpoint), encoding="utf-8")
    with c:
        os.chmod(c.dir, 0o755)
        admin, workers = c.admin.removeprefix("ipc://"), c.endpoint.removeprefix("ipc://")
        print("a history to read", file=sys.stderr, flush=True)
        for worker in [cluster.Worker(c, rank, steps=20_000, step_ms=0, size=10, job="t-big") for rank in (0, 1)]:
            worker.end()
            worker.close()
        print("the job alone", file=sys.stderr, flush=True)
        alone = measure(c, port, min(30, SECONDS), "root-alone")
        environment = {**os.environ, "PRD_CONTROLLER": c.endpoint, "PRD_TIMEOUT_MS": "5000"}
        request = subprocess.run(["capnp", "encode", ROOT / "schemas/admin.capnp", "AdminRequest"], input=b"(readRecords = (run = 1, maxBytes = 8388608))",
                                 capture_output=True, check=True).stdout
        attacks = [(STRANGER, half_greetings, admin), (STRANGER, half_greetings, workers), (STRANGER, slow_heads, port), (TENANT, half_greetings, admin),
                   (TENANT, endless_parts, admin), (TENANT, endless_parts, workers), (TENANT, heartbeats_and_gone, workers),
                   (TENANT, heartbeats_and_gone, admin), (TENANT, unread_answers, admin, request), (TENANT, unique_jobs, environment),
                   (TENANT, readers, c.admin, "t-big")]
        pids = [attack(*words) for words in attacks]
        try:
            print(f"the same under {len(pids)} attackers, {SECONDS:.0f} s", file=sys.stderr, flush=True)
            during = measure(c, port, SECONDS, "root-besieged")
        finally:
            for pid in pids:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        alive = c.daemon.poll() is None
        counters = json.loads(c.prdctl("status"))["counters"] if alive else {}
        print(json.dumps({"alone": alone, "besieged": during, "attackers": [words[1].__name__ for words in attacks], "seconds": SECONDS, "alive": alive,
                          "ended": {name: counters.get(name) for name in ("connections_refused", "connections_cut", "messages_over_quota")}}))
        return 0 if alive else 1


if __name__ == "__main__":
    sys.exit(main())
