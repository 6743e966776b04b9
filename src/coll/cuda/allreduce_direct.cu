#include "direct.cuh"
#define ALGORITHM allreduce_direct
#include "instances.cuh"
