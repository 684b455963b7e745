#!/bin/sh
# model.t - files of tensors: hurwitz inspect, and operands of hurwitz run
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck disable=SC2059,SC2086 # word splitting, formats of octal: meant

# shellcheck source=t/cli.sh
. "${top_srcdir:=.}/t/cli.sh"

cpu='run -d cpu'

# A number of 4 or 8 little-endian bytes, below 65536
number() # BYTES VALUE
{
	printf "$(octal $(($2 % 256)))$(octal $(($2 / 256)))"
	i=2
	while [ $i -lt "$1" ]; do
		printf '\000'
		i=$((i + 1))
	done
}

text() # TEXT
{
	number 8 ${#1}
	printf %s "$1"
}

# A .safetensors file; DATA is a format for printf.
safetensors() # FILE HEADER DATA
{
	{
		text "$2"
		printf "$3"
	} >"$1"
}

# A .gguf file of one tensor; DATA is a format for printf.
gguf() # FILE NAME TYPE COLUMNS ROWS DATA
{
	{
		printf GGUF
		number 4 3
		number 8 1
		number 8 0
		text "$2"
		number 4 2
		number 8 "$4"
		number 8 "$5"
		number 4 "$3"
		number 8 0
		# The data begin at a multiple of 32; the tables have 64 bytes and the name.
		i=${#2}
		while [ $((i % 32)) -ne 0 ]; do
			printf '\000'
			i=$((i + 1))
		done
		printf "$6"
	} >"$1"
}

# ---- GGUF ----------------------------------------------------------------------------------------

gguf f.gguf blk.0.w 0 4 2 "$f1$f2$f3$f4$f4$f3$f2$f1"
good "inspect a .gguf file" inspect f.gguf
is "$(sed -n 2p ../out | tr -s ' ')" "blk.0.w F32 [2, 4] 32" "inspect: name, type, shape, bytes"
is "$(tail -n 1 ../out)" "1 tensors, 32 bytes" "inspect: the sum"
good "run on x.npy" $cpu hadamard x=x.npy y=y.npy
good "run on a tensor of a .gguf file" $cpu hadamard x=f.gguf:blk.0.w y=z.npy
cmp y.npy z.npy
ok $? "the result is the same"
# 32 times 4 with a scale of 0.25, in a block of Q8_0 and one of Q4_0
four=
for i in 1 2 3 4 5 6 7 8; do four="$four\\004\\004\\004\\004"; done
gguf q8.gguf t 8 32 1 "\\000\\064$four"
gguf q4.gguf t 2 32 1 "\\000\\064$(printf %s "$four" | sed 's/004/314/g' | cut -c1-64)"
npy ones.npy "$(header '<f4' '1, 32')" "$ones"
good "run on ones" $cpu hadamard x=ones.npy y=y.npy
for q in q8 q4; do
	good "run on a tensor of $q" $cpu hadamard x=$q.gguf:t y=z.npy
	cmp y.npy z.npy
	ok $? "$q is dequantized"
done
bad 2 'no such tensor' "a tensor that is not there" $cpu hadamard x=f.gguf:none y=no.npy
bad 2 'holds several' "a file without a tensor" $cpu hadamard x=f.gguf y=no.npy
bad 2 'outputs are .npy' "an output in a .gguf file" $cpu hadamard x=x.npy y=o.gguf:t
bad 2 'No such file' "a .gguf file that is not there" $cpu hadamard x=none.gguf:t y=no.npy
gguf q41.gguf t 3 32 1 "$f1$f1$f1$f1"
bad 2 "'t' has 20 bytes" "a block too short" inspect q41.gguf
gguf q41.gguf t 3 32 1 "$f1$f1$f1$f1$f1"
good "inspect knows more types than run" inspect q41.gguf
bad 2 'Q4_1, which is not read' "run: a type that is not read" $cpu hadamard x=q41.gguf:t y=no.npy
head -c 60 f.gguf >cut.gguf
bad 2 '^hurwitz: cut.gguf: is truncated' "half a file" inspect cut.gguf

# ---- inspect -------------------------------------------------------------------------------------

good "inspect a .npy file" inspect x.npy
is "$(sed -n 2p ../out | tr -s ' ')" "float32 [2, 4] 32" "inspect: a .npy file has no names"
bad 2 'one file' "inspect: no file" inspect
bad 2 'one file' "inspect: two files" inspect x.npy f.gguf
bad 2 'No such file' "inspect: a file that is not there" inspect none
bad 2 'is a directory' "inspect: a directory" inspect .
bad 2 'neither' "inspect: another file" inspect "$top_srcdir/t/model.t"
: >empty
bad 2 'is empty' "inspect: an empty file" inspect empty
mkfifo fifo
bad 2 'no regular file' "inspect: a pipe" inspect fifo
gguf evil.gguf "$(printf 'a\033[31m')" 0 4 2 "$f1$f2$f3$f4$f4$f3$f2$f1"
good "inspect: a name with an escape" inspect evil.gguf
! grep -q "$(printf '\033')" ../out
ok $? "prints nothing that a terminal obeys"

# ---- safetensors ---------------------------------------------------------------------------------

row() # NAME DTYPE SHAPE BEGIN END
{
	printf '"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%s,%s]}' "$@"
}

x8="$f1$f2$f3$f4$f4$f3$f2$f1"
safetensors m.safetensors "{$(row w F32 2,4 0 32),$(row b BF16 4 32 40),$(row e F8_E4M3 4 40 44)}" \
	"$x8"'\200\077\000\100\100\100\200\100\070\070\100\110'
hurwitz inspect m.safetensors
if grep -q 'built without jansson' ../err; then
	is $rc 1 "built without jansson: a sentence and status 1"
	skip "safetensors" "this hurwitz was built without jansson"
	echo "1..$tests"
	[ $failed -eq 0 ]
	exit
fi
good "inspect a .safetensors file" inspect m.safetensors
is "$(tr -s ' ' <../out | sed -n '2,$p' | paste -sd/ -)" \
	"w F32 [2, 4] 32/b BF16 [4] 8/e F8_E4M3 [4] 4/3 tensors, 44 bytes" "inspect: a row a tensor"
good "run on x.npy" $cpu hadamard x=x.npy y=y.npy
good "run on a tensor" $cpu hadamard x=m.safetensors:w y=z.npy
cmp y.npy z.npy
ok $? "the result is the same"
good "bfloat16 need not be said" $cpu hadamard out=f32 raw=1 x=m.safetensors:b y=z.npy
is "$(tail_of z.npy 16 f4)" "10 -2 -4 0" "and is read as such"
good "8-bit floating point is uint8 to run" $cpu dequantize format=e4m3 scale=1 q=m.safetensors:e y=z.npy
is "$(tail_of z.npy 16 f4)" "1 1 2 4" "whose format= says what it is"
bad 2 'e holds float8_e4m3fn (e4m3), x must' "a type that the operand does not have" \
	$cpu hadamard x=m.safetensors:e y=no.npy
safetensors d.safetensors "{$(row d F64 1 0 8),$(row i I64 1 8 16),$(row t BOOL 8 16 24)}" \
	'\000\000\000\000\000\000\360\077\001\000\000\000\000\000\000\000\001\001\001\001\001\001\001\001'
hurwitz $cpu hadamard x=d.safetensors:d y=z.npy
[ $rc -eq 0 ] && grep -q 'rounded from float64' ../err
ok $? "float64 is rounded, as of .npy files"
bad 2 'int64' "int64 is no x" $cpu hadamard x=d.safetensors:i y=no.npy
bad 2 'BOOL, which is not read' "nor are booleans" $cpu hadamard x=d.safetensors:t y=no.npy
safetensors s.safetensors "{$(row s F32 4 0 16)}" "$f1$f1$f1$f1"
good "an operand that may be a number may be a tensor" \
	$cpu quantize format=s8 scales=s.safetensors:s x=x.npy q=q.npy
is "$(tail_of q.npy 8 d1)" "1 2 3 4 4 3 2 1" "and is read"
for bits in 1 2 3 4; do
	safetensors bad$bits.safetensors "$(case $bits in
	1) echo "{$(row w F32 2,4 0 28)}" ;;
	2) echo "{$(row w F32 2,4 4 36)}" ;;
	3) echo "{$(row w F32 2,4 0 32),$(row w F32 2,4 0 32)}" ;;
	4) echo "{$(row w F32 2,4 0 32),$(row v F32 2,4 0 32)}" ;;
	esac)" "$x8"
	bad 2 "^hurwitz: bad$bits.safetensors: .*" "refused: bad$bits.safetensors" inspect bad$bits.safetensors
done
cp m.safetensors same.safetensors
good "an output may not be written there, a .npy beside may" $cpu hadamard x=same.safetensors:w y=same.npy
cmp m.safetensors same.safetensors
ok $? "the file of tensors is left alone"

# ---- quantize, dequantize ------------------------------------------------------------------------

q='quantize -t 1'
line="$x8$x8"
line="$line$line$line$line"
all=
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do all="$all$line$line$line$line"; done
half=
for i in 1 2 3 4 5 6 7 8; do half="$half"'\200\077\000\100\100\100\200\100'; done
half="$half$half$half$half$half$half$half$half"
half="$half$half$half$half$half$half$half$half"
metadata='"__metadata__":{"format":"pt"},'
safetensors w.safetensors "{$metadata$(row w F32 64,64 0 16384),$(row b F32 4 16384 16400),$(row \
	h.0.w BF16 32,64 16400 20496)}" "$all$f1$f2$f3$f4$half"
good "quantize" $q w.safetensors -o q.safetensors
is "$(awk '{ print $1 }' ../out | paste -sd' ' -)" "tensor w h.0.w total:" "a table of tensors"
cp q.safetensors first.safetensors
good "inspect what it wrote" inspect q.safetensors
is "$(awk '{ print $1, $2 }' ../out | paste -sd/ -)" \
	"name type/w s8-row/h.0.w s8-row/b F32/3 tensors," "layers have their format"
grep -q '^w .* of F32, ' ../out && grep -q '^h.0.w .*\[32, 64\].* of BF16, ' ../out
ok $? "their shape, and the type that they were made of"
is "$(($(od -An -tu4 -N4 q.safetensors) % 64))" 56 "data begin at a multiple of 64"
grep -q '"format":"pt"' q.safetensors
ok $? "the metadata are there"
good "quantize again, by two threads" quantize -t 2 -f s8-row --output=q.safetensors w.safetensors
cmp q.safetensors first.safetensors
ok $? "gives the same bits"
good "dequantize" dequantize q.safetensors -o back.safetensors
good "inspect that" inspect back.safetensors
is "$(awk '{ print $1, $2 $3 $4 }' ../out | paste -sd/ -)" \
	"name typeshapebytes/w F32[64,64]/b F32[4]16/h.0.w BF16[32,64]/3 tensors,20496bytes" "all types are back"
good "run on what is back" $cpu hadamard block=1 min_block=1 x=back.safetensors:w y=z.npy
is "$(tail_of z.npy 16 f4 | awk '{ printf "%.1f %.1f %.1f %.1f", $1, $2, $3, $4 }')" "4.0 3.0 2.0 1.0" \
	"and values are near"
for options in '-f e8-4.5-fast -r' '-r -c w.safetensors:w'; do
	good "quantize $options" $q $options w.safetensors -o q.safetensors
	good "and back" dequantize q.safetensors -o back.safetensors
done
# Activations are those of the tensors that match: the error of these alone is weighed.
errors()
{
	awk '$3 ~ /\]$/ { print $1, $(NF - 1) }' ../out
}
good "quantize as it is" $q w.safetensors -o q.safetensors
errors >../plain
good "quantize --calibrate PATTERN=" $q -c 'h.*=w.safetensors:w' w.safetensors -o q.safetensors
errors >../weighed
is "$(grep '^w ' ../weighed)" "$(grep '^w ' ../plain)" "leaves other tensors alone"
[ "$(grep '^h' ../weighed)" != "$(grep '^h' ../plain)" ]
ok $? "and weighs the error of those that match"
good "quantize --calibrate twice" $q -c '*=w.safetensors:w' -c w.safetensors:h.0.w w.safetensors -o q.safetensors
errors >../both
good "quantize --calibrate once" $q -c w.safetensors:h.0.w w.safetensors -o q.safetensors
is "$(errors)" "$(cat ../both)" "the last one counts"
# Products of features are made when they are needed, so files are read twice, but pipes are not.
good "quantize --calibrate of two files" $q -c 'h.*=z.npy' -c w=w.safetensors:w w.safetensors -o twice.safetensors
mkfifo ../pipe
cat z.npy >../pipe &
good "quantize --calibrate of a pipe" $q -c 'h.*=../pipe' -c w=w.safetensors:w w.safetensors -o q.safetensors
cmp q.safetensors twice.safetensors
ok $? "gives the same bytes"
# A row of 64 weights is small: headers and scales cost 1 to 3 bits here.
for bits in 8 12; do
	good "quantize --bits $bits" $q --bits $bits w.safetensors -o q.safetensors
	is "$(awk -v bits=$bits '/^total/ { print $7 <= bits }' ../out)" 1 "takes at most $bits"
done
good "quantize --skip" $q -s 'h.*' w.safetensors -o q.safetensors
grep -q '^h.0.w' ../out
is $? 1 "and that tensor is left alone"
good "quantize what has layers" $q q.safetensors -o twice.safetensors
good "inspect that, too" inspect twice.safetensors
is "$(grep -c s8-row ../out)" 2 "both are layers"
good "an output may be the input" dequantize twice.safetensors -o twice.safetensors
good "which is then the output" inspect twice.safetensors
is "$(grep -c s8-row ../out)" 0 "and has no layers"

bad 2 "no format 'e9'" "quantize: an unknown format" $q -f e9 w.safetensors -o no
bad 2 'not both' "quantize: a format and bits" $q -f s8-row -b 4 w.safetensors -o no
bad 2 'bits=1 is less than' "quantize: fewer bits than there are" $q -b 1 w.safetensors -o no
bad 2 'above 0' "quantize: bits that are no number" $q -b many w.safetensors -o no
bad 2 'output is missing' "quantize: no output" $q w.safetensors
bad 2 'output is missing' "dequantize: no output" dequantize w.safetensors
bad 2 'is needed' "quantize: no input" $q -o no
bad 2 'standard output' "quantize: standard output" $q w.safetensors -o -
for verb in "$q" dequantize; do
	bad 2 '^hurwitz: f.gguf: is a .gguf file; a .safetensors file is needed$' "$verb: a .gguf file" $verb f.gguf -o no
	bad 2 '^hurwitz: x.npy: is another file; a .safetensors file is needed$' "$verb: a .npy file" $verb x.npy -o no
done
bad 2 'no tensor of two' "quantize: no matrix" $q d.safetensors -o no
bad 2 'no compressed layer' "dequantize: no layer" dequantize w.safetensors -o no
bad 2 'has 4 features, but no tensor to quantize has as many in-features' "quantize: activations of another model" $q -c row.npy w.safetensors -o no
bad 2 "that matches 'z\*' has as many" "quantize: activations of no tensor" $q -c 'z*=w.safetensors:w' w.safetensors -o no
bad 2 'activations are' "quantize: activations of integers" $q -c packed.npy w.safetensors -o no
bad 2 'No such file' "quantize: no such directory" $q w.safetensors -o none/no
safetensors nan.safetensors "{$(row w F32 1,64 0 256)}" "$(printf %s "$line" | sed 's/\\200\\077/\\300\\177/')"
hurwitz $q nan.safetensors -o no
[ $rc -eq 2 ] && grep -q 'quantize: w: .*nan' ../err && [ ! -e no ]
ok $? "quantize: a weight that is NaN, and no other matrix"
safetensors nan.safetensors "{$(row nan F32 1,64 0 256),$(row w F32 64,64 256 16640)}" \
	"$(printf %s "$line" | sed 's/\\200\\077/\\300\\177/')$all"
for options in '-f s8-row' '-b 8'; do
	hurwitz $q $options nan.safetensors -o some.safetensors
	[ $rc -eq 0 ] && grep -q 'quantize: nan: .*copied' ../err && grep -q '^nan .* refused ' ../out
	ok $? "quantize $options: a matrix with a NaN is copied"
	good "inspect that" inspect some.safetensors
	is "$(sed '1d;$d' ../out | awk '{ print $1, $2 == "F32" }' | paste -sd/ -)" "w 0/nan 1" "the other is a layer"
done
sed 's/s8-row/d4-4.5/' first.safetensors >lies.safetensors
bad 2 "'w' is s8-row .*says d4-4.5" "dequantize: an entry that is wrong" dequantize lies.safetensors -o no
at=$(($(od -An -tu4 -N4 first.safetensors) + 8))
for byte in 0 8 40; do
	cp first.safetensors broken.safetensors
	printf '\376\376' | dd of=broken.safetensors bs=1 seek=$((at + byte)) conv=notrunc 2>/dev/null
	bad 2 "broken.safetensors: layer 'w'" "dequantize: byte $byte of a layer changed" \
		dequantize broken.safetensors -o no
done

# The dtype, offset and size in the file of each tensor
places() # FILE
{
	at=$(od -An -tu4 -N4 "$1" | tr -d ' ')
	head -c $((at + 8)) "$1" | tail -c "$at" | tr '}' '\n' |
		sed -n 's/.*"dtype":"\([A-Z0-9]*\)".*offsets":\[\([0-9]*\),\([0-9]*\).*/\1 \2 \3/p' |
		awk -v at=$((at + 8)) '{ print $1, $2 + at, $3 - $2 }'
}
misplaced() # FILE
{
	places "$1" | awk '{ unit["U8"] = 64; unit["F64"] = 8; unit["F32"] = 4; unit["BF16"] = 2 }
		$2 % unit[$1] || ($1 == "U8" && $3 % 64)' | paste -sd/ -
}
p62=
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23; do p62="$p62$x8"; done
p62="$p62$f1$f2"
safetensors parts.safetensors "{$(row v F32 3,62 0 744),$(row w F32 3,62 744 1488),$(row b BF16 2 1488 1492),$(row \
	d F64 2 1492 1508),$(row none F64 0,3 1508 1508),$(row o F32 8,7 1508 1732)}" \
	"$p62$p62$f1$f1$f1$f1$f1$x8$x8$x8$x8$x8$x8$x8"
for f in s8-g128 s4-g32 s4-g128 u4-g128 mxfp4 nvfp4; do
	good "quantize -f $f" $q -f $f parts.safetensors -o q.safetensors
	is "$(places q.safetensors | wc -l | tr -d ' ') $(misplaced q.safetensors)" "6 " "$f: all tensors are aligned"
	good "$f: and back" dequantize q.safetensors -o back.safetensors
done
entry='"__metadata__":{"hurwitz":"{\"version\":1,\"tensors\":{\"l\":{\"format\":\"s8-row\",\"dtype\":\"F32\",\"shape\":[1,1]}}}"}'
safetensors old.safetensors "{$entry,$(row l U8 8 0 8),$(row w F32 64,64 8 16392)}" "12345678$all"
good "quantize: a layer of a file without padding" $q old.safetensors -o q.safetensors
is "$(places q.safetensors | wc -l | tr -d ' ') $(misplaced q.safetensors)" "2 " "is padded"
good "quantize -f s4-g32: an odd number of in-features" $q -f s4-g32 parts.safetensors -o q.safetensors
grep -q '^o .* odd in ' ../out
ok $? "has a row that says so"
good "inspect that, too" inspect q.safetensors
grep -q '^o *F32 ' ../out
ok $? "and is copied"
bad 2 'quantized: odd in' "quantize: nothing but an odd number" $q -f s4-g32 -s v -s w parts.safetensors -o no

# Four samples of rows, of which each has a header: 128 + 4 (256 + 2 * 9 * 64) bytes
safetensors rows.safetensors "{$(row w F32 256,64 0 65536)}" "$all$all$all$all"
bad 2 'less than 2.813,' "quantize: the least bits, rounded up" $q -b 1 rows.safetensors -o no
good "quantize with them" $q -b 2.813 rows.safetensors -o q.safetensors
grep -q '^total: 16384 weights in 5760 bytes' ../out
ok $? "takes all of the budget"

# One row more than a sample: 128 + 320 + 2 (2 * 9 * 64) bytes; of s8-g128 128 + 192 + 65 * 64
safetensors odd.safetensors "{$(row w F32 65,64 0 16640)}" "$all$line"
bad 2 'less than 5.293,' "quantize --bits: a last panel of one row" $q -b 1 odd.safetensors -o no
good "quantize with less than s8-g128 takes" $q -b 8.615 odd.safetensors -o q.safetensors
grep -q '^w .* e8-3.25 ' ../out
ok $? "has the next format"
good "quantize with what it takes" $q -b 8.616 odd.safetensors -o q.safetensors
grep -q '^w .* s8-g128 *4480 ' ../out
ok $? "takes all of the budget, too"
# Of two rows s8-g128 takes the least, 128 + 64 + 1024; others have panels of 32 or 64 rows.
few="$line$line$line$line"
safetensors few.safetensors "{$(row w F32 2,512 0 4096)}" "$few$few$few$few"
bad 2 'less than 9.500,' "quantize --bits: few rows" $q -b 9 few.safetensors -o no
good "quantize them with what they take" $q -b 9.5 few.safetensors -o q.safetensors
grep -q '^w .* s8-g128 *1216 ' ../out
ok $? "has the smallest format"
safetensors tiny.safetensors "{$(row w F32 2,4 0 32)}" "$x8"
for options in '-f s8-row' '-b 8'; do
	hurwitz $q $options tiny.safetensors -o no
	[ $rc -eq 2 ] && grep -q 'no matrix can be quantized and made smaller' ../err && [ ! -e no ]
	ok $? "quantize $options: nothing is written if nothing is smaller"
done

# Rows whose second half is small, 2^-7, as which 8 bits with a scale for a row hold 0
small='\000\000\000\074'
for i in 1 2 3 4 5 6 7; do small="$small$small"; done
wide="$line$line$small"
wide="$wide$wide$wide$wide"
safetensors wide.safetensors "{$(row w F32 16,256 0 16384)}" "$wide$wide$wide$wide"
good "quantize --bits with more than all formats take" $q -b 12 wide.safetensors -o q.safetensors
grep -q '^w .* s8-g128 ' ../out
ok $? "takes that of the least error"

long=abcdefghijklmnopqrstuvwxyz
long=$long$long
bad 2 'is empty' "quantize: an output without a name" $q w.safetensors -o ''
bad 2 'too long' "quantize: a name too long, before any work" $q w.safetensors -o "$long$long$long$long$long"
bad 2 'is empty' "dequantize: an output without a name" dequantize first.safetensors -o ''
mkdir sub
ln -s sub/there.safetensors link
ln -s link link2
good "quantize: a link to what is not there" $q w.safetensors -o link2
[ -h link ] && [ -h link2 ] && cmp sub/there.safetensors first.safetensors
ok $? "its target is made, the link is left"
ln -s loop loop
bad 2 'symbolic links' "quantize: a link to itself" $q w.safetensors -o loop
for closed in 1 2; do
	case $closed in
	1) "$HURWITZ" $q w.safetensors -o q.safetensors >&- 2>../err ;;
	2) "$HURWITZ" $q -s 'none*' w.safetensors -o q.safetensors >../out 2>&- ;;
	esac
	cmp q.safetensors first.safetensors
	ok $? "quantize: the same file with stream $closed closed"
done
hurwitz $q -s 'none*' w.safetensors -o q.safetensors
[ $rc -eq 0 ] && grep -q 'none\* matches no tensor' ../err
ok $? "quantize: a --skip that matches nothing is mentioned"
bad 2 'skip matches all 2 matrices' "quantize: every matrix is skipped" $q -s '*' w.safetensors -o no

# Where the shape of each row is, after its name or below it
columns()
{
	awk '$1 == "name" || $1 == "tensor" { at = index($0, "shape") } at && /\[/ { print index($0, "[") - at }' ../out |
		sort -u | paste -sd/ -
}
for tensor in $long $long$long; do
	safetensors long.safetensors "{$(row $tensor F32 64,64 0 16384),$(row w F32 64,64 16384 32768)}" "$all$all"
	good "quantize: a name of ${#tensor} characters" $q long.safetensors -o q.safetensors
	is "$(columns) $(grep -c $tensor ../out)" "0 1" "its columns are those of the others"
	good "inspect that name" inspect q.safetensors
	is "$(columns) $(grep -c $tensor ../out)" "0 1" "its columns are those of the others, too"
done
sed 's/\[64,64\]/[64,00]/;s/\[64,00\]/[64, 0]/' first.safetensors >damaged.safetensors
good "inspect: an entry without weights" inspect damaged.safetensors
[ "$(grep -c damaged ../out)" -eq 1 ] && ! grep -q inf ../out
ok $? "is said to be damaged"
good "inspect: a wrong format" inspect lies.safetensors
is "$(grep -c damaged ../out)" 1 "is said to be damaged, too"
bad 2 'is a compressed layer .*hurwitz dequantize' "run: a compressed layer" \
	$cpu hadamard x=first.safetensors:w y=no.npy
bad 2 'd4-4.5|s8-g128' "run: a format that is none" $cpu linear_forward format=x w=w.npy x=w.npy y=no.npy

before=$(ls -A)
! (ulimit -f 1 && "$HURWITZ" $q w.safetensors -o no) >../out 2>../err &&
	[ "$(ls -A)" = "$before" ]
ok $? "quantize: nothing is left where a file may not be as long"
if [ -c /dev/full ]; then
	hurwitz $q w.safetensors -o /dev/full
	[ $rc -eq 1 ] && grep -q 'No space' ../err
	ok $? "quantize: a full device"
else
	skip "quantize: a full device" "no /dev/full"
fi

echo "1..$tests"
[ $failed -eq 0 ]
