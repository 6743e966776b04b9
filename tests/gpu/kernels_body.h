/*
 * Every kernel against the reference: for the GPU program (kernels.cu) and for the one that runs
 * the same kernels on threads of a CPU (kernels_cpu.cc). Either provides the machine_* functions.
 */
#ifndef KERNELS_BODY_H
#define KERNELS_BODY_H

#include <stdio.h>
#include <stdlib.h>
#include "reference.h"

#define WORLD_MAX 10

/* Rank r's memory is at machine_base() + r * machine_stride(): control block, input, output. */
uint64_t machine_base();
uint64_t machine_stride();
void machine_put(uint64_t to, const void *from, size_t n);
void machine_get(void *to, uint64_t from, size_t n);
void machine_zero(uint64_t to, size_t n);
/* The abort word and the records, as kernels see them and as the host does. */
uint64_t machine_abort();
uint64_t machine_record(int rank);
volatile uint32_t *machine_abort_host();
volatile struct dev_record *machine_record_host(int rank);
/* Queue a kernel on a rank; run all that is queued to the end. */
void machine_launch(
	int rank, const char *kernel, const struct cuda_args *args, int ctas, int threads);
void machine_run();

struct region {
	uint64_t in, out; /* offsets in a rank's memory */
	size_t bytes;     /* of each */
	uint64_t scratch; /* and of the scratch, which ends where the input begins */
};

static const char *const type_names[R_TYPES] = {
	"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
static const char *const class_names[R_TYPES] = {
	"u8", "u8", "u32", "u32", "u64", "u64", "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
static const char *const op_names[R_OPS] = {"sum", "prod", "max", "min", "avg", "premul"};
static const char *const op_kernels[R_OPS] = {"sum", "prod", "min", "min", "sum", "sum"};
/* What struct test_case describes; the others have tests of their own. */
#define CASE_ALGOS (CUDA_BARRIER + 1)
static const char *const algo_names[CASE_ALGOS] = {"allreduce_oneshot", "allreduce_twostep",
	"allreduce_direct", "reduce_staged", "reducescatter_packet", "reducescatter_direct",
	"reduce_staged", "allgather_packet", "allgather_direct", "allgather_staged", "barrier"};

static int algo_reduces(int algo)
{
	return algo < CUDA_ALLGATHER_PACKET;
}
static int algo_is_staged(int algo)
{
	return algo == CUDA_ALLREDUCE_STAGED || algo == CUDA_REDUCESCATTER_STAGED ||
	       algo == CUDA_ALLGATHER_STAGED;
}

struct test_case {
	int algo, type, op, n, ctas, threads, in_place, fixed;
	size_t count, skew_in, skew_out; /* bytes past alignment */
	size_t part;                     /* of a staged kernel; 0: 16 */
	uint64_t seed;
};

static void kernel_name(char *buf, size_t len, const struct test_case *c)
{
	int has_fixed = c->n == 2 || c->n == 4 || c->n == 8;

	if (c->algo >= CUDA_ALLGATHER_DIRECT) {
		snprintf(buf, len, "symccl_%s", algo_names[c->algo]);
		return;
	}
	if (c->algo == CUDA_ALLGATHER_PACKET) {
		snprintf(buf, len, c->fixed && has_fixed ? "symccl_%s_%d" : "symccl_%s",
			algo_names[c->algo], c->n);
		return;
	}
	has_fixed &= (c->type == R_F16 || c->type == R_BF16 || c->type == R_F32) &&
		     (c->op == R_SUM || c->op == R_AVG || c->op == R_PREMUL);
	snprintf(buf, len, c->fixed && has_fixed ? "symccl_%s_%s_%s_%d" : "symccl_%s_%s_%s",
		algo_names[c->algo], class_names[c->type], op_kernels[c->op], c->n);
}

static uint64_t rng_state = 88172645463325252ull;
static uint64_t rng()
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return rng_state * 2685821657736338717ull;
}

/* An element: anything at all now and then, else a number of moderate size. */
static uint64_t random_element(int type)
{
	uint64_t r = rng(), mask = ~0ull >> (64 - 8 * ref_size[type]);

	if (!ref_is_float(type) || r % 8 == 0)
		return rng() & mask;
	return ref_encode(type, (double)((int64_t)(r >> 8) % 4096 - 2048) / 256.0);
}
static uint64_t element_get(const char *p, int type, size_t i)
{
	uint64_t v = 0;

	memcpy(&v, p + i * ref_size[type], ref_size[type]);
	return v;
}
static void element_set(char *p, int type, size_t i, uint64_t v)
{
	memcpy(p + i * ref_size[type], &v, ref_size[type]);
}

static struct dev_layout world_layout;
static struct region world_region;
static uint32_t world_hash = 1;

static void world_init(int n, uint64_t slots)
{
	world_layout = dev_layout((uint32_t)n, slots);
	for (int r = 0; r < n; r++) {
		machine_zero(machine_base() + r * machine_stride(), dev_ctrl_bytes(&world_layout));
		memset((void *)machine_record_host(r), 0, sizeof(struct dev_record));
	}
	*machine_abort_host() = 0;
}

static struct cuda_args case_args(const struct test_case *c, int rank, const uint64_t *factor)
{
	struct cuda_args a;
	uint64_t base = machine_base(), mine = base + rank * machine_stride();
	uint64_t in = world_region.in + 16 + c->skew_in, out = world_region.out + 16 + c->skew_out;
	size_t elem = algo_reduces(c->algo) ? ref_size[c->type] : 1;
	int direct = c->algo == CUDA_ALLREDUCE_DIRECT || c->algo == CUDA_REDUCESCATTER_DIRECT ||
		     c->algo == CUDA_ALLGATHER_DIRECT;

	memset(&a, 0, sizeof(a));
	a.team.ctrl = base;
	a.team.stride = machine_stride();
	a.team.layout = world_layout;
	a.team.rank = rank;
	a.team.nranks = c->n;
	a.watch.abort = machine_abort();
	a.watch.record = machine_record(rank);
	a.watch.timeout_ns = 10000000000ull;
	a.watch.hash = world_hash;
	a.watch.look_every = 1024;
	a.count = c->count;
	a.in_stride = a.out_stride = machine_stride();
	if (algo_is_staged(c->algo)) {
		a.in_stride = world_region.scratch;
		a.out_stride = c->part ? c->part : 16;
	}
	if (c->algo == CUDA_ALLREDUCE_STAGED)
		a.mode |= CUDA_MODE_WHOLE;
	a.in = direct && c->algo != CUDA_ALLGATHER_DIRECT ? base + in : mine + in;
	a.out = direct && c->algo != CUDA_REDUCESCATTER_DIRECT ? base + out : mine + out;
	if (c->in_place && c->algo < CUDA_REDUCESCATTER_PACKET)
		a.in = a.out;
	else if (c->in_place && c->algo < CUDA_ALLGATHER_PACKET)
		a.out = mine + in + rank * c->count * elem;
	else if (c->in_place)
		a.in = mine + out + rank * c->count;
	if (c->op == R_AVG)
		a.mode |= CUDA_MODE_AVG;
	if (c->op == R_PREMUL)
		a.mode |= CUDA_MODE_PREMUL;
	if (c->op == R_MAX)
		a.mode |= CUDA_MODE_MAX;
	if (algo_reduces(c->algo) && ref_is_signed(c->type))
		a.mode |= CUDA_MODE_SIGNED;
	if (factor)
		a.factor = factor[rank];
	return a;
}

static void case_print(const struct test_case *c, const char *what)
{
	char name[96];

	kernel_name(name, sizeof(name), c);
	printf("WRONG %s: type %s op %s n %d ctas %d count %zu skew %zu %zu in place %d: %s\n",
		name, type_names[c->type], op_names[c->op], c->n, c->ctas, c->count, c->skew_in,
		c->skew_out, c->in_place, what);
	fflush(stdout);
}

/* One call on all ranks. Returns the number of wrong ranks. */
static int case_run(const struct test_case *c)
{
	static char *in[WORLD_MAX], *out[WORLD_MAX];
	const size_t guard = 32, elem = algo_reduces(c->algo) ? ref_size[c->type] : 1;
	const size_t part = c->count * elem, whole = part * c->n;
	const int gather = c->algo >= CUDA_ALLGATHER_PACKET,
		  all = c->algo < CUDA_REDUCESCATTER_PACKET;
	const size_t in_bytes = all || gather ? part : whole, out_bytes = gather ? whole : part;
	uint64_t factor[WORLD_MAX];
	const size_t poison = (in_bytes > out_bytes ? in_bytes : out_bytes) + 2 * guard;
	char name[96], text[160];
	int wrong = 0;

	kernel_name(name, sizeof(name), c);
	for (int r = 0; r < c->n; r++) {
		struct cuda_args a;

		if (!in[r]) {
			in[r] = (char *)malloc(world_region.bytes);
			out[r] = (char *)malloc(world_region.bytes);
		}
		factor[r] = random_element(c->type);
		for (size_t i = 0; i < in_bytes / elem; i++)
			element_set(in[r], algo_reduces(c->algo) ? c->type : R_U8, i,
				random_element(algo_reduces(c->algo) ? c->type : R_U8));
		a = case_args(c, r, factor);
		/* poison, then the input, which may lie in the output */
		memset(out[r], 0xa5, poison);
		machine_put(
			machine_base() + r * machine_stride() + world_region.out, out[r], poison);
		machine_put(
			machine_base() + r * machine_stride() + world_region.in, out[r], poison);
		if (c->algo == CUDA_ALLREDUCE_DIRECT || c->algo == CUDA_REDUCESCATTER_DIRECT)
			machine_put(a.in + r * machine_stride(), in[r], in_bytes);
		else if (c->algo != CUDA_BARRIER)
			machine_put(a.in, in[r], in_bytes);
	}
	for (int r = 0; r < c->n; r++) {
		struct cuda_args a = case_args(c, r, factor);

		machine_launch(r, name, &a, c->ctas, c->threads);
	}
	machine_run();
	world_hash++;
	for (int r = 0; r < c->n; r++) {
		struct cuda_args a = case_args(c, r, factor);
		uint64_t at = a.out;
		size_t bad = (size_t)-1;
		uint64_t got = 0, want = 0;

		if (machine_record_host(r)->state) {
			snprintf(text, sizeof(text), "rank %d left: code %u peer %u cta %u", r,
				machine_record_host(r)->code, machine_record_host(r)->peer,
				machine_record_host(r)->cta);
			case_print(c, text);
			return 1;
		}
		if (c->algo == CUDA_BARRIER)
			continue;
		if (c->algo == CUDA_ALLREDUCE_DIRECT || c->algo == CUDA_ALLGATHER_DIRECT)
			at += r * machine_stride();
		/* with a guard on either side, where nothing of the input lies */
		machine_get(out[r], at - 16, out_bytes + 32);
		for (size_t i = 0; i < out_bytes / elem && bad == (size_t)-1; i++) {
			if (gather) {
				want = (unsigned char)in[i / part][i % part];
				got = (unsigned char)out[r][16 + i];
			} else {
				uint64_t x[WORLD_MAX];

				for (int q = 0; q < c->n; q++)
					x[q] = element_get(
						in[q], c->type, all ? i : r * c->count + i);
				want = ref_reduce(c->type, c->op, x, factor, c->n);
				got = element_get(out[r] + 16, c->type, i);
			}
			if (want != got)
				bad = i;
		}
		if (bad != (size_t)-1) {
			snprintf(text, sizeof(text), "rank %d element %zu is %llx, not %llx", r,
				bad, (unsigned long long)got, (unsigned long long)want);
			case_print(c, text);
			wrong++;
		}
		for (int i = 0; i < 16 && !(c->in_place && !all); i++)
			if ((unsigned char)out[r][i] != 0xa5 ||
				(unsigned char)out[r][16 + out_bytes + i] != 0xa5) {
				snprintf(text, sizeof(text), "rank %d wrote past its buffer (%d)",
					r, i);
				case_print(c, text);
				wrong++;
				break;
			}
	}
	return wrong;
}

/* A staged kernel's part: the most that there is scratch for; mostly so small that there are many
 * chunks. */
static size_t part_most(const struct test_case *c)
{
	return (world_region.in - world_region.scratch) /
	       cuda_staged_bytes((enum cuda_algo)c->algo, c->n, c->ctas, 16) * 16;
}
static size_t part_random(const struct test_case *c)
{
	size_t part = 16 * (1 + rng() % (rng() % 4 == 0 ? 256 : 8)), most = part_most(c);

	return part < most ? part : most;
}

/* All kernels, types, operators; sizes, alignments and grids from lists. Returns wrong cases. */
static long cases_run(const int *ranks, int nranks, const size_t *counts, int ncounts,
	const int *grids, int ngrids, uint64_t slots, long *done)
{
	static const size_t skews[][2] = {{0, 0}, {8, 8}, {4, 4}, {0, 4}, {1, 1}, {3, 5}};
	static const int threads[] = {32, 128, 512, 512};
	long wrong = 0;

	for (int ri = 0; ri < nranks; ri++) {
		int n = ranks[ri];

		world_init(n, slots);
		for (int algo = 0; algo <= CUDA_BARRIER && wrong < 20; algo++)
			for (int type = 0; type < (algo_reduces(algo) ? R_TYPES : 1); type++)
				for (int op = 0; op < (algo_reduces(algo) ? R_OPS : 1); op++)
					for (int ci = 0; ci < ncounts; ci++) {
						struct test_case c;

						if (counts[ci] > 10000 &&
							op != (type + algo) % R_OPS)
							continue; /* slow for the reference */
						memset(&c, 0, sizeof(c));
						c.algo = algo;
						c.type = type;
						c.op = op;
						c.n = n;
						c.count = counts[ci];
						c.ctas = algo == CUDA_BARRIER
								 ? 1
								 : grids[rng() % ngrids];
						c.threads = threads[rng() % 4];
						c.part = part_random(&c);
						c.in_place = (int)(rng() % 3 == 0);
						c.fixed = (int)(rng() % 4 != 0);
						c.skew_in = skews[rng() % 6][0];
						c.skew_out = c.skew_in;
						if (rng() % 4 == 0)
							c.skew_out = skews[rng() % 6][1];
						if (cuda_slots_needed((enum cuda_algo)algo, n,
							    c.count *
								    (algo_reduces(algo)
										    ? ref_size[type]
										    : 1)) > slots)
							continue;
						wrong += case_run(&c);
						++*done;
						if (wrong >= 20)
							break;
					}
	}
	return wrong;
}

/* The same across the end of a flag's period, with scratch full of flags that will come. */
static long wrap_run(int n, uint64_t slots)
{
	long wrong = 0;
	uint64_t start = 0x80000000ull - 3;

	for (int flag = 0; flag < 6; flag++) {
		world_init(n, slots);
		for (int r = 0; r < n; r++) {
			uint64_t ctrl = machine_base() + r * machine_stride(),
				 arrivals = start << DEV_EPOCH_SHIFT;
			size_t bytes = 2 * world_layout.half_bytes;
			uint32_t *stale = (uint32_t *)malloc(bytes);

			/* packets, barrier words and factors of flags 0x80000000 + flag everywhere
			 */
			for (size_t i = 0; i < bytes / 4; i++)
				stale[i] = i & 1 ? 0x80000000u + flag : world_hash + 3 + flag;
			machine_put(ctrl + DEV_HEAD_BYTES, stale, bytes);
			machine_put(ctrl, &arrivals, 8);
			free(stale);
		}
		for (int i = 0; i < 9; i++) {
			struct test_case c;

			memset(&c, 0, sizeof(c));
			c.algo = i == 8 ? (int)CUDA_BARRIER : (int)((i + flag) % CUDA_BARRIER);
			c.type = R_F32;
			c.op = i % 2 ? R_PREMUL : R_SUM;
			c.n = n;
			c.ctas = c.algo == CUDA_BARRIER ? 1 : 1 + (i & 1);
			c.threads = 128;
			c.count = 61;
			c.part = 16;
			c.fixed = 1;
			wrong += case_run(&c);
		}
	}
	return wrong;
}

#endif
