# tables.awk - hurwitz bench --json to Markdown tables, or to columns for doc/plot
# SPDX-License-Identifier: BSD-2-Clause
#
#	awk -f doc/tables.awk bench.json
#	awk -v columns=1 -f doc/tables.awk bench.json
#
# A table for each op, device, level, number of threads, ceiling and kind of case, which is the case
# without its n=NUMBER. A row for each n, a column for each dtype: the ratio and, behind it, GB/s.
# With columns=1, a line for each object: group, kind, dtype, n, ratio, GB/s, median us, separated by
# tabs.

function value(key,	s)
{
	if (!match($0, "\"" key "\"[ \t]*:[ \t]*"))
		return ""
	s = substr($0, RSTART + RLENGTH)
	if (s ~ /^"/) {
		s = substr(s, 2)
		match(s, /^([^"\\]|\\.)*/)
		s = substr(s, 1, RLENGTH)
		gsub(/\\"/, "\"", s)
		return s
	}
	match(s, /^[-+.0-9eEa-z]*/)
	return substr(s, 1, RLENGTH)
}

function remember(list, s)
{
	if (!((list, s) in place)) {
		place[list, s] = ++count[list]
		item[list, count[list]] = s
	}
}

/^[ \t]*[{].*"op"/ {
	kase = value("case")
	if (!match(kase, /n=[0-9]+/)) {
		if (!match(kase, /[0-9]+/))
			next
		n = substr(kase, RSTART, RLENGTH)
	} else {
		n = substr(kase, RSTART + 2, RLENGTH - 2)
	}
	kind = substr(kase, 1, RSTART - 1) substr(kase, RSTART + RLENGTH)
	gsub(/[ ,]+/, " ", kind)
	sub(/^ /, "", kind)
	sub(/ $/, "", kind)
	group = value("op") " on " value("device")
	if (value("isa") != "" && value("isa") != "null")
		group = group ", " value("isa")
	if (value("threads") + 0 > 0)
		group = group ", " value("threads") (value("threads") == 1 ? " thread" : " threads")
	if (columns) {
		printf "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", group, kind, value("dtype"), n, value("ratio"),
			value("gb_per_s"), value("median_us")
		next
	}
	table = group (kind == "" ? "" : ": " kind) "\nratio to " value("ceiling") ", and GB/s"
	remember("table", table)
	remember("dtype " table, value("dtype"))
	remember("n " table, n)
	gb = value("gb_per_s") + 0
	cell[table, value("dtype"), n] = sprintf(gb < 100 ? "%.2f, %.1f" : "%.2f, %.0f", value("ratio"), gb)
}

END {
	for (t = 1; t <= count["table"]; t++) {
		table = item["table", t]
		split(table, head, "\n")
		print (t > 1 ? "\n" : "") "**" head[1] "** (" head[2] ")\n"
		top = "| n |"
		rule = "|---:|"
		columns_of = count["dtype " table]
		for (d = 1; d <= columns_of; d++) {
			top = top " " item["dtype " table, d] " |"
			rule = rule "---:|"
		}
		print top "\n" rule
		for (i = 1; i <= count["n " table]; i++) {
			n = item["n " table, i]
			row = "| " n " |"
			for (d = 1; d <= columns_of; d++) {
				key = table SUBSEP item["dtype " table, d] SUBSEP n
				row = row " " (key in cell ? cell[key] : "-") " |"
			}
			print row
		}
	}
}
