"""The demo's figures: from what the workers wrote down to updates per second, idle shares and yardsticks.

Pure: values in, values out. Times in workers' logs are nanoseconds of the host's monotonic clock.
"""
import heapq
import json

HELD = 3  # evaluations in a row that make a target reached


class WorkerLog:
    """What prd-train --log wrote: .start, the first line; .steps, one dict per step; .finished.

    A last line without its end, which a worker that was killed leaves, is left out.
    """

    def __init__(self, lines):
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        if not records or "start_ns" not in records[0]:
            raise ValueError("a worker's log is empty")
        self.start = records[0]
        self.steps = [record for record in records[1:] if "group" in record]
        self.finished = any(record.get("finished") for record in records[1:])


# Yardsticks. step_s: how long each worker's own step takes, in seconds.


def bound_updates_per_s(step_s, group_size):
    """What no grouping can exceed: the workers' steps per second, divided by those that an update takes."""
    return sum(1 / s for s in step_s) / group_size


def all_reduce_updates_per_s(step_s):
    """All-reduce with free communication: every update waits for the slowest worker."""
    return 1 / max(step_s)


def fifo_updates_per_s(step_s, group_size, updates=4000):
    """Grouping in the order of readiness with free communication, measured over `updates` groups after as many.

    The same as FifoUpdatesPerSecond in tools/reference, which a test holds it to. In whole nanoseconds, so that
    equal times are equal whatever they were added up from.
    """
    step_ns = [int(s * 1e9) for s in step_s]
    computing = [(ns, worker, worker) for worker, ns in enumerate(step_ns)]  # (when ready, order of release, worker)
    heapq.heapify(computing)
    releases = len(step_s)
    waiting = []
    settled_at = 0
    formed = 0
    while True:
        now, _, worker = heapq.heappop(computing)
        waiting.append(worker)
        if len(waiting) < group_size:
            continue
        for member in waiting:
            heapq.heappush(computing, (now + step_ns[member], releases, member))
            releases += 1
        waiting.clear()
        formed += 1
        if formed == updates:
            settled_at = now
        if formed == 2 * updates:
            return updates * 1e9 / (now - settled_at)


def reference_updates_per_s(engine, step_s, group_size):
    """What the engine's policy gives with free communication, or None where there is no simulation of it."""
    if engine == "all-reduce":
        return all_reduce_updates_per_s(step_s)
    if engine == "p-reduce" and group_size:  # 0: groups have more members now and then
        return fifo_updates_per_s(step_s, min(group_size, len(step_s)))
    return None


def averages_models(plan):
    """Whether groups average models, under an engine's plan (`prd --engines-json`)."""
    return plan["reduces"] == "parameters"


def members_per_update(engine, workers, group_size, measured=None):
    """Steps that an update of an engines.Engine takes, or None where that is not known.

    `measured`: the mean group's size. Without groups each step is an update of its own.
    """
    if not engine.plan["trains_in_groups"]:
        return 1
    fixed = {"all-reduce": workers, "p-reduce": min(group_size, workers)}
    return fixed.get(engine.name, measured if averages_models(engine.plan) else None)


# Measurements.


def steady_window(logs, stop_ns, settle=0.1):
    """From when all workers are under way, less the first tenth, until they were told to stop."""
    start_ns = max(log.start["start_ns"] for log in logs)
    return start_ns + round(settle * (stop_ns - start_ns)), stop_ns


def within(log, window):
    """The log's steps that ended in the window."""
    return [step for step in log.steps if window[0] <= step["end_ns"] <= window[1]]


def is_whole(step):
    """Neither cut short, nor the beginning of a step that takes several passes."""
    return not step["discarded"] and not step.get("partial", False)


def updates_per_s(logs, window, plan):
    """Updates of the model per second in the window: groups, or rounds, or what each worker exchanged after a step.

    Between the first and the last, so that the window's edges do not count as waiting. None with fewer than two.
    """
    if not plan["trains_in_groups"]:
        rounds = sum(step["rounds"] for log in logs for step in within(log, window))
        return rounds / (window[1] - window[0]) * 1e9 if rounds else None
    if any(step["rounds"] > 1 for log in logs for step in log.steps):
        if averages_models(plan):
            return averages_per_s(logs, window)
        return rounds_per_s(max(logs, key=lambda log: len(within(log, window))), window)
    # Each group counts once, when its last member is through.
    completed = {}
    for log in logs:
        for step in log.steps:
            if step["rounds"] > 0:
                completed[step["group"]] = max(completed.get(step["group"], 0), step["end_ns"])
    times = sorted(t for t in completed.values() if window[0] <= t <= window[1])
    if len(times) < 2 or times[-1] == times[0]:
        return None
    return (len(times) - 1) / (times[-1] - times[0]) * 1e9


def rounds_per_s(log, window):
    """Rounds per second as one worker saw them, where all take part in all, and a step may end several."""
    steps = within(log, window)
    if len(steps) < 2 or steps[-1]["end_ns"] == steps[0]["end_ns"]:
        return None
    return sum(step["rounds"] for step in steps[1:]) / (steps[-1]["end_ns"] - steps[0]["end_ns"]) * 1e9


def averages(logs, window):
    """(averages, memberships) that steps in the window took part in, where a step may have been in several groups.

    A step tells the size of its newest group alone; the others count as that large.
    """
    steps = [step for log in logs for step in within(log, window) if step["rounds"] > 0 and step["members"] > 0]
    return sum(step["rounds"] / step["members"] for step in steps), sum(step["rounds"] for step in steps)


def averages_per_s(logs, window):
    count, _ = averages(logs, window)
    return count / (window[1] - window[0]) * 1e9 if count else None


def mean_members(logs, window):
    """Of a group in the window; None without one."""
    count, memberships = averages(logs, window)
    return memberships / count if count else None


def steps_per_s(logs, window):
    """Local steps of all workers per second in the window, without those that were cut short."""
    whole = sum(is_whole(step) for log in logs for step in within(log, window))
    return whole / (window[1] - window[0]) * 1e9 if window[1] > window[0] else None


def iterations_per_s(log, window):
    """How fast the worker's iteration rises, those that it skips among them; None with fewer than two steps."""
    steps = within(log, window)
    if len(steps) < 2 or steps[-1]["end_ns"] == steps[0]["end_ns"]:
        return None
    return (steps[-1]["iteration"] - steps[0]["iteration"]) / (steps[-1]["end_ns"] - steps[0]["end_ns"]) * 1e9


def sent_bytes_per_s(logs, window):
    """What all workers sent to each other, per second in the window."""
    sent = sum(step["sent_bytes"] for log in logs for step in within(log, window))
    return sent / (window[1] - window[0]) * 1e9 if window[1] > window[0] else None


def time_shares(log, window):
    """(idle, reducing): the shares of the worker's time in the window, 0 to 1; (None, None) without a step."""
    steps = within(log, window)
    wait = sum(step["wait_ns"] for step in steps)
    reduce = sum(step["reduce_ns"] for step in steps)
    total = wait + reduce + sum(step["compute_ns"] for step in steps)
    return (wait / total, reduce / total) if total > 0 else (None, None)


def steps_per_round(log, window):
    """Local steps that the worker makes per round or group whose result it applies; None without one."""
    steps = within(log, window)
    rounds = sum(step["rounds"] for step in steps)
    return sum(is_whole(step) for step in steps) / rounds if rounds else None


def late_share(log, window):
    """The share of the worker's steps that applied rounds without its own gradient; None without a step.

    Under eager-SGD that gradient is in a later round.
    """
    steps = [step for step in within(log, window) if step["rounds"] and not step["discarded"]]
    return sum(not step["included"] for step in steps) / len(steps) if steps else None


def time_to_target_s(evaluations, target, measure="accuracy"):
    """When the target was reached: at the first of HELD evaluations in a row that are at it or better. None if never.

    In a row, because a single reading can touch the target long before the model is there.
    """
    held = 0
    for i, evaluation in enumerate(evaluations):
        held = held + 1 if reached(evaluation[measure], target, measure) else 0
        if held == HELD:
            return evaluations[i - HELD + 1]["time_s"]
    return None


def reached(reading, target, measure):
    """A reading is at the target or better. One of None, which is not a number, never is."""
    if reading is None:
        return False
    return reading <= target if measure == "loss" else reading >= target


class Measured:
    """What is left of a run of an engines.Engine: history is what history.counts gives of it."""

    def __init__(self, engine, logs, evaluations, stop_ns, history):
        self.engine = engine
        self.logs = sorted(logs, key=lambda log: log.start["rank"])
        self.evaluations = evaluations
        self.window = steady_window(logs, stop_ns)
        self.history = of_schedule(history, self.logs, self.window) if history["scheduled"] else history


def of_schedule(history, logs, window):
    """Of a run whose workers drew their groups themselves: what of them is in no history is in the workers' logs."""
    steps = [step for log in logs for step in within(log, window) if step["rounds"] > 0]
    members = {step["group"]: step["members"] for step in steps}
    return {
        **history,
        "rounds": len(members),
        "mean_contributors": sum(members.values()) / len(members) if members else None,
        "conflicts": disagreements(logs, window),
    }


def disagreements(logs, window):
    """Groups that ended in the window, but not with as many workers as each of them took it to have.

    So a worker was drawn into two groups of one slot, or workers have drawn a slot in different ways.
    """
    ends, claims = {}, {}
    for log in logs:
        for step in log.steps:
            if step["rounds"] > 0:
                ends.setdefault(step["group"], []).append(step["end_ns"])
                claims.setdefault(step["group"], set()).add(step["members"])
    inside = [group for group, at in ends.items() if window[0] <= min(at) and max(at) <= window[1]]
    return sum(claims[group] != {len(ends[group])} for group in inside)


def classes(step_s):
    """The ranks of each class of workers, those whose steps last equally long; fast ones first."""
    return [[rank for rank, one in enumerate(step_s) if one == s] for s in sorted(set(step_s))]


def yardsticks(run, step_s, group_size, delayed):
    """What the updates per second are to be compared with. With injected delays, and with a batch of all workers,
    there is nothing yet."""
    if delayed or run.engine.job_options:
        return {"reference_updates_per_s": None, "bound_updates_per_s": None}
    # Where each step draws a group of its own, members take part in more than one per step.
    each_draws = run.engine.name == "ad-psgd" or run.engine.options.get("generator") == "random"
    measured = None if each_draws else mean_members(run.logs, run.window)
    members = members_per_update(run.engine, len(step_s), group_size, measured)
    return {
        "reference_updates_per_s": reference_updates_per_s(run.engine.name, step_s, group_size),
        "bound_updates_per_s": bound_updates_per_s(step_s, members) if members else None,
    }


def by_worker(run):
    """Figures of each worker, in lists by rank."""
    shares = [time_shares(log, run.window) for log in run.logs]
    return {
        "idle_share": [idle for idle, _ in shares],
        "reduce_share": [reduce for _, reduce in shares],
        "compute_share": [None if idle is None else 1 - idle - reduce for idle, reduce in shares],
        "steps_per_round": [steps_per_round(log, run.window) for log in run.logs],
        "iterations_per_s": [iterations_per_s(log, run.window) for log in run.logs],
        "late_share": [late_share(log, run.window) for log in run.logs],
    }


def summarize(run, measure, target, group_size, delayed):
    """One object of summary.json's `runs`, of a Measured.

    measure: "accuracy" or "loss", as evaluations have it; group_size: P of p-reduce, unless the engine says; delayed:
    the workers' steps had delays injected.
    """
    step_s = [log.start["step_ns"] / 1e9 for log in run.logs]
    group_size = int(run.engine.options.get("group_size", group_size))
    final = next((e for e in run.evaluations if e["final"]), None)
    return {
        "engine": run.engine.name,
        "spec": run.engine.text,
        "plan": run.engine.plan,
        "workers": len(run.logs),
        "measure": measure,
        f"target_{measure}": target,
        "time_to_target_s": time_to_target_s(run.evaluations, target, measure),
        "updates_per_s": updates_per_s(run.logs, run.window, run.engine.plan),
        **yardsticks(run, step_s, group_size, delayed),
        "steps_per_s": steps_per_s(run.logs, run.window),
        "sent_bytes_per_s": sent_bytes_per_s(run.logs, run.window),
        f"final_{measure}": final[measure] if final else None,
        "final_samples": final["samples"] if final else None,
        "duration_s": final["time_s"] if final else None,
        "group_size": members_per_update(
            run.engine, len(step_s), group_size, mean_members(run.logs, run.window)
        ),
        **run.history,
        "cut_short_steps": sum(step["discarded"] for log in run.logs for step in log.steps),
        "step_s": step_s,
        "classes": classes(step_s),
        **by_worker(run),
    }


def ratio(numerator, denominator):
    return numerator / denominator if numerator is not None and denominator else None


def comparison(runs):
    """What `runs` show against the first of them, as lines of text."""
    lines = []
    base = runs[0]
    for run in runs[1:]:
        measure = run["measure"]
        sooner = ratio(base["time_to_target_s"], run["time_to_target_s"])
        if sooner is not None:
            target = run[f"target_{measure}"]
            goal = f"a loss of {target:g}" if measure == "loss" else f"{target:.0%} test accuracy"
            lines.append(f"{run['spec']} reached {goal} {sooner:.1f} times sooner than {base['spec']}")
        more = ratio(run["steps_per_s"], base["steps_per_s"])
        if more is not None:
            lines.append(f"{run['spec']} made {more:.2f} times as many local steps per second as {base['spec']}")
        if run[f"final_{measure}"] is not None and base[f"final_{measure}"] is not None:
            change = run[f"final_{measure}"] - base[f"final_{measure}"]
            text = f"{change:+.2f}" if measure == "loss" else f"{100 * change:+.1f} points"
            lines.append(f"final {measure} of {run['spec']}, less that of {base['spec']}: {text}")
    return lines
