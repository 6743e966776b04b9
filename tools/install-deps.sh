#!/bin/bash
# install-deps.sh build|check|ci|arm64: make sure that what the build, the tests, all of continuous
# integration, or the tests under aarch64 emulation need is there. Says what it installs before it does. SYMCCL_NO_INSTALL=1: print the command and stop instead.
# CC and D are taken from the environment, as make has them.
set -u
what=${1:-build}
missing=()
foreign= # Debian must first be told of packages for another architecture

compiles() { # compiler [flags]: builds a program, so its C library and run time are there too
	local out rc
	out=$(mktemp) || return 1
	printf '#include <stdlib.h>\n#include <pthread.h>\nint main(void) { return 0; }\n' |
		"$@" -x c - -o "$out" >/dev/null 2>&1
	rc=$?
	rm -f "$out"
	return $rc
}

find_compiler() {
	local cc c
	if [ -n "${CC:-}" ]; then
		read -ra cc <<<"$CC"
		compiles "${cc[@]}" && return
		for c in "${cc[@]}"; do # "ccache gcc-12": each word is a program, and its package
			case $c in
			cc | gcc) missing+=(gcc libc6-dev) ;;
			gcc-[0-9]* | clang | clang-[0-9]*) missing+=("$c" libc6-dev) ;;
			-*) ;;
			*) command -v "$c" >/dev/null || missing+=("$c") ;;
			esac
		done
		[ ${#missing[@]} -gt 0 ] || { echo "CC=$CC cannot build a C program" >&2; exit 1; }
		return
	fi
	for c in gcc clang cc; do
		compiles $c && CC=$c && return
	done
	missing+=(gcc libc6-dev)
}

find_compiler
command -v autoconf >/dev/null || missing+=(autoconf)
command -v pkg-config >/dev/null || missing+=(pkg-config)
pkg-config --exists libsodium 2>/dev/null || missing+=(libsodium-dev)
if [ "$what" != build ]; then
	pkg-config --exists criterion 2>/dev/null || missing+=(libcriterion-dev)
fi
if [ "$what" = ci ]; then
	compiles clang || missing+=(clang)
	command -v g++ >/dev/null || missing+=(g++)
	command -v clang-format-14 >/dev/null || missing+=(clang-format-14)
fi
if [ "$what" = arm64 ]; then
	dpkg --print-foreign-architectures | grep -qx arm64 || foreign=1
	command -v aarch64-linux-gnu-gcc >/dev/null ||
		missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
	command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
	[ -e /usr/lib/aarch64-linux-gnu/libsodium.a ] || missing+=(libsodium-dev:arm64)
fi
case ${D:+$CC} in
*clang*) compiles $CC -fsanitize=address || missing+=(libclang-rt-dev) ;;
esac
[ ${#missing[@]} = 0 ] && exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
	sudo=sudo
	[ -t 0 ] || sudo='sudo -n'
fi
install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "${SYMCCL_NO_INSTALL:-0}" = 1 ]; then
	echo "missing: ${missing[*]}" >&2
	echo "SYMCCL_NO_INSTALL=1 is set; run this, then make again:" >&2
	[ -z "$foreign" ] || echo "  ${sudo:+sudo }sh -c 'dpkg --add-architecture arm64 && apt-get update'" >&2
	echo "  ${sudo:+sudo }$install" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null; then
	echo "missing (Debian's names): ${missing[*]}; there is no apt-get here, install them by hand" >&2
	exit 1
fi
if [ -n "$sudo" ] && ! command -v sudo >/dev/null; then
	echo "missing: ${missing[*]}; as root, run: $install" >&2
	exit 1
fi
echo "symccl: installing what is missing: ${missing[*]}"
[ -z "$foreign" ] || echo "symccl: running: ${sudo:+$sudo }dpkg --add-architecture arm64"
echo "symccl: running: ${sudo:+$sudo }$install"
apt() {
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@" </dev/null
}
# The package lists may be absent or older than the archive: then fetch them and try again.
inst() {
	apt install -y --no-install-recommends "${missing[@]}"
}
if [ -n "$foreign" ]; then
	$sudo dpkg --add-architecture arm64 && apt update && inst
elif ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then
	apt update
	inst
else
	inst || { apt update && inst; }
fi || { echo "symccl: that failed; run by hand: apt-get update && $install" >&2; exit 1; }
