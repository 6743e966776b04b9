#!/usr/bin/env python3
"""PyTorch's ProcessGroupNCCL over symccl: every c10d collective against Gloo's, training with DDP
and FSDP2 against one process on the joined batch, graphs, memory pools, split groups, a killed rank.

    symccl-run nccl_torch.py [-n RANKS] [PART...]

Ranks share GPU 0 when there are fewer GPUs than ranks (under MPS, else it is slow). One line a part;
exit 1 when any differs.
"""
import argparse
import datetime
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
         torch.int32, torch.int64]
COUNT = 1021


def inputs(dtype, n, salt, size=COUNT):
    """Every rank's input, the same on all ranks; small integers, so that sums are exact."""
    g = torch.Generator().manual_seed(salt)
    return [torch.randint(0, 4, (size,), generator=g).to(dtype) for _ in range(n)]


class Rank:
    def __init__(self, rank, n):
        self.rank, self.n = rank, n
        self.dev = torch.device("cuda", rank % torch.cuda.device_count())
        self.gloo = None

    def mine(self, dtype, salt, size=COUNT):
        return inputs(dtype, self.n, salt, size)[self.rank].to(self.dev)

    def same(self, what, got, want):
        if not torch.equal(got.cpu(), want.cpu()):
            raise AssertionError(f"{what}: {got.cpu()[:4]}... instead of {want.cpu()[:4]}...")


def part_reduce(r):
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    for t in TYPES:
        for i, op in enumerate(ops):
            ours, theirs = r.mine(t, i), r.mine(t, i).cpu()
            dist.all_reduce(ours, op)
            half = t in (torch.float16, torch.bfloat16)  # Gloo lacks some
            if half:
                x = torch.stack([v.float() for v in inputs(t, r.n, i)])
                theirs = {0: x.sum(0), 1: x.prod(0), 2: x.min(0).values,
                          3: x.max(0).values}[i].to(t)
            else:
                dist.all_reduce(theirs, op, group=r.gloo)
            r.same(f"all_reduce {t} {op}", ours, theirs)
        if t.is_floating_point:
            ours = r.mine(t, 9)
            dist.all_reduce(ours, dist.ReduceOp.AVG)
            want = torch.stack([v.double() for v in inputs(t, r.n, 9)]).sum(0) / r.n
            if not torch.allclose(ours.double().cpu(), want, rtol=1e-2):
                raise AssertionError(f"avg {t}")
        ours = r.mine(t, 5)
        dist.reduce(ours, r.n - 1)
        if r.rank == r.n - 1:
            r.same(f"reduce {t}", ours, torch.stack(inputs(t, r.n, 5)).sum(0).to(t))
        out = torch.empty(COUNT, dtype=t, device=r.dev)
        dist.reduce_scatter_tensor(out, r.mine(t, 6, COUNT * r.n))
        want = torch.stack(inputs(t, r.n, 6, COUNT * r.n)).sum(0).to(t)
        r.same(f"reduce_scatter {t}", out, want[r.rank * COUNT:(r.rank + 1) * COUNT])


def part_move(r):
    n, me = r.n, r.rank
    for t in TYPES:
        all_in = inputs(t, n, 11)
        x = r.mine(t, 11)
        dist.broadcast(x, n - 1)
        r.same("broadcast", x, all_in[n - 1])
        out = [torch.empty(COUNT, dtype=t, device=r.dev) for _ in range(n)]
        dist.all_gather(out, r.mine(t, 11))
        r.same("all_gather", torch.cat(out), torch.cat(all_in))
        flat = torch.empty(COUNT * n, dtype=t, device=r.dev)
        dist.all_gather_into_tensor(flat, r.mine(t, 11))
        r.same("all_gather_into_tensor", flat, torch.cat(all_in))
        big = inputs(t, n, 12, COUNT * n)
        out = torch.empty(COUNT * n, dtype=t, device=r.dev)
        dist.all_to_all_single(out, big[me].to(r.dev))
        r.same("all_to_all_single", out,
               torch.cat([big[q][me * COUNT:(me + 1) * COUNT] for q in range(n)]))
        # Unequal: rank q sends (q + p + 1) * 7 elements to rank p.
        send = [(me + p + 1) * 7 for p in range(n)]
        out = torch.empty(sum(send), dtype=t, device=r.dev)
        dist.all_to_all_single(out, big[me][:sum(send)].to(r.dev), send, send)
        want = []
        for q in range(n):
            at = sum((q + p + 1) * 7 for p in range(me))
            want.append(big[q][at:at + (q + me + 1) * 7])
        r.same("all_to_all_single, unequal", out, torch.cat(want))
        g = [torch.empty(COUNT, dtype=t, device=r.dev) for _ in range(n)] if me == 0 else None
        dist.gather(r.mine(t, 11), g, 0)
        if me == 0:
            r.same("gather", torch.cat(g), torch.cat(all_in))
        x = torch.empty(COUNT, dtype=t, device=r.dev)
        dist.scatter(x, [v.to(r.dev) for v in all_in] if me == 0 else None, 0)
        r.same("scatter", x, all_in[me])
    dist.barrier()


def part_p2p(r):
    n, me = r.n, r.rank
    x, y = r.mine(torch.float32, 21), torch.empty(COUNT, device=r.dev)
    nxt, prv = (me + 1) % n, (me - 1) % n
    for _ in range(3):
        ops = [dist.P2POp(dist.isend, x, nxt), dist.P2POp(dist.irecv, y, prv)]
        for w in dist.batch_isend_irecv(ops):
            w.wait()
        r.same("batch_isend_irecv", y, inputs(torch.float32, n, 21)[prv])
    if n > 1 and me < 2:
        if me == 0:
            dist.send(x, 1)
        else:
            dist.recv(y, 0)
            r.same("recv", y, inputs(torch.float32, n, 21)[0])
    big = torch.full((5_000_000,), float(me), device=r.dev)
    got = torch.empty_like(big)
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, big, nxt),
                                     dist.P2POp(dist.irecv, got, prv)]):
        w.wait()
    r.same("20 MB", got, torch.full((5_000_000,), float(prv)))


def part_graph(r):
    x = torch.ones(4096, device=r.dev)
    out = torch.empty_like(x)
    dist.all_reduce(out.copy_(x))
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        out.copy_(x)
        dist.all_reduce(out)
        out.add_(1)
        dist.all_reduce(out)
    for i in range(50):
        x.fill_(float(i % 7))
        g.replay()
        if i % 10 == 9:
            torch.cuda.synchronize()
            r.same("a captured pair", out, torch.full_like(out, (i % 7 * r.n + 1) * r.n))


ALLOCATOR = r"""
#include <stddef.h>
int ncclMemAlloc(void **, size_t);
int ncclMemFree(void *);
void *take(size_t n, int device, void *stream) { void *p; return ncclMemAlloc(&p, n) ? 0 : p; }
void give(void *p, size_t n, int device, void *stream) { ncclMemFree(p); }
"""


def nccl_allocator():
    """PyTorch's own over ncclMemAlloc wants a GPU with multicast; this is how vLLM does without."""
    d = tempfile.mkdtemp()
    with open(f"{d}/a.c", "w") as f:
        f.write(ALLOCATOR)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{d}/a.so", f"{d}/a.c"], check=True,
                   env={k: v for k, v in os.environ.items() if not k.startswith("LD_")})
    return torch.cuda.memory.CUDAPluggableAllocator(f"{d}/a.so", "take", "give").allocator()


def part_pool(r):
    backend = dist.group.WORLD._get_backend(r.dev)
    # Communicators are made by the first collective.
    dist.all_reduce(torch.ones(1, device=r.dev))
    pool = torch.cuda.MemPool(nccl_allocator())
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((1 << 20,), float(r.rank + 1), device=r.dev)
    backend.register_mem_pool(pool, symm=True)
    for i in range(3):
        x.fill_(float(r.rank + 1 + i))
        dist.all_reduce(x)
        want = r.n * (r.n + 1) / 2 + i * r.n
        r.same("all_reduce in a pool", x, torch.full((1 << 20,), want))
    backend.deregister_mem_pool(pool)
    del x


def part_split(r):
    half = dist.new_group(list(range(0, r.n, 2)))
    if r.rank % 2 == 0:
        x = torch.ones(8, device=r.dev)
        dist.all_reduce(x, group=half)
        r.same("a group", x, torch.full((8,), float((r.n + 1) // 2)))
    split = dist.split_group(split_ranks=[list(range(r.n))])
    x = torch.ones(8, device=r.dev)
    dist.all_reduce(x, group=split)
    r.same("a split group", x, torch.full((8,), float(r.n)))


def model():
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.TransformerEncoder(layer, 2),
                               torch.nn.Linear(32, 1))


def losses(net, x, y, each):
    """20 steps of SGD; `each` averages a loss over the ranks."""
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    out = []
    for _ in range(20):
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        out.append(each(loss.detach()))
    return torch.tensor(out)


def part_train(r):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    g = torch.Generator().manual_seed(4)
    x = torch.randn(4 * r.n, 8, 16, generator=g).to(r.dev)
    y = x.sum(-1, keepdim=True)
    want = losses(model().to(r.dev), x, y, float)
    mine = slice(4 * r.rank, 4 * r.rank + 4)

    def mean(v):
        dist.all_reduce(v, dist.ReduceOp.AVG)
        return float(v)

    ddp = DistributedDataParallel(model().to(r.dev), device_ids=[r.dev.index])
    got = losses(ddp, x[mine], y[mine], mean)
    if not torch.allclose(got, want, rtol=1e-3):
        raise AssertionError(f"DDP: {got} instead of {want}")
    net = model().to(r.dev)
    for m in net[1].layers:
        fully_shard(m)
    fully_shard(net)
    got = losses(net, x[mine], y[mine], mean)
    if not torch.allclose(got, want, rtol=1e-3):
        raise AssertionError(f"FSDP2: {got} instead of {want}")


def part_kill(r):
    """The last rank dies; the others' next collective must fail soon."""
    dist.all_reduce(torch.ones(1, device=r.dev))
    torch.cuda.synchronize()
    if r.rank == r.n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    t0 = time.time()
    try:
        w = dist.all_reduce(torch.ones(1 << 20, device=r.dev), async_op=True)
        while not w.is_completed() and time.time() - t0 < 60:
            time.sleep(0.05)
        w.wait()
        torch.cuda.synchronize()
    except Exception:  # whatever PyTorch makes of it
        pass
    took = time.time() - t0
    print(f"    rank {r.rank} went on {took:.1f} s after the death", flush=True)
    os._exit(0 if took < 30 else 1)


PARTS = {k[5:]: v for k, v in list(globals().items()) if k.startswith("part_")}


def rank_main(rank, n, port, part):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    r = Rank(rank, n)
    torch.cuda.set_device(r.dev)
    try:
        dist.init_process_group("nccl", rank=rank, world_size=n, device_id=r.dev,
                                timeout=datetime.timedelta(seconds=60))
        r.gloo = dist.new_group(backend="gloo")
        PARTS[part](r)
        torch.cuda.synchronize()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-n", type=int, default=2)
    p.add_argument("parts", nargs="*", default=[])
    a = p.parse_args()
    bad = 0
    ctx = mp.get_context("spawn")
    for part in a.parts or PARTS:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        t0 = time.time()
        ps = [ctx.Process(target=rank_main, args=(i, a.n, port, part)) for i in range(a.n)]
        for q in ps:
            q.start()
        for q in ps:
            q.join(150)
        codes = [q.exitcode for q in ps]
        for q in ps:
            if q.is_alive():
                q.kill()
        want = [0] * a.n
        if part == "kill":
            want[-1] = -signal.SIGKILL
        ok = codes == want
        bad |= not ok
        print(f"{part:8} {'ok' if ok else f'FAILED {codes}'}  {time.time() - t0:.0f} s", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
