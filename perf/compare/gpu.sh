#!/bin/bash
# gpu.sh: symccl beside NCCL and PyTorch's symmetric memory on this machine's GPUs, in one run, with
# the floors of the machine.
usage() {
	cat <<EOF
usage: gpu.sh [options] BUILDDIR
  -n ranks        one process each (2); several share a GPU when there are fewer GPUs
  -c list         collectives (all_reduce,all_gather,reduce_scatter)
  -s sizes        (8,8K,32K,128K,512K,2M,8M,32M,128M)
  -e sizes        eager as well, without a graph (8,8K,32K,128K); none: ''
  -r rounds       of all contenders by turns (3)
  -x list         leave these out, as the columns are called
  -N dir          an NCCL: dir/lib/libnccl.so.2 and dir/include/nccl.h. Several times for several;
                  not given: the one of this machine's PyTorch
  -w              window registration as well
  -q              do not check symccl's values, which takes a second for 128 MiB
  -o file         everything as JSON
Several ranks on one GPU: NCCL 2.30.5 or newer. MPS is started when it is needed and not running.
EOF
}
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
ranks=2 collectives=all_reduce,all_gather,reduce_scatter rounds=3 out= register= without= checked=1
sizes=8,8K,32K,128K,512K,2M,8M,32M,128M eager=8,8K,32K,128K nccls=()
while getopts n:c:s:e:r:x:N:wqo:h opt; do
	case $opt in
	n) ranks=$OPTARG ;;
	c) collectives=$OPTARG ;;
	s) sizes=$OPTARG ;;
	e) eager=$OPTARG ;;
	r) rounds=$OPTARG ;;
	x) without=,$OPTARG, ;;
	N) nccls+=("$OPTARG") ;;
	w) register=1 ;;
	q) checked=0 ;;
	o) out=$OPTARG ;;
	h) usage && exit ;;
	*) usage >&2 && exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[ $# = 1 ] || { usage >&2 && exit 2; }
die() {
	echo "gpu.sh: $*" >&2
	exit 1
}
build=$(cd "$1" && pwd) || exit
command -v nvidia-smi >/dev/null || die 'no GPU here'
gpus=$(nvidia-smi -L | grep -c ^GPU)
tmp=$(mktemp -d)
mps=
finish() {
	[ -z "$mps" ] || echo quit | nvidia-cuda-mps-control
	rm -rf "$tmp"
}
trap finish EXIT

# ---- Who takes part ----
torch=$(python3 -c 'import torch, os, nvidia; print(list(nvidia.__path__)[0] + "/nccl")' 2>/dev/null)
[ ${#nccls[@]} -gt 0 ] || [ -z "$torch" ] || nccls=("$torch")
cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
contenders=(symccl symccl_plain)
declare -A lib
for dir in "${nccls[@]}"; do
	v=$(awk '/define NCCL_(MAJOR|MINOR|PATCH) / { v = v (v == "" ? "" : ".") $3 } END { print v }' "$dir/include/nccl.h")
	cc -O2 -shared -fPIC -o "$tmp/peer-$v.so" "$here/nccl_peer.c" -I "$dir/include" -I "$cuda/include" \
		-I "$root/include" -ldl || die "nccl_peer.c does not compile with $dir"
	lib[$v]=$dir/lib/libnccl.so.2
	for who in "nccl_$v" "nccl_plain_$v"; do
		[[ $without == *,$who,* ]] || contenders+=("$who")
	done
done
if [ "$ranks" -gt "$gpus" ]; then
	export NCCL_MULTI_RANK_GPU_ENABLE=1
	[ "$ranks" -le 2 ] || export CUDA_DEVICE_MAX_CONNECTIONS=8
	if ! pgrep -f nvidia-cuda-mps-control >/dev/null; then
		mps=$tmp
		export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps
		nvidia-cuda-mps-control -d
	fi
fi
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}

# ---- Runs ----
failed=
json_lines() { # mode file: symccl's JSON has one row a line
	awk -v mode="$1" '
	function after(key) { return substr($0, index($0, key) + length(key)) + 0 }
	/"size": / && !/"size": 0,/ { printf "row %d %s %.4f\n", after("\"size\": "), mode,
		after(/cputime_us/ ? "\"cputime_us\": " : "\"time_us\": ") }' "$2"
}

program() { # contender program options...
	local who=$1 prog=$2 v
	shift 2
	case $who in
	symccl*) timeout 40 "$build/perf/$prog" "$@" ;;
	*)
		v=${who##*_}
		NCCL_PEER_LIB=${lib[$v]} LD_PRELOAD=$tmp/peer-$v.so timeout 40 "$build/perf/$prog" "$@"
		;;
	esac
}

timed() { # round contender collective mode sizes options...
	local round=$1 who=$2 coll=$3 mode=$4 list=$5 buffers=2
	shift 5
	[[ $failed != *",$who $coll $mode,"* ]] || return # it may hang each time
	[[ $who != *plain* ]] || buffers=0
	if ! program "$who" "${coll}_perf" --device cuda -P "$ranks" -R "$buffers" -d float --sizes "$list" \
		-J "$tmp/run.json" "$@" >"$tmp/run.out" 2>&1; then
		echo "gpu.sh: $who, $coll, $mode failed and is left out: $(tail -3 "$tmp/run.out")" >&2
		failed+=",$who $coll $mode,"
		return
	fi
	sed -n 's/.*"commit": "\(.*\)".*/\1/p' "$tmp/run.json" >"$tmp/commit"
	json_lines "$mode" "$tmp/run.json" | sed "s/^/$round $who /"
}

collect() { # collective
	local round who check
	for ((round = 1; round <= rounds; round++)); do
		check=$((round == 1 && checked))
		for who in "${contenders[@]}"; do
			[[ $who = symccl* ]] || check=0 # NCCL adds in another order
			timed "$round" "$who" "$1" graph "$sizes" -G 20 -n 20 -c $check
			[ -z "$eager" ] && continue
			timed "$round" "$who" "$1" eager "$eager" -c 0
			[ "$round" -gt 1 ] || timed 1 "$who" "$1" cpu "$eager" -c 0 -C 1 -n 500
		done
		if [ "$gpus" -ge "$ranks" ] && [ "$1" = all_reduce ] && [ -n "$torch" ]; then
			TORCH_SYMM_MEM_DISABLE_MULTICAST=1 timeout 120 python3 -m torch.distributed.run \
				--nproc-per-node "$ranks" --master-port $((29511 + round)) \
				"$here/torch_peers.py" "$sizes" 2>"$tmp/run.out" | sed -n "s/^row:/$round/p"
		fi
	done
}

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
echo "# $ranks ranks on $gpus x $gpu, $rounds rounds; us; graph: 20 calls in a CUDA graph, 20 launches;"
echo '# eager: calls in a row; cpu: what enqueueing costs the CPU. symccl, nccl: windows (-R 2); plain: -R 0.'
for v in "${!lib[@]}"; do echo "# NCCL $v: ${lib[$v]}"; done
if [ -x "$build/tests/gpu/kernels/kernels" ]; then
	timeout 60 "$root/tests/gpu/kernels.sh" run "$build/tests/gpu/kernels" -n 2 floors | sed -n 's/^floor:/# floor:/p' |
		tee "$tmp/floors"
fi
IFS=, read -ra todo <<<"$collectives"
for coll in "${todo[@]}"; do
	collect "$coll" >"$tmp/lines"
	awk -v coll="$coll" -v json="$tmp/$coll.json" -f "$here/table.awk" "$tmp/lines"
	cat "$tmp/$coll.json" >>"$tmp/parts"
done
if [ -n "$register" ]; then
	for who in symccl "${!lib[@]}"; do
		[ "$who" = symccl ] || who=nccl_$who
		program "$who" register_perf -d cuda 2>&1 | sed "s/^[# ]*/# registration, $who: /"
	done | tee "$tmp/register"
fi
[ -n "$out" ] || exit 0
lines() { # file: a JSON list of its lines
	sed 's/^# *//; s/"/\\"/g; s/.*/"&"/' "$1" 2>/dev/null | paste -sd, | sed 's/^/[/; s/$/]/; s/^$/[]/'
}
{
	printf '{"date": "%s", "host": "%s", "gpus": %d, "gpu": "%s", "commit": "%s", "ranks": %d, "rounds": %d,\n' \
		"$(date -u +%FT%TZ)" "$(hostname)" "$gpus" "$gpu" "$(cat "$tmp/commit")" "$ranks" "$rounds"
	printf '"floors": %s,\n"registration": %s,\n"collectives": [\n' "$(lines "$tmp/floors")" "$(lines "$tmp/register")"
	awk 'NR > 1 { print prev "," } { prev = $0 } END { print prev }' "$tmp/parts"
	echo ']}'
} >"$out"
echo "# written: $out"
