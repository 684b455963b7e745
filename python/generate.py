#!/usr/bin/env python3
# generate.py - the Python package's tables and functions, from the comments and declarations of
# hurwitz.h
#
# SPDX-License-Identifier: BSD-2-Clause
#
#	python3 generate.py ../include/hurwitz.h hurwitz
#
# Writes _api.py (structs, constants, prototypes), constants.py and ops.py (a function for each call
# whose parameters are views, numbers, arrays of numbers, options and objects). The header has one
# style: a comment stands above the functions that it describes, a field's comment behind the field.
"""Generates _api.py, constants.py and ops.py of the package from hurwitz.h."""
import re
import sys
from pathlib import Path

CTYPES = {
    "int": "c_int", "int8_t": "c_int8", "uint8_t": "c_uint8", "int16_t": "c_int16",
    "uint16_t": "c_uint16", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64",
    "uint64_t": "c_uint64", "size_t": "c_size_t", "double": "c_double", "void": "None",
}
KEYWORDS = {"from": "from_"}
GRADIENTS = ("hz_mhc_grads", "hz_mhc_gated_grads")     # whose outputs are made unless told
OBJECTS = ("hz_lattice", "hz_vlut", "hz_coded", "hz_linear", "hz_mhc_layer", "hz_packed")


class Header:
    """What hurwitz.h declares."""

    def __init__(self, text):
        self.constants = {}
        self.enums = {}
        self.structs = {}
        self.functions = {}
        self.docs = {}
        text = re.sub(r'#ifdef __cplusplus\n.*?\n#endif\n', "", text, flags=re.S)
        text = re.sub(r'#if !defined\(__cplusplus\).*?\n#endif\n', "", text, flags=re.S)
        doc = ""
        for item in re.finditer(
                r"^/\*(?P<comment>.*?)\*/|^#define (?P<define>HZ_[A-Z0-9_]+) (?P<value>[^\n]*)"
                r"|^enum (?P<enum>\w+) \{(?P<values>.*?)\};"
                r"|^typedef struct (?P<struct>\w+) \{(?P<fields>.*?)^\} \w+;"
                r"|^HZ_API(?:_CHECK)? (?P<function>[^;]*);", text, flags=re.S | re.M):
            if item["comment"] is not None:
                doc = re.sub(r"^ \* ?", "", item["comment"], flags=re.M).strip()
            elif item["define"]:
                value = re.sub(r"/\*.*", "", item["value"]).strip()
                value = re.sub(r"\b(0x[0-9a-f]+|\d+)u?\b", r"\1", value)
                value = re.sub(r"\bHZ_\w+", lambda m: str(self.constants.get(m[0])), value)
                if re.fullmatch(r"[\dxa-f ()*+]+", value):
                    self.constants[item["define"]] = eval(value)
            elif item["enum"]:
                self.add_enum(item["enum"], item["values"])
            elif item["struct"]:
                self.structs[item["struct"]] = list(self.fields(item["fields"]))
                self.docs[item["struct"]] = doc
            elif item["function"]:
                self.add_function(item["function"], doc)
        self.fill_enums()

    def add_enum(self, name, text):
        values = re.findall(r"(HZ_\w+) = (-?\w+)", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        values = {key: int(value, 0) for key, value in values}
        self.constants.update(values)
        keys = [key.split("_") for key in values]
        same = 0
        while all(len(key) > same + 1 and key[same] == keys[0][same] for key in keys):
            same += 1
        self.enums[name] = {"_".join(key.split("_")[same:]).lower(): value
                            for key, value in values.items()}

    @staticmethod
    def fields(text):
        """(name, C type, array length or "", comment) of each field of a struct."""
        for field in re.finditer(r"([^;/]+);\s*(?:/\*(.*?)\*/)?|/\*.*?\*/", text, flags=re.S):
            if not field[1]:
                continue
            words = " ".join(field[1].split())
            comment = re.sub(r"\s*\n\s*\*? ?", " ", field[2] or "").strip()
            pointer = re.match(r".*?\(\*(\w+)\)\(", words)
            if pointer:
                yield pointer[1], "function", "", comment
                continue
            base, names = re.match(r"((?:const )?\w+) (.*)", words).groups()
            for name in names.split(","):
                name = name.strip()
                stars, name, length = re.match(r"(\**)(\w+)(?:\[(\w+)\])?", name).groups()
                yield name, base + (" *" if stars else ""), length or "", comment

    def add_function(self, text, doc):
        text = " ".join(text.split())
        result, name, arguments = re.match(r"(.*?)(\w+)\((.*)\)$", text).groups()
        parameters = []
        for argument in arguments.split(", "):
            if argument == "void":
                continue
            base, stars, word, length = re.match(
                r"((?:const )?\w+) (\**)(\w+)(\[\d*\])?$", argument).groups()
            parameters.append((KEYWORDS.get(word, word),
                               base + (" " + stars if stars else ""), length or ""))
        self.functions[name] = (result.strip(), parameters)
        self.docs[name] = doc

    def fill_enums(self):
        """The enum of each integer field: its comment names it, or that of a field so named."""
        known = {}
        self.field_enums = {}
        for name, fields in self.structs.items():
            for field, kind, _, comment in fields:
                enum = re.search(r"enum (hz_\w+)", comment)
                if kind == "int32_t" and enum:
                    known.setdefault(field, enum[1])
                    self.field_enums[name, field] = enum[1]
        for name, fields in self.structs.items():
            for field, kind, _, _ in fields:
                if kind == "int32_t" and field in known:
                    self.field_enums.setdefault((name, field), known[field])

    def enum_of(self, function, word):
        """The enum of a parameter: its name has those of both, or the comment names it."""
        named = f"{function}_{word}"
        found = re.search(rf"^\s*{word}  +enum (hz_\w+)", self.docs[function], flags=re.M)
        return named if named in self.enums else found and found[1]

    def ctype(self, kind, length=""):
        if kind in CTYPES:
            result = CTYPES[kind]
        elif kind == "const char *":
            result = "c_char_p"
        elif "*" in kind or kind == "function":
            result = "c_void_p"
        else:
            result = kind
        return f"{result} * {self.constants.get(length, length)}" if length else result

    def given(self, struct):
        """The bits of a struct's member given, by the names of what they are for."""
        prefix = struct.upper().removesuffix("_OPTS") + "_GIVEN_"
        return {key.removeprefix(prefix).lower(): value for key, value in self.constants.items()
                if key.startswith(prefix)}


def write_api(header, out):
    out.write('"""Structs, constants and prototypes of hurwitz.h; made by generate.py."""\n'
              "# SPDX-License-Identifier: BSD-2-Clause\n"
              "from ctypes import *\n\n"
              "CONSTANTS = {\n")
    for name, value in header.constants.items():
        out.write(f"    {name.removeprefix('HZ_')!r}: {value},\n")
    out.write("}\nENUMS = {\n")
    for name, values in header.enums.items():
        out.write(f"    {name!r}: {values!r},\n")
    out.write("}\n")
    for name, fields in header.structs.items():
        out.write(f"\n\nclass {name}(Structure):\n    _fields_ = [\n")
        for field, kind, length, _ in fields:
            out.write(f"        ({field!r}, {header.ctype(kind, length)}),\n")
        out.write("    ]\n")
    out.write("\n\nSTRUCTS = {\n")
    for name, fields in header.structs.items():
        out.write(f"    {name!r}: ({name}, {{\n")
        for field, kind, length, _ in fields:
            if not field.startswith("reserved"):
                enum = header.field_enums.get((name, field))
                out.write(f"        {field!r}: ({kind!r}, {length!r}, {enum!r}),\n")
        out.write(f"    }}, {header.given(name)!r}),\n")
    out.write("}\nFUNCTIONS = {\n")
    for name, (result, parameters) in header.functions.items():
        result = header.ctype(result)
        out.write(f"    {name!r}: ({result}, {parameters!r}),\n")
    out.write("}\n")


def write_constants(header, out):
    out.write('"""The constants of hurwitz.h; made by generate.py."""\n'
              "# SPDX-License-Identifier: BSD-2-Clause\n")
    for name, value in header.constants.items():
        out.write(f"{name.removeprefix('HZ_')} = {value}\n")


def is_view(kind):
    return kind in ("const hz_tensor *", "hz_tensor *")


def is_options(header, kind):
    name = kind.removeprefix("const ").removesuffix(" *")
    return (name in header.structs and name not in OBJECTS and name not in
            ("hz_tensor", "hz_mhc_block", "hz_options") and kind == f"const {name} *")


def is_object(kind):
    return kind.removeprefix("const ").removesuffix(" *") in OBJECTS and kind.endswith(" *") and \
        kind.startswith("const ")


def simple(header, name):
    """Whether ops.py can have a function for a call."""
    result, parameters = header.functions[name]
    if result != "int" or len(parameters) < 2 or parameters[0][1] != "hz_context *":
        return False
    return any(is_view(kind) for _, kind, _ in parameters) and all(
        is_view(kind) or is_options(header, kind) or is_object(kind) or kind in CTYPES or
        kind.startswith("const double") for _, kind, _ in parameters[1:])


def hint(header, struct, field, kind, length):
    if is_view(kind):
        return "Array" if kind.startswith("const") else "Output"
    if kind == "double":
        result = "float"
    elif header.field_enums.get((struct, field)):
        result = "int | str"
    elif kind in CTYPES:
        result = "int"
    elif kind.endswith("_opts *"):
        return "dict"
    else:
        return "Any"
    return f"{result} | Sequence[{result}]" if length else result


def docstring(text):
    text = text.replace('"""', "'''")
    lines = [("    " + line).rstrip() for line in text.split("\n")]
    return '    r"""\n' + "\n".join(lines) + '\n    """\n'


def write_ops(header, out):
    out.write('"""A function for each call of hurwitz.h; made by generate.py.\n\n'
              "Docstrings are the header's: what it says of hz_tensor holds for arrays.\n"
              "hurwitz.__doc__ says how outputs and options are given.\n"
              '"""\n'
              "# SPDX-License-Identifier: BSD-2-Clause\n"
              "from __future__ import annotations\n\n"
              "from collections.abc import Sequence\nfrom typing import Any\n\n"
              "from ._core import Array, Context, Operation, Output\n\n"
              "__all__ = [\n")
    names = [name for name in header.functions if simple(header, name)]
    for name in names:
        out.write(f"    {name.removeprefix('hz_')!r},\n")
    out.write("]\n")
    for name in names:
        write_function(header, name, out)


def write_function(header, name, out):
    short = name.removeprefix("hz_")
    parameters = header.functions[name][1][1:]
    words = {word for word, kind, _ in parameters if not is_options(header, kind)}
    positional, options, plan, fields = [], [], [], []
    optional = False
    for word, kind, length in parameters:
        if is_options(header, kind):
            struct = kind.removeprefix("const ").removesuffix(" *")
            plan.append(("options", word, struct))
            given = header.given(struct)
            names = [field for field in header.structs[struct]
                     if not field[0].startswith("reserved")]
            for field, field_kind, length, _ in names:
                key = field + "_in" if field in words else field
                default = struct in GRADIENTS and field_kind == "hz_tensor *"
                options.append((key, hint(header, struct, field, field_kind, length), default))
                fields.append((struct, field, key))
            present = {field[0] for field in names}
            for flag in given:
                if flag not in present:
                    options.append((flag, "bool", False))
                    fields.append((struct, flag, flag))
        elif is_view(kind):
            optional = optional or not kind.startswith("const")
            plan.append(("in" if kind.startswith("const") else "out", word, ""))
            positional.append(f"{word}: Array" if kind.startswith("const")
                              else f"{word}: Output = True")
        elif is_object(kind):
            plan.append(("object", word, kind.split()[-2]))
            positional.append(f"{word}: Any")
        elif kind.startswith("const double"):
            plan.append(("array", word, length.strip("[]")))
            positional.append(f"{word}: Sequence[float]")
        elif enum := header.enum_of(name, word):
            plan.append(("enum", word, enum))
            positional.append(f"{word}: int | str" + (" = 0" if optional else ""))
        else:
            plan.append(("number", word, kind))
            default = "" if not optional else " = 0"
            number = "float" if kind == "double" else "int"
            positional.append(f"{word}: {number}{default}")
    # An operand that may be missing and the data before it: the library says which is wanted.
    positional = [p + " | None = None" if p.endswith(": Array") and i else p
                  for i, p in enumerate(positional)]
    seen = False
    for i, text in enumerate(positional):
        seen = seen or "=" in text
        if seen and "=" not in text:
            positional[i] = text + " = 0"
    arguments = positional + ["*"] + [
        f"{key}: {kind} = True" if default else f"{key}: {kind} | None = None"
        for key, kind, default in options] + ["ctx: Context | None = None"]
    out.write(f"\n\n_{short} = Operation({short!r}, [\n"
              + "".join(f"    {step!r},\n" for step in plan) + "], [\n"
              + "".join(f"    {field!r},\n" for field in fields) + "])\n\n\n"
              f"def {short}(\n" + "".join(f"    {text},\n" for text in arguments) + ") -> Any:\n")
    out.write(docstring(header.docs[name]))
    values = ", ".join(word for kind, word, _ in plan if kind != "options")
    if options:
        out.write("    options = {}\n")
        for key, _, _ in options:
            out.write(f"    if {key} is not None:\n        options[{key!r}] = {key}\n")
        out.write(f"    return _{short}(({values},), options, ctx)\n")
    else:
        out.write(f"    return _{short}(({values},), None, ctx)\n")


def generate(header_path, directory):
    header = Header(Path(header_path).read_text(encoding="utf-8"))
    for name, write in (("_api.py", write_api), ("constants.py", write_constants),
                        ("ops.py", write_ops)):
        with open(Path(directory) / name, "w", encoding="utf-8") as out:
            write(header, out)
    return header


if __name__ == "__main__":
    generate(sys.argv[1], sys.argv[2])
