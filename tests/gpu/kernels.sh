#!/bin/bash
# Build the kernels' test programs, or run the first (together.cu runs without arguments):
#   tests/gpu/kernels.sh build DIR      (nvcc; no GPU needed)
#   tests/gpu/kernels.sh run DIR [-n ranks] [-r replays] check wrap abort graph floors time tune
set -e
what=$1 dir=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
cd "$(dirname "$0")/../.."
case $what in
build)
	PATH=$PATH:/usr/local/cuda/bin
	flags="-std=c++17 -Isrc -Isrc/coll/cuda -Itests/gpu"
	target="-gencode arch=compute_90,code=[sm_90,compute_90]"
	{
		for f in src/coll/cuda/*.cu; do
			echo "nvcc -fatbin $target -fmad=false $flags -o $dir/$(basename "$f" .cu).fatbin $f"
		done
		echo "nvcc -O2 -arch=sm_90 $flags -o $dir/kernels tests/gpu/kernels.cu"
		echo "nvcc -O1 -lineinfo -arch=sm_90 -fmad=false $flags -o $dir/together tests/gpu/together.cu"
	} | xargs -P "$(nproc)" -I{} sh -c '{}'
	;;
run)
	CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER "$dir/kernels" "$dir" "$@"
	;;
esac
