#!/usr/bin/env python3
"""The packages of what is built: what is in them, and that the wheel's works. Usage: package_test.py BUILD_DIR [TEST ...]

A fresh Debian 12 with them: tools/package --try.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/release").resolve()
PYTHON = "/usr/bin/python3"
VERSION = re.search(r'__version__ = "(.*)"', (ROOT / "worker/python/prd/__init__.py").read_text())[1]


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def package(*arguments):
    return subprocess.run([ROOT / "tools/package", *[str(word) for word in arguments]], capture_output=True, text=True)


class Packages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prd-test-")
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)

    def wheel(self, again=False):
        """The wheel of this build. test_wheel makes it, for the other tests too."""
        folder = BUILD / "wheel"
        if again:
            shutil.rmtree(folder, ignore_errors=True)
        found = next(folder.glob("out/*.whl"), None)
        return found or pathlib.Path(self.make("--wheel", work=folder).split()[-1])

    def make(self, *arguments, work=None):
        done = package("--build", BUILD, "--work", work or self.work, *arguments)
        if "was not configured with CMAKE_INSTALL_PREFIX=/usr" in done.stderr:
            self.skipTest(done.stderr)  # the preset "release" is
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def debs(self, again=False):
        """The folder of the Debian packages of this build. test_debs makes them, for test_boots too."""
        folder = BUILD / "debs"
        if again:
            shutil.rmtree(folder, ignore_errors=True)
        if not list(folder.glob("out/*.deb")):
            self.make("--debs", "--quick", work=folder)  # lintian, where it is installed, has no word against them
        return folder / "out"

    def test_debs(self):
        out = self.debs(again=True)
        architecture = run("dpkg", "--print-architecture").strip()
        names = {"libprd0": architecture, "libprd-dev": architecture, "prd": architecture, "prdctl": architecture, "python3-prd": "all"}
        self.assertEqual({path.name for path in out.glob("*.deb")}, {f"{name}_{VERSION}_{where}.deb" for name, where in names.items()})
        debs = {name: out / f"{name}_{VERSION}_{where}.deb" for name, where in names.items()}
        files = {}
        for name, path in debs.items():
            listed = [line.split(maxsplit=5) for line in run("dpkg-deb", "--contents", path).splitlines()]
            files[name] = {words[5].split(" -> ")[0].removeprefix("."): words[0] for words in listed if not words[0].startswith("d")}
            self.assertEqual({words[1] for words in listed}, {"root/root"})
            self.assertIn(f"/usr/share/doc/{name}/copyright", files[name])
        for first in names:
            for second in names:
                self.assertTrue(first == second or not set(files[first]) & set(files[second]), f"{first} and {second} have the same file")
        library = f"/usr/lib/{run('dpkg-architecture', '-qDEB_HOST_MULTIARCH').strip()}"
        self.assertLessEqual({f"{library}/libprd.so.0", f"{library}/libprd.so.{VERSION}"}, set(files["libprd0"]))
        self.assertLessEqual({f"{library}/libprd.so", f"{library}/pkgconfig/prd.pc", f"{library}/cmake/prd/prdConfig.cmake", "/usr/include/prd/prd.h",
                              "/usr/include/prd/session.h", "/usr/share/doc/libprd-dev/examples/train_linear.c"}, set(files["libprd-dev"]))
        self.assertLessEqual({"/usr/bin/prd", "/lib/systemd/system/prd.service", "/usr/lib/sysusers.d/prd.conf", "/etc/prd/prd.toml",
                              "/usr/share/man/man1/prd.1.gz", "/usr/share/man/man5/prd.toml.5.gz", "/usr/share/prd/engines.json",
                              "/usr/share/prd/prd-worker@.service",
                              "/usr/share/bash-completion/completions/prd"}, set(files["prd"]))
        self.assertEqual({path.name for path in (ROOT / "config").glob("*.toml")},
                         {pathlib.Path(name).name for name in files["prd"] if name.startswith("/usr/share/prd/") and name.endswith(".toml")})
        self.assertLessEqual({"/usr/bin/prdctl", "/usr/share/man/man1/prdctl.1.gz", "/usr/share/bash-completion/completions/prdctl"}, set(files["prdctl"]))
        modules = {f"/usr/lib/python3/dist-packages/{path.relative_to(ROOT / 'worker/python')}" for path in (ROOT / "worker/python/prd").rglob("*.py")}
        self.assertLessEqual({*modules, "/usr/share/man/man1/prd.run.1.gz", "/usr/share/man/man3/prd.torch.3.gz"}, set(files["python3-prd"]))

        def field(name, of):
            return run("dpkg-deb", "--field", debs[of], name)

        self.assertIn("libzmq5", field("Depends", "libprd0"))
        self.assertIn(f"libprd0 (= {VERSION})", field("Depends", "libprd-dev"))
        minor = VERSION.rpartition(".")[0]
        later = f"{minor.split('.')[0]}.{int(minor.split('.')[1]) + 1}~"
        self.assertRegex(field("Depends", "python3-prd"), rf"libprd0 \(>= {VERSION}\), libprd0 \(<< {later}\)".replace(".", r"\."))
        run("dpkg-deb", "--control", debs["prd"], self.work / "control")
        self.assertEqual((self.work / "control/conffiles").read_text().split(), ["/etc/prd/prd.toml"])
        self.assertIn("systemd-sysusers", (self.work / "control/postinst").read_text())
        self.assertIn("/var/lib/prd", (self.work / "control/postrm").read_text())
        run("dpkg-deb", "--control", debs["libprd0"], self.work / "libprd0")
        self.assertIn(f"libprd 0 libprd0 (>= {VERSION}), libprd0 (<< {later})", (self.work / "libprd0/shlibs").read_text())
        self.assertIn("ldconfig", (self.work / "libprd0/triggers").read_text())

    def test_wheel(self):
        wheel = self.wheel(again=True)
        self.assertRegex(wheel.name, rf"^prd-{re.escape(VERSION)}-py3-none-manylinux_2_\d+_{os.uname().machine}\.whl$")
        run(PYTHON, "-m", "installer", "--destdir", self.work / "target", wheel)  # holds its files to its list of them
        target = next((self.work / "target").glob("**/prd/__init__.py")).parents[1]
        glibc = int(re.search(r"manylinux_2_(\d+)_", wheel.name)[1])
        libraries = [path for path in target.glob("prd/.libs/*") if path.is_file()]
        self.assertTrue(any(path.name.startswith("libzmq-") for path in libraries))
        for path in [*libraries, *target.glob("prd/.bin/*")]:
            with self.subTest(path=path.name):
                for needed in re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", path)):
                    own = (target / "prd/.libs" / needed).exists()
                    system = re.match(r"(libc|libm|libpthread|libresolv|librt|libdl|libgcc_s|libstdc\+\+|ld-linux-\S+)\.so\.\d$", needed)
                    self.assertNotEqual(own, bool(system), f"{needed}: of the wheel, or of every system")
                versions = re.findall(r"\(GLIBC_2\.(\d+)", run("objdump", "-T", path))
                self.assertLessEqual(max(int(version) for version in versions), glibc)
        self.assertGreater(len(list(target.glob("prd/.libs/licences/*"))), 10)
        environment = {"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin", "TMPDIR": str(self.work)}
        for name in ("prd", "prdctl"):
            script = next((self.work / "target").glob(f"**/bin/{name}"))
            self.assertEqual(run(script, "--version", env=environment).strip(), f"{name} {VERSION}")
        # The library that is loaded is the wheel's, and so is the daemon that prd.run starts.
        said = run(PYTHON, "-m", "prd.run", "-n", "2", "--engine", "all-reduce", ROOT / "tools/package_lib/trial/train.py", env=environment, timeout=100)
        self.assertEqual(len(re.findall(rf"{re.escape(VERSION)} all-reduce: rank \d of 2, error 0\.0", said)), 2, said)
        maps = run(PYTHON, "-c", "import prd._abi as a; a.library(); print(open('/proc/self/maps').read())", env=environment)
        loaded = set(re.findall(r"/\S*/lib(?:prd|zmq|kj|capnp|crypto)[-.]\S*", maps))
        self.assertGreaterEqual(len(loaded), 5)
        self.assertEqual({path for path in loaded if not path.startswith(str(target))}, set())

    def environment_of(self, python):
        """A fresh virtual environment, and what a shell that is in it knows."""
        venv = self.work / f"venv-{pathlib.Path(python).name}"
        run(python, "-m", "venv", venv)
        return venv, {"PATH": f"{venv}/bin:/usr/bin:/bin", "TMPDIR": str(self.work), "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def installed(self, venv):
        return {str(path.relative_to(venv)) for path in venv.rglob("*") if "__pycache__" not in path.parts}

    def test_wheel_in_every_python(self):
        """Installed by pip, it trains; removed, it leaves nothing. In the oldest and the newest that are here."""
        wheel = self.wheel()
        pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
        here = []
        for name in (f"python3.{minor}" for minor in range(9, 14)):
            paths = [*pyenv.glob(f"versions/{name.removeprefix('python')}.*/bin/{name}"), f"/usr/bin/{name}"]
            here += [path for path in paths if os.access(path, os.X_OK)][:1]
        for python in sorted({here[0], here[-1]}, key=here.index):
            with self.subTest(python=str(python)):
                venv, environment = self.environment_of(python)
                before = self.installed(venv)
                run("pip", "install", "--quiet", wheel, env=environment)
                said = run("python3", "-m", "prd.run", "-n", "2", "--engine", "p-reduce", ROOT / "tools/package_lib/trial/train.py", env=environment, timeout=100)
                self.assertEqual(len(re.findall(rf"{re.escape(VERSION)} p-reduce: rank \d of 2, error 0\.0", said)), 2, said)
                self.assertIn(VERSION, run("prdctl", "--version", env=environment))
                run("pip", "uninstall", "--quiet", "--yes", "prd", env=environment)
                self.assertEqual(self.installed(venv), before)

    def test_wheel_with_pytorch(self):
        """The README's lines for pip, with the PyTorch that the tests have."""
        pytorch = ROOT / "build/venv"
        if not (pytorch / "requirements.txt").exists():
            self.skipTest("there is no build/venv, which tools/test_lib/venv makes")
        block = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
        shutil.copy(self.wheel(), self.work)
        shutil.copy(ROOT / "worker/python/examples/first.py", self.work)
        venv, environment = self.environment_of(PYTHON)
        packages = next(venv.glob("lib/*/site-packages"))
        (packages / "pytorch.pth").write_text(f"import sys; sys.path.insert(0, {str(next(pytorch.glob('lib/*/site-packages')))!r})\n")
        said = run("/bin/bash", "-ec", block, cwd=self.work, env=dict(environment, OMP_NUM_THREADS="1"), timeout=200)
        weights = re.findall(r"weights \[\[(.*)\]\]", said)
        self.assertEqual((len(weights), len(set(weights))), (4, 1), said)

    def test_boots(self):
        sys.path.insert(0, str(ROOT / "tools/package_lib"))
        import boot
        why = boot.missing()
        if why:
            self.skipTest(why)
        self.work = BUILD / "boot"  # the Debian root in it is made once
        self.make("--boot", "--made", "--out", self.debs())

    def test_install(self):
        """`cmake --install` of a build, and of parts of one: of a copy of the rules and the files, with some left out."""
        build, prefix = self.work / "build", self.work / "prefix"
        skip = shutil.ignore_patterns("CMakeFiles", "*.a", "*.o", "package", "boot", "debs", "wheel", "tests", "lib")
        shutil.copytree(BUILD, build, symlinks=True, ignore=skip)
        shutil.copytree(BUILD / "worker/CMakeFiles/Export", build / "worker/CMakeFiles/Export")
        for path in build.rglob("cmake_install.cmake"):
            text = path.read_text().replace(str(BUILD), str(build))
            path.write_text("" if "/tests" in str(path) else re.sub(r'.*include\("[^"]*/tests/cmake_install.cmake"\)', "", text))

        def install():
            return subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", build / "cmake_install.cmake"], capture_output=True, text=True)

        for optional in (*build.rglob("libprd_cuda.so"), build / "worker/prd.run.1"):
            optional.unlink(missing_ok=True)
        done = install()
        self.assertEqual(done.returncode, 0, done.stderr)
        package = prefix / "lib/python3/dist-packages"
        self.assertEqual({path.relative_to(package) for path in package.rglob("*") if path.is_file()},
                         {path.relative_to(ROOT / "worker/python") for path in (ROOT / "worker/python/prd").rglob("*.py")})
        # Nothing but the prefix is named: the package finds the daemon and the library there.
        said = run(PYTHON, "-B", "-m", "prd.run", "-n", "2", "--engine", "all-reduce", ROOT / "tools/package_lib/trial/train.py",
                   env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "TMPDIR": str(self.work)}, timeout=100)
        self.assertEqual(len(re.findall(rf"{re.escape(VERSION)} all-reduce: rank \d of 2, error 0\.0", said)), 2, said)
        shutil.rmtree(prefix)
        (build / "bin/prdctl").unlink()
        done = install()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("bin/prdctl is not built; first: cmake --build", done.stderr)
        self.assertFalse(prefix.exists(), "nothing is installed in part")

    def test_manual_pages(self):
        pages = {"prd.1": BUILD / "server/prd.1", "prd.toml.5": BUILD / "server/prd.toml.5", "prdctl.1": BUILD / "tools/prdctl/prdctl.1",
                 "prd.run.1": BUILD / "worker/prd.run.1", "prd.torch.3": BUILD / "worker/prd.torch.3"}
        texts = {name: path.read_text() for name, path in pages.items()}
        for name, text in texts.items():
            self.assertTrue(text.startswith(".TH "), name)
            self.assertIn("\n.SH NAME\n", text)
        for key in re.findall(r"^#?([a-z_]+) = ", (ROOT / "config/prd.toml").read_text(), re.MULTILINE):
            self.assertIn(f"\\fB{key} = ", texts["prd.toml.5"].replace("\\-", "-"))
        for program, name in (("prd", "prd.1"), ("prdctl", "prdctl.1")):
            helped = run(BUILD / "bin" / program, "--help")
            for option in re.findall(r"^  (?:-\w,)?(--[a-z-]+)", helped, re.MULTILINE):
                self.assertIn(f"\\fB{option}\\fR", texts[name].replace("\\-", "-"))
        helped = run(PYTHON, "-B", "-m", "prd.run", "--help", env={"PYTHONPATH": str(ROOT / "worker/python")})
        for option in set(re.findall(r"(--[a-z-]+)", helped)) - {"--help"}:
            self.assertIn(option, texts["prd.run.1"].replace("\\-", "-"))
        for name in ("attach", "step", "shard", "clock", "engine"):
            self.assertIn(f"{name}\\fR", texts["prd.torch.3"].replace("prd.torch.attach", "attach"))
        if shutil.which("man") is None:
            self.skipTest("man is not installed")
        for name, path in pages.items():
            done = subprocess.run(["man", "--warnings", "--local-file", "--encoding=UTF-8", path], capture_output=True, text=True,
                                  env=dict(os.environ, MANWIDTH="120", LANG="C.UTF-8", LC_ALL="C.UTF-8"))
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertIn("SEE ALSO", done.stdout)

    def test_what_is_wrong_is_said(self):
        groups = {name: run(ROOT / "tools/deps", "--list", *[name] * bool(name)).split() for name in ("", "build", "package")}
        self.assertIn("libzmq3-dev", groups["build"])
        self.assertIn("debhelper", groups["package"])
        self.assertLessEqual({*groups["build"], *groups["package"]}, set(groups[""]))
        self.assertFalse(set(groups["build"]) & set(groups["package"]))
        for arguments, word in ((["--wheel"], "--wheel: needs --build DIR"), (["--build", "/nowhere"], "--build: found /nowhere"),
                                (["--try", "--debs"], "leave out --debs"), (["--made"], "--made: makes no packages"), (["--boot", "--wheel", "--build", BUILD], "leave out --wheel")):
            done = package(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(word, done.stderr)
        fake = self.work / "fake"
        fake.mkdir()
        (fake / "CMakeCache.txt").write_text("CMAKE_INSTALL_PREFIX:PATH=/opt\n")
        out = self.work / "packages"
        out.mkdir()
        there = [out / name for name in ("my_prd_notes.txt", "prd_0.9_amd64.deb", "prd-0.9-py3-none-any.whl")]
        for path in there:
            path.touch()
        done = package("--boot", "--made", "--work", self.work, "--out", out)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--made: not all of libprd0, ", done.stderr)
        done = package("--build", fake, "--work", self.work, "--out", out)
        self.assertEqual(done.returncode, 1)
        self.assertIn("-DCMAKE_INSTALL_PREFIX=/usr", done.stderr)
        self.assertEqual(sorted(out.iterdir()), sorted(there), "what was there before is another's, or an earlier one")


if __name__ == "__main__":
    unittest.main()
