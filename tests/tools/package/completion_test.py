#!/usr/bin/env python3
"""The completion of prd and prdctl in bash. Usage: completion_test.py BIN_DIR [TEST ...]"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/release/bin").resolve()
sys.path.insert(0, str(ROOT / "tests/integration"))
import cluster

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
complete -p "$1" > /dev/null || exit 1
_prd "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(*words, folder="/", **environment):
    """What is offered for the last word of a line."""
    done = subprocess.run(["bash", "-c", ASK, "bash", str(ROOT / "tools/package_lib/completion.bash"), *words], cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", **environment))
    assert done.returncode == 0 and not done.stderr, done
    return sorted(done.stdout.split())


def commands():
    """As prdctl names them where it is called without any."""
    said = subprocess.run([BIN / "prdctl"], capture_output=True, text=True).stderr
    return sorted(re.search(r"allowed are (.*) \(", said)[1].split(", "))


class Completion(unittest.TestCase):
    def test_all_commands_and_nothing_else(self):
        self.assertGreater(len(commands()), 10)
        self.assertEqual(offered("prdctl", ""), commands())
        self.assertEqual(offered("prdctl", "--json", ""), commands())
        self.assertEqual(offered("prdctl", "gr"), ["graph", "group", "groups"])
        self.assertEqual(offered("prd", "x"), [])

    def test_the_options_of_the_program_and_of_the_command(self):
        for command in [[], *([name] for name in commands())]:
            with self.subTest(command=command):
                helped = subprocess.run([BIN / "prdctl", *command, "--help"], capture_output=True, text=True).stdout
                own = set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", helped, re.MULTILINE))
                self.assertIn("--help", own)
                self.assertLessEqual(own | {"--json"}, set(offered("prdctl", *command, "--")))
        self.assertEqual(offered("prd", "--ch"), ["--check-config"])
        self.assertIn("-f", offered("prdctl", "groups", "-"))
        self.assertNotIn("--follow", offered("prdctl", "jobs", "--"))

    def test_values(self):
        self.assertEqual(offered("prdctl", "export", "--format", ""), ["csv", "jsonl", "trace"])
        self.assertEqual(offered("prdctl", "export", "--format", "=", "c"), ["csv"])  # as bash cuts --format=c
        self.assertEqual(offered("prdctl", "groups", "--kind", "=", ""), ["average", "final", "initial", "round", "train"])
        self.assertEqual(offered("prdctl", "groups", "--last", ""), [])
        self.assertEqual(offered("prdctl", "switch", "toy", "p"), ["p-reduce", "prague"])
        self.assertEqual(offered("prdctl", "--json", "switch", "--reason", "slow", "toy", "--reason", "=", "slow", "al"), ["all-reduce"])
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "job.toml").touch()
            self.assertEqual(offered("prd", "--config", "jo", folder=folder), ["job.toml"])
            self.assertEqual(offered("prdctl", "--state-dir", "", folder=folder), ["job.toml"])

    def test_names_of_jobs(self):
        with cluster.Cluster(str(BIN), '[[job]]\nname = "toy-*"\nengine = "all-reduce"\nworkers = 1\n') as c:
            self.assertEqual(offered("prdctl", "--admin", c.admin, "workers", ""), [])
            for job in ("toy-1", "toy-2", "toy-1"):
                environment = dict(os.environ, PYTHONPATH=str(ROOT / "worker/python"), PRD_LIBRARY=str(BIN.parent / "worker/libprd.so.0"),
                                   PRD_CONTROLLER=c.endpoint, PRD_JOB=job, PRD_RANK="0")
                subprocess.run(["/usr/bin/python3", ROOT / "tools/package_lib/trial/train.py"], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=90)
            for words in (["workers"], ["groups", "--run"], ["explain"], ["--json", "explain", "-r"],
                          ["evict"], ["end"], ["pause"], ["resume"], ["switch"], ["prune"], ["drain", "--job"]):
                self.assertEqual(offered("prdctl", *words, "", PRD_ADMIN=c.admin), ["toy-1", "toy-2"])
            self.assertEqual(offered("prdctl", "--admin", c.admin, "graph", "toy-2"), ["toy-2"])
            self.assertEqual(offered("prdctl", "evict", "toy-2", "", PRD_ADMIN=c.admin), [])
        self.assertEqual(offered("prdctl", "workers", "", PRD_ADMIN="ipc:///nowhere"), [], "no daemon: no names, and no error")


if __name__ == "__main__":
    unittest.main()
