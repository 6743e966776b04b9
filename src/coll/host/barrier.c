/* Barrier: one step without payload. */
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(barrier_flags)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};

	(void)nctas;
	return step_sync(&s);
}
