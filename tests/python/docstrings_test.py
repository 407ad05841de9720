#!/usr/bin/env python3
"""Every public name of the package says what it is. Usage: docstrings_test.py BIN_DIR [TEST ...]"""
import place
import ast
import re
import unittest


def undocumented(path):
    """Public functions, classes, methods and properties of a module that have no docstring. Hooks have a framework's."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [] if ast.get_docstring(tree) else [path.stem]

    def look(nodes, prefix, hooks=False):
        for node in nodes:
            if hooks and isinstance(node, ast.FunctionDef) and re.fullmatch("on_.*|(load_)?state_dict", node.name):
                continue
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                if ast.get_docstring(node) is None:
                    found.append(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    look(node.body, f"{prefix}{node.name}.", bool(node.bases))
            elif prefix and isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "property":
                if not any(keyword.arg == "doc" for keyword in node.value.keywords):
                    found.append(prefix + node.targets[0].id)

    look(tree.body, "")
    return found


class Docstrings(unittest.TestCase):
    def test_every_public_name_has_one(self):
        modules = sorted(path for path in (place.PACKAGE / "prd").rglob("*.py") if not path.name.startswith("_") or path.name == "__init__.py")
        self.assertGreater(len(modules), 8)
        self.assertEqual({path.name: names for path in modules if (names := undocumented(path))}, {})


if __name__ == "__main__":
    unittest.main()
