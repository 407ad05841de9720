#!/usr/bin/env python3
"""Peers without end at a worker's mesh. Its job goes on beside them. Usage: mesh_bounds_test.py BIN_DIR [TEST ...]

PRD_ATTACK_CONNECTIONS: how many connections, at most as many as this process may open.
"""
import os
import pathlib
import resource
import socket
import struct
import sys
import time
import unittest

import cluster
import processes

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
JOB = '[[job]]\nname = "toy"\nengine = "all-reduce"\nworkers = 2\nlease_ms = 10000\n'
# A greeting, and a command of the handshake, as long as one may be, that is not over yet when it is cut.
COMMAND = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"PLAIN".ljust(20, b"\0") + bytes(32) + struct.pack(">BQ", 0x06, 576 << 10)
PART = bytes(65_536)
MIB = 1 << 20


def connections(default):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(int(os.environ.get("PRD_ATTACK_CONNECTIONS", default)), hard - 200)


def begin(port):
    """Connects and says the beginning of the handshake. None: the connection was ended."""
    sock = socket.socket()
    sock.settimeout(5)
    try:
        sock.connect(("127.0.0.1", port))
        sock.sendall(COMMAND)
        sock.setblocking(False)
        return sock
    except OSError:
        sock.close()
        return None


def resident_kb(process):
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))


class Training(unittest.TestCase):
    def pour(self, process, port):
        """Sends on every connection until all have ended. What `process` grows by meanwhile is bounded."""
        before = most = resident_kb(process)
        attacked = connections(300)
        socks = []
        for i in range(attacked):
            sock = begin(port)
            if sock is not None:
                socks.append(sock)
            # A part to each: many connections that hold a little are bounded, too.
            if i % 100 == 0:
                most = max(most, resident_kb(process))
        sent = 0
        end = time.monotonic() + cluster.DEADLINE_S
        while socks and time.monotonic() < end:
            for sock in list(socks):
                try:
                    sent += sock.send(PART)
                except BlockingIOError:
                    pass
                except OSError:
                    socks.remove(sock)
                    sock.close()
            most = max(most, resident_kb(process))
        print(f"{attacked} connections, {len(socks)} of them stand; {sent / MIB:.0f} MiB sent; VmRSS {before} kB, at most {most} kB",
              file=sys.stderr)  # fmt: skip
        for sock in socks:
            sock.close()
        self.assertEqual(socks, [])
        self.assertLess(most - before, 64 * 1024)

    def test_endless_handshakes_end_with_their_connection(self):
        port = processes.free_port()
        tcp = {"PRD_ADDRESS": "127.0.0.1", "PRD_MESH_PORTS": str(port)}  # beside ipc
        with cluster.Cluster(BIN, JOB) as c:
            workers = [c.worker(rank, steps=1_000_000, step_ms=20, env=() if rank else tcp) for rank in range(2)]
            for worker in workers:
                worker.wait_for(lambda line: line.get("step", -1) >= 3, "step 3")
            self.pour(workers[0].process, port)
            for worker in workers:  # they train on, together
                last = worker.steps()[-1]["step"]
                worker.wait_for(lambda line, then=last + 10: line.get("step", -1) >= then, "ten steps more")
                self.assertEqual({tuple(sorted(step["members"])) for step in worker.steps()}, {(0, 1)})


if __name__ == "__main__":
    unittest.main(verbosity=2)
