"""What --engines names: engines with options, and the tables of the config that say so. Pure.

Which engines and options there are, prd says (`prd --engines-json`).
"""
import json
import re

KEY = re.compile(r"[a-z][a-z_]*")
TEXT = re.compile(r"[A-Za-z0-9_.-]+")
NUMBERS = {"whole": int, "real": float}
JOB_KEYS = [{"key": "batch", "type": "whole", "least": 1, "most": 2**31}]  # of [[job]], beside the engine's own


def catalogue(text):
    """prd's engines by name, from what `prd --engines-json` prints."""
    return {engine["name"]: engine for engine in json.loads(text)["engines"]}


def wrong(what, found, allowed):
    return ValueError(f"{what}found '{found}', allowed is {allowed}")


def check_number(value, key):
    """Raises ValueError unless `value` is a number that the key may have."""
    number = NUMBERS[key["type"]](value)
    below = number <= key["most"] if "most" in key else number < key["below"]
    if not (number >= key["least"] and below):  # as is a NaN
        raise ValueError(value)


def toml(name, key, value):
    """The value of a key of the engine `name` as TOML has it. Raises ValueError with what is wrong."""
    what = f"{name}: {key['key']}: "
    if key["type"] == "flag":
        if value not in ("true", "false"):
            raise wrong(what, value, "true or false")
        return value
    if value in key.get("names", []):
        return f'"{value}"'
    allowed = ", ".join(key.get("names", []))
    if key["type"] in NUMBERS:
        end = f"to {key['most']}" if "most" in key else f"to below {key['below']}"
        allowed += (", or " if allowed else "") + f"a {key['type']} number from {key['least']} {end}"
        try:
            check_number(value, key)
        except ValueError:
            raise wrong(what, value, allowed) from None
        return value
    raise wrong(what, value, allowed)


class Engine:
    """One specification: NAME, or NAME:KEY=VALUE,... `known` is a catalogue()."""

    def __init__(self, text, known):
        self.text = text
        self.name, colon, settings = text.partition(":")
        if self.name not in known:
            raise wrong("", text, f"different engines of {', '.join(known)}, as in all-reduce,p-reduce:group_size=5")
        self.plan = known[self.name]["plan"]
        self.keys = {key["key"]: key for key in known[self.name]["keys"]}
        self.options = {}
        self.job_options = {}
        for_job = {key["key"]: key for key in JOB_KEYS}
        for setting in settings.split(",") if colon else []:
            key, _, value = setting.partition("=")
            if not KEY.fullmatch(key) or not TEXT.fullmatch(value) or key in self.options or key in self.job_options:
                raise wrong("", text, "KEY=VALUE after the colon, each key once")
            if key in for_job and key not in self.keys:
                self.job_options[key] = toml(self.name, for_job[key], value)
                continue
            if key not in self.keys:
                raise wrong(f"{self.name}: ", key, ", ".join([*self.keys, *for_job]))
            toml(self.name, self.keys[key], value)
            self.options[key] = value

    @property
    def file_name(self):
        """The specification as part of a file's name."""
        return re.sub(r"[:=,]", "-", self.text)

    def settings(self, group_size):
        """{key: value}. Where the engine has a group_size, and no other is asked for, it is this one."""
        return {**({"group_size": str(group_size)} if "group_size" in self.keys else {}), **self.options}

    def job_lines(self):
        """Lines of [[job]]."""
        return [f"{key} = {value}" for key, value in self.job_options.items()]

    def table(self, group_size):
        """The lines of [job.ENGINE]."""
        lines = [f"{key} = {toml(self.name, self.keys[key], value)}" for key, value in self.settings(group_size).items()]
        return [f"[job.{self.name}]", *lines]


def parse(text, known):
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
        raise wrong("", text, "each engine and its options once")
    return [Engine(one, known) for one in texts]


def tables(engine, others, group_size):
    """The tables of a config for `engine`, and for the others that the same demo runs.

    They are all in every config, so that between two engines the line `engine` alone differs; but of several
    specifications of one engine only one can be.
    """
    chosen = {}
    for other in others:
        if other.name not in chosen or not chosen[other.name].options:
            chosen[other.name] = other
    chosen[engine.name] = engine
    written = [one.table(group_size) for _, one in sorted(chosen.items())]
    return "\n\n".join("\n".join(lines) for lines in written if len(lines) > 1)
