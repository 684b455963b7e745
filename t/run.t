#!/bin/sh
# run.t - hurwitz run as a command: primitives, files, errors, exit statuses
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck disable=SC2002,SC2012,SC2015,SC2059,SC2086,SC2231 # word splitting, formats of octal: meant

# shellcheck source=t/cli.sh
. "${top_srcdir:=.}/t/cli.sh"

# ---- run: arguments ------------------------------------------------------------------------------

bad 2 'no primitive' "run: no primitive" run
bad 2 "no primitive 'fft'" "run: an unknown primitive" run fft x=x.npy
bad 2 "'colour'" "run: an unknown key" run hadamard colour=red x=x.npy y=y.npy
bad 2 "'z'" "run: an unknown operand" run hadamard z=x.npy y=y.npy
bad 2 "'z:bf16'" "run: an unknown operand with a dtype" run hadamard z:bf16=x.npy y=y.npy
bad 2 'neither' "run: an argument without =" run hadamard x.npy y=y.npy
bad 2 'x is given twice' "run: an operand twice" run hadamard x=x.npy x=row.npy y=y.npy
bad 2 'block is given twice' "run: a key twice" run hadamard block=2 block=4 x=x.npy y=y.npy
bad 2 'x= is missing' "run: an input missing" run hadamard y=y.npy
bad 2 'y= is missing' "run: an output missing" run hadamard x=x.npy
bad 2 'needs a file' "run: an operand without a file" run hadamard x= y=y.npy
for value in plan=fast plan= block=-1 block=two block=1.5 'block= 4' block=99999999999999999999 factor=0 \
	factor=inf factor=nan factor=big factor=1x transpose=2 raw=yes axis=first axis=last axis=7 base=hadamard \
	out=f64 order=-1 seed=x; do
	bad 2 "${value%%=*}" "run: $value" run hadamard "$value" x=x.npy y=y.npy
done
bad 2 'axis=2: the value must be -2 to 1' "run: an axis beyond the array" run hadamard axis=2 x=x.npy y=y.npy
for key in base=dao order=12; do
	bad 2 'base= and order= are for plan=true' "run: $key of another plan" run hadamard $key x=x.npy y=y.npy
done
bad 2 'pre= and seed=' "run: signs twice" run hadamard seed=1 pre=packed.npy x=row.npy y=y.npy
bad 2 'disagree' "run: out= against y:DTYPE=" run hadamard out=f16 y:bf16=y.npy x=x.npy
bad 2 'cannot be said' "run: a dtype that the operand never has" run hadamard x:e4m3=x.npy y=y.npy
bad 2 'both' "run: one file for two outputs" run hadamard_quantize x=x.npy q=o.npy scale=o.npy
bad 2 'two outputs' "run: one file spelt in two ways" run hadamard_quantize x=x.npy q=o.npy \
	scale=../work/./o.npy

# ---- run: hadamard -------------------------------------------------------------------------------

cpu='run -d cpu'
hurwitz $cpu -v hadamard x=x.npy y=y.npy
grep -q '^hurwitz: hadamard x=f32.* y=f32.*: route .* us$' ../err
ok $? "run -v says operands, route and time"
HURWITZ_ROUTE=hadamard:none
export HURWITZ_ROUTE
bad 2 'HURWITZ_ROUTE has no route "none" of hadamard' "an unknown route" $cpu hadamard x=x.npy y=y.npy
unset HURWITZ_ROUTE
sylvester='5 -1 -2 0 5 1 2 0'
good "run hadamard" $cpu hadamard x=x.npy y=y.npy
[ ! -s ../out ]
ok $? "run prints nothing"
is "$(tail_of y.npy 32 f4)" "$sylvester" "its rows are right"
is "$(header_of y.npy)" "$(header "${e}f4" '2, 4')" "its header is right"
is "$(wc -c <y.npy | tr -d ' ')" 160 "its data begin at byte 128"
is "$(ls -l y.npy | cut -c1-10)" "$(: >plain; ls -l plain | cut -c1-10)" "its mode is that of any new file"
rm -f plain
for x in fortran big bigfortran; do
	good "run hadamard on $x.npy" $cpu hadamard x=$x.npy y=z.npy
	cmp y.npy z.npy
	ok $? "the result is the same"
done
good "axis=0" $cpu hadamard axis=0 raw=1 x=x.npy y=z.npy
is "$(tail_of z.npy 32 f4)" "5 5 5 5 -3 -1 1 3" "columns are right"
$HURWITZ $cpu hadamard axis=-2 raw=1 x=x.npy y=0.npy
cmp z.npy 0.npy
ok $? "axis=-2 is the same"
for axis in 1 -1; do
	$HURWITZ $cpu hadamard axis=$axis x=x.npy y=0.npy
	cmp y.npy 0.npy
	ok $? "axis=$axis is the default"
done
good "block=2" $cpu hadamard block=2 raw=1 x=row.npy y=z.npy
is "$(tail_of z.npy 16 f4)" "3 -1 7 -1" "two blocks of two"
good "factor=" $cpu hadamard factor=-2.5 x=row.npy y=z.npy
is "$(tail_of z.npy 16 f4)" "-12.5 2.5 5 -0" "the factor is there"
good "raw=1" $cpu hadamard raw=1 x=row.npy y=z.npy
is "$(tail_of z.npy 16 f4)" "10 -2 -4 0" "entries are +-1"
good "float16" $cpu hadamard x=half.npy y=z.npy
is "$(tail_of z.npy 8 x2)" "4500 bc00 c000 0000" "float16 to float16"
good "float16 to float32" $cpu hadamard out=f32 x=half.npy y=z.npy
is "$(tail_of z.npy 16 f4)" "5 -1 -2 0" "out=f32"
good "bfloat16" $cpu hadamard x:bf16=brain.npy y=z.npy
is "$(header_of z.npy | cut -c1-18) $(tail_of z.npy 8 x2)" "{'descr': '${e}u2', ' 40a0 bf80 c000 0000" \
	"bfloat16 travels as uint16"
good "y:bf16=" $cpu hadamard x=row.npy y:bf16=1.npy
cmp z.npy 1.npy
ok $? "y:bf16= makes bfloat16 of float32"
bad 2 'x:bf16=brain.npy' "uint16 that is not said to be bfloat16" run hadamard x=brain.npy y=no.npy
bad 2 'holds float32' "float32 that is said to be bfloat16" run hadamard x:bf16=x.npy y=no.npy
npy double4.npy "$(header '<f8' '4,')" '\0\0\0\0\0\0\360\077\0\0\0\0\0\0\0\100\0\0\0\0\0\0\010\100\0\0\0\0\0\0\020\100'
hurwitz $cpu hadamard x=double4.npy y=z.npy
[ $rc -eq 0 ] && [ "$(cat ../err)" = "hurwitz: hadamard: double4.npy: x is rounded from float64 to float32" ]
ok $? "float64 is rounded to float32, which is said"
is "$(header_of z.npy) $(tail_of z.npy 16 f4)" "$(header "${e}f4" '4,') 5 -1 -2 0" "its result is float32"
npy beyond.npy "$(header '<f8' '1,')" '\234\165\0\210\074\344\067\176'
bad 2 'is 1e+300, beyond float32' "float64 beyond float32" run hadamard x=beyond.npy y=no.npy
bad 2 'holds float64, x:f16= wants float16' "float64 that is said to be float16" run hadamard x:f16=double4.npy y=no.npy

# Types of ml_dtypes: bfloat16 is '<V2', and '|V2' after a load without ml_dtypes.
$HURWITZ $cpu hadamard x:bf16=brain.npy y=1.npy
for descr in '<V2' '|V2' '>V2'; do
	case $descr in
	'|V2') [ "$e" = '<' ] && data='\200\077\000\100\100\100\200\100' || data='\077\200\100\000\100\100\100\200' ;;
	'<V2') data='\200\077\000\100\100\100\200\100' ;;
	*) data='\077\200\100\000\100\100\100\200' ;;
	esac
	npy raw.npy "$(header "$descr" '4,')" "$data"
	good "bfloat16 as $descr" $cpu hadamard x:bf16=raw.npy y=z.npy
	cmp z.npy 1.npy
	ok $? "the same as from uint16"
done
bad 2 "holds raw bytes ('V2'); if it is bfloat16, say x:bf16=raw.npy" "raw bytes that are not said to be bfloat16" \
	run hadamard x=raw.npy y=no.npy
bad 2 "holds raw bytes ('V2'), x:f16= wants float16" "raw bytes said to be float16" run hadamard x:f16=raw.npy y=no.npy
npy raw.npy "$(header '|V1' '1,')" '\001'
bad 2 "holds raw bytes ('V1'), x must be one of" "raw bytes of one" run hadamard x=raw.npy y=no.npy
bad 2 "holds raw bytes ('V1'), pre must be one of" "signs as raw bytes" run hadamard x=row.npy pre=raw.npy y=no.npy
bad 2 'raw.npy: holds raw bytes, not numbers' "demo of raw bytes" demo raw.npy

good "plan=greedy of 96" $cpu hadamard plan=greedy raw=1 x=n96.npy y=z.npy
is "$(tail_of z.npy 384 f4 | tr ' ' '\n' | grep -vx 0 | paste -sd' ' -)" "64 32" "96 = 64 + 32"
good "plan=uniform of 96" $cpu hadamard plan=uniform raw=1 x=n96.npy y=z.npy
is "$(tail_of z.npy 384 f4 | tr ' ' '\n' | grep -vx 0 | paste -sd' ' -)" "32 32 32" "96 = 3 x 32"
good "max_block=" $cpu hadamard max_block=16 raw=1 x=n32.npy y=z.npy
is "$(tail_of z.npy 128 f4 | tr ' ' '\n' | grep -vx 0 | paste -sd' ' -)" "16 16" "32 = 2 x 16"
for base in auto paley1 paley2 dao quip; do
	good "plan=true base=$base" $cpu hadamard plan=true base=$base order=12 raw=1 x=n96.npy y=z.npy
	good "and back" $cpu hadamard plan=true base=$base order=12 raw=1 transpose=1 x=z.npy y=z.npy
	is "$(tail_of z.npy 384 f4 | tr ' ' '\n' | sort -u)" 96 "B^T B = 96 I"
done
bad 2 'min_block 16' "a greedy plan that cannot be" run hadamard plan=greedy min_block=16 x=row.npy \
	y=no.npy
good "min_block=" $cpu hadamard plan=greedy min_block=4 x=row.npy y=z.npy
bad 2 'power of two' "a Sylvester plan of 96" run hadamard plan=sylvester x=n96.npy y=no.npy
bad 2 'block' "a block that does not divide" run hadamard block=3 x=x.npy y=no.npy
bad 2 'ndim' "an array without dimensions" run hadamard x=scalar.npy y=no.npy
good "an empty array" $cpu hadamard x=empty.npy y=z.npy
is "$(header_of z.npy)" "$(header "${e}f4" '0, 4')" "it comes out with its shape"

$HURWITZ $cpu hadamard pre=packed.npy x=row.npy y=0.npy
$HURWITZ $cpu hadamard pre=plusminus.npy x=row.npy y=1.npy
$HURWITZ $cpu hadamard pre=factors.npy x=row.npy y=z.npy
is "$(tail_of z.npy 16 f4)" "1 -5 0 2" "pre= as float32"
cmp 0.npy z.npy
ok $? "pre= as packed bits"
cmp 1.npy z.npy
ok $? "pre= as int8"
good "post=" $cpu hadamard post=plusminus.npy x=row.npy y=z.npy
is "$(tail_of z.npy 16 f4)" "-5 -1 2 0" "signs after the transform"
bad 2 '+1 or -1' "pre= as int8 that is no sign" run hadamard pre=zeroone.npy x=row.npy y=no.npy
bad 2 'hadamard: pre.ndim' "pre= of two dimensions" run -d cpu hadamard pre=x.npy x=row.npy y=no.npy
bad 2 'hadamard: pre.shape' "pre= of a wrong length" run -d cpu hadamard pre=n32.npy x=row.npy y=no.npy
good "seed=" $cpu hadamard seed=7 x=w.npy y=z.npy
cmp -s z.npy w.npy
[ $? -eq 1 ]
ok $? "random signs change something"
good "seed= and back" $cpu hadamard seed=7 transpose=1 x=z.npy y=z.npy
is "$(tail_of z.npy 512 f4 | tr ' ' '\n' | sort -u)" 1 "the transpose brings it back, into the file it read"
good "a seed of 64 bits" $cpu hadamard seed=18446744073709551615 x=w.npy y=z.npy
$HURWITZ $cpu hadamard seed=-1 x=w.npy y=0.npy
cmp z.npy 0.npy
ok $? "2^64 - 1 is -1"
for isa in c avx2 avx512; do
	HURWITZ_ISA=$isa $HURWITZ $cpu -t 2 hadamard seed=-1 x=w.npy y=1.npy && cmp 0.npy 1.npy
	ok $? "the same bits with HURWITZ_ISA=$isa and two threads"
done

"$HURWITZ" $cpu hadamard x=- y=- <x.npy >z.npy && cmp y.npy z.npy
ok $? "standard input and output"
cat big.npy | "$HURWITZ" $cpu hadamard x=- y=- | cmp - y.npy
ok $? "through pipes"
cp x.npy link-target.npy
chmod 640 link-target.npy
ln -s link-target.npy link.npy
good "an output through a symbolic link" $cpu hadamard x=link.npy y=link.npy
[ -L link.npy ] && cmp y.npy link-target.npy
ok $? "it replaces the file, not the link"
is "$(ls -l link-target.npy | cut -c1-10)" -rw-r----- "it keeps the mode of the file"
good "an output that is a device" $cpu hadamard x=x.npy y=/dev/null
[ -c /dev/null ]
ok $? "the device is still there"
bad 2 'directory' "an output that is a directory" run hadamard x=x.npy y=../bad
bad 2 'No such' "an output in no directory" run hadamard x=x.npy y=nowhere/y.npy
if [ -c /dev/full ]; then
	"$HURWITZ" $cpu hadamard x=x.npy y=- >/dev/full 2>../err
	is "$? $(cat ../err)" "1 hurwitz: standard output: No space left on device" \
		"standard output that is full"
	bad 1 'space' "a device that is full" $cpu hadamard x=x.npy y=/dev/full
	"$HURWITZ" --help >/dev/full 2>../err
	is $? 1 "--help on a full device"
else
	skip "standard output that is full" "no /dev/full"
	skip "a device that is full" "no /dev/full"
	skip "--help on a full device" "no /dev/full"
fi
"$HURWITZ" $cpu hadamard x=x.npy y=closed.npy <&- >&- 2>&- && cmp y.npy closed.npy
ok $? "no standard streams: files do not take their numbers"
"$HURWITZ" $cpu hadamard x=nothing.npy y=closed.npy 2>&-
is $? 2 "a refusal without standard error"
"$HURWITZ" --version >&- 2>../err
is $? 1 "--version without standard output"
"$HURWITZ" $cpu hadamard x=x.npy y=- >&- 2>../err
is $? 1 "an output to a standard output that is closed"
env -i "$HURWITZ" $cpu hadamard x=x.npy y=z.npy && cmp y.npy z.npy
ok $? "an empty environment: no HOME, no PATH"
if [ -d /proc/self ]; then	# where root neither makes a file
	(cd /proc && exec "$HURWITZ" $cpu hadamard "x=$dir/work/x.npy" "y=$dir/work/z.npy") &&
		cmp y.npy z.npy
	ok $? "from a directory that is read only"
	(cd /proc && exec "$HURWITZ" $cpu hadamard "x=$dir/work/x.npy" y=z.npy) 2>../err
	is "$? $(grep -c '^hurwitz: z.npy: ' ../err)" "2 1" "an output there"
else
	skip "from a directory that is read only" "no /proc"
	skip "an output there" "no /proc"
fi
good "half of it" $cpu hadamard factor=0.5 x=x.npy y=half.npy
comma=$(locale -a 2>/dev/null | grep -E '^(de|fr|es|it|pl|ru)_' | head -n 1)
LC_ALL=${comma:-C} "$HURWITZ" $cpu hadamard factor=0.5 x=x.npy y=z.npy && cmp half.npy z.npy
ok $? "points in numbers, in the locale ${comma:-C}"
mkdir sealed && cp x.npy sealed && chmod 555 sealed
(cd sealed && "$HURWITZ" $cpu hadamard x=x.npy y=../z.npy && cmp ../y.npy ../z.npy)
ok $? "a folder that cannot be written, when nothing is to be"

# ---- run: quantization ---------------------------------------------------------------------------

# A row of 64 ones is 8 in one place: amax 8, code qmax.
good "hadamard_quantize" $cpu hadamard_quantize x=w.npy q=q.npy scale=s.npy
is "$(header_of q.npy)" "$(header '|i1' '2, 64')" "q is int8"
is "$(header_of s.npy)" "$(header "${e}f4" '2, 1')" "one scale a row"
is "$(tail_of q.npy 128 d1 | tr ' ' '\n' | grep -vx 0 | paste -sd' ' -)" "127 127" "its codes are right"
is "$(tail_of s.npy 8 x4)" "3d810204 3d810204" "its scales are 8 / 127"
good "dequantize_hadamard" $cpu dequantize_hadamard q=q.npy scale=s.npy y=z.npy
is "$(header_of z.npy)" "$(header "${e}f4" '2, 64')" "y is float32"
is "$(tail_of z.npy 512 f4 | tr ' ' '\n' | sort -u)" 1 "and what it was"
good "y:bf16= with format= and group=" $cpu dequantize_hadamard q=q.npy scale=s.npy y:bf16=1.npy format=s8 group=row
is "$(tail_of 1.npy 256 x2 | tr ' ' '\n' | sort -u)" 3f80 "y:bf16="
good "format=s4 group=32" $cpu hadamard_quantize format=s4 group=32 x=w.npy q=q.npy scale=s.npy
is "$(header_of q.npy) $(header_of s.npy)" "$(header '|u1' '2, 32') $(header "${e}f4" '2, 2')" "two codes a byte"
is "$(tail_of q.npy 64 x1 | tr ' ' '\n' | grep -vx 00 | paste -sd' ' -)" "07 07" "the earlier in the low half"
is "$(tail_of s.npy 16 f4 | tr ' ' '\n' | sort -u | paste -sd' ' -)" "1 1.1428572" "a group of zeros has scale 1"
good "and back" $cpu dequantize_hadamard format=s4 group=32 q=q.npy scale=s.npy y=z.npy
is "$(tail_of z.npy 512 f4 | tr ' ' '\n' | sort -u)" 1 "what it was"
# An int4 of ml_dtypes is a byte; its high half may be the sign or zeros.
npy raw.npy "$(header '<V1' '2, 4')" '\001\377\007\370\003\015\000\010'
npy s1.npy "$(header '<f4' '2, 1')" "$f1$f1"
npy packed4.npy "$(header '|u1' '2, 2')" '\361\207\323\200'
good "int4 as '<V1'" $cpu dequantize_hadamard format=s4 q=raw.npy scale=s1.npy y=z.npy
$HURWITZ $cpu dequantize_hadamard format=s4 q=packed4.npy scale=s1.npy y=1.npy
cmp z.npy 1.npy
ok $? "the same as from pairs"
npy raw.npy "$(header '<V1' '1, 3')" '\001\002\003'
bad 2 'is 3, must be even for format=s4' "an odd number of int4" run dequantize_hadamard format=s4 q=raw.npy scale=s1.npy y=no.npy
npy raw.npy "$(header '<V1' '1, 4')" '\001\002\170\003'
bad 2 'of which \[2\] is 120, not one s4' "bytes that are no int4" run dequantize_hadamard format=s4 q=raw.npy scale=s1.npy y=no.npy
good "format=e4m3 scale_type=e8m0" $cpu hadamard_quantize format=e4m3 scale_type=e8m0 x=w.npy q=q.npy scale=s.npy
is "$(header_of s.npy) $(tail_of s.npy 2 u1)" "$(header '|u1' '2, 1') 122 122" "8 / 448 up to 2^-5"
is "$(tail_of q.npy 128 x1 | tr ' ' '\n' | grep -vx 00 | paste -sd' ' -)" "78 78" "8 * 2^5 = 256 in e4m3"
good "and back" $cpu dequantize_hadamard format=e4m3 q=q.npy scale=s.npy y=z.npy
is "$(tail_of z.npy 512 f4 | tr ' ' '\n' | sort -u)" 1 "what it was"
for descr in '<V1' '|V1'; do
	npy raw.npy "$(header "$descr" '2, 64')" '' && tail -c 128 q.npy >>raw.npy
	npy raws.npy "$(header "$descr" '2, 1')" '' && tail -c 2 s.npy >>raws.npy
	good "float8_e4m3fn and float8_e8m0fnu as $descr" $cpu dequantize_hadamard format=e4m3 q=raw.npy scale=raws.npy y=1.npy
	cmp z.npy 1.npy
	ok $? "the same as from uint8"
done
bad 2 "q holds raw bytes ('V1'): say format=" "raw codes without a format" run dequantize_hadamard q=raw.npy scale=s.npy y=no.npy
bad 2 "scale holds raw bytes ('V1'), scale_type=f32" "raw scales said to be float32" \
	run dequantize_hadamard format=e4m3 scale_type=f32 q=raw.npy scale=raws.npy y=no.npy
good "format=e5m2" $cpu hadamard_quantize format=e5m2 x=w.npy q=q.npy scale=s.npy
is "$(tail_of q.npy 128 x1 | tr ' ' '\n' | grep -vx 00 | paste -sd' ' -)" "7b 7b" "57344 in e5m2"
$HURWITZ $cpu dequantize_hadamard format=e5m2 q=q.npy scale=s.npy y=z.npy
npy raw.npy "$(header '<f1' '2, 64')" '' && tail -c 128 q.npy >>raw.npy
good "float8_e5m2 as '<f1'" $cpu dequantize_hadamard format=e5m2 q=raw.npy scale=s.npy y=1.npy
cmp z.npy 1.npy
ok $? "the same as from uint8"
bad 2 "q holds float8_e5m2 ('f1'), format=e4m3 wants" "float8_e5m2 said to be e4m3" \
	run dequantize_hadamard format=e4m3 q=raw.npy scale=s.npy y=no.npy
for round in none f16 bf16; do
	good "round_to=$round" $cpu hadamard_quantize round_to=$round x=w.npy q=0.npy scale=1.npy
done
good "an empty array" $cpu hadamard_quantize x=empty.npy q=0.npy scale=1.npy
bad 2 'group=' "a group that does not divide" run hadamard_quantize group=128 x=w.npy q=n.npy scale=m.npy
bad 2 'group' "a group that is none" run hadamard_quantize group=48 x=w.npy q=n.npy scale=m.npy
bad 2 'axis=0 is not the last' "quantization of columns" run -d cpu hadamard_quantize axis=0 x=w.npy q=n.npy scale=m.npy
bad 2 'uint8' "uint8 without format=" run dequantize_hadamard q=q.npy scale=s.npy y=n.npy
bad 2 'wants int8' "uint8 with format=s8" run dequantize_hadamard format=s8 q=q.npy scale=s.npy y=n.npy
bad 2 'scale_type=' "float32 with scale_type=e8m0" \
	run dequantize_hadamard format=e5m2 scale_type=e8m0 q=q.npy scale=s.npy y=n.npy
bad 2 'group=' "scales of another group" run dequantize_hadamard format=e5m2 group=64 q=q.npy scale=x.npy y=n.npy
bad 2 'scale.ndim' "scales of another shape" run -d cpu dequantize_hadamard format=e5m2 q=q.npy scale=row.npy y=n.npy

# ---- run: quantized multiplication ---------------------------------------------------------------

# [[0, 10, 255], [128, 127, 3]] and [[1, 200], [2, 100], [255, 0]], zero points 128 and 100:
# [[43921, -25500], [-19277, 12500]]
npy a.npy "$(header '|u1' '2, 3')" '\000\012\377\200\177\003'
npy b.npy "$(header '|u1' '3, 2')" '\001\310\002\144\377\000'
npy bt.npy "$(header '|u1' '2, 3')" '\001\002\377\310\144\000'
npy a2.npy "$(header '|u1' '2, 2, 3')" '\000\012\377\200\177\003\000\012\377\200\177\003'
npy qbias.npy "$(header '<i4' '2,')" '\001\000\000\000\377\377\377\377'
npy qscale.npy "$(header '<f4' '2,')" '\000\000\200\077\000\000\000\100'
zeros="a_zero=128 b_zero=100"
scales="a_scale=.02 b_scale=.01 c_scale=.05 c_zero=7"
good "qgemm out=s32" $cpu qgemm a=a.npy b=b.npy c=c.npy $zeros out=s32
is "$(header_of c.npy)" "$(header "${e}i4" '2, 2')" "c is int32"
is "$(tail_of c.npy 16 d4)" "43921 -25500 -19277 12500" "its sums are right"
good "qgemm" $cpu qgemm a=a.npy b=b.npy c=c.npy $zeros $scales
is "$(header_of c.npy) $(tail_of c.npy 4 u1)" "$(header '|u1' '2, 2') 183 0 0 57" "c is uint8 by default"
good "out=s8 pack=1" $cpu qgemm a=a.npy b=b.npy c=c.npy $zeros $scales out=s8 pack=1
is "$(header_of c.npy) $(tail_of c.npy 4 d1)" "$(header '|i1' '2, 2') 127 -95 -70 57" "c is int8"
good "trans_b=1 bias=" $cpu qgemm a=a.npy b=bt.npy trans_b=1 bias=qbias.npy c=c.npy $zeros out=s32
is "$(tail_of c.npy 16 d4)" "43922 -25501 -19276 12499" "the bias is added"
good "a batch of a" $cpu qgemm a=a2.npy b=b.npy c=c.npy $zeros out=s32
is "$(header_of c.npy)" "$(header "${e}i4" '2, 2, 2')" "c is a batch"
is "$(tail_of c.npy 16 d4)" "43921 -25500 -19277 12500" "of the same"
good "out=f32 b_scales=" $cpu qgemm a=a.npy b=b.npy c=c.npy $zeros b_scales=qscale.npy a_scale=.5 out=f32
is "$(tail_of c.npy 16 f4)" "21960.5 -25500 -9638.5 12500" "a scale for each column"
bad 2 '^hurwitz: qgemm: multiplier excludes scales and sigma$' "keys, not members of structs" run qgemm \
	a=a.npy b=b.npy c=n.npy multiplier=3 shift=2 sigma=1
good "multiplier= shift=" $cpu qgemm a=a.npy b=b.npy c=c.npy $zeros multiplier=1099511552 shift=38 c_zero=7
is "$(tail_of c.npy 4 u1)" "183 0 0 57" "the same sigma"
good "min= max=" $cpu qgemm a=a.npy b=b.npy c=c.npy $zeros $scales min=20 max=100.5 requant=gemmlowp
is "$(tail_of c.npy 4 u1)" "100 20 20 57" "bounds"
bad 2 'a_zero is 256' "a zero out of range" run qgemm a=a.npy b=b.npy c=n.npy a_zero=256
bad 2 'shift=63: the value must be an integer, 1 to 62; a file is shifts=' "a shift out of range" run qgemm a=a.npy b=b.npy c=n.npy shift=63
bad 2 'a_scale' "a scale of 0" run qgemm a=a.npy b=b.npy c=n.npy a_scale=0
bad 2 'positive' "a negative scale" run qgemm a=a.npy b=b.npy c=n.npy a_scale=-1
npy qminus.npy "$(header '<f4' '2,')" '\000\000\200\277\000\000\000\000'
npy qone.npy "$(header '<i4' '2,')" '\001\000\000\000\001\000\000\000'
npy qnone.npy "$(header '<i4' '2,')" '\001\000\000\000\000\000\000\000'
bad 2 'element 0 of b_scales is -1' "a scale of a column below 0" run qgemm a=a.npy b=b.npy c=n.npy \
	b_scales=qminus.npy
bad 2 'element 1 of shifts is 0' "a shift of a column out of range" run qgemm a=a.npy b=b.npy \
	c=n.npy multipliers=qone.npy shifts=qnone.npy
bad 2 'element 0 of scales is -1' "a scale of a column of codes below 0" run quantize x=x.npy \
	scales=qminus.npy q=n.npy
for value in nan inf -inf 1e999 abc x.npy ''; do
	bad 2 "a_scale=$value: the value must be a number, finite and not 0; a file is a_scales=" \
		"a scale of '$value'" run qgemm a=a.npy b=b.npy c=n.npy "a_scale=$value"
	bad 2 "a_zero=$value: the value must be an integer" "a zero point of '$value'" \
		run qgemm a=a.npy b=b.npy c=n.npy "a_zero=$value"
	bad 2 "min=$value: the value must be a finite number" "a bound of '$value'" \
		run qgemm a=a.npy b=b.npy c=n.npy "min=$value"
	bad 2 "axis=$value: the value must be an integer, -6 to 5" "an axis of '$value'" \
		run hadamard x=x.npy y=n.npy "axis=$value"
	bad 2 "seed=$value: the value must be an integer" "a seed of '$value'" \
		run hadamard x=x.npy y=n.npy "seed=$value"
	bad 2 "seconds=$value: the value must be a number" "seconds of '$value'" bench -s "$value"
	bad 2 "threshold=$value: the value must be a number" "percent of '$value'" bench -T "$value"
	bad 2 "threads=$value: the value must be an integer" "threads of '$value'" bench -t "$value"
	bad 2 "beta=$value: the value must be a number, finite and not 0" "a scale of a lattice of '$value'" \
		run lattice_encode x=x.npy codes=n.npy lattice=D4 q=4 "beta=$value"
	bad 2 "bank=$value: the value must be 1 to 16 finite numbers" "a bank of '$value'" \
		run lattice_encode x=x.npy codes=n.npy lattice=D4 q=4 beta=1 "bank=$value"
done
bad 2 'must be 3, as a' "matrices that do not fit" run qgemm a=a.npy b=bt.npy c=n.npy
bad 2 'leaves nothing' "bounds the wrong way round" run qgemm a=a.npy b=b.npy c=n.npy min=3 max=2
bad 2 'float32' "codes that are floats" run qgemm a=x.npy b=b.npy c=n.npy
good "choose_qparams" $cpu choose_qparams x=x.npy
is "$(paste -sd' ' ../out)" "scale=0.0156862754 zero=0" "printed"
good "choose_qparams to files" $cpu choose_qparams x=x.npy per=row symmetric=127 format=s8 scale=s.npy zero=z.npy
is "$(header_of s.npy) $(header_of z.npy)" "$(header "${e}f4" '2, 1') $(header '|i1' '2, 1')" "one a row"
good "quantize" $cpu quantize x=x.npy q=q.npy scale=0.5 zero=3
is "$(header_of q.npy) $(tail_of q.npy 8 u1)" "$(header '|u1' '2, 4') 5 7 9 11 11 9 7 5" "codes"
$HURWITZ $cpu choose_qparams x=x.npy per=column format=s8 symmetric=127 scale=column.npy zero=z1.npy
$HURWITZ $cpu quantize x=x.npy q=q1.npy scales=column.npy zeros=z1.npy
good "symmetric codes by columns without zero points" $cpu quantize x=x.npy format=s8 q=q.npy scales=column.npy
cmp q1.npy q.npy
ok $? "the codes are the same"
good "quantize by rows" $cpu quantize x=x.npy q=q.npy scales=s.npy zeros=z.npy
is "$(header_of q.npy) $(tail_of q.npy 8 d1)" "$(header '|i1' '2, 4') 32 64 95 127 127 95 64 32" "codes of rows"
good "dequantize" $cpu dequantize q=q.npy y=qy.npy scale=0.5 zero=-1 out=f16
is "$(header_of qy.npy) $(tail_of qy.npy 8 x2)" "$(header "${e}f2" '2, 4') 5400 5200 5010 4c20" "and back"
good "quantize plan=" $cpu quantize x=x.npy q=q.npy format=s8 plan=sylvester raw=1 scale=0.5
is "$(tail_of q.npy 8 d1)" "20 -4 -8 0 20 4 8 0" "codes of transformed rows"
good "dequantize plan=" $cpu dequantize q=q.npy y=qy.npy plan=sylvester scale=.125
is "$(tail_of qy.npy 32 f4)" "0.5 1 1.5 2 2 1.5 1 0.5" "and back"
good "quantize rotate=0" $cpu quantize x=x.npy q=q.npy rotate=0 plan=sylvester scale=0.5 zero=3
is "$(tail_of q.npy 8 u1)" "5 7 9 11 11 9 7 5" "rotate=0: as they are"
good "quantize rotate=1 seed=" $cpu quantize x=w.npy q=q.npy rotate=1 seed=3 format=s8 scale=0.1
good "dequantize rotate=1 seed=" $cpu dequantize q=q.npy y=qy.npy rotate=1 seed=3 scale=0.1
npy odd.npy "$(header '<f4' '1, 3')" "$f1$f1$f1"
good "quantize format=e2m1" $cpu quantize x=x.npy q=q.npy scale=1 format=e2m1
is "$(header_of q.npy) $(tail_of q.npy 4 x1)" "$(header '|u1' '2, 2') 42 65 56 24" "two codes to a byte"
npy raw.npy "$(header '<V1' '2, 4')" '\002\004\005\006\006\005\004\002'
good "float4_e2m1fn as '<V1'" $cpu dequantize q=raw.npy y=qy.npy scale=1 format=e2m1
is "$(tail_of qy.npy 32 f4)" "1 2 3 4 4 3 2 1" "and back"
good "quantize format=u2" $cpu quantize x=x.npy q=q.npy scale=1 format=u2
is "$(header_of q.npy) $(tail_of q.npy 2 x1)" "$(header '|u1' '2, 1') f9 6f" "four codes to a byte"
good "quantize min= max=" $cpu quantize x=x.npy q=q.npy scale=0.5 format=s16 min=2 max=3
is "$(header_of q.npy) $(tail_of q.npy 16 d2)" "$(header "${e}i2" '2, 4') 2 3 3 3 3 3 3 2" "bounds"
good "quantize new_scales=" $cpu quantize x=x.npy q=q.npy new_scales=s.npy format=e2m1 scale_type=e8m0
is "$(header_of s.npy) $(tail_of s.npy 2 u1)" "$(header '|u1' '2, 1') 127 127" "4 / 6 up to 1"
good "and back" $cpu dequantize q=q.npy y=qy.npy scales=s.npy format=e2m1 scale_type=e8m0
is "$(tail_of qy.npy 32 f4)" "1 2 3 4 4 3 2 1" "what it was"
good "quantize preset=" $cpu quantize preset=te_nvfp4 x=w.npy q=q.npy new_scales=s.npy new_tensor_scale=t.npy
good "dequantize preset=" $cpu dequantize preset=te_nvfp4 q=q.npy y=qy.npy scales=s.npy tensor_scale=t.npy
is "$(header_of s.npy) $(header_of t.npy)" "$(header '|u1' '2, 4') $(header "${e}f4" '1,')" "scales of groups and one"
bad 2 'scale_rule= needs new_scales=FILE' "a rule without scales" \
	run quantize x=x.npy q=n.npy scale=1 scale_rule=floor
bad 2 'must be a multiple of 2 for e2m1x2' "an odd number of pairs" \
	run -d cpu quantize x=odd.npy q=n.npy scale=1 format=e2m1
bad 2 'q holds int8, format=e2m1 wants' "int8 said to be e2m1" \
	run dequantize q=z.npy y=n.npy scale=1 format=e2m1
bad 2 'x.shape.1. is 4, which the greedy plan cannot make' "a plan that is none" \
	run quantize x=x.npy q=n.npy scale=1 plan=greedy min_block=8
bad 2 'round_to= needs new_scales=' "rounding of what is not chosen" \
	run quantize x=x.npy q=n.npy scale=1 rotate=1 round_to=f16
bad 2 'preset= needs new_scales=' "a recipe without scales to choose" \
	run quantize x=x.npy q=n.npy scale=1 preset=te_nvfp4
bad 2 'scale_type= is for scales in a file' "the type of a number" \
	run quantize x=x.npy q=n.npy scale=1 scale_type=e8m0
bad 2 'min_block is 2, must be 0 unless plan is auto or greedy' "min_block of a uniform plan" \
	run hadamard x=x.npy y=n.npy plan=uniform min_block=2
bad 2 'zero is 300' "a zero that is none" run quantize x=x.npy q=n.npy scale=1 zero=300
bad 2 'quantize: scale= or scales= is missing: give' "quantize without a scale" run quantize x=x.npy q=n.npy
bad 2 'quantize: scale= or scales= is missing: give' "a zero without a scale" run quantize x=x.npy q=n.npy zero=3
bad 2 'dequantize: scale= or scales= is missing: give' "dequantize without a scale" run dequantize q=q.npy y=n.npy
npy wq.npy "$(header '|i1' '4, 1')" '\001\001\001\001'
good "qlinear" $cpu qlinear x=x.npy b=wq.npy y=qy.npy a_scale=1 x_dtype=s8
is "$(header_of qy.npy) $(tail_of qy.npy 8 f4)" "$(header "${e}f4" '2, 1') 10 10" "sums of rows"
npy w4.npy "$(header '|u1' '1, 2')" '\021\021'
npy s4.npy "$(header '<f4' '1, 1')" '\000\000\000\100'
good "qlinear_group" $cpu qlinear_group x=x.npy w=w4.npy scales=s4.npy y=qy.npy format=s4 trans_w=1 pack=1
is "$(header_of qy.npy) $(tail_of qy.npy 8 f4)" "$(header "${e}f4" '2, 1') 20 20" "sums times 2"
bad 2 'qlinear_group: scales holds uint8: scale_type= is for uint8' "scales of no type" \
	run qlinear_group x=x.npy w=w4.npy scales=w4.npy y=n.npy format=s4

# ---- run: quaternions ----------------------------------------------------------------------------

# x.npy is 1+2i+3j+4k and 4+3i+2j+k, row.npy the first of these
npy q12.npy "$(header '<f4' '1, 2, 4')" "$f1$f2$f3$f4$f4$f3$f2$f1"
npy q21.npy "$(header '<f4' '2, 1, 4')" "$f1$f2$f3$f4$f4$f3$f2$f1"
good "quat_mul" $cpu quat_mul a=x.npy b=row.npy y=qy.npy
is "$(tail_of qy.npy 32 f4)" "-28 4 6 8 -12 16 4 22" "b repeated to a"
good "accumulate=1" $cpu quat_mul a=x.npy b=row.npy y=qy.npy accumulate=1
is "$(tail_of qy.npy 32 f4)" "-56 8 12 16 -24 32 8 44" "adds to the file"
good "conj_a=1" $cpu quat_mul a=x.npy b=x.npy y=qy.npy conj_a=1
is "$(tail_of qy.npy 32 f4)" "30 0 0 0 30 0 0 0" "conj(q) q"
good "order=xyzw reversed=1" $cpu quat_mul a=x.npy b=row.npy y=qy.npy order=xyzw reversed=1
is "$(tail_of qy.npy 16 f4)" "12 24 6 -12" "the other order of both"
good "quat_mul_bwd" $cpu quat_mul_bwd dy=x.npy a=x.npy b=row.npy db=qy.npy
is "$(tail_of qy.npy 16 f4)" "60 0 0 0" "summed where b is repeated, da not made"
good "quat_norm" $cpu quat_norm x=x.npy n=qy.npy squared=1
is "$(tail_of qy.npy 8 f4)" "30 30" "squares"
good "quat_dot" $cpu quat_dot a=x.npy b=x.npy y=qy.npy real=1
is "$(tail_of qy.npy 4 f4)" "60" "a real part"
good "quat_axpy" $cpu quat_axpy alpha=0,1,0,0 x=row.npy y=qaxpy.npy
is "$(tail_of qaxpy.npy 16 f4)" "-2 1 -4 3" "i times it, added to nothing"
good "quat_gemm" $cpu quat_gemm a=q12.npy b=q21.npy c=qc.npy
is "$(tail_of qc.npy 16 f4)" "-26 28 22 16" "a row by a column"
good "method=fast pack=1 alpha=2 beta=-1" $cpu quat_gemm a=q12.npy b=q21.npy c=qc.npy method=fast \
	pack=1 alpha=2 beta=-1
is "$(tail_of qc.npy 16 f4)" "-26 28 22 16" "twice it less itself"
good "op_b=h" $cpu quat_gemm a=q12.npy b=q12.npy c=qc.npy op_b=h
is "$(tail_of qc.npy 16 f4)" "60 0 0 0" "by its own adjoint"
bad 2 'must be 1, as a' "matrices of quaternions that do not fit" run quat_gemm a=q21.npy b=q21.npy c=n.npy
bad 2 'alpha=1,2: the value' "half a quaternion" run quat_axpy alpha=1,2 x=row.npy y=n.npy
bad 2 'another dtype or shape' "a sum into another shape" run quat_mul a=x.npy b=x.npy y=row.npy accumulate=1
good "quat_init y:f64=" $cpu quat_init shape=2 y:f64=qd.npy
good "quat_conj x:f64= y:f64=" $cpu quat_conj x:f64=qd.npy y:f64=qe.npy
is "$(header_of qe.npy)" "$(header "${e}f8" '2, 4')" "numbers of 64 bits"
for call in 'quat_conj x=x.npy' 'quat_linear x=x.npy w=q12.npy' 'quat_dropout x=x.npy'; do
	bad 2 'y.dtype is f16, must be f32' "y:f16= where y is as x: ${call%% *}" \
		run $call y:f16=n.npy
done

npy q1.npy "$(header '<f4' '1, 4')" "$f1$f2$f3$f4"
npy q121.npy "$(header '<f4' '1, 2, 1, 4')" "$f1$f2$f3$f4$f4$f3$f2$f1"
good "quat_linear" $cpu quat_linear x=x.npy w=q12.npy y=qy.npy
is "$(header_of qy.npy) $(tail_of qy.npy 16 f4)" "$(header "${e}f4" '1, 4') -26 28 22 16" \
	"a row by a column again"
good "quat_linear activation=relu" $cpu quat_linear x=x.npy w=q12.npy b=q1.npy y=qy.npy pre=qz.npy \
	activation=relu side=right
is "$(tail_of qy.npy 16 f4) $(tail_of qz.npy 4 f4)" "0 30 25 20 20" "and its input"
good "quat_linear_bwd" $cpu quat_linear_bwd x=x.npy w=q12.npy dy=q1.npy dw=qy.npy
is "$(header_of qy.npy) $(tail_of qy.npy 32 f4 | sed 's/-0 /0 /g')" \
	"$(header "${e}f4" '1, 2, 4') 30 0 0 0 20 10 0 20" \
	"dw alone"
good "quat_conv1d" $cpu quat_conv1d x=q121.npy w=q121.npy y=qy.npy
is "$(header_of qy.npy) $(tail_of qy.npy 16 f4)" "$(header "${e}f4" '1, 1, 1, 4') -26 28 22 16" \
	"two taps"
good "quat_conv1d transposed=1" $cpu quat_conv1d x=qy.npy w=q121.npy y=qz.npy transposed=1 stride=2
is "$(header_of qz.npy)" "$(header "${e}f4" '1, 2, 1, 4')" "back to the shape of x"
good "quat_conv1d_bwd" $cpu quat_conv1d_bwd x=q121.npy w=q121.npy dy=qy.npy dx=qd.npy
is "$(cmp qd.npy qz.npy)" "" "dx is the adjoint"
good "quat_pool" $cpu quat_pool x=q121.npy y=qy.npy index=qi.npy window=2
is "$(tail_of qy.npy 16 f4) $(tail_of qi.npy 4 d4)" "1 2 3 4 0" "the first of two norms"
good "quat_pool kind=average" $cpu quat_pool x=q121.npy y=qy.npy window=2 kind=average
is "$(tail_of qy.npy 16 f4)" "2.5 2.5 2.5 2.5" "their mean"
good "quat_pool_bwd" $cpu quat_pool_bwd dy=qy.npy index=qi.npy dx=qd.npy window=2 size=2
is "$(tail_of qd.npy 32 f4)" "2.5 2.5 2.5 2.5 0 0 0 0" "to what was taken"
good "quat_batchnorm" $cpu quat_batchnorm x=q121.npy y=qy.npy new_mean=qm.npy momentum=1 saved=qs.npy
is "$(tail_of qm.npy 16 f4)" "2.5 2.5 2.5 2.5" "the mean of the batch"
good "eps=0 momentum=0" $cpu quat_batchnorm x=q121.npy y=qy.npy new_mean=q0.npy eps=0 momentum=0
is "$(tail_of q0.npy 16 f4)" "0 0 0 0" "no part of the batch"
bad 2 "quat_batchnorm: running_mean.ndim" "running values of another shape" run -d cpu quat_batchnorm \
	x=q121.npy y=n.npy running_mean=row.npy running_var=row.npy new_mean=n2.npy new_var=n3.npy
bad 2 'running_mean= is not read without eval=1 or new_mean=' "running values that do not count" \
	run quat_batchnorm x=q121.npy y=n.npy running_mean=qm.npy
good "quat_batchnorm_bwd" $cpu quat_batchnorm_bwd x=q121.npy dy=q121.npy saved=qs.npy dbeta=qd.npy
is "$(tail_of qd.npy 16 f4)" "5 5 5 5" "sums"
npy qr.npy "$(header '<f4' '2, 1, 1, 1, 4')" "$f1$f2$f3$f4$f4$f3$f2$f1"
npy qu.npy "$(header '<f4' '1, 1, 1, 4')" "$f1$f2$f3$f4"
good "quat_recurrent" $cpu quat_recurrent z=qr.npy u=qu.npy activation=relu y=qy.npy saved=qs.npy \
	hn=qd.npy
is "$(tail_of qy.npy 32 f4) $(tail_of qd.npy 16 f4)" "1 2 3 4 0 7 8 9 0 7 8 9" "two steps"
good "quat_recurrent_bwd" $cpu quat_recurrent_bwd u=qu.npy activation=relu dy=qr.npy saved=qs.npy \
	dz=qy.npy
is "$(tail_of qy.npy 32 f4)" "17 10 -5 10 0 3 2 1" "and back"
bad 2 'activation is relu, must be tanh or 0 for lstm$' "another activation of an LSTM" run quat_recurrent \
	z=qr.npy u=qu.npy cell=lstm activation=relu y=n.npy
bad 2 'slope is 0.2, must be 0 unless activation is leaky$' "a slope of tanh" run quat_recurrent z=qr.npy u=qu.npy \
	slope=0.2 y=n.npy
bad 2 'is 1, must be 4, u' "an LSTM with one gate" run quat_recurrent z=qr.npy u=qu.npy \
	cell=lstm y=n.npy
good "quat_dropout p=1" $cpu quat_dropout x=q1.npy y=qy.npy p=1
is "$(tail_of qy.npy 16 f4)" "0 0 0 0" "nothing is left"
good "quat_init" $cpu quat_init y=qy.npy shape=3,5 seed=1 out=f16
is "$(header_of qy.npy)" "$(header "${e}f2" '3, 5, 4')" "the shape, and components"
bad 2 'window= is missing' "a pool without a window" run quat_pool x=q121.npy y=n.npy
bad 2 'has 2 numbers, must have 1$' "strides of two dimensions" run quat_conv1d x=q121.npy \
	w=q121.npy y=n.npy stride=1,1
bad 2 'window= is 3 in dimension 1' "a window larger than x" run quat_pool x=q121.npy y=n.npy \
	window=3
bad 2 'taps span 4 elements' "taps beyond x" run quat_conv1d x=q121.npy w=q121.npy y=n.npy \
	dilation=3
bad 2 'transposed=1' "output_pad= forwards" run quat_conv1d x=q121.npy w=q121.npy y=n.npy \
	output_pad=1
bad 2 'no output' "gradients of which none is wanted" run quat_mul_bwd dy=x.npy a=x.npy b=row.npy
bad 2 'x.ndim is 2, must be 5' "no image" run quat_conv2d x=x.npy w=q121.npy y=n.npy
bad 2 'dscale= needs scale=' "the gradient of factors that are not there" run quat_linear_bwd x=x.npy \
	w=q12.npy dy=q1.npy dscale=n.npy

npy v4.npy "$(header '<f4' '4,')" "$f1$f2$f3$f4"
npy sq2.npy "$(header '<f4' '2, 2')" "$f1$f2$f3$f4"
good "lattice_encode" $cpu lattice_encode lattice=D4 q=4 levels=2 beta=1 x=x.npy codes=lc.npy
is "$(header_of lc.npy)" "$(header '|u1' '2, 1, 2')" "two levels a block"
good "lattice_decode" $cpu lattice_decode lattice=D4 q=4 levels=2 beta=1 codes=lc.npy y=ly.npy
is "$(header_of ly.npy) $(tail_of ly.npy 32 f4)" "$(header "${e}f4" '2, 4') 1 2 3 4 4 3 2 1" \
	"points come back"
good "to=points" $cpu lattice_decode lattice=D4 q=4 levels=2 beta=1 codes=lc.npy y=ly.npy to=points
is "$(tail_of ly.npy 32 d4)" "1 2 3 4 4 3 2 1" "as integers"
good "lattice_encode lattice=Z2 pack=limbs policy=t" $cpu lattice_encode lattice=Z2 q=3 levels=2 beta=1 \
	x=x.npy codes=lz.npy t=lt.npy pack=limbs policy=t overload=lo.npy
is "$(header_of lz.npy) $(header_of lt.npy) $(tail_of lo.npy 16 d8)" \
	"$(header "${e}u4" '2, 2, 1') $(header '|u1' '2, 2') 0 0" "limbs, and t"
good "lattice_repack" $cpu lattice_repack lattice=Z2 q=3 levels=2 beta=1 from=lz.npy to=ll.npy \
	from_pack=limbs to_pack=full64
is "$(header_of ll.npy)" "$(header "${e}u8" '2, 2')" "a number a block"
good "vlut_gemv" $cpu vlut_gemv lattice=D4 q=4 levels=2 beta=1 w=lc.npy x=v4.npy y=ly.npy route=decode
is "$(header_of ly.npy) $(tail_of ly.npy 8 f4)" "$(header "${e}f4" '2,') 30 20" "rows by a vector"
good "vlut_gemm pack_w=1" $cpu vlut_gemm lattice=D4 q=4 levels=2 beta=1 w=lc.npy x=x.npy y=ly.npy pack_w=1 \
	route=decode
is "$(header_of ly.npy) $(tail_of ly.npy 16 f4)" "$(header "${e}f4" '2, 2') 30 20 20 30" \
	"a batch by rows"
good "vlut_append" $cpu vlut_append preset=e8-4.5-fast x=x.npy v=x.npy y=ly.npy row_scale=ls.npy step=2
is "$(header_of ly.npy) $(header_of ls.npy)" "$(header "${e}f4" '2, 2') $(header "${e}f4" '2,')" "v by rows of x"
npy x3.npy "$(header '<f4' '2, 1, 4')" "$f1$f2$f3$f4$f4$f3$f2$f1"
bad 2 'must be 3, the values of a row' "a packed matrix of k=3" run vlut_gemm lattice=D4 q=4 levels=2 beta=1 w=lc.npy x=x.npy y=n.npy \
	pack_w=1 k=3
good "vlut_gemm of three dimensions" $cpu vlut_gemm lattice=D4 q=4 levels=2 beta=1 w=lc.npy x=x3.npy y=ly.npy
is "$(header_of ly.npy)" "$(header "${e}f4" '2, 1, 2')" "those of x before k, then rows"
bad 2 'x has 2 dimensions, must be \[k\]' "two dimensions" run vlut_gemv lattice=D4 q=4 levels=2 beta=1 \
	w=lc.npy x=x.npy y=n.npy
npy b2.npy "$(header '<f4' '2,')" "$f1$f4"
good "vlut_gemm with bias" $cpu vlut_gemm lattice=D4 q=4 levels=2 beta=1 w=lc.npy x=x.npy bias=b2.npy y=ly.npy \
	activation=relu route=decode
is "$(header_of ly.npy) $(tail_of ly.npy 16 f4)" "$(header "${e}f4" '2, 2') 31 24 21 34" "bias is added"
bad 2 'no key or operand .trans_x' "the layout of x, which is one" run vlut_gemm lattice=D4 q=4 levels=2 \
	beta=1 w=lc.npy x=x.npy y=n.npy trans_x=1
good "vlut_gemm2 out=s32" $cpu vlut_gemm2 lattice=D4 q=4 levels=2 beta=1 w=lc.npy x=lc.npy y=ly.npy out=s32
is "$(header_of ly.npy) $(tail_of ly.npy 16 d4)" "$(header "${e}i4" '2, 2') 30 20 20 30" \
	"codes by codes"
for op in 'lattice_encode x=x.npy codes=n.npy' 'lattice_decode codes=lc.npy y=n.npy' \
	'lattice_repack from=lc.npy to=n.npy' 'vlut_gemv w=lc.npy x=v4.npy y=n.npy' \
	'vlut_gemm w=lc.npy x=x.npy y=n.npy' 'vlut_gemm2 w=lc.npy x=lc.npy y=n.npy'; do
	bad 2 "${op%% *}: the key beta= is missing: give" "${op%% *} without a scale" run $op \
		lattice=D4 q=4 levels=2
done
$HURWITZ $cpu quat_init y=samples.npy shape=128 seed=1 scale=0.05
good "linear_forward" $cpu linear_forward w=x.npy x=x3.npy y=ly.npy format=e8-4.5 rotate=1 seed=2 activation=gelu
is "$(header_of ly.npy)" "$(header "${e}f4" '2, 1, 2')" "those of x, then rows of w"
good "linear_forward gated=1" $cpu linear_forward w=x.npy x=x.npy y=ly.npy gated=1 out=f16
is "$(header_of ly.npy)" "$(header "${e}f2" '2, 1')" "half of the rows of w"
good "linear_bwd" $cpu linear_bwd w=x.npy dy=sq2.npy dx=ly.npy
is "$(header_of ly.npy)" "$(header "${e}f4" '2, 4')" "columns of w"
good "linear_dequantize" $cpu linear_dequantize w=x.npy y=ly.npy
is "$(header_of ly.npy)" "$(header "${e}f4" '2, 4')" "as w"
bad 2 'format=s9: the value must be' "no format" run linear_dequantize w=x.npy y=n.npy format=s9
good "lattice_design" $cpu lattice_design x=samples.npy lattice=D4 q=4 levels=2 policy=t report=lr.npy
is "$(sed 's/=.*//' ../out | paste -sd' ' -)" "lattice q levels beta policy offset" "keys of lattice_encode"
is "$(header_of lr.npy)" "$(header "${e}f8" '5,')" "and what it found out"
# shellcheck disable=SC2046 # a key a word
good "which takes them" $cpu lattice_encode $(cat ../out) x=samples.npy codes=lc2.npy t=lt.npy
good "lattice_design banks=" $cpu lattice_design x=samples.npy rate=2.5 lattice=Z2 banks=3
is "$(sed -n 's/^bank=//p' ../out | tr ',' '\n' | grep -c '^[0-9.e-]*$')" 3 "three scales"
# shellcheck disable=SC2046 # a key a word
good "which lattice_encode takes" $cpu lattice_encode $(cat ../out) x=samples.npy codes=lc2.npy t=lt.npy
good "lattice_design sigma=" $cpu lattice_design sigma=2 lattice=Z q=4 levels=1 group=16 dither=0.25 alpha=0.5
is "$(grep -v -e beta -e offset ../out | paste -sd' ' -)" \
	"lattice=Z1 q=4 levels=1 policy=group alpha=0.5 group=16 dither=0.25" "as wanted"
bad 2 'give x= or sigma=' "nothing to design for" run lattice_design rate=3
bad 2 'give rate=, or lattice=, q= and levels=' "no rate" run lattice_design x=samples.npy
bad 2 'must have 384 at least' "few samples" run lattice_design x=x.npy rate=3
bad 2 'rate is 0.5 bits a value, which no' "a rate below all" run lattice_design x=samples.npy rate=0.5
bad 2 'needs banks=' "no number of scales" run lattice_design x=samples.npy rate=3 policy=bank
bad 2 'needs group=' "no group" run lattice_design x=samples.npy rate=3 policy=group
bad 2 'lattice=basis: the value' "a search over bases" run lattice_design x=samples.npy rate=3 lattice=basis
bad 2 'no key or operand .beta' "beta, which is searched" run lattice_design x=samples.npy rate=3 beta=1
bad 2 'lattice= or preset= is missing' "no lattice" run lattice_encode q=4 beta=1 x=x.npy codes=n.npy
bad 2 'levels= is missing' "no number of levels" run lattice_encode lattice=D4 q=4 beta=1 x=x.npy codes=n.npy
bad 2 'policy=wrap: the value must be' "another word for none" run lattice_encode lattice=D4 q=4 levels=1 \
	beta=1 policy=wrap x=x.npy codes=n.npy
good "lattice=Dn" $cpu lattice_encode lattice=Dn q=4 levels=2 beta=1 x=x.npy codes=lc2.npy
is "$(header_of lc2.npy)" "$(header '|u1' '2, 1, 2')" "of four dimensions, as in C"
bad 2 'lattice=D4x: the value' "a lattice that is none" run lattice_encode lattice=D4x q=4 levels=1 beta=1 x=x.npy codes=n.npy
bad 2 'not of 4 dimensions' "two dimensions" run lattice_encode lattice=E8 dim=4 q=4 levels=1 beta=1 x=x.npy codes=n.npy
bad 2 'basis is of 2' "three dimensions of two" run lattice_encode basis=sq2.npy dim=3 q=4 levels=1 beta=1 x=x.npy codes=n.npy
bad 2 'is for lattice=basis' "two lattices" run lattice_encode lattice=Z2 basis=sq2.npy q=4 levels=1 beta=1 x=x.npy codes=n.npy
bad 2 'policy=bank needs bank=' "no bank" run lattice_encode lattice=D4 q=4 levels=1 beta=1 policy=bank x=x.npy codes=n.npy
bad 2 'policy=group needs group=' "no group" run lattice_encode lattice=D4 q=4 levels=1 beta=1 policy=group x=x.npy codes=n.npy
bad 2 'policy=none does not go with preset=' "a policy that a preset replaces" run lattice_encode \
	preset=e8-4.5 policy=none x=x.npy codes=n.npy t=n2.npy
bad 2 'shaping=nested does not go with preset=' "a shaping that it replaces" run lattice_encode \
	preset=e8-4.5 shaping=nested x=x.npy codes=n.npy t=n2.npy
bad 2 'offset=none does not go with preset=' "an offset that it replaces" run lattice_encode \
	preset=d4-4.5 offset=none x=x.npy codes=n.npy t=n2.npy
bad 2 'policy is t, must be bank with shaping 3' "another policy, by its word" run lattice_encode \
	preset=e8-4.5 policy=t x=x.npy codes=n.npy t=n2.npy
bad 2 'alpha is 0.5, must be 0 unless policy is t or group' "alpha without t" run lattice_encode \
	lattice=D4 q=4 levels=1 beta=1 policy=clip alpha=0.5 x=x.npy codes=n.npy
bad 2 'first_fit=1 is set, but policy is not bank or group' "a first of none" run lattice_encode \
	lattice=D4 q=4 levels=1 beta=1 policy=t first_fit=1 x=x.npy codes=n.npy t=n2.npy
npy zt.npy "$(header '|u1' '2, 1')" '\000\000'
good "a second matrix without the alpha of the first" $cpu vlut_gemm2 lattice=D4 q=4 levels=2 beta=1 \
	policy=t alpha=0.5 w=lc.npy t=zt.npy x=lc.npy x_policy=none y=ly.npy
bad 2 'n= is how many values' "values of digits" run lattice_decode lattice=D4 q=4 levels=2 beta=1 \
	codes=lc.npy y=n.npy to=digits n=2
bad 2 "no key or operand 'pack_w'" "a key that vlut_append does not read" run vlut_append pack_w=1 \
	x=x.npy v=v4.npy y=n.npy
bad 2 'group= is for policy=group or bank' "a group of policy=t" run lattice_encode lattice=D4 q=4 levels=1 \
	beta=1 policy=t group=8 x=x.npy codes=n.npy t=n2.npy
bad 2 'bank= is for policy=bank' "a bank of policy=t" run lattice_encode lattice=D4 q=4 levels=1 \
	beta=1 policy=t bank=1,2 x=x.npy codes=n.npy t=n2.npy
bad 2 '^hurwitz: lattice_open: bank\[1\] is -2' "a scale below 0" run lattice_encode lattice=D4 q=4 levels=1 beta=1 bank=1,-2 x=x.npy \
	codes=n.npy t=n2.npy
f1234=$f1$f2$f3$f4
npy wide.npy "$(header '<f4' '2, 8')" "$f1234$f1234$f1234$f1234"
good "policy=group" $cpu lattice_encode lattice=D4 q=4 levels=2 beta=1 group=8 x=wide.npy codes=lg.npy t=lh.npy
good "policy=bank" $cpu lattice_encode lattice=D4 q=4 levels=2 beta=1 bank=1,2 x=wide.npy codes=lb.npy t=li.npy
good "a group and a bank without one" $cpu vlut_gemm2 lattice=D4 q=4 levels=2 beta=1 group=8 w=lg.npy t=lh.npy \
	x=lb.npy x_policy=bank x_bank=1,2 x_t=li.npy y=ly.npy
is "$(tail_of ly.npy 16 f4)" "60 60 60 60" "products of points that are exact"
bad 2 'policy=group needs x_group=' "the group of another policy" run vlut_gemm2 lattice=D4 q=4 levels=2 beta=1 \
	bank=1,2 group=8 w=lg.npy t=lh.npy x=lg.npy x_policy=group x_t=lh.npy y=n.npy
bad 2 'x_bank= is for policy=bank' "a bank of x_policy=none" run vlut_gemm2 lattice=D4 q=4 levels=2 beta=1 \
	w=lc.npy x=lc.npy x_policy=none x_bank=1,2 y=n.npy
bad 2 'out= is the dtype of values' "points in f32" run lattice_decode lattice=D4 q=4 levels=2 beta=1 codes=lc.npy \
	y=n.npy to=points out=f32
bad 2 '^hurwitz: vlut_gemv: the operand t= is missing$' "w->t in the command's terms" run vlut_gemv \
	lattice=D4 q=4 levels=2 beta=1 policy=t w=lc.npy x=v4.npy y=n.npy
bad 2 't= is missing' "a policy without t" run lattice_encode lattice=D4 q=4 levels=1 beta=1 policy=t x=x.npy codes=n.npy
bad 2 'say pack=limbs' "a level beyond 32 bits" run lattice_encode lattice=D24 q=3 levels=1 beta=1 x=x.npy codes=n.npy
bad 2 'dither= has 1 numbers, must have 4' "a dither of one dimension" run lattice_encode lattice=D4 q=4 levels=1 beta=1 dither=0.1 \
	x=x.npy codes=n.npy
bad 2 'offset= has 5 numbers' "an offset of five" run lattice_encode lattice=D4 q=4 levels=1 beta=1 offset=1,0,0,0,0 \
	x=x.npy codes=n.npy
bad 2 'must be integers' "an offset beyond integers" run lattice_encode lattice=Z q=4 levels=1 beta=1 offset=1e30 \
	x=x.npy codes=n.npy
bad 2 'transform has 2 rows' "a transform of two" run lattice_encode lattice=D4 q=4 levels=1 beta=1 transform=sq2.npy \
	x=x.npy codes=n.npy
bad 2 'bank=1,x: the value must be' "scales that are none" run lattice_encode lattice=D4 q=4 levels=1 beta=1 bank=1,x x=x.npy \
	codes=n.npy t=n2.npy

# ---- Hyper-connections ---------------------------------------------------------------------------

npy p2.npy "$(header '<f4' '2,')" "$f1$f2"
z4='\000\000\000\000'
z8=$z4$z4$z4$z4$z4$z4$z4$z4
npy z1.npy "$(header '<f4' '1,')" "$z4"
npy one.npy "$(header '<f4' '1,')" "$f1"
npy z2.npy "$(header '<f4' '2,')" "$z4$z4"
npy z3.npy "$(header '<f4' '3,')" "$z4$z4$z4"
npy z8.npy "$(header '<f4' '8,')" "$z8"
npy z28.npy "$(header '<f4' '2, 8')" "$z8$z8"
npy z88.npy "$(header '<f4' '8, 8')" "$z8$z8$z8$z8$z8$z8$z8$z8"
good "mhc_sinkhorn" $cpu mhc_sinkhorn m=sq2.npy p=mp.npy map=abs order=rows eps=0 iterations=1
is "$(tail_of mp.npy 16 f4 | awk '{ printf "%.6f %.6f %.6f %.6f", $1, $2, $3, $4 }')" \
	"0.437500 0.538462 0.562500 0.461538" "rows, then columns"
good "mhc_sinkhorn_bwd" $cpu mhc_sinkhorn_bwd m=sq2.npy dp=sq2.npy dm=mp.npy
is "$(header_of mp.npy)" "$(header "${e}f4" '2, 2')" "a gradient of the shape"
good "mhc_sinkhorn z_max=" $cpu mhc_sinkhorn m=sq2.npy p=mp.npy z_min=1 z_max=1 eps=0
is "$(tail_of mp.npy 16 f4)" "0.5 0.5 0.5 0.5" "equal logits"
good "mhc_presets" run mhc_presets
grep -q "hc_head_{fn,base,scale}" ../out
ok $? "the names of tensors"
good "mhc_mix" $cpu mhc_mix x=x.npy p=p2.npy a=sq2.npy u=mu.npy r=mr.npy
is "$(tail_of mu.npy 16 f4) $(tail_of mr.npy 32 f4)" "9 8 7 6 9 8 7 6 19 18 17 16" "u and r"
good "mhc_mix_bwd" $cpu mhc_mix_bwd x=x.npy p=p2.npy du=v4.npy dp=mp.npy dx=mr.npy
is "$(tail_of mp.npy 8 f4) $(tail_of mr.npy 32 f4)" "30 20 1 2 3 4 2 4 6 8" "dp and dx"
good "mhc_add" $cpu mhc_add r=x.npy f=v4.npy q=p2.npy y=my.npy
is "$(tail_of my.npy 32 f4)" "2 4 6 8 6 7 8 9" "streams and q f"
good "mhc_add_bwd" $cpu mhc_add_bwd dy=x.npy f=v4.npy q=p2.npy df=mu.npy dq=mp.npy dr=mr.npy
is "$(tail_of mu.npy 16 f4) $(tail_of mp.npy 8 f4) $(tail_of mr.npy 32 f4)" \
	"9 8 7 6 30 20 1 2 3 4 4 3 2 1" "df, dq and dr"
good "mhc_post branch_bias=" $cpu mhc_post x=x.npy f=v4.npy q=p2.npy a=sq2.npy branch_bias=v4.npy y=my.npy
is "$(tail_of my.npy 32 f4)" "11 12 13 14 23 26 29 32" "a x and q (f + bias)"
good "mhc_post_bwd" $cpu mhc_post_bwd x=x.npy f=v4.npy q=p2.npy dy=x.npy da=mp.npy dbranch_bias=mu.npy
is "$(tail_of mp.npy 16 f4) $(tail_of mu.npy 16 f4)" "30 20 20 30 9 8 7 6" "da and dbias"
good "mhc_expand" $cpu mhc_expand e=v4.npy x=my.npy n=2
is "$(header_of my.npy)" "$(header "${e}f4" '2, 4')" "two streams"
good "mhc_expand_bwd" $cpu mhc_expand_bwd dx=x.npy de=mu.npy
is "$(tail_of mu.npy 16 f4)" "5 5 5 5" "their sum"
good "mhc_weights, static" $cpu mhc_weights bias=z8.npy preset=paper coefficients=static p=mp.npy \
	q=mq.npy a=ma.npy
is "$(tail_of mp.npy 8 f4) $(tail_of mq.npy 8 f4) $(tail_of ma.npy 16 f4)" \
	"0.5 0.5 1 1 0.5 0.5 0.5 0.5" "of zeros"
good "mhc_weights without keys" $cpu mhc_weights x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy p=mp.npy
good "mhc_weights preset=" $cpu mhc_weights x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy p=mp2.npy \
	preset=deepseek_v4
is "$(tail_of mp.npy 8 f4)" "0.500001 0.500001" "p_eps of the default"
is "$(tail_of mp.npy 8 f4)" "$(tail_of mp2.npy 8 f4)" "which is deepseek_v4"
good "mhc_weights p_eps=0" $cpu mhc_weights x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy p=mp.npy p_eps=0
is "$(tail_of mp.npy 8 f4)" "0.5 0.5" "0 holds"
good "mhc_pre" $cpu mhc_pre x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy preset=paper u=mu.npy \
	saved=ms.npy
is "$(tail_of mu.npy 16 f4) $(tail_of ms.npy 4 f4)" "2.5 2.5 2.5 2.5 7.5" \
	"the branch input, the mean square"
good "mhc_pre p_in=" $cpu mhc_pre x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy p_in=p2.npy u=mu.npy
is "$(tail_of mu.npy 16 f4)" "9 8 7 6" "mixed by other coefficients"
good "mhc_weights alpha_q=" $cpu mhc_weights x=x.npy phi=z88.npy alpha=one.npy alpha_q=one.npy \
	alpha_a=one.npy bias=z8.npy preset=megatron q=mq.npy
is "$(tail_of mq.npy 8 f4)" "1 1" "three alphas"
good "mhc_pre_bwd" $cpu mhc_pre_bwd x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy preset=paper \
	du=v4.npy dx=mr.npy dbias=mb.npy saved=ms.npy
is "$(tail_of mr.npy 32 f4) $(tail_of mb.npy 32 f4)" \
	"0.5 1 1.5 2 0.5 1 1.5 2 7.5 5 0 0 0 0 0 0" "dx and dbias"
good "mhc_head" $cpu mhc_head x=x.npy phi=z28.npy alpha=z1.npy bias=z2.npy h=mu.npy preset=paper
is "$(tail_of mu.npy 16 f4)" "2.5 2.5 2.5 2.5" "half of each"
good "mhc_head head=mean" $cpu mhc_head x=x.npy head=mean h=mu.npy
is "$(tail_of mu.npy 16 f4)" "2.5 2.5 2.5 2.5" "their mean"
good "mhc_head preset=lucidrains" $cpu mhc_head x=x.npy preset=lucidrains h=mu.npy
is "$(tail_of mu.npy 16 f4)" "5 5 5 5" "their sum"
good "mhc_expand streams=cn" $cpu mhc_expand e=v4.npy n=2 streams=cn x=mr.npy
is "$(header_of mr.npy) $(tail_of mr.npy 32 f4)" "$(header "${e}f4" '4, 2') 1 1 2 2 3 3 4 4" \
	"channels, then streams"
good "mhc_expand_bwd streams=cn" $cpu mhc_expand_bwd dx=mr.npy de=mu.npy streams=cn
is "$(tail_of mu.npy 16 f4)" "2 4 6 8" "their sum"
bad 2 'u_codes= and u_scales= need each other' "codes without scales" run mhc_pre x=x.npy phi=z88.npy \
	alpha=z3.npy bias=z8.npy preset=paper u_codes=n.npy
bad 2 'u_format= needs u_codes=' "a format of nothing" run mhc_pre x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy \
	u_format=e4m3 u=n.npy
good "mhc_pre u_codes=" $cpu mhc_pre x=x.npy phi=z88.npy alpha=z3.npy bias=z8.npy preset=paper \
	u_codes=mc.npy u_scales=mq.npy
is "$(tail_of mc.npy 4 d1)" "127 127 127 127" "u quantized"
good "mhc_gated_pre" $cpu mhc_gated_pre x=x.npy w_down=z88.npy w_up=z88.npy w_q=z28.npy u=mu.npy \
	q=mq.npy
is "$(tail_of mu.npy 16 f4 | awk '{ printf "%.4f %.4f", $1, $4 }') $(tail_of mq.npy 8 f4)" \
	"0.4564 0.4564 1 1" "half of the mean of streams over their roots"
good "mhc_gated_pre_bwd" $cpu mhc_gated_pre_bwd x=x.npy w_down=z88.npy w_up=z88.npy du=v4.npy \
	dx=mr.npy dw_up=mb.npy
is "$(tail_of mb.npy 32 f4)" "0 0 0 0 0 0 0 0" "gradients of weights"
npy x1212.npy "$(header '<f4' '1, 2, 1, 2')" "$f1$f2$f3$f4"
npy phi12.npy "$(header '<f4' '1, 2')" "$f1$f2"
good "mhc_head of a sequence" $cpu mhc_head x=x1212.npy phi=phi12.npy alpha=one.npy bias=z1.npy \
	preset=paper coefficients=per_sequence h=mu.npy
is "$(tail_of mu.npy 16 f4 | awk '{ printf "%.3f %.3f %.3f %.3f", $1, $2, $3, $4 }')" \
	"0.958 1.917 2.875 3.834" "by the mean of two tokens"
good "mhc_post_pre" $cpu mhc_post_pre x=x.npy f=v4.npy q=p2.npy a=sq2.npy phi=z88.npy \
	alpha=z3.npy bias=z8.npy preset=paper y=my.npy p_next=mp.npy u=mu.npy
is "$(tail_of my.npy 32 f4) $(tail_of mu.npy 16 f4)" "10 10 10 10 21 22 23 24 15.5 16 16.5 17" \
	"both sides of the boundary"
good "mhc_diagnose" $cpu mhc_diagnose a=sq2.npy out=mo.npy
is "$(tail_of mo.npy 16 f4)" "6 5 7 6" "deviations and gains"
good "mhc_init" $cpu mhc_init n=2 kind=triton layer=3 alpha=mal.npy bias=mb.npy
is "$(tail_of mb.npy 32 f4)" "0 1 1 1 1 0 0 1" "one-hot, 1, I"
bad 2 'coefficients is static: those of bias' "static ones of phi" run mhc_pre x=x.npy phi=z88.npy \
	alpha=z3.npy bias=z8.npy coefficients=static u=n.npy
bad 2 'x.ndim is 2, must be 4 at least' "sequences without a dimension" run mhc_pre x=x.npy \
	phi=z88.npy alpha=z3.npy bias=z8.npy coefficients=per_sequence u=n.npy
bad 2 'mhc_mix: the operand p= is missing' "no p for u" run mhc_mix x=x.npy u=n.npy
bad 2 'q.shape\[0\] is 4, must be 2, as r' "q of four" run mhc_add r=x.npy f=v4.npy q=v4.npy y=n.npy
bad 2 'dp= needs p=' "the gradient of what is not there" run mhc_mix_bwd x=x.npy a=sq2.npy dr=x.npy \
	dp=n.npy
bad 2 'bias.shape\[0\] is 4, must be 8' "rows of other streams" run mhc_weights x=x.npy phi=z88.npy \
	alpha=z3.npy bias=v4.npy q=n.npy

# ---- Malformed files -----------------------------------------------------------------------------

b=../bad
long=$(printf '%0500d' 0 | tr 0 ' ')
npy $b/complex.npy "$(header '<c8' '1,')" "$f1$f1"
npy $b/bool.npy "$(header '|b1' '1,')" '\001'
npy $b/object.npy "$(header '|O' '1,')" '\200\003]q'
npy $b/string.npy "$(header '<U3' '1,')" "$f1$f1$f1"
npy $b/bytes.npy "$(header '|S4' '1,')" "$f1"
npy $b/void.npy "$(header '|V4' '1,')" "$f1"
npy $b/date.npy "$(header '<M8[ns]' '1,')" "$f1$f1"
npy $b/longdouble.npy "$(header '<f16' '1,')" "$f1$f1$f1$f1"
npy $b/structured.npy "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }" "$f1"
npy $b/dims40.npy "$(header '<f4' "$(printf '1, %.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 \
	21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39)1")" "$f1"
npy $b/dims7.npy "$(header '<f4' '1, 1, 1, 1, 1, 1, 1')" "$f1"
npy $b/negative.npy "$(header '<f4' '-4,')" "$f1$f2$f3$f4"
npy $b/overflow.npy "$(header '<f4' '4611686018427387904, 4')" "$f1"
npy $b/overflow0.npy "$(header '<f4' '0, 4611686018427387904, 4')" ''
npy $b/beyond64.npy "$(header '<f4' '99999999999999999999999,')" "$f1"
npy $b/huge.npy "$(header '<f4' '1099511627776,')" "$f1"
npy $b/short.npy "$(header '<f4' '5,')" "$f1$f2$f3$f4"
npy $b/trailing.npy "$(header '<f4' '3,')" "$f1$f2$f3$f4"
npy $b/number.npy "$(header '<f4' '4')" "$f1$f2$f3$f4"
npy $b/float.npy "$(header '<f4' '4.0,')" "$f1$f2$f3$f4"
npy $b/expression.npy "$(header '<f4' '2*2,')" "$f1$f2$f3$f4"
npy $b/noshape.npy "{'descr': '<f4', 'fortran_order': False, }" "$f1"
npy $b/twice.npy "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }" "$f1"
npy $b/morekeys.npy "{'descr': '<f4', 'evil': 1, 'fortran_order': False, 'shape': (1,), }" "$f1"
npy $b/order.npy "$(header '<f4' '1,' Maybe)" "$f1"
npy $b/after.npy "$(header '<f4' '1,') import os" "$f1"
npy $b/nodict.npy "hello" "$f1"
npy $b/unclosed.npy "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)" "$f1"
npy $b/openstring.npy "{'descr': '<f4" "$f1"
npy $b/noheader.npy "" ""
printf 'PK\003\004 this is a zip file' >$b/magic.npy
: >$b/nothing.npy
printf '\223NUM' >$b/prefix.npy
printf '\223NUMPY\001\000\166' >$b/cut.npy
printf '\223NUMPY\001\000\377\377{}' >$b/lyingheader.npy
printf '\223NUMPY\002\000\377\377\377\377{}' >$b/lyingheader2.npy
printf '\223NUMPY\011\000\001\000{' >$b/version9.npy
head -c 60 x.npy >$b/halfheader.npy
for file in $b/*.npy; do
	bad 2 "^hurwitz: $file: " "refused: ${file#../bad/}" run -d cpu hadamard x=$file y=no.npy
done
bad 2 'complex' "the sentence on complex numbers" run hadamard x=$b/complex.npy y=no.npy
bad 2 'booleans' "the sentence on booleans" run hadamard x=$b/bool.npy y=no.npy
bad 2 'objects' "the sentence on objects" run hadamard x=$b/object.npy y=no.npy
bad 2 '40 dimensions' "the sentence on 40 dimensions" run hadamard x=$b/dims40.npy y=no.npy
bad 2 'truncated' "the sentence on a short file" run hadamard x=$b/short.npy y=no.npy
bad 2 'No such file' "a file that is not there" run hadamard x=$b/none.npy y=no.npy
bad 2 'directory' "a file that is a directory" run hadamard x=$b y=no.npy
for file in $b/*.npy; do
	"$HURWITZ" $cpu hadamard x=- y=no.npy <"$file" >../out 2>../err
	[ $? -eq 2 ] && [ ! -e no.npy ] || echo "$file"
done >../list
is "$(cat ../list)" "" "all refused from standard input, too"
for file in $b/*.npy; do
	cat "$file" | "$HURWITZ" $cpu hadamard x=- y=no.npy >../out 2>../err
	[ $? -eq 2 ] && [ ! -e no.npy ] || echo "$file"
done >../list
is "$(cat ../list)" "" "all refused from a pipe, too"
bad 2 "^hurwitz: $b/short.npy: " "the second operand is read as strictly" run hadamard x=row.npy pre=$b/short.npy y=no.npy
npy python2.npy "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 4L), }" "$f1$f2$f3$f4$f4$f3$f2$f1"
npy order.npy "{\"shape\":(2,4),\"fortran_order\":False,\"descr\":\"<f4\"}$long" "$f1$f2$f3$f4$f4$f3$f2$f1"
for version in 2 3; do
	{
		printf "\223NUMPY\00$version\000$(octal $((${#xheader} + 1)))\000\000\000"
		tail -c +11 x.npy
	} >version$version.npy
done
for x in python2 order version2 version3; do
	good "read: $x.npy" $cpu hadamard x=$x.npy y=z.npy
	cmp y.npy z.npy
	ok $? "read right: $x.npy"
done
# ---- Interruption --------------------------------------------------------------------------------

# q has been started when opening scale_out, a pipe without a reader, blocks.
mkfifo fifo
for signal in TERM HUP; do
	# Under nohup the signal is ignored, by the command too; a shell that it kills prints nothing.
	[ -z "$(sh -c "kill -$signal \$\$; echo ignored" 2>/dev/null)" ] || continue
	mkdir s
	"$HURWITZ" $cpu hadamard_quantize x=w.npy q=s/q.npy scale=fifo 2>/dev/null &
	pid=$!
	i=0
	while [ -z "$(ls -A s)" ] && [ $i -lt 100 ]; do
		sleep 0.1
		i=$((i + 1))
	done
	during=$(ls -A s)
	kill -$signal $pid
	wait $pid 2>/dev/null
	[ $? -gt 128 ] && [ -n "$during" ] && [ "$during" != q.npy ]
	ok $? "SIG$signal ends it, while the output has another name"
	is "$(ls -A s)" "" "and leaves nothing"
	rm -rf s
done
rm -f fifo

echo "1..$tests"
[ $failed -eq 0 ]
