"""What a run says: a JSON line per event in a file, a line on the terminal, the table and the summary at the end."""
import json
import sys


class Log:
    """Of one run."""

    def __init__(self, path, stream):
        self._file = open(path, "w", encoding="utf-8")
        self._stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def event(self, time_s, event, text, **fields):
        """time_s: since the first fault could come; None: before."""
        line = {"time_s": None if time_s is None else round(time_s, 3), "event": event, **fields, "text": text}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        clock = "" if time_s is None else f"{time_s:.1f} s"
        print(f"{clock:>10}  {text}", file=self._stream, flush=True)


def cells(result):
    """A row of the table."""

    def number(key, text):
        return "-" if result.get(key) is None else text.format(result[key])

    broken = [law for law, holds in result["laws"].items() if not holds]
    gaps = result.get("longest_gap_s")
    return {
        "engine": result["engine"],
        "faults": str(sum(result["faults"].values())),
        "baseline steps/s": number("baseline_steps_per_s", "{:.1f}"),
        "live share": number("live_share", "{:.3f}"),
        "goodput": number("goodput", "{:.3f}"),
        "pace at a cut link": number("cut_pace", "{:.2f}"),
        "longest gap": f"{max(gaps):.1f} s" if gaps else "-",
        "laws broken": ", ".join(broken) or ("none" if result["whole"] else "none so far"),
    }


def table(results):
    """Lines of text."""
    rows = [cells(result) for result in results]
    if not rows:
        return []
    columns = [c for c in rows[0] if any(row[c] != "-" for row in rows)]
    widths = {c: max(len(c), *(len(row[c]) for row in rows)) for c in columns}
    lines = ["  ".join(c.ljust(widths[c]) for c in columns).rstrip()]
    lines += ["  ".join(row[c].ljust(widths[c]) for c in columns).rstrip() for row in rows]
    for result in results:
        if result.get("lost_s"):
            parts = ", ".join(f"{seconds:.1f} s {('after ' + kind) if kind else 'before any'}" for kind, seconds in result["lost_s"].items())
            lines.append(f"{result['engine']}: live time of the whole job without steps: {parts}")
        for law, found in result["findings"].items():
            lines.append(f"{result['engine']}: {law}: {len(found)} times; first: {found[0].splitlines()[0]}")
    return lines


def exit_code(results):
    """0: the laws hold, and the goodput is as high as its goal; 1: a law is broken; 3: only the goal is missed."""
    if not all(holds for result in results for holds in result["laws"].values()):
        return 1
    return 3 if any((result["goodput"] or 0) < result["goal"] for result in results) else 0


def write(path, results, as_json):
    path.write_text(json.dumps({"runs": results}, indent=1) + "\n", encoding="utf-8")
    if as_json:
        for result in results:
            print(json.dumps(result), file=sys.stdout, flush=True)
