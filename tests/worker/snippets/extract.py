#!/usr/bin/env python3
"""Writes the C++ snippets of the manuals as files that a test includes.

Usage: extract.py OUT_DIR FILE... A snippet is a block fenced by ```cpp in a Markdown file, or in a header the indented
block of its first comment. Snippet N of README.md becomes OUT_DIR/README_N.inc; of worker/README.md worker_README_N.inc.
OUT_DIR/counts.inc has one line per file, `constexpr int kREADME = N;`, so that the test notices a snippet that it does
not have.
"""
import pathlib
import sys
import textwrap


def fenced(text):
    blocks, block = [], None
    for line in text.splitlines():
        if block is None:
            if line.strip() == "```cpp":
                block = []
        elif line.strip() == "```":
            blocks.append(block)
            block = None
        else:
            block.append(line)
    if block is not None:
        sys.exit("a ```cpp block has no end")
    return blocks


def of_first_comment(text):
    blocks, block = [], []
    for line in text.splitlines() + ["end"]:
        code = line.startswith("//   ")
        if code:
            block.append(line[2:])
        elif block:
            blocks.append(block)
            block = []
        if not line.startswith("//"):
            return blocks
    return blocks


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    counts = ""
    for name in sys.argv[2:]:
        path = pathlib.Path(name)
        text = path.read_text()
        blocks = fenced(text) if path.suffix == ".md" else of_first_comment(text)
        parent = path.parent.name if path.parent.name == "worker" else ""
        stem = (parent + "_" if parent else "") + path.stem
        for number, block in enumerate(blocks, 1):
            (out / f"{stem}_{number}.inc").write_text(textwrap.dedent("\n".join(block)) + "\n")
        counts += f"constexpr int k{stem} = {len(blocks)};\n"
    (out / "counts.inc").write_text(counts)


main()
