"""What --engines names: engines with options, and the tables of the config that say so. Pure."""
import re

# Beside what a specification says. P comes from --group-size.
DEFAULTS = {"p-reduce": {"weights": "dynamic"}}
NAME = re.compile(r"[a-z][a-z-]*")
KEY = re.compile(r"[a-z][a-z_]*")
BARE = re.compile(r"true|false|[+-]?[0-9]+(\.[0-9]+)?")  # what TOML has without quotation marks
TEXT = re.compile(r"[A-Za-z0-9_.-]+")


class Engine:
    """One specification: "eager:quorum=solo", or "all-reduce"."""

    def __init__(self, text):
        self.text = text
        self.name, colon, settings = text.partition(":")
        self.options = {}
        for setting in settings.split(",") if colon else []:
            key, _, value = setting.partition("=")
            if not KEY.fullmatch(key) or not TEXT.fullmatch(value) or key in self.options:
                raise ValueError(text)
            self.options[key] = value
        if not NAME.fullmatch(self.name):
            raise ValueError(text)

    @property
    def file_name(self):
        """The specification as part of a file's name."""
        return re.sub(r"[:=,]", "-", self.text)

    def table(self, group_size):
        """The lines of [job.ENGINE]."""
        options = dict(DEFAULTS.get(self.name, {}))
        if self.name == "p-reduce":
            options = {"group_size": str(group_size), **options}
        options.update(self.options)
        lines = [f"[job.{self.name}]"]
        for key, value in options.items():
            lines.append(f"{key} = {value}" if BARE.fullmatch(value) else f'{key} = "{value}"')
        return lines


def parse(text):
    """The engines of a list as "all-reduce,p-reduce:group_size=5,weights=constant,eager:quorum=solo".

    What has a "=" before any ":" is a further option of the engine before it. Raises ValueError with what is wrong.
    """
    texts = []
    for part in text.split(","):
        if "=" in part.partition(":")[0] and texts:
            texts[-1] += "," + part
        else:
            texts.append(part)
    if len(set(texts)) != len(texts):
        raise ValueError(text)
    return [Engine(one) for one in texts]


def tables(engine, others, group_size):
    """The tables of a config for `engine`, and for the others that the same demo runs.

    They are all in every config, so that between two engines the line `engine` alone differs; but of several
    specifications of one engine only one can be.
    """
    chosen = {"p-reduce": Engine("p-reduce")}
    for other in others:
        if other.name not in chosen or not chosen[other.name].options:
            chosen[other.name] = other
    chosen[engine.name] = engine
    written = [one.table(group_size) for _, one in sorted(chosen.items())]
    return "\n\n".join("\n".join(lines) for lines in written if len(lines) > 1)
