#!/bin/sh
# cli.t - the command line from outside: help, devices, info, check, bench, demo, completion
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck disable=SC2002,SC2012,SC2015,SC2034,SC2059,SC2086,SC2231 # words, octal formats: meant

# shellcheck source=t/cli.sh
. "${top_srcdir:=.}/t/cli.sh"

# ---- Help and usage ------------------------------------------------------------------------------

for verb in '' info check bench demo run inspect quantize dequantize; do
	good "hurwitz $verb --help" $verb --help
	grep -q '^Usage: hurwitz' ../out
	ok $? "hurwitz $verb --help says how it is used"
done
good "hurwitz --version" --version
is "$(head -n 1 ../out)" "hurwitz $(sed -n 's/^#define HZ_VERSION_M[AI][JN]OR //p;s/^#define HZ_VERSION_PATCH //p' \
	"$top_srcdir/include/hurwitz.h" | paste -sd. -)" "--version begins with name and version"
for op in quantize dequantize choose_qparams qgemm qlinear; do
	hurwitz run --help
	grep -q "^$op: " ../out
	ok $? "run --help knows $op"
	good "run $op --help" run "$op" --help
done
for op in hadamard hadamard_quantize dequantize_hadamard; do
	hurwitz run --help
	grep -q "^$op: " ../out
	ok $? "run --help knows $op"
	good "run $op --help" run "$op" --help
	grep -q 'plan=auto|sylvester|greedy|uniform|true' ../out
	ok $? "run $op --help lists keys"
done
hurwitz run --help
[ "$(awk 'length > 80' ../out | wc -l)" -eq 0 ]
ok $? "run --help fits into 80 columns"
is "$(sed -n 's/^\([a-z_0-9]*\): .*/\1/p' ../out | while read -r op; do
	"$HURWITZ" run "$op" --help | sed '1,/^Operands that/d' | grep -v '^  ' >/dev/null && echo "$op"
done)" "" "run OP --help: operands and keys have one line each, explanations are indented"
hurwitz run quantize --help
is "$(awk '$1 ~ /^[<>]/ && $2 ~ /^(x|q|scales|new_scales)$/ { print $1 $2 }' ../out | paste -sd' ' -)" \
	"<x >q <?scales >?new_scales" "run OP --help: which operands are optional"
bad 2 'no command' "no arguments"
bad 2 "no command frobnicate" "an unknown command" frobnicate
bad 2 "no option --frobnicate" "an unknown option" --frobnicate
for verb in info check bench demo run inspect quantize dequantize; do
	bad 2 '--frobnicate' "hurwitz $verb: an unknown long option" $verb --frobnicate
	bad 2 '-Z' "hurwitz $verb: an unknown short option" $verb -Z
done
bad 2 'argument' "info takes no argument" info more
bad 2 'argument' "check takes no argument" check more
bad 2 "family or primitive 'more'" "bench knows no such family" bench more
bad 2 "primitive 'mhc_widen'" "bench: a part of others has no case of its own" bench mhc_widen
bad 2 'needs an argument' "bench: an option without its argument" bench --seconds
bad 2 'seconds' "bench: seconds that are no number" bench --seconds often
bad 2 'device' "run: a device that is none" run -d tpu hadamard x=x.npy y=y.npy
bad 2 'threads' "run: threads that are no number" run -t 0 hadamard x=x.npy y=y.npy
bad 2 "command a?b?c?" "a message is one line, and nothing that a terminal obeys" "$(printf 'a\nb\033c\177')"
HURWITZ_ISA=sse9 bad 2 'HURWITZ_ISA' "an environment that means nothing" run hadamard x=x.npy y=y.npy

# ---- Closed standard streams ---------------------------------------------------------------------

# Messages do not get into an output that would have the number of the closed stream.
good "run with all streams open" run -d cpu hadamard x=x.npy y=open.npy
for closed in 0 1 2; do
	rm -f closed.npy
	case $closed in
	0) "$HURWITZ" run -d cpu -v hadamard x=x.npy y=closed.npy <&- >../out 2>../err ;;
	1) "$HURWITZ" run -d cpu -v hadamard x=x.npy y=closed.npy >&- 2>../err ;;
	2) "$HURWITZ" run -d cpu -v hadamard x=x.npy y=closed.npy 2>&- >../out ;;
	esac
	cmp open.npy closed.npy
	ok $? "run: the same file with stream $closed closed"
done

# ---- Devices -------------------------------------------------------------------------------------

HURWITZ_LIBCUDA=$dir/no-such-library
export HURWITZ_LIBCUDA
bad 1 'cuda' "no GPU: run -d cuda" run -d cuda hadamard x=x.npy y=no.npy
bad 1 'cuda' "no GPU: demo -d cuda" demo -d cuda
bad 1 'cuda' "no GPU: bench -d cuda" bench -d cuda
good "run -d cpu" run -d cpu hadamard x=x.npy y=y.npy
good "no GPU: run -d auto" run -d auto hadamard x=x.npy y=z.npy
cmp y.npy z.npy
ok $? "no GPU: auto is the CPU"
hurwitz info --routes
printf '\n<!-- SPDX-License-Identifier: BSD-2-Clause -->\n' >>../out
cmp -s ../out "$top_srcdir/doc/routes.md"
ok $? "info --routes prints doc/routes.md (make routes writes it)"
bad 2 "not both" "info --json --routes" info --json --routes
good "no GPU: info" info
grep -q '^GPU *none in use: .' ../out
ok $? "info says why there is none"

# ---- info, check, bench, demo --------------------------------------------------------------------

for word in '^CPU' 'cores' 'caches' 'ISA' '^In use  *cpu' ' hadamard ' 'hadamard_quantize' 'dequantize_hadamard'; do
	grep -q "$word" ../out
	ok $? "info: $word"
done
[ "$(wc -l <../out)" -le 60 ]
ok $? "info is one screen"
grep -q 'ISA *c$' ../out
higher=$?
HURWITZ_ISA=c hurwitz info
grep -q 'ISA *c$' ../out
ok $? "info: HURWITZ_ISA=c is in use"
grep -q 'HURWITZ_ISA' ../out || [ $higher -eq 0 ]
ok $? "info: and that is the reason, if there is a higher one"
good "info --json" info --json
release=$(sed -n 's/.*"topology": "hwloc \([^"]*\)".*/\1/p' ../out)
if [ -n "$release" ] && ${PKG_CONFIG:-false} --exists hwloc; then
	is "$release" "$($PKG_CONFIG --modversion hwloc)" "info: hwloc's release"
else
	skip "info: hwloc's release" "no hwloc that can be asked, or no pkg-config"
fi
for key in version cpu cores isa isa_reason gpu reason driver device primitives; do
	grep -q "\"$key\": " ../out
	ok $? "info --json: $key"
done
is "$(tr -cd '{' <../out | wc -c | tr -d ' ')" "$(tr -cd '}' <../out | wc -c | tr -d ' ')" "info --json: braces match"
if command -v python3 >/dev/null 2>&1; then
	python3 -m json.tool <../out >/dev/null
	ok $? "info --json: JSON"
else
	skip "info --json: JSON" "no python3 to read it"
fi

good "check" check -d cpu
is "$(grep -c '^not ok' ../out)" 0 "check: all passed"
is "$(tail -n 1 ../out)" "1..$(grep -c '^ok' ../out)" "check prints TAP"

good "bench" bench --quick --seconds 0.001 --device cpu --json bench.json hadamard
is "$(grep -c '^hadamard ' ../out) $(grep -c . bench.json)" \
	"$(grep -c '"op": "hadamard",' bench.json) $(grep -c '^[a-z_]*hadamard[a-z_]* ' ../out)" \
	"a row in the table for each line of JSON"
for key in op case dtype device isa threads median_us min_us gb_per_s gop_per_s ceiling ratio; do
	is "$(grep -c "\"$key\": " bench.json)" "$(wc -l <bench.json | tr -d ' ')" "bench --json: every line has $key"
done
good "bench --json -" bench -q -s 0.001 -d cpu -j - dequantize_hadamard
is "$(grep -vc '^{"op": "dequantize_hadamard", .*}$' ../out)" 0 "bench --json -: JSON alone, of one primitive"
bad 2 'No such' "bench --json to nowhere" bench -q -j nowhere/b.json
if [ -c /dev/full ]; then
	hurwitz bench -q -s 0.001 -d cpu -j /dev/full mhc_init
	[ $rc -eq 1 ] && grep -q '^hurwitz: bench: --json: No space' ../err
	ok $? "bench --json to a full disk"
else
	skip "bench --json to a full disk" "no /dev/full"
fi
is "$("$HURWITZ" bench --help | grep 'quat_map ')" \
	"  quat       quat_map            conjugate, norm, normalization, inverse" "bench --help says what a primitive covers"
[ "$("$HURWITZ" bench --help | awk 'length > 80' | wc -l)" -eq 0 ]
ok $? "bench --help fits into 80 columns"
for op in $("$HURWITZ" bench --help | awk '/^Families/ { on = 1; next } on { print $2 }'); do
	grep -q "\"$op\"" "$top_srcdir"/tools/*/bench*.c
	ok $? "bench has a case of $op"
done

# Two runs of two cases: the machine became twice as slow, and one case three times as slow as that.
row() # CASE DTYPE MEDIAN RATIO
{
	echo "{\"op\": \"hadamard\", \"case\": \"$1\", \"dtype\": \"$2\", \"device\": \"cpu\", \"isa\": \"c\"," \
		"\"threads\": 1, \"median_us\": $3, \"min_us\": 1, \"ceiling\": \"memcpy\", \"ratio\": $4}"
}
{ row a f32 10 1; row a f16 10 0.8; row gone f32 1 1; } >old.json
{ row a f32 999 1; row a f32 20 1; row a f16 60 0.26666666; row new f32 1 1; row more f32 1 1; } >new.json
hurwitz bench --compare old.json --new new.json
is "$rc" 3 "bench --compare: a case that became slower is status 3"
is "$(awk '$1 == "hadamard" { print $3, $7, $8, $9, $10 }' ../out | paste -sd, -)" \
	"f16 6.000 2.000 3.000 slower,f32 2.000 2.000 1.000 " "slowest first, without the machine's part"
is "$(tail -n 2 ../out | paste -sd' ' -)" "2 cases of both: 1 slower and 0 faster by more than 10 %; \
the median of net is 2.000, of rooflines 2.000 1 cases only in old.json, 2 that are not in it" "the sum of it"
good "bench --threshold" bench -c old.json -n new.json -T 250
cp new.json kept.json
bad 2 'new measures nothing' "bench --new does not write --json" bench -c old.json -n new.json -j new.json
cmp -s new.json kept.json
ok $? "and leaves the file as it was"
rm kept.json
bad 2 'new measures nothing' "bench --new measures no primitive" bench -c old.json -n new.json hadamard
bad 2 'seconds is of times' "bench --quality takes no time" bench --quality --seconds 1
bad 2 'goes with' "bench --busy for no given time" bench --busy 1 --seconds 1
good "the other way round it is faster" bench -c new.json -n old.json
grep -q ' 0.333  faster$' ../out
ok $? "and says so"
row 'a case of more than twenty-eight' f32 1 1 >long.json
hurwitz bench -c long.json -n long.json
grep -q 'twenty-eight f32 ' ../out
ok $? "a long name does not touch the next column"
sed 's/memcpy/read/' new.json >other.json
hurwitz bench --compare old.json --new other.json
is "$rc $(awk '$8 == "other" && $7 == $9' ../out | wc -l | tr -d ' ')" "3 2" \
	"ceilings of different kinds are not compared"
hurwitz bench -q -s 0.001 -d cpu -c bench.json hadamard
[ $rc -eq 0 ] || [ $rc -eq 3 ]
ok $? "bench --compare measures"
is "$(grep -c '^hadamard ' ../out)" "$((2 * $(grep -c '"op": "hadamard"' bench.json)))" \
	"and finds every case again"
good "bench --grid" bench --grid --budget 0.2 -d cpu -j grid.json hadamard
cells=$(grep -c '"op": "[a-z_]*", "case": "[0-9]*x[0-9]*x[0-9]*.*"ceiling": "roofline"' grid.json)
grep -q ": $cells cells measured, 0 taken from the file" ../out && grep -q ' cliffs; ' ../out
ok $? "bench --grid: a line of JSON for each cell, and cliffs"
good "bench --grid again" bench --grid --budget 0.2 -d cpu -j grid.json hadamard
grep -q " cells measured, $cells taken from the file" ../out
ok $? "bench --grid: cells of the file are not measured again"
is "$(cut -d, -f 2,3 grid.json | sort | uniq -d)" "" "bench --grid: no cell twice"
bad 2 'goes with' "bench --grid with --compare" bench --grid -c grid.json
bad 2 'none of the primitives' "bench --grid of no product" bench --grid -d cpu quat_mul
bad 2 'is for --grid' "bench --budget alone" bench --budget 3
bad 2 'budget=x' "bench --budget x" bench --grid --budget x
bad 2 'No such' "bench --compare with nothing" bench -c nowhere.json
bad 2 'directory' "bench --compare with a directory" bench -c ../bad
bad 2 'none of the' "bench --compare: no case in common" bench -c old.json -n bench.json
bad 2 'is for --compare' "bench --new alone" bench -n new.json
bad 2 'is for --compare' "bench --threshold alone" bench --threshold 5
bad 2 'standard output' "bench --compare with --json -" bench -c old.json -j -
bad 2 'quality' "bench --compare with --quality" bench -c old.json -Q
for t in x -1 nan 1e9 ''; do
	bad 2 'threshold' "bench --threshold '$t'" bench -c old.json -n new.json -T "$t"
done
# A line that --json did not write; a printf format
line=$(row a f32 10 1)
while IFS='|' read -r pattern format; do
	printf "$format\n" >wrong.json
	bad 2 "$pattern" "bench --compare: $pattern" bench -c wrong.json -n new.json
done <<END
no case|
no JSON object|nonsense
no JSON object|[$line]
something behind|$line$line
something behind|${line%?}
missing|{}
is missing|{"op": "a"}
without an end|{"op": "a
belongs|{"op": 1}
belongs|{"op": {"op": "a"}}
belongs|$(echo "$line" | sed 's/"threads": 1/"threads": "1"/')
neither string nor number|{"x": [1]}
neither string nor number|{"x": true}
neither string nor number|{"x": nan}
number that is none|{"x": 1e999}
number that is none|{"x": 1-2}
colon|{"op" "a"}
twice|{"op": "a", "op": "b"}
too long|{"op": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}
control|{"op": "\\\\n"}
escape|{"op": "\\\\x"}
printable|{"op": "\\\\u001b"}
printable|{"op": "\\\\u12"}
printable|{"op": "\\033[31m"}
printable|{"op": "\\303\\244"}
no text|\\000
whole number|$(echo "$line" | sed 's/"threads": 1/"threads": 1.5/')
not above 0|$(row a f32 0 1)
not above 0|$(row a f32 1 -1)
END
{ echo "$line"; head -c 5000 /dev/zero | tr '\0' ' '; } >wrong.json
bad 2 'line 2: a line that is too long' "bench --compare: a long line" bench -c wrong.json -n new.json

# One thread: on a busy machine two threads wait for each other.
HURWITZ_THREADS=1
export HURWITZ_THREADS
# A stand-in for gnuplot, which may be missing: one that prints its script, then one that fails
mkdir ../gnuplot
printf '#!/bin/sh\ncat\nprintf "#"\nhead -c 100000 /dev/zero | tr "\\\\000" x\necho\n' >../gnuplot/gnuplot
chmod +x ../gnuplot/gnuplot
path=$PATH
PATH=$PWD/../gnuplot:$PATH
good "demo" demo --quick --plot demo.png
for word in 'linear_forward' 'e8-4.5-fast' 'made-up volcano' 'quat_linear' 'mhc_layer' 'right in test' 'qlinear' 'lattice_encode' 'No GPU' \
	'The picture: demo.png'; do
	grep -q "$word" ../out
	ok $? "demo: $word"
done
[ "$(wc -c <demo.png | tr -d ' ')" -gt 100000 ]
ok $? "demo --plot: a large picture"
is "$(awk '/^  (s8|s4|mx|e8)[a-z0-9.-]+ / && $5 < $4 - 1 { n++ } END { print n }' ../out)" 8 \
	"demo: a rotation helps each form of the layer"
is "$(awk '/^  (quaternions|real numbers) / { print $(NF - 2) }' ../out | uniq -c | awk '{ print $1 }')" 2 \
	"demo: two networks with as many weights"
is "$(awk '/^  64  / { print ($2 > 100 && $3 == "1.000") }' ../out)" 1 \
	"demo: 64 layers enlarge a signal, and do not if they are doubly stochastic"
is "$(grep -cE '^  (f32|8 bits|HNLQ [234])(, rotated)? .*%.*%' ../out)" 9 "demo: nine forms"
sed -n '/epochs/,/^$/p' ../out | awk '{ print $1, $2, $3, $4 }' >../demo.one
bad 2 'No such' "demo --plot to nowhere" demo -q -p nowhere/demo.png
bad 2 'without a chapter' "demo --plot of a chapter" demo -p demo.png quat
printf '#!/bin/sh\necho half\nexit 1\n' >../gnuplot/gnuplot
if [ -z "${HZ_TEST_QUICK-}" ]; then	# each takes as long as a demo
	hurwitz demo -q -d cpu -p half.png
	[ $rc -eq 1 ] && grep -q 'half.png: gnuplot could not draw it' ../err && [ ! -e half.png ] &&
		[ -z "$(find . -name '.hurwitz*')" ]
	ok $? "demo --plot: no half picture"
	if [ -c /dev/full ]; then
		printf '#!/bin/sh\nexec cat\n' >../gnuplot/gnuplot
		hurwitz demo -q -d cpu -p /dev/full
		[ $rc -eq 1 ] && grep -q '^hurwitz: /dev/full: No space' ../err
		ok $? "demo --plot to a full disk"
	else
		skip "demo --plot to a full disk" "no /dev/full"
	fi
	(PATH=/nonexistent HURWITZ_ISA=avx2 HURWITZ_THREADS=2 "$HURWITZ" demo -q -d cpu -p none.png) \
		>../out 2>../err && grep -q 'No picture: gnuplot is not installed' ../out && [ ! -e none.png ]
	ok $? "demo --plot without gnuplot"
	is "$(sed -n '/epochs/,/^$/p' ../out | awk '{ print $1, $2, $3, $4 }')" "$(cat ../demo.one)" \
		"demo: the same network by any kernels and threads"
fi
PATH=$path
if command -v gnuplot >/dev/null 2>&1; then
	gnuplot - <demo.png >real.png 2>../err && [ "$(head -c 4 real.png | tail -c 3)" = PNG ]
	ok $? "demo --plot: a PNG"
else
	skip "demo --plot: a PNG" "no gnuplot"
fi
for chapter in 'hadamard dequantize_hadamard' 'qgemm qlinear' 'quat weights' 'lattice product' 'mhc gain'; do
	[ -z "${HZ_TEST_QUICK-}" ] || [ "$chapter" != 'mhc gain' ] || continue
	good "demo ${chapter% *}" demo -d cpu "${chapter% *}"
	grep -q "${chapter#* }" ../out
	ok $? "demo ${chapter% *}: ${chapter#* }"
done
printf 'x' | grep -q "$(printf '\033')" ../out
[ $? -eq 1 ]
ok $? "no colours in a file"
good "demo on a file" demo w.npy
good "demo on float64" demo double.npy
good "demo on standard input" demo - <x.npy
npy ../bad/short.npy "$(header '<f4' '5,')" "$f1$f2$f3$f4"
bad 2 'bad/short.npy: is truncated' "demo on a bad file" demo ../bad/short.npy
bad 2 "'none.npy' is neither" "demo on no file" demo none.npy
bad 2 'no rows' "demo on an empty file" demo empty.npy
npy nan.npy "$(header '<f4' '2,')" '\000\000\300\177\000\000\300\177'
bad 2 'nan' "demo on NaN" demo nan.npy
bad 2 'one file' "demo on two files" demo x.npy w.npy
bad 2 'takes no file' "demo of a chapter on a file" demo quat x.npy
unset HURWITZ_THREADS

# ---- Completion ----------------------------------------------------------------------------------

complete_with() # WORD...
{
	bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _hurwitz
		printf "%s\n" "${COMPREPLY[@]}"' bash "$top_srcdir/tools/hurwitz.bash-completion" "$@" |
		sort | paste -sd' ' -
}
if command -v bash >/dev/null 2>&1; then
	is "$(complete_with "$HURWITZ" '')" "--help --version bench check demo dequantize info inspect quantize run" "completion: verbs"
	is "$(complete_with "$HURWITZ" run hada)" "hadamard hadamard_quantize" "completion: primitives"
	is "$(complete_with "$HURWITZ" run bf)" "" "completion: primitives alone"
	is "$(complete_with "$HURWITZ" run hadamard pl)" "plan=" "completion: keys"
	is "$(complete_with "$HURWITZ" run quantize new_s)" "new_scales=" "completion: operands"
	is "$(complete_with "$HURWITZ" run hadamard plan = u)" "uniform" "completion: values"
	is "$(complete_with "$HURWITZ" run hadamard x = bi)" "big.npy bigfortran.npy" "completion: files"
	is "$(complete_with "$HURWITZ" bench --js)" "--json" "completion: options"
	is "$(complete_with "$HURWITZ" run -d '')" "auto cpu cuda" "completion: devices"
	is "$(complete_with "$HURWITZ" demo latti)" "lattice" "completion: chapters"
else
	for i in 1 2 3 4 5 6 7 8 9 10; do
		skip "completion" "no bash"
	done
fi

echo "1..$tests"
[ $failed -eq 0 ]
