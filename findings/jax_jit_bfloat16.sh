#!/bin/sh
# jax_jit_bfloat16.sh - under jax.jit a bfloat16 sum that is cast to float32 is not rounded to bfloat16
# SPDX-License-Identifier: BSD-2-Clause
#
# x + y of two bfloat16 arrays in JAX has the dtype bfloat16, and casts to float32 are exact. Most people
# expect that jax.jit changes the speed and not the numbers, and that what comes out of such a cast is a
# number of bfloat16.
#
# What happens on a CPU: XLA adds in float32 and, since it may keep excess precision, drops the rounding
# that the cast would undo. (x + y).astype(float32) of 256 and 1 is 256 without jit and 257, which bfloat16
# does not have, with it. Without the cast, or with float16, FP8 and jax.lax.reduce_precision(), results
# are the same. XLA_FLAGS=--xla_allow_excess_precision=false makes jit round.
#
# Why it matters: a reference for another implementation's bfloat16, or an error compensation that
# subtracts what was rounded away, is right when tried line by line and different inside of jit. Round by
# jax.lax.reduce_precision(x, 8, 7), or set the flag.
#
# Seen with jax 0.10.2, jaxlib 0.10.2, ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI) on a CPU, 2026-11-30, x86_64
# Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.3.5
cat >cast.py <<'END'
import jax
import jax.numpy as jnp


def cast(x, y):
    return (x + y).astype(jnp.float32)


def no_cast(x, y):
    return x + y


def reduced(x, y):
    return jax.lax.reduce_precision(x + y, 8, 7).astype(jnp.float32)


def show(name, function, dtype, x, y):
    x, y = jnp.array([x], dtype), jnp.array([y], dtype)
    print(f'{name}: {float(function(x, y)[0]):g}, in jit {float(jax.jit(function)(x, y)[0]):g}')


show('bfloat16, cast', cast, jnp.bfloat16, 256, 1)
show('bfloat16, no cast', no_cast, jnp.bfloat16, 256, 1)
show('bfloat16, reduce_precision, cast', reduced, jnp.bfloat16, 256, 1)
show('float16, cast', cast, jnp.float16, 2048, 1)
show('float8_e4m3fn, cast', cast, jnp.float8_e4m3fn, 16, 0.5)
END
{
	JAX_PLATFORMS=cpu XLA_FLAGS='' venv/bin/python cast.py
	echo "--xla_allow_excess_precision=false"
	JAX_PLATFORMS=cpu XLA_FLAGS=--xla_allow_excess_precision=false venv/bin/python cast.py
} >output 2>/dev/null
cat output
cat >expected <<'END'
bfloat16, cast: 256, in jit 257
bfloat16, no cast: 256, in jit 256
bfloat16, reduce_precision, cast: 256, in jit 256
float16, cast: 2048, in jit 2048
float8_e4m3fn, cast: 16, in jit 16
--xla_allow_excess_precision=false
bfloat16, cast: 256, in jit 256
bfloat16, no cast: 256, in jit 256
bfloat16, reduce_precision, cast: 256, in jit 256
float16, cast: 2048, in jit 2048
float8_e4m3fn, cast: 16, in jit 16
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
