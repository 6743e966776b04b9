/* The few calls of Gloo, which is C++, that gloo_coll.c times. Each returns 0, or -1 with a
 * sentence on stderr. */
#ifndef GLOO_API_H
#define GLOO_API_H

#ifdef __cplusplus
extern "C" {
#endif

/* Join over TCP on the loopback device; `folder` is for the rendezvous, empty before. */
int gloo_open(int rank, int nranks, const char *folder);
void gloo_close(void);
int gloo_barrier(void);
/* As PyTorch calls it: the ring. */
int gloo_all_reduce(const float *in, float *out, int n);
/* The older halving and doubling, in place; set up when buf or n differ from the call before. */
int gloo_all_reduce_halving(float *buf, int n);
int gloo_all_gather(const float *in, float *out, int part);

#ifdef __cplusplus
}
#endif
#endif
