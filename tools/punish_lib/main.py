"""Punishes a job: real processes, real faults. See --help."""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / "job_lib"))
import engines
import job
import options as command_line
import places
import report
import run
import schedule
from processes import ToolError


KEPT = "kept"


def interrupted(*_):
    raise KeyboardInterrupt


def catalogue(bin_dir):
    """The engines that prd has."""
    try:
        said = subprocess.run([bin_dir / "prd", "--engines-json"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"tools/punish: prd cannot be started: {error}")
    return engines.catalogue(said.stdout)


def work_folder():
    """A temporary folder; those of a punish that was killed are removed. What a broken law has left stays (KEPT)."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob("prd-punish-*-*"):
        owner = folder.name.split("-")[2]
        if owner.isdigit() and not pathlib.Path(f"/proc/{owner}").exists() and not (folder / KEPT).exists():
            shutil.rmtree(folder, ignore_errors=True)
    return pathlib.Path(tempfile.mkdtemp(prefix=f"prd-punish-{os.getpid()}-"))


def punish(options, engine, faults, folder, stream, results):
    """One engine's run, whose result is added to `results`, also if it is cut short."""
    folder.mkdir()
    with places.Place(options.faults, options.workers, folder) as place, \
            report.Log(options.out / f"events-{engine.file_name}.jsonl", stream) as log, \
            job.Job(options, engine, folder, place) as processes:  # fmt: skip
        one = run.Run(options, processes, log, faults)
        whole = False
        try:
            one.go()
            whole = True
        finally:
            results.append({**one.result(), "whole": whole})
            if place.disk and any(one.findings.values()):  # what is in memory would go
                with_state = folder / "state-at-the-end"
                if place.state_seen.exists():
                    shutil.copytree(place.state_seen, with_state)


def main():
    options = command_line.parse(sys.argv[1:], catalogue)
    stream = sys.stderr if options.json else sys.stdout
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**31)
    for kind, why in places.why_not(options.faults).items():
        print(f"skipped: {kind}: {why}", file=stream)
        options.faults.remove(kind)
    faults = schedule.draw(options.seed, options.faults, options.workers, 60 * options.minutes, options.every, options.quick)
    print(
        f"{options.workers} workers, {options.minutes:g} min of faults for each of {len(options.engines)} engines, one fault every "
        f"{options.every:g} s in the mean of {', '.join(options.faults) or 'no kind'}; --seed {options.seed}",
        file=stream, flush=True,
    )  # fmt: skip
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"tools/punish: --out: {error}")
    work_dir = work_folder()
    results, code = [], 1
    try:
        for engine in options.engines:
            print(f"== {engine.text}", file=stream, flush=True)
            punish(options, engine, faults, work_dir / engine.file_name, stream, results)
        code = report.exit_code(results)
    except (ToolError, OSError, subprocess.SubprocessError) as error:
        print(f"tools/punish: {getattr(error, 'stderr', None) or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ntools/punish: interrupted; what there is so far:", file=sys.stderr)
        code = 130
    print("\n".join(["", *report.table(results)]), file=stream)
    report.write(options.out / "summary.json", results, options.json)
    print(f"left in {options.out}: summary.json, events-ENGINE.jsonl", file=stream)
    if code == 1:
        (work_dir / KEPT).touch()
        print(f"logs and state_dirs are in {work_dir}", file=stream)
    else:
        shutil.rmtree(work_dir, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
