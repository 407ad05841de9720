"""tools/package: the command line."""
import argparse
import os
import pathlib
import sys

import boot
import debs
import source
import trial
import wheel
from source import Failure

HELP = """
The Debian packages, for Debian 12:
  libprd0      the library, libprd.so.0; with a CUDA toolkit on the machine, the module for GPUs, too
  libprd-dev   its headers, for CMake (find_package(prd)) and pkg-config
  prd          the daemon: its unit for systemd, its user, and its configuration, /etc/prd/prd.toml
  prdctl       the tool that shows what the daemon does
  python3-prd  the Python package
The wheel has the Python package, the library, the daemon and prdctl, with all that they need: for any Python 3.9 and
later on a Linux whose glibc is as new as its name says.

Examples:
  tools/package                         compiles with Debian's flags (minutes the first time), and makes all of it
  sudo apt install ./build/package/out/{libprd0,prd,prdctl,python3-prd}_*.deb
  pip install build/package/out/prd-*.whl
  tools/package --build build/release   packages what is built there, with CMAKE_INSTALL_PREFIX=/usr
  tools/package --try                   also installs it all in a fresh Debian 12, trains there, and removes it again
  tools/package --boot                  also boots a Debian 12 with them in a virtual machine, and checks prd under systemd
  tools/package --boot-shell            the same machine with its console here, to look around in it: log in as root

The version is that of worker/python/prd/__init__.py. The maintainer is that of DEBFULLNAME and DEBEMAIL, else the author
of the last commit. config/debian has the sources of the packages.

Exit codes: 0 made, and tried if asked to; 1 something failed or is missing, and is named; 2 wrong usage.
"""


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/package", description="tools/package: makes Debian packages and a Python wheel of prd.", epilog=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", metavar="DIR", type=pathlib.Path, help="package what is built in this folder, and compile nothing")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, help="where the packages go (default: build/package/out)")
    parser.add_argument("--work", metavar="DIR", type=pathlib.Path, help="where they are made (default: build/package)")
    parser.add_argument("--made", action="store_true", help="make nothing: --boot and --try take the packages that are in --out")
    parser.add_argument("--debs", action="store_true", help="the Debian packages alone")
    parser.add_argument("--wheel", action="store_true", help="the wheel alone; needs --build")
    parser.add_argument("--quick", action="store_true", help="for tests: without packages of debug symbols, and hardly compressed")
    parser.add_argument("--try", dest="trial", action="store_true",
                        help="install the packages in a fresh Debian 12 root (needs root, mmdebstrap and the network), train, remove them")
    parser.add_argument("--try-torch", action="store_true", help="the same, and train with PyTorch there, too")
    parser.add_argument("--boot", action="store_true",
                        help="boot them twice in a virtual machine (needs root, mmdebstrap, qemu and the network; minutes), and check the daemon as "
                             "systemd runs it")
    parser.add_argument("--boot-shell", action="store_true", help="boot them in the same machine, with its console here")
    args = parser.parse_args(arguments)
    if args.wheel and args.build is None:
        parser.error("--wheel: needs --build DIR; without it the wheel is made with the Debian packages")
    if args.build is not None and not (args.build / "CMakeCache.txt").exists():
        parser.error(f"--build: found {args.build}, allowed is a folder where CMake has built prd")
    args.trial = args.trial or args.try_torch
    if args.trial and (args.debs or args.wheel):
        parser.error("--try: tries the Debian packages and the wheel; leave out --debs and --wheel")
    if args.made and (args.debs or args.wheel or not (args.trial or args.boot or args.boot_shell)):
        parser.error("--made: makes no packages; with it goes --boot, --boot-shell or --try")
    if (args.boot or args.boot_shell) and args.wheel:
        parser.error("--boot: boots the Debian packages; leave out --wheel")
    return args


def check_build(build):
    """What is built must be this tree, of this version, and for /usr."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    for line in (f"CMAKE_HOME_DIRECTORY:INTERNAL={source.ROOT}", "CMAKE_INSTALL_PREFIX:PATH=/usr"):
        if f"\n{line}\n" not in cache:
            raise Failure(f"{build} was not configured with {line.replace(':INTERNAL', '').replace(':PATH', '')}: "
                          f"cmake {build} -DCMAKE_INSTALL_PREFIX=/usr && cmake --build {build} --target prd_installed")


def main(arguments):
    args = parse(arguments)
    booted = (args.boot or args.boot_shell) and not args.trial  # the wheel is not in the machine
    work = (args.work or source.ROOT / "build/package").resolve()
    out = (args.out or work / "out").resolve()
    try:
        for folder in (out, work):
            folder.mkdir(parents=True, exist_ok=True)
        build = args.build.resolve() if args.build is not None else None
        if build is not None:
            check_build(build)
        if not (args.wheel or args.made):
            made, build = debs.make(out, work, build, args.quick)
            print("\n".join(str(path) for path in made))
            tags = debs.lint(out)
            print("lintian is not installed: the packages were not checked" if tags is None else f"lintian: {len(tags)} errors and warnings")
            if tags:
                raise Failure("\n".join(tags))
        if not (args.debs or args.made or booted):
            print(wheel.make(out, build))
        if args.made and not set(boot.OWN) <= set(boot.debs_of(out)):
            raise Failure(f"--made: not all of {', '.join(boot.OWN)} are in {out}: first tools/package --out {out}")
        if args.trial:
            trial.run_all(out, work, args.try_torch)
        if args.boot:
            boot.run_all(out, work)
        if args.boot_shell:
            boot.shell(out, work)
    except (Failure, OSError) as error:
        print(f"tools/package: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
