#!/usr/bin/env python3
"""The daemon's metrics beside the history of what it did; and what is made of them. Usage: metrics_test.py BIN_DIR [TEST ...]"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
CONFIG = pathlib.Path(__file__).resolve().parents[2] / "config"
ENGINES = {
    "reduce": "all-reduce", "pairs": "p-reduce", "prague": "prague", "average": "ad-psgd", "eager": "eager",
    "backup": "backup", "esync": "esync", "hop": "hop", "ssp": "ssp",
}
STEPS = 12
# Jobs beside the one that is switched. 104 are more than have series of their own, and take half a minute.
MANY = int(os.environ.get("PRD_METRICS_JOBS", "4"))
SAMPLE = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


def families_of(text):
    """Type by name, and samples as (name, labels, value); fails where the text is not Prometheus's format."""
    types, helps, samples = {}, {}, []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} stands there twice"
            types[name] = kind
        elif line.startswith("# HELP "):
            helps[line.split(" ")[2]] = line
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"no sample: {line}"
            name, labels, value = match[1], dict(LABEL.findall(match[2] or "")), float(match[3])
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            family = base if types.get(base) == "histogram" else name
            assert family in types and family in helps, f"{name} has no type or no help"
            assert types[family] != "counter" or name.endswith("_total"), f"{name} is a counter"
            samples.append((name, labels, value))
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples]
    assert len(keys) == len(set(keys)), "a sample stands there twice"
    return types, samples


class Training(unittest.TestCase):
    maxDiff = None

    def check_format(self, text):
        families_of(text)
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def history(self, c, run, own=None):
        """What the run's records sum to, under the names of the metrics. `own`: steps by rank, in the runs before this one."""
        sums = collections.Counter()
        own = collections.Counter() if own is None else own
        before = sum(own.values())
        for line in c.prdctl("export", str(run["run"])).splitlines():
            record = json.loads(line)
            kind = record["type"]
            if kind == "group_formed":
                sums["prd_job_group_members_count"] += 1
                sums["prd_job_group_members_sum"] += len(record["members"])
                sums["prd_groups_formed_total"] += 1
            elif kind == "group_ended":
                sums["prd_job_groups_failed_total"] += not record["ok"]
            elif kind == "finished" and record["group"]:
                sums["prd_job_reducing_seconds_count"] += 1
                sums["prd_job_reducing_seconds_sum"] += record["reduce_ns"] / 1e9
            elif kind == "update_dropped":
                sums["prd_job_updates_dropped_total"] += 1
            elif kind == "worker_joined":
                sums["prd_job_workers_joined_total"] += 1
            elif kind == "worker_left":
                sums["prd_job_workers_lost_total"] += record["why"] in ("lost", "failed", "evicted")
            if kind in ("ready", "progressed"):
                own[record["rank"]] = max(own[record["rank"]], record.get("own_steps", 0))
                sums["prd_nonfinite_steps_total"] += record.get("nonfinite", 0)
                sums["prd_job_updates_stale_total"] += record.get("dropped", 0)
        sums["prd_job_steps_total"] = sum(own.values()) - before
        pace = json.loads(c.prdctl("stragglers", str(run["run"])))
        sums["prd_job_waiting_seconds_sum"] = sum(w["waited_ns"] for w in pace["workers"]) / 1e9
        return sums

    @staticmethod
    def over(text):
        """Whether all jobs have come and gone."""
        _, samples = families_of(text)
        seen = {of.get("job") for name, of, _ in samples if name == "prd_job_steps_total"}
        return seen >= set(ENGINES) and "\nprd_jobs 0\n" in text

    def test_sums_are_those_of_the_history(self):
        port = cluster.free_port()
        jobs = "".join(f'[[job]]\nname = "{name}"\nengine = "{engine}"\nworkers = 2\n' for name, engine in ENGINES.items())
        with cluster.Cluster(BIN, jobs, daemon=f'metrics = "127.0.0.1:{port}"') as c:
            workers = [c.worker(rank, job=job, steps=STEPS, step_ms=20 + 10 * rank) for job in ENGINES for rank in range(2)]
            for worker in workers:
                worker.end()
            end = time.monotonic() + cluster.DEADLINE_S
            while not self.over(text := get(port, "/metrics")):  # the page is a moment old
                self.assertLess(time.monotonic(), end, text)
                time.sleep(0.1)
            self.check_format(text)
            self.assertEqual(get(port, "/healthz"), "ok\n")
            self.assertEqual(get(port, "/readyz"), "ok\n")
            with self.assertRaises(urllib.error.HTTPError):
                get(port, "/nothing")
            _, samples = families_of(text)
            runs = json.loads(c.prdctl("jobs"))["runs"]
            self.assertEqual(sorted(run["job"] for run in runs), sorted(ENGINES))
            for run in runs:
                counted = collections.Counter()
                labels = {"job": run["job"], "engine": ENGINES[run["job"]]}
                for name, of, value in samples:
                    if of == labels or (name == "prd_groups_formed_total" and of == {"engine": labels["engine"]}):
                        counted[name] += value
                for name, value in self.history(c, run).items():
                    self.assertAlmostEqual(counted[name], value, msg=f"{name} of {labels}", delta=1e-6 * max(1, value))
                self.assertEqual(counted["prd_job_steps_total"], 2 * STEPS, labels)
            total = sum(value for name, _, value in samples if name == "prd_job_group_members_count")
            self.assertEqual(total, sum(value for name, _, value in samples if name == "prd_groups_formed_total"))
            build = [of for name, of, _ in samples if name == "prd_build_info"]
            self.assertEqual(len(build), 1)
            self.assertTrue(build[0]["version"])

    def test_sums_hold_across_switches_evictions_and_the_cap_of_names(self):
        port = cluster.free_port()
        jobs = '[[job]]\nname = "toy"\nengine = "p-reduce"\nworkers = 3\nlease_ms = 60000\nheartbeat_ms = 200\n'
        jobs += '[[job]]\nname = "many-*"\nengine = "all-reduce"\nworkers = 1\n'
        with cluster.Cluster(BIN, jobs, daemon=f'metrics = "127.0.0.1:{port}"') as c:
            for first in range(0, MANY, 8):
                for worker in [c.worker(0, job=f"many-{k}", steps=2, step_ms=0) for k in range(first, min(MANY, first + 8))]:
                    worker.end()
            stop = c.dir / "stop"
            workers = [c.worker(rank, steps=100_000, args=("--stop-file", str(stop))) for rank in range(3)]
            for engine in ("hop", "all-reduce"):
                for worker in workers:
                    count = len(worker.steps())
                    worker.wait_for(lambda line: line.get("step") == count + 3, "steps")
                c.prdctl("evict", "toy", "2")
                self.assertIn("evicted", workers[2].fail())
                c.prdctl("switch", "toy", engine)
                for worker in workers[:2]:
                    worker.wait_for(lambda line: line.get("engine") == engine and "step" in line, f"a step under {engine}")
                # Another process takes the rank, and goes on from what was counted under it.
                workers[2] = c.worker(2, steps=100_000, args=("--stop-file", str(stop)))
            workers[2].wait_for(lambda line: line.get("step") == 3, "step 3")
            stop.touch()
            for worker in workers:
                worker.end()
            cluster.wait_until(lambda: "\nprd_jobs 0\n" in get(port, "/metrics"), "that all jobs are over")
            text = get(port, "/metrics")
            self.check_format(text)
            _, samples = families_of(text)
            counted = collections.Counter()
            for name, _, value in samples:
                counted[name] += value
            truth, owns = collections.Counter(), {}
            for run in json.loads(c.prdctl("jobs"))["runs"]:
                own = owns[run["run"]] = owns.get(run["former_run"], collections.Counter())
                truth.update(self.history(c, run, own))
            self.assertGreaterEqual(truth["prd_job_workers_lost_total"], 2)
            self.assertEqual(truth["prd_job_steps_total"], sum(owns[max(owns)].values()) + 2 * MANY)
            for name, value in truth.items():
                self.assertAlmostEqual(counted[name], value, msg=name, delta=1e-6 * max(1, value))
            names = {of["job"] for name, of, _ in samples if name == "prd_job_steps_total"}
            self.assertEqual((len(names), "other" in names), (min(MANY + 1, 101), MANY + 1 > 100))

    def test_rules_and_dashboard_name_metrics_that_exist(self):
        port = cluster.free_port()
        with cluster.Cluster(BIN, '[[job]]\nname = "*"\nengine = "hop"\n', daemon=f'metrics = "127.0.0.1:{port}"'):
            end = time.monotonic() + cluster.DEADLINE_S
            # The first page may be of before the daemon's thread has turned.
            while "prd_records_total" not in (text := get(port, "/metrics") or ""):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
        types, _ = families_of(text)
        self.check_format(text)
        dashboard = json.loads((CONFIG / "grafana/prd.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        queries += [v["query"]["query"] for v in dashboard["templating"]["list"] if isinstance(v["query"], dict)]
        self.assertGreater(len(queries), 30)
        # The rules' expressions, and nothing of their texts.
        rules = (CONFIG / "prometheus/prd.rules.yml").read_text()
        queries.append(re.sub(r"(?m)^ +(labels|annotations|summary|action|for|- alert):.*$", "", rules))
        named = {name for query in queries for name in re.findall(r"\bprd_\w+", query)}
        known = set(types) | {f"{name}_{part}" for name, kind in types.items() if kind == "histogram" for part in ("bucket", "sum", "count")}
        self.assertEqual(sorted(named - known), [])
        # What is of jobs is also shown.
        of_jobs = {name for name in types if name.startswith("prd_job_")}
        shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
        self.assertEqual(sorted(of_jobs - shown), [])

    def test_alerts_fire_as_their_tests_say(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool")
        for args in (["check", "config", "prometheus.yml"], ["test", "rules", "prd.rules.test.yml"]):
            done = subprocess.run(["promtool", *args], cwd=CONFIG / "prometheus", capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
