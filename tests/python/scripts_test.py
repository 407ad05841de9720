#!/usr/bin/env python3
"""Scripts of the shapes that PyTorch users have, with a few lines added or changed. Usage: scripts_test.py BIN_DIR [TEST ...]

Each script runs under a few of the engines, and all scripts together under every one. PRD_SCRIPTS=all: each under every engine,
and as it is without prd. PRD_COMPILE=1: each compiles its model (PyTorch 2).
"""
import place
import difflib
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
import warnings
import zlib

try:
    import torch
except ModuleNotFoundError:
    print("OK (skipped: there is no python3-torch here)")
    sys.exit(0)

import prd.torch

torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)  # the first one of PyTorch 2.x imports much, once for all forks
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
NAMES = ["mnist", "vae", "imagenet", "nanogpt"]
SETTINGS = [*place.ENGINES.items(), ("p-reduce", "group_size = 2\noverlap = true"), ("prague", "overlap = true"), ("ad-psgd", "overlap = true")]
ALL = os.environ.get("PRD_SCRIPTS") == "all"
COMPILE = os.environ.get("PRD_COMPILE") == "1"
WORKERS = 3


def patched(folder, name):
    """Puts a copy of the script into `folder`, with its diff applied, and gives the lines of both."""
    plain = (SCRIPTS / f"{name}.py").read_text().splitlines()
    added, at = [], 0
    for line in (SCRIPTS / f"{name}.diff").read_text().splitlines()[2:]:
        if line.startswith("@@"):
            first = int(re.match(r"@@ -(\d+)", line)[1]) - 1
            added += plain[at:first]
            at = first
        elif line.startswith("+"):
            added.append(line[1:])
        elif line[1:] == plain[at]:
            added += [plain[at]] * line.startswith(" ")
            at += 1
        else:
            raise ValueError(f"{name}.diff: found {line!r}, where the script has {plain[at]!r}")
    added += plain[at:]
    (folder / f"{name}.py").write_text("\n".join(added) + "\n")
    (folder / "tiny_data.py").write_bytes((SCRIPTS / "tiny_data.py").read_bytes())
    return plain, added


def tell_of_the_end():
    """Worker.finish prints a digest of the model then, and how many steps were this worker's."""
    finish = prd.torch.Worker.finish

    def finish_and_tell(worker):
        finish(worker)
        digest = 0
        for tensor in worker.model.state_dict().values():
            if tensor.is_floating_point():
                digest = zlib.crc32(tensor.numpy().tobytes(), digest)
        print(f"finished {digest} {worker.trained[0]}")

    prd.torch.Worker.finish = finish_and_tell


def compile_after_attach():
    attach = prd.torch.attach

    def attach_and_compile(model, *args, **kwargs):
        worker = attach(model, *args, **kwargs)
        model.compile()
        return worker

    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    prd.torch.attach = attach_and_compile


def start(folder, script, environment, arguments=(), strict=True):
    """A process that runs the script as its main program in `folder`, and prints into out and err beside that. A fork: this one has
    imported PyTorch, which takes longest."""
    child = os.fork()
    if child:
        return child
    try:
        os.environ.update(environment)
        os.chdir(folder)
        sys.path.insert(0, "")
        for stream, number in (("../out", 1), ("../err", 2)):
            os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT, 0o600), number)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)
        sys.argv = [script, *arguments]
        torch.set_num_threads(1)
        if strict and not COMPILE:  # what compiles imports much that warns
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", r"`torch\.cuda\.amp\.GradScaler", FutureWarning)  # nanoGPT has it so; PyTorch 2.4 and later
        if environment.get("PRD_RANK"):
            tell_of_the_end()
            if COMPILE:
                compile_after_attach()
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class Scripts(unittest.TestCase):
    def losses_fall(self, text):
        losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", text)]
        self.assertGreater(len(losses), 6, text)
        self.assertLess(sum(losses[-3:]), 0.98 * sum(losses[:3]), losses)

    def run_script(self, name, folders, environments):
        """What each process printed."""
        for folder in folders:
            folder.mkdir(parents=True)
            patched(folder, name)
        children = [start(folder, f"{name}.py", environment) for folder, environment in zip(folders, environments)]
        ends = [os.waitpid(child, 0)[1] for child in children]
        for end, folder in zip(ends, folders):
            self.assertEqual(end, 0, (folder.parent / "err").read_text()[-2000:])
        return [(folder.parent / "out").read_text() for folder in folders]

    def under(self, name, engine, options):
        with place.Cluster(place.job(engine, WORKERS, "", options)) as c:
            environments = [place.environment(c, rank) for rank in range(WORKERS)]
            printed = self.run_script(name, [c.dir / f"rank{rank}/run" for rank in range(WORKERS)], environments)
            ends = [re.search(r"finished (\d+) (\d+)\n", text) for text in printed]
            self.assertEqual(len({end[1] for end in ends}), 1, "replicas are equal in bits")
            self.losses_fall(printed[max(range(WORKERS), key=lambda rank: int(ends[rank][2]))])

    def under_its_engines(self, name):
        if ALL:
            with tempfile.TemporaryDirectory(prefix="prd-test-") as folder:
                done = subprocess.run([sys.executable, SCRIPTS / f"{name}.py"], cwd=folder, capture_output=True, text=True, check=True)
                self.losses_fall(done.stdout)
        for engine, options in SETTINGS if ALL else SETTINGS[NAMES.index(name) :: len(NAMES)]:
            with self.subTest(script=name, engine=engine, options=options):
                began = time.monotonic()
                self.under(name, engine, options)
                print(f"{name}, {engine}, {options!r}: {time.monotonic() - began:.1f} s", file=sys.stderr)

    def test_at_most_five_lines_are_added_or_changed(self):
        for name in NAMES:
            with tempfile.TemporaryDirectory(prefix="prd-test-") as folder:
                plain, added = patched(pathlib.Path(folder), name)
                changes = [change for change in difflib.SequenceMatcher(None, plain, added, False).get_opcodes() if change[0] != "equal"]
                self.assertLessEqual(sum(max(change[2] - change[1], change[4] - change[3]) for change in changes), 5, name)
                self.assertNotIn("prd", "\n".join(plain))

    def test_mnist(self):
        self.under_its_engines("mnist")

    def test_vae(self):
        self.under_its_engines("vae")

    def test_imagenet(self):
        self.under_its_engines("imagenet")

    def test_nanogpt(self):
        self.under_its_engines("nanogpt")


if __name__ == "__main__":
    unittest.main()
