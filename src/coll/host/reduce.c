/*
 * See reduce.h. A reduction is cut into blocks that stay in the L1 cache; a block's tree is cut
 * into loops over 2, 3, 4 or 8 sources. Where one loop does it all, there are no blocks.
 */
#include <string.h>
#include "coll/coll.h"
#include "coll/host/reduce.h"
#include "coll/host/reduce_isa.h"
#include "device/types.h"
#include "util.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#define BLOCK 2048 /* bytes of one block, as it is accumulated */
#define LINE 64

/* ---- Instruction sets ------------------------------------------------------------------------ */

static const struct reduce_isa *used; /* atomic; NULL: not chosen yet */

#if defined(__x86_64__)
static int has_avx2(void)
{
	unsigned a, b, c = 0, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && __builtin_cpu_supports("avx2");
}
static int has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512dq");
}
#endif
static int has_plain(void)
{
	return 1;
}

int reduce_use(const char *isa)
{
	static const struct {
		const struct reduce_isa *isa;
		int (*has)(void);
	} best_first[] = {
#if defined(__x86_64__)
		{&reduce_avx512, has_avx512},
		{&reduce_avx2, has_avx2},
#endif
		{&reduce_plain, has_plain},
	};

	for (size_t i = 0; i < ARRAY_LEN(best_first); i++) {
		if (isa && strcmp(isa, best_first[i].isa->name) != 0)
			continue;
		if (!best_first[i].has())
			continue;
		__atomic_store_n(&used, best_first[i].isa, __ATOMIC_RELAXED);
		return 1;
	}
	return 0;
}

static const struct reduce_isa *isa_get(void)
{
	const struct reduce_isa *isa = __atomic_load_n(&used, __ATOMIC_RELAXED);

	if (__builtin_expect(isa == NULL, 0)) {
		reduce_use(NULL);
		isa = __atomic_load_n(&used, __ATOMIC_RELAXED);
	}
	return isa;
}

const char *reduce_used(void)
{
	return isa_get()->name;
}

/* ---- Floating-point mode --------------------------------------------------------------------- */

/* The caller's thread may flush subnormals (programs linked with -ffast-math do), round otherwise
 * or trap. Reading the mode costs a few cycles; writing it is for those only. */
#if defined(__x86_64__)
typedef unsigned fp_mode;
#define FP_STICKY 0x3fu
#define FP_DEFAULT 0x1f80u

static fp_mode fp_begin(void)
{
	fp_mode m = _mm_getcsr();

	if (__builtin_expect((m & ~FP_STICKY) != FP_DEFAULT, 0))
		_mm_setcsr(FP_DEFAULT);
	return m;
}
static void fp_end(fp_mode m)
{
	if (__builtin_expect((m & ~FP_STICKY) != FP_DEFAULT, 0))
		_mm_setcsr(m);
}
#elif defined(__aarch64__)
typedef uint64_t fp_mode;

static void fp_set(fp_mode m)
{
	__asm__ volatile("msr fpcr, %0" ::"r"(m) : "memory");
}
static fp_mode fp_begin(void)
{
	fp_mode m;

	__asm__ volatile("mrs %0, fpcr" : "=r"(m)::"memory");
	if (__builtin_expect(m != 0, 0))
		fp_set(0);
	return m;
}
static void fp_end(fp_mode m)
{
	if (__builtin_expect(m != 0, 0))
		fp_set(m);
}
#else
typedef int fp_mode;

static fp_mode fp_begin(void)
{
	return 0;
}
static void fp_end(fp_mode m)
{
	(void)m;
}
#endif

/* ---- The tree -------------------------------------------------------------------------------- */

/* A reduction at work, and the block it is at. */
struct work {
	const struct reduction *r;
	const struct reduce_isa *isa;
	symcclDataType_t acc;  /* the type it accumulates in */
	symcclRedOp_t op;      /* avg is a sum, */
	uint32_t divisor;      /* divided by this at the end; else 0 */
	size_t size, acc_size; /* bytes of an element */
	size_t at, count;      /* the block: first element and how many */
};

typedef unsigned char block[BLOCK] __attribute__((aligned(LINE)));

static int has_loop(int n)
{
	return n == 2 || n == 3 || n == 4 || n == 8;
}

static const void *source(const struct work *w, int q)
{
	return (const char *)w->r->src[q] + w->at * w->size;
}

/* The factor's bits in the accumulator's type. */
static uint64_t factor_bits(symcclDataType_t type, uint64_t v)
{
	switch (type) {
	case symcclFloat16:
		return f32_bits(f16_widen(v & 0xffff));
	case symcclBfloat16:
		return f32_bits(bf16_widen(v & 0xffff));
	case symcclFloat8e4m3:
		return f32_bits(e4m3_widen(v & 0xff));
	case symcclFloat8e5m2:
		return f32_bits(e5m2_widen(v & 0xff));
	default:
		return v;
	}
}

/* Source q as the tree takes it; `own` is room for it. */
static const void *leaf(const struct work *w, int q, void *own)
{
	const struct reduction *r = w->r;
	const void *p = source(w, q);

	if (w->acc != r->type) {
		w->isa->widen[r->type](own, p, w->count);
		p = own;
	}
	if (r->factor == NULL)
		return p;
	w->isa->scale[w->acc](own, p, w->count, factor_bits(r->type, r->factor[q]));
	return own;
}

static void combine(
	const struct work *w, symcclDataType_t type, int n, const void *const *src, void *out)
{
	const struct reduce_sink to = {.dst = &out, .ndst = 1};

	w->isa->combine[type][w->op][n](&to, src, w->count);
}

/* T(lo, n) of sources that must be converted first. Not inlined: tree() would carry its blocks
 * along at every level. */
__attribute__((noinline)) static void combine_converted(
	const struct work *w, int lo, int n, void *out)
{
	const void *p[REDUCE_FAN_MAX];
	block own[REDUCE_FAN_MAX];

	for (int q = 0; q < n; q++)
		p[q] = leaf(w, lo + q, own[q]);
	combine(w, w->acc, n, p, out);
}

static void sources(const struct work *w, int lo, int n, const void **p)
{
	for (int q = 0; q < n; q++)
		p[q] = source(w, lo + q);
}

/* T(lo, n): in `out`, or where it is if it is a source as it stands. out may be a source. */
static const void *tree(const struct work *w, int lo, int n, void *out)
{
	const void *p[REDUCE_FAN_MAX];
	block left, right;
	int k = 1;

	if (n == 1)
		return leaf(w, lo, out);
	if (has_loop(n) && (w->acc != w->r->type || w->r->factor)) {
		combine_converted(w, lo, n, out);
		return out;
	}
	if (has_loop(n)) {
		sources(w, lo, n, p);
		combine(w, w->acc, n, p, out);
		return out;
	}
	while (2 * k < n)
		k *= 2;
	p[0] = tree(w, lo, k, left);
	p[1] = tree(w, lo + k, n - k, right);
	combine(w, w->acc, 2, p, out);
	return out;
}

/* Does one loop do everything? */
static int is_direct(const struct work *w)
{
	const struct reduction *r = w->r;

	return r->nsrc <= REDUCE_FAN_MAX && w->isa->combine[r->type][w->op][r->nsrc] &&
	       !w->divisor && !r->factor;
}

/* The block's result to `out`, which may be a source. */
static void by_tree(const struct work *w, void *out)
{
	const struct reduction *r = w->r;
	int as_is = w->acc == r->type;
	block room;
	void *acc = as_is ? out : room;
	const void *sum = tree(w, 0, r->nsrc, acc);

	if (w->divisor) {
		w->isa->divide[w->acc](acc, sum, w->count, w->divisor);
		sum = acc;
	}
	if (as_is && (w->divisor || r->nsrc > 1))
		return;
	if (w->isa->round[r->type])
		w->isa->round[r->type](out, sum, w->count);
	else if (out != sum)
		memcpy(out, sum, w->count * w->size);
}

/* ---- Stores ---------------------------------------------------------------------------------- */

static void store_fence(void)
{
#if defined(__x86_64__)
	_mm_sfence();
#endif
}

/* Can all destinations' lines begin at one element? *head: how many come before it. */
static int lines_meet(const struct work *w, size_t *head)
{
	const struct reduction *r = w->r;
	size_t bytes = (size_t) - (uintptr_t)r->dst[0] & (LINE - 1);

	for (int d = 1; d < r->ndst; d++)
		if (((uintptr_t)r->dst[0] ^ (uintptr_t)r->dst[d]) & (LINE - 1))
			return 0;
	*head = bytes % w->size ? 0 : MIN(bytes / w->size, r->count);
	return bytes % w->size == 0;
}

static void work_begin(struct work *w, const struct reduction *r)
{
	*w = (struct work){.r = r, .isa = isa_get(), .acc = r->type, .op = r->op};
	if (w->isa->widen[r->type])
		w->acc = symcclFloat32;
	if (r->op == symcclAvg) {
		w->op = symcclSum;
		w->divisor = r->divisor ? r->divisor : (uint32_t)r->nsrc;
	}
	w->size = coll_type_size(r->type);
	w->acc_size = coll_type_size(w->acc);
}

/* Then what is to be written is on its way here already. */
static int in_place(const struct reduction *r)
{
	for (int q = 0; q < r->nsrc; q++)
		if (r->src[q] == r->dst[0])
			return 1;
	return 0;
}

/* w->count elements from w->at on, by one loop. */
static void by_loop(struct work *w, int stream)
{
	const struct reduction *r = w->r;
	const struct reduce_sink to = {
		r->dst, w->at * w->size, r->ndst, stream, !stream && r->ndst > 1 && !in_place(r)};
	const void *p[REDUCE_FAN_MAX];

	sources(w, 0, r->nsrc, p);
	w->isa->combine[r->type][w->op][r->nsrc](&to, p, w->count);
}

static void by_blocks(struct work *w, int stream)
{
	const struct reduction *r = w->r;
	size_t most = BLOCK / w->acc_size, end = w->at + w->count, bytes, lines;
	block room;

	for (; w->at < end; w->at += w->count) {
		size_t from = w->at * w->size;
		char *first = (char *)r->dst[0] + from;

		w->count = MIN(most, end - w->at);
		bytes = w->count * w->size;
		lines = stream ? bytes & ~(size_t)(LINE - 1) : 0;
		if (stream)
			first = (char *)room;
		by_tree(w, first);
		for (int d = !stream; d < r->ndst; d++) {
			char *to = (char *)r->dst[d] + from;

			w->isa->stream(to, first, lines);
			memcpy(to + lines, first + lines, bytes - lines);
		}
	}
}

void reduce(const struct reduction *r)
{
	fp_mode mode = fp_begin();
	void (*run)(struct work *, int);
	struct work w;
	size_t head = 0;
	int stream;

	work_begin(&w, r);
	if (!r->stream && is_direct(&w)) { /* the least that a small one can do */
		w.count = r->count;
		by_loop(&w, 0);
		fp_end(mode);
		return;
	}
	run = is_direct(&w) ? by_loop : by_blocks;
	stream = r->stream && lines_meet(&w, &head);
	if (stream && head > 0) {
		w.count = head;
		run(&w, 0);
	}
	w.at = head;
	w.count = r->count - head;
	run(&w, stream);
	if (stream)
		store_fence();
	fp_end(mode);
}
