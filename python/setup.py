# setup.py - generates the interface from hurwitz.h and, if there is no library, builds it
# SPDX-License-Identifier: BSD-2-Clause
#
# A shared library of the same version that is installed, or HURWITZ_LIBRARY, is used where it is, and
# library.txt of the package says where. Otherwise configure and make build one from the tree around,
# which takes minutes, and it becomes part of the package, and so does the command hurwitz.
# HURWITZ_CONFIGURE has options of configure: "--without-cuda".
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
PACKAGE = HERE / "hurwitz"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


header = TREE / "include" / "hurwitz.h"
if header.exists():
    constants = module(HERE / "generate.py").generate(header, PACKAGE).constants
    constants = {name.removeprefix("HZ_"): value for name, value in constants.items()}
else:
    constants = module(PACKAGE / "_api.py").CONSTANTS
version = ".".join(str(constants["VERSION_" + part]) for part in ("MAJOR", "MINOR", "PATCH"))


def installed():
    """The path of an installed library, or its name if the dynamic linker knows it; None: none."""
    try:
        return module(PACKAGE / "_library.py").load(constants["VERSION"])[1]
    except ImportError as error:
        print(error, file=sys.stderr)
        return None


found = installed()
bundled = found is None


def build_library(target):
    """Builds the shared library and the command and copies them to target."""
    if not header.exists():
        sys.exit("hurwitz: there is no library and no source tree around to build one from")
    print("hurwitz: building the library, which takes minutes", file=sys.stderr, flush=True)
    make = ["make", f"-j{len(os.sched_getaffinity(0))}", "libhurwitz.la", "hurwitz"]
    where = TREE
    if not (TREE / "config.status").exists():
        if not (TREE / "configure").exists():
            subprocess.run(["./bootstrap"], cwd=TREE, check=True)
        where = HERE / "build" / "library"
        where.mkdir(parents=True, exist_ok=True)
        subprocess.run([os.path.relpath(TREE / "configure", where), "--quiet", "--enable-shared",
                        "--disable-static", *shlex.split(os.environ.get("HURWITZ_CONFIGURE", ""))],
                       cwd=where, check=True)
    subprocess.run(make, cwd=where, check=True)
    library = where / ".libs" / "libhurwitz.so.1"
    if not library.exists():
        sys.exit(f"hurwitz: {TREE} is configured without --enable-shared: configure it with that, "
                 "or make distclean")
    strip = shutil.which("strip")
    for built in (library, where / "hurwitz"):
        copy = target / built.name
        shutil.copyfile(built, copy)
        copy.chmod(0o755)
        if strip:
            subprocess.run([strip, "-g", copy], check=False)        # it is most of the size


class Build(build_py):
    def run(self):
        target = PACKAGE if self.editable_mode else Path(self.build_lib) / "hurwitz"
        target.mkdir(parents=True, exist_ok=True)
        (target / "library.txt").unlink(missing_ok=True)
        if bundled:
            build_library(target)
        elif os.path.isabs(found) and Path(found).parent != PACKAGE:
            (target / "library.txt").write_text(found + "\n", encoding="utf-8")
        super().run()


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not bundled

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(version=version, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
