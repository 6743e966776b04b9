/* Opening a boot from a test. */
#ifndef TESTS_BOOT_HELPER_H
#define TESTS_BOOT_HELPER_H

#include <string.h>
#include "bootstrap/bootstrap.h"
#include "ranks.h"
#include "util.h"

#define OPENER_MAX 512

/* The local ranks of one process. */
struct opener {
	struct boot_member members[OPENER_MAX];
	int n, given;
	int wakefd;
	struct failure why;
};

void opener_add(struct opener *o, int rank, int nranks);
/* boot_open with a deadline of s seconds. */
symcclResult_t opener_run(struct opener *o, const symcclUniqueId *id, double s, struct boot **b);
/* One rank. */
symcclResult_t open_one(int rank, int nranks, const symcclUniqueId *id, double s, struct boot **b,
	struct failure *why);
/* A new id of rank 0's process, on all ranks of the run. Returns like a rank's body. */
int share_id(int rank, symcclUniqueId *id);
/* The deadline in s seconds. */
uint64_t after(double s);
double seconds_since(uint64_t start);
/* Set a variable and parse the parameters again. */
void set_env(const char *name, const char *value);

/* The failure has this code and mentions these words. */
#define CHECK_WHY(why, code_, ...) \
	do { \
		const char *const words_[] = {__VA_ARGS__}; \
		RANK_CHECK((why)->code == (code_), "code %d, not %d: %s", (why)->code, \
			(int)(code_), (why)->text); \
		for (size_t w_ = 0; w_ < ARRAY_LEN(words_); w_++) \
			RANK_CHECK(strstr((why)->text, words_[w_]), "\"%s\" is not in \"%s\"", \
				words_[w_], (why)->text); \
	} while (0)

#endif
