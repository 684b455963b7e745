# test_objects.py - objects in threads, copies, files, names and messages
# SPDX-License-Identifier: BSD-2-Clause
import copy
import gc
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import weakref

import numpy as np

import hurwitz as hz

SEED = int(os.environ.get("HZ_TEST_SEED", int.from_bytes(os.urandom(4), "little")))


def in_threads(count, work):
    """Runs work(i) in threads and returns what they returned."""
    found = [None] * count

    def run(i):
        found[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Case(unittest.TestCase):
    def setUp(self):
        random = np.random.default_rng([SEED, sum(self.id().encode())])
        self.w, self.x = (random.standard_normal(shape).astype("f4")
                          for shape in ((96, 200), (6, 200)))

    def script(self, text):
        """Runs Python: what may crash, or wait for ever."""
        found = subprocess.run([sys.executable, "-c", "import numpy as np, hurwitz as hz, gc, os\n"
                                "import threading\nw, x = np.random.default_rng("
                                f"{SEED}).standard_normal((2, 96, 256), 'f4')\n{text}"],
                               capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(found.returncode, 0, f"seed {SEED}: {found.stderr}")


class Threads(Case):
    def test_shared(self):
        self.script("""
layer = hz.Linear(w, flags=hz.LINEAR_ROTATE)
lattice = hz.Lattice(preset="e8_4_50")
vlut = hz.Vlut(lattice)
codes, t, _, scale = lattice.encode(w, row_scale=True)
coded = vlut.pack(hz.Coded(codes, t, scale, k=256))
calls = [lambda: layer(x), lambda: hz.linear_forward(layer, x), lambda: vlut.gemm(coded, x),
         lambda: lattice.encode(w)[0], lambda: layer.bwd(x[:, :96]), lambda: hz.hadamard(x.T)]
expected = [call() for call in calls]
wrong = []
def work(i):
    for j in range(120):
        k = (i + j) % len(calls)
        if not np.array_equal(calls[k](), expected[k]):
            wrong.append(k)
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
work(4)
for thread in threads:
    thread.join()
assert not wrong, wrong
""")

    def test_recording_is_one_threads(self):
        layer = hz.Linear(self.w)
        expected = layer(self.x)
        started, recorded = threading.Event(), []

        def work(_):
            started.set()
            recorded.append(layer(self.x))

        with layer.context.record():
            thread = threading.Thread(target=work, args=(0,))
            thread.start()
            started.wait()
            thread.join(0.05)
            self.assertEqual(recorded, [])
        thread.join()
        np.testing.assert_array_equal(recorded[0], expected)

    def test_context_of_an_ended_thread(self):
        layer, = in_threads(1, lambda _: hz.Linear(self.w))
        gc.collect()
        alive = weakref.ref(layer.context)
        np.testing.assert_array_equal(layer(self.x), hz.Linear(self.w)(self.x))
        del layer
        gc.collect()
        self.assertIsNone(alive())

    def test_closed_in_any_order(self):
        self.script("""
for i in range(4):
    context = hz.Context("cpu")
    objects = [hz.Lattice(preset="e8_4_50", ctx=context)]
    objects += [hz.Linear(w, ctx=context), hz.Vlut(objects[0], ctx=context)]
    if i == 0:
        context.close()
        try:
            objects[1](x)
            raise SystemExit(1)
        except ValueError as error:
            assert "context is closed" in str(error)
    elif i == 1:                        # garbage whose finalizers run in any order
        context.cycle = objects, context
    elif i == 2:
        objects[0].close()
        objects[1].close()
    del context, objects
    gc.collect()
layer = hz.Linear(w)
def work():
    try:
        while True:
            layer(x)
    except ValueError:
        pass
thread = threading.Thread(target=work)
thread.start()
layer(x)
layer.close()
thread.join()
""")

    @unittest.skipUnless(hasattr(os, "fork"), "no fork()")
    def test_fork_beside_a_call(self):
        self.script("""
layer = hz.Linear(w)
held, done = threading.Event(), threading.Event()
def work():
    with layer.context.lock:
        held.set()
        done.wait()
thread = threading.Thread(target=work)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    try:
        layer(x)
    except ValueError:
        pass                            # its context is another thread's
    os._exit(0 if hz.hadamard(x).any() and hz.Linear(w)(x).any() else 1)
assert os.waitpid(child, 0)[1] == 0
done.set()
thread.join()
layer(x)
""")

    def test_another_context(self):
        layer = hz.Linear(self.w)
        self.assertRaisesRegex(ValueError, "ctx is not the context that layer was opened on",
                               hz.linear_forward, layer, self.x, ctx=hz.Context("cpu"))


class Copies(Case):
    def test_refused(self):
        lattice = hz.Lattice(preset="e8_4_50")
        packed = hz.qgemm_pack(np.ones((64, 8), "i1"))
        for one in (lattice, hz.Vlut(lattice), hz.Context("cpu"), packed, hz.Coded(packed=packed),
                    hz.MhcLayer(4, 7, opts={"preset": "paper"},
                                phi=np.ones((24, 16), "f4"), alpha=np.ones(3, "f4"),
                                bias=np.ones(24, "f4"))):
            for function in (copy.copy, copy.deepcopy, pickle.dumps):
                if isinstance(one, hz.Coded) and function is copy.copy:
                    continue            # shares what is packed
                self.assertRaisesRegex(TypeError, "cannot be copied or pickled", function, one)

    def test_linear(self):
        layer = hz.Linear(self.w, format="e8_4_50_fast", flags=hz.LINEAR_ROTATE)
        expected = layer(self.x)
        for other in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            self.assertIsNot(other.handle, layer.handle)
            layer.info, other.info
            np.testing.assert_array_equal(other(self.x), expected)
            other.close()
        np.testing.assert_array_equal(layer(self.x), expected)
        codes = hz.Coded(np.ones((4, 4), "u1"), k=4)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(codes)).codes, codes.codes)


class Files(Case):
    def test_save(self):
        layer = hz.Linear(self.w)
        expected = layer(self.x)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "layer")
            layer.save(path)
            os.chmod(path, 0o640)
            mapped = hz.Linear.load(path)
            hz.Linear(-self.w).save(path)               # onto the file that is mapped
            np.testing.assert_array_equal(mapped(self.x), expected)
            self.assertFalse(np.array_equal(hz.Linear.load(path)(self.x), expected))
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o640)
            self.assertEqual(os.listdir(directory), ["layer"])
            with self.assertRaises(OSError) as caught:
                layer.save(os.path.join(directory, "none", "layer"))
            self.assertIn(os.path.join("none", "layer"), str(caught.exception))
            self.assertNotIn(".tmp", str(caught.exception))
        if os.path.exists("/dev/full"):
            self.assertRaisesRegex(OSError, "/dev/full", layer.save, "/dev/full")

    def test_load(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "layer")
            for data in (b"", b"abc", b"x" * 4096):
                with open(path, "wb") as file:
                    file.write(data)
                self.assertRaisesRegex(hz.InvalidError, path, hz.Linear.load, path)
            self.assertRaisesRegex(OSError, directory, hz.Linear.load, directory)
        self.assertRaisesRegex(TypeError, "source is a int", hz.Linear.load, 3)


class Words(Case):
    def test_names(self):
        for name in hz._core.ENUMS["hz_linear_format"]:
            layer = hz.Linear(self.w, format=name)
            printed = layer.info["format_name"]
            for spelled in (printed, printed.replace("-", "_").replace(".", "_"),
                            name.replace("_", "-")):
                other = hz.Linear(self.w, format=spelled)
                self.assertEqual(other.info["format_name"], printed, spelled)
        self.assertEqual(hz.Lattice(preset="e8-4.25-best").info.levels,
                         hz.Lattice(preset="e8_4_25_best").info.levels)
        for enum, names in hz._core.ENUMS.items():
            self.assertEqual(len(hz._core._spellings[enum]), len(names), enum)
        self.assertRaisesRegex(ValueError, "format is 'e9', which is none of s8_row",
                               hz.Linear, self.w, format="e9")

    def test_messages(self):
        x, q = self.x, np.ones((4, 8), "i1")
        for error, words, call in (
                (TypeError, "scale is a ndarray.*scales=",
                 lambda: hz.dequantize(q, scale=np.ones(4, "f4"))),
                (TypeError, "flags is 'raw', not an integer",
                 lambda: hz.hadamard(x, flags="raw")),
                (TypeError, "factor is 'a', not a number", lambda: hz.hadamard(x, factor="a")),
                (TypeError, "ctx is 3, not a Context", lambda: hz.hadamard(x, ctx=3)),
                (TypeError, "x: an array has dtype bool.*view", lambda: hz.hadamard(x > 0)),
                (TypeError, "bias: list", lambda: hz.Linear(self.w)(x, [1.0] * 96)),
                (TypeError, "layer is a ndarray", lambda: hz.linear_forward(self.w, x)),
                (ValueError, "plan is 'bogus'", lambda: hz.hadamard(x, plan="bogus")),
                (ValueError, "device is 'cuda:x'", lambda: hz.Context("cuda:x"))):
            self.assertRaisesRegex(error, words, call)
        try:
            from ml_dtypes import uint4
        except ImportError:
            return
        self.assertRaisesRegex(TypeError, "x: an array has dtype uint4.*hz.view",
                               hz.hadamard, np.ones((4, 8), uint4))

    def test_import_error_has_versions(self):
        text = hz._core.lib.hz_version().decode()
        with self.assertRaisesRegex(ImportError, rf"9\.8\.7 was found.*version {text}"):
            os.environ["HURWITZ_LIBRARY"], old = hz.library_path, os.environ.get("HURWITZ_LIBRARY")
            try:
                hz._core.load(90807)
            except ImportError as error:
                raise ImportError(str(error).replace("\n", " ")) from None
            finally:
                del os.environ["HURWITZ_LIBRARY"]
                if old is not None:
                    os.environ["HURWITZ_LIBRARY"] = old

    def test_library_that_setup_found(self):
        path = os.path.realpath(hz.library_path)
        source = os.path.join(os.path.dirname(hz.__file__), "_library.py")
        with tempfile.TemporaryDirectory() as directory:
            shutil.copy(source, directory)
            spec = importlib.util.spec_from_file_location(
                "copied_library", os.path.join(directory, "_library.py"))
            copied = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(copied)
            recorded = os.path.join(directory, "library.txt")
            with unittest.mock.patch.dict(os.environ):
                os.environ.pop("HURWITZ_LIBRARY", None)
                for text, first in (path, True), (path + "/none", False):
                    with open(recorded, "w", encoding="utf-8") as file:
                        file.write(text + "\n")
                    self.assertEqual(next(copied.candidates(), None) == text, first)
                os.environ["HURWITZ_LIBRARY"] = "other.so"
                self.assertEqual(list(copied.candidates()), ["other.so"])

    def test_docstrings(self):
        for name in hz.ops.__all__:
            self.assertNotIn("\\\\n", getattr(hz, name).__doc__, name)
        for name in hz._core.ENUMS["hz_linear_format"]:
            self.assertRegex(hz.Linear.__doc__, rf"\b{name}\b")

    def test_command(self):
        library = os.path.realpath(hz.library_path)
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(os.path.join(directory, ".libs"))
            copied = os.path.join(".libs", "libhurwitz.so")
            shutil.copyfile(library, os.path.join(directory, copied))
            environment = {**os.environ, "HURWITZ_LIBRARY": copied, "PATH": directory + "/none",
                           "PYTHONPATH": os.path.dirname(os.path.dirname(hz.__file__))}

            def run():
                return subprocess.run([sys.executable, "-m", "hurwitz", "verb"], text=True,
                                      capture_output=True, env=environment, cwd=directory,
                                      check=False)

            found = run()
            self.assertEqual(found.returncode, 2)
            self.assertRegex(found.stderr, "no command hurwitz in .*PATH")
            command = os.path.join(directory, "hurwitz")
            with open(command, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\necho found $1\n")
            os.chmod(command, 0o755)
            self.assertEqual(run().stdout, "found verb\n")


if __name__ == "__main__":
    unittest.main()
