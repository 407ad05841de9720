"""The packages in a Debian 12 that is booted: in a virtual machine, whose processors are emulated. Nothing of this machine's init is touched.

The machine has no network. What is checked in it is in booted/: inside.py runs there as a service, at each of two boots of one disk, and tells
its results on a serial line.
"""
import contextlib
import fcntl
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from source import Failure, run

HERE = pathlib.Path(__file__).resolve().parent
NEEDED = {"mmdebstrap": "mmdebstrap", "qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs", "g++": "g++", "setpriv": "util-linux"}
# Beside what the packages need; python3 is for a worker, and for what runs the checks.
SYSTEM = ["systemd-sysv", "linux-image-cloud-amd64", "dbus", "python3", "iproute2"]
OWN = ("libprd0", "libprd-dev", "prd", "prdctl", "python3-prd")
INSTALLED = ("libprd0", "prd", "prdctl", "python3-prd")
# An initrd of what the machine has, rather than of what any may have, is read in a few seconds.
INITRD = ('mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d" && '
          'printf "%s\\n" MODULES=list COMPRESS=gzip > "$1/etc/initramfs-tools/conf.d/booted" && '
          'printf "%s\\n" virtio_pci virtio_blk ext4 > "$1/usr/share/initramfs-tools/modules.d/booted"')
BOOT_LIMIT_S = 1500  # one took 870 beside a compilation and three tests
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


def missing():
    """Why no machine can be booted here, in words; None: one can."""
    if os.uname().machine != "x86_64":
        return f"it needs a machine of x86_64, and this one is {os.uname().machine}"
    if os.geteuid() != 0:
        return "it needs root, for files of other users in the machine's disk"
    packages = [package for program, package in NEEDED.items() if shutil.which(program, path=ENVIRONMENT["PATH"]) is None]
    return f"Debian packages are missing: apt-get install {' '.join(packages)}" if packages else None


def debs_of(out):
    return {path.name.split("_")[0]: path for path in out.glob("*_*.deb") if "-dbgsym_" not in path.name}


def depends(debs):
    """The packages of Debian that ours need."""
    names = set(SYSTEM)
    for name in INSTALLED:
        for needed in run(["dpkg-deb", "--field", debs[name], "Depends"]).strip().split(", "):
            first = re.match(r"[a-z0-9.+-]+", needed)[0]
            if first not in OWN:
                names.add(first)
    return sorted(names)


def base(work, names):
    """A Debian 12 root with these packages as an archive, made once."""
    archive = work / f"booted-{hashlib.sha256(' '.join([*names, INITRD]).encode()).hexdigest()[:12]}.tar"
    if not archive.exists():
        for old in work.glob("booted-*.tar"):
            old.unlink()
        print("tools/package: makes a Debian 12 root with a kernel (about a minute)", flush=True)
        made = archive.with_suffix(".part")
        run(["mmdebstrap", "--variant=minbase", "--format=tar", '--aptopt=Acquire::Retries "5"', f"--include={','.join(names)}",
             f"--essential-hook={INITRD}",
             # What nobody looks at in there.
             "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/doc/*/*", "bookworm", made])
        made.rename(archive)
    return archive


def syscalls():
    """Numbers and names of this architecture's system calls."""
    text = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text(encoding="ascii")
    return "".join(f"{name} {number}\n" for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text))


def newer(deb, folder):
    """The same package as a version that is to replace it."""
    tree = folder / "newer"
    run(["dpkg-deb", "--raw-extract", deb, tree])
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"^(Version: .*)$", r"\1+newer", control.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")
    to = folder / f"{deb.name.split('_')[0]}_newer.deb"
    run(["dpkg-deb", "-Zgzip", "-z1", "--build", tree, to])
    shutil.rmtree(tree)
    return to


def make_root(root, out, work, folder):
    """The machine's root: Debian, our packages, users, the programs of the checks."""
    debs = debs_of(out)
    run(["tar", "-xf", base(work, depends(debs)), "-C", root])
    at = root / "opt/booted"
    (at / "debs").mkdir(parents=True)
    (at / "upgrade").mkdir()
    for name in INSTALLED:
        shutil.copy(debs[name], at / "debs")
    shutil.copy(newer(debs["prd"], folder), at / "upgrade")
    for path in (HERE / "booted").glob("*.py"):
        shutil.copy(path, at)
    (at / "syscalls").write_text(syscalls(), encoding="ascii")
    inside = ["chroot", root]
    run([*inside, "sh", "-c", "dpkg -i /opt/booted/debs/*.deb"], env=ENVIRONMENT)
    for user in ("alice", "olga", "mallory", "trainer"):
        run([*inside, "useradd", "--create-home", "--user-group", user], env=ENVIRONMENT)
    # A program as a user would build it, with the headers and the library of the packages.
    run(["dpkg-deb", "--extract", debs["libprd-dev"], folder / "dev"])
    run(["g++", "-std=c++20", "-O1", HERE / "booted/worker.cc", "-o", root / "usr/local/bin/booted-worker", "-I", folder / "dev/usr/include",
         "-L", next(root.glob("usr/lib/*/libprd.so.0")).parent, "-l:libprd.so.0", "-Wl,--allow-shlib-undefined"])
    shutil.copy(root / "usr/share/prd/prd-worker@.service", root / "etc/systemd/system")
    shutil.copytree(HERE / "booted/root", root, dirs_exist_ok=True)
    wants = root / "etc/systemd/system/multi-user.target.wants/booted.service"
    wants.symlink_to("../booted.service")
    for name in ("e2scrub_reap.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"):
        (root / "etc/systemd/system" / name).symlink_to("/dev/null")  # they would only take time
    run([*inside, "passwd", "--delete", "root"], env=ENVIRONMENT)  # for --boot-shell
    (root / "etc/fstab").write_text("/dev/vda / ext4 defaults 0 1\n", encoding="ascii")
    (root / "etc/hostname").write_text("booted\n", encoding="ascii")
    (root / "etc/hosts").write_text("127.0.0.1 localhost booted\n", encoding="ascii")


def make_disk(out, work, folder):
    """The disk, the kernel and the initrd."""
    root = folder / "root"
    root.mkdir()
    make_root(root, out, work, folder)
    run(["mke2fs", "-q", "-t", "ext4", "-d", root, folder / "disk.img", "3G"])
    shutil.copy(next((root / "boot").glob("vmlinuz-*")), folder / "vmlinuz")
    # Unpacked here: where processors are emulated, that takes 4 s of a boot.
    with gzip.open(next((root / "boot").glob("initrd.img-*"))) as packed, open(folder / "initrd.img", "wb") as to:
        shutil.copyfileobj(packed, to)
    shutil.rmtree(root)


def machine(folder, *more):
    """The command of the machine. It ends with whoever started it."""
    # One processor, of an old kind: both boots take 190 s of this machine's processors, and 470 s with two of the kind "max", whose
    # instructions and page tables cost more to emulate.
    # SYSTEMD_LOG_SECCOMP: what the kernel does not know of its command line becomes the environment of systemd, which then lets
    # the kernel log each system call that is denied.
    return ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "1", "-m", "2048",
            "-display", "none", "-nic", "none", "-no-reboot", "-drive", f"file={folder / 'disk.img'},format=raw,if=virtio,cache=unsafe",
            "-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.img"), *more]


def boot(folder, number):
    """Boots it, and prints what it tells until it goes down. Whether all its checks have passed."""
    results, console = folder / f"results-{number}", folder / f"console-{number}"
    results.touch()
    # The mitigations guard real processors against attacks. Without them a boot takes a sixth less of this machine's processors.
    command = machine(folder, "-append", "root=/dev/vda rw console=ttyS0 mitigations=off audit_backlog_limit=8192 SYSTEMD_LOG_SECCOMP=1", "-serial", f"file:{console}", "-serial", f"file:{results}")
    began = time.monotonic()
    print(f"== boot {number}", flush=True)
    with open(results, encoding="utf-8", errors="replace") as told, \
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT) as process:
        text, late = "", False
        try:
            while True:
                ended = process.poll() is not None
                new = told.read()
                text += new
                sys.stdout.write(new.replace("\r", ""))
                sys.stdout.flush()
                late = time.monotonic() - began > BOOT_LIMIT_S
                if ended or late:
                    break
                time.sleep(0.2)
        finally:
            process.kill()
    print(f"   ({time.monotonic() - began:.0f} s)", flush=True)
    said = re.search(rf"^== boot {number}: (\d+) checks, (\d+) failed", text, re.MULTILINE)
    if late or said is None:
        end = "\n".join(console.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
        raise Failure(f"--boot: boot {number} {f'took longer than {BOOT_LIMIT_S} s' if late else 'ended too early'}; the end of its console:\n{end}")
    return int(said[1]) > 0 and said[2] == "0"


@contextlib.contextmanager
def folder_in(work):
    """Where the disk is meanwhile, of one machine at a time. What a run that was killed has left goes, too."""
    folder = work / "booting"
    with open(work / "booting.lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"{work}: another tools/package boots a machine there; give this one a --work of its own") from None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the folder goes then, too
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def run_all(out, work):
    """Both boots. A Failure if one of their checks has failed."""
    why = missing()
    if why:
        raise Failure(f"--boot: {why}")
    with folder_in(work) as folder:
        began = time.monotonic()
        make_disk(out, work, folder)
        print(f"tools/package: made the disk in {time.monotonic() - began:.0f} s", flush=True)
        if not boot(folder, 1) or not boot(folder, 2):
            raise Failure("--boot: a check has failed; it is above")


def shell(out, work):
    """The same machine with its console here, for people."""
    why = missing()
    if why:
        raise Failure(f"--boot-shell: {why}")
    with folder_in(work) as folder:
        make_disk(out, work, folder)
        print("tools/package: log in as root, without a password; `poweroff` ends it, and so does Ctrl-A X", flush=True)
        subprocess.run(machine(folder, "-append", "root=/dev/vda rw console=ttyS0 systemd.mask=booted.service", "-serial", "mon:stdio"), env=dict(ENVIRONMENT, TERM="linux"), check=False)
