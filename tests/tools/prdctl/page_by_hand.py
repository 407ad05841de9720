#!/usr/bin/env python3
"""How soon the page of `prdctl serve` is seen, and what it costs while a browser watches it.

Not among the tests, since it measures: tests/tools/prdctl/page_by_hand.py [BIN_DIR [SECONDS]]
Prints the first paint (first-contentful-paint of the browser), the first picture of the workers' lines, and the shares of a core
that prdctl serve and prd take, watched and not watched: of a live job of 8 workers that was switched twice, and of a
simulated history of 1,000. PRD_SCREENSHOTS=DIR keeps pictures, light and dark.
"""
import os
import pathlib
import sys
import time

import browser
import serve_test
from serve_test import cluster

BIN = serve_test.BIN  # which has taken it from sys.argv
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 30
PAINT = 'performance.getEntriesByName("first-contentful-paint").map((e) => e.startTime)[0]'
SHOWN = "state.line ? performance.now() : 0"  # at most 0.1 s late


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shares(pids, seconds):
    """Percent of a core, by name."""
    before, begun = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    return {name: 100 * (cpu_s(pid) - before[name]) / (time.monotonic() - begun) for name, pid in pids.items()}


def told(text, pids, found):
    print(f"{text}: " + ", ".join(f"{name} {found[name]:.1f} % of a core" for name in pids), flush=True)


def watched(what, server, pids):
    with browser.Browser() as page:
        page.open(server.url)
        paint, shown = page.wait_for(PAINT), page.wait_for(SHOWN)
        print(f"{what}: first paint {paint:.0f} ms, first picture {shown:.0f} ms", flush=True)
        page.wait_for("state.summary && state.summary.whole")
        time.sleep(2)
        told(f"{what}, watched", pids, shares(pids, SECONDS))
        bytes_ = page.evaluate('performance.getEntriesByType("resource").reduce((sum, e) => sum + e.transferSize, 0)')
        print(f"{what}: {bytes_ / 1e3:.0f} kB for the browser since the page began", flush=True)
        pictures(what, page)


def pictures(what, page):
    if not os.environ.get("PRD_SCREENSHOTS"):
        return
    page.evaluate("whole(), nextSwitch()")
    for theme in ("light", "dark"):
        page.evaluate(f"theme('{theme}')")
        time.sleep(1.5)
        page.screenshot(f"{os.environ['PRD_SCREENSHOTS']}/{what.replace(' ', '-').replace(',', '')}-{theme}.png")


def live():
    job = '[[job]]\nname = "toy"\nengine = "p-reduce"\nworkers = 8\n[job.p-reduce]\ngroup_size = 3\n'
    with cluster.Cluster(BIN, job) as c:
        workers = [c.worker(rank, steps=10**7, step_ms=50 * (1 + 2 * (rank == 7))) for rank in range(8)]
        for worker in workers:
            worker.wait_for(lambda line: line.get("step") == 20, "steps")
        for engine in ("all-reduce", "p-reduce"):
            c.prdctl("switch", "toy", engine, *(["group_size=3"] if engine == "p-reduce" else []), "--reason", "to see what it costs")
            for worker in workers:
                worker.wait_for(lambda line: line.get("engine") == engine and "step" in line, f"a step under {engine}")
            time.sleep(5)
        with serve_test.Server(source=["--admin", c.admin]) as server:
            pids = {"prdctl serve": server.process.pid, "prd": c.daemon.pid}
            told("live job of 8, not watched", pids, shares(pids, SECONDS))
            watched("live job of 8", server, pids)


def history():
    with serve_test.Server(workers=1000, steps=20) as server:
        watched("history of 1,000 workers", server, {"prdctl serve": server.process.pid})


if __name__ == "__main__":
    print(f"load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores")
    live()
    history()
