#!/usr/bin/env python3
"""SIGTERM, as schedulers send it to one worker. Usage: terminate_test.py BIN_DIR [TEST ...]"""
import place
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

EXIT = 128 + signal.SIGTERM
HEAD = """
import numpy, os, prd, signal, sys, time
from prd import terminate
values, gradients = numpy.zeros(10, numpy.float32), numpy.ones(10, numpy.float32)
def say(*words):
    print(*words, flush=True)
def apply():
    values[:] -= 0.1 * gradients
def train(session, steps=10**6, pause=0.005):
    for step in range(steps):
        result = session.step()
        if step == 3:
            say("trains")
        time.sleep(pause)
"""
PLAIN = HEAD + """
session = prd.Session()
session.attach(values, gradients, apply)
try:
    train(session, int(sys.argv[1]))
    session.finish()
    say("finished")
finally:
    say("finally", session.progress.own_steps)
"""


class Terminate(unittest.TestCase):
    def start(self, c, rank, script, *arguments):
        program = subprocess.Popen([sys.executable, "-c", script, *arguments], env=place.environment(c, rank), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        return program

    def hears(self, program, line):
        for said in program.stdout:
            if said == line + "\n":
                return
        self.fail(f"it never said {line}: {program.stderr.read()}")

    def ends(self, program, code):
        out, err = program.communicate(timeout=90)
        self.assertEqual(program.returncode, code, out + err)
        return out, err

    def left(self, c, rank):
        """The reasons why it left, and how many groups failed."""
        records = [json.loads(line) for line in c.prdctl("export").splitlines()]
        failed = [record for record in records if record["type"] == "group_ended" and not record["ok"]]
        left = [record for record in records if record["type"] == "worker_left" and record["rank"] == rank]
        return [record["reason"] for record in left if record["why"] == "left"], failed

    def test_a_worker_leaves_at_its_next_boundary_and_no_group_fails(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 3)) as c:
                workers = [self.start(c, rank, PLAIN, "200" if rank else "1000000") for rank in range(3)]
                for worker in workers:
                    self.hears(worker, "trains")
                workers[0].send_signal(signal.SIGTERM)
                out, err = self.ends(workers[0], EXIT)
                self.assertRegex(out, "finally [0-9]+")
                self.assertEqual(err, "prd: SIGTERM: leaves the job after this step, and the others go on; once more: at once\n")
                for worker in workers[1:]:
                    self.assertIn("finished\nfinally 200\n", self.ends(worker, 0)[0])
                reasons, failed = self.left(c, 0)
                self.assertEqual((reasons, failed), (["SIGTERM"], []))

    def test_a_pytorch_script_and_what_it_has_started(self):
        """Its finally blocks run, and children of it end by SIGTERM as ever."""
        script = HEAD + """
import torch, prd.torch
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with prd.torch.attach(model, optimizer) as worker:
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGTERM)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    try:
        for step in range(10**6):
            optimizer.zero_grad()
            model(torch.ones(4, 6)).pow(2).mean().backward()
            optimizer.step()
            if step == 3:
                say("trains")
    finally:
        say("finally", worker.trained[0])
"""
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("there is no python3-torch here")
        with place.Cluster(place.job("all-reduce", 1)) as c:
            worker = self.start(c, 0, script)
            self.assertEqual(worker.stdout.readline(), f"child {-signal.SIGTERM}\n")
            self.hears(worker, "trains")
            worker.send_signal(signal.SIGTERM)
            self.assertIn("finally", self.ends(worker, EXIT)[0])
            self.assertEqual(self.left(c, 0), (["SIGTERM"], []))

    def test_the_programs_own_handler_is_left_alone(self):
        script = PLAIN.replace("session = prd", """
def told(*_):
    say("told")
    os._exit(7)
if sys.argv[2] == "before":
    signal.signal(signal.SIGTERM, told)
session = prd""").replace("try:", """
if sys.argv[2] == "after":
    signal.signal(signal.SIGTERM, told)
try:""")
        for when in ("before", "after"):
            with self.subTest(when=when), place.Cluster(place.job("all-reduce", 1)) as c:
                worker = self.start(c, 0, script, "1000000", when)
                self.hears(worker, "trains")
                worker.send_signal(signal.SIGTERM)
                self.assertEqual(self.ends(worker, 7)[0], "told\n")

    def test_where_no_boundary_comes(self):
        """Before the job begins and in finish it ends at once; so it does for a second SIGTERM, and when a step takes too long."""
        with place.Cluster(place.job("all-reduce", 2)) as c:
            alone = self.start(c, 0, HEAD + """
session = prd.Session(start_timeout=80)
say("joins")
session.attach(values, gradients, apply)
""")
            self.hears(alone, "joins")
            alone.send_signal(signal.SIGTERM)
            alone.wait(90)
            self.assertIn(alone.returncode, (EXIT, -signal.SIGTERM))  # the latter before the call
        waits = """
session = prd.Session()
session.attach(values, gradients, apply)
if session.rank == 1:
    signal.pause()
"""
        for how, code in {
            "finish": "session.finish()",
            "step, twice": "session.step()",
            "step, too long": "terminate.LIMIT_S = 0.1\nsession.step()",
        }.items():
            with self.subTest(how=how), place.Cluster(place.job("all-reduce", 2)) as c:
                workers = [self.start(c, rank, HEAD + waits + "say('waits')\n" + code) for rank in range(2)]
                self.hears(workers[0], "waits")
                workers[0].send_signal(signal.SIGTERM)
                if how == "step, twice":
                    self.assertIn("SIGTERM", workers[0].stderr.readline())
                    workers[0].send_signal(signal.SIGTERM)
                self.ends(workers[0], EXIT)
                workers[1].kill()

    def test_a_pause_ends_with_leaving(self):
        script = HEAD + """
session = prd.Session()
session.attach(values, gradients, apply)
with session.pause():
    say("pauses")
    while not terminate._came:
        time.sleep(0.01)
    say("saved")
say("never")
"""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            worker = self.start(c, 0, script)
            self.hears(worker, "pauses")
            worker.send_signal(signal.SIGTERM)
            self.assertEqual(self.ends(worker, EXIT)[0], "saved\n")

    def test_a_session_that_is_over_leaves_nothing_behind(self):
        script = HEAD + """
with prd.Session() as session:
    session.attach(values, gradients, apply)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    train(session, 5)
    session.finish()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
os.kill(os.getpid(), signal.SIGTERM)
"""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            self.ends(self.start(c, 0, script), -signal.SIGTERM)

    def test_a_spot_notice_is_no_signal(self):
        script = HEAD + """
with prd.Session() as session:
    session.attach(values, gradients, apply)
    session.leave_soon("spot notice", grace=100)
    try:
        train(session)
    except prd.Aborted as error:
        say(error, session.progress.own_steps)
"""
        with place.Cluster(place.job("all-reduce", 1)) as c:
            self.assertEqual(self.ends(self.start(c, 0, script), 0)[0], "left: spot notice 1\n")
            self.assertEqual(self.left(c, 0), (["spot notice"], []))

    def test_a_launcher_passes_a_notice_on(self):
        """prd.notices: sessions that are open, and those that are opened later; a line that is none of its lines is named."""
        script = HEAD + """
for again in range(2):
    with prd.Session() as session:
        try:
            session.attach(values, gradients, apply)
            train(session)
        except prd.Aborted as error:
            say(error, sys.stdin.read() == "")
"""
        with tempfile.TemporaryDirectory(prefix="prd-test-") as name, place.Cluster(place.job("all-reduce", 1)) as c:
            path = pathlib.Path(name, "script.py")
            path.write_text(script)
            program = subprocess.Popen([sys.executable, "-m", "prd.notices", path], env=place.environment(c, 0), stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(program.communicate)
            self.addCleanup(program.kill)
            self.hears(program, "trains")
            out, err = program.communicate("soon taken away\ninf taken away\n20 taken away\n", timeout=90)
            self.assertEqual((program.returncode, out), (0, "left: taken away True\n" * 2), err)
            self.assertIn("prd.notices: found 'soon taken away\\n', needed are seconds and a reason", err)
            self.assertEqual(self.left(c, 0), (["taken away"], []))

    def test_prd_run_lets_its_workers_leave(self):
        with tempfile.TemporaryDirectory(prefix="prd-test-") as name:
            (pathlib.Path(name) / "train.py").write_text(PLAIN)
            environment = dict(os.environ, PYTHONPATH=str(place.PACKAGE), PRD_DAEMON=str(place.BIN / "prd"))
            environment.pop("PRD_CONTROLLER", None)
            program = subprocess.Popen([sys.executable, "-m", "prd.run", "-n", "2", "--engine", "p-reduce", f"{name}/train.py", "1000000"],
                                       env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                trains = set()
                while len(trains) < 2:
                    line = program.stdout.readline()
                    self.assertTrue(line, "both are to train")
                    if "trains" in line:
                        trains.add(line)
                program.send_signal(signal.SIGTERM)
                out, err = self.ends(program, 1)
            finally:
                program.kill()
                program.communicate()
            for rank in range(2):
                self.assertIn(f"[{rank}] finally", out)
                self.assertIn(f"rank {rank} ended with {EXIT}\n", err)


if __name__ == "__main__":
    unittest.main()
