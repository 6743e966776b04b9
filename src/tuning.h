/*
 * The cost model's constants of one machine, in a text file: "key = value" lines, one for each row
 * of coll/tuning.def, `format` first and `processor` anywhere; # starts a comment. symccl-tune
 * writes it, rank 0 of a communicator reads it at init.
 *
 * The constants are the processor's, so a file of another processor is refused: the same path may
 * be shared between machines (SYMCCL_TUNING_FILE, a home directory on NFS).
 */
#ifndef TUNING_H
#define TUNING_H

#include "coll/coll.h"

#define TUNING_PATH_MAX 4096

/* Where this machine's constants are: SYMCCL_TUNING_FILE, else tuning-<host> in the user's cache
 * directory. 0 when there is no such place (no HOME) or "none" was asked for; `path` is empty then.
 */
int tuning_path(char *path, size_t room);
/* What the processor calls itself, one line. */
void tuning_processor(char *out, size_t room);
/* Pure. 0 when `text` is a whole file for this processor, and *t has its constants; else the line
 * at fault (the last, when something is missing) with a sentence in why, and *t is left alone. */
int tuning_parse(
	const char *text, const char *processor, struct coll_tuning *t, char *why, size_t whylen);
/* The constants to plan with: this machine's when it has a file, else the compiled ones. A file
 * that cannot be used is a warning that names it and the line. t->algo is left alone. */
void tuning_load(struct coll_tuning *t);
/* Write a file, whole or not at all; missing directories above it are made. `note`: lines for its
 * head, each with its end, or "". Return: symcclSystemError, with the path and why. */
symcclResult_t tuning_store(const char *path, const struct coll_tuning *t, const char *note);

#endif
