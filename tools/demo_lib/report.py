"""What the demo leaves: the table, summary.json, and the plot of accuracy over time."""
import json
import subprocess

import summary


def cell(value, form):
    return "-" if value is None else format(value, form)


def spread(values, form):
    """The least and the most of a class of workers, or the one that all have."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low}-{high}"


def model_rows(runs):
    """How well it was learned, and when."""
    measure = runs[0]["measure"]
    target = runs[0][f"target_{measure}"]
    goal = f"a held-out loss of {target:g}" if measure == "loss" else f"{target:.0%} test accuracy"
    return [
        (f"time to {goal}, s", [cell(r["time_to_target_s"], ".1f") for r in runs]),
        (f"final {measure}", [cell(r[f"final_{measure}"], ".3f" if measure == "loss" else ".2%") for r in runs]),
        ("duration, s", [cell(r["duration_s"], ".1f") for r in runs]),
    ]


def rate_rows(runs):
    """How fast it went, and beside what. Where there is no yardstick, there is a dash."""
    references = [summary.ratio(r["updates_per_s"], r["reference_updates_per_s"]) for r in runs]
    bounds = [summary.ratio(r["updates_per_s"], r["bound_updates_per_s"]) for r in runs]
    return [
        ("updates (groups, rounds, exchanges) per second", [cell(r["updates_per_s"], ".2f") for r in runs]),
        ("  of the policy with free communication", [cell(value, ".3f") for value in references]),
        ("  of the bound, (sum of 1/step)/P", [cell(value, ".3f") for value in bounds]),
        ("local steps per second, all workers", [cell(r["steps_per_s"], ".1f") for r in runs]),
        ("sent between workers, MB/s", [cell(summary.ratio(r["sent_bytes_per_s"], 1e6), ".2f") for r in runs]),
    ]


def conflicts(run):
    return run["conflicts"] if run["plan"]["drawn_ahead"] else None


def rounds(run):
    return run["rounds"] if run["plan"]["trains_in_groups"] else None


def ahead(run):
    return "-" if run["mean_ahead"] is None else f"{run['mean_ahead']:.1f} ({run['most_ahead']})"


def round_rows(runs):
    """What rounds were made of. What no run has seen has no row."""
    rows = [
        ("groups or rounds completed", [cell(rounds(r), "d") for r in runs]),
        ("contributors per round, mean", [cell(r["mean_contributors"], ".2f") for r in runs]),
        ("conflicts (overlapping groups, one after another)", [cell(conflicts(r), "d") for r in runs]),
        ("updates dropped", [cell(r["dropped_updates"] or None, "d") for r in runs]),
        ("  not sent, their receiver being past them", [cell(r["suppressed_updates"] or None, "d") for r in runs]),
        ("iterations skipped", [cell(r["skipped_iterations"] or None, "d") for r in runs]),
        ("iterations ahead of the slowest, mean (most)", [ahead(r) for r in runs]),
        ("steps cut short", [cell(r["cut_short_steps"] or None, "d") for r in runs]),
    ]
    return [row for row in rows if set(row[1]) != {"-"}]


def class_rows(runs):
    """How each class of workers spent its time, and what became of its steps."""
    rows = []
    for ranks in runs[0]["classes"]:
        who = f"{len(ranks)} workers" if len(ranks) > 1 else f"worker {ranks[0]}"
        who += f" (step {1000 * runs[0]['step_s'][ranks[0]]:g} ms)"

        def of_class(key, form, ranks=ranks):
            return [spread([r[key][rank] for rank in ranks if rank < r["workers"]], form) for r in runs]

        rows.append((f"{who}: waiting", of_class("idle_share", ".0%")))
        rows.append(("  computing", of_class("compute_share", ".0%")))
        rows.append(("  reducing", of_class("reduce_share", ".0%")))
        rows.append(("  local steps per round", of_class("steps_per_round", ".2f")))
        if not all(r["plan"]["trains_in_groups"] for r in runs):
            rows.append(("  iterations per second", of_class("iterations_per_s", ".1f")))
        if any(r["late_share"][rank] for r in runs for rank in ranks if rank < r["workers"]):
            rows.append(("  gradients too late for their round", of_class("late_share", ".0%")))
    return rows


def table(runs):
    """The runs as lines of text, one column per run."""
    rows = [("", [run["spec"] for run in runs])]
    rows += model_rows(runs) + rate_rows(runs) + round_rows(runs) + class_rows(runs)
    width = max(len(label) for label, _ in rows)
    columns = [max(len(row[1][i]) for row in rows) for i in range(len(runs))]
    return [
        f"{label:<{width}}" + "".join(f"  {text:>{columns[i]}}" for i, text in enumerate(texts))
        for label, texts in rows
    ]


def write_summary(path, runs, about):
    """about: what else a reader of the figures must know (machine, settings)."""
    path.write_text(json.dumps({"runs": runs, **about}, indent=2) + "\n")


PLOT = """\
set terminal svg size 860,520 dynamic enhanced font "sans-serif,14" background "white"
set output "{output}"
set title "{title}"
set xlabel "training time, s"
set xrange [0:*]
{axis}
set grid lc rgb "#dddddd"
plot {curves}, {target} with lines dt 2 lc rgb "#888888" title "target"
"""

AXES = {
    "accuracy": """\
set ylabel "test accuracy"
set yrange [{low}:{high}]
set format y "%.0f%%"
set key bottom right""",
    "loss": """\
set ylabel "mean squared error"
set logscale y
set key top right""",
}


def plot_script(curves, measure, target, workers, output):
    """gnuplot's input. curves: (engine, evaluations)."""
    scale = 100 if measure == "accuracy" else 1
    data = []
    plots = []
    for number, (engine, evaluations) in enumerate(curves):
        readings = [(e["time_s"], e[measure]) for e in evaluations if e[measure] is not None]
        points = "\n".join(f"{time_s} {scale * reading:.2f}" for time_s, reading in readings)
        data.append(f"$run{number} << END\n{points}\nEND\n")
        plots.append(f'$run{number} using 1:2 with lines lw 2 title "{engine}" noenhanced')
    what = "Fashion-MNIST" if measure == "accuracy" else "Hyperplane regression"
    test = "test accuracy" if measure == "accuracy" else "held-out loss"
    script = PLOT.format(
        output=output, title=f"{what}, {workers} unequal workers: {test} of the averaged model",
        curves=", ".join(plots), target=scale * target,
        axis=AXES[measure].format(low=60, high=min(100, max(92, 100 * target + 5))),
    )  # fmt: skip
    return "".join(data) + script


def plot(curves, measure, target, workers, output):
    """Writes the plot as SVG. Raises subprocess.CalledProcessError with gnuplot's words in .stderr."""
    script = plot_script(curves, measure, target, workers, output)
    subprocess.run(["gnuplot"], input=script, text=True, check=True, capture_output=True, timeout=60)
