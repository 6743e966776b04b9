#!/bin/bash
# host.sh [options]: symccl and its peers side by side on CPU memory, in one run: Open MPI and MPICH,
# Gloo, and the all-reduce over shared memory of LLM servers.
#
#   -c list    collectives, comma separated (all_gather); those of build/perf/*_perf
#   -x list    peers to leave out, as the columns are called; also mpi, gloo, llm
#   -n ranks   processes (2); more than there are CPUs: everything runs niced, and without what spins
#              for ever then: MPICH, which needs 20 ms an operation, and LLM servers
#   -R 0|1|2   symccl's buffers: malloc, symcclMemAlloc, symmetric windows (2)
#   -s list    sizes (8,64,256,1K,4K,16K,64K,256K,1M,4M,16M,64M)
#   -r rounds  each library once a round, in turn (3)
#   -B dir     where symccl is built (build)
#   -p 0|1     real-time priority where permitted (1)
#   -o file    write JSON too
#
# For each size: median times over the rounds, which MPI was best, and for the best of the MPIs, of Gloo
# and of the LLM servers the median over the rounds of its time / symccl's (above 1: symccl is faster), with
# the range. "dirty": every rank rewrites its input and a barrier passes before each call, median over
# calls of the slowest rank. "b2b": back to back, mean, up to 256 B. Installs the peers first where
# they are missing; SYMCCL_NO_INSTALL=1: stops with the command to run instead.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

collectives=all_gather without='' ranks=2 buffers=2 rounds=3 build=$root/build priority=1 out=
sizes=8,64,256,1K,4K,16K,64K,256K,1M,4M,16M,64M
b2b_max=256

usage() {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
	exit "$1"
}

die() {
	echo "host.sh: $*" >&2
	exit 1
}

while getopts c:x:n:R:s:r:B:p:o:h opt; do
	case $opt in
	c) collectives=$OPTARG ;;
	x) without=$OPTARG ;;
	n) ranks=$OPTARG ;;
	R) buffers=$OPTARG ;;
	s) sizes=$OPTARG ;;
	r) rounds=$OPTARG ;;
	B) build=$(cd "$OPTARG" && pwd) ;;
	p) priority=$OPTARG ;;
	o) out=$OPTARG ;;
	h) usage 0 ;;
	*) usage 2 >&2 ;;
	esac
done

wanted() { # name...: is none of them left out
	local name
	for name; do
		case ,$without, in *,$name,*) return 1 ;; esac
	done
}

need=()
if wanted mpi; then
	command -v mpicc.openmpi >/dev/null || need+=(openmpi-bin libopenmpi-dev)
	command -v mpicc.mpich >/dev/null || need+=(mpich libmpich-dev)
fi
if wanted gloo; then
	[ -e /usr/include/gloo/allreduce.h ] || need+=(libgloo-dev)
	command -v g++ >/dev/null || need+=(g++)
fi

install_peers() {
	local cmd="apt-get install -y --no-install-recommends ${need[*]}"
	[ ${#need[@]} -gt 0 ] || return 0
	[ "${SYMCCL_NO_INSTALL:-0}" = 1 ] && die "peers are missing; run: $cmd"
	echo "host.sh: installing ${need[*]}" >&2
	if [ "$(id -u)" = 0 ]; then
		apt-get update -q >&2 && $cmd >&2
	else
		sudo apt-get update -q >&2 && sudo $cmd >&2
	fi
}

bytes() { # 64K -> 65536
	local n=${1%[KMGkmg]}
	case $1 in
	*[Kk]) n=$((n << 10)) ;;
	*[Mm]) n=$((n << 20)) ;;
	*[Gg]) n=$((n << 30)) ;;
	esac
	echo "$n"
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
sizes_b=() small=()
IFS=, read -ra list <<<"$sizes"
for s in "${list[@]}"; do
	b=$(bytes "$s")
	sizes_b+=("$b")
	[ "$b" -gt "$b2b_max" ] || small+=("$b")
done
join() {
	local IFS=,
	echo "$*"
}

build_peers() {
	local mpi vectors=
	for mpi in openmpi mpich; do
		wanted mpi || break
		"mpicc.$mpi" -O3 -o "$tmp/mpi_coll.$mpi" "$here/mpi_coll.c" || die "mpicc.$mpi failed"
	done
	if wanted gloo; then
		g++ -O2 -c -o "$tmp/gloo_api.o" "$here/gloo_api.cc" &&
			cc -O3 -c -o "$tmp/gloo_coll.o" "$here/gloo_coll.c" &&
			g++ -o "$tmp/gloo_coll" "$tmp/gloo_coll.o" "$tmp/gloo_api.o" -lgloo || die "Gloo: no program"
	fi
	wanted llm || return 0
	cc -mprefer-vector-width=512 -E -x c /dev/null >/dev/null 2>&1 && vectors=-mprefer-vector-width=512
	cc -O3 -march=native $vectors -o "$tmp/llm_coll" "$here/llm_coll.c" || die "llm_coll.c: no program"
}

# What each is run under: a CPU each and nothing else on it, or several ranks a CPU.
cpus=$(nproc)
wrap=() bind=(--bind-to core) pin=1
peers=(openmpi openmpi_tuned mpich mpich_tuned gloo gloo_halving vllm_like sglang_like)
if [ "$ranks" -gt "$cpus" ]; then
	peers=(openmpi openmpi_tuned gloo gloo_halving)
	bind=(--oversubscribe --bind-to none) pin=0
	[ "$priority" = 1 ] && nice -n -20 true 2>/dev/null && wrap=(nice -n -20)
elif [ "$priority" = 1 ] && chrt -f 10 true 2>/dev/null; then
	wrap=(chrt -f 10)
fi
[ "$(id -u)" = 0 ] && bind+=(--allow-run-as-root)
# Without these, malloc maps and unmaps the temporaries of large reductions at every call.
heap=(env MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=67108864)
vader=(--mca btl_vader_single_copy_mechanism none --mca btl_vader_eager_limit 32768
	--mca btl_vader_rndv_eager_limit 32768 --mca btl_vader_max_send_size 131072)

peer_has() { # name collective
	case $1:$2 in
	openmpi*:* | mpich*:*) wanted mpi "$1" ;;
	gloo:all_reduce | gloo:all_gather | gloo:barrier) wanted gloo "$1" ;;
	gloo_halving:all_reduce) wanted gloo "$1" ;;
	*_like:all_reduce) wanted llm "$1" ;;
	*) false ;;
	esac
}

run_peer() { # name collective: prints what peer.h prints
	local rest=("$b2b_max" "${sizes_b[@]}")
	case $1 in
	openmpi) "${wrap[@]}" mpirun.openmpi "${bind[@]}" -np "$ranks" \
		"$tmp/mpi_coll.openmpi" "$2" "${rest[@]}" ;;
	openmpi_tuned) "${wrap[@]}" "${heap[@]}" mpirun.openmpi "${bind[@]}" "${vader[@]}" \
		-np "$ranks" "$tmp/mpi_coll.openmpi" "$2" "${rest[@]}" ;;
	mpich) "${wrap[@]}" mpirun.mpich -bind-to core -np "$ranks" "$tmp/mpi_coll.mpich" "$2" "${rest[@]}" ;;
	mpich_tuned) "${wrap[@]}" "${heap[@]}" mpirun.mpich -bind-to core -env UCX_TLS posix,self \
		-np "$ranks" "$tmp/mpi_coll.mpich" "$2" "${rest[@]}" ;;
	gloo) "${wrap[@]}" "$tmp/gloo_coll" "$2" "$ranks" "${rest[@]}" ;;
	gloo_halving) "${wrap[@]}" "$tmp/gloo_coll" "$2/halving" "$ranks" "${rest[@]}" ;;
	vllm_like) "${wrap[@]}" "$tmp/llm_coll" staged "$ranks" "${rest[@]}" ;;
	sglang_like) "${wrap[@]}" "$tmp/llm_coll" copied "$ranks" "${rest[@]}" ;;
	esac
}

install_peers
build_peers

# symccl's JSON has one row a line.
json_lines() { # mode file collective
	awk -v mode="$1" -v coll="$3" '
	function after(key) { return substr($0, index($0, key) + length(key)) + 0 }
	coll == "broadcast" { sub(/"out_of_place".*"in_place"/, "") } # as MPI has it
	/"line_latency_ns"/ && mode == "dirty" {
		print "L", after("\"line_latency_ns\": "); print "C", after("\"copy_gbs\": ") }
	/"size": / { if (after("\"size\": ") > 0 || coll == "barrier")
		printf "row %d %s %.4f\n", after("\"size\": "), mode, after("\"time_us\": ") }' "$2"
}

run_symccl() { # collective check
	local prog=("$build/perf/$1_perf" -P "$ranks" -R "$buffers" --pin "$pin" --device host -d float
		-J "$tmp/run.json")
	"${wrap[@]}" "${prog[@]}" -c "$2" --sizes "$(join "${sizes_b[@]}")" >"$tmp/run.out" ||
		{ cat "$tmp/run.out" >&2; return 1; }
	json_lines dirty "$tmp/run.json" "$1"
	[ ${#small[@]} -gt 0 ] || return 0
	"${wrap[@]}" "${prog[@]}" -c 0 --dirty 0 --sizes "$(join "${small[@]}")" >"$tmp/run.out" ||
		{ cat "$tmp/run.out" >&2; return 1; }
	json_lines b2b "$tmp/run.json" "$1"
}

collect() { # collective: "round who line..." for every run
	local round who
	for ((round = 1; round <= rounds; round++)); do
		[ ! -t 2 ] || printf '\r%s: round %d of %d' "$1" "$round" "$rounds" >&2
		run_symccl "$1" $((round == 1)) | sed "s/^/$round symccl /" || return 1
		for who in "${peers[@]}"; do
			peer_has "$who" "$1" || continue
			run_peer "$who" "$1" | sed "s/^/$round $who /" || return 1
		done
	done
	[ ! -t 2 ] || printf '\r\033[K' >&2
}

commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
json_head=$(printf '{"date": "%s", "host": "%s", "kernel": "%s", "commit": "%s", "ranks": %d, "cpus": %d, "rounds": %d, "buffers": %d, "wrap": "%s"' \
	"$(date -u +%FT%TZ)" "$(hostname)" "$(uname -r)" "$commit" "$ranks" "$cpus" "$rounds" "$buffers" "${wrap[*]}")
echo "# symccl $commit, $ranks ranks on $cpus CPUs, -R $buffers, $rounds rounds${wrap[*]:+, under ${wrap[*]}}"
wanted mpi && echo "# $(mpirun.openmpi --version 2>/dev/null | head -1);" \
	"MPICH $(mpichversion 2>/dev/null | awk '/Version/ { print $NF; exit }')"
wanted gloo && echo "# Gloo $(dpkg-query -W -f '${Version}' libgloo-dev 2>/dev/null): ring, as PyTorch has it; halving and doubling"
wanted llm && echo "# vllm_like, sglang_like: llm_coll.c's staged and copied designs"

IFS=, read -ra todo <<<"$collectives"
for coll in "${todo[@]}"; do
	[ -x "$build/perf/${coll}_perf" ] || die "$build/perf/${coll}_perf is not there: make first"
	collect "$coll" >"$tmp/lines" || die "$coll: a run failed"
	awk -v coll="$coll" -v json="$tmp/$coll.json" -f "$here/table.awk" "$tmp/lines"
	cat "$tmp/$coll.json" >>"$tmp/parts"
done
if [ -n "$out" ]; then
	{
		printf '%s, "collectives": [\n' "$json_head"
		awk 'NR > 1 { print prev "," } { prev = $0 } END { print prev }' "$tmp/parts"
		echo ']}'
	} >"$out"
	echo "# written: $out"
fi
