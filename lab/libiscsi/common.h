/*
 * Parts that the programs on libiscsi share: the clock, random numbers, the login.
 */
#ifndef LUNAR_LIBISCSI_COMMON_H
#define LUNAR_LIBISCSI_COMMON_H

#include <stdint.h>
#include <time.h>

#include <iscsi/iscsi.h>

/* A request, the login and the logout take at most so many seconds each. */
#define REQUEST_SECONDS_MAX 30
#define POLL_MILLISECONDS 1000
#define NANOS 1000000000ull

/* Tells why the program cannot go on, in its own way, and ends it. */
static void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * NANOS + (uint64_t)time.tv_nsec;
}

/* The number'th output of SplitMix64 (Steele, Lea, Flood 2014), as in crates/lunar-load. */
static uint64_t mixed(uint64_t seed, uint64_t number)
{
	uint64_t z = seed + (number + 1) * 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* Opens a session of one connection for the LUN of a URL, whose number goes to `lun`. */
static struct iscsi_context *log_in(const char *initiator, const char *text, int *lun)
{
	struct iscsi_context *iscsi = iscsi_create_context(initiator);
	struct iscsi_url *url;

	if (iscsi == NULL)
		fail("no memory for a session");
	url = iscsi_parse_full_url(iscsi, text);
	if (url == NULL)
		fail("%s: %s", text, iscsi_get_error(iscsi));
	*lun = url->lun;
	iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE);
	iscsi_set_targetname(iscsi, url->target);
	iscsi_set_timeout(iscsi, REQUEST_SECONDS_MAX);
	if (iscsi_full_connect_sync(iscsi, url->portal, url->lun) != 0)
		fail("cannot log in to %s; does a target listen there? %s", text,
		     iscsi_get_error(iscsi));
	/* From here on: before, it would hide why nobody answers. */
	iscsi_set_noautoreconnect(iscsi, 1);
	iscsi_destroy_url(url);
	return iscsi;
}

#endif
