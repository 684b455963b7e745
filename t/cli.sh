# cli.sh - shared by tests of the command line: how to call it, and input files
# SPDX-License-Identifier: BSD-2-Clause
# shellcheck shell=sh
# shellcheck disable=SC2002,SC2012,SC2015,SC2034,SC2059,SC2086,SC2231 # words, octal formats: meant

: "${HURWITZ:=./hurwitz}" "${top_srcdir:=.}" "${CC:=cc}"
if [ "${cross_compiling:-no}" = yes ]; then
	echo "1..0 # SKIP a cross build"
	exit 0
fi
case $HURWITZ in /*) ;; *) HURWITZ=$PWD/$HURWITZ ;; esac
case $top_srcdir in /*) ;; *) top_srcdir=$PWD/$top_srcdir ;; esac
LC_ALL=C
export LC_ALL
unset HURWITZ_DEVICE HURWITZ_THREADS HURWITZ_ISA HURWITZ_QUAT HURWITZ_ROUTE HURWITZ_VERBOSE NO_COLOR
dir=$(mktemp -d "${TMPDIR:-/tmp}/hurwitz-cli.XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$dir/work" "$dir/bad" && cd "$dir/work" || exit 99

tests=0
failed=0

ok() # STATUS NAME
{
	tests=$((tests + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $tests - $2"
	else
		echo "not ok $tests - $2"
		failed=$((failed + 1))
	fi
}

skip() # NAME REASON
{
	tests=$((tests + 1))
	echo "ok $tests - $1 # SKIP $2"
}

diag()
{
	sed 's/^/# /'
}

is() # GOT WANT NAME
{
	[ "$1" = "$2" ]
	ok $? "$3"
	[ "$1" = "$2" ] || printf 'got  %s\nwant %s\n' "$1" "$2" | diag
}

# Runs the command: exit status in $rc, output in ../out and ../err.
hurwitz()
{
	"$HURWITZ" "$@" >../out 2>../err
	rc=$?
}

# The command must succeed and print nothing to stderr.
good() # NAME ARGUMENT...
{
	name=$1
	shift
	hurwitz "$@"
	[ $rc -eq 0 ] && [ ! -s ../err ]
	ok $? "$name"
	[ $rc -eq 0 ] || diag <../err
}

# The command must fail: that status, one line on stderr with the pattern, nothing on stdout, and no
# new files.
bad() # STATUS PATTERN NAME ARGUMENT...
{
	want=$1 pattern=$2 name=$3
	shift 3
	before=$(ls -A)
	hurwitz "$@"
	[ $rc -eq "$want" ] && [ ! -s ../out ] && [ "$(wc -l <../err)" -eq 1 ] &&
		grep -q '^hurwitz: ' ../err && grep -q -e "$pattern" ../err && [ "$before" = "$(ls -A)" ]
	ok $? "$name"
	[ $rc -eq "$want" ] && grep -q -e "$pattern" ../err || {
		echo "status $rc, wanted $want with '$pattern'"
		cat ../err
	} | diag
}

# ---- Fixtures ------------------------------------------------------------------------------------

octal()
{
	printf '\\%03o' "$1"
}

# A .npy file of version 1.0; DATA is a format for printf.
npy() # FILE HEADER DATA
{
	length=$((${#2} + 1))
	{
		printf '\223NUMPY\001\000'
		printf "$(octal $((length % 256)))$(octal $((length / 256)))"
		printf '%s\n' "$2"
		printf "$3"
	} >"$1"
}

header() # DESCR SHAPE [FORTRAN]
{
	echo "{'descr': '$1', 'fortran_order': ${3:-False}, 'shape': ($2), }"
}

# The last BYTES of a file as numbers of od's TYPE on one line
tail_of() # FILE BYTES TYPE
{
	tail -c "$2" "$1" | od -An -v -t"$3" | tr -s ' \n' ' ' | sed 's/^ //;s/ $//'
}

header_of() # FILE
{
	dd if="$1" bs=1 skip=10 count=118 2>/dev/null | sed 's/ *$//'
}

# Outputs are in the machine's byte order, as is od's.
if [ "$(printf '\001\000' | od -An -tu2 | tr -d ' ')" = 1 ]; then e='<'; else e='>'; fi

f1='\000\000\200\077' f2='\000\000\000\100' f3='\000\000\100\100' f4='\000\000\200\100'
b1='\077\200\000\000' b2='\100\000\000\000' b3='\100\100\000\000' b4='\100\200\000\000'

xheader=$(header '<f4' '2, 4')
npy x.npy "$xheader" "$f1$f2$f3$f4$f4$f3$f2$f1"
npy row.npy "$(header '<f4' '4,')" "$f1$f2$f3$f4"
# The same matrix in Fortran order, big-endian, and both
npy fortran.npy "$(header '<f4' '2, 4' True)" "$f1$f4$f2$f3$f3$f2$f4$f1"
npy big.npy "$(header '>f4' '2, 4')" "$b1$b2$b3$b4$b4$b3$b2$b1"
npy bigfortran.npy "$(header '>f4' '2, 4' True)" "$b1$b4$b2$b3$b3$b2$b4$b1"
npy half.npy "$(header '<f2' '4,')" '\000\074\000\100\000\102\000\104'
npy brain.npy "$(header '<u2' '4,')" '\200\077\000\100\100\100\200\100'
npy double.npy "$(header '<f8' '1,')" '\000\000\000\000\000\000\360\077'
npy empty.npy "$(header '<f4' '0, 4')" ''
npy scalar.npy "$(header '<f4' '')" "$f1"
npy packed.npy "$(header '|u1' '1,')" '\005'
npy plusminus.npy "$(header '|i1' '4,')" '\377\001\377\001'
npy factors.npy "$(header '<f4' '4,')" '\000\000\200\277\000\000\200\077\000\000\200\277\000\000\200\077'
npy zeroone.npy "$(header '|i1' '4,')" '\000\001\000\001'
# 96 and 64 ones
ones=
for i in 1 2 3 4 5 6 7 8; do ones="$ones$f1$f1$f1$f1"; done
npy n32.npy "$(header '<f4' '32,')" "$ones"
npy n96.npy "$(header '<f4' '96,')" "$ones$ones$ones"
npy w.npy "$(header '<f4' '2, 64')" "$ones$ones$ones$ones"
