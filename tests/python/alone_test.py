#!/usr/bin/env python3
"""Scripts of prd.torch that run without a daemon. Usage: alone_test.py BIN_DIR [TEST ...]"""
import place
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

SAID = "prd: trains alone, as neither PRD_CONTROLLER nor PRD_JOB is set and no daemon listens on this host"
# The lines that begin with a + are left out where there is no prd.
SCRIPT = """
 import torch
+import prd.torch
 torch.manual_seed(3)
 inputs = torch.randn(103, 8)
 data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
 loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True, drop_last=DROP)
 model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
 optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
+worker = prd.torch.attach(model, optimizer)
+loader = worker.shard(loader)
 scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3 * len(loader))
 for epoch in range(3):
     batches = 0
+    assert worker.epoch == epoch, (worker.epoch, epoch)
     for x, y in loader:
         optimizer.zero_grad()
         loss = torch.nn.functional.mse_loss(model(x), y)
         loss.backward()
         optimizer.step()
         scheduler.step()
         batches += 1
     print("epoch", epoch, batches, len(loader), loss.item())
+with worker.pause():
+    mean = worker.average()
+    for name, tensor in model.state_dict().items():
+        assert torch.equal(mean[name], tensor), name
+assert (worker.rank, worker.workers, worker.engine) == (0, 1, "alone")
+assert worker.trained == worker.job_trained == (3 * len(loader), 300 if DROP else 309), worker.trained
+assert worker.clock == worker.last.steps == 3 * len(loader) and not worker.interrupted and not worker.progress.done
+worker.tell_loss(loss)
+worker.finish()
 print([p.tolist() for p in model.state_dict().values()])
"""


class Alone(unittest.TestCase):
    def setUp(self):
        try:
            import torch  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("there is no python3-torch here")
        import prd.torch.alone
        folder = tempfile.TemporaryDirectory(prefix="prd-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        unset = {*prd.torch.alone._OF_A_JOB, "PRD_LIBRARY"}
        self.environment = {name: value for name, value in os.environ.items() if name not in unset}
        self.environment.update(PYTHONPATH=str(place.PACKAGE), PRD_LIBRARY="/nowhere", XDG_RUNTIME_DIR=str(self.folder))
        if any(map(prd.torch.alone._listens, prd.torch.alone._default_sockets())):
            self.skipTest("a daemon of this host listens")

    def run_script(self, text, code=0, **more):
        (self.folder / "train.py").write_text(text)
        done = subprocess.run([sys.executable, self.folder / "train.py"], env=dict(self.environment, **more), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_a_script_trains_as_it_did_without_prd(self):
        for drop in ("False", "True"):
            lines = [line for line in SCRIPT.replace("DROP", drop).splitlines() if line]
            plain = self.run_script("\n".join(line[1:] for line in lines if line[0] == " "))
            with_prd = self.run_script("\n".join(line[1:] for line in lines))
            self.assertEqual(with_prd.stdout, plain.stdout)
            self.assertEqual(with_prd.stderr.count(SAID), 1, with_prd.stderr)

    def test_a_checkpoint_and_steps_without_an_optimizer(self):
        self.run_script("""
import prd, prd.torch, torch
model = torch.nn.Linear(2, 1)
with prd.torch.attach(model, trained=(3, 30), job_trained=(9, 90)) as worker:
    result = worker.step(lambda: model.weight.data.fill_(7), samples=10)
    assert result.steps == 4 and result.included and not result.done and model.weight.sum() == 14
    worker.discard()
    assert worker.trained == (4, 40) and worker.job_trained == (10, 100)
    worker.session.stop("enough")
    assert worker.progress.done and worker.session.mean([1, 2.5]) == [1.0, 2.5]
try:
    worker.step(lambda: None)
except prd.FailedPrecondition:
    print("ended")
""")

    def test_a_variable_that_is_no_number_is_named(self):
        import prd.torch.alone
        for name in ("PRD_BATCH", "PRD_MAX_SHARE"):
            with unittest.mock.patch.dict(os.environ, {name: "abc"}), self.assertRaisesRegex(ValueError, f"{name}: found 'abc', allowed is 0"):
                prd.torch.alone.AloneSession()

    def test_the_sessions_interface_is_prd_sessions(self):
        import prd.torch.alone
        public = {name for name in dir(prd.Session) if not name.startswith("_")}
        self.assertLessEqual(public, set(dir(prd.torch.alone.AloneSession)))

    def test_with_a_name_of_a_job_errors_stay_errors(self):
        script = "import prd.torch, torch\nmodel = torch.nn.Linear(2, 1)\nprd.torch.attach(model, torch.optim.SGD(model.parameters(), lr=1))\n"
        for given, word in (({"PRD_JOB": "toy"}, "PRD_CONTROLLER"), ({"PRD_JOB": "toy", "PRD_CONTROLLER": f"ipc://{self.folder}/none"}, f"ipc://{self.folder}/none"),
                            ({"RANK": "0"}, "PRD_JOB")):
            with self.subTest(given):
                done = self.run_script(script, 1, PRD_LIBRARY=str(place.LIBRARY), PRD_TIMEOUT_MS="500", **given)
                self.assertNotIn(SAID, done.stderr)
                self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
