#include "direct.cuh"
#define ALGORITHM reducescatter_direct
#include "instances.cuh"
