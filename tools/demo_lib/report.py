"""What the demo leaves: the table, summary.json, and the plot of accuracy over time."""
import json
import subprocess

import summary


def cell(value, form):
    return "-" if value is None else format(value, form)


def table(runs):
    """The runs as lines of text, one column per run."""
    idle = [[cell(share, ".0%") for share in run["idle_share"]] for run in runs]
    rows = [
        ("", [run["engine"] for run in runs]),
        (
            f"time to {runs[0]['target_accuracy']:.0%} test accuracy, s",
            [cell(r["time_to_target_s"], ".1f") for r in runs],
        ),
        ("final accuracy, after as many epochs", [cell(r["final_accuracy"], ".2%") for r in runs]),
        ("updates (groups) per second", [cell(r["updates_per_s"], ".2f") for r in runs]),
        (
            "  of the policy with free communication",
            [cell(summary.ratio(r["updates_per_s"], r["reference_updates_per_s"]), ".3f") for r in runs],
        ),
        (
            "  of the bound, (sum of 1/step)/P",
            [cell(summary.ratio(r["updates_per_s"], r["bound_updates_per_s"]), ".3f") for r in runs],
        ),
        ("duration, s", [cell(r["duration_s"], ".1f") for r in runs]),
    ]
    steps = runs[0]["step_s"]
    for rank, step in enumerate(steps):
        label = f"idle share of worker {rank} (step {1000 * step:.0f} ms)"
        rows.append((label, [shares[rank] if rank < len(shares) else "-" for shares in idle]))
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
set title "Fashion-MNIST, {workers} unequal workers: test accuracy of the averaged model"
set xlabel "training time, s"
set ylabel "test accuracy"
set yrange [{low}:{high}]
set xrange [0:*]
set format y "%.0f%%"
set grid lc rgb "#dddddd"
set key bottom right
plot {curves}, {target} with lines dt 2 lc rgb "#888888" title "target"
"""


def plot_script(curves, target, workers, output):
    """gnuplot's input. curves: (engine, evaluations)."""
    data = []
    plots = []
    for number, (engine, evaluations) in enumerate(curves):
        points = "\n".join(f"{e['time_s']} {100 * e['accuracy']:.2f}" for e in evaluations)
        data.append(f"$run{number} << END\n{points}\nEND\n")
        plots.append(f'$run{number} using 1:2 with lines lw 2 title "{engine}"')
    script = PLOT.format(
        output=output, workers=workers, curves=", ".join(plots), target=100 * target, low=60,
        high=min(100, max(92, 100 * target + 5)),
    )
    return "".join(data) + script


def plot(curves, target, workers, output):
    """Writes the plot as SVG. Raises subprocess.CalledProcessError with gnuplot's words in .stderr."""
    script = plot_script(curves, target, workers, output)
    subprocess.run(["gnuplot"], input=script, text=True, check=True, capture_output=True, timeout=60)
