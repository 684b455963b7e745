# _library.py - finds and loads the shared library
# SPDX-License-Identifier: BSD-2-Clause
"""Finds and loads libhurwitz.so of the version that the package was made for."""
from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("libhurwitz.so.1", "libhurwitz.so", "libhurwitz.1.dylib", "libhurwitz.dylib")
DIRECTORIES = ("/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", "/opt/hurwitz/lib")


def candidates():
    """Paths and names to try, in order. HURWITZ_LIBRARY, if it is set, is the only one."""
    path = os.environ.get("HURWITZ_LIBRARY")
    if path:
        yield path
        return
    here = [Path(__file__).parent]
    recorded = here[0] / "library.txt"      # where setup.py found one, which pip's shell knew of
    if recorded.exists():
        path = recorded.read_text(encoding="utf-8").strip()
        if os.path.exists(path):
            yield path
    if shutil.which("pkg-config"):
        found = subprocess.run(["pkg-config", "--variable=libdir", "hurwitz"],
                               capture_output=True, text=True, check=False).stdout.strip()
        here += [Path(found)] if found else []
    for directory in here:
        for name in NAMES:
            if (directory / name).exists():
                yield str(directory / name)
    name = ctypes.util.find_library("hurwitz")
    if name:
        yield name
    for directory in DIRECTORIES:
        for name in NAMES:
            if os.path.exists(os.path.join(directory, name)):
                yield os.path.join(directory, name)


def text(number):
    """A version as people say it: 10203 is 1.2.3."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def load(version):
    """The library of that hz_version_number(). ImportError says what else was found."""
    tried = []
    for path in candidates():
        try:
            library = ctypes.CDLL(path)
            found = library.hz_version_number()
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
            continue
        if found == version:
            return library, path
        tried.append(f"{path} has version {text(found)}")
    raise ImportError(
        f"hurwitz: no shared library libhurwitz of version {text(version)} was found"
        + "".join(f"\n  {line}" for line in tried)
        + "\nInstall one (configure --enable-shared) or set HURWITZ_LIBRARY to its path.")
