"""The tree as Debian's tools want it: a copy, with debian/ in place and what tools/package knows filled in."""
import datetime
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failure(Exception):
    """What is wrong, for whoever runs tools/package."""


def run(command, **more):
    """Runs it; what it printed is in the Failure where it fails."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        raise Failure(f"{' '.join(str(word) for word in command)} ended with {done.returncode}:\n{done.stdout[-8000:]}")
    return done.stdout


def version():
    text = (ROOT / "worker/python/prd/__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)[1]


def next_version(of):
    """The first one whose C++ interface may differ: as prdConfigVersion.cmake says (SameMinorVersion)."""
    major, minor, _ = of.split(".")
    return f"{major}.{int(minor) + 1}~"


def git(*words):
    done = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode() if done.returncode == 0 else ""


def maintainer():
    """As Debian's tools are told it, or who made the last commit."""
    if "DEBEMAIL" in os.environ:
        return f"{os.environ.get('DEBFULLNAME', 'prd')} <{os.environ['DEBEMAIL']}>"
    return git("log", "-1", "--format=%an <%ae>").strip() or "prd <root@localhost>"


def date():
    """Of the last commit, so that the same tree makes the same packages."""
    stamp = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct").strip() or "0"
    return datetime.datetime.fromtimestamp(int(stamp), datetime.timezone.utc)


def files():
    """What belongs to the tree: what git knows or would add."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    found = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    if not found:
        raise Failure(f"{ROOT}: git lists no files; packages are made from a clone")
    return found


def packages(group):
    """Of the one list of Debian packages."""
    return run([ROOT / "tools/deps", "--list", group]).split()


def copy(to):
    """Makes the copy, ready for dpkg-buildpackage. What was compiled in an older copy stays."""
    for old in to.iterdir() if to.exists() else []:
        if old.name != "obj":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for name in files():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    shutil.copytree(to / "config/debian", to / "debian")
    # debhelper is there as debhelper-compat, and build-essential goes without saying.
    needed = packages("build") + [name for name in packages("package") if name not in ("debhelper", "build-essential")]
    known = {
        "VERSION": version(), "NEXT": next_version(version()), "MAINTAINER": maintainer(), "BUILD_DEPENDS": ", ".join(needed),
    }
    for name in ("control", "rules"):
        path = to / "debian" / name
        path.write_text(re.sub(r"@([A-Z_]+)@", lambda match: known[match[1]], path.read_text(encoding="utf-8")), encoding="utf-8")
    (to / "debian/changelog").write_text(
        f"prd ({version()}) bookworm; urgency=medium\n\n  * Version {version()}.\n\n -- {maintainer()}  {date():%a, %d %b %Y %H:%M:%S +0000}\n",
        encoding="utf-8",
    )
