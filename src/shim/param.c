/* NCCL's parameters by name: the variables that mean something here, as the environment has them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "shim/shim.h"

/* A handle is a row of the table, counted from 1. */
static const struct shim_env *row_of(ncclParamHandle_t h)
{
	const struct shim_env *table;
	uintptr_t i = (uintptr_t)h;
	int n;

	table = shim_env_table(&n);
	return i >= 1 && i <= (uintptr_t)n ? &table[i - 1] : NULL;
}

SHIM(ncclResult_t, ncclParamBind, ncclParamHandle_t *out, const char *key)
{
	const struct shim_env *table;
	int n;

	if (out == NULL || key == NULL)
		return shim_fail(ncclInvalidArgument, "%s is NULL", out ? "key" : "out");
	table = shim_env_table(&n);
	for (int i = 0; i < n; i++)
		if (strcmp(table[i].nccl, key) == 0) {
			*out = (ncclParamHandle_t)(uintptr_t)(i + 1);
			return ncclSuccess;
		}
	return shim_fail(ncclInvalidArgument,
		"%s is no parameter that has an effect here (docs/nccl.md lists those)", key);
}

SHIM(ncclResult_t, ncclParamGetStr, ncclParamHandle_t h, const char **out)
{
	const struct shim_env *row = row_of(h);
	const char *v;

	if (row == NULL || out == NULL)
		return shim_fail(ncclInvalidArgument, "%s", row ? "out is NULL" : "no such handle");
	v = getenv(row->symccl);
	if (v == NULL)
		v = getenv(row->nccl);
	*out = v ? v : "";
	return ncclSuccess;
}

static ncclResult_t number_of(ncclParamHandle_t h, const void *out, intmax_t *v)
{
	const char *s;
	char *end;
	ncclResult_t e;

	if (out == NULL)
		return shim_fail(ncclInvalidArgument, "out is NULL");
	e = pncclParamGetStr(h, &s);
	if (e != ncclSuccess)
		return e;
	errno = 0;
	*v = strtoimax(s, &end, 0);
	if (end == s || *end != '\0' || errno != 0)
		return shim_fail(
			ncclInvalidArgument, "%s is \"%s\", not a number", row_of(h)->nccl, s);
	return ncclSuccess;
}

#define GETTER(suffix, type) \
	SHIM(ncclResult_t, ncclParamGet##suffix, ncclParamHandle_t h, type *out) \
	{ \
		intmax_t v; \
		ncclResult_t e = number_of(h, out, &v); \
\
		if (e != ncclSuccess) \
			return e; \
		if ((intmax_t)(type)v != v) \
			return shim_fail(ncclInvalidArgument, "%s is %jd, which does not fit", \
				row_of(h)->nccl, v); \
		*out = (type)v; \
		return ncclSuccess; \
	}
GETTER(I8, int8_t)
GETTER(I16, int16_t)
GETTER(I32, int32_t)
GETTER(I64, int64_t)
GETTER(U8, uint8_t)
GETTER(U16, uint16_t)
GETTER(U32, uint32_t)
GETTER(U64, uint64_t)

SHIM(ncclResult_t, ncclParamGet, ncclParamHandle_t h, void *out, int maxLen, int *len)
{
	const char *s;
	ncclResult_t e = pncclParamGetStr(h, &s);
	int n;

	if (e != ncclSuccess)
		return e;
	n = (int)strlen(s) + 1;
	if (out == NULL || len == NULL || maxLen < n)
		return shim_fail(
			ncclInvalidArgument, "%s needs room for %d bytes", row_of(h)->nccl, n);
	memcpy(out, s, (size_t)n);
	*len = n;
	return ncclSuccess;
}

SHIM(ncclResult_t, ncclParamGetParameter, const char *key, const char **value, int *valueLen)
{
	ncclParamHandle_t h;
	ncclResult_t e = pncclParamBind(&h, key);

	if (e == ncclSuccess)
		e = pncclParamGetStr(h, value);
	if (e == ncclSuccess && valueLen != NULL)
		*valueLen = (int)strlen(*value);
	return e;
}

SHIM(ncclResult_t, ncclParamGetAllParameterKeys, const char ***keys, int *tableLen)
{
	static const char *all[64];
	const struct shim_env *table;
	int n;

	if (keys == NULL || tableLen == NULL)
		return shim_fail(ncclInvalidArgument, "%s is NULL", keys ? "tableLen" : "table");
	table = shim_env_table(&n);
	for (int i = 0; i < n && i < 64; i++)
		all[i] = table[i].nccl;
	*keys = all;
	*tableLen = n;
	return ncclSuccess;
}

SHIM(void, ncclParamDumpAll, void)
{
	const struct shim_env *table;
	int n;

	table = shim_env_table(&n);
	for (int i = 0; i < n; i++) {
		const char *v = getenv(table[i].symccl);

		printf("%s=%s\n", table[i].nccl, v ? v : "");
	}
}

/* The environment was read when the library was loaded. */
SHIM(void, ncclResetDebugInit, void)
{
}

SYMCCL_API void ncclResetDebugInitInternal(void)
{
}
