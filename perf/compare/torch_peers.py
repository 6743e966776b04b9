#!/usr/bin/env python3
# Times PyTorch's symmetric-memory all-reduces as all_reduce_perf -G 20 -n 20 times symccl: a graph of 20 calls, launched
# 20 times, an event between launches; the median launch, the mean over ranks. For gpu.sh, under torchrun:
# torch_peers.py SIZES prints "row: name row bytes graph us".
import os, statistics, sys
import torch, torch.distributed as dist
import torch.distributed._symmetric_memory as symm

CALLS, LAUNCHES = 20, 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
rank = int(os.environ["RANK"])
dev = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(dev)
dist.init_process_group("nccl", device_id=dev)
group = dist.group.WORLD.group_name
stream = torch.cuda.Stream()


def size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def timed(call):
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                call()
        graph.replay()
        stream.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(LAUNCHES + 1)]
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
        torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e3 / CALLS for a, b in zip(marks, marks[1:])]


def report(name, nbytes, call):
    us = torch.tensor(timed(call), device=dev)
    dist.all_reduce(us)
    if rank == 0:
        us /= dist.get_world_size()
        print(f"row: {name} row {nbytes} graph {statistics.median(us.tolist()):.4f}", flush=True)


sizes = [size(s) for s in sys.argv[1].split(",")]
space = symm.empty(max(sizes) // 4, device=dev, dtype=torch.float32)
symm.rendezvous(space, group)
for b in sizes:
    x = space[: b // 4].fill_(1)
    if b <= 2 << 20:
        report("torch_one_shot", b, lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group))
    if b >= 8192:
        report("torch_two_shot", b, lambda: torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", group))
dist.destroy_process_group()
