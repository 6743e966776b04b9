#include "packets.cuh"
#define ALGORITHM allreduce_twostep
#include "instances.cuh"
