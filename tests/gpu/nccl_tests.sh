#!/bin/bash
# nccl_tests.sh O NCCL_TESTS_BUILD [RANKS]: NVIDIA's nccl-tests (built with MPI=1) over symccl, ranks as
# processes, on GPU 0 when there are fewer GPUs than ranks (start MPS before). Values are checked by
# the programs themselves; one line a run, exit 1 when any is wrong or fails.
set -u
O=$(cd "$1" && pwd) tests=$2 n=${3:-2}
rc=0
[ "$(nvidia-smi -L | wc -l)" -ge "$n" ] || export NCCL_TESTS_DEVICE=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

one() { # program, options...
	local prog=$1 out
	shift
	out=$(timeout 120 mpirun --oversubscribe --bind-to none -np "$n" "$O/bin/symccl-run" \
		"$tests/${prog}_perf" -g 1 -c 1 -n 2 -w 1 "$@" 2>&1)
	if grep -q "Out of bounds values : 0 OK" <<<"$out"; then
		echo "ok    $prog $*"
	else
		echo "WRONG $prog $*"
		tail -20 <<<"$out" | sed 's/^/      /'
		rc=1
	fi
}

for r in 2 0 1; do
	one all_reduce -R $r -b 8 -e 8M -f 32 -d all -o all
	one reduce_scatter -R $r -b 16 -e 8M -f 32 -d all -o all
	one reduce -R $r -b 8 -e 8M -f 32 -d all -o all -r 1
	for p in all_gather alltoall broadcast gather scatter; do
		one $p -R $r -b 16 -e 32M -f 8 -d all
	done
	one sendrecv -R $r -b 8 -e 32M -f 8 -d all
	one hypercube -R $r -b 8 -e 8M -f 32
	[ -x "$tests/alltoallv_perf" ] && one alltoallv -R $r -b 8 -e 8M -f 32
done
for p in all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv; do
	one $p -R 2 -b 8 -e 8M -f 32 -G 5
done
one all_reduce -R 2 -b 128M -e 128M
one all_reduce -R 0 -b 128M -e 128M
exit $rc
