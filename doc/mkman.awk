# mkman.awk - manual pages of section 3, in mdoc, from the comments of include/hurwitz.h
# SPDX-License-Identifier: BSD-2-Clause
#
#	awk -v dir=doc/man3 -f doc/mkman.awk doc/hurwitz.7 include/hurwitz.h \
#		include/hurwitz-dlpack.h
#
# Each comment that stands at the left margin, with what is declared under it, makes one page, named
# after the first type or function there; the others get a page that only points to it. Functions
# without a comment belong to the comment before; types and macros without one to the type after,
# or else to the comment before. A comment that declares neither type nor function is what the calls
# of its section have in common, and makes a page whose name stands below. Indented lines of a
# comment are kept as they are. A sentence that starts with "Errors:" becomes the section of that
# name; where there is none, it refers to what the calls of the section have in common. A paragraph
# "Example:" with indented lines below becomes EXAMPLES; pages without one name the family's program
# in doc/examples. The date is that of hurwitz.7.

BEGIN {
	common["Quantized matrix multiplication"] = "hz_qparams"
	common["Quaternions"] = "hz_quat"
	common["Quaternion layers"] = "hz_quat_layers"
	common["Manifold-constrained hyper-connections"] = "hz_mhc"
	example["Walsh-Hadamard transforms"] = "hadamard.c"
	example["Quantized matrix multiplication"] = "qgemm.c"
	example["Quaternions"] = example["Quaternion layers"] = "quat_layer.c"
	example["HNLQ: the hierarchical nested lattice quantizer"] = "lattice.c"
	example["Manifold-constrained hyper-connections"] = "mhc.c"
	example["Memory and streams"] = "stream.c"
	example["Status"] = example["Types and views"] = example["Context"] = "minimal.c"
	example["Linear layers with quantized weights"] = "linear.c"
	example["hurwitz-dlpack.h"] = "dlpack.py"
}

function text_line(s)
{
	gsub(/\\/, "\\e", s)
	if (s ~ /^[.']/)
		s = "\\&" s
	return s
}

# One item of the header is over: a comment, or declarations that had none.
function end_item(	kind)
{
	if (decl == "" && comment == "")
		return
	kind = functions(decl) != "" ? "function" : "type"
	if (comment == "" && kind == "type") {
		pending = pending decl
	} else if (comment == "") {
		add(last, "", decl)
	} else {
		if (pending != "" && types(decl) != "") {
			decl = pending "\n" decl
			pending = ""
		}
		if (pending != "")
			add(last, "", pending)
		pending = ""
		last = page_of(decl)
		if (last == "")
			last = common[section]
		add(last, comment, decl)
	}
	comment = decl = ""
}

# The names of the functions in declarations, with blanks around and between.
function functions(d,	line, n, i, names)
{
	n = split(d, line, "\n")
	for (i = 1; i <= n; i++)
		if (line[i] ~ /^HZ_API(_CHECK)? /) {
			sub(/\(.*/, "", line[i])
			sub(/.*[ *]/, "", line[i])
			names = names " " line[i]
		}
	return names == "" ? "" : names " "
}

# The same for types: enum hz_x, typedef struct hz_x. Pending ones are found by their first line.
function types(d,	line, n, i, names)
{
	n = split(d, line, "\n")
	for (i = 1; i <= n; i++)
		if (line[i] ~ /^(typedef )?(struct|enum) hz_/) {
			sub(/^(typedef )?(struct|enum) /, "", line[i])
			sub(/[ ;].*/, "", line[i])
			names = names " " line[i]
		}
	return names == "" ? "" : names " "
}

# The page that declarations belong to: their last type that has the comment, or first function.
function page_of(d,	name, n, names)
{
	names = types(d)
	if (names != "") {
		n = split(names, name, " ")
		return name[n]
	}
	names = functions(d)
	split(names, name, " ")
	return name[1]
}

function add(page, text, d)
{
	if (page == "")
		return
	if (!(page in page_decl)) {
		page_section[page] = section
		page_header[page] = header
		order[++pages] = page
	}
	if (text != "")
		page_text[page] = page_text[page] (page_text[page] == "" ? "" : "\n") text
	page_decl[page] = page_decl[page] d
}

# ---- Reading

FNR == NR {
	if (/^\.Dd /)
		date = $0
	if (/^\.Os /)
		os = $0
	next
}
/^\/\* ---- / {
	end_item()
	if (pending != "")
		add(last, "", pending)
	pending = ""
	section = $0
	sub(/^\/\* ---- /, "", section)
	sub(/ -+ \*\/$/, "", section)
	next
}
# Each header is over where C++ closes its brace, or at its end.
FNR == 1 {
	header = FILENAME
	sub(/.*\//, "", header)
	section = header == "hurwitz.h" ? "" : header
	inside = 0
}
section == "" { next }
/^#ifdef __cplusplus/ {
	end_item()
	if (pending != "")
		add(last, "", pending)
	pending = section = ""
	next
}
/^\/\* .*\*\/$/ {
	end_item()
	comment = $0
	sub(/^\/\* /, "", comment)
	sub(/ \*\/$/, "", comment)
	comment = comment "\n"
	next
}
/^\/\*$/ { end_item(); inside = 1; next }
inside && /^ \*\/$/ { inside = 0; next }
inside { sub(/^ \* ?/, ""); comment = comment $0 "\n"; next }
# An inline function declares as a prototype; its body is skipped.
/^static inline / {
	sub(/^static inline/, "HZ_API")
	decl = decl $0 ";\n"
	end_item()
	body = 1
	next
}
body { body = !/^}/; next }
# Of other things that are static nothing is said.
/^static / { comment = decl = ""; body = 1; next }
# A blank line ends declarations that can stand alone; a prototype may follow a prototype.
/^$/ { if (decl != "") end_item(); next }
{ decl = decl $0 "\n" }

# ---- Writing

function one_line_description(page,	s)
{
	if (page == common[page_section[page]])
		return "conventions of all calls: " tolower(page_section[page])
	s = page_text[page]
	gsub(/\n/, " ", s)
	sub(/[.:;] .*/, "", s)
	sub(/[.:;]? *$/, "", s)
	if (s ~ /^(Its|The) gradients?/ && page ~ /_bwd$/)
		sub(/^(Its|The) gradients?.*/, "gradients of " substr(page, 1, length(page) - 4) "()", s)
	if (s ~ /^[A-Z]([a-z]|$| )/ && s !~ /^(Walsh|Hadamard|Hamilton|Sinkhorn)/)
		s = tolower(substr(s, 1, 1)) substr(s, 2)
	return s
}

function synopsis(page, out,	d, n, i, line, proto, type, name, args, k, arg)
{
	print ".Sh SYNOPSIS\n.In " page_header[page] >out
	n = split(page_decl[page], line, "\n")
	proto = ""
	for (i = 1; i <= n; i++) {
		if (line[i] ~ /^HZ_API(_CHECK)? /)
			proto = substr(line[i], index(line[i], " ") + 1)
		else if (proto != "")
			proto = proto " " line[i]
		if (proto == "" || proto !~ /;$/)
			continue
		gsub(/[ \t]+/, " ", proto)
		d = index(proto, "(")
		type = substr(proto, 1, d - 1)
		name = type
		sub(/.*[ *]/, "", name)
		type = substr(type, 1, length(type) - length(name))
		sub(/ $/, "", type)
		args = substr(proto, d + 1)
		sub(/\);$/, "", args)
		print ".Ft " type "\n.Fo " name >out
		k = split(args, arg, ", ")
		for (d = 1; d <= k; d++)
			print ".Fa \"" arg[d] "\"" >out
		print ".Fc" >out
		proto = ""
	}
}

# Prose, with displays for what is indented. Returns the "Errors:" part instead of writing it.
function prose(s, out,	n, i, line, display, errors, in_errors, previous)
{
	gsub(/[.] Errors: /, ".\nErrors: ", s)
	gsub(/[.] Source: /, ".\nSource: ", s)
	n = split(s, line, "\n")
	for (i = 1; i <= n; i++) {
		if (line[i] ~ /^Errors:/) {
			in_errors = 1
			sub(/^Errors: */, "", line[i])
		} else if (in_errors && (line[i] == "" || line[i] ~ /^[A-Z][a-z]+:/)) {
			in_errors = 0
		}
		if (in_errors) {
			errors = errors line[i] "\n"
			continue
		}
		if (line[i] == "Example:") {
			examples = ".Bd -literal -offset indent"
			for (i++; i <= n && (line[i] == "" || line[i] ~ /^  /); i++)
				if (line[i] != "" || (i < n && line[i + 1] ~ /^  /))
					examples = examples (examples ~ /indent$/ && line[i] == "" ? "" : \
						"\n" text_line(substr(line[i], 5)))
			examples = examples "\n.Ed"
			i--
			continue
		}
		if (line[i] ~ /^  / && !display) {
			print ".Bd -literal -offset indent" >out
			display = 1
		} else if (display && line[i] !~ /^  /) {
			print ".Ed" >out
			display = 0
		}
		if (display)
			print text_line(substr(line[i], 3)) >out
		else if (line[i] == "" && i < n && line[i + 1] != "" &&
			 line[i + 1] !~ /^(  |Errors:|Example:)/)
			print ".Pp" >out
		else if (line[i] != "") {
			if (previous ~ /\.$/ && line[i] ~ /^[A-Z][a-z]+( [a-z])?: /)
				print ".Pp" >out
			sentence(line[i], out)
		}
		previous = line[i]
	}
	if (display)
		print ".Ed" >out
	return errors
}

# A line of prose; mdoc wants each sentence to begin a line.
function sentence(s, out,	at)
{
	while ((at = match(s, /[A-Za-z0-9)"][.] [A-Z]/)) > 0) {
		print text_line(substr(s, 1, at + 1)) >out
		s = substr(s, at + 3)
	}
	print text_line(s) >out
}

# What functions return: a status, or what their comment says
function return_values(page, out,	n, i, line, status, others)
{
	n = split(page_decl[page], line, "\n")
	for (i = 1; i <= n; i++) {
		if (line[i] ~ /^HZ_API(_CHECK)? int hz_[a-z0-9_]*\(hz_context/)
			status = 1
		else if (line[i] ~ /^HZ_API(_CHECK)? / && line[i] !~ /^HZ_API(_CHECK)? void /)
			others = 1
	}
	if (status)
		print ".Sh RETURN VALUES\n.Dv HZ_OK ,\nwhich is 0, or a negative\n.Xr hz_status 3 ,\n" \
			"of which\n.Xr hz_errmsg 3\nhas the sentence." >out
	else if (others)
		print ".Sh RETURN VALUES\nAs described above." >out
}

function write_page(page,	out, names, name, n, i, d, line, errors, also, j)
{
	out = dir "/" page ".3"
	names = types(page_decl[page]) functions(page_decl[page])
	n = split(names, name, " ")
	print ".\\\" Made by doc/mkman.awk from include/hurwitz.h" >out
	print date "\n.Dt " toupper(page) " 3\n" os "\n.Sh NAME" >out
	d = examples = ""
	seen[page] = page
	for (i = 1; i <= n; i++)
		if (name[i] != page && !((page, name[i]) in listed)) {
			listed[page, name[i]] = 1
			d = d " ,\n.Nm " name[i]
			if (!(name[i] in page_decl) && !(name[i] in seen)) {
				seen[name[i]] = page
				print ".so man3/" page ".3" >(dir "/" name[i] ".3")
				close(dir "/" name[i] ".3")
			}
		}
	print ".Nm " page d "\n.Nd " one_line_description(page) >out
	synopsis(page, out)
	print ".Sh DESCRIPTION" >out
	errors = prose(page_text[page], out)
	n = split(page_decl[page], line, "\n")
	d = 0
	for (i = 1; i <= n; i++) {
		if (line[i] ~ /^HZ_API/)
			while (line[i] !~ /;/)
				i++
		else if (line[i] != "") {
			if (!d)
				print ".Bd -literal" >out
			else if (line[i] ~ /^(typedef|enum|struct)/ || line[i - 1] ~ /^}/)
				print "" >out
			d = 1
			print text_line(line[i]) >out
		}
	}
	if (d)
		print ".Ed" >out
	return_values(page, out)
	if (examples != "")
		print ".Sh EXAMPLES\n" examples >out
	else if (page_section[page] in example && functions(page_decl[page]) != "")
		print ".Sh EXAMPLES\n.Pa examples/" example[page_section[page]] \
			"\nin the folder of the documentation is a program with calls of this family." >out
	also = common[page_section[page]]
	if (errors != "") {
		print ".Sh ERRORS" >out
		prose(toupper(substr(errors, 1, 1)) substr(errors, 2), out)
	} else if (page_decl[page] ~ /HZ_API(_CHECK)? int hz_[a-z0-9_]*\(hz_context/ &&
		   page_text[also] ~ /Errors:/) {
		print ".Sh ERRORS\nThose of all calls of its kind, in\n.Xr " also " 3 ." >out
	}
	print ".Sh SEE ALSO" >out
	also = ""
	for (i = 1; i <= pages; i++)
		sorted[i] = order[i]
	for (i = 2; i <= pages; i++)
		for (j = i; j > 1 && sorted[j - 1] > sorted[j]; j--) {
			d = sorted[j]
			sorted[j] = sorted[j - 1]
			sorted[j - 1] = d
		}
	for (i = 1; i <= pages; i++)
		if (sorted[i] != page && page_section[sorted[i]] == page_section[page])
			print ".Xr " sorted[i] " 3 ," >out
	print ".Xr hurwitz 7" >out
	close(out)
}

END {
	for (p = 1; p <= pages; p++)
		write_page(order[p])
}
