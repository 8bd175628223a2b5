/* SPDX-License-Identifier: MIT-0 */
/* random_bits: 64 random bits for tests, the same in each run, by xorshift64*. */
#ifndef RANDOM_BITS_H
#define RANDOM_BITS_H

#include <stdint.h>

static uint64_t random_state = 88172645463325252u;

static inline uint64_t random_bits(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

#endif
