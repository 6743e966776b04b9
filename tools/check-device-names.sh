#!/bin/bash
# check-device-names.sh INCLUDE: symccl_device.h takes no names from the programs that include it: its
# functions, types and macros begin with symccl. (The headers' own short names: src/device/names.h)
set -eu
export LC_ALL=C
include=$1 rc=0
cc=${CC:-cc}
source=$'#include <limits.h>\n#include <sched.h>\n#include <stddef.h>\n#include <stdint.h>
#include <string.h>\n#include <time.h>\n'
macros() {
	"$cc" -std=gnu11 -I"$include" -E -dM -x c - | sed -n 's/^#define \([A-Za-z0-9_]*\).*/\1/p' | sort
}
code() {
	"$cc" -std=gnu11 -I"$include" -E -P -x c - | tr '\n' ' ' |
		grep -oE 'static inline [^({;]*\(|\b(struct|union|enum) [A-Za-z0-9_]+ \{' |
		sed 's/ *[({]$//; s/.*[ *]//' | sort -u
}
for what in macros code; do
	new=$(comm -13 <(echo "$source" | $what) <(echo "$source#include <symccl_device.h>" | $what) |
		grep -viE '^_*symccl' || true)
	[ -z "$new" ] || { echo "check-device-names: not symccl's: "$new >&2; rc=1; }
done
[ $rc != 0 ] || echo 'check-device-names: all begin with symccl'
exit $rc
