"""The demo's figures, against cases worked out by hand and the simulation in tools/reference."""
import json
import os
import random
import re
import subprocess
import sys
import tomllib
import unittest

sys.path[:0] = [os.path.join(os.environ["PRD_SOURCE_DIR"], "tools", folder) for folder in ("demo_lib", "job_lib")]
import engines  # noqa: E402
import history  # noqa: E402
import options as command_line  # noqa: E402
import progress  # noqa: E402
import report  # noqa: E402
import summary  # noqa: E402

S = 1_000_000_000
PRD = os.path.join(os.environ["PRD_BIN_DIR"], "prd")
KNOWN = engines.catalogue(subprocess.check_output([PRD, "--engines-json"], text=True, timeout=60))


def plan_of(engine):
    return KNOWN[engine]["plan"]


def rate(logs, window):
    """Updates per second of the engine that the logs name."""
    return summary.updates_per_s(logs, window, plan_of(logs[0].start["engine"]))


def log(rank, steps, step_s=1.0, engine="p-reduce", start_ns=0):
    """steps: (end_s, group, members, compute_s, wait_s, reduce_s), and what else a step's line has."""
    lines = [{"rank": rank, "workers": 3, "engine": engine, "start_ns": start_ns, "step_ns": round(step_s * S)}]
    for end, group, members, compute, wait, reduce, *more in steps:
        lines.append(
            {"end_ns": round(end * S), "iteration": 1, "group": group, "members": members,
             "compute_ns": round(compute * S), "wait_ns": round(wait * S), "reduce_ns": round(reduce * S),
             "attempts": 1, "loss": 1.0, "rounds": 1, "included": True, "discarded": False, "sent_bytes": 0,
             **(more[0] if more else {})}
        )  # fmt: skip
    lines.append({"finished": True, "end_ns": 99 * S})
    return summary.WorkerLog(json.dumps(line) + "\n" for line in lines)


class Yardsticks(unittest.TestCase):
    def test_bound_is_the_steps_per_second_over_the_group_size(self):
        self.assertAlmostEqual(summary.bound_updates_per_s([1.0] * 7 + [5.0], 3), 2.4)

    def test_all_reduce_goes_as_fast_as_the_slowest(self):
        self.assertEqual(summary.reference_updates_per_s("all-reduce", [0.1, 0.5, 0.2], 3), 2.0)

    def test_equal_workers_in_one_group_reach_the_bound(self):
        self.assertAlmostEqual(summary.fifo_updates_per_s([0.5] * 4, 4), 2.0)

    def test_eight_workers_one_five_times_slower(self):
        # The figure known for plain grouping: 0.83 of the bound, or a little less by how ties fall.
        share = summary.fifo_updates_per_s([1.0] * 7 + [5.0], 3) / 2.4
        self.assertTrue(0.79 < share < 0.84, share)

    def test_same_as_the_simulation_in_tools_reference(self):
        draw = random.Random(7)
        cases = [([1.0] * 7 + [5.0], 3), ([0.06] * 7 + [0.3], 3), ([1.0] * 14 + [5.0] * 2, 3)]
        for _ in range(20):
            workers = draw.randint(2, 20)
            cases.append(([draw.uniform(0.5, 5) for _ in range(workers)], draw.randint(1, workers)))
        program = os.path.join(os.environ["PRD_BIN_DIR"], "demo_reference")
        for step_s, group_size in cases:
            command = [program, str(group_size), "500", *map(repr, step_s)]
            fifo, bound = map(float, subprocess.check_output(command, text=True, timeout=60).split())
            self.assertAlmostEqual(summary.fifo_updates_per_s(step_s, group_size, 500) / fifo, 1, places=9)
            self.assertAlmostEqual(summary.bound_updates_per_s(step_s, group_size) / bound, 1, places=9)

    def test_no_reference_for_a_policy_without_a_simulation(self):
        self.assertIsNone(summary.reference_updates_per_s("hop", [1.0], 3))
        self.assertIsNone(summary.reference_updates_per_s("p-reduce", [1.0, 1.0], 0))


class Measurements(unittest.TestCase):
    def test_a_group_counts_once_when_its_last_member_is_through(self):
        logs = [
            log(0, [(1, 1, 2, 1, 0, 0), (3, 3, 2, 1, 0, 0)]),
            log(1, [(1.5, 1, 2, 1, 0, 0), (2.5, 2, 2, 1, 0, 0)]),
            log(2, [(2.5, 2, 2, 1, 0, 0), (3.5, 3, 2, 1, 0, 0)]),
        ]
        # Completed at 1.5, 2.5 and 3.5.
        self.assertAlmostEqual(rate(logs, (0, 10 * S)), 1.0)

    def test_what_is_outside_the_window_does_not_count(self):
        logs = [log(0, [(t, t, 1, 1, 0, 0) for t in (1, 4, 5, 6, 20)])]
        self.assertAlmostEqual(rate(logs, (3 * S, 10 * S)), 1.0)
        self.assertIsNone(rate(logs, (7 * S, 19 * S)))

    def test_a_step_may_end_several_rounds_or_none(self):
        slow = log(0, [(t, t, 3, 1, 0, 0, {"rounds": 4}) for t in (2, 4, 6)], engine="eager")
        # Rounds 1 to 12 in 12 half seconds, but that it twice had two at once.
        rounds = [1, 1, 0, 2, 1, 1, 0, 2, 1, 1, 1, 1]
        fast = log(1, [((t + 1) / 2, t * (n > 0), 3 * (n > 0), 1, 0, 0, {"rounds": n}) for t, n in enumerate(rounds)], engine="eager")
        self.assertAlmostEqual(rate([slow, fast], (0, 10 * S)), 2.0)

    def test_a_step_may_have_been_in_several_groups_of_models(self):
        steps = [(t, t, 2, 1, 0, 0, {"rounds": 3}) for t in range(1, 10)]
        logs = [log(0, steps, engine="ad-psgd"), log(1, steps, engine="ad-psgd"), log(2, [], engine="ad-psgd")]
        self.assertAlmostEqual(rate(logs, (0, 10 * S)), 2.7)
        self.assertAlmostEqual(summary.mean_members(logs, (0, 10 * S)), 2.0)
        self.assertIsNone(summary.mean_members(logs[2:], (0, 10 * S)))

    def test_groups_of_a_schedule_are_counted_in_the_workers_logs(self):
        together = [(t, t, 2, 1, 0, 0) for t in (1, 2, 3)]
        logs = [log(0, together), log(1, together), log(2, [(3.5, 4, 2, 1, 0, 0)])]
        window = (0, 10 * S)
        history = {"rounds": 0, "mean_contributors": None, "dropped_updates": 0, "conflicts": 0, "scheduled": True}
        # Group 4 should have had another member.
        counts = summary.of_schedule(history, logs, window)
        self.assertEqual((counts["rounds"], counts["mean_contributors"], counts["conflicts"]), (4, 2.0, 1))
        self.assertEqual(summary.of_schedule(history, logs[:2], window)["conflicts"], 0)

    def test_a_step_without_a_group_is_no_update(self):
        local = {"rounds": 0}
        logs = [log(0, [(1, 0, 0, 1, 0, 0, local), (2, 5, 2, 1, 0, 0), (3, 0, 0, 1, 0, 0, local), (4, 6, 2, 1, 0, 0)])]
        self.assertAlmostEqual(rate(logs, (0, 10 * S)), 0.5)
        self.assertEqual(summary.steps_per_round(logs[0], (0, 10 * S)), 2.0)

    def test_without_groups_each_exchange_is_an_update(self):
        for engine in ("hop", "ssp"):
            logs = [log(r, [(t, 0, 0, 1, 0, 0) for t in range(1, 9)], engine=engine) for r in range(3)]
            self.assertAlmostEqual(rate(logs, (0, 10 * S)), 2.4)
            self.assertEqual(summary.members_per_update(engines.Engine(engine, KNOWN), 3, 2), 1)

    def test_iterations_that_were_skipped_count_as_speed(self):
        worker = log(0, [(t, 0, 0, 1, 0, 0, {"iteration": 3 * t}) for t in range(1, 9)], engine="hop")
        self.assertAlmostEqual(summary.iterations_per_s(worker, (0, 10 * S)), 3.0)
        self.assertIsNone(summary.iterations_per_s(worker, (0, 1 * S)))

    def test_steps_that_were_cut_short_are_no_steps(self):
        cut = {"discarded": True, "sent_bytes": 7}
        logs = [log(0, [(1, 1, 2, 1, 0, 0, cut), (2, 1, 2, 1, 0, 0, {"sent_bytes": 5})]), log(1, [(3, 1, 2, 1, 0, 0)])]
        self.assertAlmostEqual(summary.steps_per_s(logs, (0, 4 * S)), 0.5)
        self.assertAlmostEqual(summary.sent_bytes_per_s(logs, (0, 4 * S)), 3.0)

    def test_share_of_late_gradients(self):
        late = {"included": False}
        cut = {**late, "discarded": True}
        local = {**late, "rounds": 0}
        steps = [(1, 1, 2, 1, 0, 0, late), (2, 2, 2, 1, 0, 0), (3, 3, 2, 1, 0, 0, cut), (3, 0, 0, 1, 0, 0, local)]
        worker = log(0, steps)
        self.assertEqual(summary.late_share(worker, (0, 4 * S)), 0.5)
        self.assertIsNone(summary.late_share(worker, (4 * S, 5 * S)))

    def test_shares_of_time(self):
        worker = log(0, [(1, 1, 3, 0.5, 0.3, 0.2), (3, 2, 3, 0.5, 1.2, 0.3), (50, 3, 3, 0, 47, 0)])
        idle, reducing = summary.time_shares(worker, (0, 10 * S))
        self.assertAlmostEqual(idle, 0.5)
        self.assertAlmostEqual(reducing, 1 / 6)
        self.assertEqual(summary.time_shares(worker, (60 * S, 70 * S)), (None, None))

    def test_the_window_begins_when_all_are_under_way(self):
        logs = [log(0, [], start_ns=0), log(1, [], start_ns=10 * S)]
        self.assertEqual(summary.steady_window(logs, 110 * S), (20 * S, 110 * S))

    def test_a_target_is_reached_when_it_is_held(self):
        readings = (0.1, 0.85, 0.84, 0.85, 0.86, 0.85, 0.84)
        evaluations = [{"time_s": t, "accuracy": a} for t, a in enumerate(readings)]
        self.assertEqual(summary.time_to_target_s(evaluations, 0.85), 3)
        self.assertEqual(summary.time_to_target_s(evaluations, 0.8), 1)
        self.assertIsNone(summary.time_to_target_s(evaluations, 0.86))

    def test_an_empty_log_is_refused(self):
        with self.assertRaises(ValueError):
            summary.WorkerLog([])

    def test_a_line_without_its_end_is_left_out(self):
        whole = json.dumps({"rank": 0, "start_ns": 1}) + "\n"
        cut = summary.WorkerLog([whole, json.dumps({"end_ns": 1, "group": 1}) + "\n", '{"end_ns":2,"gro'])
        self.assertEqual(len(cut.steps), 1)
        self.assertFalse(cut.finished)


def run_of(engine, time_s, final):
    logs = [
        log(rank, [(t, t, 3, 1, 0.25 * rank, 0.01) for t in range(1, 11)], 1.0 + rank, engine) for rank in (2, 0, 1)
    ]
    evaluations = [
        {"time_s": 0.0, "accuracy": 0.1, "final": False, "samples": 0},
        {"time_s": time_s, "accuracy": 0.85, "final": False, "samples": 10},
        {"time_s": 1.5 * time_s, "accuracy": 0.85, "final": False, "samples": 15},
        {"time_s": 2 * time_s, "accuracy": final, "final": True, "samples": 20},
    ]
    return summarize(engine, logs, evaluations, 10 * S, 0.85, 2)


def summarize(engine, logs, evaluations, stop_ns, target, group_size, measure="accuracy", delayed=False):
    counts = {"rounds": 10, "mean_contributors": 2.5, "dropped_updates": 0, "conflicts": 0, "scheduled": False,
              **history.Exchange().counts()}  # fmt: skip
    run = summary.Measured(engines.Engine(engine, KNOWN), logs, evaluations, stop_ns, counts)
    return summary.summarize(run, measure, target, group_size, delayed)


class Summary(unittest.TestCase):
    def test_has_what_its_readers_rely_on(self):
        run = run_of("all-reduce", 4.0, 0.86)
        self.assertEqual(run["engine"], "all-reduce")
        self.assertEqual(run["workers"], 3)
        self.assertEqual(run["target_accuracy"], 0.85)
        self.assertEqual(run["time_to_target_s"], 4.0)
        self.assertAlmostEqual(run["updates_per_s"], 1.0)
        self.assertAlmostEqual(run["reference_updates_per_s"], 1 / 3)
        self.assertAlmostEqual(run["bound_updates_per_s"], (1 + 1 / 2 + 1 / 3) / 3)
        self.assertEqual(run["final_accuracy"], 0.86)
        # By rank, whatever the order of the logs.
        self.assertEqual(run["idle_share"], sorted(run["idle_share"]))
        self.assertEqual(len(run["idle_share"]), 3)
        json.dumps(run, allow_nan=False)

    def test_a_target_not_reached_is_null(self):
        run = run_of("p-reduce", 4.0, 0.86)
        late = summarize("p-reduce", [log(0, [])], [], S, 0.85, 3)
        self.assertIsNone(late["time_to_target_s"])
        self.assertIsNone(late["final_accuracy"])
        self.assertEqual(summary.comparison([late, run]), [])

    def test_comparison(self):
        lines = summary.comparison([run_of("all-reduce", 8.0, 0.86), run_of("p-reduce", 2.0, 0.855)])
        self.assertIn("4.0 times sooner than all-reduce", lines[0])
        self.assertIn("1.00 times as many local steps", lines[1])
        self.assertIn("-0.5 points", lines[2])

    def test_table_has_a_column_per_run_and_a_row_per_worker(self):
        late = summarize("p-reduce", [log(0, [])], [], S, 0.85, 3)
        lines = report.table([run_of("all-reduce", 8.0, 0.86), late])
        self.assertRegex(lines[0], r"all-reduce +p-reduce$")
        self.assertTrue(any(line.startswith("time to 85%") and line.endswith(" -") for line in lines))
        self.assertEqual(sum(line.startswith("worker") and "waiting" in line for line in lines), 3)

    def test_workers_with_equal_steps_are_one_class(self):
        logs = [log(r, [(t, t, 3, 1, 0.25 * r, 0) for t in range(1, 11)], 2.0 if r == 1 else 1.0) for r in range(3)]
        run = summarize("eager:quorum=2", logs, [], 10 * S, 0.85, 3)
        self.assertEqual(run["classes"], [[0, 2], [1]])
        lines = report.table([run])
        for row in (r"2 workers \(step 1000 ms\): waiting +0%-33%", r"worker 1 \(step 2000 ms\): waiting +20%"):
            self.assertTrue(any(re.fullmatch(row, line) for line in lines), lines)

    def test_no_yardstick_where_there_is_none(self):
        logs = [log(0, [(t, t, 1, 1, 0, 0) for t in range(1, 11)])]
        for engine, delayed in (("eager", False), ("backup", False), ("esync", False), ("all-reduce", True)):
            run = summarize(engine, logs, [], 10 * S, 0.85, 3, delayed=delayed)
            self.assertIsNone(run["reference_updates_per_s"])
            self.assertIsNone(run["bound_updates_per_s"])
            lines = report.table([run])
            self.assertTrue(any(re.fullmatch(r"  of the policy with free communication +-", line) for line in lines))

    def test_a_bound_where_a_step_makes_one_update(self):
        logs = [log(r, [(t, t, 2, 1, 0, 0) for t in range(1, 11)]) for r in range(2)]
        for engine, bound in (("prague", 1.0), ("prague:generator=random", None), ("ad-psgd", None)):
            self.assertEqual(summarize(engine, logs, [], 10 * S, 0.85, 3)["bound_updates_per_s"], bound)

    def test_a_loss_is_the_better_the_less(self):
        evaluations = [{"time_s": float(t), "loss": l, "final": False} for t, l in enumerate([9, None, 4, 5, 3, 2])]
        run = summarize("eager", [log(0, [])], evaluations, S, 5.0, 3, measure="loss")
        self.assertEqual(run["time_to_target_s"], 2.0)
        self.assertEqual(run["target_loss"], 5.0)
        self.assertTrue(report.table([run])[1].startswith("time to a held-out loss of 5, s"))

    def test_rows_of_rounds_are_there_when_a_run_has_seen_them(self):
        cut = log(0, [(1, 0, 0, 1, 0, 0, {"rounds": 0, "discarded": True}), (2, 1, 1, 1, 0, 0)])
        whole = log(0, [(2, 1, 1, 1, 0, 0)])
        with_cut, without = (summarize("esync", [one], [], 3 * S, 0.85, 3) for one in (cut, whole))
        self.assertEqual(with_cut["cut_short_steps"], 1)
        self.assertTrue(any(re.fullmatch(r"steps cut short +1 +-", line) for line in report.table([with_cut, without])))
        self.assertFalse(any(line.startswith("steps cut short") for line in report.table([without])))


class Words(unittest.TestCase):
    def test_progress(self):
        evaluations = [
            {"time_s": float(t), "accuracy": 0.5 + t / 100, "updates": 10 * t, "samples": 100 * t} for t in range(11)
        ]
        def share(evaluation):
            return evaluation["samples"] / 4000

        text = progress.line("p-reduce", evaluations, "accuracy", share, 12)
        self.assertIn(" 25%", text)
        self.assertIn("accuracy 0.600", text)
        self.assertIn("10.0 updates/s", text)
        self.assertIn("30 s left", text)
        self.assertIn("starting", progress.line("p-reduce", [], "accuracy", share, 1))

    def test_plot_has_a_curve_per_run(self):
        script = report.plot_script(
            [("all-reduce", [{"time_s": 1, "accuracy": 0.5}]), ("p-reduce", [{"time_s": 2, "accuracy": 0.75}])],
            "accuracy", 0.85, 8, "x.svg",
        )  # fmt: skip
        self.assertIn("$run0 << END\n1 50.00\nEND\n", script)
        self.assertIn("$run1 << END\n2 75.00\nEND\n", script)
        self.assertIn('title "p-reduce"', script)

    def test_plot_of_losses_is_logarithmic_and_leaves_out_what_is_no_number(self):
        curves = [("eager", [{"time_s": 1, "loss": 4.5}, {"time_s": 2, "loss": None}])]
        script = report.plot_script(curves, "loss", 5, 8, "x.svg")
        self.assertIn("$run0 << END\n1 4.50\nEND\n", script)
        self.assertIn("set logscale y", script)
        self.assertIn(", 5 with lines", script)


class Engines(unittest.TestCase):
    def test_a_list(self):
        found = engines.parse("all-reduce,p-reduce:group_size=5,weights=constant,eager:quorum=solo,eager:quorum=2", KNOWN)
        self.assertEqual([engine.name for engine in found], ["all-reduce", "p-reduce", "eager", "eager"])
        self.assertEqual(found[1].options, {"group_size": "5", "weights": "constant"})
        self.assertEqual(found[2].file_name, "eager-quorum-solo")

    def test_what_cannot_be(self):
        for text in (
            "", "a", "all-reduce,", "all-reduce,all-reduce", "k=v", "hop:", "hop:backups", "hop:backups=", "hop:=v",
            'hop:order="serial"', "hop:backups=1,backups=2", "Hop", "hop hop", "../hop",
            # What prd has no such key or value for.
            "hop:backup=1", "hop:backups=-1", "hop:backups=100001", "hop:backups=one", "hop:directed=1",
            "hop:order=both", "p-reduce:alpha=1", "p-reduce:alpha=nan", "eager:quorum=0",
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "allowed is ", msg=text):
                engines.parse(text, KNOWN)

    def test_tables(self):
        found = engines.parse(
            "all-reduce,eager:quorum=solo,max_stale_rounds=2,p-reduce:alpha=0.25,esync:mode=delayed-ack", KNOWN
        )
        for engine in found:
            text = engines.tables(engine, found, 4)
            tables = tomllib.loads(text)["job"]
            self.assertEqual(
                tables,
                {"eager": {"quorum": "solo", "max_stale_rounds": 2}, "esync": {"mode": "delayed-ack"},
                 "p-reduce": {"group_size": 4, "alpha": 0.25}},
            )  # fmt: skip

    def test_a_batch_is_the_jobs(self):
        [plain, balanced] = engines.parse("all-reduce,all-reduce:weights=samples,batch=2048", KNOWN)
        self.assertEqual((plain.job_lines(), balanced.job_lines()), ([], ["batch = 2048"]))
        self.assertEqual(balanced.options, {"weights": "samples"})
        for text in ("all-reduce:batch=0", "all-reduce:batch=2,batch=3", "all-reduce:batch=many"):
            with self.assertRaisesRegex(ValueError, "allowed is ", msg=text):
                engines.parse(text, KNOWN)

    def test_every_default_of_every_engine_is_allowed(self):
        for name, known in KNOWN.items():
            values = {key["key"]: str(key["default"]) for key in known["keys"]}
            values = {key: value.lower() if value in ("True", "False") else value for key, value in values.items()}
            text = ",".join(f"{key}={value}" for key, value in values.items())
            [engine] = engines.parse(f"{name}:{text}", KNOWN)
            self.assertEqual(engine.options, values)

    def test_of_two_specifications_the_run_has_its_own(self):
        found = engines.parse("eager:quorum=solo,eager:quorum=majority,all-reduce", KNOWN)
        quorums = [tomllib.loads(engines.tables(engine, found, 3))["job"]["eager"]["quorum"] for engine in found]
        self.assertEqual(quorums, ["solo", "majority", "solo"])


class History(unittest.TestCase):
    def test_counts(self):
        def formed(group, kind, *weights):
            members = [{"rank": rank, "weight": weight} for rank, weight in enumerate(weights)]
            return {"type": "group_formed", "group": group, "kind": kind, "members": members}

        records = [
            formed(1, "initial", 1, 0), {"type": "group_ended", "group": 1, "ok": True},
            formed(2, "round", 0.25, 0, 0.25, 0), {**formed(3, "train", 0.5, 0.5), "conflict": True},
            {"type": "group_ended", "group": 3, "ok": False}, {"type": "group_ended", "group": 2, "ok": True},
            formed(4, "round", 0.25, 0.25, 0.25, 0.25), {"type": "update_dropped", "rank": 1},
            {"type": "group_ended", "group": 4, "ok": True}, formed(5, "round", 1), {"type": "ready", "rank": 0},
            formed(6, "final", 0.5, 0.5), {"type": "group_ended", "group": 6, "ok": True},
        ]  # fmt: skip
        counts = history.counts(json.dumps(record) for record in records)
        self.assertEqual((counts["rounds"], counts["mean_contributors"], counts["dropped_updates"]), (2, 3.0, 1))
        self.assertEqual((counts["conflicts"], counts["scheduled"]), (1, False))
        self.assertTrue(history.counts(['{"type":"schedule_set"}'])["scheduled"])

    def test_of_runs_without_groups(self):
        def answer(rank, asked, got):
            return {"type": "query_answered", "rank": rank, "iteration": asked, "next": got}

        joins = [{"type": "worker_joined", "rank": rank, "iteration": 0} for rank in range(2)]
        records = [
            *joins, answer(0, 1, 1), answer(0, 2, 2), {"type": "ready", "rank": 1, "dropped": 4, "suppressed": 3},
            answer(1, 1, 2), {"type": "worker_left", "rank": 1}, answer(0, 3, 3),
        ]  # fmt: skip
        counts = history.counts(json.dumps(record) for record in records)
        self.assertEqual((counts["skipped_iterations"], counts["suppressed_updates"]), (1, 3))
        self.assertEqual((counts["dropped_updates"], counts["mean_ahead"], counts["most_ahead"]), (4, 3 / 4, 2))

    def test_a_clock_is_over_once_its_update_is_stored(self):
        def ready(rank, clock):
            return {"type": "ready", "rank": rank, "iteration": clock}

        def answer(rank, clock):
            return {"type": "query_answered", "rank": rank, "iteration": clock, "next": clock}

        joins = [{"type": "worker_joined", "rank": rank, "iteration": 0} for rank in range(2)]
        lockstep = [*joins, {"type": "placement_set"}, ready(0, 1), ready(1, 1), answer(0, 1), answer(1, 1)]
        self.assertEqual(history.counts(map(json.dumps, lockstep))["most_ahead"], 0)
        self.assertEqual(history.counts(map(json.dumps, [*lockstep, ready(0, 2), answer(0, 2)]))["most_ahead"], 1)

    def test_nothing(self):
        counts = history.counts([])
        self.assertEqual((counts["skipped_iterations"], counts["mean_ahead"]), (0, None))
        self.assertEqual((counts["rounds"], counts["mean_contributors"], counts["dropped_updates"]), (0, None, 0))


class Options(unittest.TestCase):
    @staticmethod
    def parse(*arguments):
        return command_line.parse(["--bin", "/bin", *arguments], lambda _: KNOWN)

    def test_without_any(self):
        options = self.parse()
        self.assertEqual([engine.text for engine in options.engines], ["all-reduce", "p-reduce"])
        self.assertEqual((options.slow, options.step_ms, options.epochs), ({7: 5.0}, 100, 12))

    def test_settings(self):
        esync = self.parse("--setting", "esync")
        self.assertEqual((esync.workers, esync.slow), (6, {4: 100.0, 5: 100.0}))
        hyperplane = self.parse("--setting", "hyperplane")
        self.assertEqual((hyperplane.slow, hyperplane.workers * hyperplane.batch), ({}, 2048))
        self.assertEqual(command_line.examples(hyperplane), 48 * 32_768)
        self.assertEqual(command_line.measure(hyperplane), "loss")
        hop = self.parse("--setting", "hop-random")
        self.assertEqual((hop.slow, hop.inject, hop.workers), ({}, "random:6", 16))
        self.assertEqual([e.text for e in self.parse("--setting", "hop-slow").engines][2], "hop:backups=1,max_jump=10")
        shifted = self.parse("--setting", "shifted-cnn")
        self.assertEqual((shifted.slow, shifted.model, shifted.workers * shifted.batch), ({}, "cnn", 512))

    def test_what_is_given_counts_instead_of_the_setting(self):
        options = self.parse("--setting", "esync", "--slow", "0:3", "--engines", "p-reduce", "--batch", "7")
        self.assertEqual((options.slow, options.batch, options.workers), ({0: 3.0}, 7, 6))
        self.assertEqual([engine.text for engine in options.engines], ["p-reduce"])
        self.assertEqual((options.epochs, options.seconds), (None, 100))
        options = self.parse("--setting", "esync", "--epochs", "2")
        self.assertEqual((options.epochs, options.seconds), (2, None))
        options = self.parse("--setting", "hyperplane", "--seconds", "9")
        self.assertEqual((options.epochs, options.seconds), (None, 9))

    def test_delays_are_part_of_how_long_a_run_may_take(self):
        plain = self.parse("--step-ms", "100", "--slow", "0:1")
        delayed = self.parse("--step-ms", "100", "--inject", "shifted:50:300")
        self.assertEqual(delayed.slow, {})
        self.assertAlmostEqual((delayed.limit_s - 60) / (plain.limit_s - 60), 4)
        self.assertEqual(command_line.longest_delay_ms("one:12.5"), 12.5)
        self.assertEqual(command_line.longest_delay_ms("random:6:0.5", 40), 200)
        random = self.parse("--step-ms", "100", "--inject", "random:4")
        self.assertAlmostEqual((random.limit_s - 60) / (plain.limit_s - 60), 4)
        for wrong in ("random:0.5", "random:6:0", "random:6:2", "random"):
            with self.assertRaises(ValueError):
                command_line.longest_delay_ms(wrong)


if __name__ == "__main__":
    unittest.main()
