/*
 * Single operations on LUNs by libiscsi: the contestant in C of `make bench-java`.
 *
 * Commands come by lines on standard input, each is answered by one line on standard output. The
 * language is that of the contestants in Java (package org.lunarsan.bench.contestant):
 *
 *   open NAME single|raid0|raid1 STRIPE_BYTES URL [URL]   ok BLOCK_BYTES BLOCKS
 *   turn NAME read|write BLOCKS COUNT SEED RANGE_BLOCKS   ok NANOS:-1 ... (COUNT of them)
 *   check NAME read|write BLOCKS SEED RANGE_BLOCKS        ok ADDRESS HASH
 *   close                                                 ok
 *
 * What fails is answered by "error" and why. An operation is cut by the LUN's MAXIMUM TRANSFER
 * LENGTH (SBC-4, Block Limits), all its commands are sent at once, and it ends with the last of
 * them. RAID 0 and 1 are two sessions in one poll loop; stripes are gathered by iovecs, not copied.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

#include "../libiscsi/common.h"

#define INITIATOR "iqn.2026-11.org.lunarsan.bench:libiscsi"
#define DISKS_MAX 8
#define MEMBERS_MAX 2
#define NAME_BYTES_MAX 32
#define LINE_BYTES_MAX 4096
#define OPERATION_BYTES_MAX (64u << 20)
#define COUNT_MAX 100000u
/* Of one command: stripes of an operation that lie on one member. */
#define STRIPES_MAX 4096

enum shape { SINGLE, RAID0, RAID1 };

struct member {
	struct iscsi_context *iscsi;
	int lun;
	uint32_t block_bytes;
	uint64_t blocks;
	/* Most blocks of a command. */
	uint64_t command_blocks;
	/* Commands that were not answered yet. */
	unsigned under_way;
	/* Of the operation under way. libiscsi keeps pointers into `taken` until a command ends. */
	struct scsi_iovec stripes[STRIPES_MAX], taken[2 * STRIPES_MAX];
	unsigned taken_count;
};

struct disk {
	char name[NAME_BYTES_MAX];
	enum shape shape;
	uint64_t stripe_blocks;
	unsigned members;
	uint64_t blocks;
	struct member member[MEMBERS_MAX];
};

/* A part of an operation on one member: blocks, and the memory behind them. */
struct part {
	uint64_t address, blocks;
	struct scsi_iovec *memory;
	int pieces;
};

static struct disk *disks[DISKS_MAX];
static uint8_t *data;

static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("error libiscsi-ops: ", stdout);
	vprintf(format, arguments);
	putchar('\n');
	fflush(stdout);
	va_end(arguments);
	/* Not exit(): libiscsi has nothing that must be told, and may not answer any more. */
	_exit(1);
}

static void fill(uint64_t bytes, uint64_t seed)
{
	uint64_t key = mixed(seed, UINT32_MAX);

	for (uint64_t at = 0; at < bytes; at += sizeof key) {
		uint64_t word = key + at;

		memcpy(data + at, &word, sizeof word);
	}
}

/* FNV-1a's step on words of 64 bits (little-endian), with a fold so that high bits count. */
static uint64_t hash(uint64_t bytes)
{
	uint64_t sum = 0xcbf29ce484222325ull;

	for (uint64_t at = 0; at < bytes; at += sizeof sum) {
		uint64_t word;

		memcpy(&word, data + at, sizeof word);
		sum = (sum ^ word) * 0x100000001b3ull;
		sum ^= sum >> 29;
	}
	return sum;
}

static void look_at_capacity(struct member *member)
{
	struct scsi_task *task = iscsi_readcapacity16_sync(member->iscsi, member->lun);
	struct scsi_readcapacity16 *capacity;

	if (task == NULL || task->status != SCSI_STATUS_GOOD)
		fail("READ CAPACITY (16): %s", iscsi_get_error(member->iscsi));
	capacity = scsi_datain_unmarshall(task);
	if (capacity == NULL || capacity->block_length < 512 || capacity->block_length > 4096)
		fail("the target tells no capacity that makes sense");
	member->block_bytes = capacity->block_length;
	member->blocks = capacity->returned_lba + 1;
	scsi_free_scsi_task(task);
}

static void look_at_limits(struct member *member)
{
	struct scsi_task *task = iscsi_inquiry_sync(member->iscsi, member->lun, 1,
			SCSI_INQUIRY_PAGECODE_BLOCK_LIMITS, 64);
	struct scsi_inquiry_block_limits *limits = NULL;

	member->command_blocks = OPERATION_BYTES_MAX / member->block_bytes;
	if (task != NULL && task->status == SCSI_STATUS_GOOD)
		limits = scsi_datain_unmarshall(task);
	if (limits != NULL && limits->max_xfer_len != 0 &&
	    limits->max_xfer_len < member->command_blocks)
		member->command_blocks = limits->max_xfer_len;
	if (task != NULL)
		scsi_free_scsi_task(task);
}

static void ended(struct iscsi_context *iscsi, int status, void *command, void *private)
{
	struct member *member = private;
	struct scsi_task *task = command;

	if (status == SCSI_STATUS_TIMEOUT)
		fail("a command was not answered within %d s", REQUEST_SECONDS_MAX);
	if (status != SCSI_STATUS_GOOD)
		fail("a command ended with status 0x%x: %s", (unsigned)status,
		     iscsi_get_error(iscsi));
	if (task->residual_status != SCSI_RESIDUAL_NO_RESIDUAL)
		fail("a command moved %zu bytes too few or too many", task->residual);
	scsi_free_scsi_task(task);
	member->under_way--;
}

/* Takes bytes off the front of the memory of a part; how many pieces lie in them. */
static int cut(struct member *member, struct part *part, uint64_t bytes)
{
	int pieces = 0;

	while (bytes > 0) {
		struct scsi_iovec *first = part->memory;
		uint64_t length = first->iov_len < bytes ? first->iov_len : bytes;

		if (member->taken_count == 2 * STRIPES_MAX)
			fail("an operation has too many commands");
		member->taken[member->taken_count++] = (struct scsi_iovec){ first->iov_base, length };
		pieces++;
		bytes -= length;
		first->iov_base = (uint8_t *)first->iov_base + length;
		first->iov_len -= length;
		if (first->iov_len == 0) {
			part->memory++;
			part->pieces--;
		}
	}
	return pieces;
}

/* Sends all commands of a part. */
static void send_part(struct member *member, struct part part, bool writes)
{
	member->taken_count = 0;
	while (part.blocks > 0) {
		uint64_t blocks = part.blocks < member->command_blocks ? part.blocks
								       : member->command_blocks;
		uint32_t bytes = (uint32_t)(blocks * member->block_bytes);
		struct scsi_iovec *taken = &member->taken[member->taken_count];
		int pieces = cut(member, &part, bytes);
		struct scsi_task *task;

		if (writes)
			task = iscsi_write16_iov_task(member->iscsi, member->lun, part.address,
					NULL, bytes, (int)member->block_bytes, 0, 0, 0, 0, 0,
					ended, member, taken, pieces);
		else
			task = iscsi_read16_iov_task(member->iscsi, member->lun, part.address,
					bytes, (int)member->block_bytes, 0, 0, 0, 0, 0,
					ended, member, taken, pieces);
		if (task == NULL)
			fail("a command cannot be sent: %s", iscsi_get_error(member->iscsi));
		member->under_way++;
		part.address += blocks;
		part.blocks -= blocks;
	}
}

/* Which stripes of an operation lie on a member, as one run of blocks there. */
static struct part stripes_of(struct disk *disk, unsigned number, uint64_t address,
			      uint64_t blocks)
{
	struct member *member = &disk->member[number];
	struct part part = { .memory = member->stripes };
	uint64_t done = 0;

	while (done < blocks) {
		uint64_t at = address + done, within = at % disk->stripe_blocks;
		uint64_t stripe = at / disk->stripe_blocks, length = disk->stripe_blocks - within;

		if (length > blocks - done)
			length = blocks - done;
		if (stripe % disk->members == number) {
			if (part.blocks == 0)
				part.address = stripe / disk->members * disk->stripe_blocks + within;
			if (part.pieces == STRIPES_MAX)
				fail("an operation has more than %d stripes", STRIPES_MAX);
			part.blocks += length;
			member->stripes[part.pieces++] = (struct scsi_iovec){
				data + done * member->block_bytes, length * member->block_bytes };
		}
		done += length;
	}
	return part;
}

static void begin(struct disk *disk, bool writes, uint64_t address, uint64_t blocks)
{
	uint64_t bytes = blocks * disk->member[0].block_bytes;

	if (disk->shape == RAID0) {
		for (unsigned at = 0; at < disk->members; at++)
			send_part(&disk->member[at], stripes_of(disk, at, address, blocks),
				  writes);
		return;
	}
	for (unsigned at = 0; at < (writes ? disk->members : 1); at++) {
		struct member *member = &disk->member[at];

		member->stripes[0] = (struct scsi_iovec){ data, bytes };
		send_part(member, (struct part){ address, blocks, member->stripes, 1 }, writes);
	}
}

/* Sends what there is to send, then waits for those sockets that something is expected from. */
static void wait_for(struct disk *disk)
{
	struct pollfd sockets[MEMBERS_MAX];
	unsigned busy;

	do {
		busy = 0;
		for (unsigned at = 0; at < disk->members; at++) {
			struct iscsi_context *iscsi = disk->member[at].iscsi;

			if ((iscsi_which_events(iscsi) & POLLOUT) &&
			    iscsi_service(iscsi, POLLOUT) < 0)
				fail("the session is lost: %s", iscsi_get_error(iscsi));
			sockets[at].fd = iscsi_get_fd(iscsi);
			sockets[at].events = (short)iscsi_which_events(iscsi);
			busy += disk->member[at].under_way;
		}
		if (busy == 0)
			return;
		if (poll(sockets, disk->members, POLL_MILLISECONDS) < 0 && errno != EINTR)
			fail("poll: %s", strerror(errno));
		for (unsigned at = 0; at < disk->members; at++) {
			struct iscsi_context *iscsi = disk->member[at].iscsi;

			if (iscsi_service(iscsi, sockets[at].revents) < 0 ||
			    !iscsi_is_logged_in(iscsi))
				fail("the session is lost: %s", iscsi_get_error(iscsi));
		}
	} while (true);
}

static struct disk *named(const char *name)
{
	for (unsigned at = 0; at < DISKS_MAX && disks[at] != NULL; at++)
		if (strcmp(disks[at]->name, name) == 0)
			return disks[at];
	fail("no disk is called %s", name);
}

static void open_disk(const char *name, const char *shape, uint64_t stripe_bytes,
		      const char *first, const char *second)
{
	struct disk *disk = calloc(1, sizeof *disk);
	unsigned at = 0;

	while (at < DISKS_MAX && disks[at] != NULL)
		at++;
	if (disk == NULL || at == DISKS_MAX || strlen(name) >= sizeof disk->name)
		fail("no room for the disk %s", name);
	disks[at] = disk;
	strcpy(disk->name, name);
	disk->shape = strcmp(shape, "raid0") == 0 ? RAID0
		    : strcmp(shape, "raid1") == 0 ? RAID1 : SINGLE;
	disk->members = second == NULL ? 1 : 2;
	if ((disk->shape == SINGLE) != (disk->members == 1))
		fail("%s: one URL for single, two for raid0 and raid1", shape);
	for (at = 0; at < disk->members; at++) {
		disk->member[at].iscsi =
			log_in(INITIATOR, at == 0 ? first : second, &disk->member[at].lun);
		look_at_capacity(&disk->member[at]);
		look_at_limits(&disk->member[at]);
	}
	if (disk->members == 2 && (disk->member[0].block_bytes != disk->member[1].block_bytes ||
				   disk->member[0].blocks != disk->member[1].blocks))
		fail("the members have not the same size");
	disk->stripe_blocks = stripe_bytes / disk->member[0].block_bytes;
	if (disk->shape == RAID0 && disk->stripe_blocks == 0)
		fail("a stripe has at least a block");
	disk->blocks = disk->member[0].blocks * (disk->shape == RAID0 ? disk->members : 1);
	printf("ok %" PRIu32 " %" PRIu64 "\n", disk->member[0].block_bytes, disk->blocks);
}

/* Where the number'th operation of a seed goes: aligned to its own length. */
static uint64_t place(const struct disk *disk, uint64_t blocks, uint64_t range, uint64_t seed,
		      uint64_t number)
{
	if (range > disk->blocks || blocks == 0 || blocks > range ||
	    blocks > OPERATION_BYTES_MAX / disk->member[0].block_bytes)
		fail("%" PRIu64 " blocks in a range of %" PRIu64 ": that cannot be", blocks, range);
	return mixed(seed, number) % (range / blocks) * blocks;
}

static void turn(struct disk *disk, bool writes, uint64_t blocks, uint64_t count, uint64_t seed,
		 uint64_t range)
{
	static uint64_t nanos[COUNT_MAX];

	if (count > COUNT_MAX)
		fail("a turn has at most %u operations", COUNT_MAX);
	if (writes)
		fill(blocks * disk->member[0].block_bytes, seed);
	for (uint64_t number = 0; number < count; number++) {
		uint64_t address = place(disk, blocks, range, seed, number), begun = now();

		begin(disk, writes, address, blocks);
		wait_for(disk);
		nanos[number] = now() - begun;
	}
	fputs("ok", stdout);
	for (uint64_t number = 0; number < count; number++)
		printf(" %" PRIu64 ":-1", nanos[number]);
	putchar('\n');
}

static void check(struct disk *disk, bool writes, uint64_t blocks, uint64_t seed, uint64_t range)
{
	uint64_t bytes = blocks * disk->member[0].block_bytes;
	uint64_t address = place(disk, blocks, range, seed, 0);

	if (writes)
		fill(bytes, seed);
	else
		memset(data, 0, bytes);
	begin(disk, writes, address, blocks);
	wait_for(disk);
	printf("ok %" PRIu64 " %016" PRIx64 "\n", address, hash(bytes));
}

static void close_all(void)
{
	for (unsigned at = 0; at < DISKS_MAX && disks[at] != NULL; at++) {
		for (unsigned number = 0; number < disks[at]->members; number++) {
			iscsi_logout_sync(disks[at]->member[number].iscsi);
			iscsi_destroy_context(disks[at]->member[number].iscsi);
		}
		free(disks[at]);
		disks[at] = NULL;
	}
	puts("ok");
}

static void answer(const char *line)
{
	static char name[LINE_BYTES_MAX], word[LINE_BYTES_MAX];
	static char first[LINE_BYTES_MAX], second[LINE_BYTES_MAX];
	uint64_t blocks, count, seed, range;
	int read;

	read = sscanf(line, "open %s %s %" SCNu64 " %s %s", name, word, &blocks, first, second);
	if (read >= 4)
		open_disk(name, word, blocks, first, read == 5 ? second : NULL);
	else if (sscanf(line, "turn %s %s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, name, word,
			&blocks, &count, &seed, &range) == 6)
		turn(named(name), strcmp(word, "write") == 0, blocks, count, seed, range);
	else if (sscanf(line, "check %s %s %" SCNu64 " %" SCNu64 " %" SCNu64, name, word, &blocks,
			&seed, &range) == 5)
		check(named(name), strcmp(word, "write") == 0, blocks, seed, range);
	else if (strncmp(line, "close", 5) == 0)
		close_all();
	else
		fail("not understood: %s", line);
	if (fflush(stdout) != 0)
		_exit(1);
}

int main(void)
{
	static char line[LINE_BYTES_MAX];

	data = aligned_alloc(4096, OPERATION_BYTES_MAX);
	if (data == NULL)
		fail("no memory");
	/* Touched once, so that no operation pays for new pages. */
	memset(data, 0, OPERATION_BYTES_MAX);
	while (fgets(line, sizeof line, stdin) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		answer(line);
	}
	return 0;
}
