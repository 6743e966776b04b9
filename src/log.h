/*
 * Logging: one line per decision, to stderr or SYMCCL_DEBUG_FILE.
 * "symccl host:pid:tid LEVEL SUBSYS text". Levels and subsystems are chosen by SYMCCL_DEBUG and
 * SYMCCL_DEBUG_SUBSYS. Thread-safe; a line is one write().
 */
#ifndef LOG_H
#define LOG_H

enum log_level { LOG_NONE, LOG_VERSION, LOG_WARN, LOG_INFO, LOG_TRACE };

/* Bits of SYMCCL_DEBUG_SUBSYS. */
enum log_subsys {
	LOG_INIT = 1,
	LOG_BOOT = 2,
	LOG_MEM = 4,
	LOG_SYM = 8,
	LOG_COLL = 16,
	LOG_NET = 32,
	LOG_PARAM = 64,
	LOG_ALL = 127
};

/* Nonzero when a line of that level and subsystem would be printed; a load and two tests. errno is
 * left alone here and below, and %m works. */
int log_enabled(enum log_level level, enum log_subsys subsys);
void log_line(enum log_level level, enum log_subsys subsys, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), cold));
/* The parameters have been read again (params_reload): start anew. */
void log_reset(void);
/* Runs when the library is loaded: notes whether there is a stderr. Again only in tests. */
void log_at_load(void);

#define log_at(level, subsys, ...) \
	do { \
		if (__builtin_expect(log_enabled(level, subsys), 0)) \
			log_line(level, subsys, __VA_ARGS__); \
	} while (0)
#define log_warn(subsys, ...) log_at(LOG_WARN, subsys, __VA_ARGS__)
#define log_info(subsys, ...) log_at(LOG_INFO, subsys, __VA_ARGS__)
#define log_trace(subsys, ...) log_at(LOG_TRACE, subsys, __VA_ARGS__)

#endif
