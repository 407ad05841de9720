#!/usr/bin/env python3
"""Manual pages from what the programs and the configuration say of themselves.

Usage: manual.py PROGRAM > PROGRAM.1          of `PROGRAM --help`, and of its subcommands' --help
       manual.py --config prd.toml > prd.toml.5
       manual.py --python-program FOLDER prd.run > prd.run.1      of what its function parser() makes; FOLDER has the package
       manual.py --python-module FOLDER prd.torch > prd.torch.3   of its docstrings
"""
import ast
import importlib
import pathlib
import re
import subprocess
import sys

# The files of the configuration, in both pages.
FILES = [
    ("/etc/prd/prd.toml", "The configuration of the daemon."),
    ("/usr/share/prd", "Samples: prd.toml with every key, one for each engine, and prd-worker@.service, a worker as a service."),
    ("/run/prd", "The sockets where workers of this host and prdctl connect."),
    ("/var/lib/prd", "The history of every decision, from which a daemon that was killed goes on."),
]
SEE_ALSO = ["prd(1)", "prdctl(1)", "prd.run(1)", "prd.torch(3)", "prd.toml(5)"]
ENTRY = re.compile(r"  (\S.*)$")


def escape(text):
    """For troff: characters that mean something to it, and a dot that would begin a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti").replace("`", "\\(ga")
    return "\\&" + text if text[:1] in (".", "\\") and not text.startswith(("\\-", "\\(", "\\e")) else text


class Help:
    """The output of --help, in its parts."""

    def __init__(self, text):
        self.about, rest = text.split("\nUsage: ", 1)
        self.usage, _, rest = rest.partition("\n")
        self.sections = {}  # title: [(head, description)]
        footer, entries = [], None
        for line in rest.split("\n"):
            if not footer and re.fullmatch(r"(Positionals|Options|Subcommands):", line):
                entries = self.sections.setdefault(line[:-1], [])
            elif footer or (line and not line.startswith(" ")):
                footer.append(line)  # what follows the last section
            elif line.startswith(" " * 30):
                head, description = entries[-1]
                entries[-1] = (head, f"{description} {line.strip()}".strip())
            elif ENTRY.match(line):
                entries.append(self._entry(line))
        self.footer = "\n".join(footer).strip("\n")

    @staticmethod
    def _entry(line):
        """A name and its description: that begins in column 30, or in the next line."""
        head, description = line[:30].strip(), line[30:]
        if line[29:30] != " " or (description and description[0] == " "):
            head, description = line.strip(), ""
        return head, description.strip()


def help_of(program, *command):
    run = subprocess.run([program, *command, "--help"], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"manual.py: {program} {' '.join(command)} --help ended with {run.returncode}: {run.stderr.strip()}")
    return Help(run.stdout)


def entry(head, description):
    """An option or an argument: `-r,--run TEXT`, say, in bold but for what it takes."""
    names, _, takes = head.partition(" ")
    names = ", ".join(f"\\fB{escape(name)}\\fR" for name in names.split(","))
    needs = ""
    if " Needs: " in f" {takes}":
        takes, _, needed = f" {takes}".partition(" Needs: ")
        needs = f" Only with \\fB{escape(needed)}\\fR."
    if " Excludes: " in f" {takes}":
        takes, _, excluded = f" {takes}".partition(" Excludes: ")
        needs = f" Not with \\fB{escape(excluded)}\\fR."
    takes = f" \\fI{escape(takes.strip())}\\fR" if takes.strip() else ""
    dot = "" if description.endswith(".") else "."
    return [".TP", f"{names}{takes}", escape(description) + dot + needs]


def paragraphs(text, between=".PP"):
    """Text as it stands in a terminal: examples and tables, which have spaces in a row, keep their lines."""
    lines, verbatim = [], False
    for line in text.split("\n"):
        table = "  " in line
        if table != verbatim:
            lines.append(".EX" if table else ".EE")
            verbatim = table
        lines.append(escape(line) if line else between)
    return lines + [".EE"] * verbatim


# Paragraphs at the end of --help that are sections of a manual page, by how they begin.
TITLES = {"Examples:": "EXAMPLES", "A first run:": "EXAMPLES", "Exit codes:": "EXIT STATUS", "Signals:": "SIGNALS",
          "As a service:": "UNDER SYSTEMD"}


def footer(text):
    lines = []
    for part in re.split(rf"^(?={'|'.join(TITLES)})", text, flags=re.MULTILINE):
        begin = next((begin for begin in TITLES if part.startswith(begin)), None)
        if begin:
            part = part[len(begin):].removeprefix(" ")
        if part.strip():
            lines += [f".SH {TITLES.get(begin, 'NOTES')}", *paragraphs(part.strip("\n"))]
    return lines


def page(name, section, version, what):
    return [f'.TH "{name}" "{section}" "" "{version}" "prd"', ".SH NAME", f"{escape(name)} \\- {escape(what)}"]


def ending(name):
    lines = [".SH FILES"]
    for path, what in FILES:
        lines += [".TP", f"\\fI{path}\\fR", escape(what)]
    see = [f"\\fB{escape(other[:-3])}\\fR{other[-3:]}" for other in SEE_ALSO if not other.startswith(f"{name}(")]
    return lines + [".SH SEE ALSO", ", ".join(see)]


def summary(name, about):
    """The first sentence, as the line of NAME wants it."""
    sentence = re.split(r"[.:](?:\s|$)", " ".join(about.split()))[0].removeprefix(f"{name} ")
    return sentence[0].lower() + sentence[1:]


def program_page(program):
    name = pathlib.Path(program).name
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    top = help_of(program)
    lines = page(name, 1, version, summary(name, top.about))
    lines += [".SH SYNOPSIS", f"\\fB{name}\\fR {escape(top.usage.split(' ', 1)[1])}", ".SH DESCRIPTION", *paragraphs(top.about)]
    lines.append(".SH OPTIONS")
    for option in top.sections["Options"]:
        lines += entry(*option)
    if "Subcommands" in top.sections:
        lines.append(".SH COMMANDS")
    for command, about in top.sections.get("Subcommands", []):
        part = help_of(program, command)
        arguments = part.usage.split(" ", 1)[1].replace(command, "", 1).strip()
        lines += [f".SS {name} {escape(command)} {escape(arguments)}".rstrip(), escape(part.about or about) + "."]
        for title in ("Positionals", "Options"):
            for option in part.sections.get(title, []):
                if not option[0].startswith("-h,"):
                    lines += entry(*option)
        own = re.sub(r"Examples, exit codes:.*$", "", part.footer.replace(top.footer, "")).strip("\n")
        lines += [".PP", *paragraphs(own)] if own else []
    return lines + footer(top.footer) + ending(name)


def config_page(path):
    """Of prd.toml: its comments are the manual, a block for each key."""
    text = path.read_text(encoding="utf-8")
    head, *blocks = re.split(r"\n\n+", text.strip())

    def bare(lines):
        return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)

    lines = page("prd.toml", 5, "prd", "configuration of prd, the controller of data-parallel training")
    lines += [".SH DESCRIPTION", *paragraphs(bare(head.splitlines())), ".SH KEYS"]
    for block in blocks:
        *comment, last = block.splitlines()
        last = last.removeprefix("#")
        allowed = next((i for i, line in enumerate(comment) if re.match(r"# (Allowed|Required): ", line)), len(comment))
        about, limits = bare(comment[:allowed]), bare(comment[allowed:])
        if last.startswith("["):
            lines += [f".SS {escape(last)}", *paragraphs(about)]
        else:
            lines += [".TP", f"\\fB{escape(last)}\\fR", *paragraphs(about, ".IP")]
        if limits:
            lines += [".IP", *paragraphs(limits)] if about and not last.startswith("[") else paragraphs(limits)
    return lines + ending("prd.toml")


def version_of(folder):
    return re.search(r'__version__ = "(.*)"', (folder / "prd/__init__.py").read_text(encoding="utf-8"))[1]


def python_program_page(folder, name):
    """Of a module whose function parser() gives an argparse.ArgumentParser."""
    sys.path.insert(0, str(folder))
    parser = importlib.import_module(name).parser()
    actions = [action for action in parser._actions if action.option_strings != ["-h", "--help"]]
    lines = page(name, 1, f"prd {version_of(folder)}", summary(name, parser.description))
    lines += [".SH SYNOPSIS", f"\\fB{escape(parser.prog)}\\fR {escape('-n WORKERS [OPTION ...] script [ARGUMENT ...]')}",
              ".SH DESCRIPTION", escape(parser.description), ".SH OPTIONS"]
    for action in actions:
        takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        if action.option_strings:
            lines += entry(",".join(action.option_strings) + takes, action.help)
        else:
            lines += entry(action.metavar or action.dest, action.help)
    return lines + footer(parser.epilog.strip("\n")) + ending(name)


def python_module_page(folder, name):
    """Of the docstrings of its functions, and of its classes' methods and properties; it is read, not run."""
    tree = module(folder, name)
    about = ast.get_docstring(tree, clean=False).strip()
    lines = page(name, 3, f"prd {version_of(folder)}", about.partition("\n")[0].partition(": ")[2].rstrip("."))
    lines += [".SH SYNOPSIS", f"\\fBimport {escape(name)}\\fR", ".SH DESCRIPTION", *paragraphs(about), ".SH FUNCTIONS"]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            lines += documented(f"{name}.", node)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            lines += [f".SH CLASS {escape(node.name.upper())}", *paragraphs(ast.get_docstring(node))]
            for member in [*node.body, *inherited(folder, tree, node)]:
                lines += documented("", member)
    return lines + ending(name)


def module(folder, name):
    path = folder / name.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def inherited(folder, tree, node):
    """The members of the base classes that the module imports from others."""
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    for imported in tree.body:
        if isinstance(imported, ast.ImportFrom) and bases & {alias.name for alias in imported.names}:
            for there in module(folder, imported.module).body:
                if isinstance(there, ast.ClassDef) and there.name in bases:
                    yield from there.body


def documented(prefix, node):
    """A public function, or a property: `name = property(..., doc="...")` is one, too."""
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        given = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
        about, call = ast.get_docstring(node), "" if "property" in decorators else f"({given})"
        return [".TP", f"\\fB{escape(prefix + node.name)}\\fR{escape(call)}", *paragraphs(about or "", ".IP")]
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "property":
        about = next((keyword.value.value for keyword in node.value.keywords if keyword.arg == "doc"), "")
        return [".TP", f"\\fB{escape(node.targets[0].id)}\\fR", escape(about)]
    return []


def main(arguments):
    if arguments in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    if len(arguments) == 2 and arguments[0] == "--config":
        lines = config_page(pathlib.Path(arguments[1]))
    elif len(arguments) == 3 and arguments[0] in ("--python-program", "--python-module"):
        make = python_program_page if arguments[0] == "--python-program" else python_module_page
        lines = make(pathlib.Path(arguments[1]), arguments[2])
    elif len(arguments) == 1 and not arguments[0].startswith("-"):
        lines = program_page(arguments[0])
    else:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
