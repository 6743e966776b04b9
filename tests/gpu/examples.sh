#!/bin/bash
# examples.sh BUILDDIR: the device API's examples, which check their values and time themselves, and a
# test of what they leave out: ranks as streams, as processes under MPS, and one under each tool of the
# sanitizer.
set -u
b=${1:?usage: examples.sh BUILDDIR}
bad=0
names="tests/gpu/device_calls examples/device_one_shot examples/device_rms_norm
	examples/device_all_to_all"
export CUDA_MODULE_LOADING=EAGER

run() {
	echo "== ${*##*/}"
	timeout 120 "$@" || { echo "exit $?: $*"; bad=1; }
}
# job RANKS PROGRAM: one process a rank
job() {
	local r pids=() port=$((20000 + RANDOM % 10000))
	echo "== $1 processes: ${2##*/}"
	for ((r = 0; r < $1; r++)); do
		SYMCCL_RANK=$r SYMCCL_NRANKS=$1 SYMCCL_COMM_ID=127.0.0.1:$port timeout 120 "$2" &
		pids+=($!)
	done
	for r in "${pids[@]}"; do
		wait "$r" || { echo "exit $?: $2, $1 processes"; bad=1; }
	done
}

for name in $names; do
	for n in 1 2 4; do
		CUDA_DEVICE_MAX_CONNECTIONS=32 run "$b/${name}_gpu" -n $n
	done
done
mps=
if [ "$(nvidia-smi -L | grep -c ^GPU)" = 1 ] && ! pgrep -f nvidia-cuda-mps-control >/dev/null; then
	mps=$(mktemp -d)
	export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps
	nvidia-cuda-mps-control -d
fi
for name in $names; do
	for n in 2 4; do
		CUDA_DEVICE_MAX_CONNECTIONS=8 job $n "$b/${name}_gpu"
	done
done
if [ -n "$mps" ]; then
	echo quit | nvidia-cuda-mps-control
	rm -rf "$mps"
	unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
if command -v compute-sanitizer >/dev/null; then
	for name in $names; do
		for tool in "memcheck --report-api-errors no" synccheck racecheck; do
			run compute-sanitizer --tool $tool --error-exitcode 1 "$b/${name}_gpu" -n 1 -c
		done
	done
fi
exit $bad
