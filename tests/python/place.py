"""Where the package and the build are. Imported first by every test here."""
import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/release/bin").resolve()
LIBRARY = BIN.parent / "worker/libprd.so.0"
PACKAGE = ROOT / "worker/python"
sys.path[:0] = [str(PACKAGE), str(ROOT / "tests/integration")]

import os  # noqa: E402

os.environ["PRD_LIBRARY"] = str(LIBRARY)

import cluster  # noqa: E402

# Every engine, with the options that make it short.
ENGINES = {
    "all-reduce": "", "backup": "", "p-reduce": "group_size = 2", "eager": "", "esync": "", "prague": "", "ad-psgd": "", "hop": "",
    "ssp": "",
}


# Rank 1 dies in its first life; all train on until its second one is there.
DIES_ONCE = """
import numpy, os, pathlib, prd, signal, time
folder = pathlib.Path(os.environ["FOLDER"])
values, gradients = numpy.zeros(8, numpy.float32), numpy.ones(8, numpy.float32)
def apply():
    values[:] -= 0.1 * gradients
with prd.Session() as session:
    session.attach(values, gradients, apply)
    session.step()
    if session.rank == 1:
        if not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "back").touch()
    while not (folder / "back").exists():
        session.step()
        time.sleep(0.01)
    session.finish()
    (folder / f"finished-{session.rank}-of-{session.workers}").touch()
"""


def finished(folder):
    """Who of the workers of DIES_ONCE has, of how many."""
    return sorted(path.name.removeprefix("finished-") for path in folder.glob("finished-*"))


def job(engine, workers, extra="", options=None, name="toy"):
    options = ENGINES[engine] if options is None else options
    return f'[[job]]\nname = "{name}"\nengine = "{engine}"\nworkers = {workers}\n{extra}\n[job.{engine}]\n{options}\n'


def Cluster(jobs):
    return cluster.Cluster(BIN, jobs)


def environment(c, rank=None, name="toy", **more):
    """For a worker that is a process of its own."""
    found = dict(os.environ, PYTHONPATH=str(PACKAGE), PRD_CONTROLLER=c.endpoint, PRD_JOB=name, **c.keys, **more)
    if rank is not None:
        found["PRD_RANK"] = str(rank)
    return found


def in_threads(workers, body):
    """Runs body(rank) for each rank on a thread of its own; returns what they return, or raises what the first one raised."""
    results, errors = [None] * workers, []

    def run(rank):
        try:
            results[rank] = body(rank)
        except BaseException as error:  # for the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
