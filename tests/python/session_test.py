#!/usr/bin/env python3
"""prd.Session with a real daemon. Usage: session_test.py BIN_DIR [TEST ...]"""
import place
import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import unittest

import numpy

import prd
from prd import _abi

SIZE = 1000


class Worker:
    """A model of zeros whose training adds its gradients."""

    def __init__(self, c, rank, name="toy", **options):
        self.values = numpy.zeros(SIZE, numpy.float32)
        self.gradients = numpy.zeros(SIZE, numpy.float32)
        self.applied = 0
        self.session = prd.Session(controller=c.endpoint, job=name, rank=rank, timeout=60, **options)

    def apply(self):
        self.values += self.gradients
        self.applied += 1

    def attach(self, **options):
        self.session.attach([self.values[:-3], self.values[-3:]], [self.gradients[:-3], self.gradients[-3:]], self.apply, **options)
        return self

    def step(self, gradient, **options):
        self.gradients[:] = gradient
        return self.session.step(**options)


class Sessions(unittest.TestCase):
    def test_every_engine_trains_and_all_end_equal(self):
        for engine in place.ENGINES:
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 3)) as c:

                def train(rank):
                    worker = Worker(c, rank)
                    with worker.session as session:
                        self.assertEqual((session.rank, session.engine, session.needs_gradients), (-1, "", False))
                        worker.attach()
                        self.assertEqual((session.rank, session.workers, session.engine), (rank, 3, engine))
                        for step in range(1, 6):
                            session.tell_loss(numpy.float32(step))
                            result = worker.step(1, samples=8)
                            self.assertEqual(result.steps, step)
                            self.assertGreaterEqual(result.computed, 0)
                            self.assertEqual(len(result.members), len(result.weights))
                        self.assertEqual((session.progress.own_steps, session.progress.own_samples), (5, 40))
                        self.assertEqual(session.last, result)
                        session.finish()
                    return worker.values.tobytes(), worker.values[0]

                ends = place.in_threads(3, train)
                reports = [json.loads(line) for line in c.prdctl("export", "1").splitlines()]
                self.assertEqual(sum(report["losses"] * report["loss"] for report in reports if "losses" in report), 3 * 15)
                self.assertEqual(len({end[0] for end in ends}), 1)
                self.assertGreater(ends[0][1], 0)

    def test_gradients_are_made_only_where_the_engine_wants_them(self):
        for engine, wants in (("all-reduce", True), ("p-reduce", False)):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 1)) as c:
                worker = Worker(c, 0)
                worker.session.attach(worker.values, None, worker.apply, gradients_later=True)
                self.assertEqual(worker.session.needs_gradients, wants)
                if wants:
                    with self.assertRaisesRegex(prd.FailedPrecondition, "SetGradients comes first"):
                        worker.session.step()
                    worker.session.set_gradients(worker.gradients)
                worker.step(2)
                self.assertEqual(worker.values[5], 2)
                worker.session.finish()
                worker.session.close()

    def test_pause_average_and_state(self):
        with place.Cluster(place.job("p-reduce", 2)) as c:

            def train(rank):
                worker = Worker(c, rank)
                momentum, running = numpy.full(4, float(rank), numpy.float32), numpy.full(2, float(rank), numpy.float64)
                worker.attach(state=[momentum], averaged_state=running)
                self.assertEqual((momentum[0], running[0]), (0, 0), "the lowest rank's, as the parameters")
                momentum[:] = rank
                worker.step(rank)
                mean = [numpy.empty(SIZE - 3, numpy.float32), numpy.empty(3, numpy.float32)]
                worker.session.average(mean)
                self.assertEqual((mean[0][0], mean[1][-1]), (0.5, 0.5))
                with worker.session.pause():
                    with self.assertRaisesRegex(prd.FailedPrecondition, "Resume comes first"):
                        worker.session.step()
                worker.step(0)
                self.assertEqual(momentum[0], rank)
                worker.session.finish()
                worker.session.close()

            place.in_threads(2, train)

    def test_a_goal_and_a_checkpoint(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            worker = Worker(c, 0, goal_samples=4100).attach(trained=(100, 1000), job_trained=(400, 4000))
            self.assertEqual(worker.session.progress[:2], (400, 4000))
            results = [worker.step(1, samples=60) for _ in range(2)]
            self.assertEqual([r.done for r in results], [False, True])
            self.assertEqual(results[-1].steps, 102)
            self.assertEqual(worker.session.progress.goal_samples, 4100)
            worker.session.finish(wait=False)
            worker.session.close()
            with self.assertRaisesRegex(prd.FailedPrecondition, "closed"):
                worker.session.step()

    def test_one_worker_stops_the_job_for_all(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            def train(rank):
                worker = Worker(c, rank)
                with self.assertRaisesRegex(prd.FailedPrecondition, "call Attach first"):
                    worker.session.stop("early")
                self.assertEqual(worker.session.clock, 0)
                worker.attach()
                done = False
                while not done:
                    done = worker.step(rank).done
                    if rank == 1:
                        worker.session.stop("the loss is low")
                worker.session.finish()  # all have told their steps by then
                self.assertGreater(worker.session.clock, 0)
                self.assertEqual(worker.session.clock, worker.session.progress.steps / 2)
                worker.session.close()

            place.in_threads(2, train)

    def test_workers_share_the_mean_of_numbers(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            def train(rank):
                worker = Worker(c, rank).attach()
                with self.assertRaisesRegex(prd.InvalidArgument, "found 0, allowed are 1 to 64"):
                    worker.session.mean([])
                self.assertEqual(worker.session.mean([rank, 4]), [0.5, 4])
                with worker.session.pause():
                    self.assertEqual(worker.session.mean(range(64)), [float(n) for n in range(64)])
                worker.step(rank)
                worker.session.finish()
                worker.session.close()

            place.in_threads(2, train)

    def test_errors_are_exceptions_that_say_what_is_wrong(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:
            with self.assertRaisesRegex(LookupError, "unknown"):
                Worker(c, 0, "unknown").attach()
            with self.assertRaisesRegex(ValueError, "job: found a name of 0 bytes"):
                prd.Session(controller=c.endpoint, job="")
            for option, value, says in (("job", 5, "found 5, needed is text"), ("mesh_ports", 4711, "needed is text"), ("job", "a\0b", "needed is text"),
                                        ("rank", 1 << 40, "too large"), ("goal_steps", 1 << 70, "too large"), ("batch", 1.5, "a whole number"),
                                        ("timeout", "1", "needed are seconds"), ("timeout", float("inf"), "needed are seconds")):
                with self.assertRaisesRegex(prd.InvalidArgument, f"{option}: .*{says}"):
                    prd.Session(**{"controller": c.endpoint, "job": "toy", option: value})
            self.assertEqual(prd.session._options({"timeout": 0.0001}).timeout_ms, 1, "0 would be for ever")
            with self.assertRaisesRegex(prd.InvalidArgument, "apply: found none"):
                Worker(c, 0).session.attach(numpy.zeros(3, numpy.float32))
            with self.assertRaisesRegex(ConnectionError, "workers"):
                Worker(c, 0, start_timeout=0.2).attach()
            lines = []
            worker = Worker(c, 0, log=lines.append)
            cancel = threading.Timer(0.05, worker.session.cancel)
            cancel.start()
            with self.assertRaises(prd.Cancelled):
                worker.attach()
            cancel.join()
            self.assertEqual(len(prd.errors.BY_CODE), 11)
            for code, kind in enumerate(prd.errors.BY_CODE, 1):
                self.assertEqual(_abi.library().prd_code_name(-code).decode(), kind.code)

    def test_replicas_in_another_order_are_not_averaged(self):
        with place.Cluster(place.job("p-reduce", 1)) as c, Worker(c, 0).session as first, Worker(c, 1).session as second:
            first.attach(numpy.zeros((4, 5), numpy.float32), apply=lambda: None)
            with self.assertRaisesRegex(ValueError, "model_tag"):
                second.attach(numpy.zeros((4, 5), numpy.float32, order="F"), apply=lambda: None)
            second.attach(numpy.zeros((4, 5), numpy.float32), apply=lambda: None)
            second.leave("enough")
            first.finish()

    def test_the_log_goes_to_its_function(self):
        for engine, option in (("p-reduce", ', unless its weights = "samples"'), ("hop", "")):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 2)) as c:
                lines = []

                def train(rank):
                    worker = Worker(c, rank, log=lines.append if rank == 0 else None).attach()
                    for _ in range(10):
                        worker.step(1, samples=8 + rank)
                    worker.session.finish()

                place.in_threads(2, train)
                self.assertEqual(lines, [f"steps differ in their samples, and engine {engine} does not weigh by them{option}: batches of any size count alike in its averages"])

    def test_an_exception_leaves_with_its_text_and_the_others_go_on(self):
        with place.Cluster(place.job("all-reduce", 2)) as c:

            def train(rank):
                worker = Worker(c, rank).attach()
                worker.step(1)
                if rank == 1:
                    with self.assertRaises(KeyError), worker.session:
                        raise KeyError("no such batch")
                    return
                worker.step(1)
                worker.session.finish()
                worker.session.close()

            place.in_threads(2, train)
            self.assertIn("KeyError: 'no such batch'", (c.dir / "prd.log").read_text())

    def test_an_apply_that_raises_leaves_with_its_text(self):
        for engine in ("all-reduce", "p-reduce"):
            with self.subTest(engine=engine), place.Cluster(place.job(engine, 1)) as c:
                worker = Worker(c, 0)
                worker.apply = lambda: numpy.zeros(3) @ numpy.zeros(4)
                worker.attach()
                with self.assertRaisesRegex(ValueError, "mismatch"):
                    worker.session.step()
                with self.assertRaises(prd.FailedPrecondition):
                    worker.session.step()
                worker.session.close()
                self.assertIn("apply raised ValueError: matmul", (c.dir / "prd.log").read_text())

    def test_a_call_in_apply_is_refused(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            worker = Worker(c, 0).attach()
            for call in (worker.session.step, worker.session.finish, worker.session.close, lambda: worker.session.mean([1]),
                         lambda: worker.session.leave("enough")):
                found = []

                def apply(call=call, found=found):
                    try:
                        call()
                    except prd.FailedPrecondition as error:
                        found.append(str(error))

                worker.session._apply = apply
                worker.session.step()
                self.assertEqual(found, ["a call of the session in apply, which is part of one: calls come between steps"])
            worker.session.finish()

    def test_a_replica_that_has_memory_twice_is_refused(self):
        flat = numpy.zeros(8, numpy.float32)
        with place.Cluster(place.job("p-reduce", 1)) as c, Worker(c, 0).session as session:
            for parameters, more, says in (([flat, flat[4:]], {}, r"parameters\[1\]: found memory of parameters\[0\] in it"),
                                           (flat, {"gradients": flat}, r"gradients\[0\]: found memory of parameters\[0\]"),
                                           (flat, {"averaged_state": flat[7:]}, r"state\[0\]: found memory of parameters\[0\]")):
                with self.assertRaisesRegex(prd.InvalidArgument, says):
                    session.attach(parameters, apply=lambda: None, **more)
            session.attach([flat[:4], flat[4:]], apply=lambda: None, gradients_later=True)
            with self.assertRaisesRegex(prd.InvalidArgument, r"gradients\[1\]: found memory of"):
                session.set_gradients([numpy.zeros(4, numpy.float32), flat[4:]])
            session.finish()

    def test_a_forked_child_is_told_and_leaves_the_session_alone(self):
        with place.Cluster(place.job("all-reduce", 1)) as c:
            worker = Worker(c, 0).attach()
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    try:
                        worker.session.step()
                    except prd.FailedPrecondition as error:
                        worker.session.close()
                        os._exit(0 if "was forked from pid" in str(error) else 1)
                    os._exit(2)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
                worker.step(1)
            self.assertEqual(worker.values[0], 20)
            worker.session.finish()
            worker.session.close()

    def run_program(self, c, code, rank=None):
        return subprocess.run([sys.executable, "-c", code], env=place.environment(c, rank), capture_output=True, text=True, timeout=60)

    PROGRAM = """
import numpy, prd
values = numpy.zeros(10, numpy.float32)
session = prd.Session()
session.attach(values, numpy.ones(10, numpy.float32), lambda: None)
session.step()
"""

    def test_a_program_that_ends_without_finish_leaves_and_says_so(self):
        with place.Cluster(place.job("all-reduce", 1, "lease_ms = 60000")) as c:
            ended = self.run_program(c, self.PROGRAM)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("left without finish", ended.stderr)
            self.assertIn("its program ended without finish", (c.dir / "prd.log").read_text())
            ended = self.run_program(c, self.PROGRAM + "session.finish()")
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_the_garbage_collector_does_not_wait_for_a_session_that_it_ends(self):
        program = self.PROGRAM + """
import gc, threading, time
where = []
close = session._library.prd_close
class Watched:
    def __getattr__(self, name):
        return getattr(prd._abi.library(), name)
    def prd_close(self, handle):
        held.wait()  # for ever, if the collector were to wait for this
        where.append(threading.get_ident())
        close(handle)
held = threading.Event()
handle = session._handle
handle.library = Watched()
cycle = [session]
cycle.append(cycle)
del session, cycle
gc.collect()
held.set()
while handle in prd.session._Handle.open:
    time.sleep(0.01)
assert where[0] != threading.get_ident(), where
"""
        with place.Cluster(place.job("all-reduce", 1, "lease_ms = 60000")) as c:
            ended = self.run_program(c, program)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("left without finish", ended.stderr)
            self.assertIn("its program ended without finish", (c.dir / "prd.log").read_text())

    def test_a_child_that_imports_the_program_again_is_refused(self):
        program = self.PROGRAM + "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n" \
            "child = multiprocessing.Process(target=print)\nchild.start()\nchild.join()\nsession.finish()"
        with place.Cluster(place.job("all-reduce", 1)) as c:
            script = c.dir / "script.py"
            script.write_text(program)
            ended = subprocess.run([sys.executable, str(script)], env=place.environment(c), capture_output=True, text=True, timeout=60)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("would join the job a second time", ended.stderr)

    def test_the_declarations_are_those_of_the_header(self):
        """Of each function: that it is there, what it returns and how much it takes. Of each struct: its fields, in order."""
        header = re.sub(r"/\*.*?\*/", "", (place.ROOT / "worker/include/prd/prd.h").read_text(), flags=re.DOTALL)
        functions = dict(re.findall(r"PRD_API [\w \*]*?(prd_\w+)\(([^)]*)\)", header))
        self.assertEqual(set(functions), set(_abi._FUNCTIONS))
        for name, takes in functions.items():
            self.assertEqual(0 if takes == "void" else takes.count(",") + 1, len(_abi._FUNCTIONS[name][1]), name)
        structs = {"options": _abi.Options, "tensor": _abi.Tensor, "replica": _abi.Replica, "step_input": _abi.StepInput,
                   "step_result": _abi.StepResult, "progress": _abi.Progress, "batch_share": _abi.BatchShare,
                   "group_transports": _abi.GroupTransports, "memory": _abi.Memory}
        kinds = {"uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32, "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64}
        found = re.findall(r"typedef struct prd_(\w+) \{(.*?)\}", header, re.DOTALL)
        self.assertEqual({name for name, _ in found}, set(structs))
        for name, body in found:
            fields = re.findall(r"(.*?)(\w+);", body.replace("\n", " "))
            self.assertEqual([field for _, field in fields], [field[0] for field in structs[name]._fields_], name)
            for (kind, field), (_, declared) in zip(fields, structs[name]._fields_):
                kind = kind.strip()
                self.assertEqual(ctypes.sizeof(declared), 8 if "*" in kind else ctypes.sizeof(kinds[kind]), field)
                self.assertTrue("*" in kind or declared is kinds[kind], field)
        self.assertEqual(_abi.library().prd_abi(), _abi.ABI_MAJOR << 16 | _abi.ABI_MINOR)


if __name__ == "__main__":
    unittest.main()
