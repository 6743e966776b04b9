// See gloo_api.h.
#include "gloo_api.h"

#include <cstdio>
#include <exception>
#include <memory>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static std::shared_ptr<gloo::rendezvous::Context> context;
static std::unique_ptr<gloo::AllreduceHalvingDoubling<float>> halving;
static float *halving_buf;
static int halving_n;

template <typename Call> static int guarded(Call call)
{
	try {
		call();
		return 0;
	} catch (const std::exception &e) {
		std::fprintf(stderr, "gloo: %s\n", e.what());
		return -1;
	}
}

int gloo_open(int rank, int nranks, const char *folder)
{
	return guarded([=] {
		gloo::rendezvous::FileStore store(folder);
		gloo::transport::tcp::attr attr;
		std::shared_ptr<gloo::transport::Device> device;

		attr.iface = "lo";
		device = gloo::transport::tcp::CreateDevice(attr);
		context = std::make_shared<gloo::rendezvous::Context>(rank, nranks);
		context->connectFullMesh(store, device);
	});
}

void gloo_close(void)
{
	halving.reset();
	context.reset();
}

int gloo_barrier(void)
{
	return guarded([] {
		gloo::BarrierOptions opts(context);

		gloo::barrier(opts);
	});
}

int gloo_all_reduce(const float *in, float *out, int n)
{
	return guarded([=] {
		gloo::AllreduceOptions opts(context);

		opts.setInput(const_cast<float *>(in), static_cast<size_t>(n));
		opts.setOutput(out, static_cast<size_t>(n));
		opts.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(
			&gloo::sum<float>));
		gloo::allreduce(opts);
	});
}

int gloo_all_reduce_halving(float *buf, int n)
{
	return guarded([=] {
		if (!halving || buf != halving_buf || n != halving_n)
			halving = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
				context, std::vector<float *>{buf}, n);
		halving_buf = buf;
		halving_n = n;
		halving->run();
	});
}

int gloo_all_gather(const float *in, float *out, int part)
{
	return guarded([=] {
		gloo::AllgatherOptions opts(context);

		opts.setInput(const_cast<float *>(in), static_cast<size_t>(part));
		opts.setOutput(out, static_cast<size_t>(part) * static_cast<size_t>(context->size));
		gloo::allgather(opts);
	});
}
