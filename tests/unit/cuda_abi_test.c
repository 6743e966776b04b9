/* src/cuda/driver_types.h and driver_syms.def against the real <cuda.h>, where there is one. */
#if __has_include(<cuda.h>)
#define __CUDA_API_VERSION_INTERNAL /* declares the older ABIs, too */
#include <cuda.h>
#define HAVE_REAL_CUDA_H 1
#endif
#include <criterion/criterion.h>
#include <string.h>
#include "fakecuda/fakecuda.h"

TestSuite(cuda_abi, .timeout = 10);

#ifdef HAVE_REAL_CUDA_H
#include "fakecuda/abi.h"

/* CUjit_option is only ever passed as NULL: an array of an enum like any other. */
#define CU_SYM(name, symbol, version, need, params) \
	_Static_assert(__builtin_types_compatible_p(CUresult params, __typeof__(symbol)), \
		#symbol " differs from the real header");
#include "cuda/driver_syms.def"
#undef CU_SYM

Test(cuda_abi, sizes_offsets_values)
{
	const struct abi_row *(*own)(size_t *) =
		(const struct abi_row *(*)(size_t *))fakecuda_hook("fakecuda_abi");
	const struct abi_row *rows;
	size_t n;

	cr_assert_not_null(own, "libcuda.so.1 is not the double: LD_LIBRARY_PATH?");
	rows = own(&n);
	cr_assert_eq(n, sizeof(abi_rows) / sizeof(abi_rows[0]));
	for (size_t i = 0; i < n; i++) {
		cr_assert_str_eq(rows[i].what, abi_rows[i].what);
		cr_assert_eq(rows[i].value, abi_rows[i].value, "%s: we say %lld, cuda.h %lld",
			rows[i].what, rows[i].value, abi_rows[i].value);
	}
}
#else
Test(cuda_abi, sizes_offsets_values)
{
	cr_skip_test("no cuda.h here");
}
#endif
