/*
 * Load for one LUN by libiscsi, one session, in an event loop: the other client in
 * `cargo run --release -p lunar-lab -- libiscsi`.
 *
 * A closed loop: so many requests are under way, the next begins when one ends. What was measured
 * is one JSON object on standard output. libiscsi would try for ever, so every wait has a limit
 * here: requests by libiscsi's own timeout, the whole program by an alarm.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

#include "common.h"
#include "histogram.h"

/* Of the whole program, beyond what was asked to be measured. */
#define OVERTIME_SECONDS_MAX 90
#define DEPTH_MAX 1024
#define IO_BYTES_MAX (16u << 20)
#define SECONDS_MAX 86400.0

struct options {
	const char *url;
	bool writes, random, verify, once;
	uint64_t io_bytes, offset, range_bytes, depth, seed;
	double seconds, warm_up;
};

struct load;

/* One request after the other, and the memory for its data. */
struct slot {
	struct load *load;
	uint8_t *data;
	struct scsi_iovec iov;
	uint64_t place, begun;
};

struct load {
	struct options asked;
	struct iscsi_context *iscsi;
	int lun;
	uint32_t block_bytes;
	uint64_t places;
	struct slot slots[DEPTH_MAX];
	/* How many requests were begun; those that are under way. */
	uint64_t begun, under_way;
	/* Nanoseconds: requests that end within these are counted. */
	uint64_t from, to;
	struct histogram latency;
	/* With --verify: a mark for each place that was written. */
	uint8_t *written;
};

static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("libiscsi-load: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	/* Not exit(): libiscsi has nothing that must be told, and may not answer any more. */
	_exit(1);
}

static void too_long(int signal)
{
	static const char text[] =
		"libiscsi-load: the target did not answer in time; check that its server is running\n";

	(void)signal;
	if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
		_exit(3);
	_exit(2);
}

/* What a place holds once it was written: no two are alike, nor two seeds. */
static void fill(uint8_t *data, uint64_t bytes, uint64_t seed, uint64_t place)
{
	uint64_t key = mixed(seed, place);

	for (uint64_t at = 0; at < bytes; at += sizeof key) {
		uint64_t word = key + at;

		memcpy(data + at, &word, sizeof word);
	}
}

static void ended(struct iscsi_context *iscsi, int status, void *data, void *slot);

static uint64_t lba_of(const struct load *load, uint64_t place)
{
	return (load->asked.offset + place * load->asked.io_bytes) / load->block_bytes;
}

/* False after the last request of --once. */
static bool has_more(const struct load *load)
{
	return !load->asked.once || load->begun < load->places;
}

static void begin(struct slot *slot)
{
	struct load *load = slot->load;
	const struct options *asked = &load->asked;
	uint64_t number = load->begun++;
	uint32_t bytes = (uint32_t)asked->io_bytes;
	struct scsi_task *task;
	uint64_t lba;

	slot->place = (asked->random ? mixed(asked->seed, number) : number) % load->places;
	lba = lba_of(load, slot->place);
	if (asked->verify)
		fill(slot->data, asked->io_bytes, asked->seed, slot->place);
	slot->begun = now();
	/* Both kinds hand over memory of ours: libiscsi copies nothing and allocates no buffer. */
	if (asked->writes)
		task = iscsi_write16_task(load->iscsi, load->lun, lba, slot->data, bytes,
				(int)load->block_bytes, 0, 0, 0, 0, 0, ended, slot);
	else
		task = iscsi_read16_iov_task(load->iscsi, load->lun, lba, bytes,
				(int)load->block_bytes, 0, 0, 0, 0, 0, ended, slot,
				&slot->iov, 1);
	if (task == NULL)
		fail("a request cannot be sent: %s", iscsi_get_error(load->iscsi));
	load->under_way++;
}

static void ended(struct iscsi_context *iscsi, int status, void *data, void *private)
{
	struct slot *slot = private;
	struct load *load = slot->load;
	struct scsi_task *task = data;
	uint64_t at = now();

	load->under_way--;
	if (status == SCSI_STATUS_TIMEOUT)
		fail("a request was not answered within %d s", REQUEST_SECONDS_MAX);
	if (status == SCSI_STATUS_CANCELLED || status == SCSI_STATUS_ERROR)
		fail("the session is lost: the target closed it, or is gone");
	if (status != SCSI_STATUS_GOOD)
		fail("a %s at place %" PRIu64 " ended with status 0x%x: %s",
		     load->asked.writes ? "write" : "read", slot->place, (unsigned)status,
		     iscsi_get_error(iscsi));
	if (task->residual_status != SCSI_RESIDUAL_NO_RESIDUAL)
		fail("a request moved %zu bytes too few or too many", task->residual);
	scsi_free_scsi_task(task);
	if (load->written != NULL)
		load->written[slot->place] = 1;
	if (at >= load->from && at < load->to)
		histogram_add(&load->latency, at - slot->begun);
	if (at < load->to && has_more(load))
		begin(slot);
}

/* Sends what there is to send, then waits for the socket, once. */
static void turn(struct load *load)
{
	struct pollfd socket = { .fd = iscsi_get_fd(load->iscsi) };

	/* Without asking poll() first, which would be a system call more for each batch. */
	if ((iscsi_which_events(load->iscsi) & POLLOUT) &&
	    iscsi_service(load->iscsi, POLLOUT) < 0)
		fail("the session is lost: %s", iscsi_get_error(load->iscsi));
	socket.events = (short)iscsi_which_events(load->iscsi);
	if (poll(&socket, 1, POLL_MILLISECONDS) < 0 && errno != EINTR)
		fail("poll: %s", strerror(errno));
	/* Also when nothing came: libiscsi looks at its timeouts there. */
	if (iscsi_service(load->iscsi, socket.revents) < 0)
		fail("the session is lost: %s", iscsi_get_error(load->iscsi));
	if (!iscsi_is_logged_in(load->iscsi))
		fail("the target has closed the session: %s", iscsi_get_error(load->iscsi));
}

/* Which places there are. */
static void look_at_disk(struct load *load)
{
	struct scsi_task *task = iscsi_readcapacity16_sync(load->iscsi, load->lun);
	struct options *asked = &load->asked;
	struct scsi_readcapacity16 *capacity;
	uint64_t bytes;

	if (task == NULL || task->status != SCSI_STATUS_GOOD)
		fail("READ CAPACITY (16): %s", iscsi_get_error(load->iscsi));
	capacity = scsi_datain_unmarshall(task);
	if (capacity == NULL || capacity->block_length == 0 || capacity->block_length > 65536)
		fail("the target tells no capacity that makes sense");
	load->block_bytes = capacity->block_length;
	if (capacity->returned_lba >= UINT64_MAX / load->block_bytes)
		fail("the target tells a capacity of more than 2^64 bytes");
	bytes = (capacity->returned_lba + 1) * load->block_bytes;
	scsi_free_scsi_task(task);
	if (asked->offset > bytes)
		fail("the disk has %" PRIu64 " bytes, and --offset says %" PRIu64, bytes,
		     asked->offset);
	if (asked->range_bytes == 0)
		asked->range_bytes = bytes - asked->offset;
	if (asked->range_bytes > bytes - asked->offset)
		fail("the disk has %" PRIu64 " bytes, and --range says %" PRIu64, bytes,
		     asked->range_bytes);
	if (asked->io_bytes % load->block_bytes != 0 || asked->offset % load->block_bytes != 0)
		fail("--io-size or --offset is no multiple of the block size, %" PRIu32,
		     load->block_bytes);
	load->places = asked->range_bytes / asked->io_bytes;
	if (load->places == 0)
		fail("a request does not fit into --range");
}

static void make_slots(struct load *load)
{
	for (uint64_t at = 0; at < load->asked.depth; at++) {
		struct slot *slot = &load->slots[at];

		slot->load = load;
		slot->data = aligned_alloc(4096, (load->asked.io_bytes + 4095) / 4096 * 4096);
		if (slot->data == NULL)
			fail("no memory for %" PRIu64 " requests", load->asked.depth);
		slot->iov.iov_base = slot->data;
		slot->iov.iov_len = load->asked.io_bytes;
		fill(slot->data, load->asked.io_bytes, load->asked.seed, at);
	}
	if (load->asked.verify && (load->written = calloc(load->places, 1)) == NULL)
		fail("no memory to remember %" PRIu64 " places", load->places);
}

/* Flushes, and reads again what was written; how many places that are. */
static uint64_t verify(struct load *load)
{
	const struct options *asked = &load->asked;
	uint64_t count = 0;
	uint8_t *wanted = load->slots[0].data;
	struct scsi_task *flush;

	/* Of all blocks. */
	flush = iscsi_synchronizecache16_sync(load->iscsi, load->lun, 0, 0, 0, 0);
	if (flush == NULL || flush->status != SCSI_STATUS_GOOD)
		fail("SYNCHRONIZE CACHE: %s", iscsi_get_error(load->iscsi));
	scsi_free_scsi_task(flush);

	for (uint64_t place = 0; place < load->places; place++) {
		struct scsi_task *task;

		if (!load->written[place])
			continue;
		fill(wanted, asked->io_bytes, asked->seed, place);
		task = iscsi_read16_sync(load->iscsi, load->lun, lba_of(load, place),
				(uint32_t)asked->io_bytes, (int)load->block_bytes, 0, 0, 0, 0, 0);
		if (task == NULL || task->status != SCSI_STATUS_GOOD)
			fail("place %" PRIu64 " cannot be read: %s", place,
			     iscsi_get_error(load->iscsi));
		if ((uint64_t)task->datain.size != asked->io_bytes ||
		    memcmp(task->datain.data, wanted, asked->io_bytes) != 0)
			fail("place %" PRIu64 " does not hold what was written", place);
		scsi_free_scsi_task(task);
		count++;
	}
	return count;
}

static double seconds_of(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static void print(const struct load *load, double seconds, const struct rusage *before,
		  const struct rusage *after, uint64_t verified)
{
	const struct histogram *latency = &load->latency;
	double user = seconds_of(after->ru_utime) - seconds_of(before->ru_utime);
	double system = seconds_of(after->ru_stime) - seconds_of(before->ru_stime);
	double count = (double)latency->count, each = count > 0 ? 1e6 / count : 0;

	printf("{\"requests\":%" PRIu64 ",\"seconds\":%.6f,\"iops\":%.3f,"
	       "\"bytes_per_second\":%.3f,",
	       latency->count, seconds, count / seconds,
	       count * (double)load->asked.io_bytes / seconds);
	printf("\"latency_us\":{\"mean\":%.3f,\"p50\":%.3f,\"p99\":%.3f,\"p99_9\":%.3f,"
	       "\"max\":%.3f},",
	       histogram_mean(latency) / 1e3, histogram_percentile(latency, 50) / 1e3,
	       histogram_percentile(latency, 99) / 1e3, histogram_percentile(latency, 99.9) / 1e3,
	       (double)latency->most / 1e3);
	printf("\"cpu_seconds\":{\"user\":%.6f,\"system\":%.6f},"
	       "\"client_cpu_us_per_request\":%.4f,\"verified\":%" PRIu64 "}\n",
	       user, system, (user + system) * each, verified);
	if (fflush(stdout) != 0)
		fail("standard output: %s", strerror(errno));
}

static void run(struct load *load)
{
	struct rusage before, after;
	uint64_t verified = 0;

	load->from = now() + (uint64_t)(load->asked.warm_up * 1e9);
	load->to = load->from + (uint64_t)(load->asked.seconds * 1e9);
	for (uint64_t at = 0; at < load->asked.depth && has_more(load); at++)
		begin(&load->slots[at]);
	while (now() < load->from)
		turn(load);
	getrusage(RUSAGE_SELF, &before);
	while (now() < load->to && load->under_way > 0)
		turn(load);
	getrusage(RUSAGE_SELF, &after);
	while (load->under_way > 0)
		turn(load);
	if (load->asked.verify)
		verified = verify(load);
	print(load, (double)(load->to - load->from) / 1e9, &before, &after, verified);
	iscsi_logout_sync(load->iscsi);
	iscsi_destroy_context(load->iscsi);
}

static uint64_t size_of(const char *name, const char *text, uint64_t most)
{
	static const char units[] = "KMGT";
	uint64_t number, scale = 1;
	const char *unit;
	char *end;

	errno = 0;
	number = strtoull(text, &end, 10);
	if (*end != '\0' && (unit = strchr(units, *end)) != NULL && end[1] == '\0') {
		scale = 1024ull << (10 * (unit - units));
		end++;
	}
	if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || number > most / scale)
		fail("--%s %s: it is a number, at most %" PRIu64 ", or one with K, M, G or T",
		     name, text, most);
	return number * scale;
}

static double seconds_in(const char *name, const char *text)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end != '\0' || !(seconds >= 0 && seconds <= SECONDS_MAX))
		fail("--%s %s: it is a number of seconds, from 0 to 86400", name, text);
	return seconds;
}

static void help(void)
{
	puts("libiscsi-load [OPTIONS] iscsi://HOST:PORT/TARGET/LUN\n\n"
	     "Load for one LUN by libiscsi. Prints one JSON object.\n\n"
	     "  --pattern P    rand-read (default), rand-write, read or write; writes overwrite\n"
	     "                 what the disk holds\n"
	     "  --io-size N    bytes of a request (4K)\n"
	     "  --depth N      requests under way at once (32)\n"
	     "  --offset N     the first byte that is used (0)\n"
	     "  --range N      bytes from there on that are used (all)\n"
	     "  --once         of read and write: end when each place was used; --seconds is the\n"
	     "                 longest time\n"
	     "  --seconds S    how long to measure (3)\n"
	     "  --warm-up S    how long to run before that (0.5)\n"
	     "  --seed N       random places follow from it (1)\n"
	     "  --verify       of writes: each place gets data of its own, flushed and read again at\n"
	     "                 the end; takes processor time\n\n"
	     "Example:\n"
	     "  libiscsi-load --pattern rand-write --depth 8 iscsi://127.0.0.1/iqn.2026-11.org:x/0");
	exit(0);
}

static void set_pattern(struct options *asked, const char *name)
{
	asked->random = strncmp(name, "rand-", 5) == 0;
	if (asked->random)
		name += 5;
	asked->writes = strcmp(name, "write") == 0;
	if (!asked->writes && strcmp(name, "read") != 0)
		fail("--pattern is rand-read, rand-write, read or write");
}

static void parse(struct options *asked, int count, char **arguments)
{
	static const struct option known[] = {
		{ "pattern", 1, NULL, 'p' }, { "io-size", 1, NULL, 'i' },
		{ "depth", 1, NULL, 'd' },   { "range", 1, NULL, 'r' },
		{ "seconds", 1, NULL, 's' }, { "warm-up", 1, NULL, 'w' },
		{ "seed", 1, NULL, 'x' },    { "verify", 0, NULL, 'v' },
		{ "offset", 1, NULL, 'o' },  { "once", 0, NULL, '1' },
		{ "help", 0, NULL, 'h' },    { NULL, 0, NULL, 0 },
	};
	int option;

	*asked = (struct options){ .random = true, .io_bytes = 4096, .depth = 32, .seconds = 3,
				   .warm_up = 0.5, .seed = 1 };
	while ((option = getopt_long(count, arguments, "", known, NULL)) != -1) {
		switch (option) {
		case 'p': set_pattern(asked, optarg); break;
		case 'i': asked->io_bytes = size_of("io-size", optarg, IO_BYTES_MAX); break;
		case 'd': asked->depth = size_of("depth", optarg, DEPTH_MAX); break;
		case 'r': asked->range_bytes = size_of("range", optarg, UINT64_MAX); break;
		case 's': asked->seconds = seconds_in("seconds", optarg); break;
		case 'w': asked->warm_up = seconds_in("warm-up", optarg); break;
		case 'x': asked->seed = size_of("seed", optarg, UINT64_MAX); break;
		case 'v': asked->verify = true; break;
		case 'o': asked->offset = size_of("offset", optarg, UINT64_MAX); break;
		case '1': asked->once = true; break;
		case 'h': help(); break;
		default: fail("see --help");
		}
	}
	if (optind + 1 != count)
		fail("one URL is wanted: iscsi://HOST:PORT/TARGET/LUN; see --help");
	if (asked->depth == 0 || asked->io_bytes < sizeof(uint64_t) || asked->seconds == 0)
		fail("--depth, --io-size and --seconds are more than nothing");
	if (asked->verify && !asked->writes)
		fail("--verify is for patterns that write");
	if (asked->once && asked->random)
		fail("--once is for read and write");
	asked->url = arguments[optind];
}

int main(int count, char **arguments)
{
	static struct load load;

	parse(&load.asked, count, arguments);
	signal(SIGALRM, too_long);
	alarm((unsigned)(load.asked.seconds + load.asked.warm_up) + OVERTIME_SECONDS_MAX);
	load.iscsi = log_in("iqn.2026-11.org.lunarsan:libiscsi-load", load.asked.url, &load.lun);
	look_at_disk(&load);
	make_slots(&load);
	run(&load);
	return 0;
}
