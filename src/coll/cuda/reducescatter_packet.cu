#include "packets.cuh"
#define ALGORITHM reducescatter_packet
#include "instances.cuh"
