"""The Debian packages."""
import os
import re
import shutil
import subprocess

import source
from source import Failure


def check_needed(tree):
    """A Failure that names the missing Debian packages."""
    if shutil.which("dpkg-checkbuilddeps") is None:
        raise Failure("Debian package dpkg-dev is missing: apt-get install " + " ".join(source.packages("package")))
    done = subprocess.run(["dpkg-checkbuilddeps"], cwd=tree, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        missing = done.stderr.strip().rpartition(": ")[2]
        raise Failure(f"Debian packages are missing: {missing}\ntools/deps installs them")


# For tests: no packages of debug symbols, and hardly compressed.
QUICK = {"DEB_BUILD_OPTIONS": "noautodbgsym", "DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}

_MADE = re.compile(r"(libprd0|libprd-dev|prd|prdctl|python3-prd)(-dbgsym)?_\d[^_]*_[a-z0-9]+\.(deb|changes|buildinfo)")


def make(out, work, build, quick):
    """Makes them in the folder `out`, of what is in the folder `build`, or compiled anew. Returns their paths, and where it was built."""
    folder = work / "tree"  # dpkg-buildpackage puts its results beside the tree
    tree = folder / f"prd-{source.version()}"
    source.copy(tree)
    check_needed(tree)
    for old in folder.glob("*.*"):
        if old.is_file():
            old.unlink()
    environment = dict(os.environ, SOURCE_DATE_EPOCH=str(int(source.date().timestamp())),
                       PATH="/usr/sbin:/usr/bin:/sbin:/bin")  # Debian's Python, and no other one
    environment.pop("PRD_BUILD", None)
    environment.update(QUICK if quick else {})
    if build is not None:
        environment["PRD_BUILD"] = str(build)
    elif shutil.which("ccache") is not None:
        environment["PRD_CMAKE"] = "-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
    log = work / "dpkg-buildpackage.log"
    with open(log, "w", encoding="utf-8") as text:
        done = subprocess.run(["dpkg-buildpackage", "--build=binary", "--no-sign", "--no-check-builddeps"], cwd=tree, env=environment,
                              stdin=subprocess.DEVNULL, stdout=text, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        end = "\n".join(log.read_text(encoding="utf-8").splitlines()[-25:])
        raise Failure(f"dpkg-buildpackage ended with {done.returncode}; its end, all of which is in {log}:\n{end}")
    for old in out.iterdir():  # of another version
        if _MADE.fullmatch(old.name) and old.is_file():
            old.unlink()
    for found in folder.glob("*.*"):
        if found.is_file():
            shutil.move(found, out / found.name)
    return sorted(out.glob("*.deb")), build or tree / "obj"


def lint(out):
    """The errors and warnings that lintian finds in the packages in `out`. None where it is not installed."""
    if shutil.which("lintian") is None:
        return None
    changes = sorted(str(path) for path in out.glob("*.changes"))
    done = subprocess.run(["lintian", "--allow-root", "--suppress-tags", "bad-distribution-in-changes-file", *changes],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return [line for line in done.stdout.splitlines() if line[:3] in ("E: ", "W: ")]
