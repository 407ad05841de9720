"""Where a run's processes are: on loopback or on hosts of their own, and the disk of the state_dir."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import hosts

LINK_RATE = "1gbit"  # of a link that is not slow
DISK_MIB = 4096  # at most; only what is used takes memory
NEED_HOSTS = ("cut", "slow")
NEED_DISK = ("disk-full",)


class Disk:
    """A file system in memory at `folder`, in a mount namespace that goes with the process that holds it."""

    def __init__(self, folder):
        mount = f'mount -t tmpfs -o size={DISK_MIB}m,mode=0700 prd "$0" && echo && exec sleep infinity'
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", mount, str(folder)]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not self.holder.stdout.readline():
            _, err = self.holder.communicate()
            raise subprocess.CalledProcessError(self.holder.returncode, command, stderr=err)
        self.enter = ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt"]
        self.folder = folder
        self.seen = pathlib.Path(f"/proc/{self.holder.pid}/root{folder}")  # the same, from outside

    def close(self):
        self.holder.kill()
        self.holder.communicate()

    def _resize(self, size):
        command = [*self.enter, "mount", "-o", f"remount,size={size}", str(self.folder)]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def fill(self):
        """Leaves no byte free: the file system becomes as small as what is in it."""
        for _ in range(50):
            at = os.statvfs(self.seen)
            used = (at.f_blocks - at.f_bfree) * at.f_frsize
            with contextlib.suppress(subprocess.CalledProcessError):  # more is in it by now
                self._resize(used)
                return
            time.sleep(0.01)
        raise OSError(f"{self.folder} grows too quickly to be filled")

    def free(self):
        self._resize(f"{DISK_MIB}m")


def why_no_disk():
    """Why there can be no such disk here; empty: there can."""
    missing = [tool for tool in ("mount", *hosts.TOOLS) if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    with tempfile.TemporaryDirectory(prefix="prd-punish-") as folder:
        try:
            disk = Disk(pathlib.Path(folder))
        except subprocess.CalledProcessError as error:
            return f"mounts are not permitted: {error.stderr.strip()}"
        disk.close()
    return ""


def why_not(kinds):
    """Of the kinds that this machine cannot do: {kind: why}."""
    found = {"clock": "one process alone cannot be given another wall clock; prdsim has this fault"}
    for names, ask in ((NEED_HOSTS, hosts.why_not), (NEED_DISK, why_no_disk)):
        if any(name in kinds for name in names):
            why = ask()
            found.update({name: why for name in names if why})
    return {kind: found[kind] for kind in kinds if kind in found}


class Place:
    """Use in a with statement: namespaces, links and mounts go with the processes that hold them, however it ends.

    kinds: of faults, that are to be possible.
    """

    def __init__(self, kinds, workers, folder):
        self.loopback = not any(kind in kinds for kind in NEED_HOSTS)
        self.own_disk = any(kind in kinds for kind in NEED_DISK)
        self.workers = workers
        self.folder = folder / "disk"
        self.state = self.folder / "state"  # as the daemon has it
        self.hosts = None
        self.disk = None

    def __enter__(self):
        self.folder.mkdir()
        with contextlib.ExitStack() as stack:
            if not self.loopback:
                self.hosts = stack.enter_context(hosts.Hosts(self.workers + 1, LINK_RATE))
            if self.own_disk:
                self.disk = Disk(self.folder)
                stack.callback(self.disk.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def state_seen(self):
        """The state_dir, as this process has it."""
        return self.disk.seen / "state" if self.disk else self.state

    @property
    def daemon_address(self):
        return "127.0.0.1" if self.loopback else self.hosts.address(self.workers)

    @property
    def inside_daemon(self):
        network = [] if self.loopback else self.hosts.enter(self.workers)
        return [*network, *(self.disk.enter if self.disk else [])]

    def inside(self, rank):
        return [] if self.loopback else self.hosts.enter(rank)
