"""punish from outside, with real processes: what it leaves, how it ends, and that it finds what breaks a law.

Nothing is asked of times but that they end.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

PUNISH = pathlib.Path(os.environ["PRD_SOURCE_DIR"]) / "tools/punish"
BIN = pathlib.Path(os.environ["PRD_BIN_DIR"])
DEADLINE_S = 200

# A worker that is none: prd never hears of it. Rank 0 stops making steps until it is told to end.
PRETENDER = """\
n=0
while [ ! -e {stop} ]; do
  [ {rank} = 0 ] && [ $n -gt 40 ] || echo '{"step":'$n'}'
  n=$((n + 1)); sleep 0.1
done
"""


class FromOutside(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="prd-driver-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        (self.dir / "tmp").mkdir()

    def start(self, *options):
        return subprocess.Popen(
            [PUNISH, "--out", self.dir / "out", *options],
            env=dict(os.environ, PRD_BIN=str(BIN), TMPDIR=str(self.dir / "tmp")),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def finish(self, punish):
        out, err = punish.communicate(timeout=DEADLINE_S)
        return punish.returncode, out, err

    def events(self, engine="p-reduce"):
        path = self.dir / f"out/events-{engine}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def left_over(self):
        """Command lines of processes that were started for this test and still run."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                mine = entry.name.isdigit() and str(self.dir).encode() in (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes() if mine else b""
            except OSError:
                continue
            if command and int(entry.name) != os.getpid():
                found.append(command)
        return found

    def wait_for(self, predicate, what):
        end = time.monotonic() + DEADLINE_S
        while not predicate():
            self.assertLess(time.monotonic(), end, f"no {what}")
            time.sleep(0.02)

    def wait_for_event(self, name):
        self.wait_for(lambda: any(event["event"] == name for event in self.events()), name)


class Quick(FromOutside):
    def test_quick_breaks_no_law(self):
        code, out, err = self.finish(self.start("--quick", "--switch", "p-reduce,all-reduce", "--seed", "1", "--json"))
        self.assertEqual(code, 0, err)
        [result] = map(json.loads, out.splitlines())
        self.assertTrue(all(result["laws"].values()), result)
        self.assertEqual(set(result["faults"]), {"kill", "stop", "kill-daemon", "switch"})
        self.assertEqual(json.loads((self.dir / "out/summary.json").read_text())["runs"], [result])
        events = self.events()
        faults = [(event["kind"], event["ranks"]) for event in events if event["event"] == "fault"]
        overs = [(event["kind"], event["ranks"]) for event in events if event["event"] == "over"]
        self.assertEqual(sorted(faults), sorted(overs))
        self.assertEqual(sum(result["faults"].values()), len(faults))
        said = [event["text"] for event in events if event["event"] == "switch"]
        self.assertEqual(len(said), result["faults"]["switch"])
        for text in said:  # a daemon that has just started waits for the workers first
            self.assertRegex(text, "goes on in another run|waits to hear from the workers|no run of job")
        self.assertIn("--seed 1", err)
        self.assertEqual(self.left_over(), [])
        self.assertEqual(list((self.dir / "tmp").iterdir()), [])


class Driver(FromOutside):
    def test_workers_that_hang_and_are_in_no_run_are_found(self):
        options = "--workers 2 --lease-ms 100 --faults kill --every 100000 --minutes 0.13 --baseline-seconds 1 --json"
        code, out, err = self.finish(self.start(*options.split(), "--", "sh", "-c", PRETENDER))
        self.assertEqual(code, 1, err)
        [result] = map(json.loads, out.splitlines())
        broken = {law for law, holds in result["laws"].items() if not holds}
        self.assertEqual(broken, {"no-hang", "one-run"}, result)
        self.assertTrue(all(found.startswith("worker 0:") for found in result["findings"]["no-hang"]), result)
        self.assertIn("LAW BROKEN: no-hang: worker 0", err)
        self.assertEqual(self.left_over(), [])

    def test_a_worker_that_ends_at_once_is_an_error_with_its_log(self):
        code, out, err = self.finish(self.start("--workers", "2", "--", "sh", "-c", "echo no data >&2; exit 3"))
        self.assertEqual(code, 1)
        self.assertIn("worker 0 ended with exit code 3; its log ends so:\n    no data", err)
        self.assertEqual(self.left_over(), [])

    def test_ctrl_c_ends_all_processes_and_prints_what_there_is(self):
        punish = self.start("--quick", "--minutes", "10")
        self.wait_for_event("fault")
        punish.send_signal(signal.SIGINT)
        code, out, err = self.finish(punish)
        self.assertEqual(code, 130)
        self.assertIn("interrupted", err)
        self.assertIn("none so far", out)
        self.assertEqual(self.left_over(), [])
        self.assertEqual(list((self.dir / "tmp").iterdir()), [])

    def test_nothing_outlives_a_killed_punish(self):
        punish = self.start("--quick", "--minutes", "10", "--faults", "stop")
        self.wait_for_event("baseline")
        punish.kill()
        self.finish(punish)
        self.wait_for(lambda: not self.left_over(), "end of the processes")
        # Its folder goes with the next one's.
        [folder] = (self.dir / "tmp").iterdir()
        code, _, _ = self.finish(self.start("--workers", "2", "--", "false"))
        self.assertEqual(code, 1)
        self.assertFalse(folder.exists())
        self.assertEqual(len(list((self.dir / "tmp").iterdir())), 1)  # what is left for that error


if __name__ == "__main__":
    unittest.main()
