# test_layout.py - structs and constants against those that a C compiler sees
# SPDX-License-Identifier: BSD-2-Clause
import ctypes
import inspect
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import hurwitz as hz
from hurwitz import _api, ops

INCLUDE = os.environ.get("HURWITZ_INCLUDE",
                         str(Path(__file__).resolve().parents[2] / "include"))
CC = os.environ.get("CC", "gcc").split()


@unittest.skipUnless(shutil.which(CC[0]) and Path(INCLUDE, "hurwitz.h").exists(),
                     "no compiler or no header here")
class Layout(unittest.TestCase):
    def test_structs_and_constants(self):
        expected, lines = [], []
        for name, (cls, _, _) in _api.STRUCTS.items():
            lines.append(f'sizeof({name})')
            expected.append((name, ctypes.sizeof(cls)))
            for field, *_ in cls._fields_:
                lines.append(f"offsetof({name}, {field})")
                expected.append((f"{name}.{field}", getattr(cls, field).offset))
        for name, value in _api.CONSTANTS.items():
            lines.append(f"HZ_{name}")
            expected.append((name, value))
        body = "".join(f'printf("%lld\\n", (long long)({line}));\n' for line in lines)
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "layout.c")
            source.write_text("#include <stdio.h>\n#include <hurwitz.h>\nint main(void)\n{\n"
                              f"{body}return 0;\n}}\n", encoding="utf-8")
            program = Path(directory, "layout")
            subprocess.run([*CC, f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
            printed = subprocess.run([program], capture_output=True, check=True, text=True).stdout
        found = [(name, int(value)) for (name, _), value in zip(expected, printed.split())]
        self.assertEqual(found, expected)

    def test_every_constant_is_there(self):
        names = set()
        for line in Path(INCLUDE, "hurwitz.h").read_text(encoding="utf-8").split("\n"):
            words = line.replace("{", " ").split()
            if len(words) > 2 and words[0] == "#define" and words[1].startswith("HZ_"):
                if words[2][0].isdigit():
                    names.add(words[1][3:])
            elif len(words) > 2 and words[0].startswith("HZ_") and words[1] == "=":
                names.add(words[0][3:])
        self.assertEqual(names - set(_api.CONSTANTS), set())


class Interface(unittest.TestCase):
    def test_functions_have_docstrings_and_exist(self):
        for name in ops.__all__:
            function = getattr(hz, name)
            self.assertTrue(function.__doc__.strip(), name)
            self.assertIn("ctx", inspect.signature(function).parameters)


if __name__ == "__main__":
    unittest.main()
