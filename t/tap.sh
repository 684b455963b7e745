# tap.sh - shared by the shell tests
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=sh
n=0

# report NAME LINES: a test that passes if LINES is empty
report()
{
	n=$((n + 1))
	if [ -z "$2" ]; then
		echo "ok $n - $1"
	else
		echo "not ok $n - $1"
		echo "$2" | sed 's/^/# /' | head -n 60
	fi
}

# skip NAME WHY
skip()
{
	n=$((n + 1))
	echo "ok $n - $1 # SKIP $2"
}
