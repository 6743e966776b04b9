#!/bin/bash
# The whole tree is what clang-format 14 makes of it, and keeps the rules that grep can see.
set -eu

refuse() { # what, lines
	[ -z "$2" ] || { printf '%s\n' "$2" "check-format: $1" >&2; exit 1; }
}
code=$(grep -rn '' src --include='*.[ch]')
# The shim is a client of symccl.h in a library of its own, and has NCCL's variables to read.
refuse 'the environment is read in params.c and launch.c only' \
	"$(grep -wE '(secure_)?getenv' <<<"$code" | grep -vE '^src/(params\.c|bootstrap/launch\.c|shim/)' || true)"
refuse 'a library does not end the process' \
	"$(grep -E '\b(abort|exit|_exit|assert)\(' <<<"$code" || true)"

cf=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$cf" ] || ! "$cf" --version | grep -q 'version 14\.'; then
	echo 'check-format: skipped, clang-format 14 is not installed'
	exit 0
fi
mapfile -t files < <(find include src perf tests tools examples \
	\( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
if ! "$cf" --dry-run -Werror "${files[@]}" 2>&1 | grep -a 'error:' | cut -d: -f1 | sort | uniq -c |
	{ ! grep .; }; then
	echo "check-format: run $cf -i on the files above" >&2
	exit 1
fi
echo "check-format: ${#files[@]} files"
