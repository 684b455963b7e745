# __main__.py - python -m hurwitz info|check|bench|...
# SPDX-License-Identifier: BSD-2-Clause
"""Runs the command hurwitz of the library; without one, prints what the library found."""
import json
import os
import shutil
import sys
from pathlib import Path

from . import __version__, context, library_path


def directories():
    """Where the command may be: beside the library, or in the tree that it was built in."""
    library = Path(library_path)
    if not library.exists():            # a name alone, which the dynamic linker found
        return []
    library = library.resolve()
    return [library.parent, library.parent.parent, library.parent.parent / "bin"]


def command():
    """The path of the command; None: there is none."""
    for directory in directories():
        path = directory / "hurwitz"
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return shutil.which("hurwitz")


def main(arguments):
    found = command()
    if found:
        try:
            os.execv(found, [found, *arguments])
        except OSError as error:
            print(f"hurwitz: {found} does not run: {error.strerror}", file=sys.stderr)
            return 2
    if arguments[:1] == ["info"]:
        print(json.dumps({"version": __version__, "library": library_path,
                          **context("auto").info}, indent=2))
        return 0
    places = ", ".join([*map(str, directories()), "PATH"])
    print(f"hurwitz: there is no command hurwitz in {places}. Build and install it (make install); "
          "without it there is only: python -m hurwitz info", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
