#!/usr/bin/env python3
"""Peers without end: of parts, of connections. A job goes on beside them. Usage: bounds_test.py BIN_DIR [TEST ...]

PRD_ATTACK_CONNECTIONS: how many connections. Where this process may not have as many at once, the oldest are closed.
PRD_ATTACK_HOLD_S: how long what is open stays so, for figures. Both are printed with what they cost; nothing depends on time.
"""
import collections
import os
import pathlib
import resource
import socket
import struct
import sys
import time
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
JOB = '[[job]]\nname = "toy"\nengine = "all-reduce"\nworkers = 2\nlease_ms = 10000\n'
PART = struct.pack(">BQ", 0x03, 65_536) + bytes(65_536)  # more parts follow; each is as large as allowed
MIB = 1 << 20


def connections(default):
    """(how many, how many at once)"""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = int(os.environ.get("PRD_ATTACK_CONNECTIONS", default))
    return wanted, min(wanted, hard - 200)


def hold():
    time.sleep(float(os.environ.get("PRD_ATTACK_HOLD_S", 0)))


def connect(c, host=1, wait=True):
    """From this address of the loopback network. Without a wait, it goes on being made."""
    sock = socket.socket()
    sock.settimeout(5 if wait else 0)
    # Leaves no port behind.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        sock.bind((f"127.0.{host // 250}.{1 + host % 250}", 0))
        sock.connect(("127.0.0.1", c.port))
        return sock
    except BlockingIOError:
        return sock
    except OSError:
        sock.close()
        return None


def take(sock, count):
    data = b""
    while len(data) < count:
        some = sock.recv(count - len(data))
        if not some:
            break
        data += some
    return data


def shake_hands(sock):
    """ZMTP 3.0 without keys, as a DEALER. False: the connection was ended."""
    try:
        sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        name = b"DEALER"
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(name)) + name
        sock.sendall(bytes([4, len(ready)]) + ready)
        answer = take(sock, 66)  # a greeting, and the beginning of a READY: its size is last
        return len(answer) == 66 and len(take(sock, answer[-1])) == answer[-1]
    except OSError:
        return False


def of_daemon(c, key):
    text = pathlib.Path(f"/proc/{c.daemon.pid}/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(key)))


def cpu_seconds(c):
    fields = pathlib.Path(f"/proc/{c.daemon.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pace:
    """Steps per second of a worker since it was made."""

    def __init__(self, worker):
        self.worker, self.steps, self.begin = worker, len(worker.steps()), time.monotonic()

    def per_s(self):
        return (len(self.worker.steps()) - self.steps) / (time.monotonic() - self.begin)


class Training(unittest.TestCase):
    def workers(self, c):
        stop = c.dir / "stop"
        workers = [c.worker(rank, steps=1_000_000, step_ms=20, args=["--stop-file", str(stop)]) for rank in range(2)]
        for worker in workers:
            worker.wait_for(lambda line: line.get("step", -1) >= 3, "step 3")
        pace = Pace(workers[0])
        workers[0].wait_for(lambda line: line.get("step", -1) >= 30, "step 30")
        hold()
        pace = pace.per_s()
        if os.sched_getscheduler(0) == os.SCHED_FIFO:  # for figures: `chrt -f 5` before all, and the attacker behind
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return workers, pace

    def end(self, c, workers):
        (c.dir / "stop").touch()
        for worker in workers:
            worker.end()

    def test_endless_parts_end_with_their_connection(self):
        with cluster.Cluster(BIN, JOB) as c:
            workers, pace = self.workers(c)
            attack = Pace(workers[0])
            before = of_daemon(c, "VmRSS")
            most = before
            ended = sent = 0
            socks = []
            for i in range(connections(300)[1]):
                sock = connect(c, i % 100)  # as many hosts
                if sock is None or not shake_hands(sock):
                    ended += 1
                    continue
                sock.setblocking(False)
                socks.append(sock)
                # A part to each: many connections that hold a little are bounded, too.
                if len(socks) % 100 == 0:
                    most = max(most, of_daemon(c, "VmRSS"))
            attacked = len(socks) + ended
            offset = dict.fromkeys(socks, 0)
            end = time.monotonic() + cluster.DEADLINE_S
            while socks and time.monotonic() < end:
                for sock in list(socks):
                    try:
                        some = sock.send(memoryview(PART)[offset[sock]:])
                        sent += some
                        offset[sock] = (offset[sock] + some) % len(PART)
                    except BlockingIOError:
                        pass
                    except OSError:
                        ended += 1
                        socks.remove(sock)
                        sock.close()
                most = max(most, of_daemon(c, "VmRSS"))
            print(f"{attacked} connections, {ended} ended; {sent / MIB:.0f} MiB sent; VmRSS {before} kB, at most {most} kB; "
                  f"{pace:.2f} steps/s before, {attack.per_s():.2f} meanwhile", file=sys.stderr)  # fmt: skip
            for sock in socks:
                sock.close()
            self.assertEqual(ended, attacked, c.daemon_log())
            self.assertLess(most - before, 64 * 1024)
            self.end(c, workers)

    def test_connections_over_the_descriptors(self):
        with cluster.Cluster(BIN, JOB, inside=("prlimit", "--nofile=1024:1024")) as c:
            workers, pace = self.workers(c)
            attack = Pace(workers[0])
            cpu, begin = cpu_seconds(c), time.monotonic()
            wanted, at_once = connections(3000)
            socks = collections.deque()
            for i in range(wanted):
                if len(socks) == at_once:
                    socks.popleft().close()
                sock = connect(c, 250 + i % 100, wait=False)  # the late worker is on another host
                if sock is not None:
                    socks.append(sock)
            share = (cpu_seconds(c) - cpu) / (time.monotonic() - begin)
            print(f"{wanted} connections in {time.monotonic() - begin:.1f} s, {len(socks)} of them held; the daemon took "
                  f"{share:.2f} of a core", file=sys.stderr)  # fmt: skip
            cpu, begin = cpu_seconds(c), time.monotonic()
            late = c.worker(2, steps=5, leave=True)  # gets in
            late.wait_for(lambda line: "step" in line, "step")
            c.prdctl("status")
            late.end()
            hold()
            share = (cpu_seconds(c) - cpu) / (time.monotonic() - begin)
            print(f"{len(socks)} connections, {len(os.listdir(f'/proc/{c.daemon.pid}/fd'))} descriptors in use, {share:.2f} of a core; "
                  f"{pace:.2f} steps/s before, {attack.per_s():.2f} meanwhile", file=sys.stderr)  # fmt: skip
            self.assertIsNone(c.daemon.poll(), c.daemon_log())
            self.assertLess(len(os.listdir(f"/proc/{c.daemon.pid}/fd")), 1024 - 64)
            self.assertLess(share, 0.6)  # of spinning it would be all that it gets
            for sock in socks:
                sock.close()
            self.end(c, workers)


if __name__ == "__main__":
    unittest.main(verbosity=2)
