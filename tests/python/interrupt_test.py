#!/usr/bin/env python3
"""Ctrl-C anywhere in a call, and training that goes on after it. Usage: interrupt_test.py BIN_DIR [TEST ...]"""
import place
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy

import prd

SIZE = 100


def new_session(c, rank, **options):
    return prd.Session(controller=c.endpoint, job="toy", rank=rank, timeout=60, **options)


def interrupt_once(holds):
    """Sends this process SIGINT, once holds() does."""

    def run():
        while not holds():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


class Interrupts(unittest.TestCase):
    def test_attach_step_and_finish_end_at_once_and_go_on_where_they_were(self):
        """Each waits for the other worker, which comes only once the interrupt has been raised."""
        for engine in ("all-reduce", "ssp"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 2)) as c:
                go_on = threading.Semaphore(0)
                ends = []

                def other():
                    values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)

                    def apply():
                        values[:] += gradients

                    go_on.acquire()
                    with new_session(c, 1) as session:
                        session.attach(values, gradients, apply)
                        go_on.acquire()
                        session.step()
                        go_on.acquire()
                        session.finish()
                        ends.append(values.tobytes())

                values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
                applied = []

                def apply():
                    values[:] += gradients
                    applied.append(1)

                thread = threading.Thread(target=other)
                thread.start()
                with new_session(c, 0) as session:
                    calls = [lambda: session.attach(values, gradients, apply), session.finish]
                    if engine == "all-reduce":  # under ssp a first step waits for nobody
                        calls.insert(1, session.step)
                    for call in calls:
                        if call == session.finish and engine == "ssp":
                            go_on.release()
                            session.step()
                        inside = interrupt_once(lambda: session._library.prd_in_call(session._handle.session))
                        began = time.monotonic()
                        with self.assertRaises(KeyboardInterrupt):
                            call()
                        self.assertLess(time.monotonic() - began, 20, "and not only when the other one came")
                        inside.join()
                        self.assertTrue(session._library.prd_in_call(session._handle.session))
                        go_on.release()
                        session.proceed()
                    self.assertEqual(len(applied), 1)
                    self.assertEqual(session.progress.own_steps, 1)
                    ends.append(values.tobytes())
                thread.join()
                self.assertEqual(ends[0], ends[1])

    def test_the_next_call_ends_the_one_that_was_interrupted(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            started = threading.Event()

            def other():
                started.wait()
                values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
                with new_session(c, 1) as session:
                    session.attach(values, gradients, lambda: None)
                    session.step()
                    session.finish()

            thread = threading.Thread(target=other)
            thread.start()
            values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
            with new_session(c, 0) as session:
                interrupt_once(lambda: session._library.prd_in_call(session._handle.session))
                with self.assertRaises(KeyboardInterrupt):
                    session.attach(values, gradients, lambda: None)
                started.set()
                session.step()
                self.assertEqual(session.rank, 0)
                session.finish()
            thread.join()

    def interrupted(self, session, call):
        inside = interrupt_once(lambda: session.in_call)
        with self.assertRaises(KeyboardInterrupt):
            call()
        inside.join()
        self.assertTrue(session.in_call)

    def test_a_call_that_is_made_again_is_the_one_that_was_interrupted(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            go_on = threading.Semaphore(0)
            means = []

            def other():
                values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
                with new_session(c, 1) as session:
                    go_on.acquire()
                    session.attach(values, gradients, lambda: None)
                    for value in (3, 30, 300):
                        go_on.acquire()
                        means.append(session.mean([value]))
                    go_on.acquire()
                    session.finish()

            thread = threading.Thread(target=other)
            thread.start()
            values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
            with new_session(c, 0) as session:
                def attach():
                    session.attach(values, gradients, lambda: None)

                self.interrupted(session, attach)
                go_on.release()
                attach()
                with self.assertRaises(prd.FailedPrecondition):
                    attach()
                with self.assertRaisesRegex(prd.FailedPrecondition, "paused"):
                    with session.pause():  # it is attached as any other
                        session.finish()
                self.interrupted(session, lambda: session.mean([1]))
                go_on.release()
                self.assertEqual(session.mean([1]), [2])
                self.interrupted(session, lambda: session.mean([10]))
                go_on.release()
                session.proceed()
                self.assertEqual(session.mean([10]), [20])
                go_on.release()
                self.assertEqual(session.mean([100]), [200])
                self.interrupted(session, session.finish)
                go_on.release()
                session.finish()
                session.finish()
                self.assertFalse(session._handle.in_job)
            thread.join()
            self.assertEqual(means, [[2], [20], [200]])

    def test_a_pause_whose_block_never_ran_is_undone(self):
        with place.Cluster(place.job("p-reduce", 2, "", "group_size = 2\noverlap = true")) as c:
            go_on = threading.Event()
            began = []

            def other():
                values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
                with new_session(c, 1) as session:
                    session.attach(values, gradients, lambda: None)
                    go_on.wait()
                    for _ in range(3):
                        session.step()
                    session.finish()

            thread = threading.Thread(target=other)
            thread.start()
            values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
            with new_session(c, 0) as session:
                session.attach(values, gradients, lambda: None)

                def pause():
                    with session.pause():
                        began.append(1)

                c.daemon.send_signal(signal.SIGSTOP)
                session.step()  # is over before the daemon has answered what it signalled; the pause is not
                self.interrupted(session, pause)
                self.assertEqual(began, [])
                c.daemon.send_signal(signal.SIGCONT)
                go_on.set()
                session.step()
                pause()
                session.step()
                session.finish()
                self.assertEqual(began, [1])
            thread.join()

    def test_leave_gives_up_the_call_that_was_interrupted(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            values = numpy.zeros(SIZE, numpy.float32)
            session = new_session(c, 0)
            interrupt_once(lambda: session._library.prd_in_call(session._handle.session))
            with self.assertRaises(KeyboardInterrupt):
                session.attach(values, values.copy(), lambda: None)
            session.leave("no more")
            session.close()

    def test_an_apply_ends_before_the_interrupt_is_raised(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            values, gradients = numpy.zeros(SIZE, numpy.float32), numpy.ones(SIZE, numpy.float32)
            halves = []

            def apply():
                os.kill(os.getpid(), signal.SIGINT)
                halves.append(1)
                values[:] += gradients
                halves.append(2)

            with new_session(c, 0) as session:
                session.attach(values, gradients, apply)
                with self.assertRaises(KeyboardInterrupt):
                    session.step()
                self.assertEqual(halves, [1, 2])
                session.proceed()
                self.assertEqual((len(halves), session.progress.own_steps, values[0]), (2, 1, 1.0))
                self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

                def apply_that_hangs():
                    os.kill(os.getpid(), signal.SIGINT)
                    os.kill(os.getpid(), signal.SIGINT)
                    self.fail("a second interrupt does not wait")

                session._apply = apply_that_hangs
                with self.assertRaises(KeyboardInterrupt):
                    session.step()
                with self.assertRaises(prd.FailedPrecondition):
                    session.step()
            self.assertIn("apply raised KeyboardInterrupt", (c.dir / "prd.log").read_text())

    def test_a_pytorch_script_goes_on_with_its_next_batch(self):
        """zero_grad leaves the gradients to the step that was interrupted, until that step has ended."""
        try:
            import torch
        except ModuleNotFoundError:
            self.skipTest("there is no python3-torch here")
        import prd.torch

        def make(rank, c):
            torch.manual_seed(0)
            model = torch.nn.Linear(6, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            return model, optimizer, prd.torch.attach(model, optimizer, session=new_session(c, rank), seed=False, samples=4)

        def batch(model, optimizer, number):
            optimizer.zero_grad()
            model(torch.full((4, 6), float(number))).pow(2).mean().backward()
            optimizer.step()

        with place.Cluster(place.job("all-reduce", 2)) as c:
            go_on = threading.Event()
            ends = []

            def other():
                model, optimizer, worker = make(1, c)
                go_on.wait()
                for number in (3, 4, 5):
                    batch(model, optimizer, number)
                worker.finish()
                ends.append([p.detach().clone() for p in model.parameters()])
                worker.session.close()

            thread = threading.Thread(target=other)
            thread.start()
            model, optimizer, worker = make(0, c)
            session = worker.session
            interrupt_once(lambda: session._library.prd_in_call(session._handle.session))
            with self.assertRaises(KeyboardInterrupt):
                batch(model, optimizer, 0)
            go_on.set()
            batch(model, optimizer, 1)
            batch(model, optimizer, 2)
            self.assertEqual(worker.trained, (3, 12))
            worker.finish()
            thread.join()
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(ends[0], model.parameters())))
            session.close()

    PROGRAM = """
import numpy, os, prd, signal, sys
values, gradients = numpy.zeros(1000, numpy.float32), numpy.ones(1000, numpy.float32)
applied = came = told = caught = 0
def interrupt(*_):
    global came
    came += 1
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def apply():
    global applied
    applied += 1
    values[:] += gradients
session = prd.Session()
session.attach(values, gradients, apply)
wanted = int(sys.argv[1])
print("ready", flush=True)
while told < wanted:
    try:
        while came == told:
            session.step()
        told = came
        os.write(1, b"%d\\n" % told)  # the next interrupt comes after that
    except KeyboardInterrupt:
        caught += 1
session.proceed()
assert came == caught == wanted, (came, caught)
steps = session.progress.own_steps
assert applied == steps, (applied, steps)
assert (values == steps).all(), (values[0], steps)
session.finish()
print("caught", caught, flush=True)
"""

    def test_of_100_interrupts_at_any_time_none_is_lost_and_each_step_is_applied_once(self):
        random.seed(place.__file__)
        with place.Cluster(place.job("all-reduce", 1)) as c:
            program = subprocess.Popen([sys.executable, "-c", self.PROGRAM, "100"], env=place.environment(c),
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(program.stdout.readline(), "ready\n")
            for sent in range(1, 101):
                time.sleep(random.random() * 0.005)  # anywhere in a step
                program.send_signal(signal.SIGINT)
                self.assertEqual(program.stdout.readline(), f"{sent}\n")
            last = program.stdout.readline()
            _, err = program.communicate(timeout=60)
            self.assertEqual((program.returncode, last), (0, "caught 100\n"), err)


if __name__ == "__main__":
    unittest.main()
