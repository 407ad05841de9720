#!/usr/bin/env python3
"""Plants one breach of each rule in a small tree and expects the lint to name it."""
import pathlib
import subprocess
import sys
import tempfile

LINT = pathlib.Path(__file__).with_name("lint.py")
BREACHES = [
    ("server/z.h", "// Who drains goes.\nint z;\n", "a comment begins with 'Who'"),
    ("engines/bad.h", '#include "server/x.h"\n', "engines includes server/x.h"),
    ("engines/bad.h", "#include <chrono>\n", "pure code includes <chrono>"),
    ("engines/bad.h", "#include <unordered_map>\n", "pure code includes <unordered_map>"),
    ("engines/bad.cc", "int x = getenv(0) != nullptr;\n", "pure code uses getenv"),
    ("worker/core/bad.h", "#include <zmq.hpp>\n", "includes <zmq.hpp>"),
    ("worker/bad.h", '#include "engines/y.h"\n', "worker includes engines/y.h"),
    ("config/bad.h", "#include <rocksdb/db.h>\n", "includes <rocksdb/db.h>"),
    ("tools/sim/bad.h", '#include "server/x.h"\n', "tools/sim includes server/x.h"),
    ("common/bad.h", "// " + "x" * 120 + "\n", "123 columns"),
    ("server/bad.cc", "int   x ;\n", "code should be clang-formatted"),
    ("server/bad.cc", 'bool x = y == "foo";\n', 'names an engine: "foo"'),
    ("engines/bad.cc", "FooOptions x;\n", "names an engine: FooOptions"),
    ("engines/bar/bar.cc", "FooOptions x;\n", "names an engine: FooOptions"),
    ("tools/bad.py", "x = 'foo'\n", "names an engine: 'foo'"),
    ("server/bad.cc", "void F() { socket.bind(endpoint); }\n", "a socket that listens without a guard"),
    ("worker/bad.cc", "int x = zmq_bind(socket, endpoint);\n", "a socket that listens without a guard"),
    ("tools/bad.cc", "int x = ::listen(fd, 8);\n", "a socket that listens without a guard"),
    ("stray.txt", "", "stray.txt: not part of the top level"),
]


def lint(root):
    return subprocess.run([sys.executable, LINT, root], capture_output=True, text=True)


def main():
    failures = 0
    for path, text, expected in BREACHES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for top in "common schemas engines config server worker tests tools".split():
                (root / top).mkdir()
                (root / top / "README.md").write_text("x\n")
            for i in range(20):
                (root / "tests" / f"f{i}.cc").write_text(f"int x{i};\n")
            (root / "server/x.h").write_text("int x;\n")
            (root / "engines/foo").mkdir()
            (root / "engines/foo/options.h").write_text('struct FooOptions {\n  About about{.name = "foo"};\n};\n')
            (root / "engines/y.h").write_text("int y;\n")
            clean = lint(root)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            broken = lint(root)
            if clean.returncode != 0:
                failures += 1
                print(f"the clean tree has findings:\n{clean.stdout}")
            if broken.returncode != 1 or expected not in broken.stdout:
                failures += 1
                print(f"{path}: expected '{expected}', got:\n{broken.stdout}{broken.stderr}")
    print(f"{len(BREACHES)} breaches planted, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
