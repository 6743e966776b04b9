#!/bin/bash
# check.sh BUILDDIR [-t]: everything that needs a GPU, on whatever GPUs are here. Skips (77) without one.
# -t: times, too. Starts MPS for the tests with several processes, if nobody has, and stops it again.
set -u
b=${1:?usage: check.sh BUILDDIR [-t]}
timed=${2:-}
here=$(dirname "$0")
bad=()

run() {
	echo "== $*"
	timeout 300 "$@"
	local rc=$?
	[ $rc = 0 ] || bad+=("exit $rc: $*")
}

command -v nvidia-smi >/dev/null && nvidia-smi -L | grep -q GPU || {
	echo 'check-gpu: no GPU here'
	exit 77
}
gpus=$(nvidia-smi -L | grep -c ^GPU)
run "$here/mem.sh" "$b"
if [ -x "$b/tests/gpu/kernels/kernels" ]; then
	for n in 1 2 3 4 8; do
		run "$here/kernels.sh" run "$b/tests/gpu/kernels" -n $n check wrap abort graph
	done
	[ -z "$timed" ] || run "$here/kernels.sh" run "$b/tests/gpu/kernels" -n 2 floors time
fi
for n in 1 2 4 8; do
	run "$b/tests/gpu/comm_gpu" -g $n $timed
	run "$b/tests/gpu/comm_gpu_calls" -g $n -n 20 $timed
done
run "$b/tests/gpu/order_gpu" $timed
mps=
if [ "$gpus" = 1 ] && ! pgrep -f nvidia-cuda-mps-control >/dev/null; then
	mps=$(mktemp -d)
	export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps
	nvidia-cuda-mps-control -d
fi
for n in 2 4; do
	run "$b/tests/gpu/comm_gpu" -P $n $timed
	run "$b/tests/gpu/comm_gpu_calls" -P $n -n 20
done
run "$b/tests/gpu/comm_gpu" -P 2 -g 2
if [ -n "$mps" ]; then
	echo quit | nvidia-cuda-mps-control
	rm -rf "$mps"
fi
[ ! -x "$b/examples/device_one_shot_gpu" ] || run "$here/examples.sh" "$b"
if command -v compute-sanitizer >/dev/null; then
	# All ranks as CTAs of one launch: what they do to each other's memory.
	for n in 1 2 4; do
		[ -x "$b/tests/gpu/kernels/together" ] || continue
		for tool in memcheck synccheck racecheck; do
			run compute-sanitizer --tool $tool --error-exitcode 1 "$b/tests/gpu/kernels/together" -n $n 60
		done
	done
	# Instrumented kernels run one at a time, so ranks cannot wait for each other: one rank.
	# Looking a kernel up in one image after another is no error.
	for tool in "memcheck --report-api-errors no" synccheck racecheck; do
		run compute-sanitizer --tool $tool --error-exitcode 1 "$b/tests/gpu/comm_gpu" -g 1 -r 2
		run compute-sanitizer --tool $tool --error-exitcode 1 "$b/tests/gpu/comm_gpu_calls" -g 1 -n 2 -r 2
	done
fi
if [ ${#bad[@]} -gt 0 ]; then
	printf 'check-gpu: FAILED: %s\n' "${bad[@]}"
	exit 1
fi
echo 'check-gpu: all right'
