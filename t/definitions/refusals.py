# refusals.py - calls that must fail
# SPDX-License-Identifier: BSD-2-Clause
"""Valid calls with one fault each: exit status 2, or 1 if the input is not at fault, one line on
standard error, and unchanged output files."""
import os

import numpy as np

from .common import Case


def inputs_of(words, outputs):
    """The indices of arguments that name an input file."""
    return [i for i, w in enumerate(words) if "=" in w and w.endswith(".npy")
            and w.partition("=")[0].partition(":")[0] not in outputs]


def unknown_key(_, words, __):
    words.append("nosuchkey=1")


def missing_file(case, words, outputs):
    i = case.pick(*inputs_of(words, outputs))
    words[i] = words[i].partition("=")[0] + "=nosuchfile.npy"


def operand_twice(case, words, outputs):
    words.append(words[case.pick(*inputs_of(words, outputs))])


def truncated(case, words, outputs):
    name = words[case.pick(*inputs_of(words, outputs))].partition("=")[2]
    path = os.path.join(case.directory, name)
    os.truncate(path, os.path.getsize(path) - 1)


def too_long(case, words, outputs):
    name = words[case.pick(*inputs_of(words, outputs))].partition("=")[2]
    with open(os.path.join(case.directory, name), "ab") as f:
        f.write(b"\0")


def no_array(case, words, outputs):
    name = words[case.pick(*inputs_of(words, outputs))].partition("=")[2]
    with open(os.path.join(case.directory, name), "wb") as f:
        f.write(b"not an array, not at all\n" * 9)


def wrong_dtype(case, words, outputs):
    i = case.pick(*inputs_of(words, outputs))
    operand, _, name = words[i].partition("=")
    words[i] = operand.partition(":")[0] + "=" + name
    path = os.path.join(case.directory, name)
    np.save(path, np.load(path).astype(np.complex64))


def seven_dimensions(case, words, outputs):
    name = words[case.pick(*inputs_of(words, outputs))].partition("=")[2]
    path = os.path.join(case.directory, name)
    x = np.load(path)
    np.save(path, x.reshape((1,) * (7 - x.ndim) + x.shape))


def seven_components(case, words, outputs):
    """Seven components instead of four in quaternions, and in operands sized by them."""
    name = words[case.pick(*inputs_of(words, outputs))].partition("=")[2]
    path = os.path.join(case.directory, name)
    x = np.load(path)
    if not x.ndim:      # t of quat_slerp, which may have any shape
        raise Refused
    np.save(path, np.concatenate([x, np.ones((*x.shape[:-1], 3), dtype=x.dtype)], -1))


def no_operand(_, words, __):
    words[:] = [w for w in words if "=" not in w]


def no_directory(case, words, outputs):
    i = case.pick(*[i for i, w in enumerate(words)
                    if w.partition("=")[0].partition(":")[0] in outputs])
    words[i] = words[i].partition("=")[0] + "=nosuchdirectory/y.npy"


# How a call is changed, and the exit statuses that the manual gives for it
FAULTS = [(unknown_key, (2,)), (missing_file, (2,)), (operand_twice, (2,)), (truncated, (2,)),
          (too_long, (2,)), (no_array, (2,)), (wrong_dtype, (2,)), (seven_dimensions, (2,)),
          (no_operand, (2,)), (no_directory, (1, 2)), (seven_components, (2,))]


class Refused(Exception):
    """Raised when the call under test has been made."""


def of(primitive, function):
    """A case of `primitive` with a fault, chosen by its index."""

    def refusal(case):
        fault, statuses = FAULTS[case.index % len(FAULTS)]

        def run(name, keys, inputs, outputs, holding=None):
            if name != primitive:
                return Case.run(case, name, keys, inputs, outputs, holding)
            words = case.arguments(name, keys, inputs, outputs, holding)
            plain = [o.partition(":")[0] for o in outputs]
            if not plain or (not inputs_of(words, plain) and
                             fault not in (unknown_key, no_operand, no_directory)):
                raise Refused
            if fault is seven_components and not name.startswith("quat_"):
                raise Refused
            fault(case, words, plain)
            paths = [os.path.join(case.directory, o + ".out.npy") for o in plain]
            for path in paths:
                if not os.path.exists(path):
                    with open(path, "wb") as f:
                        f.write(b"kept")
            before = [open(p, "rb").read() for p in paths]
            case.refused_line(words, statuses)
            for path, bytes_before in zip(paths, before):
                with open(path, "rb") as f:
                    if f.read() != bytes_before:
                        case.fail("%s was changed" % os.path.basename(path))
            raise Refused

        case.run = run
        try:
            function(case)
        except Refused:
            pass

    return refusal
