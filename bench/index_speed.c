/* SPDX-License-Identifier: MIT-0 */
/* index_speed - measures the index arithmetic of dpar.h in three tables:
 *
 *   1. Nanoseconds of a call that finds owner, local or global index, for each split rule.
 * "to_local / by hand" compares it with one division and one remainder written by hand: 1 means as
 * fast, above 1 slower.
 *   2. Milliseconds that one rank takes to list its transfers in a job of a million ranks. "all
 *      pairs /" is the time of intersecting its box with that of every other rank, as a checkpoint
 *      planner that tries all pairs does, over the time of the list: above 1 the list is faster.
 *   3. Milliseconds to choose the grid with the least surface for a million ranks.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/index_speed.c -o build/index_speed && build/index_speed
 *
 * It takes no arguments. Exit codes: 0 done, 2 arguments. */
#define _POSIX_C_SOURCE 199309L
#include "dpar.h"

#include "../helpers/clock.h"

#include <stdio.h>
#include <string.h>

enum { CALLS = 1000000, TIMES = 9 };
static volatile int64_t sink;

/* What a programmer writes for the rule of torch.chunk: owner and local index by one 64-bit
 * division. The divisor is not known to the compiler. */
static int64_t by_hand(const dpar_split *split, int64_t i)
{
    return i / split->by[0] + i % split->by[0];
}

static int64_t nothing(const dpar_split *split, int64_t i)
{
    (void)split;
    return i;
}

static int64_t owner(const dpar_split *split, int64_t i)
{
    return dpar_split_locate(split, i, NULL, NULL);
}

static int64_t to_local(const dpar_split *split, int64_t i)
{
    int64_t local;
    return dpar_split_locate(split, i, &local, NULL) + local;
}

static int64_t to_global(const dpar_split *split, int64_t i)
{
    return dpar_split_global(split, 3, i, NULL);
}

/* Sets `result` to the ns of one call in a loop, in which the call is inlined: the fastest of TIMES
 * passes. The index moves by `step` modulo `limit`, so that no call can be predicted. */
#define NANOSECONDS(result, call, limit, step)                                                     \
    do {                                                                                           \
        int64_t i_, x_ = 0, sum_ = 0, end_ = (limit);                                              \
        double since_, least_ = 1e9;                                                               \
        int pass_;                                                                                 \
        for (pass_ = 0; pass_ < TIMES; pass_++) {                                                  \
            since_ = now();                                                                        \
            for (i_ = 0; i_ < CALLS; i_++) {                                                       \
                x_ += (step);                                                                      \
                x_ = x_ >= end_ ? x_ - end_ : x_;                                                  \
                sum_ += call(&split, x_);                                                          \
            }                                                                                      \
            sink = sum_;                                                                           \
            since_ = (now() - since_) / CALLS * 1e9;                                               \
            least_ = since_ < least_ ? since_ : least_;                                            \
        }                                                                                          \
        (result) = least_;                                                                         \
    } while (0)

static void splits(void)
{
    static const struct {
        const char *name;
        int32_t rule;
        int64_t block;
    } rule[] = {
        {"CHUNK", DPAR_SPLIT_CHUNK, 0},        {"EVEN", DPAR_SPLIT_EVEN, 0},
        {"FLOOR", DPAR_SPLIT_FLOOR, 0},        {"BLOCK_CYCLIC(64)", DPAR_SPLIT_BLOCK_CYCLIC, 64},
        {"STRIDED(8)", DPAR_SPLIT_STRIDED, 8}, {"ZIGZAG", DPAR_SPLIT_ZIGZAG, 0},
        {"CYCLIC", DPAR_SPLIT_CYCLIC, 0}};
    const int64_t count = INT64_C(12345678901234);
    double alone, hand;
    dpar_split split;
    size_t k;
    (void)dpar_split_init(&split, DPAR_SPLIT_CHUNK, count, 999, 0, NULL);
    /* the loop without a call, which is taken off every other time */
    NANOSECONDS(alone, nothing, count, 2654435761);
    NANOSECONDS(hand, by_hand, count, 2654435761);
    hand -= alone;
    printf("one dim of %.3g elements over 999 parts, ns a call (the loop's %.1f taken off)\n",
           (double)count, alone);
    printf("  %-18s owner  global_to_local  local_to_global  to_local / by hand\n", "rule");
    printf("  %-18s            %5.1f\n", "/ and % by hand", hand);
    for (k = 0; k < sizeof rule / sizeof rule[0]; k++) {
        double owner_ns, local_ns, global_ns;
        (void)dpar_split_init(&split, rule[k].rule, count, 999, rule[k].block, NULL);
        NANOSECONDS(owner_ns, owner, count, 2654435761);
        NANOSECONDS(local_ns, to_local, count, 2654435761);
        NANOSECONDS(global_ns, to_global, dpar_split_part_count(&split, 3), 265443);
        printf("  %-18s %5.1f  %15.1f  %15.1f  %10.2f\n", rule[k].name, owner_ns - alone,
               local_ns - alone, global_ns - alone, (local_ns - alone) / hand);
    }
}

static dpar_layout grid(int32_t rows, int32_t columns, const int64_t *extent)
{
    dpar_placement cut[2];
    int32_t size[2];
    dpar_mesh mesh;
    dpar_layout layout;
    size[0] = rows;
    size[1] = columns;
    cut[0] = dpar_shard(0);
    cut[1] = dpar_shard(1);
    (void)dpar_mesh_init(&mesh, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL);
    (void)dpar_layout_init(&layout, &mesh, 2, extent, cut, NULL);
    return layout;
}

/* Returns 1 if two boxes share an element, otherwise 0. */
static int meets(const dpar_box *first, const dpar_box *second)
{
    int32_t d;
    for (d = 0; d < first->dims; d++) {
        if (first->lo[d] >= second->hi[d] || second->lo[d] >= first->hi[d]) {
            return 0;
        }
    }
    return 1;
}

/* Intersects a rank's box with that of every rank of the other side. Returns how many share cells
 * with it. */
static int64_t all_pairs(const dpar_layout *from, const dpar_layout *to, int32_t rank)
{
    int64_t shape[2], lo[2], found = 0;
    dpar_box mine;
    int32_t r;
    int d;
    memset(&mine, 0, sizeof mine);
    mine.dims = 2;
    dpar_layout_local(to, rank, shape, lo);
    for (d = 0; d < 2; d++) {
        mine.lo[d] = lo[d];
        mine.hi[d] = lo[d] + shape[d];
    }
    for (r = 0; r < from->mesh.size; r++) {
        dpar_box other = mine;
        dpar_layout_local(from, r, shape, lo);
        for (d = 0; d < 2; d++) {
            other.lo[d] = lo[d];
            other.hi[d] = lo[d] + shape[d];
        }
        found += meets(&mine, &other);
    }
    return found;
}

/* Returns the seconds that one rank takes for its list, and sets *per_rank to its transfers: means
 * of 20 ranks. */
static double listing(const dpar_layout *from, const dpar_layout *to, int32_t direction,
                      double *per_rank)
{
    enum { RANKS = 20 };
    const dpar_mesh *mesh = direction == DPAR_TRANSFER_SEND ? &from->mesh : &to->mesh;
    static dpar_redistribute_cursor cursor;
    dpar_transfer transfer;
    double since = now();
    int64_t k, listed = 0;
    for (k = 0; k < RANKS; k++) {
        int32_t rank = mesh->first_rank + (int32_t)(k * 52361 % mesh->size);
        (void)dpar_redistribute_first(&cursor, from, to, rank, direction, 8);
        while (dpar_redistribute_next(&cursor, &transfer)) {
            listed++;
        }
    }
    *per_rank = (double)listed / RANKS;
    return (now() - since) / RANKS;
}

static void list(const char *what, const dpar_layout *from, const dpar_layout *to, double pairs)
{
    double per_rank[2], each[2];
    each[0] = listing(from, to, DPAR_TRANSFER_RECV, &per_rank[0]);
    each[1] = listing(from, to, DPAR_TRANSFER_SEND, &per_rank[1]);
    printf("  %-26s %8.1f %9.4f %7.3f %8.1f %9.4f %7.3f %12.0f\n", what, per_rank[0], each[0] * 1e3,
           each[0] * 1e6 / per_rank[0], per_rank[1], each[1] * 1e3, each[1] * 1e6 / per_rank[1],
           pairs / each[0]);
}

static void transfers(void)
{
    static const int64_t extent[] = {1 << 20, 1 << 20}, uneven[] = {128256, 8192};
    static const int32_t rows[] = {512, 64, 8, 1};
    dpar_layout from = grid(1024, 1024, extent), to, all;
    dpar_placement copies[2];
    double since, pairs;
    size_t k;
    since = now();
    (void)all_pairs(&from, &from, 12345);
    pairs = now() - since;
    printf("\n2^20 ranks, 8 a node: one rank's list\n"
           "  %-26s receives  ms each      us    sends   ms each      us   all pairs /\n",
           "from -> to");
    for (k = 0; k < 4; k++) {
        char name[64];
        to = grid(rows[k], (1 << 20) / rows[k], extent);
        snprintf(name, sizeof name, "1024x1024 -> %dx%d", rows[k], (1 << 20) / rows[k]);
        list(name, &from, &to, pairs);
    }
    copies[0] = copies[1] = dpar_replicate();
    to = grid(1024, 1024, extent); /* to ranks of another job: every copy has a reader */
    (void)dpar_layout_init(&all, &to.mesh, 2, extent, copies, NULL);
    to.mesh.first_rank = 1 << 20;
    list("copies -> 1024x1024", &all, &to, pairs);
    to = grid(1024, 1024, uneven);
    (void)dpar_layout_init(&all, &to.mesh, 2, uneven, copies, NULL);
    to.mesh.first_rank = 1 << 20;
    list("128256 x 8192, the same", &all, &to, pairs);
    to = grid(1024, 1024, extent);
    copies[1] = dpar_shard(0); /* HSDP to FSDP: sharded on 1024 ranks, 1024 copies */
    (void)dpar_layout_init(&all, &to.mesh, 2, extent, copies, NULL);
    copies[0] = dpar_shard(0);
    (void)dpar_layout_init(&to, &all.mesh, 2, extent, copies, NULL);
    list("hybrid shards -> all shards", &all, &to, pairs);
}

static void surface(void)
{
    int32_t parts[3] = {0, 0, 0};
    dpar_cart_choose_desc grid;
    int64_t cut;
    double since;
    int k;
    memset(&grid, 0, sizeof grid);
    grid.ranks = 1000000;
    grid.dims = 3;
    grid.cells[0] = 4000;
    grid.cells[1] = 3000;
    grid.cells[2] = 5000;
    since = now();
    for (k = 0; k < 100; k++) {
        memset(parts, 0, sizeof parts);
        (void)dpar_cart_choose_parts(&grid, parts, &cut, NULL);
    }
    printf("\nleast surface for 10^6 ranks, 4000 x 3000 x 5000: %d x %d x %d, %.4f ms\n", parts[0],
           parts[1], parts[2], (now() - since) * 10.0);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "index_speed: argument '%s': this program takes no arguments\n", argv[1]);
        return 2;
    }
    splits();
    transfers();
    surface();
    return 0;
}
