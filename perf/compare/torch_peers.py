#!/usr/bin/env python3
# Times PyTorch's NCCL (plain buffers and registered windows) and its symmetric-memory all-reduces as
# tests/gpu/comm_gpu -t times symccl: a graph of 20, the median of 15 replays, the slowest rank. For gpu.sh, under torchrun.
import os, time, statistics, torch, torch.distributed as dist
rank = int(os.environ["RANK"]); n = int(os.environ["WORLD_SIZE"])
dev = torch.device("cuda", rank % torch.cuda.device_count()); torch.cuda.set_device(dev)
dist.init_process_group("nccl", device_id=dev)
def timed(fn):
    fn(); torch.cuda.synchronize(); dist.barrier()
    s = torch.cuda.Stream()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=s):
        for _ in range(20): fn()
    r = []
    for _ in range(15):
        dist.barrier(); torch.cuda.synchronize(); t = time.perf_counter(); g.replay(); torch.cuda.synchronize()
        r.append((time.perf_counter() - t) / 20 * 1e6)
    return statistics.median(r)
def report(name, b, us):
    t = torch.tensor([us], device=dev); dist.all_reduce(t, op=dist.ReduceOp.MAX)
    if rank == 0: print(f"peer: {name:28s} {b:10d} B {t.item():9.2f} us", flush=True)
sizes = [8, 8192, 32768, 131072, 524288, 2 << 20, 8 << 20, 32 << 20, 128 << 20]
if rank == 0: print("torch", torch.__version__, "nccl", torch.cuda.nccl.version())
for b in sizes:
    x = torch.ones(b // 4, device=dev)
    report("nccl all_reduce", b, timed(lambda: dist.all_reduce(x)))
    o = torch.empty(max(b // 4, n), device=dev); i = torch.ones(max(b // 4 // n, 1), device=dev); o2 = torch.empty(i.numel() * n, device=dev)
    report("nccl all_gather", b, timed(lambda: dist.all_gather_into_tensor(o2, i)))
    report("nccl reduce_scatter", b, timed(lambda: dist.reduce_scatter_tensor(i, o2)))
try:
    import torch.distributed._symmetric_memory as symm
    name = dist.group.WORLD.group_name
    for b in sizes:
        x = symm.empty(b // 4, device=dev, dtype=torch.float32); symm.rendezvous(x, name); x.fill_(1)
        if b <= 2 << 20: report("symm one_shot_all_reduce", b, timed(lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", name)))
        if b >= 8192: report("symm two_shot_all_reduce_", b, timed(lambda: torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", name)))
except Exception as e:
    print("symmetric memory:", repr(e)[:300], flush=True)
try:
    # NCCL windows (-R 2): memory of ncclMemAlloc, registered symmetric
    be = dist.group.WORLD._get_backend(dev)
    pool = torch.cuda.MemPool(be.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(32 << 20, device=dev); y = torch.ones(32 << 20, device=dev)
    try: be.register_mem_pool(pool, symm=True)
    except TypeError: be.register_mem_pool(pool)
    for b in sizes:
        v = x[: b // 4]
        report("nccl all_reduce windows", b, timed(lambda: dist.all_reduce(v)))
        c = max(b // 4 // n, 1)
        report("nccl all_gather windows", b, timed(lambda: dist.all_gather_into_tensor(y[: c * n], x[:c])))
        report("nccl reduce_scatter windows", b, timed(lambda: dist.reduce_scatter_tensor(x[:c], y[: c * n])))
except Exception as e:
    print("windows:", repr(e)[:300], flush=True)
dist.destroy_process_group()
