"""Stands in for prd, prd-train, prd-evaluate and prdctl in the tests of the demo's driver.

Called by the name of the program as its first argument. Behaviour is set by FAKE_FAULT: "NAME: FAULT".
"""
import json
import os
import pathlib
import re
import signal
import socket
import sys
import time

LIMIT_S = 60  # a fake that nobody ends ends itself


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def prd():
    if "--engines-json" in sys.argv:
        real = os.path.join(os.environ["PRD_BIN_DIR"], "prd")
        os.execv(real, [real, "--engines-json"])
    if "--check-config" in sys.argv:
        if os.environ.get("FAKE_FAULT") == "prd: config":
            print("prd.toml:7: engine: found 'hop'", file=sys.stderr)
            sys.exit(1)
        sys.exit(0)
    config = pathlib.Path(option("--config")).read_text()
    engine = re.search(r'^engine = "(.*)"', config, re.MULTILINE)[1]
    goal = re.search(r"^goal_samples = (\d+)", config, re.MULTILINE)
    pathlib.Path(os.environ["FAKE_ENGINE"]).write_text(f"{engine} {goal[1] if goal else 0}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(LIMIT_S)


def prd_train():
    rank = int(os.environ["PRD_RANK"])
    if os.environ.get("FAKE_FAULT") == "keys are shown":
        if os.environ["PRD_CURVE_SERVER_KEY"] != "key-of-prd":
            sys.exit(5)
        pathlib.Path(os.environ["PRD_CURVE_SECRET_KEY_FILE"]).read_text()
    if os.environ.get("FAKE_FAULT") == f"worker {rank}: dies":
        print("cannot go on", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic_ns()
    engine, goal = pathlib.Path(os.environ["FAKE_ENGINE"]).read_text().split()
    # As many samples a second as the evaluations below tell of.
    seconds = int(goal) / 1000 if int(goal) else float(option("--seconds"))
    fault = os.environ.get("FAKE_FAULT")
    if fault == "a worker: endless" or (fault == "one killed" and rank == 1):
        seconds = LIMIT_S
    with open(option("--log"), "w") as log:
        begin = {"rank": rank, "workers": 2, "engine": engine, "start_ns": start, "step_ns": 1000000}
        print(json.dumps(begin), file=log, flush=True)
        for group in range(1, 10_000):
            time.sleep(0.02)
            print(
                json.dumps({"end_ns": time.monotonic_ns(), "iteration": group, "group": group, "members": 2,
                            "compute_ns": 3, "wait_ns": 1, "reduce_ns": 0, "rounds": 1, "included": True,
                            "discarded": False, "sent_bytes": 10}),
                file=log,
            )  # fmt: skip
            if time.monotonic_ns() - start > seconds * 10**9:
                break
        print(json.dumps({"finished": True}), file=log)


def prd_evaluate():
    folder = pathlib.Path(option("--snapshot-dir")).parent
    live = 2 - (os.environ.get("FAKE_FAULT") == "one killed")
    base = {"updates": 1, "live": live, "spread": 0.0, "steps": 1}
    loss = option("--model") == "hyperplane"
    # As the real one, it begins when all workers train.
    logs = [folder / f"worker-{rank}.jsonl" for rank in range(2)]
    end = time.monotonic() + LIMIT_S
    while not all(log.exists() and log.stat().st_size for log in logs):
        if time.monotonic() > end:
            sys.exit(1)
        time.sleep(0.01)
    for i in range(10 * LIMIT_S):
        line = {"time_s": i / 10, "samples": 100 * i, "final": False, **base}
        line.update({"loss": 10 / (i + 1)} if loss else {"accuracy": min(0.9, i / 10)})
        print(json.dumps(line), flush=True)
        if any("finished" in log.read_text() for log in logs):
            break
        time.sleep(0.1)
    spread = 0.5 if os.environ.get("FAKE_FAULT") == "prd-evaluate: spread" else 0.0
    last = {"loss": 4.5} if loss else {"accuracy": 0.9}
    print(json.dumps({"time_s": 9, **last, "samples": 9, "final": True, **base, "spread": spread}), flush=True)


def serve():
    if os.environ.get("FAKE_FAULT") == "prdctl: no page":
        sys.exit("no port is free")
    assert option("--admin").startswith("ipc://") and option("--listen") == "127.0.0.1:0"
    print(json.dumps({"url": "http://127.0.0.1:8270/token/"}), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(LIMIT_S)


def prdctl():
    if "keygen" in sys.argv:
        name = option("keygen")
        pathlib.Path(name + ".key").write_text("secret\n")
        pathlib.Path(name + ".pub").write_text(f"key-of-{os.path.basename(name)}  comment\n")
        return
    if "serve" in sys.argv:
        return serve()
    if "replay" in sys.argv:
        sys.exit(3 if os.environ.get("FAKE_FAULT") == "prdctl: hole" else 0)
    if option("--format") == "trace":
        pathlib.Path(option("-o")).write_text('{"traceEvents":[]}')
        return
    members = [{"rank": 0, "weight": 1.0, "iteration": 1}, {"rank": 1, "weight": 0.0, "iteration": 1}]
    records = [
        {"type": "group_formed", "group": 1, "kind": "initial", "members": members},
        {"type": "group_ended", "group": 1, "ok": True},
        {"type": "group_formed", "group": 2, "kind": "round", "members": members},
        {"type": "group_ended", "group": 2, "ok": True},
        {"type": "update_dropped", "rank": 1},
    ]
    pathlib.Path(option("-o")).write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    programs = {"prd": prd, "prd-train": prd_train, "prd-evaluate": prd_evaluate, "prdctl": prdctl}
    programs["prd-train-hyperplane"] = prd_train
    programs[sys.argv[1]]()
