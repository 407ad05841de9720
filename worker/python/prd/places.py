"""Where the library and the programs are that belong to this package."""
import pathlib

_PACKAGE = pathlib.Path(__file__).resolve().parent
_ABOVE = _PACKAGE.parent.parent.parent  # a clone's root; of an installed package, the folder lib of its prefix


def library():
    """libprd.so.0 of this wheel, this clone or this prefix; None: where the system looks for libraries."""
    found = [_PACKAGE / ".libs/libprd.so.0", _ABOVE / "build/release/worker/libprd.so.0"]
    if _ABOVE.name == "lib" and _ABOVE.parent != pathlib.Path("/usr"):
        found += [_ABOVE / "libprd.so.0", *_ABOVE.glob("*-linux-*/libprd.so.0")]
    return next((str(path) for path in found if path.exists()), None)


def program(name):
    """The program of this wheel, this clone or this prefix; else its bare name: what PATH has."""
    found = [_PACKAGE / ".bin" / name, _ABOVE / "build/release/bin" / name]
    if _ABOVE.name == "lib":
        found.append(_ABOVE.parent / "bin" / name)
    return next((str(path) for path in found if path.exists()), name)
