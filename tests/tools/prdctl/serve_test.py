#!/usr/bin/env python3
"""`prdctl serve`: who is answered and how, what the page may do, and the page in a browser where there is one.

Usage: serve_test.py BIN_DIR [TEST ...]. PRD_SCREENSHOTS=DIR keeps pictures.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

import browser

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration"))
import cluster

BIN = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/bin"
PAGE = pathlib.Path(__file__).resolve().parents[3] / "tools/prdctl/page"
DEADLINE_S = 60
CHROMIUM = browser.PROGRAM
EVIL = "<img src=x onerror=alert(1)>"


class Server:
    """prdctl serve on the history of a simulated run, or of `source` (options of prdctl)."""

    def __init__(self, workers=4, steps=10, engine="p-reduce", job="mnist", source=None):
        self.dir = tempfile.mkdtemp(prefix="prd-serve-")
        if source is None:
            source = ["--state-dir", f"{self.dir}/state"]
            subprocess.run([f"{BIN}/sim_history", source[1], engine, str(workers), str(steps), job], check=True, timeout=DEADLINE_S)
        self.process = subprocess.Popen([f"{BIN}/prdctl", *source, "--json", "serve", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.process.stdout.readline())["url"]
        parsed = urllib.parse.urlparse(self.url)
        self.port, self.base = parsed.port, parsed.path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(DEADLINE_S)
        self.process.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def ask(self, path, method="GET", host=None, headers=None, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def api(self, path):
        status, headers, text = self.ask(f"{self.base}api/{path}")
        assert status == 200, (path, status, text)
        assert headers["Content-Type"] == "application/json", headers
        return json.loads(text)

    def whole(self, run=1):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if self.api("runs")["runs"]:
                told = self.api(f"run?run={run}")
                if told["whole"]:
                    return told
            time.sleep(0.05)
        raise AssertionError("the run is not read")


    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024


class SlowConnections:
    """Bring a head byte by byte, without a token, for as long as this lasts."""

    def __init__(self, port, count):
        self.port, self.over = port, threading.Event()
        self.sockets = [self.open() for _ in range(count)]
        self.thread = threading.Thread(target=self.drip)

    def open(self):
        slow = socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)
        slow.setblocking(False)
        slow.send(b"GET / HTTP/1.1\r\n")
        return slow

    def drip(self):
        while not self.over.wait(0.05):
            for i, slow in enumerate(self.sockets):
                try:
                    slow.send(b"X")
                except OSError:
                    slow.close()
                    self.sockets[i] = self.open()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        for slow in self.sockets:
            slow.close()


# Sends one of these without an end, until it is stopped or so much has gone: PORT MIB MODE. Prints how many bytes that were.
ENDLESS = """
import socket, sys
port, mib, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
first = b"GET / HTTP/1.1\\r\\nHost: 127.0.0.1:%d\\r\\n" % port
line = 65536 * b"a"
headers = b"".join(b"X-%05d: %s\\r\\n" % (i, 40 * b"a") for i in range(1200))
first, then = {"line": (first + b"X-A: ", line), "headers": (first, headers), "uri": (b"GET /", line),
               "body": (first.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\\r\\n\\r\\n", b"10000\\r\\n" + line + b"\\r\\n")}[mode]
sent = 0
try:
    s = socket.create_connection(("127.0.0.1", port), 10)
    s.sendall(first)
    while sent < mib << 20:
        s.sendall(then)
        sent += len(then)
except OSError:
    pass
print(sent)
"""


class Serving(unittest.TestCase):
    def test_page_and_its_headers(self):
        with Server() as s:
            kinds = {"": "text/html", "app.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
            for name, kind in kinds.items():
                status, headers, text = s.ask(s.base + name)
                self.assertEqual(status, 200, name)
                self.assertTrue(headers["Content-Type"].startswith(kind), headers)
                self.assertEqual(text, (PAGE / (name or "index.html")).read_bytes(), name)
                policy = headers["Content-Security-Policy"]
                self.assertTrue(policy.startswith("default-src 'none'; script-src 'self';"), policy)
                self.assertNotIn("unsafe", policy)
                self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
                self.assertEqual(headers["Referrer-Policy"], "no-referrer")
                self.assertEqual(headers["Cross-Origin-Resource-Policy"], "same-origin")
            # Whoever has no token, asks under another name (DNS rebinding), from another site, or wants to change something.
            for path in ("/", "/api/runs", "/app.js", "/" + 32 * "0" + "/", s.base + "../state", s.base + "nothing"):
                self.assertEqual(s.ask(path)[0], 404, path)
            for host in ("evil.example", f"evil.example:{s.port}", "127.0.0.1", "127.0.0.1:1", ""):
                self.assertEqual(s.ask(s.base, host=host or " ")[0], 403, host)
            self.assertEqual(s.ask(s.base, headers={"Sec-Fetch-Site": "cross-site"})[0], 403)
            self.assertEqual(s.ask(s.base, host=f"localhost:{s.port}")[0], 200)
            status, headers, text = s.ask(s.base + "app.js", method="HEAD")
            self.assertEqual((status, int(headers["Content-Length"]), text), (200, (PAGE / "app.js").stat().st_size, b""))
            status, _, text = s.ask(s.base + "app.js", headers={"Range": "bytes=0-9," * 1000})
            self.assertEqual((status, text), (200, (PAGE / "app.js").read_bytes()))
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
                self.assertEqual(s.ask(s.base + "api/runs", method=method)[0], 405, method)
            self.assertIn(s.ask(s.base + "api/runs", method="POST", body=b"x" * 100_000)[0], (405, 413))
            self.assertGreaterEqual(s.ask(s.base + "x" * 20_000)[0], 400)
            self.assertEqual(s.ask(s.base)[0], 200)
        for listen in ("0.0.0.0:0", "10.0.0.1:0", "127.0.0.1", "127.0.0.1:99999", "[::]:0"):
            done = subprocess.run([f"{BIN}/prdctl", "--state-dir", "/nonexistent", "serve", "--listen", listen], capture_output=True, text=True, timeout=30)
            self.assertNotEqual(done.returncode, 0, listen)

    def test_a_head_and_connections_have_bounds(self):
        with Server() as s:
            self.assertEqual(s.ask(s.base + "api/runs")[0], 200)
            before = s.resident_mib()
            for user in [0, 65534] if os.geteuid() == 0 else [None]:
                for mode in ("line", "headers", "uri", "body"):
                    sent = int(subprocess.run(["/usr/bin/python3", "-c", ENDLESS, str(s.port), "64", mode], capture_output=True, check=True, timeout=DEADLINE_S,
                                              user=user, text=True).stdout)  # fmt: skip
                    self.assertLess(sent, 8 << 20, mode)
            self.assertLess(s.resident_mib(), before + 8)
            for count in (12, 200):
                with SlowConnections(s.port, count):
                    for path in 10 * ("", "app.js", "api/runs"):
                        connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=3)
                        connection.request("GET", s.base + path)
                        self.assertEqual(connection.getresponse().status, 200, (path, count))
                        connection.close()
            self.assertLess(s.resident_mib(), before + 16)

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user")
    def test_other_users_are_not_read(self):
        ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).status)"
        with Server() as s:
            done = {user: subprocess.run(["/usr/bin/python3", "-c", ask, s.url], capture_output=True, timeout=DEADLINE_S, user=user, text=True) for user in (0, 65534)}
            self.assertEqual(done[0].stdout, "200\n", done[0].stderr)
            self.assertNotEqual(done[65534].returncode, 0)
            self.assertRegex(done[65534].stderr, "RemoteDisconnected|ConnectionReset|BrokenPipe")

    def test_a_port_is_one_servers(self):
        with Server() as s:
            done = subprocess.run([f"{BIN}/prdctl", "--state-dir", f"{s.dir}/state", "serve", "--listen", f"127.0.0.1:{s.port}"],
                                  capture_output=True, text=True, timeout=DEADLINE_S)  # fmt: skip
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("cannot be listened on; is the port taken?", done.stderr)
            self.assertEqual(s.ask(s.base)[0], 200)

    def test_answers(self):
        with Server(workers=4, steps=20) as s:
            run = s.whole()
            self.assertEqual((run["run"]["job"], run["over"], run["steps"]), ("mnist", True, 80))
            self.assertEqual(sum(run["series"]["steps"]), 80)
            self.assertEqual(len(run["workers"]), 4)
            stragglers = json.loads(subprocess.run([f"{BIN}/prdctl", "--state-dir", f"{s.dir}/state", "--json", "stragglers"],
                                                   capture_output=True, check=True, timeout=30).stdout)  # fmt: skip
            costs = {w["rank"]: w["cost_others_ns"] / 1e9 for w in stragglers["workers"]}
            for worker in run["pace"]["workers"]:
                self.assertAlmostEqual(worker["cost_s"], costs[worker["rank"]], places=6)
            line = s.api(f"timeline?run=1&from=0&to={run['now_s']}&width=1000")
            self.assertEqual([row["first"] for row in line["rows"]], [0, 1, 2, 3])
            for row in line["rows"]:
                kinds = {span[2] for span in row["spans"]}
                self.assertLessEqual({"c", "r"}, kinds, row)
                computed = sum(span[1] - span[0] for span in row["spans"] if span[2] == "c")
                own = next(w for w in run["pace"]["workers"] if w["rank"] == row["first"])
                self.assertAlmostEqual(computed, own["computed_s"], delta=0.05 * own["computed_s"])
            part = s.api("timeline?run=1&from=0.1&to=0.2&width=1000")
            self.assertLess(len(part["rows"][1]["spans"]), len(line["rows"][1]["spans"]))
            groups = s.api(f"groups?run=1&to={run['now_s']}")["groups"]
            self.assertEqual(groups[0]["kind"], "final")
            self.assertEqual([g["formed_s"] for g in groups], sorted((g["formed_s"] for g in groups), reverse=True))
            self.assertTrue(all(g["reason"] for g in groups))
            self.assertTrue(all(2 in g["members"] for g in s.api("groups?run=1&to=99&rank=2")["groups"]))
            wrong = ["run", "run?run=", "run?run=-1", "run?run=1x", "run?run=" + "9" * 30, "timeline?run=1", "timeline?run=1&from=nan&to=1&width=9",
                     "timeline?run=1&from=2&to=1&width=9", "timeline?run=1&from=0&to=1e99&width=9", "timeline?run=1&from=0&to=1&width=0",
                     "groups?run=1&to=inf", "groups?run=1&to=1&rank=-2", "groups?run=1&to=1&rank=x"]  # fmt: skip
            for path in wrong:
                self.assertEqual(s.ask(f"{s.base}api/{path}")[0], 400, path)
            self.assertEqual(s.ask(f"{s.base}api/run?run=7")[0], 404)

    def test_text_of_workers_is_no_markup(self):
        for name in ("app.js", "index.html"):
            text = (PAGE / name).read_text()
            ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|eval\(|new Function|setAttribute\(\"on|https?://|srcdoc"
            self.assertEqual(re.findall(ways, text), [], name)
        self.assertNotRegex((PAGE / "index.html").read_text(), r"<script>|<style>|\son\w+=|style=")
        with Server(job=EVIL) as s:
            self.assertEqual(s.whole()["run"]["job"], EVIL)
            status, headers, text = s.ask(s.base + "api/runs")
            self.assertEqual((status, headers["Content-Type"], headers["X-Content-Type-Options"]), (200, "application/json", "nosniff"))
            if CHROMIUM:
                dom = self.browser(s, ["--dump-dom"])
                self.assertIn("&lt;img src=x onerror=alert(1)&gt;", dom)
                self.assertNotIn("<img src=\"x\"", dom)
                self.assertNotIn("<img src=x", dom)

    def test_many_workers_in_a_browser(self):
        with Server(workers=300, steps=10) as s:
            run = s.whole()
            line = s.api(f"timeline?run=1&from=0&to={run['now_s']}&width=1200")
            self.assertLessEqual(len(line["rows"]), 256)
            self.assertEqual((line["rows"][0]["first"], line["rows"][-1]["last"]), (0, 299))
            self.assertEqual({len(row["cells"]) for row in line["rows"]}, {600})
            self.assertLessEqual(len(run["graph"]["fields"]), 64)
            if not CHROMIUM:
                self.skipTest("no chromium")
            dom = self.browser(s, ["--dump-dom"])
            self.assertIn("Run 1 under p-reduce, over after", dom)
            self.assertRegex(dom, r"rank \d+")
            self.assertIn('<p id="banner" role="status" hidden="">', dom)

    @unittest.skipUnless(CHROMIUM, "no chromium")
    def test_the_keyboard_is_enough(self):
        with Server(workers=4, steps=20) as s, browser.Browser() as page:
            page.open(s.url)
            page.wait_for("state.groups.length && state.summary.whole && !state.fresh")
            page.wait_for("!asking")

            def focus():
                return page.evaluate("((e) => e.id || [(e.closest('[id]') || e).id, e.ariaLabel || e.tagName].join(' '))(document.activeElement)")

            # Tab goes through all of the page, in its order, and what has the focus is seen to have it.
            stops, outlines = [], set()
            for _ in range(13):
                page.press("Tab")
                stops.append(focus())
                outlines.add(page.evaluate("(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle + ' ' + s.outlineWidth; })()"))
            self.assertEqual(stops, ["skip", "runs BUTTON", "theme", "help-open", "back", "in", "out", "forth", "all", "live", "lanes", "groups TR", " Workers"])
            self.assertEqual(outlines, {"solid 2px"})
            self.assertEqual(page.evaluate("document.querySelectorAll('[tabindex]:not([tabindex=\"-1\"]):not([tabindex=\"0\"])').length"), 0)
            # The first stop leads past the list of runs.
            page.evaluate("document.activeElement.blur(), document.getElementById('skip').focus()")
            page.press("Enter")
            self.assertEqual(focus(), "lanes")
            # Time: back and forth, closer and further, all of it.
            window = "[state.from, state.to]"
            page.press("A")
            whole = page.evaluate(window)
            self.assertAlmostEqual(whole[1] - whole[0], page.evaluate("state.summary.now_s"), delta=0.05)
            page.press("+", "+")
            near = page.evaluate(window)
            self.assertAlmostEqual(near[1] - near[0], (whole[1] - whole[0]) / 4, delta=0.05)
            page.press("ArrowLeft")
            left = page.evaluate(window)
            self.assertAlmostEqual(near[0] - left[0], (near[1] - near[0]) / 4, places=3)
            page.press("ArrowRight")
            self.assertAlmostEqual(page.evaluate(window)[0], near[0], places=3)
            page.press("-")
            self.assertGreater(page.evaluate("state.to - state.from"), 1.5 * (near[1] - near[0]))
            # A worker's line, and what it does in the middle of the window.
            page.press("A", "ArrowDown", "ArrowDown")
            self.assertRegex(page.evaluate("document.getElementById('tip').innerText"), r"^rank 1 at \d+:\d\d\.\d\n")
            page.press("Escape")
            self.assertTrue(page.evaluate("document.getElementById('tip').hidden"))
            # Groups: the newest first, one after another; what was drawn again meanwhile has the focus still. They are those
            # of the window, which has changed above.
            page.wait_for("!asking")
            page.evaluate("tick()")
            page.wait_for("!asking")
            page.press("Tab", "ArrowDown", "ArrowDown")
            chosen = page.evaluate("state.groups[2].group")
            self.assertEqual(page.evaluate("[state.group.group, Number(document.activeElement.children[0].textContent)]"), [chosen, chosen])
            page.evaluate("tick()")
            page.wait_for("!asking")
            self.assertEqual(page.evaluate("Number(document.activeElement.children[0].textContent)"), chosen)
            # All keys stand in the list, which a key opens and Escape closes.
            page.press("?", shift=True)
            page.wait_for("document.getElementById('help').open")
            listed = page.evaluate("[...document.querySelectorAll('#keys kbd')].map((key) => key.textContent)")
            self.assertEqual(listed, ["←", "→", "+", "-", "A", "L", "J", "K", "S", "T", "?", "Tab", "↑", "↓", "Esc"])
            page.press("Escape")
            page.wait_for("!document.getElementById('help').open")
            before = page.evaluate("document.documentElement.dataset.theme")
            page.press("T")
            self.assertNotEqual(page.evaluate("document.documentElement.dataset.theme"), before)
            page.press("L")
            self.assertTrue(page.evaluate("state.live"))
            self.picture(page)

    def test_a_paused_job_says_who_paused_it(self):
        with cluster.Cluster(BIN, '[[job]]\nname = "toy"\nengine = "all-reduce"\nworkers = 2\n') as c:
            for worker in [c.worker(rank, steps=100_000, step_ms=20) for rank in range(2)]:
                worker.wait_for(lambda line: line.get("step") == 3, "step 3")
            with Server(source=["--admin", c.admin]) as s:
                self.assertEqual([s.whole()[what] for what in ("paused", "acts")], [None, []])
                c.prdctl("pause", "toy", "--reason", EVIL)
                end = time.monotonic() + DEADLINE_S
                while not (run := s.api("run?run=1"))["paused"]:
                    self.assertLess(time.monotonic(), end)
                self.assertRegex(run["paused"]["by"], "^user ")
                self.assertEqual((run["paused"]["reason"], run["acts"][0]["what"]), (EVIL, "pause"))
                if CHROMIUM:
                    with browser.Browser() as page:
                        page.open(s.url)
                        page.wait_for("!document.getElementById('paused').hidden")
                        said = page.evaluate("document.getElementById('paused').innerText")
                        self.assertRegex(said, r"^Paused by user .* for .*: " + re.escape(EVIL) + r"\. prdctl resume toy lets it go on\.$")
                        self.assertIn("pause by user", page.evaluate("document.getElementById('acts').innerText"))
                        self.picture(page)
                c.prdctl("resume", "toy")
                while s.api("run?run=1")["paused"]:
                    self.assertLess(time.monotonic(), end)

    def test_a_worker_that_is_gone_says_why(self):
        with cluster.Cluster(BIN, '[[job]]\nname = "toy"\nengine = "all-reduce"\nworkers = 2\n') as c:
            workers = [c.worker(rank, steps=100_000, step_ms=20) for rank in range(2)]
            for worker in workers:
                worker.wait_for(lambda line: line.get("step") == 3, "step 3")
            workers[1].process.kill()
            with Server(source=["--admin", c.admin]) as s:
                s.whole()
                end = time.monotonic() + DEADLINE_S
                while not (there := s.api("timeline?run=1&from=0&to=1000&width=1000")["rows"][1]["there"])[-1][2]:
                    self.assertLess(time.monotonic(), end)
                self.assertIn("its process ended", there[-1][2])
                later = s.api(f"timeline?run=1&from={there[-1][1] + 100}&to=1000&width=1000")["rows"][1]
                self.assertEqual((later["there"], later["spans"]), (there[-1:], []), "also where only the time after it is looked at")
                if CHROMIUM:
                    with browser.Browser() as page:
                        page.open(s.url)
                        page.wait_for(f"state.line && state.line.now_s > {there[-1][1] + 1}")
                        page.evaluate("tell(state.line.rows[1], state.line.now_s - 0.5, 300, 300)")
                        self.assertRegex(page.evaluate("by('tip').textContent"), r"^rank 1 at [0-9:.]+\nnot there since [0-9:.]+\nits process ended")

    def test_a_switched_job_is_one(self):
        with cluster.Cluster(BIN, '[[job]]\nname = "toy"\nengine = "all-reduce"\nworkers = 2\nlease_ms = 60000\n') as c:
            stop = c.dir / "stop"
            workers = [c.worker(rank, steps=100_000, step_ms=20, velocity="state", args=("--stop-file", str(stop))) for rank in range(2)]

            def trains_under(engine):
                for worker in workers:
                    worker.wait_for(lambda line: line.get("engine") == engine and "step" in line, f"a step under {engine}")

            trains_under("all-reduce")
            with Server(source=["--admin", c.admin]) as s:
                self.assertEqual(self.until(s, lambda run: run["steps"])["switches"], [])
                for engine in ("hop", "p-reduce"):
                    c.prdctl("switch", "toy", engine, "--reason", EVIL)
                    trains_under(engine)
                self.until(s, lambda run: len(run["switches"]) == 2 and all(by["pause_s"] > 0 for by in run["switches"]))
                c.prdctl("pause", "toy")
                self.until(s, lambda run: run["paused"])
                job = self.until_listed(s, lambda job: job["paused"])
                self.assertEqual((job["first"], job["run"], [turn["engine"] for turn in job["turns"]]), (1, 3, ["all-reduce", "hop", "p-reduce"]))
                c.prdctl("resume", "toy")
                self.until_listed(s, lambda job: not job["paused"])
                stop.touch()
                for worker in workers:
                    worker.end()
            c.stop_daemon()
            # Over, from the files: whichever of its runs is asked for.
            with Server(source=["--state-dir", f"{c.dir}/state"]) as s:
                job = self.until_listed(s, lambda job: job["state"] == "finished")
                run = s.whole(2)
                self.assertEqual((run["over"], run["runs"], run["run"]["run"]), (True, [1, 2, 3], 3))
                self.assertEqual(run["read"], sum(r["records"] for r in json.loads(c.prdctl("jobs", offline=True))["runs"]))
                self.assertEqual([(by["from"], by["to"], by["run"], by["reason"]) for by in run["switches"]],
                                 [("all-reduce", "hop", 2, EVIL), ("hop", "p-reduce", 3, EVIL)])  # fmt: skip
                # Steps are those of all runs, each once.
                steps = sum(len(worker.steps()) for worker in workers)
                self.assertEqual((run["steps"], sum(run["series"]["steps"])), (steps, steps))
                self.assertEqual(sum(worker["steps"] for worker in run["pace"]["workers"]), steps)
                # The toy's loss is 1 at first, and falls in each step of each run.
                losses = [loss for loss in run["series"]["loss"] if loss is not None]
                self.assertTrue(1 >= losses[0] >= losses[-1] > 0, losses)
                # A worker is there from its start to its end without a break, and does one thing at a time.
                line = s.api(f"timeline?run=1&from=0&to={run['now_s']}&width=1000")
                keys = set()
                for row in line["rows"]:
                    self.assertEqual(len(row["there"]), 1, row["there"])
                    for by in run["switches"]:
                        self.assertTrue(row["there"][0][0] < by["at_s"] < row["there"][0][1])
                    spans = [span for span in row["spans"] if span[2] != "b"]
                    self.assertTrue(all(a[1] <= b[0] for a, b in zip(spans, spans[1:])))
                    keys |= {span[3] for span in spans if span[3]}
                # Groups of different runs are not taken for one another.
                groups = s.api(f"groups?run=3&to={run['now_s']}")["groups"]
                self.assertEqual(len({group["key"] for group in groups}), len(groups))
                final = groups[0]
                self.assertEqual((final["kind"], final["run"]), ("final", 3))
                self.assertLess(final["group"], final["key"])
                self.assertTrue(any(final["key"] - final["group"] < key <= final["key"] for key in keys), (keys, final))
                self.assertLessEqual(max(keys), final["key"])
                if not CHROMIUM:
                    return
                with browser.Browser() as page:
                    page.open(s.url)
                    page.wait_for("state.groups.length && state.summary.whole && !state.fresh")
                    listed = page.evaluate("document.querySelector('#runs button').innerText")
                    self.assertIn("run 3 · all-reduce → hop → p-reduce · finished", listed)
                    told = page.evaluate("document.getElementById('switches').innerText")
                    self.assertRegex(told, r"all-reduce → hop at 0:\d\d\.\d, by user \w+: <img src=x onerror=alert\(1\)>\. Pause \d+ ms, run 2")
                    page.evaluate("move(0, state.summary.switches[0].at_s, false)")
                    page.press("S")
                    self.assertIn("all-reduce → hop", page.evaluate("document.getElementById('tip').innerText"))
                    page.press("S")
                    self.assertIn("hop → p-reduce", page.evaluate("document.getElementById('tip').innerText"))
                    self.assertTrue(page.evaluate("by('loss').clientHeight > 40 && by('figures').innerText.includes('loss, last')"))
                    self.picture(page)

    def until(self, s, seen):
        end = time.monotonic() + DEADLINE_S
        while not seen(run := s.whole()):
            self.assertLess(time.monotonic(), end, run)
            time.sleep(0.05)
        return run

    def until_listed(self, s, seen):
        end = time.monotonic() + DEADLINE_S
        while not (jobs := s.api("runs")["runs"]) or not seen(jobs[0]):
            self.assertLess(time.monotonic(), end, jobs)
            time.sleep(0.05)
        self.assertEqual(len(jobs), 1)
        return jobs[0]

    def picture(self, page):
        if os.environ.get("PRD_SCREENSHOTS"):
            page.screenshot(f"{os.environ['PRD_SCREENSHOTS']}/{self.id().split('.')[-1]}.png")

    def browser(self, s, args):
        with tempfile.TemporaryDirectory(prefix="prd-browser-") as home:
            done = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}", "--window-size=1500,1300",
                                   "--virtual-time-budget=8000", *args, s.url], capture_output=True, text=True, timeout=110)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        if os.environ.get("PRD_SCREENSHOTS") and "--dump-dom" in args:
            self.browser(s, [f"--screenshot={os.environ['PRD_SCREENSHOTS']}/{self.id().split('.')[-1]}.png"])
        return done.stdout


if __name__ == "__main__":
    unittest.main()
