#include "packets.cuh"
#define ALGORITHM allreduce_oneshot
#include "instances.cuh"
