#!/bin/bash
# mem.sh BUILDDIR: the driver as symccl believes it to be (conformance), and GPU memory between
# processes, on this machine's GPUs. Takes programs built elsewhere; needs only bash and a driver.
set -u
b=${1:?usage: mem.sh BUILDDIR}
rc=0
nvidia-smi -L 2>/dev/null
nvidia-smi --query-gpu=driver_version,memory.total --format=csv,noheader 2>/dev/null
run() {
	echo "== $*"
	timeout 200 "$@"
	local r=$?
	[ $r -eq 0 ] || [ $r -eq 77 ] || rc=1
	echo "== exit $r"
}
run "$b/tests/cuda_conformance" -v
run "$b/tests/gpu/mem_gpu" 1
run "$b/tests/gpu/mem_gpu" 2
run "$b/tests/gpu/mem_gpu" 4
exit $rc
