/* SPDX-License-Identifier: MIT-0 */
/* index_speed - nanoseconds of the index arithmetic, beside a division written by hand; one rank's
 * transfer list in a job of a million ranks, beside intersecting with every other rank (what a
 * checkpoint planner that tries all pairs does).
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/index_speed.c -o build/index_speed && build/index_speed
 */
#define _POSIX_C_SOURCE 199309L
#include "dpar.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { CALLS = 4000000 };
static volatile int64_t sink;

/* What a programmer writes for torch.chunk: owner and local index by one 64-bit division. */
static double by_hand(int64_t count, volatile const int64_t *given)
{
    const int64_t block = *given; /* not known when compiling */
    int64_t i, x = 0, sum = 0;
    double since = now();
    for (i = 0; i < CALLS; i++) {
        x += 2654435761;
        x = x >= count ? x - count : x;
        sum += x / block + x % block;
    }
    sink = sum;
    return (now() - since) / CALLS * 1e9;
}

static double loop_alone(int64_t count)
{
    int64_t i, x = 0, sum = 0;
    double since = now();
    for (i = 0; i < CALLS; i++) {
        x += 2654435761;
        x = x >= count ? x - count : x;
        sum += x;
    }
    sink = sum;
    return (now() - since) / CALLS * 1e9;
}

static double owner(const dpar_split *s)
{
    int64_t i, x = 0, sum = 0;
    double since = now();
    for (i = 0; i < CALLS; i++) {
        x += 2654435761;
        x = x >= s->count ? x - s->count : x;
        sum += dpar_split_owner(s, x);
    }
    sink = sum;
    return (now() - since) / CALLS * 1e9;
}

static double to_local(const dpar_split *s)
{
    int64_t i, x = 0, sum = 0, local;
    double since = now();
    for (i = 0; i < CALLS; i++) {
        x += 2654435761;
        x = x >= s->count ? x - s->count : x;
        sum += dpar_split_find(s, x, &local, NULL) + local;
    }
    sink = sum;
    return (now() - since) / CALLS * 1e9;
}

static double to_global(const dpar_split *s)
{
    int64_t i, x = 0, sum = 0, size = dpar_split_size(s, 3);
    double since = now();
    for (i = 0; i < CALLS; i++) {
        x += 265443;
        x = x >= size ? x - size : x;
        sum += dpar_split_global(s, 3, x, NULL);
    }
    sink = sum;
    return (now() - since) / CALLS * 1e9;
}

static void splits(void)
{
    static const struct {
        const char *name;
        int32_t rule;
        int64_t block;
    } rule[] = {{"CHUNK", DPAR_CHUNK, 0},        {"EVEN", DPAR_EVEN, 0},
                {"FLOOR", DPAR_FLOOR, 0},        {"BLOCK_CYCLIC(64)", DPAR_BLOCK_CYCLIC, 64},
                {"STRIDED(8)", DPAR_STRIDED, 8}, {"ZIGZAG", DPAR_ZIGZAG, 0},
                {"STRIPE", DPAR_STRIPE, 0}};
    const int64_t count = INT64_C(12345678901234);
    volatile const int64_t block = (count + 998) / 999;
    double alone = loop_alone(count), hand = by_hand(count, &block) - alone;
    size_t k;
    printf("one dim of %.3g elements over 999 parts, ns a call (the loop's %.1f taken off)\n",
           (double)count, alone);
    printf("  %-18s owner  global_to_local  local_to_global  to_local / by hand\n", "rule");
    printf("  %-18s            %5.1f\n", "/ and % by hand", hand);
    for (k = 0; k < sizeof rule / sizeof rule[0]; k++) {
        dpar_split s;
        double a, b, c;
        (void)dpar_split_init(&s, rule[k].rule, count, 999, rule[k].block, 0, NULL);
        a = owner(&s) - alone;
        b = to_local(&s) - alone;
        c = to_global(&s) - alone;
        printf("  %-18s %5.1f  %15.1f  %15.1f  %10.2f\n", rule[k].name, a, b, c, b / hand);
    }
}

static dpar_layout grid(int32_t rows, int32_t columns, const int64_t *extent)
{
    static const char *const names[] = {"a", "b"};
    dpar_placement p[2];
    int32_t size[2];
    dpar_mesh m;
    dpar_layout l;
    size[0] = rows;
    size[1] = columns;
    p[0] = dpar_shard(0);
    p[1] = dpar_shard(1);
    (void)dpar_mesh_init(&m, 2, names, size, DPAR_LAST_FASTEST, 0, NULL);
    (void)dpar_layout_init(&l, &m, 2, extent, p, NULL, NULL);
    return l;
}

/* Intersects a rank's box with that of every rank of the other side. */
static int64_t all_pairs(const dpar_layout *from, const dpar_layout *to, int32_t rank)
{
    int64_t shape[2], lo[2], found = 0;
    dpar_box mine, both;
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
        found += dpar_box_intersect(&mine, &other, &both);
    }
    return found;
}

static void transfers(void)
{
    static const int64_t extent[] = {1 << 20, 1 << 20};
    static const int32_t rows[] = {512, 64, 8, 1};
    dpar_layout from = grid(1024, 1024, extent);
    double since, each, pairs;
    size_t k;
    since = now();
    (void)all_pairs(&from, &from, 12345);
    pairs = now() - since;
    printf("\n2^20 x 2^20 array on 1024 x 1024 ranks: one rank's receives\n");
    printf("  %-14s transfers     ms a rank   us a transfer   all pairs / this\n", "to");
    for (k = 0; k < 4; k++) {
        dpar_layout to = grid(rows[k], (1 << 20) / rows[k], extent);
        static dpar_transfers w;
        dpar_transfer t;
        int64_t n = 0, repeat, times = 20;
        char name[32];
        since = now();
        for (repeat = 0; repeat < times; repeat++) {
            (void)dpar_transfers_begin(&w, &from, &to, (int32_t)(repeat * 52361), DPAR_RECEIVES, 8,
                                       NULL);
            while (dpar_transfers_next(&w, &t)) {
                n++;
            }
        }
        each = (now() - since) / (double)times;
        snprintf(name, sizeof name, "%d x %d", rows[k], (1 << 20) / rows[k]);
        printf("  %-14s %9.0f %13.4f %15.3f %18.0f\n", name, (double)n / (double)times, each * 1e3,
               each * 1e6 * (double)times / (double)n, pairs / each);
    }
}

static void surface(void)
{
    static const int64_t extent[] = {4000, 3000, 5000};
    int32_t parts[3] = {0, 0, 0};
    int64_t cut;
    double since = now();
    int k;
    for (k = 0; k < 100; k++) {
        memset(parts, 0, sizeof parts);
        (void)dpar_grid_create(1000000, 3, extent, NULL, 0, parts, &cut, NULL);
    }
    printf("\nleast surface for 10^6 ranks, 4000 x 3000 x 5000: %d x %d x %d, %.4f ms\n", parts[0],
           parts[1], parts[2], (now() - since) * 10.0);
}

int main(void)
{
    splits();
    transfers();
    surface();
    return 0;
}
