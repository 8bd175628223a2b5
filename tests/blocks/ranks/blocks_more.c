/* SPDX-License-Identifier: MIT-0 */
/* Tests blocks beyond single exchanges: an ocean with continents against one array without blocks,
 * computed by threads; the bits of sums for different owners; ranks that run ahead; ranks without
 * blocks; and errors.
 *     ./blocks_more [processes|threads] [ranks]        without arguments: both, 1 to 5 and 1 to 3 */
#include "dpar_blocks.h"
#include "rank_program.h"
#include "../../../helpers/continents.h"
#include "refused.h"

#include <pthread.h>
#include <unistd.h>

/* ---- an ocean -------------------------------------------------------------------------------- */

enum { ROWS = 60, COLUMNS = 120, HIGH = 8, WIDE = 14, STEPS = 12 };

typedef struct ocean {
    dpar_blocks *blocks;
    dpar_blocks_array *wet, *from, *to;
    int32_t thread;
} ocean;

static int is_wet(int64_t row, int64_t column)
{
    const int64_t latitude = 18000 * row / ROWS - 9000;
    return !is_land(latitude, 36000 * column / COLUMNS - 18000);
}

static double start(int64_t row, int64_t column)
{
    return (double)(scrambled(3, row * COLUMNS + column) % 1000) / 7.0;
}

/* One cell of a step. The neighbours are below, above, left and right. */
static double moved(double u, const double *near, const unsigned char *wet)
{
    double sum = u;
    int k;
    for (k = 0; k < 4; k++) {
        sum += wet[k] ? 0.1 * (near[k] - u) : 0.0;
    }
    return sum;
}

/* Computes a step of every second block. */
static void *compute(void *arg)
{
    const ocean *o = (const ocean *)arg;
    const dpar_blocks *blocks = o->blocks;
    const int64_t *s = o->from->stride, *m = o->wet->stride;
    int32_t i;
    int64_t y, x;
    for (i = o->thread; i < blocks->count; i += 2) {
        const double *u = (const double *)o->from->block[i];
        const unsigned char *wet = (const unsigned char *)o->wet->block[i];
        double *to = (double *)o->to->block[i];
        for (y = 0; y < blocks->block[i].count[0]; y++) {
            for (x = 0; x < blocks->block[i].count[1]; x++) {
                const double *at = u + y * s[0] + x * s[1];
                const unsigned char *is = wet + y * m[0] + x * m[1];
                const double near[4] = {at[-s[0]], at[s[0]], at[-s[1]], at[s[1]]};
                const unsigned char w[4] = {is[-m[0]], is[m[0]], is[-m[1]], is[m[1]]};
                to[y * s[0] + x * s[1]] = *is ? moved(*at, near, w) : 0.0;
            }
        }
    }
    return NULL;
}

/* The same steps on one array. Beyond the last row the grid folds: its neighbour there is in the
 * same row, in the mirrored column. */
static void serial(double *u)
{
    double *next = (double *)zeroed(ROWS * COLUMNS * 8);
    int64_t y, x, k;
    int step;
    for (step = 0; step < STEPS; step++) {
        for (y = 0; y < ROWS; y++) {
            for (x = 0; x < COLUMNS; x++) {
                const int64_t row[4] = {y - 1, y + 1 < ROWS ? y + 1 : y, y, y};
                const int64_t column[4] = {x, y + 1 < ROWS ? x : COLUMNS - 1 - x,
                                           (x + COLUMNS - 1) % COLUMNS, (x + 1) % COLUMNS};
                double near[4] = {0, 0, 0, 0};
                unsigned char wet[4] = {0, 0, 0, 0};
                for (k = 0; k < 4; k++) {
                    if (row[k] >= 0) {
                        near[k] = u[row[k] * COLUMNS + column[k]];
                        wet[k] = (unsigned char)is_wet(row[k], column[k]);
                    }
                }
                next[y * COLUMNS + x] =
                    is_wet(y, x) ? moved(u[y * COLUMNS + x], near, wet) : 0.0;
            }
        }
        memcpy(u, next, ROWS * COLUMNS * 8);
    }
    free(next);
}

static int64_t test_ocean(dpar_comm *comm)
{
    enum { DOWN = (ROWS + HIGH - 1) / HIGH, ACROSS = (COLUMNS + WIDE - 1) / WIDE };
    static unsigned char exists[DOWN * ACROSS];
    static double weight[DOWN * ACROSS];
    double *u = (double *)zeroed(ROWS * COLUMNS * 8);
    dpar_blocks_desc desc;
    dpar_why why;
    ocean o;
    pthread_t other;
    int64_t wrong = 0, y, x;
    int32_t i, step;
    memset(&desc, 0, sizeof desc);
    memset(&o, 0, sizeof o);
    for (y = 0; y < ROWS; y++) {
        for (x = 0; x < COLUMNS; x++) {
            exists[y / HIGH * ACROSS + x / WIDE] |= (unsigned char)is_wet(y, x);
            u[y * COLUMNS + x] = is_wet(y, x) ? start(y, x) : 0.0;
        }
    }
    for (y = 0; y < DOWN * ACROSS; y++) {
        weight[y] = 1.0 + (double)(y % 5);
    }
    desc.dims = 2;
    desc.cells[0] = ROWS;
    desc.cells[1] = COLUMNS;
    desc.block[0] = HIGH;
    desc.block[1] = WIDE;
    desc.halo = 1;
    desc.star = 1;
    desc.periodic[1] = 1;
    desc.folds = 1;
    desc.mirror = 1;
    desc.exists = exists;
    desc.weight = weight;
    CHECK_INT(dpar_blocks_make(comm, &desc, &o.blocks, &why), DPAR_OK);
    CHECK_INT(dpar_blocks_array_make(o.blocks, DPAR_U8, NULL, &o.wet, &why), DPAR_OK);
    CHECK_INT(dpar_blocks_array_make(o.blocks, DPAR_F64, NULL, &o.from, &why), DPAR_OK);
    CHECK_INT(dpar_blocks_array_make(o.blocks, DPAR_F64, NULL, &o.to, &why), DPAR_OK);
    for (i = 0; i < o.blocks->count; i++) {
        const dpar_block *b = &o.blocks->block[i];
        for (y = 0; y < b->count[0]; y++) {
            for (x = 0; x < b->count[1]; x++) {
                ((double *)o.from->block[i])[y * o.from->stride[0] + x] =
                    u[(b->first[0] + y) * COLUMNS + b->first[1] + x];
                ((unsigned char *)o.wet->block[i])[y * o.wet->stride[0] + x] =
                    (unsigned char)is_wet(b->first[0] + y, b->first[1] + x);
            }
        }
    }
    CHECK_INT(dpar_blocks_exchange(o.blocks, o.wet), DPAR_OK);
    for (step = 0; step < STEPS; step++) {
        ocean second = o;
        dpar_blocks_array *was = o.from;
        CHECK_INT(dpar_blocks_exchange(o.blocks, o.from), DPAR_OK);
        second.thread = 1;
        second.from = o.from;
        CHECK_INT(pthread_create(&other, NULL, compute, &second), 0);
        compute(&o);
        CHECK_INT(pthread_join(other, NULL), 0);
        o.from = o.to;
        o.to = was;
    }
    serial(u);
    for (i = 0; i < o.blocks->count; i++) {
        const dpar_block *b = &o.blocks->block[i];
        for (y = 0; y < b->count[0]; y++) {
            wrong += memcmp((double *)o.from->block[i] + y * o.from->stride[0],
                            u + (b->first[0] + y) * COLUMNS + b->first[1],
                            (size_t)b->count[1] * 8) != 0;
        }
    }
    CHECK_INT(dpar_blocks_free(o.blocks), DPAR_OK);
    free(u);
    return wrong;
}

/* ---- the bits of sums ------------------------------------------------------------------------ */

/* Returns a hash of the bits of all own cells after an adjoint of random numbers, for one choice of
 * owners: 0 all blocks on the last rank, 1 any, 2 chosen by weight. */
static int64_t sum_bits(dpar_comm *comm, int choice, int folds, int32_t type)
{
    enum { SIDE = 11, BLOCK = 2, ACROSS = 6 };
    int32_t owner[ACROSS * ACROSS], i;
    dpar_blocks_desc desc;
    dpar_blocks *blocks = NULL;
    dpar_blocks_array *u = NULL;
    int64_t hash = 0, y, x;
    uint64_t seed = 5;
    memset(&desc, 0, sizeof desc);
    desc.dims = 2;
    desc.cells[0] = desc.cells[1] = SIDE;
    desc.block[0] = desc.block[1] = BLOCK;
    desc.halo = 3;
    desc.periodic[0] = !folds;
    desc.periodic[1] = 1;
    desc.folds = folds;
    desc.mirror = 1;
    for (i = 0; i < ACROSS * ACROSS; i++) {
        owner[i] = choice == 0 ? comm->size - 1 : (int32_t)lot_below(&seed, comm->size);
    }
    desc.owner = choice < 2 ? owner : NULL;
    CHECK_INT(dpar_blocks_make(comm, &desc, &blocks, NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_array_make(blocks, type, NULL, &u, NULL), DPAR_OK);
    for (i = 0; i < blocks->count; i++) {
        for (y = -3; y < BLOCK + 3; y++) {
            for (x = -3; x < BLOCK + 3; x++) {
                const int64_t at = (blocks->block[i].number * 100 + y) * 100 + x;
                float_put(u->block[i], y * u->stride[0] + x, type,
                          (double)scrambled(9, at) / 3e7 - 50.0);
            }
        }
    }
    CHECK_INT(dpar_blocks_reduce(blocks, &u, 1, DPAR_SUM), DPAR_OK);
    for (i = 0; i < blocks->count; i++) {
        for (y = 0; y < blocks->block[i].count[0]; y++) {
            for (x = 0; x < blocks->block[i].count[1]; x++) {
                int64_t bits = 0;
                const int32_t bytes = dpar_type_bytes(type);
                memcpy(&bits, (char *)u->block[i] + (y * u->stride[0] + x) * bytes, (size_t)bytes);
                hash += (int64_t)((uint64_t)bits * UINT64_C(0x9e3779b97f4a7c15) *
                                  (uint64_t)(2 * (blocks->block[i].number * 100 + y * 10 + x) + 1) >> 20);
            }
        }
    }
    CHECK_INT(dpar_blocks_free(blocks), DPAR_OK);
    return all_sum(comm, hash);
}

static void test_bits(dpar_comm *comm)
{
    static const int32_t types[3] = {DPAR_F64, DPAR_F32, DPAR_BF16};
    int choice, folds, t;
    for (folds = 0; folds < 2; folds++) {
        for (t = 0; t < 3; t++) {
            const int64_t one = sum_bits(comm, 0, folds, types[t]);
            for (choice = 1; choice < 3; choice++) {
                CHECK_INT(sum_bits(comm, choice, folds, types[t]), one);
            }
        }
    }
}

/* ---- ranks that run ahead -------------------------------------------------------------------- */

/* Values go only from each rank to the next one, which is late in some exchanges, so that the sender
 * is ahead of it. */
static int64_t test_ahead(dpar_comm *comm, int32_t components)
{
    dpar_blocks_field field;
    dpar_blocks_desc desc;
    dpar_blocks *blocks = NULL;
    dpar_blocks_array *u = NULL;
    int64_t wrong = 0;
    uint64_t seed = (uint64_t)comm->rank;
    int round, c;
    memset(&desc, 0, sizeof desc);
    memset(&field, 0, sizeof field);
    field.components = components;
    desc.dims = 1;
    desc.cells[0] = comm->size;
    desc.block[0] = 1;
    desc.halo_low[0] = 1;
    desc.order = DPAR_BLOCKS_ROWS;
    CHECK_INT(dpar_blocks_make(comm, &desc, &blocks, NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_array_make(blocks, DPAR_F64, &field, &u, NULL), DPAR_OK);
    for (round = 0; round < 60; round++) {
        double *own = (double *)u->block[0];
        for (c = 0; c < components; c++) {
            own[c] = round * 1000 + comm->rank * 100 + c;
        }
        if (lot_below(&seed, 8) == 0) {
            usleep(300);
        }
        CHECK_INT(dpar_blocks_exchange(blocks, u), DPAR_OK);
        for (c = 0; c < components && comm->rank > 0; c++) {
            wrong += (int)own[c - components] != round * 1000 + (comm->rank - 1) * 100 + c;
        }
    }
    CHECK_INT(dpar_blocks_free(blocks), DPAR_OK);
    return wrong;
}

/* ---- few blocks ------------------------------------------------------------------------------ */

/* All but `count` blocks are land. */
static void test_few(dpar_comm *comm, int count)
{
    unsigned char exists[16];
    dpar_blocks_desc desc;
    dpar_blocks *blocks = NULL;
    dpar_blocks_array *u = NULL;
    double whole[16 * 9];
    int64_t all;
    int i;
    memset(&desc, 0, sizeof desc);
    memset(exists, 0, sizeof exists);
    memset(exists + 5, 1, (size_t)count);
    desc.dims = 2;
    desc.cells[0] = desc.cells[1] = 12;
    desc.block[0] = desc.block[1] = 3;
    desc.halo = 2;
    desc.periodic[0] = desc.periodic[1] = 1;
    desc.exists = exists;
    CHECK_INT(dpar_blocks_make(comm, &desc, &blocks, NULL), DPAR_OK);
    all = all_sum(comm, blocks->count);
    CHECK_INT(all, count);
    CHECK_INT(dpar_blocks_array_make(blocks, DPAR_F64, NULL, &u, NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_exchange(blocks, u), DPAR_OK);
    CHECK_INT(dpar_blocks_reduce(blocks, &u, 1, DPAR_SUM), DPAR_OK);
    for (i = 0; i < 16 * 9; i++) {
        whole[i] = 1;
    }
    CHECK_INT(dpar_blocks_gather(blocks, u, whole), DPAR_OK);
    for (all = 0, i = 0; i < 16 * 9 && comm->rank == 0; i++) {
        all += whole[i] < 0.5;
    }
    CHECK_INT(all, comm->rank == 0 ? 9 * count : 0);
    CHECK_INT(dpar_blocks_array_free(u), DPAR_OK);
    CHECK_INT(dpar_blocks_free(blocks), DPAR_OK);
}

/* ---- refused --------------------------------------------------------------------------------- */

static dpar_blocks_desc good(void)
{
    dpar_blocks_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.dims = 2;
    desc.cells[0] = desc.cells[1] = 8;
    desc.block[0] = desc.block[1] = 4;
    desc.halo = 1;
    return desc;
}

#define REFUSED_DESC(change, status, words)                                                        \
    do {                                                                                           \
        desc = good();                                                                             \
        change;                                                                                    \
        REFUSED(dpar_blocks_make(c, &desc, &blocks, &why), status, words);                         \
        CHECK(blocks == NULL);                                                                     \
    } while (0)

static void refused_descs(dpar_comm *c)
{
    static const int32_t owners[4] = {0, 0, -1, 0}, outside[4] = {0, 0, 99, 0};
    static const unsigned char exists[4] = {1, 1, 1, 1};
    static const double weight[4] = {1, -1, 1, 1};
    dpar_blocks_desc desc = good();
    dpar_blocks *blocks = NULL;
    dpar_why why;
    const int last = c->rank == c->size - 1;
    REFUSED(dpar_blocks_make(NULL, &desc, &blocks, &why), DPAR_E_ARG, "comm is NULL");
    REFUSED(dpar_blocks_make(c, NULL, &blocks, &why), DPAR_E_ARG, "desc or blocks is NULL");
    REFUSED(dpar_blocks_make(c, &desc, NULL, &why), DPAR_E_ARG, "desc or blocks is NULL");
    REFUSED_DESC(desc.dims = 0, DPAR_E_ARG, "dims is 0");
    REFUSED_DESC(desc.dims = DPAR_MAX_DIMS + 1, DPAR_E_ARG, "dims is 7");
    REFUSED_DESC(desc.star = 2, DPAR_E_ARG, "star is 2");
    REFUSED_DESC(desc.cells[1] = 0, DPAR_E_ARG, "dim 1 has 0 cells in blocks of 4");
    REFUSED_DESC(desc.cells[0] = -8, DPAR_E_ARG, "dim 0 has -8 cells");
    REFUSED_DESC(desc.block[0] = -1, DPAR_E_ARG, "in blocks of -1");
    REFUSED_DESC(desc.halo = -1, DPAR_E_ARG, "halo -1");
    REFUSED_DESC(desc.halo_high[1] = -5, DPAR_E_ARG, "halo_high -5");
    REFUSED_DESC(desc.periodic[0] = 2, DPAR_E_ARG, "periodic 2");
    REFUSED_DESC(desc.cells[1] = INT64_MAX, DPAR_E_RANGE, "use larger blocks");
    REFUSED_DESC((desc.cells[0] = INT64_MAX, desc.block[0] = 0), DPAR_E_RANGE, "");
    REFUSED_DESC(desc.cells[0] = desc.cells[1] = INT64_C(1) << 32, DPAR_E_RANGE, "2^31 - 2 blocks");
    REFUSED_DESC((desc.halo = 200, desc.periodic[0] = 1), DPAR_E_RANGE, "16 times");
    REFUSED_DESC(desc.halo = INT64_MAX, DPAR_E_RANGE, "");
    REFUSED_DESC((desc.folds = 1, desc.mirror = 1), DPAR_E_ARG, "must be a later, periodic dim");
    REFUSED_DESC(desc.cube = 1, DPAR_E_ARG, "a cubed sphere");
    REFUSED_DESC(desc.poles = 9, DPAR_E_ARG, "poles");
    REFUSED_DESC(desc.order = 77, DPAR_E_ARG, "order");
    REFUSED_DESC(desc.weight = weight, DPAR_E_ARG, "weight");
    REFUSED_DESC((desc.owner = owners, desc.exists = exists), DPAR_E_ARG, "owner of block 2 is -1");
    REFUSED_DESC(desc.owner = outside, DPAR_E_ARG, "owner of block 2 is 99");
    if (c->size > 1) { /* one rank differs: all of them fail */
        REFUSED_DESC(desc.cells[1] = last ? 0 : 8, DPAR_E_ARG, "dim 1 has 0 cells");
        REFUSED_DESC(desc.cells[1] = last ? 7 : 8, DPAR_E_MISMATCH, "cells[1] is");
        REFUSED_DESC(desc.block[0] = last ? 3 : 4, DPAR_E_MISMATCH, "block[0] is");
        REFUSED_DESC(desc.halo = last ? 2 : 1, DPAR_E_MISMATCH, "halo_low[0] is");
        REFUSED_DESC(desc.star = last, DPAR_E_MISMATCH, "star is");
        REFUSED_DESC(desc.periodic[1] = last, DPAR_E_MISMATCH, "periodic[1] is");
        REFUSED_DESC(desc.owner = last ? owners : NULL, DPAR_E_MISMATCH, "owner");
        REFUSED(dpar_blocks_make(c, last ? NULL : &desc, &blocks, &why), DPAR_E_ARG, "is NULL");
    }
}

#define REFUSED_FIELD(change, status, words)                                                       \
    do {                                                                                           \
        memset(&field, 0, sizeof field);                                                           \
        change;                                                                                    \
        REFUSED(dpar_blocks_array_make(blocks, DPAR_F64, &field, &u, &why), status, words);        \
        CHECK(u == NULL);                                                                          \
    } while (0)

static void refused_fields(dpar_comm *c, dpar_blocks *blocks)
{
    dpar_blocks_array *u = NULL;
    dpar_blocks_field field;
    dpar_why why;
    const int last = c->rank == c->size - 1;
    REFUSED(dpar_blocks_array_make(NULL, DPAR_F64, NULL, &u, &why), DPAR_E_ARG, "blocks is NULL");
    REFUSED(dpar_blocks_array_make(blocks, DPAR_F64, NULL, NULL, &why), DPAR_E_ARG, "array is NULL");
    REFUSED(dpar_blocks_array_make(blocks, DPAR_F4, NULL, &u, &why), DPAR_E_ARG, "with bytes");
    REFUSED(dpar_blocks_array_make(blocks, -3, NULL, &u, &why), DPAR_E_ARG, "with bytes");
    REFUSED_FIELD(field.components = -1, DPAR_E_ARG, "-1 components of type f64");
    REFUSED_FIELD(field.components = 1 << 30, DPAR_E_ARG, "1073741824 components");
    REFUSED_FIELD(field.planes = 2, DPAR_E_ARG, "planes is 2");
    REFUSED_FIELD(field.order = 9, DPAR_E_ARG, "order is 9");
    REFUSED_FIELD(field.location[1] = 2, DPAR_E_ARG, "location[1] is 2");
    REFUSED_FIELD(field.vector = 2, DPAR_E_ARG, "vector is 2");
    REFUSED_FIELD(field.stride[0] = 10, DPAR_E_ARG, "strides are only for dpar_blocks_attach");
    if (c->size > 1) {
        REFUSED_FIELD(field.components = last ? 2 : 1, DPAR_E_MISMATCH, "components is");
        REFUSED_FIELD(field.planes = last, DPAR_E_MISMATCH, "planes is");
        REFUSED(dpar_blocks_array_make(blocks, last ? DPAR_F32 : DPAR_F64, NULL, &u, &why),
                DPAR_E_MISMATCH, "type is");
    }
    if (blocks->count > 0) {
        void *none[4] = {NULL, NULL, NULL, NULL};
        REFUSED(dpar_blocks_attach(blocks, none, DPAR_F64, NULL, &u, &why), DPAR_E_ARG,
                "dpar_blocks_attach: the address of block 0");
    } else {
        REFUSED(dpar_blocks_attach(blocks, NULL, DPAR_F64, NULL, &u, &why), DPAR_E_ARG, NULL);
    }
    CHECK(u == NULL);
}

/* Checks that a call on this rank fails with words in the communicator's message. */
#define REFUSED_HERE(call, words)                                                                  \
    do {                                                                                           \
        c->why.text[0] = 0;                                                                        \
        CHECK_INT(call, DPAR_E_ARG);                                                               \
        CHECK(strstr(c->why.text, words) != NULL);                                                 \
    } while (0)

static void refused_calls(dpar_comm *c)
{
    dpar_blocks_desc desc = good();
    dpar_blocks *blocks = NULL, *others = NULL;
    dpar_blocks_array *u = NULL, *v = NULL, *two[2], *codes = NULL;
    double whole[64];
    CHECK_INT(dpar_blocks_free(NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_array_free(NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_make(c, &desc, &blocks, NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_make(c, &desc, &others, NULL), DPAR_OK);
    refused_fields(c, blocks);
    CHECK_INT(dpar_blocks_array_make(blocks, DPAR_F64, NULL, &u, NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_array_make(others, DPAR_F64, NULL, &v, NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_array_make(blocks, DPAR_F8, NULL, &codes, NULL), DPAR_OK);
    CHECK_INT(dpar_blocks_exchange(NULL, u), DPAR_E_ARG);
    CHECK_INT(dpar_blocks_reduce(NULL, &u, 1, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_blocks_test(blocks, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_blocks_end(blocks, v), DPAR_E_ARG);
    CHECK_INT(dpar_blocks_test(blocks, u), DPAR_OK); /* nothing is in progress */
    CHECK_INT(dpar_blocks_end(blocks, u), DPAR_OK);
    REFUSED_HERE(dpar_blocks_exchange(blocks, NULL), "array 0 of 1 is NULL or of other blocks");
    REFUSED_HERE(dpar_blocks_exchange(blocks, v), "of other blocks");
    REFUSED_HERE(dpar_blocks_exchange_many(blocks, &u, 0), "0 arrays, but 1 to 4096 are allowed");
    REFUSED_HERE(dpar_blocks_exchange_many(blocks, NULL, 1), "0 arrays");
    two[0] = two[1] = u;
    REFUSED_HERE(dpar_blocks_exchange_many(blocks, two, 2), "array 1 of 2 is twice in the list");
    REFUSED_HERE(dpar_blocks_reduce(blocks, &u, 1, DPAR_COPY), "op is");
    REFUSED_HERE(dpar_blocks_reduce(blocks, &codes, 1, DPAR_SUM), "cannot be combined");
    CHECK_INT(dpar_blocks_begin(blocks, &u, 1), DPAR_OK); /* it works after all these */
    REFUSED_HERE(dpar_blocks_begin(blocks, &u, 1), "has not ended; call dpar_blocks_end first");
    REFUSED_HERE(dpar_blocks_array_free(u), "has not ended");
    REFUSED_HERE(dpar_blocks_free(blocks), "1 exchanges have not ended");
    CHECK_INT(dpar_blocks_gather(blocks, u, whole), DPAR_E_ARG);
    CHECK_INT(dpar_blocks_end(blocks, u), DPAR_OK);
    CHECK_INT(dpar_blocks_gather(blocks, v, whole), DPAR_E_ARG);
    CHECK_INT(dpar_blocks_scatter(blocks, u, NULL), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "whole is NULL on rank 0") != NULL);
    CHECK_INT(dpar_blocks_gather(NULL, u, whole), DPAR_E_ARG);
    two[0] = u;
    two[1] = codes;
    if (c->size > 1) { /* a new plan of different arrays */
        two[c->rank == 0] = u;
        two[c->rank != 0] = codes;
        CHECK_INT(dpar_blocks_exchange_many(blocks, two, 2), DPAR_E_MISMATCH);
        CHECK(strstr(c->why.text, "shape of array 0 is") != NULL);
    }
    two[0] = u;
    two[1] = codes;
    CHECK_INT(dpar_blocks_exchange_many(blocks, two, 2), DPAR_OK);
    CHECK_INT(dpar_blocks_free(others), DPAR_OK);
    CHECK_INT(dpar_blocks_free(blocks), DPAR_OK);
}

/* Several exchanges in progress, two of them of arrays with the same shape. */
static void several(dpar_comm *comm)
{
    dpar_blocks_desc desc = good();
    dpar_blocks *blocks = NULL;
    dpar_blocks_array *u[3];
    int32_t i, k;
    desc.periodic[0] = desc.periodic[1] = 1;
    CHECK_INT(dpar_blocks_make(comm, &desc, &blocks, NULL), DPAR_OK);
    for (k = 0; k < 3; k++) {
        CHECK_INT(dpar_blocks_array_make(blocks, k < 2 ? DPAR_F64 : DPAR_I32, NULL, &u[k], NULL),
                  DPAR_OK);
        for (i = 0; i < blocks->count && k < 2; i++) {
            *(double *)u[k]->block[i] = 10 * (k + 1) + blocks->block[i].number;
        }
    }
    for (k = 0; k < 3; k++) {
        CHECK_INT(dpar_blocks_begin(blocks, &u[k], 1), DPAR_OK);
    }
    for (k = 2; k >= 0; k--) {
        CHECK_INT(dpar_blocks_end(blocks, u[k]), DPAR_OK);
    }
    for (k = 0; k < 2; k++) {
        for (i = 0; i < blocks->count; i++) { /* the cell after the block's first row */
            CHECK_INT(((double *)u[k]->block[i])[4], 10 * (k + 1) + (blocks->block[i].number ^ 1));
        }
    }
    CHECK_INT(dpar_blocks_free(blocks), DPAR_OK);
}

static int test(dpar_comm *comm, void *unused)
{
    const double began = now();
    int64_t wrong = test_ocean(comm);
    (void)unused;
    test_bits(comm);
    wrong += test_ahead(comm, 1);
    wrong += test_ahead(comm, 16);
    test_few(comm, 0);
    test_few(comm, 1);
    test_few(comm, 3);
    several(comm);
    refused_descs(comm);
    refused_calls(comm);
    CHECK_INT(wrong, 0);
    return all_right(comm, wrong + failures(), began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, test, NULL, 5, 3, NULL);
}
