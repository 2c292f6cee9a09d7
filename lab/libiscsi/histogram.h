/*
 * How long requests took: counts in buckets, 64 for each power of two, so that a percentile is
 * right to 1.6 %.
 */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

/* 2^SUB_BITS buckets for each power of two. */
#define SUB_BITS 6
#define BUCKETS ((64 - SUB_BITS + 1) << SUB_BITS)

/* Of nanoseconds. All zeroes: nothing was added. */
struct histogram {
	uint64_t buckets[BUCKETS];
	uint64_t count, most;
	double sum;
};

static inline void histogram_add(struct histogram *into, uint64_t value)
{
	unsigned shift = 0, index;

	/* Values below 2^(SUB_BITS + 1) have a bucket each. */
	if (value >> (SUB_BITS + 1))
		shift = 63 - SUB_BITS - (unsigned)__builtin_clzll(value);
	index = (shift << SUB_BITS) + (unsigned)(value >> shift);
	into->buckets[index]++;
	into->count++;
	into->sum += (double)value;
	if (value > into->most)
		into->most = value;
}

static inline double histogram_mean(const struct histogram *of)
{
	return of->count ? of->sum / (double)of->count : 0;
}

/* So much of a hundred took no longer: the upper end of that bucket; 0 if there were none. */
static inline double histogram_percentile(const struct histogram *of, double percent)
{
	double wanted = percent / 100 * (double)of->count;
	uint64_t seen = 0;

	for (unsigned index = 0; index < BUCKETS; index++) {
		unsigned shift = index >> (SUB_BITS + 1) ? (index >> SUB_BITS) - 1 : 0;
		uint64_t first = (uint64_t)(index - (shift << SUB_BITS)) << shift;

		seen += of->buckets[index];
		if (of->buckets[index] && (double)seen >= wanted) {
			uint64_t end = first + ((uint64_t)1 << shift);

			return (double)(end < of->most ? end : of->most);
		}
	}
	return 0;
}

#endif
