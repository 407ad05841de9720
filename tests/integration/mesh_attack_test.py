#!/usr/bin/env python3
"""Another user of a worker's host, who reads what every user can, against a job of real processes.
Usage: mesh_attack_test.py BIN_DIR [TEST ...]"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
NOBODY = 65534
JOB = '[[job]]\nname = "toy"\nengine = "all-reduce"\nworkers = 2\n'

# Runs as the other user: NAME .. of abstract sockets. First the program that once took a whole model with one message:
# it says where the replica is to go. Then one message of endless parts over a socket of its own.
THIEF = r'''
import ctypes, json, socket, struct, sys, time
z = ctypes.CDLL("libzmq.so.5")
for name, result, *arguments in (
    ("zmq_ctx_new", ctypes.c_void_p), ("zmq_socket", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    ("zmq_connect", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p),
    ("zmq_bind", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p),
    ("zmq_send", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int),
    ("zmq_recv", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    ("zmq_getsockopt", ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    ("zmq_setsockopt", ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t),
):
    function = getattr(z, name)
    function.restype, function.argtypes = result, arguments
PULL, PUSH, SNDMORE, DONTWAIT, LAST_ENDPOINT, PLAIN_USERNAME, PLAIN_PASSWORD = 7, 8, 2, 1, 32, 45, 46
context = z.zmq_ctx_new()
loot = z.zmq_socket(context, PULL)
assert z.zmq_bind(loot, b"tcp://127.0.0.1:*") == 0
text, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
z.zmq_getsockopt(loot, LAST_ENDPOINT, text, ctypes.byref(size))
address = b"nowhere\n" + text.value
keep = []
for name in sys.argv[1:]:
    for plain in (False, True):
        push = z.zmq_socket(context, PUSH)
        keep.append(push)
        if plain:
            user = b"0" * 15 + b"1-" + b"0" * 15 + b"1-d"
            z.zmq_setsockopt(push, PLAIN_USERNAME, user, len(user))
            z.zmq_setsockopt(push, PLAIN_PASSWORD, b"0" * 64, 64)
        z.zmq_connect(push, b"ipc://" + name.encode())
        for run in range(1, 4):
            frame = struct.pack("<IIQQQQIIQQQ", 0x38647270, 4, run, 777, 1, 2, 0, 0, 0, len(address), 0)
            z.zmq_send(push, frame, len(frame), SNDMORE | DONTWAIT)
            z.zmq_send(push, address, len(address), DONTWAIT)
endless = 0
for name in sys.argv[1:]:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    try:
        s.connect("\0" + name[1:])
        s.sendall(b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32)
        s.sendall(b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH")
        while endless < 64 << 20:
            endless += s.send(b"\x03" + struct.pack(">Q", 65536) + b"x" * 65536)
    except OSError:
        pass  # it was closed
got = 0
bytes_ = ctypes.create_string_buffer(5 << 20)
end = time.monotonic() + 3
while time.monotonic() < end:
    n = z.zmq_recv(loot, bytes_, len(bytes_), DONTWAIT)
    got += max(n, 0)
    if n < 0:
        time.sleep(0.05)
print(json.dumps({"got": got, "endless": endless}), flush=True)
'''


def sockets_of(process):
    """Names of its abstract sockets, as anybody reads them; which ones are its own, root alone can tell."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
        except OSError:
            pass
    fields = [line.split() for line in pathlib.Path("/proc/net/unix").read_text().splitlines()]
    return {f[7] for f in fields if len(f) == 8 and f[6] in inodes and f[7].startswith("@prd-")}


def resident_kb(process):
    """0 of one that has just ended."""
    found = re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())
    return int(found[1]) if found else 0


class Training(unittest.TestCase):
    @unittest.skipUnless(os.geteuid() == 0, "becoming another user needs root")
    def test_another_user_gets_nothing(self):
        with cluster.Cluster(BIN, JOB) as c:
            workers = [c.worker(rank, steps=150, step_ms=40) for rank in range(2)]
            for worker in workers:
                worker.wait_for(lambda line: line.get("step", -1) >= 3, "step 3")
            names = set().union(*(sockets_of(w.process) for w in workers))
            self.assertGreaterEqual(len(names), 2, "each worker listens")
            before = [resident_kb(w.process) for w in workers]
            thief = subprocess.run(
                ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-c", THIEF, *sorted(names)],
                capture_output=True, text=True, timeout=60)
            self.assertEqual(thief.returncode, 0, thief.stderr)
            found = json.loads(thief.stdout)
            for worker, kb in zip(workers, before):
                self.assertLess(resident_kb(worker.process), kb + 64 * 1024)
            ends = [worker.end() for worker in workers]
            self.assertNotIn("left: said", c.daemon_log())
        self.assertEqual(found["got"], 0, "bytes of the model")
        self.assertLess(found["endless"], 1 << 20, "bytes that were taken before the connection was closed")
        self.assertEqual(ends[0]["sum"], ends[1]["sum"], "the members' models are the same")
        self.assertEqual([end["applied"] for end in ends], [150, 150], "each step was applied")
        # 10,000 parameters go to the mean of the ranks, 0.5. Of where they began, which is random and below 1000, 150 steps leave 1.4 of the sum.
        self.assertAlmostEqual(ends[0]["sum"], 5000, delta=2, msg="nothing foreign is in the sum")


if __name__ == "__main__":
    unittest.main()
