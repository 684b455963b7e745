# constants.awk - the names and values of the constants in hurwitz.h, in order, but the version
# SPDX-License-Identifier: BSD-2-Clause
/HZ_VERSION_/ { next }
$1 == "#define" && $2 ~ /^HZ_[A-Z0-9_]*$/ && $3 ~ /^[0-9]/ { print $2, $3 }
$1 ~ /^HZ_[A-Z0-9_]*$/ && $2 == "=" { sub(/,$/, "", $3); print $1, $3 }
/^enum .*{.*}/ {
	gsub(/.*{ *|[ ;}]*$/, "")
	n = split($0, pair, /, */)
	for (i = 1; i <= n; i++) {
		sub(/ = /, " ", pair[i])
		print pair[i]
	}
}
