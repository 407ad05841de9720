#!/usr/bin/env python3
"""Holds the tree to its own rules: who may include whom, what pure code may use, who may name an engine, formatting.

Usage: lint.py SOURCE_DIR. Prints one line per finding and exits 1 if there is any.
"""
import pathlib
import re
import subprocess
import sys

# Folder -> folders of this tree whose headers it may include (DESIGN's table). The longest match counts.
MAY_INCLUDE = {
    "common/base": ["common/base"],
    "common/io": ["common", "schemas"],
    "engines": ["common/base", "engines"],
    "config": ["common/base", "engines", "config"],
    "server": ["common", "schemas", "engines", "config", "server"],
    "worker/core": ["common/base", "worker/core"],
    "worker/examples": ["worker/examples"],  # what any user of the library has: <prd/...>
    "worker/memory": ["common", "worker/memory"],
    "worker/device": ["common", "worker/memory", "worker/device"],
    "worker/cuda": ["common", "worker/memory", "worker/device", "worker/cuda"],
    "worker/mesh": ["common", "worker/core", "worker/memory", "worker/device", "worker/mesh", "worker/transport/transport.h"],
    "worker/transport": ["common", "worker/memory", "worker/mesh/keys.h", "worker/transport"],
    "worker": ["common", "worker"],
    "tools/reference": ["tools/reference", "common/base", "worker/include/prd/replica.h"],
    "tools/spectrum": ["tools/spectrum"],
    "tools/sim": ["engines", "worker/core", "worker/mesh/mesh.h", "worker/transport/transport.h", "common/base", "config",
                  "tools/reference", "tools/sim", "tools/spectrum"],
    # prdctl opens the files of a stopped daemon through the one class that knows their layout.
    "tools/prdctl": ["common", "engines", "config", "server/history", "server/meters", "tools/prdctl", "tools/spectrum"],
    "tools/prdbench": ["common", "engines", "worker", "tools/prdbench", "tools/reference"],
}
# System headers by folder: patterns that are refused.
NO_ZMQ = r"zmq|capnp|kj/"
NO_ROCKSDB = r"rocksdb"
REFUSED_SYSTEM = {
    "common/base": [NO_ZMQ, NO_ROCKSDB],
    "engines": [NO_ZMQ, NO_ROCKSDB],
    "worker/core": [NO_ZMQ, NO_ROCKSDB],
    "config": [NO_ZMQ, NO_ROCKSDB],
    "worker/mesh": [NO_ZMQ, NO_ROCKSDB],
    "worker/memory": [NO_ZMQ, NO_ROCKSDB],
    "worker": [NO_ROCKSDB, r"capnp|kj/"],
    "tools/sim": [NO_ZMQ, NO_ROCKSDB],
    "tools/reference": [NO_ZMQ, NO_ROCKSDB],
}
# Pure code: values in, values out. config is not pure (it reads files), everything else here is.
PURE = ["common/base", "engines", "worker/core", "tools/reference"]
IMPURE_HEADERS = re.compile(
    r"thread|mutex|shared_mutex|condition_variable|atomic|future|stop_token|semaphore|latch|barrier|chrono|ctime|time\.h"
    r"|fstream|filesystem|iostream|random|unordered_map|unordered_set|unistd\.h|sys/.*|spdlog/.*|fcntl\.h"
)
IMPURE_WORDS = re.compile(r"\b(getenv|std::rand|srand|fopen|std::thread|clock_gettime|gettimeofday)\b")
# An engine is known by its name, or by the type of its options, in its folder, in the registry, in tests and in the
# code of the papers' experiments. All other code asks the registry, or what follows from a plan.
MAY_NAME_ENGINES = re.compile(r"tests/|engines/registry\.h|tools/sim/papers[^/]*")
# These choose engines as a user does: for a benchmark, a check, an experiment of a paper, or as what to compare with.
CHOOSE_ENGINES = [
    "tools/demo_lib/options.py",
    "tools/demo_lib/summary.py",
    "tools/gpu_check_lib/run.sh",
    "tools/gpu_check_lib/torch_check.py",
    "tools/gpu_check_lib/training.sh",
    "tools/measure_lib/main.py",
    "tools/package_lib/booted/inside.py",
    "tools/punish_lib/options.py",
    "tools/prdbench/decide.cc",
    "tools/prdbench/skew.cc",
    "tools/prdbench/skew.h",
]
# A socket that others connect to has bounds on its connections: these three make it. Sockets within the process need none.
MAY_LISTEN = ("server/listener.cc", "worker/transport/listen.cc", "common/io/http_server.cc", "tests/", "tools/prdbench/")
LISTENS = re.compile(r"[.>]bind\((?!\"inproc:|kInproc)|\bzmq_bind\(|::listen\(")
# A comment names its subject first: "A worker that drains ...", not "Who drains ...".
NO_SUBJECT = re.compile(r"^\s*// (Who|Whose|Of|One that|Those who|Such) [a-z]")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = (".h", ".c", ".cc", ".cu")
SCRIPTS = (".py", ".sh")


def folder_rule(path, table):
    best = None
    for folder in table:
        if path == folder or path.startswith(folder + "/"):
            if best is None or len(folder) > len(best):
                best = folder
    return best


def resolve(root, name):
    """A header as the path in the tree that it names, or None for one of the system."""
    if (root / name).exists() or name.endswith(".capnp.h"):
        return name
    for public in ("common/base/include", "worker/include"):
        if (root / public / name).exists():
            return f"{public}/{name}"
    return None


def check_file(root, path, findings):
    text = (root / path).read_text(encoding="utf-8")
    rule = folder_rule(path, MAY_INCLUDE)
    pure = any(path.startswith(p + "/") for p in PURE)
    refused = REFUSED_SYSTEM.get(folder_rule(path, REFUSED_SYSTEM) or "", [])
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if len(line) > 100:
            findings.append(f"{where}: {len(line)} columns, allowed are 100")
        if pure and IMPURE_WORDS.search(line) and not line.lstrip().startswith("//"):
            findings.append(f"{where}: pure code uses {IMPURE_WORDS.search(line).group(0)}")
        if NO_SUBJECT.match(line):
            findings.append(f"{where}: a comment begins with '{NO_SUBJECT.match(line).group(1)}'; begin with the subject: 'A worker that ...'")
        if LISTENS.search(line) and not path.startswith(MAY_LISTEN):
            findings.append(f"{where}: a socket that listens without a guard; server/listener.h and common/io/http_server.h have one")
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(2)
        inside = resolve(root, name)
        if inside is None:
            if pure and IMPURE_HEADERS.fullmatch(name):
                findings.append(f"{where}: pure code includes <{name}>")
            for pattern in refused:
                if re.search(pattern, name):
                    findings.append(f"{where}: {rule} includes <{name}>")
            continue
        public = inside.startswith(("common/base/include/", "worker/include/"))
        if rule is None or (public and rule.startswith("worker")):
            continue
        allowed = MAY_INCLUDE[rule]
        if not any(inside == a or inside.startswith(a + "/") for a in allowed):
            findings.append(f"{where}: {rule} includes {inside}, allowed are {', '.join(allowed)}")


def engine_words(root):
    """What names each engine, as a pattern by its folder: its name in quotation marks, and its options' type."""
    words = {}
    for options in sorted(root.glob("engines/*/options.h")):
        text = options.read_text(encoding="utf-8")
        name = re.search(r'\.name = "([^"]+)"', text)
        kind = re.search(r"^struct (\w+Options) ", text, re.MULTILINE)
        if name and kind:
            words[f"engines/{options.parent.name}/"] = re.compile(f"[\"']{name[1]}[\"':]|\\b{kind[1]}\\b")
    return words


def check_engine_names(root, paths, findings):
    words = engine_words(root)
    for path in paths:
        if MAY_NAME_ENGINES.match(path) or path in CHOOSE_ENGINES:
            continue
        for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            for folder, word in words.items():
                if not path.startswith(folder) and word.search(line):
                    findings.append(f"{path}:{number}: names an engine: {word.search(line).group(0)}")


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1]).resolve()
    findings = []
    top = ["common", "schemas", "engines", "config", "server", "worker", "tests", "tools"]
    files = sorted(
        str(p.relative_to(root)) for t in top for p in (root / t).rglob("*") if p.suffix in SOURCES
    )
    if len(files) < 20:
        findings.append(f"{root}: found {len(files)} sources; is this the source tree?")
    for path in files:
        check_file(root, path, findings)
    scripts = sorted(str(p.relative_to(root)) for t in top for p in (root / t).rglob("*") if p.suffix in SCRIPTS)
    check_engine_names(root, files + scripts, findings)
    for folder in top:
        if not (root / folder / "README.md").exists():
            findings.append(f"{folder}: has no README.md")
    allowed_top = set(top) | {"cmake", "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "build", "demo-out", "punish-out"}
    for entry in root.iterdir():
        if not entry.name.startswith(".") and entry.name not in allowed_top:
            findings.append(f"{entry.name}: not part of the top level")
    formatter = subprocess.run(
        ["clang-format-14", "--dry-run", "--Werror", *files], cwd=root, capture_output=True, text=True
    )
    findings += [l for l in formatter.stderr.splitlines() if "error:" in l]
    print("\n".join(findings) if findings else f"{len(files)} sources: no findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
