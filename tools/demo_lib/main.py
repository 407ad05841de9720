"""The demo: the same training under several consistency engines, with unequal workers. See --help."""
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / "job_lib"))
import engines
import options as command_line
import processes
import report
import summary
import training
from page import Page
from processes import ToolError
from progress import Progress


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
    settings["engines"] = [engine.text for engine in options.engines]
    return {"settings": settings, "machine": machine()}


def keep(run, out):
    """Copies what is left of a run, whole or not, to `out`."""
    name = run.engine.file_name
    names = {"evaluations.jsonl": f"evaluations-{name}.jsonl", "prd.toml": f"prd-{name}.toml"}
    for source, name in names.items():
        if (run.dir / source).exists():
            shutil.copyfile(run.dir / source, out / name)


def save(options, results, runs):
    """summary.json of the runs that are complete, and the plot of all."""
    report.write_summary(options.out / "summary.json", results, about(options))
    curves = [(run.engine.text, run.evaluations) for run in runs if run.evaluations]
    if not curves:
        return
    measure = command_line.measure(options)
    try:
        report.plot(curves, measure, options.target, options.workers, options.out / f"{measure}.svg")
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"gnuplot: {getattr(error, 'stderr', None) or error}") from None


def demo(options, work_dir):
    settings = training.Settings(options, options.bin, work_dir)
    progress = Progress()
    results, runs = [], []
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        runs = [training.Run(settings, engine, progress) for engine in options.engines]
        for run in runs:
            run.check_config()
        with processes.Children() as beside:
            page = Page(settings, beside)
            for run in runs:
                with processes.Children() as children:
                    run.run(children, page.show)
                results.append(run.result())
                run.check_history()
                run.export_trace(options.out / f"trace-{run.engine.file_name}.json")
    finally:
        for run in runs:
            keep(run, options.out)
        save(options, results, runs)
    print()
    print("\n".join(report.table(results)))
    print()
    for line in summary.comparison(results):
        print(line)
    plot = command_line.measure(options) + ".svg"
    print(f"left in {options.out}: summary.json, {plot}, and trace-ENGINE.json for https://ui.perfetto.dev")


def interrupted(*_):
    raise KeyboardInterrupt


def introduction(options):
    """What is about to be run, as a line of text."""
    slow = "".join(f", worker {rank} {factor:g} times slower" for rank, factor in options.slow.items())
    delays = f", delays {options.inject} (ms)" if options.inject else ""
    length = f"{options.seconds:g} s" if options.seconds else f"{options.epochs:g} epochs"
    return f"{options.workers} workers{slow}; steps of {options.step_ms:g} ms{delays}; {length} each"


def catalogue(bin_dir):
    """The engines that prd has."""
    try:
        said = subprocess.run([bin_dir / "prd", "--engines-json"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"tools/demo: prd cannot be started: {error}")
    return engines.catalogue(said.stdout)


def main():
    options = command_line.parse(sys.argv[1:], catalogue)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    work_dir = tempfile.mkdtemp(prefix="prd-demo-")
    print(introduction(options))
    sys.stdout.flush()
    try:
        demo(options, work_dir)
    except (ToolError, OSError) as error:
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
