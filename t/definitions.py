#!/usr/bin/env python3
# definitions.py - hurwitz run against definitions in NumPy
# SPDX-License-Identifier: BSD-2-Clause
"""Every primitive of `hurwitz run` against its definition, written again in NumPy.

Draws operands, of any shape, type and order, writes them to files, calls the command, and compares
what it writes with definitions in float64 or in exact integers, which stand in definitions/ and
are made of the manual, not of the library's code: a second opinion, and a readable one. Prints
TAP, one point for each primitive and level; a point that fails shows the command line, with its
operands kept, the first element that differs, and both values. The exit status is 0 or 1.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zlib

sys.dont_write_bytecode = True

import numpy as np  # noqa: E402

from definitions import (hadamard, lattice, linear, mhc, qgemm, quat, quat_layer,  # noqa: E402
                         refusals, vlut)
from definitions.common import Case, Failure, Tool  # noqa: E402

FAMILIES = {
    "hadamard": hadamard,
    "qgemm": qgemm,
    "quat": quat,
    "quat_layer": quat_layer,
    "lattice": lattice,
    "vlut": vlut,
    "linear": linear,
    "mhc": mhc,
}
LADDER = ["c", "avx2", "avx512", "vnni", "amx"], ["c", "neon", "dotprod"]


def options():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("hurwitz", nargs="?", default="./hurwitz", help="default ./hurwitz")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--levels", help="as c,avx2; default: all of this CPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", nargs="+", default=[], metavar="F",
                        help="families or primitives: %s" % " ".join(FAMILIES))
    parser.add_argument("--cases", type=int, default=0, metavar="N",
                        help="of each primitive; default: as many as suit it")
    parser.add_argument("--quick", action="store_true", help="a quarter of the cases")
    parser.add_argument("--seconds", type=float, default=0, metavar="S",
                        help="begin no case after so many seconds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--case", type=int, metavar="I", help="that case alone")
    chosen = parser.parse_args()
    # in `--family F ... hurwitz` the last word is the command
    names = set(FAMILIES) | {p for f in FAMILIES.values() for p in f.CASES} | {"refusals"}
    if chosen.family and chosen.family[-1] not in names:
        chosen.hurwitz = chosen.family.pop()
    for name in chosen.family:
        if name not in names:
            parser.error("no family or primitive: %s" % name)
    chosen.hurwitz = os.path.abspath(chosen.hurwitz)
    return chosen


def levels_of(chosen):
    """The ISA levels to test, or the GPU."""
    if chosen.device == "cuda":
        return ["cuda"]
    if chosen.levels:
        return chosen.levels.split(",")
    info = subprocess.run([chosen.hurwitz, "info", "--json"], capture_output=True, text=True,
                          check=True)
    most = json.loads(info.stdout)["cpu"]["isa_max"]
    ladder = LADDER[0] if most in LADDER[0] else LADDER[1]
    return ladder[:ladder.index(most) + 1]


def points_of(chosen):
    """(primitive, function that runs a case, number of cases) in the order of the families."""
    points = []
    for family, module in FAMILIES.items():
        for primitive, (function, cases) in module.CASES.items():
            if not chosen.family or family in chosen.family or primitive in chosen.family:
                points.append((primitive, function, cases))
    refused = [("refusals of " + p, refusals.of(p, f), len(refusals.FAULTS)) for p, f, _ in points]
    if chosen.family and "refusals" in chosen.family:
        every = [(p, f) for m in FAMILIES.values() for p, (f, _) in m.CASES.items()]
        return points + [("refusals of " + p, refusals.of(p, f), len(refusals.FAULTS))
                         for p, f in every]
    return points + ([] if chosen.family else refused)


def one(chosen, level, point, index, root):
    """Runs one case; returns None and its number of comparisons, or the failure."""
    primitive, function, _ = point
    seed = [chosen.seed, zlib.crc32(primitive.encode()), index]
    directory = tempfile.mkdtemp(dir=root, prefix="%s-%d." % (primitive.split()[-1], index))
    case = Case(Tool(chosen.hurwitz, chosen.device, level), directory,
                np.random.default_rng(seed), chosen.quick)
    case.index = index
    try:
        function(case)
    except Failure as failure:
        return "case %d: %s" % (index, failure), case.comparisons
    except Exception:  # an error of this program, or an unreadable file, is a failure too
        return "case %d: %s%s" % (index, traceback.format_exc(), case.command), case.comparisons
    shutil.rmtree(directory)
    return None, case.comparisons


def main():
    chosen = options()
    levels = levels_of(chosen)
    points = points_of(chosen)
    root = tempfile.mkdtemp(prefix="definitions.")
    deadline = time.monotonic() + chosen.seconds if chosen.seconds else None
    number = failed = 0
    print("1..%d" % (len(points) * len(levels)), flush=True)
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for level in levels:
            for point in points:
                number += 1
                cases = chosen.cases or (point[2] + 3) // 4 if chosen.quick else \
                    chosen.cases or point[2]
                indices = range(cases) if chosen.case is None else [chosen.case]
                if deadline and time.monotonic() > deadline:
                    print("ok %d - %s %s # SKIP no time left" % (number, point[0], level))
                    continue
                done = list(pool.map(lambda i, p=point, k=level: one(chosen, k, p, i, root),
                                     indices))
                faults = [fault for fault, _ in done if fault]
                comparisons = sum(n for _, n in done)
                failed += bool(faults)
                print("%s %d - %s %s: %d cases, %d comparisons" % (
                    "not ok" if faults else "ok", number, point[0], level, len(done), comparisons))
                for fault in faults[:3]:
                    print("# " + fault.replace("\n", "\n# "))
                if len(faults) > 3:
                    print("# %d cases more" % (len(faults) - 3))
                sys.stdout.flush()
    if not failed:
        shutil.rmtree(root)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
