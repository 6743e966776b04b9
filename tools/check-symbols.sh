#!/bin/bash
# check-symbols.sh LIBRARY MAP HEADER...: the library exports what the map lists and what the
# headers declare with SYMCCL_API; nothing more, nothing less.
set -eu
export LC_ALL=C
lib=$1 map=$2
shift 2

exported=$(nm -D --defined-only "$lib" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
mapped=$(sed -n 's/^[[:space:]]*\(symccl[A-Za-z0-9_]*\);.*/\1/p' "$map" | sort)
declared=$(cat "$@" | grep -v '#define' | tr '\n' ' ' | grep -o 'SYMCCL_API [^;(]*(' |
	sed 's/ *($//; s/.*[ *]//' | sort)

rc=0
compare() { # name a, list a, name b, list b
	local d
	d=$(diff <(echo "$2") <(echo "$4") | sed -n "s|^< |  only in $1: |p; s|^> |  only in $3: |p")
	[ -z "$d" ] || { echo "$d"; rc=1; }
}
compare "the library" "$exported" "$map" "$mapped"
compare "the headers" "$declared" "$map" "$mapped"
if [ $rc = 0 ]; then
	echo "check-symbols: $(echo "$exported" | wc -l) symbols, library, map and header agree"
else
	echo "check-symbols: library, map and header differ" >&2
fi
exit $rc
