#!/usr/bin/python3
"""Checks prd as systemd runs it. Started by booted.service, at each of two boots; the host reads what it tells."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, "/opt/booted")
import lib
from lib import Job, Worker, active, back, check, configure, drop_in, pid, prdctl, run, said, show, tell, wait

STATE = pathlib.Path("/var/lib/booted.json")  # of the first boot, for the second one
EXPOSURE = 1.5
CONFIG = """
[daemon]
metrics = "127.0.0.1:9477"
snapshot_every = 200
retain_runs = 2
audit_log = "/var/log/prd/audit.log"

[[identity]]
name = "alice"
users = ["alice"]
jobs = ["alice-*"]

[[identity]]
name = "olga"
users = ["olga"]
jobs = ["*"]
role = "operator"

[[identity]]
name = "trainer"
users = ["trainer"]
jobs = ["service"]

[[job]]
name = "service"
engine = "all-reduce"
lease_ms = 8000

[[job]]
name = "*"
engine = "all-reduce"
lease_ms = 20000  # this machine is emulated, and may be slow
"""
CURVE = """
[daemon]
listen = "tcp://10.20.0.1:5775"

[[identity]]
name = "far"
keys = ["KEY"]
jobs = ["*"]

[[job]]
name = "*"
engine = "all-reduce"
lease_ms = 20000
"""


# ---- the service ----

def is_up():
    wait("the system is up", lambda: run("systemctl", "is-system-running", fails=None).stdout.strip() not in ("initializing", "starting"))
    state = run("systemctl", "is-system-running", fails=None).stdout.strip()
    assert state == "running", f"the system is {state}: {run('systemctl', 'list-units', '--failed').stdout}"
    assert run("systemctl", "is-enabled", "prd").stdout.strip() == "enabled"
    assert active(), run("systemctl", "status", "prd", fails=None).stdout
    status = wait("STATUS", lambda: show("prd", "StatusText")[0])
    assert re.search(r"\d+ jobs, \d+ workers, listening on ipc:///run/prd/workers", status), status
    assert show("prd", "NRestarts") == ["0"]
    return status


def sockets():
    """Of another user than root, in a folder that all may enter; the history is for its owner alone."""
    found = {}
    for path in ("/run/prd", "/run/prd/workers", "/run/prd/admin.sock", "/var/lib/prd/"):
        status = os.stat(path)
        found[path] = oct(status.st_mode & 0o777)
        assert status.st_uid != 0 and status.st_uid == os.stat(f"/proc/{pid()}").st_uid, path
    assert found["/var/lib/prd/"] == "0o700", found
    return str(found)


def exposure():
    line = run("systemd-analyze", "security", "--no-pager", "prd.service", fails=None).stdout.splitlines()[-1]
    number = float(re.search(r"(\d+\.\d+) ", line)[1])
    assert number <= EXPOSURE, line
    return f"{number}, at most {EXPOSURE} allowed"


def reload_good():
    since, former = time.time(), pid()
    configure(CONFIG.replace("retain_runs = 2", "retain_runs = 3"), restart=False)
    run("systemctl", "reload", "prd")
    said(since, "reloaded /etc/prd/prd.toml")
    configure(CONFIG, restart=False)
    run("systemctl", "reload", "prd")
    assert pid() == former and active()


def reload_bad():
    since, former = time.time(), pid()
    configure(CONFIG + "\n[[job]]\nname = \"other\"\nengine = \"allreduce\"\n", restart=False)
    failed = run("systemctl", "reload", "prd", fails=True).stdout.strip()
    said(since, "allreduce", "all-reduce", "prd.toml")
    assert pid() == former and active()
    configure(CONFIG, restart=False)
    run("systemctl", "reload", "prd")
    return failed.splitlines()[0]


def wrong_configuration():
    configure(CONFIG + "\n[daemon2]\n", restart=False)
    since = time.time()
    run("systemctl", "restart", "prd", fails=True)
    result, status, restarts = show("prd", "ActiveState", "ExecMainStatus", "NRestarts")
    assert (result, status, restarts) == ("failed", "2", "0"), (result, status, restarts)
    why = said(since, "daemon2")
    configure(CONFIG, restart=False)
    run("systemctl", "start", "prd")
    return f"stays down with exit code 2, and says: {why.strip()}"


# ---- users ----

def workers_of(user, job):
    def trains():
        team = Job(job, ["cc", "py"], user=user, step_ms=20)
        team.train(5)
        return team.end()
    return trains


def stranger_trains():
    said = Worker("alice-2", 0, 1, user="mallory", PRD_TIMEOUT_MS="5000").refused()
    wait("it is counted", lambda: metrics()["prd_connections_refused_total"] > 0)
    return said


def who_looks():
    jobs = {user: len(prdctl("jobs", user=user)["runs"]) for user in (None, "olga", "alice")}
    assert jobs[None] == jobs["olga"] > jobs["alice"] > 0, jobs
    prdctl("status", user="olga")
    refused = run("prdctl", "jobs", user="mallory", fails=True).stdout.strip()
    return f"runs seen {list(jobs.values())}; mallory: {refused}"


def who_acts():
    team = Job("acts", ["cc"])
    team.train(3)
    run("prdctl", "end", "acts", user="alice", fails=True)  # whose jobs others are
    refused = run("prdctl", "drain", "booted", user="alice", fails=True).stdout.strip()
    run("prdctl", "pause", "acts", user="olga")
    run("prdctl", "resume", "acts", user="olga")
    team.train(3)
    return f"{team.end()}; alice: {refused}"


# ---- one job through all that happens to a daemon ----

def killed():
    former = pid()
    os.kill(former, signal.SIGKILL)
    back(former)


def stopped():
    former = pid()
    os.kill(former, signal.SIGSTOP)
    since = time.time()
    back(former)
    said(since, "watchdog")
    return f"the watchdog acts within {show('prd', 'WatchdogUSec')[0]}"


def restarted():
    former = pid()
    run("systemctl", "restart", "prd")
    assert pid() != former and active()


def upgraded():
    former = pid()
    before = run("dpkg-query", "-Wf", "${Version}", "prd").stdout
    run("dpkg", "-i", *pathlib.Path("/opt/booted/upgrade").glob("*.deb"))
    after = run("dpkg-query", "-Wf", "${Version}", "prd").stdout
    assert before != after and pid() != former and active(), (before, after)
    return f"{before} to {after}"


def disk_full():
    """What is left for users other than root is taken away, by a file; a second job writes history until the daemon notices."""
    fast = Job("fast", ["cc"], step_ms=0)
    fast.train(20)
    fill = pathlib.Path("/var/fill")
    try:
        room = os.statvfs("/var")
        run("fallocate", "-l", room.f_bavail * room.f_frsize, fill)
        wait("the daemon says that the history cannot be written", lambda: "history cannot be written" in show("prd", "StatusText")[0])
        assert active()
        assert metrics()["prd_history_stalled"] == 1
    finally:
        fill.unlink(missing_ok=True)
    wait("it is written again", lambda: "history cannot be written" not in show("prd", "StatusText")[0])
    fast.train(20)
    return fast.end()


def memory_full():
    former = pid()
    high, most = show("prd", "MemoryHigh", "MemoryMax")
    since = time.time()
    run("systemctl", "set-property", "--runtime", "prd.service", "MemoryHigh=infinity", "MemoryMax=2M")
    said(since, "oom-kill")
    run("systemctl", "set-property", "--runtime", "prd.service", f"MemoryHigh={high}", f"MemoryMax={most}")
    back(former)
    return f"{show('prd', 'NRestarts')[0]} restarts until there was memory again"


def switched():
    for words in (("p-reduce", "group_size=2"), ("all-reduce",)):
        prdctl("switch", "main", *words)
        wait(f"the job goes on with {words[0]}", lambda: newest("main")["engine"] == words[0])


def newest(job):
    return [found for found in prdctl("jobs")["runs"] if found["job"] == job][-1]


def metrics():
    text = urllib.request.urlopen("http://127.0.0.1:9477/metrics", timeout=30).read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


def watched():
    for probe in ("healthz", "readyz"):
        assert urllib.request.urlopen(f"http://127.0.0.1:9477/{probe}", timeout=30).status == 200
    found = metrics()
    assert found["prd_workers"] >= 3 and found["prd_history_free_bytes"] > 0, found
    serve = subprocess.Popen(["prdctl", "serve", "--listen", "127.0.0.1:8270"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=lib.ENVIRONMENT)
    try:
        address = re.search(r"http://\S+", serve.stdout.readline())[0]
        page = urllib.request.urlopen(address, timeout=30).read()
        assert b"<html" in page.lower(), page[:200]
        runs = json.loads(urllib.request.urlopen(f"{address}api/runs", timeout=30).read())["runs"]
        assert {found["job"] for found in runs} >= {"roots", "alice-1", "main"}, runs
    finally:
        serve.terminate()
        serve.wait()
    audit = pathlib.Path("/var/log/prd/audit.log").read_text(encoding="utf-8")
    assert re.search(r'refused "identity alice" .*drain host booted', audit), audit[-500:]
    return f"{len(found)} metrics without labels, a page with {len(runs)} runs, {len(audit.splitlines())} lines of audit log"


def trimmed():
    """More short runs than are kept; the daemon's start removes the older ones, and a snapshot carries the long one."""
    for _ in range(4):
        short = Job("short", ["cc"], step_ms=0)
        short.train(1)  # else the job may not have begun
        short.end()
    run("systemctl", "restart", "prd")
    kept = [found["run"] for found in prdctl("jobs")["runs"] if found["job"] == "short"]
    assert len(kept) == 2, kept
    return f"4 runs, {len(kept)} kept"


def replayed(job):
    return run("prdctl", "--timeout-ms", 60000, "replay", job).stdout.splitlines()[0]


# ---- other hosts ----

def far_hosts():
    """A namespace of the network stands for another host."""
    for line in ("netns add far", "link add near0 type veth peer name far0 netns far", "addr add 10.20.0.1/24 dev near0", "link set near0 up",
                 "-n far addr add 10.20.0.2/24 dev far0", "-n far link set far0 up", "-n far link set lo up"):
        run("ip", *line.split())
    keys = {}
    for name in ("daemon", "worker"):
        run("prdctl", "keygen", f"/etc/prd/{name}")
        keys[name] = re.search(r"^\S{40}$", pathlib.Path(f"/etc/prd/{name}.pub").read_text(encoding="ascii"), re.MULTILINE)[0]
    secret = os.stat("/etc/prd/daemon.key")
    assert (secret.st_uid, oct(secret.st_mode & 0o777)) == (0, "0o600")
    environment = {"PRD_CONTROLLER": "tcp://10.20.0.1:5775", "PRD_CURVE_SERVER_KEY": keys["daemon"], "PRD_CURVE_SECRET_KEY_FILE": "/etc/prd/worker.key"}
    far = {"within": ["ip", "netns", "exec", "far"], **environment}
    try:
        drop_in("LoadCredential=prd-secret-key:/etc/prd/daemon.key")
        configure(CURVE.replace("KEY", keys["worker"]))
        shut = Worker("far", 0, 1, **far, PRD_TIMEOUT_MS="5000").refused()
        drop_in("LoadCredential=prd-secret-key:/etc/prd/daemon.key\nIPAddressAllow=10.20.0.0/24")
        run("systemctl", "restart", "prd")
        team = Job("far", [])
        team.workers = [Worker("far", 0, 3, **far), Worker("far", 1, 3, **far), Worker("far", 2, 3, "py", **environment)]
        team.train()
        restarted()
        team.train()
        run("systemctl", "reload", "prd")  # the check before it finds the daemon's key, too
        counted = team.end()
        unknown = Worker("far", 0, 1, **{**far, "PRD_CURVE_SECRET_KEY_FILE": "/etc/prd/daemon.key"}, PRD_TIMEOUT_MS="5000").refused()
    finally:
        drop_in("")
        configure(CONFIG)
    return f"{counted}; without IPAddressAllow: {shut}; with another key: {unknown}"


# ---- a worker as a service ----

def service_notes(rank):
    path = pathlib.Path(f"/var/lib/trainer/{rank}.notes")
    return len(path.read_text(encoding="ascii").splitlines()) if path.exists() else 0


def services_train(steps=5):
    counts = [service_notes(rank) + steps for rank in (0, 1)]
    wait("both services make steps", lambda: all(service_notes(rank) >= count for rank, count in enumerate(counts)))


def service_starts():
    run("systemctl", "enable", "--now", "prd-worker@0", "prd-worker@1")
    services_train()
    return f"run {newest('service')['run']}"


def service_is_stopped():
    since = time.time()
    run("systemctl", "stop", "prd-worker@1")
    state, result = show("prd-worker@1", "ActiveState", "Result")
    assert (state, result) == ("inactive", "success"), (state, result)
    why = said(since, "SIGTERM")
    failed = prdctl("groups", "service", "--failed")["groups"]
    assert not failed, failed
    run("systemctl", "start", "prd-worker@1")
    services_train()
    return why


def service_is_killed():
    run("systemctl", "kill", "--signal=SIGKILL", "prd-worker@1")
    wait("systemd starts it again", lambda: show("prd-worker@1", "NRestarts") != ["0"])
    services_train()


# ---- what the kernel saw ----

# Denied, and not needed. clone3: systemd denies it wherever it restricts namespaces, and glibc then takes clone.
NOT_NEEDED = {"clone3"}


def calls(boot):
    found = lib.denied(boot)
    needed = {name: by for name, by in found.items() if name not in NOT_NEEDED}
    assert not needed, str(needed)
    assert found, "the kernel logged none, not even clone3"
    return f"denied and needed: none; denied: {found}"


def journal_is_readable(boot):
    lines = run("journalctl", "-b", boot, "-u", "prd", "--no-pager", "-o", "json").stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    own = [entry for entry in entries if entry.get("_COMM") == "prd"]
    assert own and all(isinstance(entry["MESSAGE"], str) and not re.search(r"\x1b|^<\d>", entry["MESSAGE"]) for entry in own)
    levels = {name: sum(entry["PRIORITY"] == number for entry in own) for name, number in (("error", "3"), ("warning", "4"), ("info", "6"))}
    assert levels["error"] and levels["warning"] and levels["info"], levels
    return f"{len(own)} messages: {levels}"


# ---- packages ----

def removed():
    run("apt-get", "remove", "-y", "prd")
    assert not pathlib.Path("/usr/bin/prd").exists() and pathlib.Path("/etc/prd/prd.toml").exists() and list(pathlib.Path("/var/lib/prd/").iterdir())
    assert show("prd", "ActiveState") == ["inactive"]


def purged():
    run("dpkg", "--purge", "prd")
    left = [path for path in ("/etc/prd/prd.toml", "/var/lib/prd", "/var/lib/private/prd", "/var/log/prd", "/var/log/private/prd", "/run/prd", "/lib/systemd/system/prd.service",
                              "/etc/systemd/system/multi-user.target.wants/prd.service") if os.path.lexists(path)]
    assert not left, left
    assert run("systemctl", "is-system-running", fails=None).stdout.strip() == "running"


def installed_again():
    run("dpkg", "-i", *pathlib.Path("/opt/booted/debs").glob("prd_*.deb"))
    wait("prd is up", active)
    assert run("systemctl", "is-enabled", "prd").stdout.strip() == "enabled"
    team = Job("again", ["cc", "py"])
    team.train()
    return team.end()


def held():
    """A job that nobody has ended: the daemon stops, and its workers are killed."""
    team = Job("held", ["cc", "cc"])
    team.train()
    run("systemctl", "stop", "prd")
    team.kill()
    return f"{sum(len(worker.steps()) for worker in team.workers)} steps made"


def first_boot():
    if not check("prd is enabled, active after boot, and says READY and STATUS", is_up):
        return  # nothing else can be right
    check("its sockets and its history", sockets)
    check("systemd-analyze security", exposure)
    check("another configuration, by restart", lambda: configure(CONFIG))
    check("workers of root", workers_of(None, "roots"))
    check("workers of a user whom an identity names", workers_of("alice", "alice-1"))
    check("a worker of a user whom no identity names is refused", stranger_trains)
    check("who sees what: root, an operator, a user, a stranger", who_looks)
    check("an operator acts, a user does not", who_acts)
    check("reload with a good file", reload_good)
    check("reload with a bad file fails, and the old one stays in force", reload_bad)
    main = Job("main", ["cc", "cc", "py"])
    for what, do in (("kill -9", killed), ("SIGSTOP", stopped), ("systemctl restart", restarted), ("an upgrade of the package", upgraded),
                     ("a wrong configuration", wrong_configuration), ("switches of the engine", switched), ("a full /var", disk_full),
                     ("no memory", memory_full)):
        check(f"a job trains on through: {what}", lambda: main.through(do))
    check("metrics, probes, the page, the audit log", watched)
    check("no step of all that is lost, none counted twice", main.end)
    check("its recorded inputs lead to its decisions", lambda: replayed("main"))
    check("old runs are trimmed", trimmed)
    check("other hosts: tcp with CURVE, LoadCredential, IPAddressAllow", far_hosts)
    check("workers as services", service_starts)
    check("a service that is stopped leaves its job, and no group fails", service_is_stopped)
    check("a service that is killed is started again, and goes on", service_is_killed)
    check("system calls", lambda: calls("0"))
    check("the journal", lambda: journal_is_readable("0"))
    state = {"main": newest("main"), "service": newest("service"), "notes": [service_notes(0), service_notes(1)]}
    check("a job is left as it is when the machine goes down", held)
    STATE.write_text(json.dumps(state), encoding="utf-8")


def history_is_there():
    before = json.loads(STATE.read_text(encoding="utf-8"))
    main = newest("main")
    assert main == before["main"], (main, before["main"])
    former = [found for found in prdctl("jobs")["runs"] if found["run"] == before["service"]["run"]]
    assert former, prdctl("jobs")
    # Its workers are gone: how long it goes on without them is a matter of its lease.
    goes_on = re.search(rf"run {newest('held')['run']} of job held goes on after (\d+) records", run("journalctl", "-b", "0", "-u", "prd", "--no-pager", "-o", "cat").stdout)
    assert goes_on and int(goes_on[1]) > 0, newest("held")
    return f"{replayed('main')}; {goes_on[0]}"


def new_processes_go_on():
    """Those that were killed have left no model; their ranks are taken by processes that begin anew."""
    team = Job("held", ["cc", "py"])
    team.train()
    counted = team.end()
    return f"{counted}; runs: {[(found['run'], found['end']) for found in prdctl('jobs')['runs'] if found['job'] == 'held']}"


def services_go_on():
    before = json.loads(STATE.read_text(encoding="utf-8"))
    wait("the services make steps", lambda: all(service_notes(rank) > count + 5 for rank, count in enumerate(before["notes"])))
    services_train()
    run("systemctl", "disable", "--now", "prd-worker@0", "prd-worker@1")
    return f"before: run {before['service']['run']}, now: run {newest('service')['run']}"


def second_boot():
    if not check("prd is enabled, active after boot, and says READY and STATUS", is_up):
        return
    check("the history of before", history_is_there)
    check("processes that start anew go on with a job that was going on", new_processes_go_on)
    check("workers that are services go on by themselves", services_go_on)
    check("the journal of before", lambda: journal_is_readable("-1"))
    check("system calls", lambda: calls("0"))
    check("remove: the configuration and the history stay", removed)
    check("purge: nothing stays", purged)
    check("install again", installed_again)


def main():
    boot = 2 if STATE.exists() else 1
    (first_boot if boot == 1 else second_boot)()
    tell(f"== boot {boot}: {lib.checks} checks, {lib.failures} failed")
    os.sync()
    run("systemctl", "reboot" if boot == 1 else "poweroff")


if __name__ == "__main__":
    main()
