/*
 * Bodies for the double's kernels: the library's own GPU kernels on threads of this CPU. A test
 * calls fake_kernels_register() and has FAKE_IMAGES, in place of what nvcc makes.
 */
#include "emulate.h"
extern "C" {
#include "fakecuda.h"
void fake_kernels_register(void);
}

template <int I> static void body(const struct fakecuda_launch *launch, void **params)
{
	grid_join(grid_start(&kernel_entries[I], params[0], launch->grid[0], 0));
}
template <int I> static void register_from(fakecuda_kernel_t add)
{
	if constexpr (I < KERNEL_ENTRIES) {
		const size_t sizes[] = {kernel_entries[I].bytes};

		add(kernel_entries[I].name, body<I>, 1, sizes);
		register_from<I + 1>(add);
	}
}

void fake_kernels_register(void)
{
	fakecuda_kernel_t add = (fakecuda_kernel_t)fakecuda_hook("fakecuda_kernel");

	if (add)
		register_from<0>(add);
}
