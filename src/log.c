#define _GNU_SOURCE
#include "log.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "params.h"
#include "util.h"

#define LINE_MAX_BYTES 1024

static const char *const level_names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};
static const struct {
	const char *name, *label;
	unsigned bit;
} subsystems[] = {
	{"init", "INIT", LOG_INIT},
	{"boot", "BOOT", LOG_BOOT},
	{"mem", "MEM", LOG_MEM},
	{"sym", "SYM", LOG_SYM},
	{"coll", "COLL", LOG_COLL},
	{"net", "NET", LOG_NET},
	{"param", "PARAM", LOG_PARAM},
	{"all", "ALL", LOG_ALL},
};

/* Level in the high bits, subsystems in the low ones; UNREAD until the parameters are known. */
#define LEVEL_SHIFT 16
#define UNREAD 0xffffffffu
static unsigned filter = UNREAD;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static pid_t file_pid; /* who opened it: a forked child's %p is another file */
static char host[64];
static int no_stderr; /* the program was started without one */

static unsigned subsystem_bit(const char *name, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(subsystems); i++)
		if (strlen(subsystems[i].name) == len &&
			strncasecmp(subsystems[i].name, name, len) == 0)
			return subsystems[i].bit;
	return 0;
}

/* "init,boot" or "^coll"; a name that is none is passed over, and told by *bad. */
static unsigned subsystems_parse(const char *list, const char **bad)
{
	int exclude = list[0] == '^';
	unsigned bits = 0;

	for (const char *p = list + exclude; *p;) {
		size_t len = strcspn(p, ",");
		unsigned bit = subsystem_bit(p, len);

		if (!bit && len)
			*bad = p;
		bits |= bit;
		p += len + (p[len] == ',');
	}
	return exclude ? LOG_ALL & ~bits : bits;
}

static void file_name(const char *pattern, char *out, size_t room)
{
	size_t n = 0;

	for (const char *p = pattern; *p && n + 1 < room; p++) {
		if (p[0] == '%' && p[1] == 'h') {
			n += (size_t)snprintf(out + n, room - n, "%s", host);
			p++;
		} else if (p[0] == '%' && p[1] == 'p') {
			n += (size_t)snprintf(out + n, room - n, "%d", (int)getpid());
			p++;
		} else {
			out[n++] = *p;
		}
		n = MIN(n, room - 1);
	}
	out[n] = 0;
}

/* With stderr closed, the first socket to be opened takes its number, and lines meant for it would
 * go to a peer. Only at the start is it certain who has the number. */
__attribute__((constructor)) void log_at_load(void)
{
	no_stderr = fcntl(STDERR_FILENO, F_GETFD) < 0;
}

/* A write that fails is no signal to a program that only wanted to hear more. */
static void write_quietly(int fd, const char *line, size_t n)
{
	const struct timespec at_once = {0};
	sigset_t pipe, old, pending;
	int saved = errno;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigemptyset(&pending);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe, &old);
	/* Nothing to be done where even that fails, but one that waited before stays. */
	if (write(fd, line, n) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
		sigtimedwait(&pipe, NULL, &at_once);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	errno = saved;
}

static void file_open(const char *pattern)
{
	char name[512], line[640];
	int fd, n;

	file_pid = getpid();
	if (file > STDERR_FILENO)
		close(file);
	file = STDERR_FILENO;
	if (!pattern[0])
		return;
	file_name(pattern, name, sizeof(name));
	fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd >= 0 && fd <= STDERR_FILENO) {
		int low = fd;

		fd = fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		close(low);
	}
	if (fd >= 0) {
		file = fd;
		return;
	}
	n = snprintf(line, sizeof(line),
		"symccl: cannot log to %s (SYMCCL_DEBUG_FILE): %m; using stderr\n", name);
	if (!no_stderr)
		write_quietly(STDERR_FILENO, line, (size_t)MIN(n, (int)sizeof(line) - 1));
}

static unsigned filter_read(void)
{
	const struct params *p = params_get(); /* may itself log, so before the lock */
	const char *bad = NULL;
	unsigned bits = subsystems_parse(p->debug_subsys, &bad);
	unsigned f = (unsigned)p->debug << LEVEL_SHIFT | bits;
	int first;

	pthread_mutex_lock(&lock);
	first = filter == UNREAD;
	if (first)
		__atomic_store_n(&filter, f, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	if (first && bad && p->debug >= (int)LOG_WARN)
		log_line(LOG_WARN, LOG_PARAM,
			"SYMCCL_DEBUG_SUBSYS has no subsystem \"%.*s\"; there are init boot mem "
			"sym coll net param all",
			(int)strcspn(bad, ","), bad);
	return f;
}

int log_enabled(enum log_level level, enum log_subsys subsys)
{
	unsigned f = __atomic_load_n(&filter, __ATOMIC_ACQUIRE);

	if (__builtin_expect(f == UNREAD, 0)) {
		int saved = errno;

		f = filter_read();
		errno = saved;
	}
	return (unsigned)level <= f >> LEVEL_SHIFT && (f & (unsigned)subsys) != 0;
}

static const char *subsystem_label(enum log_subsys subsys)
{
	for (size_t i = 0; i < ARRAY_LEN(subsystems); i++)
		if (subsystems[i].bit == (unsigned)subsys)
			return subsystems[i].label;
	return "ALL";
}

void log_line(enum log_level level, enum log_subsys subsys, const char *fmt, ...)
{
	int saved = errno;
	char line[LINE_MAX_BYTES], text[LINE_MAX_BYTES];
	const char *pattern = params_get()->debug_file;
	va_list ap;
	int n;

	errno = saved;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* A peer's text must not make lines of its own, nor talk to the terminal. */
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < 32 || *c == 127)
			*c = ' ';

	pthread_mutex_lock(&lock);
	if (!host[0] && (gethostname(host, sizeof(host) - 1) || !host[0]))
		strcpy(host, "localhost");
	if (file < 0 || file_pid != getpid())
		file_open(pattern);
	n = snprintf(line, sizeof(line) - 1, "symccl %s:%d:%d %s %s %s", host, (int)getpid(),
		(int)syscall(SYS_gettid), level_names[level], subsystem_label(subsys), text);
	n = MIN(n, (int)sizeof(line) - 2);
	line[n++] = '\n';
	if (file != STDERR_FILENO || !no_stderr)
		write_quietly(file, line, (size_t)n);
	pthread_mutex_unlock(&lock);
	errno = saved;
}

void log_reset(void)
{
	pthread_mutex_lock(&lock);
	if (file > STDERR_FILENO)
		close(file);
	file = -1;
	__atomic_store_n(&filter, UNREAD, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}
