"""The wheel: the package, with libprd.so, the programs, and what these need. For any Python 3.9 and later."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import source
from source import Failure, run

# What every Linux with glibc has (PEP 599), in the names that the loader knows. Everything else goes into the wheel.
OF_THE_SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|ld-linux[-a-z0-9_]*)\.so\.\d+$")
# libstdc++'s symbol versions, and the glibc of the oldest distributions that have them: the numbers of manylinux tags.
GLIBC_OF_LIBSTDCXX = {(3, 4, 28): 31, (3, 4, 29): 34, (3, 4, 30): 35, (3, 4, 31): 38, (3, 4, 32): 38, (3, 4, 33): 39}


PROGRAMS = ["prd", "prdctl"]
# What pip makes a program of: it puts the interpreter into the first line.
SCRIPT = """#!python
import importlib.util, os, sys
folder = importlib.util.find_spec("prd").submodule_search_locations[0]
os.execv(os.path.join(folder, ".bin", "NAME"), ["NAME", *sys.argv[1:]])
"""


def needed(path):
    """The names that it is linked with."""
    return re.findall(r"^\s*NEEDED\s+(\S+)", run(["objdump", "-p", path]), re.MULTILINE)


def resolved(path):
    """The files of these names here, and of those that they need, by name."""
    found = dict(re.findall(r"^\s*(\S+) => (/\S+) ", run(["ldd", path]), re.MULTILINE))
    missing = re.findall(r"^\s*(\S+) => not found", run(["ldd", path]), re.MULTILINE)
    if missing:
        raise Failure(f"{path} needs {', '.join(missing)}, which this system does not have")
    return found


def symbol_versions(files):
    """Of the symbols of glibc (GLIBC) and libstdc++ (GLIBCXX) that they need: the newest."""
    newest = {"GLIBC": (0,), "GLIBCXX": (0,)}
    for path in files:
        for name, found in re.findall(r" 0x\S+ 0x\d+ \d+ (GLIBC|GLIBCXX)_([\d.]+)$", run(["objdump", "-p", path]), re.MULTILINE):
            newest[name] = max(newest[name], tuple(int(part) for part in found.split(".")))
    return newest["GLIBC"], newest["GLIBCXX"]


def tag(files, machine):
    """manylinux_2_N, where N is the oldest glibc (PEP 600) that has what the files need."""
    glibc, libstdcxx = symbol_versions(files)
    if glibc[0] > 2 or libstdcxx > max(GLIBC_OF_LIBSTDCXX):
        raise Failure(f"no manylinux tag is known for GLIBC_{glibc} and GLIBCXX_{libstdcxx}: see GLIBC_OF_LIBSTDCXX")
    of_libstdcxx = min((minor for version, minor in GLIBC_OF_LIBSTDCXX.items() if version >= libstdcxx), default=17)
    return f"py3-none-manylinux_2_{max(glibc[1], of_libstdcxx)}_{machine}"


def licence_of(path):
    """The Debian package that a library is from, and the file that says its licence."""
    for name in (path, os.path.realpath(path), os.path.realpath(path).replace("/usr/lib/", "/lib/", 1)):
        done = subprocess.run(["dpkg-query", "-S", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if done.returncode == 0:
            package = done.stdout.split(":")[0]
            text = pathlib.Path(f"/usr/share/doc/{package}/copyright")
            if text.exists():
                return package, text
    raise Failure(f"{path}: no Debian package has it, so its licence is not known")


def bundle(build, package):
    """Copies the library, the module for GPUs if there is one, the programs, and what they need, into the package. Names of
    other libraries' copies are their own (by hash), so that no other copy of these in the process is met."""
    libs, programs = package / ".libs", package / ".bin"
    ours = {build / "worker/libprd.so.0": libs / "libprd.so.0", build / "worker/libprd_cuda.so": libs / "libprd_cuda.so",
            **{build / "bin" / name: programs / name for name in PROGRAMS}}
    ours = {path: to for path, to in ours.items() if path.exists() or to.name != "libprd_cuda.so"}
    missing = [str(path) for path in ours if not path.exists()]
    if missing:
        raise Failure(f"{', '.join(missing)}: not there; cmake --build {build} --target prd_installed")
    others = {name: path for file in ours for name, path in resolved(file).items() if not OF_THE_SYSTEM.match(name)}
    copies = {path: to for path, to in ours.items()}
    names = {}
    (libs / "licences").mkdir(parents=True)
    programs.mkdir()
    for name, path in others.items():
        digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:8]
        stem, dot, rest = name.partition(".so")
        names[name] = f"{stem}-{digest}{dot}{rest}"
        copies[path] = libs / names[name]
        owner, text = licence_of(path)
        shutil.copy(text, libs / "licences" / owner)
    for path, to in copies.items():
        shutil.copy(os.path.realpath(path), to)
        to.chmod(0o755)
        run(["strip", "--strip-unneeded", to])
        changes = [["--replace-needed", name, names[name]] for name in needed(to) if name in names]
        changes += [["--set-soname", to.name]] if to.name in names.values() else []
        changes += [["--set-rpath", "$ORIGIN" if to.parent == libs else "$ORIGIN/../.libs"]]
        for change in changes:  # one at a time: patchelf 0.14 loses some of several
            run(["patchelf", *change, to])
    for to in copies.values():
        strange = [name for name in needed(to) if not OF_THE_SYSTEM.match(name) and not (libs / name).exists()]
        if strange:
            raise Failure(f"{to.name} needs {', '.join(strange)}, which is neither in the wheel nor of every system")
    return list(copies.values())


def make(out, build):
    """Makes it in the folder `out`. Returns its path."""
    for program, package in (("patchelf", "patchelf"), ("strip", "binutils")):
        if shutil.which(program) is None:
            raise Failure(f"Debian package {package} is missing; tools/deps installs it")
    with tempfile.TemporaryDirectory(prefix="prd-wheel-") as folder:
        work = pathlib.Path(folder)
        package = work / "package"
        source.copy(work / "tree")
        shutil.copytree(work / "tree/worker/python", package)
        python = ["/usr/bin/python3", "-B", "-m"]
        for module_name, debian in (("build", "python3-build"), ("wheel", "python3-wheel"), ("setuptools", "python3-setuptools")):
            if subprocess.run([*python[:-1], "-c", f"import {module_name}"], stderr=subprocess.DEVNULL).returncode != 0:
                raise Failure(f"Debian package {debian} is missing; tools/deps installs it")
        run([*python, "build", "--skip-dependency-check", "--no-isolation", "--wheel", "--outdir", work / "pure", package])
        run([*python, "wheel", "unpack", "--dest", work, next((work / "pure").glob("*.whl"))])
        unpacked = work / f"prd-{source.version()}"
        copies = bundle(build, unpacked / "prd")
        scripts = unpacked / f"prd-{source.version()}.data/scripts"
        scripts.mkdir(parents=True)
        for name in PROGRAMS:
            (scripts / name).write_text(SCRIPT.replace("NAME", name), encoding="utf-8")
            (scripts / name).chmod(0o755)
        info = next(unpacked.glob("*.dist-info"))
        shutil.copy(source.ROOT / "LICENSE", info / "LICENSE")
        text = (info / "WHEEL").read_text(encoding="utf-8").replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        text = re.sub(r"^Tag: .*$", f"Tag: {tag(copies, os.uname().machine)}", text, flags=re.MULTILINE)
        (info / "WHEEL").write_text(text, encoding="utf-8")
        run([*python, "wheel", "pack", "--dest-dir", work, unpacked], env=dict(os.environ, SOURCE_DATE_EPOCH=str(int(source.date().timestamp()))))
        made = next(work.glob("prd-*.whl"))
        for old in out.glob("prd-[0-9]*-py3-none-*.whl"):  # of another version, or for other systems
            old.unlink()
        return pathlib.Path(shutil.move(made, out / made.name))
