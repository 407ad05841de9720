"""The last words of each test that failed. Usage: failures.py JUNIT_FILE"""
import sys
import xml.etree.ElementTree as ElementTree

LINES = 12

try:
    root = ElementTree.parse(sys.argv[1]).getroot()
except (OSError, ElementTree.ParseError) as error:
    sys.exit(f"{sys.argv[1]}: {error}")
for case in root.iter("testcase"):
    if case.get("status") == "fail":
        output = (case.findtext("system-out") or "").strip().splitlines()
        print(f"== {case.get('name')}, the end of its output:", *output[-LINES:], sep="\n  ")
