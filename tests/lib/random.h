/* SPDX-License-Identifier: MIT-0 */
/* random: random numbers for tests, the same in each run, from a congruential generator whose seed
 * a test sets first. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

#ifndef PER_RANK /* __thread if ranks are threads */
#define PER_RANK
#endif

static PER_RANK uint32_t random_seed;

/* Returns 0 .. n - 1. */
static inline int below(int n)
{
    random_seed = random_seed * 1664525u + 1013904223u;
    return (int)((random_seed >> 8) % (uint32_t)n);
}

static inline int random_int(int from, int to)
{
    return from + below(to - from + 1);
}
/* Returns 0 or one of 0 .. most. Uses two statements, because the order of two draws in one
 * expression is not defined. */
static inline int random_some(int most)
{
    int some = random_int(0, 1);
    return some * random_int(0, most);
}

#endif
