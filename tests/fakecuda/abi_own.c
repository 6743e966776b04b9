/* The double carries our view of the driver's ABI, for the test that includes the real header. */
#include "fake.h"
#include "abi.h"

EXPORT const struct abi_row *fakecuda_abi(size_t *n);
const struct abi_row *fakecuda_abi(size_t *n)
{
	*n = sizeof(abi_rows) / sizeof(abi_rows[0]);
	return abi_rows;
}
