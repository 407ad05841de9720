"""The demo's driver from outside, with programs that only play their parts: what it leaves, and how it ends."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
DEMO = pathlib.Path(os.environ["PRD_SOURCE_DIR"]) / "tools/demo"
DEADLINE_S = 60


class Driver(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="prd-driver-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        (self.dir / "bin").mkdir()
        (self.dir / "tmp").mkdir()
        for name in ("prd", "prd-train", "prd-train-hyperplane", "prd-evaluate", "prdctl"):
            program = self.dir / "bin" / name
            # The path of the test's folder marks its processes, see left_over.
            program.write_text(f'#!/bin/sh\nexec /usr/bin/python3 -B {HERE}/fakes.py {name} "$@" {self.dir}\n')
            program.chmod(0o755)

    def start(self, *options, fault="", epochs="0.01"):
        return subprocess.Popen(
            [DEMO, "--workers", "2", *(["--epochs", epochs] if epochs else []), "--out", self.dir / "out", *options],
            env=dict(os.environ, PRD_BIN=str(self.dir / "bin"), TMPDIR=str(self.dir / "tmp"),
                     FAKE_FAULT=fault, FAKE_ENGINE=str(self.dir / "engine")),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def finish(self, demo):
        out, err = demo.communicate(timeout=DEADLINE_S)
        return demo.returncode, out, err

    def left_over(self):
        """Command lines of processes that belong to this test and still run."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if b"fakes.py" in command and str(self.dir).encode() in command:
                found.append(command)
        return found

    def wait_for(self, predicate, what):
        end = time.monotonic() + DEADLINE_S
        while not predicate():
            self.assertLess(time.monotonic(), end, f"no {what}")
            time.sleep(0.02)

    def evaluations(self):
        return list((self.dir / "tmp").glob("prd-demo-*/all-reduce/evaluations.jsonl"))

    def test_leaves_everything_and_a_table(self):
        code, out, err = self.finish(self.start())
        self.assertEqual((code, err), (0, ""))
        runs = json.loads((self.dir / "out/summary.json").read_text())["runs"]
        self.assertEqual([run["engine"] for run in runs], ["all-reduce", "p-reduce"])
        for run in runs:
            self.assertEqual(run["final_accuracy"], 0.9)
            self.assertEqual(run["idle_share"], [0.25, 0.25])
            self.assertEqual(run["compute_share"], [0.75, 0.75])
            self.assertEqual((run["rounds"], run["mean_contributors"], run["dropped_updates"]), (1, 1.0, 1))
            self.assertTrue((self.dir / f"out/trace-{run['engine']}.json").exists())
        self.assertIn("<svg", (self.dir / "out/accuracy.svg").read_text())
        self.assertIn("time to 85% test accuracy", out)
        self.assertEqual(out.count("live in a browser of this host: http://127.0.0.1:8270/token/\n"), 1, out)
        one, other = ((self.dir / f"out/prd-{run['engine']}.toml").read_text().splitlines() for run in runs)
        differ = [a for a, b in zip(one, other) if a != b]
        self.assertEqual(differ, ['engine = "all-reduce"'])
        self.assertEqual(self.left_over(), [])
        self.assertEqual(list((self.dir / "tmp").iterdir()), [])

    def test_one_engine_with_several_options(self):
        specs = ["p-reduce:group_size=2,weights=constant", "p-reduce"]
        code, out, err = self.finish(self.start("--engines", ",".join(specs)))
        self.assertEqual((code, err), (0, ""))
        self.assertIn(specs[0], out)
        runs = json.loads((self.dir / "out/summary.json").read_text())["runs"]
        self.assertEqual([run["spec"] for run in runs], specs)
        self.assertEqual([run["group_size"] for run in runs], [2, 2])
        constant = (self.dir / "out/prd-p-reduce-group_size-2-weights-constant.toml").read_text()
        self.assertIn('[job.p-reduce]\ngroup_size = 2\nweights = "constant"\n', constant)
        self.assertIn("[job.p-reduce]\ngroup_size = 3\n", (self.dir / "out/prd-p-reduce.toml").read_text())

    def test_a_loss_that_falls_and_a_run_of_seconds(self):
        options = "--setting hyperplane --engines all-reduce --target 5 --seconds 1"
        code, out, err = self.finish(self.start(*options.split(), epochs=""))
        self.assertEqual((code, err), (0, ""))
        self.assertIn("time to a held-out loss of 5, s", out)
        [run] = json.loads((self.dir / "out/summary.json").read_text())["runs"]
        self.assertEqual(run["final_loss"], 4.5)
        self.assertEqual(run["time_to_target_s"], 0.1)
        self.assertIsNone(run["reference_updates_per_s"])
        self.assertIn("<svg", (self.dir / "out/loss.svg").read_text())

    def test_workers_show_keys(self):
        code, out, err = self.finish(self.start("--keys", "--engines", "p-reduce", fault="keys are shown"))
        self.assertEqual((code, err), (0, ""))
        config = (self.dir / "out/prd-p-reduce.toml").read_text()
        self.assertIn("curve_secret_key_file", config)
        self.assertIn("curve_authorized_keys_file", config)

    def test_a_config_that_prd_refuses_is_an_error_before_any_run(self):
        code, out, err = self.finish(self.start("--engines", "all-reduce,hop", fault="prd: config"))
        self.assertEqual(code, 1)
        self.assertIn("all-reduce: prd --check-config ended with exit code 1: prd.toml:7: engine: found 'hop'", err)
        self.assertNotIn("accuracy", out)

    def test_without_a_page_it_goes_on(self):
        code, out, err = self.finish(self.start("--engines", "all-reduce", fault="prdctl: no page"))
        self.assertEqual((code, err), (0, ""))
        self.assertIn("no page for a browser: prdctl serve says no address", out)
        self.assertIn("time to 85% test accuracy", out)

    def test_a_worker_that_dies_is_an_error_with_its_log(self):
        code, _, err = self.finish(self.start(fault="worker 1: dies"))
        self.assertEqual(code, 1)
        self.assertIn("worker 1 was killed by signal SIGKILL", err)
        self.assertIn("cannot go on", err)
        self.assertEqual(self.left_over(), [])

    def test_replicas_that_differ_at_the_end_are_an_error(self):
        code, _, err = self.finish(self.start(fault="prd-evaluate: spread"))
        self.assertEqual(code, 1)
        self.assertIn("models that differ by up to 0.5", err)

    def test_a_run_that_takes_too_long_is_given_up(self):
        code, _, err = self.finish(self.start("--limit-s", "1", fault="a worker: endless"))
        self.assertEqual(code, 1)
        self.assertIn("within the time limit of 1 s", err)
        self.assertEqual(self.left_over(), [])

    def test_kills_what_it_is_told_to_and_goes_on(self):
        code, out, err = self.finish(
            self.start("--kill", "prd:0.2", "--kill", "1:0.4", fault="one killed", epochs="0.02")
        )
        self.assertEqual((code, err), (0, ""))
        self.assertIn("time to 85% test accuracy", out)
        self.assertEqual(self.left_over(), [])

    def test_a_history_that_does_not_replay_is_an_error(self):
        code, _, err = self.finish(self.start(fault="prdctl: hole"))
        self.assertEqual(code, 1)
        self.assertIn("prdctl replay ended with exit code 3", err)

    def test_ctrl_c_ends_the_children_and_leaves_what_there_is(self):
        demo = self.start(fault="a worker: endless")
        self.wait_for(lambda: self.evaluations() and self.evaluations()[0].stat().st_size > 200, "evaluation")
        demo.send_signal(signal.SIGINT)
        code, _, err = self.finish(demo)
        self.assertEqual(code, 130)
        self.assertIn("interrupted", err)
        self.assertTrue((self.dir / "out/evaluations-all-reduce.jsonl").exists())
        self.assertEqual(json.loads((self.dir / "out/summary.json").read_text())["runs"], [])
        self.assertEqual(self.left_over(), [])

    def test_children_do_not_outlive_a_killed_demo(self):
        demo = self.start(fault="a worker: endless")
        self.wait_for(self.evaluations, "evaluation")
        demo.kill()
        self.finish(demo)
        self.wait_for(lambda: not self.left_over(), "end of the children")

    def test_a_missing_program_is_an_error_that_names_it(self):
        (self.dir / "bin/prd").unlink()
        code, _, err = self.finish(self.start())
        self.assertEqual(code, 1)
        self.assertIn("prd cannot be started", err)

    def test_wrong_options_are_refused(self):
        wrong = (
            "--slow 2:5", "--slow x", "--engines hop,hop", "--engines a:b", "--engines hop:backups=x", "--engines k=v",
            "--target 2",
            "--kill prd", "--kill 2:1", "--inject one", "--inject shifted:2:1", "--seconds 0",
            "--quick --setting esync",
        )  # fmt: skip
        for options in wrong:
            code, _, err = self.finish(self.start(*options.split()))
            self.assertEqual(code, 2)
            self.assertIn("allowed is", err)


if __name__ == "__main__":
    unittest.main()
