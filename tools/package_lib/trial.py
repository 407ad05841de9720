"""The packages in a fresh Debian 12: installed by apt, trained with, removed. Nothing of this machine but its network is used."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import source
from source import Failure, run

HERE = pathlib.Path(__file__).resolve().parent


def base(work):
    """A Debian 12 root as an archive, made once."""
    archive = work / "debian12.tar"
    if not archive.exists():
        if shutil.which("mmdebstrap") is None:
            raise Failure("Debian package mmdebstrap is missing: apt-get install mmdebstrap")
        print("tools/package: makes a Debian 12 root (about a minute)", flush=True)
        made = archive.with_suffix(".part.tar")
        run(["mmdebstrap", "--variant=minbase", "bookworm", made])
        made.rename(archive)
    return archive


def run_all(out, work, torch):
    """Runs trial.sh in the root. Prints what it prints."""
    if os.geteuid() != 0:
        raise Failure("--try: needs root, for a root folder with packages of its own")
    with tempfile.TemporaryDirectory(prefix="prd-try-") as folder:
        root = pathlib.Path(folder) / "root"
        root.mkdir()
        run(["tar", "-xf", base(work), "-C", root])
        to = root / "try"
        to.mkdir()
        for path in [*out.glob("*_*.deb"), *out.glob("*.whl")]:
            if "-dbgsym_" not in path.name:
                shutil.copy(path, to)
        shutil.copytree(HERE / "trial", to / "trial")
        shutil.copytree(source.ROOT / "tests/worker/consumer", to / "consumer")
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        # Services are not started there; a namespace of processes ends what is left over.
        (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (root / "usr/sbin/policy-rc.d").chmod(0o755)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
                       "PRD_TRY_TORCH": str(int(torch))}
        inside = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/run" && exec chroot "$0" sh -eu /try/trial/trial.sh'
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside, str(root)], env=environment, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Failure(f"--try: ended with {done.returncode}; what failed is above")
