/* SPDX-License-Identifier: MIT-0 */
/* one_rank - what fuzzers of inits share: a world of one rank, a message, and memory for a plan. */
#ifndef DPAR_ONE_RANK_H
#define DPAR_ONE_RANK_H

#include "dpar_comm.h"
#include "odd_bytes.h"

#include <stdlib.h>
#include <string.h>

static dpar_why why;
static dpar_comm *world;
enum { MOST = 1 << 22 }; /* larger plans are checked, not made */

/* Makes an input, an empty message, and a world that works: a failed move ends the previous one. */
static bytes input_of(const uint8_t *data, size_t size)
{
    bytes in;
    in.data = data;
    in.left = size;
    why.text[0] = 0;
    if (world == NULL || world->status != DPAR_OK) {
        must(world == NULL || dpar_comm_free(world) <= 0);
        must(dpar_init(&world, NULL, &why) == DPAR_OK);
        why.text[0] = 0;
    }
    return in;
}

/* Returns exactly as much memory as `bytes` reported, aligned as init requires; NULL if that is too
 * much for a fuzzer. */
static void *room(int64_t bytes)
{
    void *p = NULL;
    must(bytes >= 0);
    if (bytes > MOST || posix_memalign(&p, 64, bytes > 0 ? (size_t)bytes : 1) != 0) {
        return NULL;
    }
    memset(p, 0x5a, bytes > 0 ? (size_t)bytes : 1);
    return p;
}

#endif
