#include "staged.cuh"
#define ALGORITHM reduce_staged
#include "instances.cuh"
