"""The demo: the same training under several consistency engines, with unequal workers. See --help."""
import argparse
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile

import processes
import report
import summary
import training
from processes import DemoError
from progress import Progress

EPILOG = """\
What happens: prd is started on a temporary state directory with a config that names the first engine; the
workers (worker/examples) train on Fashion-MNIST, one of them five times slower than the others; then the same
again with the next engine, by changing the config's line `engine` alone. Evaluation runs beside the training at
the lowest priority, on snapshots. Every run ends after the same number of examples (--epochs), so that final
accuracies compare like with like; the clock is what differs. The target counts as reached at the first of three
evaluations in a row (one every half second) that are at it or above.

What it leaves in --out:
  summary.json        the figures of the table, and more
  accuracy.svg        test accuracy of the averaged model over time
  trace-ENGINE.json   who computed, waited and reduced when: open it at https://ui.perfetto.dev
  evaluations-ENGINE.jsonl, prd-ENGINE.toml

Examples:
  tools/demo                             all-reduce, then p-reduce
  tools/demo --quick                     the same with shorter steps
  tools/demo --workers 6 --slow 4:2 --slow 5:8 --engines p-reduce
  tools/demo --target 0.8 --epochs 3
  tools/demo --quick --kill prd:5 --kill 2:8
"""


def slow_worker(text):
    rank, _, factor = text.partition(":")
    try:
        value = (int(rank), float(factor))
    except ValueError:
        value = (-1, 0)
    if value[0] < 0 or not 1 <= value[1] <= 1000:
        raise argparse.ArgumentTypeError(f"found '{text}', allowed is RANK:FACTOR with FACTOR 1 to 1000")
    return value


def kill(text):
    who, _, seconds = text.partition(":")
    try:
        value = (who if who == "prd" else int(who), float(seconds))
    except ValueError:
        value = (-1, 0)
    if value[0] != "prd" and value[0] < 0 or not 0 <= value[1] <= 86400:
        raise argparse.ArgumentTypeError(f"found '{text}', allowed is prd:SECONDS or RANK:SECONDS")
    return value


def number(kind, low, high):
    """An argparse type: a number in [low, high]."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"found '{text}', allowed is {low} to {high}")
        return value

    return parse


def parse_options(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/demo", description="Trains with unequal workers under several consistency engines, and compares.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="shorter steps: under 3 minutes once built; rates are less exact")
    add("--engines", default="all-reduce,p-reduce", help="which, in this order (default: %(default)s)")
    add("--workers", type=number(int, 2, 64), default=8, help="processes (default: %(default)s)")
    add("--slow", type=slow_worker, action="append", metavar="RANK:FACTOR",
        help="that worker's steps last FACTOR times as long; may be repeated (default: the last rank, 5 times)")
    add("--group-size", type=number(int, 2, 64), default=3, help="P of p-reduce (default: %(default)s)")
    add("--target", type=number(float, 0.1, 1), default=0.85, help="test accuracy to reach (default: %(default)s)")
    add("--epochs", type=number(float, 0.01, 1000), default=12, help="passes over the data (default: %(default)s)")
    add("--seed", type=number(int, 0, 2**31), default=1, help="of model, shards and batches (default: %(default)s)")
    add("--out", type=pathlib.Path, default=pathlib.Path("demo-out"), help="(default: %(default)s)")
    more = parser.add_argument_group("the training")
    add = more.add_argument
    add("--model", choices=["mlp", "cnn"], default="mlp", help="(default: %(default)s)")
    add("--shards", choices=["iid", "labels"], default="iid", help="(default: %(default)s)")
    add("--batch", type=number(int, 1, 10000), default=256, help="examples per step (default: %(default)s)")
    add("--lr", type=number(float, 0, 100), default=0.25, help="learning rate of SGD (default: %(default)s)")
    add("--lr-decay", type=number(float, 0, 1e9), default=400, metavar="STEPS",
        help="the rate falls as 1/(1 + iteration/STEPS); 0 = constant (default: %(default)s)")
    add("--step-ms", type=number(float, 1, 60000), help="a fast worker's step (default: 100; --quick: 40)")
    add("--limit-s", type=number(float, 1, 86400), help="gives a run up after this long (default: three times what "
        "it should take)")
    add("--kill", type=kill, action="append", default=[], metavar="WHO:SECONDS",
        help="kill -9 of prd (it is started again at once) or of the worker of that rank (it is not), that long "
        "into every run; may be repeated")
    add("--data", default="/usr/share/datasets/fashion-mnist", help="(default: %(default)s)")
    add("--bin", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    options.engines = [engine for engine in options.engines.split(",") if engine]
    if not options.engines or len(set(options.engines)) != len(options.engines):
        parser.error("--engines: allowed is a list of different engines, as in all-reduce,p-reduce")
    options.slow = dict(options.slow or [(options.workers - 1, 5.0)])
    if max(options.slow) >= options.workers:
        parser.error(f"--slow: found rank {max(options.slow)}, allowed is 0 to {options.workers - 1}")
    killed = [who for who, _ in options.kill if who != "prd"]
    if len(set(killed)) != len(killed) or any(who >= options.workers for who in killed):
        parser.error(f"--kill: allowed is each rank once, 0 to {options.workers - 1}")
    if options.step_ms is None:
        options.step_ms = 40 if options.quick else 100
    options.evaluate_ms = 500
    if options.limit_s is None:
        slowest_s = options.step_ms / 1000 * max(options.slow.values())
        options.limit_s = 60 + 3 * slowest_s * options.epochs * 60_000 / (options.workers * options.batch)
    return options


def machine():
    """What the figures were measured on."""
    model = platform.machine()
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def about(options):
    settings = {k: v for k, v in vars(options).items() if k not in ("bin", "out", "data")}
    return {"settings": settings, "machine": machine()}


def keep(run, out):
    """Copies what is left of a run, whole or not, to `out`."""
    names = {"evaluations.jsonl": f"evaluations-{run.engine}.jsonl", "prd.toml": f"prd-{run.engine}.toml"}
    for source, name in names.items():
        if (run.dir / source).exists():
            shutil.copyfile(run.dir / source, out / name)


def save(options, results, runs):
    """summary.json of the runs that are complete, and the plot of all."""
    report.write_summary(options.out / "summary.json", results, about(options))
    curves = [(run.engine, run.evaluations) for run in runs if run.evaluations]
    if not curves:
        return
    try:
        report.plot(curves, options.target, options.workers, options.out / "accuracy.svg")
    except (OSError, subprocess.SubprocessError) as error:
        raise DemoError(f"gnuplot: {getattr(error, 'stderr', None) or error}") from None


def demo(options, work_dir):
    settings = training.Settings(options, options.bin, work_dir)
    progress = Progress()
    results, runs = [], []
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for engine in options.engines:
            run = training.Run(settings, engine, progress)
            runs.append(run)
            with processes.Children() as children:
                results.append(run.run(children))
            run.check_history()
            run.export_trace(options.out / f"trace-{engine}.json")
    finally:
        for run in runs:
            keep(run, options.out)
        save(options, results, runs)
    print()
    print("\n".join(report.table(results)))
    print()
    for line in summary.comparison(results):
        print(line)
    print(f"left in {options.out}: summary.json, accuracy.svg, and trace-ENGINE.json for https://ui.perfetto.dev")


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    options = parse_options(sys.argv[1:])
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    work_dir = tempfile.mkdtemp(prefix="prd-demo-")
    slow = ", ".join(f"worker {rank} {factor:g} times slower" for rank, factor in options.slow.items())
    print(f"{options.workers} workers, {slow}; steps of {options.step_ms:g} ms; {options.epochs:g} epochs each")
    sys.stdout.flush()
    try:
        demo(options, work_dir)
    except DemoError as error:
        print(f"\ntools/demo: {error}\nlogs are in {work_dir}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ntools/demo: interrupted; what there is so far is in {options.out}", file=sys.stderr)
        shutil.rmtree(work_dir, ignore_errors=True)
        return 130
    shutil.rmtree(work_dir, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
