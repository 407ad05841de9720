"""Types of command line arguments.."""
import argparse
import pathlib


def number(kind, low, high):
    """An argparse type: a number in [low, high]."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"found '{text}', allowed is {low} to {high}")
        return value

    return parse


def folder(text):
    """An argparse type: a folder, from wherever its programs are started (PRD_BIN)."""
    return pathlib.Path(text).resolve()
