"""The parts of punish without processes: which faults come, what the figures are, what the command line may be."""
import contextlib
import io
import itertools
import os
import sys
import unittest

sys.path[:0] = [os.path.join(os.environ["PRD_SOURCE_DIR"], "tools", folder) for folder in ("punish_lib", "job_lib")]
import goodput  # noqa: E402
import options  # noqa: E402
import report  # noqa: E402
import schedule  # noqa: E402

ALL = [kind for kind in schedule.KINDS if kind != "clock"]
SEEDS = range(50)


def draw(seed, kinds=ALL, workers=8, seconds=600, every=5, quick=False):
    return schedule.draw(seed, kinds, workers, seconds, every, quick)


class Schedule(unittest.TestCase):
    def test_a_seed_gives_one_schedule(self):
        self.assertEqual(draw(7), draw(7))
        self.assertNotEqual(draw(7), draw(8))

    def test_a_schedule_of_this_seed_stays_as_it_is(self):
        faults = draw(1, ["kill", "cut", "old-state"], workers=4, seconds=150, every=20)
        self.assertEqual(
            [(fault.kind, fault.ranks, round(fault.start, 3), round(fault.end, 3)) for fault in faults],
            [("kill", (3,), 12.710, 37.221), ("old-state", (), 77.792, 78.412), ("cut", (2, 0), 89.883, 94.061),
             ("kill", (3,), 146.618, 150)],
        )  # fmt: skip

    def test_faults_are_within_the_run_and_as_long_as_their_kind(self):
        for seed in SEEDS:
            for fault in draw(seed):
                least, most = schedule.KINDS[fault.kind].length_s
                self.assertTrue(0 <= fault.start < fault.end <= 600, fault)
                self.assertTrue(fault.end == 600 or least <= fault.end - fault.start <= most + 1e-9, fault)
                self.assertEqual(len(fault.ranks), schedule.KINDS[fault.kind].victims)
                self.assertEqual(len(set(fault.ranks)), len(fault.ranks))
                self.assertTrue(all(0 <= rank < 8 for rank in fault.ranks), fault)
                self.assertEqual(fault.age > 0, fault.kind == "old-state")
                self.assertLessEqual(fault.age, fault.start)

    def test_nobody_is_under_two_faults_and_half_of_the_workers_under_none(self):
        for seed, workers in itertools.product(SEEDS, (2, 3, 8)):
            for fault in (faults := draw(seed, workers=workers, every=1)):
                beside = [other for other in faults if other.start <= fault.start < other.end]
                struck = [who for other in beside for who in other.ranks or (schedule.DAEMON,)]
                self.assertEqual(len(struck), len(set(struck)))
                under = len([who for who in struck if who != schedule.DAEMON])
                self.assertLessEqual(under, max(workers // 2, 2 if workers < 4 else 0))

    def test_each_kind_comes_once_before_any_comes_again(self):
        for seed in SEEDS:
            kinds = [fault.kind for fault in draw(seed, ["kill", "stop", "slow"], seconds=1e5, every=500)]
            for i in range(0, len(kinds) - 2, 3):
                self.assertEqual(set(kinds[i : i + 3]), {"kill", "stop", "slow"})

    def test_the_mean_time_between_faults_is_as_asked_for(self):
        faults = draw(1, ["kill-daemon"], seconds=1e6, every=100)
        self.assertAlmostEqual(len(faults) / 1e4, 1, delta=0.05)

    def test_without_kinds_there_are_no_faults(self):
        self.assertEqual(draw(1, []), [])


class Intervals(unittest.TestCase):
    def test_union(self):
        self.assertEqual(goodput.union([(5, 6), (1, 2), (2, 3), (1.5, 2.5), (4, 4)]), [(1, 3), (5, 6)])

    def test_without(self):
        self.assertEqual(goodput.without((0, 10), []), [(0, 10)])
        self.assertEqual(goodput.without((0, 10), [(-1, 1), (3, 4), (9, 12), (20, 21)]), [(1, 3), (4, 9)])
        self.assertEqual(goodput.without((0, 10), [(-1, 11)]), [])
        self.assertEqual(goodput.without((2, 4), [(2, 3)]), [(3, 4)])


class Goodput(unittest.TestCase):
    def every(self, step_s, *parts):
        return [start + step_s * i for start, end in parts for i in range(round((end - start) / step_s))]

    def figures(self, steps, down, base_rate=4.0):
        return goodput.figures(steps, down, (0, 100), base_rate)

    def test_without_faults_it_is_the_rate_beside_the_baseline(self):
        steps = [self.every(0.5, (0, 100)), self.every(0.5, (0, 100))]
        found = self.figures(steps, [[], []])
        self.assertEqual((found["live_share"], found["steps"], found["goodput"]), (1, 400, 1))
        self.assertEqual(self.figures(steps, [[], []], base_rate=8)["goodput"], 0.5)

    def test_time_under_a_fault_counts_neither_as_steps_nor_as_loss(self):
        found = self.figures([self.every(0.5, (0, 20), (60, 100)), self.every(0.5, (0, 100))], [[(20, 60)], []])
        self.assertEqual((found["live_share"], found["steps_allowed"], found["goodput"]), (0.8, 320, 1))
        # Steps made under a fault are not counted.
        found = self.figures([self.every(0.5, (0, 100)), self.every(0.5, (0, 100))], [[(20, 60)], []])
        self.assertEqual((found["steps"], found["steps_live"], found["goodput"]), (400, 320, 1))

    def test_what_the_others_lose_counts(self):
        found = self.figures([self.every(0.5, (0, 20), (60, 100)), self.every(0.5, (0, 20), (60, 100))], [[(20, 60)], []])
        self.assertEqual(found["goodput"], 240 / 320)

    def test_faults_that_overlap_count_once(self):
        found = self.figures([[], []], [[(10, 30), (20, 40)], [(20, 30)]])
        self.assertEqual(found["live_share"], (70 + 90) / 200)

    def test_nobody_lives(self):
        self.assertIsNone(self.figures([[], []], [[(0, 100)], [(0, 100)]])["goodput"])

    def test_the_longest_gap_is_of_live_time(self):
        steps = [[1, 2, 50, 51, 99], [1, 2, 50, 51, 99]]
        found = self.figures(steps, [[], [(3, 48)]])
        self.assertEqual(found["longest_gap_s"], [48, 48])
        self.assertEqual(self.figures([[10, 20]], [[(25, 100)]])["longest_gap_s"], [10])
        self.assertEqual(self.figures([[10, 20]], [[(90, 100)]])["longest_gap_s"], [70])

    def test_what_is_lost_is_told_by_the_last_fault(self):
        # 40 s of both while the second is dead, and 10 s more of the second.
        steps = [self.every(0.5, (0, 20), (60, 100)), self.every(0.5, (0, 20), (70, 100))]
        edges = [(20, "kill"), (60, "kill"), (80, "cut")]
        found = goodput.lost(steps, [[], [(20, 60)]], (0, 100), 4, edges)
        self.assertEqual(found, {"": 0, "kill": 20 + 5, "cut": 0})
        self.assertEqual(goodput.lost(steps, [[], []], (0, 100), 4, []), {"": 45})

    def test_pace_in_intervals(self):
        steps = [self.every(0.5, (0, 100)), self.every(2, (0, 100)), []]
        self.assertEqual(goodput.pace(steps, [[(10, 20)], [(10, 20)], []], 2), 25 / 40)
        self.assertIsNone(goodput.pace(steps, [[(10, 10)], [(12, 10)], []], 2))


class NoHang(unittest.TestCase):
    def watch(self):
        watch = goodput.Watch(2, patience_s=9, lease_s=2)
        watch.begin(100)
        return watch

    def test_who_makes_no_step_hangs_and_is_named_once(self):
        watch = self.watch()
        watch.step(0, 105)
        self.assertEqual(watch.hangs(109, set()), [])
        self.assertEqual(watch.hangs(110, set()), [(1, 10)])
        self.assertEqual(watch.hangs(114.5, set()), [(0, 9.5)])
        self.assertEqual(watch.hangs(200, set()), [])
        watch.step(1, 200)
        self.assertEqual(watch.hangs(210, set()), [(1, 10)])

    def test_a_fault_of_others_that_begins_or_ends_costs_a_lease_at_most(self):
        watch = self.watch()
        watch.edge(101)  # the patience anew is less than a lease
        self.assertEqual(watch.hangs(110, {1}), [])
        self.assertEqual(watch.hangs(110.5, {1}), [(0, 10.5)])
        watch = self.watch()
        watch.edge(108)
        watch.edge(108)
        self.assertEqual(watch.hangs(113, {1}), [])
        self.assertEqual(watch.hangs(113.5, {1}), [(0, 13.5)])
        watch.step(0, 120)
        self.assertEqual(watch.hangs(129, {1}), [])
        self.assertEqual(watch.hangs(129.5, {1}), [(0, 9.5)])

    def test_nobody_need_step_under_a_fault(self):
        watch = self.watch()
        self.assertEqual(watch.hangs(130, {0, 1}), [])
        self.assertEqual(watch.hangs(139, {1}), [])
        self.assertEqual(watch.hangs(140, {1}), [(0, 10)])
        self.assertEqual(watch.hangs(149, set()), [])
        self.assertEqual(watch.hangs(149.5, set()), [(1, 9.5)])
        self.assertEqual(watch.hangs(160, {0}), [])
        self.assertEqual(watch.hangs(169.5, set()), [(0, 9.5)])

    def test_before_it_begins_and_while_it_loads_nobody_hangs(self):
        watch = goodput.Watch(2, 9, 2)
        watch.step(0, 5)
        watch.edge(6)
        self.assertEqual(watch.hangs(1000, set()), [])
        watch = self.watch()
        watch.from_(0, 120)
        self.assertEqual(watch.hangs(125, {1}), [])
        self.assertEqual(watch.hangs(130, {1}), [(0, 10)])
        watch = self.watch()
        watch.from_(0, 120)
        watch.step(0, 105)
        self.assertEqual(watch.hangs(115, {1}), [(0, 10)])


class CommandLine(unittest.TestCase):
    KNOWN = {name: {"name": name, "plan": {}, "keys": []} for name in ("p-reduce", "all-reduce")}

    def parse(self, text):
        return options.parse([*"--bin x".split(), *text.split()], lambda _: self.KNOWN)

    def test_defaults_and_quick(self):
        found = self.parse("")
        self.assertEqual((found.minutes, found.workers, found.every, found.goal), (5, 8, 30, 0.9))
        self.assertEqual(found.faults, schedule.ALL)
        self.assertEqual(found.patience_s, 9)
        found = self.parse("--quick --workers 3")
        self.assertEqual((found.workers, found.faults, found.goal), (3, ["kill", "stop", "kill-daemon"], 0))

    def test_several_engines_and_a_command(self):
        found = self.parse("--engine p-reduce,all-reduce --lease-ms 500 -- train --quick --seed 3")
        self.assertEqual([engine.text for engine in found.engines], ["p-reduce", "all-reduce"])
        self.assertEqual(found.command, ["train", "--quick", "--seed", "3"])
        self.assertEqual((found.patience_s, found.seed, found.workers), (6, None, 8))

    def test_wrong_options_are_refused(self):
        for text in ("--faults kill,bite", "--faults kill,kill", "--engine hope", "--switch hope", "--faults switch",
                     "--workers 1", "--minutes 0", "--job a", "--every x", "--", "--seed -1", "--slow-rate 20"):  # fmt: skip
            err = io.StringIO()
            with self.subTest(text), contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
                self.parse(text)
            self.assertEqual(end.exception.code, 2)
            self.assertIn("allowed is", err.getvalue())

    def test_help_names_every_kind_and_law(self):
        text = options.make_parser().format_help()
        for name in (*schedule.KINDS, *options.LAWS):
            self.assertIn(f"  {name} ", text)
        self.assertLessEqual(max(map(len, options.listing(options.LAWS).splitlines())), 116)


class ExitCode(unittest.TestCase):
    def code(self, goodput_found, *broken):
        laws = {law: law not in broken for law in options.LAWS}
        return report.exit_code([{"laws": laws, "goodput": goodput_found, "goal": 0.9}])

    def test_a_broken_law_counts_more_than_a_missed_goal(self):
        self.assertEqual(self.code(0.9), 0)
        self.assertEqual(self.code(0.89), 3)
        self.assertEqual(self.code(None), 3)
        self.assertEqual(self.code(1, "ends"), 1)
        self.assertEqual(self.code(0, "no-hang"), 1)


if __name__ == "__main__":
    unittest.main()
