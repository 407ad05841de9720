"""Types of command line arguments. Pure."""
import argparse


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
