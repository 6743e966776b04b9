#!/bin/bash
# loaders.sh O: every way in which programs come by libnccl.so.2, with another library of that name
# in reach.
set -u
O=$(cd "$1" && pwd)
ours=$O/lib/symccl/libnccl.so.2
theirs=$O/tests/nccl/foreign/libnccl.so.2
loader=$O/tests/nccl/loader
linked=$O/tests/nccl/linked
audit=$O/lib/symccl/symccl-audit.so
run=$O/bin/symccl-run
export SYMCCL_DEVICE=host
good="22809 works"
rc=0

expect() { # what, wanted, command...
	local got
	got=$("${@:3}" 2>&1)
	[ "$got" = "$2" ] || { echo "loaders: $1: \"$got\" instead of \"$2\""; rc=1; }
}

expect "linked, foreign by its path" 99999 "$linked"
expect "linked, first on the path" "$good" env LD_LIBRARY_PATH="${ours%/*}" "$linked"
expect "preloaded before a linked one" "$good" env LD_PRELOAD="$ours" "$linked"
expect "dlopen of the bare name" "$good" env LD_LIBRARY_PATH="${ours%/*}" "$loader" -l libnccl.so.2
expect "dlopen of the bare name, preloaded" "$good" env LD_PRELOAD="$ours" "$loader" -l libnccl.so.2
expect "dlopen of an absolute path, local" "$good" "$loader" -l "$ours"
expect "dlopen of an absolute path, global" "$good" "$loader" -g "$ours"
expect "a process that holds another" "$good" "$loader" -g "$theirs" -l "$ours"
expect "a process linked to another" "$good" env LD_PRELOAD="$theirs" "$loader" -l "$ours"
expect "two preloads" "$good" env LD_PRELOAD="$O/lib/libsymccl.so.0:$ours" "$linked"
expect "twice" "$good" env LD_PRELOAD="$ours" "$loader" -l "$ours"
expect "another's absolute path" 99999 "$loader" -l "$theirs"
expect "another's absolute path, audited" "$good" env LD_AUDIT="$audit" "$loader" -l "$theirs"
expect "symccl-run, linked" "$good" "$run" "$linked"
expect "symccl-run, bare name" "$good" "$run" "$loader" -l libnccl.so.2
expect "symccl-run, absolute path" "$good" "$run" "$loader" -l "$theirs"
expect "no word of where memory is" "$good" env -u SYMCCL_DEVICE "$loader" -l "$ours"
expect "another version" "23007 works" env SYMCCL_NCCL_VERSION=2.30.7 "$loader" -l "$ours"

# What is set for NCCL counts, what has no effect is named, at NCCL_DEBUG=INFO.
out=$(NCCL_DEBUG=INFO NCCL_MAX_CTAS=2 NCCL_ALGO=Ring "$loader" -l "$ours" 2>&1)
grep -q "NCCL_ALGO=Ring has no effect" <<<"$out" || { echo "loaders: no line of NCCL_ALGO: $out"; rc=1; }
grep -q "NCCL_MAX_CTAS" <<<"$out" && { echo "loaders: NCCL_MAX_CTAS has an effect"; rc=1; }
[ $rc = 0 ] && echo "loaders: every way leads to symccl"
exit $rc
