# __main__.py - python -m hurwitz info|check|bench|...
# SPDX-License-Identifier: BSD-2-Clause
"""Runs the command hurwitz of the library; without one, prints what the library found."""
import json
import os
import shutil
import sys
from pathlib import Path

from . import __version__, context, library_path


def command():
    """The command beside the library, or in a bin directory near it, or the path's."""
    library = Path(library_path)
    if library.is_absolute():
        for directory in (library.parent, library.parent.parent, library.parent.parent / "bin"):
            path = directory / "hurwitz"
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
    return shutil.which("hurwitz")


def main(arguments):
    found = command()
    if found:
        os.execv(found, [found, *arguments])
    if arguments[:1] == ["info"]:
        print(json.dumps({"version": __version__, "library": library_path,
                          **context("auto").info}, indent=2))
        return 0
    print("hurwitz: the command is not installed; without it there is only: "
          "python -m hurwitz info", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
