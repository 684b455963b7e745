# definitions - the definitions of hurwitz's primitives in NumPy
# SPDX-License-Identifier: BSD-2-Clause
"""A module for each family: its definitions, and cases that compare the command with them."""
