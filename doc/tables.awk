# tables.awk - hurwitz bench --json to Markdown tables, or to columns for doc/plot
# SPDX-License-Identifier: BSD-2-Clause
#
#	awk -f doc/tables.awk bench.json
#	awk -v columns=1 -f doc/tables.awk bench.json
#	awk -v spans=1 -f doc/tables.awk bench.json
#
# A table for each op, device, level, number of threads and roofline; a row for each case, a column
# for each dtype: the ratio and, behind it, GB/s.
# With columns=1, a line for each object instead: group, kind (the case without its n=NUMBER),
# dtype, n, ratio, GB/s, median us, separated by tabs.
# With spans=1, a line for each op: its name, the number of its cases, and the least, the median and
# the greatest of their times over their rooflines', likewise.

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
	if (spans) {
		if (value("ratio") > 0) {
			remember("op", value("op"))
			over[value("op"), ++cases[value("op")]] = 1 / value("ratio")
		}
		next
	}
	kase = value("case")
	group = value("op") " on " value("device")
	if (value("isa") != "")
		group = group ", " value("isa")
	if (value("threads") + 0 > 0)
		group = group ", " value("threads") (value("threads") == 1 ? " thread" : " threads")
	if (columns) {
		if (!match(kase, /n=[0-9]+/))
			next
		n = substr(kase, RSTART + 2, RLENGTH - 2)
		kind = substr(kase, 1, RSTART - 1) substr(kase, RSTART + RLENGTH)
		gsub(/ +/, " ", kind)
		sub(/ $/, "", kind)
		printf "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			group, kind, value("dtype"), n, value("ratio"),
			value("gb_per_s"), value("median_us")
		next
	}
	table = group "\n" value("ceiling")
	remember("table", table)
	remember("dtype " table, value("dtype"))
	remember("case " table, kase)
	gb = value("gb_per_s") + 0
	cell[table, value("dtype"), kase] = sprintf(gb < 100 ? "%.2f, %.1f" : "%.2f, %.0f",
						   value("ratio"), gb)
}

function span(op,	n, i, j, x)
{
	n = cases[op]
	for (i = 2; i <= n; i++) {
		x = over[op, i]
		for (j = i; j > 1 && over[op, j - 1] > x; j--)
			over[op, j] = over[op, j - 1]
		over[op, j] = x
	}
	return n "\t" over[op, 1] "\t" over[op, int((n + 1) / 2)] "\t" over[op, n]
}

END {
	for (i = 1; i <= count["op"]; i++)
		print item["op", i] "\t" span(item["op", i])
	for (t = 1; t <= count["table"]; t++) {
		table = item["table", t]
		split(table, head, "\n")
		print (t > 1 ? "\n" : "") "**" head[1] "**: ratio to " head[2] ", and GB/s\n"
		top = "| case |"
		rule = "|---|"
		for (d = 1; d <= count["dtype " table]; d++) {
			top = top " " item["dtype " table, d] " |"
			rule = rule "---:|"
		}
		print top "\n" rule
		for (i = 1; i <= count["case " table]; i++) {
			kase = item["case " table, i]
			row = "| " kase " |"
			for (d = 1; d <= count["dtype " table]; d++) {
				key = table SUBSEP item["dtype " table, d] SUBSEP kase
				row = row " " (key in cell ? cell[key] : "-") " |"
			}
			print row
		}
	}
}
