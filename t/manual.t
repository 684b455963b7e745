#!/bin/sh
# manual.t - every function, type and constant of the headers has a page, and the pages are correct
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck disable=SC2015,SC2016,SC2086 # A && B || C, $1 of awk; AWK may be several words
set -u
: "${top_srcdir:=.}" "${AWK:=awk}" "${HURWITZ:=./hurwitz}"
LC_ALL=C
export LC_ALL
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
header=$top_srcdir/include/hurwitz.h
bridge=$top_srcdir/include/hurwitz-dlpack.h
# shellcheck source=t/tap.sh
. "$top_srcdir/t/tap.sh"

mkdir "$work/man3"
report "doc/mkman.awk says nothing" "$($AWK -v dir="$work/man3" -f "$top_srcdir/doc/mkman.awk" \
	"$top_srcdir/doc/hurwitz.7" "$header" "$bridge" 2>&1)"
cd "$work" || exit 99
case $top_srcdir in /*) ;; *) top_srcdir=$OLDPWD/$top_srcdir ;; esac
header=$top_srcdir/include/hurwitz.h
bridge=$top_srcdir/include/hurwitz-dlpack.h

functions=$(sed -n -e 's/^HZ_API.*[ *]\(hz_[a-z0-9_]*\)(.*/\1/p' \
	-e 's/^static inline .*[ *]\(hz_[a-z0-9_]*\)(.*/\1/p' "$header" "$bridge")
types=$(sed -n -e 's/^enum \(hz_[a-z0-9_]*\) {.*/\1/p' \
	-e 's/^typedef struct \(hz_[a-z0-9_]*\).*/\1/p' "$header")
report "the headers have functions and types" "$([ "$(echo "$functions" | wc -l)" -gt 100 ] &&
	[ "$(echo "$types" | wc -l)" -gt 30 ] || echo "few found")"
report "every function has a page that declares it" "$(for f in $functions; do
	page=man3/$f.3
	[ -e "$page" ] || { echo "$f: no page"; continue; }
	to=$(sed -n 's/^\.so //p' "$page")
	grep -qx "\.Fo $f" "${to:-$page}" || echo "$f: ${to:-$page} does not declare it"
done)"
report "every type has a page that names it" "$(for f in $types; do
	page=man3/$f.3
	[ -e "$page" ] || { echo "$f: no page"; continue; }
	to=$(sed -n 's/^\.so //p' "$page")
	grep -q "^\.Nm $f\( ,\)*$" "${to:-$page}" || echo "$f: ${to:-$page} does not name it"
done)"
enums=$(sed -n 's/^enum \(hz_[a-z0-9_]*\) {.*/\1/p' "$header")
report "every enumeration has a page of its own" "$(for e in $enums; do
	grep -h '^\.so ' "man3/$e.3"
done)"
# hz_version() gives the version; the attribute of exported functions is internal.
cat man3/*.3 | tr -c 'A-Z0-9_\n' '\n' | grep '^HZ_' | sort -u >words
report "every constant stands in some page" \
	"$(sed -n -e 's/^#define \(HZ_[A-Z0-9_]*\).*/\1/p' -e 's/^	\(HZ_[A-Z0-9_]*\)[ ,].*/\1/p' \
		"$header" | grep -v -e '^HZ_API$' -e '^HZ_API_CHECK$' -e '^HZ_VERSION_' | sort -u | comm -23 - words)"
report "every function that takes a context and gives a status says which errors" \
	"$(for page in man3/*.3; do
		if grep -q '^\.Fa "hz_context \*ctx"' "$page" && grep -qx '\.Ft int' "$page" &&
			! grep -qx '\.Sh ERRORS' "$page"; then
			echo "$page"
		fi
	done)"
report "every function that returns something says what" \
	"$(for page in man3/*.3; do
		if grep '^\.Ft ' "$page" | grep -qvx '\.Ft void' && ! grep -qx '\.Sh RETURN VALUES' "$page"; then
			echo "$page"
		fi
	done)"
report "every page of a function has examples" "$(for page in man3/*.3; do
	! grep -q '^\.Fo ' "$page" || grep -qx '\.Sh EXAMPLES' "$page" || echo "$page"
done)"
report "every NAME line is a phrase of at most 100 characters" \
	"$(for page in man3/*.3; do
		name=$(sed -n 's/^\.Nd //p' "$page")
		case $name in
		'') ;;		# only points to another page
		?' = '* | *\** | *'{'*) echo "$page: $name" ;;
		*' '*) [ ${#name} -le 100 ] || echo "$page: $name" ;;
		*) echo "$page: $name" ;;
		esac
	done)"
report "every call that a NAME line names is a function" \
	"$(sed -n 's/^\.Nd //p' man3/*.3 | grep -o 'hz_[a-z0-9_]*()' | sort -u | while read -r f; do
		echo "$functions" | grep -qx "${f%??}" || echo "$f"
	done)"
report "no description is empty" "$(for page in man3/*.3; do
	grep -q '^\.so ' "$page" && continue
	grep -q '^\.Nd .' "$page" || echo "$page: no one-line description"
	sed -n '/^\.Sh DESCRIPTION/,/^\.Sh [^D]/p' "$page" | grep -q '^[^.]' ||
		echo "$page: no description"
done)"
report "every reference leads to a page" "$(cat man3/*.3 "$top_srcdir"/doc/hurwitz.[17] |
	sed -n 's/^\.Xr \(hz_[a-z0-9_]*\) 3.*/\1/p' | sort -u |
	while read -r f; do [ -e "man3/$f.3" ] || echo "$f(3)"; done)"
report "every call that comments name is there" "$(cat man3/*.3 "$top_srcdir"/doc/hurwitz.[17] |
	grep -o 'hz_[a-z0-9_]*()' | tr -d '()' | sort -u |
	while read -r f; do [ -e "man3/$f.3" ] || echo "$f()"; done)"

if command -v mandoc >/dev/null 2>&1; then
	report "mandoc has nothing to say" "$(grep -L '^\.so ' man3/*.3 |
		xargs mandoc -T lint -W warning "$top_srcdir/doc/hurwitz.1" "$top_srcdir/doc/hurwitz.7" 2>&1)"
else
	skip "mandoc has nothing to say" "there is no mandoc here"
fi

# Examples of the pages, each the body of a function, with what they do not declare
{
	echo '#include <hurwitz.h>
#include <stdio.h>
struct model;
hz_context *ctx; struct model *model; const hz_tensor *x; hz_tensor *y; size_t bytes;
int forward(hz_context *, struct model *, const hz_tensor *, hz_tensor *);'
	$AWK '/^ \* Example:$/ { printf "void example_%d(void);\nvoid example_%d(void) {\n", ++n, n; on = 1; next }
		on && /^ \*     / { print substr($0, 4); next }
		on && !/^ \*$/ { print "}"; on = 0 }' "$header"
} >examples.c
report "examples of the pages compile" "$([ "$(grep -c '^void example.*{' examples.c)" -ge 6 ] || echo few
	${CC:-cc} -std=c99 -Wall -Wextra -Werror -fsyntax-only -I"$top_srcdir/include" examples.c 2>&1)"

# The page of the command: every primitive of run, every option of every command.
case $HURWITZ in /*) ;; *) HURWITZ=$OLDPWD/$HURWITZ ;; esac
if [ "${cross_compiling:-no}" = no ] && [ -x "$HURWITZ" ]; then
	report "hurwitz(1) has every primitive of run" \
		"$("$HURWITZ" run --help | sed -n 's/^\([a-z_0-9]*\): .*/\1/p' | while read -r op; do
			grep -Eq "^\.It Cm .*\b$op\b|Cm $op\b|^\.Cm $op\b|, $op( |$)" "$top_srcdir/doc/hurwitz.1" || echo "$op"
		done)"
	# Keys of vlut_gemm2's second matrix are those of the first with the prefix x_.
	report "hurwitz(1) has every operand and key of run" "$("$HURWITZ" run --help |
		sed -n 's/^\([a-z_0-9]*\): .*/\1/p' | while read -r op; do
			"$HURWITZ" run "$op" --help
		done | $AWK '$1 ~ /^[<>][?]?$/ { print $2 } /^  [A-Za-z_]+=/ { sub(/=.*/, "", $1); print $1 }' |
		sed 's/^x_//' | sort -u | while read -r name; do
			grep -Eq "Cm.* (x_)?$name=|^[.]Cm (x_)?$name\$" "$top_srcdir/doc/hurwitz.1" || echo "$name"
		done)"
	report "hurwitz(1) has every option" "$(for verb in info check bench demo run quantize dequantize; do
		"$HURWITZ" $verb --help | sed -n 's/^  -., --\([a-z-]*\).*/\1/p' | while read -r option; do
			grep -Eq "^\.(It Fl . , )?(Fl )?-$option( |\$)" "$top_srcdir/doc/hurwitz.1" ||
				echo "$verb --$option"
		done
	done)"
else
	skip "hurwitz(1) has every primitive of run" "a cross build"
	skip "hurwitz(1) has every operand and key of run" "a cross build"
	skip "hurwitz(1) has every option" "a cross build"
fi
echo "1..$n"
