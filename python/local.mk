# local.mk - the Python package's tests
# SPDX-License-Identifier: BSD-2-Clause

EXTRA_DIST += python/pyproject.toml python/setup.py python/generate.py \
	python/examples/transformer.py \
	python/hurwitz/__init__.py python/hurwitz/__main__.py python/hurwitz/_arrays.py \
	python/hurwitz/_core.py python/hurwitz/_library.py python/hurwitz/_rules.py \
	python/hurwitz/objects.py python/hurwitz/py.typed python/hurwitz/torch.py \
	python/tests/device.py python/tests/reference.py python/tests/test_arrays.py \
	python/tests/test_layout.py python/tests/test_objects.py python/tests/test_ops.py \
	python/tests/torch_cuda.py python/tests/torch_modules.py python/tests/torch_ops.py

# By a PYTHON with NumPy; the second with PyTorch. They need configure --enable-shared.
python_tests = rm -rf check-python.d && $(MKDIR_P) check-python.d/hurwitz && \
	cp $(top_srcdir)/python/hurwitz/*.py check-python.d/hurwitz && \
	$(PYTHON) $(top_srcdir)/python/generate.py $(top_srcdir)/include/hurwitz.h \
		check-python.d/hurwitz && \
	PYTHONPATH=check-python.d PYTHONDONTWRITEBYTECODE=1 CC="$(CC)" \
	HURWITZ_LIBRARY=$(abs_builddir)/.libs/libhurwitz.so \
	HURWITZ_INCLUDE=$(abs_top_srcdir)/include \
	$(PYTHON) -m unittest discover -s $(top_srcdir)/python/tests
.PHONY: check-python check-python-torch
check-python: libhurwitz.la
	$(python_tests)
check-python-torch: libhurwitz.la
	$(python_tests) -p 'torch_*.py'
