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
    if engine == "p-reduce":
        return fifo_updates_per_s(step_s, min(group_size, len(step_s)))
    return None


# Measurements.


def steady_window(logs, stop_ns, settle=0.1):
    """From when all workers are under way, less the first tenth, until they were told to stop."""
    start_ns = max(log.start["start_ns"] for log in logs)
    return start_ns + round(settle * (stop_ns - start_ns)), stop_ns


def updates_per_s(logs, window):
    """Groups completed per second in the window: each counts once, when its last member is through.

    Between the first completion and the last, so that the window's edges do not count as waiting.
    None with fewer than two.
    """
    completed = {}
    for log in logs:
        for step in log.steps:
            completed[step["group"]] = max(completed.get(step["group"], 0), step["end_ns"])
    times = sorted(t for t in completed.values() if window[0] <= t <= window[1])
    if len(times) < 2 or times[-1] == times[0]:
        return None
    return (len(times) - 1) / (times[-1] - times[0]) * 1e9


def time_shares(log, window):
    """(idle, reducing): the shares of the worker's time in the window, 0 to 1; (None, None) without a step."""
    steps = [step for step in log.steps if window[0] <= step["end_ns"] <= window[1]]
    wait = sum(step["wait_ns"] for step in steps)
    reduce = sum(step["reduce_ns"] for step in steps)
    total = wait + reduce + sum(step["compute_ns"] for step in steps)
    return (wait / total, reduce / total) if total > 0 else (None, None)


def mean_members(logs, window):
    """Members per group, as the mean over groups; None without a group."""
    members = {s["group"]: s["members"] for log in logs for s in log.steps if window[0] <= s["end_ns"] <= window[1]}
    return sum(members.values()) / len(members) if members else None


def time_to_target_s(evaluations, target):
    """When the target was reached: at the first of HELD evaluations in a row that are at it or above. None if never.

    In a row, because a single reading can touch the target long before the model is there.
    """
    held = 0
    for i, evaluation in enumerate(evaluations):
        held = held + 1 if evaluation["accuracy"] >= target else 0
        if held == HELD:
            return evaluations[i - HELD + 1]["time_s"]
    return None


def summarize(engine, logs, evaluations, stop_ns, target, group_size):
    """One object of summary.json's `runs`."""
    logs = sorted(logs, key=lambda log: log.start["rank"])
    window = steady_window(logs, stop_ns)
    step_s = [log.start["step_ns"] / 1e9 for log in logs]
    members = {"all-reduce": len(logs), "p-reduce": min(group_size, len(logs))}.get(engine)
    members = members or mean_members(logs, window)
    final = next((e for e in evaluations if e["final"]), None)
    shares = [time_shares(log, window) for log in logs]
    return {
        "engine": engine,
        "workers": len(logs),
        "target_accuracy": target,
        "time_to_target_s": time_to_target_s(evaluations, target),
        "updates_per_s": updates_per_s(logs, window),
        "reference_updates_per_s": reference_updates_per_s(engine, step_s, group_size),
        "bound_updates_per_s": bound_updates_per_s(step_s, members) if members else None,
        "idle_share": [idle for idle, _ in shares],
        "reduce_share": [reduce for _, reduce in shares],
        "final_accuracy": final["accuracy"] if final else None,
        "final_samples": final["samples"] if final else None,
        "duration_s": final["time_s"] if final else None,
        "group_size": members,
        "step_s": step_s,
    }


def ratio(numerator, denominator):
    return numerator / denominator if numerator is not None and denominator else None


def comparison(runs):
    """What `runs` show against the first of them, as lines for people."""
    lines = []
    base = runs[0]
    for run in runs[1:]:
        sooner = ratio(base["time_to_target_s"], run["time_to_target_s"])
        if sooner is not None:
            lines.append(
                f"{run['engine']} reached {run['target_accuracy']:.0%} test accuracy "
                f"{sooner:.1f} times sooner than {base['engine']}"
            )
        if run["final_accuracy"] is not None and base["final_accuracy"] is not None:
            points = 100 * (run["final_accuracy"] - base["final_accuracy"])
            lines.append(f"final accuracy of {run['engine']}, after as many epochs: {points:+.1f} points")
    return lines
