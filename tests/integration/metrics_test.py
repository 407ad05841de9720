#!/usr/bin/env python3
"""The daemon's metrics beside the history of what it did; and what is made of them. Usage: metrics_test.py BIN_DIR [TEST ...]"""
import collections
import json
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

    def history(self, c, run):
        """What the run's records sum to, under the names of the metrics."""
        sums = collections.Counter()
        own = collections.Counter()
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
                sums["prd_job_workers_lost_total"] += record["why"] in ("lost", "evicted")
            if kind in ("ready", "progressed"):
                own[record["rank"]] = max(own[record["rank"]], record.get("own_steps", 0))
                sums["prd_nonfinite_steps_total"] += record.get("nonfinite", 0)
                sums["prd_job_updates_stale_total"] += record.get("dropped", 0)
        sums["prd_job_steps_total"] = sum(own.values())
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
