#!/usr/bin/env python3
"""python3 -m prd.run. Usage: run_test.py BIN_DIR [TEST ...]"""
import place
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPT = """
import numpy, os, prd, signal, sys, time
values = numpy.full(10, float(os.environ["PRD_RANK"]), numpy.float32)
gradients = numpy.ones(10, numpy.float32)
def apply():
    values[:] += gradients
with prd.Session() as session:
    session.attach(values, gradients, apply)
    print("attached", session.engine, session.workers, *sys.argv[1:])
    {body}
    session.finish()
print("model", values[0])
"""
DIES_ONCE = """
    mark = os.environ["MARK"]
    for step in range(5):
        session.step()
    if session.rank == 1:
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        open(mark + ".back", "w").close()
    while "stay" in sys.argv and not os.path.exists(mark + ".back"):
        session.step()
        time.sleep(0.01)
"""
FAILS_LAST = """
    mark = os.environ["MARK"]
    if session.rank == 0:
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
    session.step()
    if session.rank == 1:
        session.finish()
        with open(mark) as file:
            other = file.read()
        while os.path.exists(f"/proc/{other}"):  # until prd.run knows that it has ended
            time.sleep(0.01)
        sys.exit(3)
"""
COMES_LATE = """
mark = os.environ["MARK"]
if os.environ["PRD_RANK"] == "0":
    with open(mark, "w") as file:
        file.write(str(os.getpid()))
elif os.path.exists(mark + ".died"):
    with open(mark) as file:
        other = file.read()
    while os.path.exists(f"/proc/{other}"):
        time.sleep(0.01)
with prd.Session"""
WAITS = """
    try:
        print("waits")
        while True:
            session.step()
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted")
"""


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prd-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"), MARK=str(self.folder / "mark"),
                                TMPDIR=str(self.folder))
        self.environment.pop("PRD_CONTROLLER", None)

    def start(self, body, *arguments, script_arguments=(), stdout=subprocess.PIPE, script=SCRIPT):
        path = self.folder / "train.py"
        path.write_text(script.replace("    {body}", body))
        return subprocess.Popen([sys.executable, "-m", "prd.run", *arguments, str(path), *script_arguments], env=self.environment,
                                stdout=stdout, stderr=subprocess.PIPE, text=True)

    def two_that_wait(self):
        program, waiting = self.start(WAITS, "-n", "2", "--engine", "p-reduce"), set()
        while len(waiting) < 2:
            line = program.stdout.readline()
            self.assertTrue(line, "both are to wait")
            if "waits" in line:
                waiting.add(line)
        return program

    def end(self, program, code=0):
        out, err = program.communicate(timeout=90)
        self.assertEqual(program.returncode, code, (out or "") + err)
        return out, err

    def test_workers_and_a_daemon_of_their_own(self):
        out, _ = self.end(self.start("    session.step()", "-n", "3", "--engine", "p-reduce", "--option", "group_size = 2",
                                     script_arguments=("--lr", "0.1")))
        lines = sorted(out.splitlines())
        self.assertEqual([line for line in lines if "attached" in line], [f"[{rank}] attached p-reduce 3 --lr 0.1" for rank in range(3)])
        self.assertEqual([line for line in lines if "model" in line], [f"[{rank}] model 1.0" for rank in range(3)])
        self.assertEqual(list(self.folder.glob("prd-run-*")), [], "it leaves nothing behind")

    def test_a_daemon_that_runs_is_used(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            self.environment.update(PRD_CONTROLLER=c.endpoint, PRD_JOB="toy")
            out, _ = self.end(self.start("    session.step()", "-n", "2"))
            self.assertIn("[1] attached all-reduce 2", out)

    def test_a_worker_that_dies_is_started_again_and_the_others_go_on(self):
        out, err = self.end(self.start(DIES_ONCE, "-n", "3", "--engine", "p-reduce", "--job-option", "lease_ms = 2000", "--restart", "1",
                                       script_arguments=("stay",)))
        self.assertIn("rank 1 was killed by SIGKILL, and is started again (1 of 1)", err)
        self.assertEqual(len(re.findall(r"\] model", out)), 3, out)
        (self.folder / "mark").unlink()
        (self.folder / "mark.back").unlink()
        out, err = self.end(self.start(DIES_ONCE, "-n", "3", "--engine", "p-reduce", "--job-option", "lease_ms = 2000"), code=1)
        self.assertIn("prd.run: rank 1 was killed by SIGKILL\n", err)
        self.assertEqual(len(re.findall(r"\] model", out)), 2, out)

    def test_a_worker_that_fails_after_the_job_is_not_started_again(self):
        _, err = self.end(self.start(FAILS_LAST, "-n", "2", "--engine", "all-reduce", "--restart", "1"), code=1)
        self.assertIn("prd.run: rank 1 ended with 3, and is not started again: all others have ended with 0, and so has the job\n", err)

    def test_a_worker_that_comes_back_after_the_job_is_ended(self):
        program = self.start("""
    session.step()
    if session.rank == 1:
        open(mark + ".died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
""", "-n", "2", "--engine", "p-reduce", "--job-option", "lease_ms = 2000", "--restart", "1", script=SCRIPT.replace("with prd.Session", COMES_LATE.strip()))
        _, err = self.end(program, code=1)
        self.assertIn("prd.run: rank 1 came back when all others had ended with 0, and so has the job: it is not begun anew\n", err)

    def test_an_interrupt_reaches_each_worker_once(self):
        program = self.two_that_wait()
        program.send_signal(signal.SIGINT)
        lines = [line.strip() for line in program.stdout]
        self.end(program)
        self.assertEqual(sorted(line for line in lines if "interrupted" in line), ["[0] interrupted", "[1] interrupted"])

    def test_a_hangup_ends_the_job(self):
        """Of a terminal that is closed: workers leave, and no folder stays."""
        program = self.two_that_wait()
        program.send_signal(signal.SIGHUP)
        self.end(program, code=1)
        self.assertEqual(list(self.folder.glob("prd-run-*")), [])

    def test_the_job_goes_on_where_its_output_is_lost(self):
        """On a full disk, or where nobody reads any more."""
        mark = "    session.step(); open(os.environ['MARK'] + os.environ['PRD_RANK'], 'w').close()"
        for error in ("No space left on device", "Broken pipe"):
            with self.subTest(error):
                reads, writes = os.pipe()
                os.close(reads)
                with open("/dev/full", "w") as full, open(writes, "w") as broken:
                    _, err = self.end(self.start(mark, "-n", "2", "--engine", "p-reduce", stdout=full if error[0] == "N" else broken))
                self.assertEqual(err.count(f"lost from here on: [Errno {28 if error[0] == 'N' else 32}] {error}"), 1, err)
                for rank in range(2):
                    (self.folder / f"mark{rank}").unlink()

    def test_a_daemon_that_dies_ends_the_job(self):
        """Its last words are said if they are in a file: --log may name a pipe, of which a reader waits for the end."""
        daemon = self.folder / "daemon"
        daemon.write_text('#!/bin/sh\ncase "$*" in *--check-config*) exit 0;; esac\necho last words\nkill -40 $$\n')
        daemon.chmod(0o755)
        os.mkfifo(self.folder / "fifo")
        reads = os.open(self.folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reads)
        for options, words in (((), "its log ends so:\nlast words"), (("--log", str(self.folder / "fifo")), "its log is in")):
            with self.subTest(options):
                _, err = self.end(self.start("", "-n", "2", "--engine", "hop", "--daemon", str(daemon), *options), code=1)
                self.assertIn(f"the daemon was killed by signal 40; {words}", err)
        self.assertEqual(list(self.folder.glob("prd-run-*")), [])

    def test_what_is_kept_is_one_jobs(self):
        kept = str(self.folder / "kept")
        program = self.start(WAITS, "-n", "1", "--engine", "p-reduce", "--keep", kept)
        while "waits" not in program.stdout.readline():
            pass
        _, err = self.end(self.start("", "-n", "1", "--engine", "hop", "--keep", kept), code=2)
        self.assertIn(f"--keep: {kept} is another prd.run's, which is running", err)
        self.assertIn("p-reduce", (self.folder / "kept/prd.toml").read_text())
        program.send_signal(signal.SIGINT)
        self.end(program)

    def test_what_is_wrong_is_said(self):
        def wrong(*arguments):
            return self.end(self.start("    session.step()", "-n", "2", *arguments), code=2)[1]

        err = wrong("--engine", "nonsense")
        self.assertIn('prd.run: --engine nonsense: job.engine: found "nonsense" (a text), allowed is "all-reduce"', err)
        self.assertNotIn("unknown key", err)
        err = wrong("--engine", "p-reduce", "--option", "group_size=2", "--option", "wieghts=samples", "--job-option", "goal_steps=-1")
        self.assertIn("--option wieghts=samples: job.p-reduce.wieghts: unknown key", err)
        self.assertEqual(err.count("--job-option goal_steps=-1: job.goal_steps: found -1"), 1, err)
        self.assertNotIn("prd.toml", err)
        self.assertNotIn("SIGKILL", err, "no worker was started")
        self.assertIn("argument --option: found 'weights', needed is KEY=VALUE", wrong("--engine", "p-reduce", "--option", "weights"))
        self.assertIn("--env: found A for rank 2, there are ranks 0 to 1", wrong("--engine", "hop", "--env", "2:A=b"))
        self.assertIn("--engine: needed", wrong())
        self.assertIn("--workers: found 0", self.end(self.start("", "-n", "0", "--engine", "hop"), code=2)[1])
        self.assertIn("which is no program here; name the daemon by --daemon or PRD_DAEMON", wrong("--engine", "hop", "--daemon", "/no/prd"))
        self.assertEqual(list(self.folder.glob("prd-run-*")), [])

    def test_strings_need_no_quotes(self):
        out, _ = self.end(self.start("    session.step()", "-n", "2", "--engine", "p-reduce", "--option", "weights=samples", "--option", "group_size=2",
                                     "--option", 'missing="initial"', "--option", "overlap = true", "--job-option", "on_nonfinite=stop"))
        self.assertEqual(out.count("model 1.0"), 2, out)

    def test_prdctl_finds_the_daemon(self):
        program = self.start(WAITS, "-n", "2", "--engine", "p-reduce")
        first = program.stderr.readline()
        self.assertIn(f"{place.BIN}/prdctl workers\n", first)
        command = first.partition(": ")[2].partition(": ")[2]
        while "waits" not in program.stdout.readline():
            pass
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
        program.send_signal(signal.SIGINT)
        self.end(program)
        self.assertIn("train", done.stdout, done.stderr)

    def test_history_and_log_are_kept(self):
        kept, log = self.folder / "a folder/kept", self.folder / "daemon.log"
        _, err = self.end(self.start("    session.step()", "-n", "2", "--engine", "p-reduce", "--keep", str(kept), "--log", str(log)))
        command = err.splitlines()[-1].partition("again: ")[2]
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
        self.assertIn("finished", done.stdout, done.stderr)
        self.assertIn("train", log.read_text())

    def test_a_config_of_ones_own(self):
        config = self.folder / "own.toml"
        text = '[[job]]\nname = "tr*"\nengine = "p-reduce"\nworkers = 2\n[job.p-reduce]\ngroup_size = 2\n'
        for daemon in ("", '[daemon]\nlisten = "tcp://0.0.0.0:5775"\nlog_level = "debug"\nstate_dir = "/nowhere"\n'):
            config.write_text(daemon + text)
            log = self.folder / f"log-{bool(daemon)}"
            out, _ = self.end(self.start("    session.step()", "-n", "2", "--config", str(config), "--log", str(log)))
            self.assertIn("[1] attached p-reduce 2", out)
            self.assertEqual("[debug]" in log.read_text() or " debug " in log.read_text(), bool(daemon))
        config.write_text(text + "group_sized = 3\n")
        _, err = self.end(self.start("", "-n", "2", "--config", str(config)), code=2)
        self.assertIn(f"{config}:7: job.p-reduce.group_sized: unknown key", err)
        self.assertIn("--config: [Errno 2]", self.end(self.start("", "-n", "2", "--config", "/no.toml"), code=2)[1])
        self.assertIn("are the file's", self.end(self.start("", "-n", "2", "--config", str(config), "--engine", "hop"), code=2)[1])

    def test_variables_of_all_ranks_and_of_some(self):
        out, _ = self.end(self.start('    print("has", os.environ.get("ALL"), os.environ.get("SOME"))', "-n", "3", "--engine", "p-reduce",
                                     "--env", "ALL=x=y", "--env", "0,2:SOME=z"))
        self.assertEqual(sorted(line for line in out.splitlines() if "has" in line), ["[0] has x=y z", "[1] has x=y None", "[2] has x=y z"])

    def test_several_jobs_of_one_script(self):
        out, _ = self.end(self.start("""
    with prd.Session(job="train/second") as second:
        second.attach(numpy.zeros(4, numpy.float32), numpy.zeros(4, numpy.float32), lambda: None)
        second.step()
        second.finish()
        print("second", second.engine)
""", "-n", "2", "--engine", "p-reduce", "--option", "group_size=2"))
        self.assertEqual(out.count("second p-reduce"), 2, out)

    def test_a_traceback_stays_in_one_piece(self):
        """Rank 1 writes in the midst of rank 0's; and the end says who was first."""
        script = self.folder / "fails.sh"
        script.write_text("""#!/bin/sh
wait_for() { until [ -e "$MARK.$1" ]; do sleep 0.01; done; }
if [ "$PRD_RANK" = 0 ]; then
  echo "Traceback (most recent call last):" >&2; touch $MARK.begun; wait_for between
  printf '  File "x"\n    f()\nValueError: first\nprd: the session was left\n' >&2
  printf 'Exception ignored in: <f>\nTraceback (most recent call last):\n  File "y"\nTypeError: second\n\r10%%\r20%%\n' >&2; exit 3
fi
wait_for begun; echo other >&2; touch $MARK.between; while kill -0 "$(cat $MARK.pid)" 2>/dev/null; do sleep 0.01; done
echo last >&2; exit 4
""".replace('if [ "$PRD_RANK" = 0 ]; then', 'if [ "$PRD_RANK" = 0 ]; then\n  echo $$ > $MARK.pid'))
        script.chmod(0o755)
        program = subprocess.Popen([sys.executable, "-m", "prd.run", "-n", "2", "--engine", "hop", "--no-python", str(script)], env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _, err = self.end(program, code=1)
        self.assertIn('[0] Traceback (most recent call last):\n[0]   File "x"\n[0]     f()\n[0] ValueError: first\n', err)
        self.assertIn("prd.run: 2 of 2 workers failed, rank 0 first: ValueError: first\n", err)

    def test_the_examples_of_help_can_be_parsed(self):
        sys.path.insert(0, str(place.PACKAGE))
        import prd.run
        lines = re.findall(r"^  python3 -m prd\.run (.*)$", prd.run.EXAMPLES, re.MULTILINE)
        self.assertGreater(len(lines), 5)
        for line in lines:
            prd.run.parse(re.split(r"  +", line)[0].split())


if __name__ == "__main__":
    unittest.main()
