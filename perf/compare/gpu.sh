#!/bin/bash
# gpu.sh BUILDDIR [ranks]: symccl and what PyTorch has, side by side on this machine's GPUs, one process a
# rank (2). Prints both and, for each collective and size that both have, the best peer's time over symccl's (above
# 1: symccl is faster). Several ranks on one GPU: start MPS first; NCCL refuses that, so only symccl is timed then.
set -eu -o pipefail
build=$(cd "${1:?usage: gpu.sh BUILDDIR [ranks]}" && pwd)
ranks=${2:-2}
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp)
trap 'rm -f "$out"' EXIT

timeout 300 "$build/tests/gpu/comm_gpu" -P "$ranks" -t | tee "$out"
if [ "$(nvidia-smi -L | grep -c ^GPU)" -ge "$ranks" ]; then
	timeout 300 python3 -m torch.distributed.run --nproc-per-node "$ranks" --master-port 29511 \
		"$here/torch_peers.py" 2>/dev/null | tee -a "$out"
fi
echo
echo 'collective            bytes   symccl us    best peer us  ratio  peer'
awk '
function kind(s) {
	if (s ~ /all_reduce/ || s == "AllReduce") return "AllReduce"
	if (s ~ /all_gather/ || s == "AllGather") return "AllGather"
	return "ReduceScatter"
}
$1 == "time:" && $5 == "window" { own[kind($2), $3] = $6; order[++n] = kind($2) SUBSEP $3 }
$1 == "peer:" {
	us = $(NF - 1); bytes = $(NF - 3); name = $2 " " $3 ($4 == "windows" ? " windows" : "")
	k = kind(name) SUBSEP bytes
	if (!(k in best) || us < best[k]) { best[k] = us; who[k] = name }
}
END {
	for (i = 1; i <= n; i++) {
		k = order[i]
		if (!(k in best)) continue
		split(k, a, SUBSEP)
		printf "%-14s %12d %11.2f %15.2f %6.2f  %s\n", a[1], a[2], own[k], best[k], best[k] / own[k], who[k]
	}
	exit 0
}' "$out"
