"""PyTorch on a GPU, through the Python package: torch_check.py --device cuda:0 [--quick] [CASE ...]. Run by gpu-check.

Prints one JSON object per result, and exits with 1 if one of them is wrong. Several workers share the one device, so NCCL
goes through sockets: sizes and results count, speeds do not.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import threading

WORKER = pathlib.Path(__file__).resolve().with_name("torch_worker.py")
ENGINES = {
    "all-reduce": [], "backup": [], "p-reduce": ["group_size=2"], "eager": [], "esync": [], "prague": [], "ad-psgd": [], "hop": [], "ssp": [],
}
# What each takes of the device; the first is the script without prd.
MEMORY = {"none": ["all-reduce"], **{name: [name, *options] for name, options in ENGINES.items()},
          "p-reduce, overlap": ["p-reduce", "group_size=2", "overlap=true"]}
# Those that have rows beside the model, which may be in host memory.
HAVE_ROWS = ["p-reduce, overlap", "eager", "esync", "ad-psgd"]


def shared_device(workers):
    """Options of prd.run by which NCCL takes ranks that share a GPU for ranks on different hosts."""
    common = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0",
              "NCCL_NVLS_ENABLE": "0", "NCCL_RAS_ENABLE": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1",
              "PRD_REDUCE_TIMEOUT_MS": "20000", "OMP_NUM_THREADS": "1"}
    found = [f"--env={name}={value}" for name, value in common.items()]
    return found + [f"--env={rank}:NCCL_HOSTID=torch-check-{os.getpid()}-{rank}" for rank in range(workers)]


def run(case, workers, args, options, **environment):
    """The lines of all workers, how prd.run ended, and what was said on stderr."""
    command = [sys.executable, "-m", "prd.run", "-n", str(workers), *shared_device(workers), *options, str(WORKER), case, args.device]
    done = subprocess.run([*command, *["quick"] * args.quick], env=dict(os.environ, **environment), capture_output=True, text=True,
                          timeout=args.limit, stdin=subprocess.DEVNULL)
    lines = [json.loads(line.split("] ", 1)[1]) for line in done.stdout.splitlines() if "] {" in line]
    return lines, done.returncode, done.stderr


def say(ok, error, **line):
    if error and not ok:
        print(error, file=sys.stderr)
        line["why"] = error.strip().splitlines()[-1] if error.strip() else "nothing was said"
    print(json.dumps({**line, "ok": ok}), flush=True)
    return ok


def engine(args, name, dies=False, rows_on_host=False):
    goal = 300 if args.quick else 900
    options = ["--engine", name, "--job-option", f"goal_steps={goal}", "--job-option", "lease_ms=20000", "--job", f"torch-{name}"]
    for option in ENGINES[name]:
        options += ["--option", option]
    environment = {"PRD_ROWS_ON_HOST": str(int(rows_on_host)), **({"PRD_CHECK_DIES": "1"} if dies else {})}
    lines, code, said = run("engine", 3, args, options, **environment)
    ok = (len(lines) == (2 if dies else 3) and code == (1 if dies else 0) and len({line["model"] for line in lines}) == 1
          and all(line["last"] < 0.5 * line["first"] for line in lines))
    groups = {way: sum(line["groups"][way] for line in lines) for way in (lines[0]["groups"] if lines else {})}
    return say(ok, said, torch="engine", engine=name, a_worker_dies=dies, rows_on_host=rows_on_host, exit=code, workers=len(lines), steps=[line["steps"] for line in lines],
               loss=[[round(line[key], 4) for key in ("first", "last")] for line in lines], one_model=len({line["model"] for line in lines}) == 1,
               groups=groups)


def exact(args):
    lines, code, said = run("exact", 2, args, ["--engine", "all-reduce", "--job", "exact"])
    worst = max((line["worst"] for line in lines), default=None)
    ok = code == 0 and len(lines) == 2 and worst <= 1e-12
    return say(ok, said, torch="exact", worst=worst, allowed=1e-12, groups=[line["groups"] for line in lines])


def graph(args, name):
    lines, code, said = run("graph", 2, args, ["--engine", name, "--job", f"graph-{name}", *[f"--option={o}" for o in ENGINES[name]]])
    ok = code == 0 and len(lines) == 2 and all(
        line["last"] < 0.7 * line["first"] and line["step_refused"] and bool(line["without_zero_grad"]) == (name == "all-reduce") for line in lines)
    return say(ok, said, torch="graph", engine=name, lines=lines)


def memory(args, name, rows_on_host=False):
    kind, *options = MEMORY[name]
    options = ["--engine", kind, "--job", "memory", *[f"--option={option}" for option in options]]
    lines, code, said = run("memory" if name != "none" else "memory-alone", 2, args, options, PRD_ROWS_ON_HOST=str(int(rows_on_host)))
    ok = code == 0 and len(lines) == 2
    return say(ok, said, torch="memory", of=name, rows_on_host=rows_on_host, workers=lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=float, default=60, help="seconds of each job")
    parser.add_argument("cases", nargs="*", default=["exact", "engines", "kill", "graphs", "memory"])
    args = parser.parse_args()
    wrong, threads, gate = [], [], threading.Semaphore(4)

    def start(what, *more):
        def guarded():
            with gate:
                try:
                    ok = what(args, *more)
                except Exception as error:  # a job that hangs, or lines that are none
                    tail = getattr(error, "stderr", None) or b""
                    ok = say(False, (tail.decode(errors="replace") if isinstance(tail, bytes) else tail) + f"\n{type(error).__name__}: {error}",
                             torch=what.__name__, of=list(map(str, more)))
            if not ok:
                wrong.append(what.__name__)

        threads.append(threading.Thread(target=guarded))
        threads[-1].start()

    if "exact" in args.cases:
        start(exact)
    for name in ENGINES if "engines" in args.cases else []:
        start(engine, name)
    for name in ("all-reduce", "p-reduce") if "kill" in args.cases else []:
        start(engine, name, True)
    for name in ("all-reduce", "p-reduce") if "graphs" in args.cases and args.device != "cpu" else []:
        start(graph, name)
    for name in MEMORY if "memory" in args.cases else []:
        start(memory, name)
    for name in HAVE_ROWS if args.device != "cpu" else []:
        if "memory" in args.cases:
            start(memory, name, True)
        if "engines" in args.cases and name in ENGINES:
            start(engine, name, False, True)
    for thread in threads:
        thread.join()
    print(json.dumps({"torch": "done", "wrong": sorted(wrong)}), flush=True)
    sys.exit(1 if wrong else 0)


main()
