"""The demo's figures, against cases worked out by hand and the simulation in tools/reference."""
import json
import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["PRD_SOURCE_DIR"], "tools/demo_lib"))
import progress  # noqa: E402
import report  # noqa: E402
import summary  # noqa: E402

S = 1_000_000_000


def log(rank, steps, step_s=1.0, engine="p-reduce", start_ns=0):
    """steps: (end_s, group, members, compute_s, wait_s, reduce_s)."""
    lines = [{"rank": rank, "workers": 3, "engine": engine, "start_ns": start_ns, "step_ns": round(step_s * S)}]
    for end, group, members, compute, wait, reduce in steps:
        lines.append(
            {"end_ns": round(end * S), "iteration": 1, "group": group, "members": members,
             "compute_ns": round(compute * S), "wait_ns": round(wait * S), "reduce_ns": round(reduce * S),
             "attempts": 1, "loss": 1.0}
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


class Measurements(unittest.TestCase):
    def test_a_group_counts_once_when_its_last_member_is_through(self):
        logs = [
            log(0, [(1, 1, 2, 1, 0, 0), (3, 3, 2, 1, 0, 0)]),
            log(1, [(1.5, 1, 2, 1, 0, 0), (2.5, 2, 2, 1, 0, 0)]),
            log(2, [(2.5, 2, 2, 1, 0, 0), (3.5, 3, 2, 1, 0, 0)]),
        ]
        # Completed at 1.5, 2.5 and 3.5.
        self.assertAlmostEqual(summary.updates_per_s(logs, (0, 10 * S)), 1.0)

    def test_what_is_outside_the_window_does_not_count(self):
        logs = [log(0, [(t, t, 1, 1, 0, 0) for t in (1, 4, 5, 6, 20)])]
        self.assertAlmostEqual(summary.updates_per_s(logs, (3 * S, 10 * S)), 1.0)
        self.assertIsNone(summary.updates_per_s(logs, (7 * S, 19 * S)))

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
    return summary.summarize(engine, logs, evaluations, 10 * S, 0.85, 2)


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
        late = summary.summarize("p-reduce", [log(0, [])], [], S, 0.85, 3)
        self.assertIsNone(late["time_to_target_s"])
        self.assertIsNone(late["final_accuracy"])
        self.assertEqual(summary.comparison([late, run]), [])

    def test_comparison(self):
        lines = summary.comparison([run_of("all-reduce", 8.0, 0.86), run_of("p-reduce", 2.0, 0.855)])
        self.assertIn("4.0 times sooner than all-reduce", lines[0])
        self.assertIn("-0.5 points", lines[1])

    def test_table_has_a_column_per_run_and_a_row_per_worker(self):
        late = summary.summarize("p-reduce", [log(0, [])], [], S, 0.85, 3)
        lines = report.table([run_of("all-reduce", 8.0, 0.86), late])
        self.assertRegex(lines[0], r"all-reduce +p-reduce$")
        self.assertTrue(any(line.startswith("time to 85%") and line.endswith(" -") for line in lines))
        self.assertEqual(sum(line.startswith("idle share of worker") for line in lines), 3)


class Words(unittest.TestCase):
    def test_progress(self):
        evaluations = [
            {"time_s": float(t), "accuracy": 0.5 + t / 100, "updates": 10 * t, "samples": 100 * t} for t in range(11)
        ]
        text = progress.line("p-reduce", evaluations, 4000, 12)
        self.assertIn(" 25%", text)
        self.assertIn("accuracy 0.600", text)
        self.assertIn("10.0 updates/s", text)
        self.assertIn("30 s left", text)
        self.assertIn("starting", progress.line("p-reduce", [], 4000, 1))

    def test_plot_has_a_curve_per_run(self):
        script = report.plot_script(
            [("all-reduce", [{"time_s": 1, "accuracy": 0.5}]), ("p-reduce", [{"time_s": 2, "accuracy": 0.75}])],
            0.85, 8, "x.svg",
        )  # fmt: skip
        self.assertIn("$run0 << END\n1 50.00\nEND\n", script)
        self.assertIn("$run1 << END\n2 75.00\nEND\n", script)
        self.assertIn('title "p-reduce"', script)


if __name__ == "__main__":
    unittest.main()
