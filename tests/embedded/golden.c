/* SPDX-License-Identifier: MIT-0 */
/* golden - what dpar.h, dpar_schedule.h and, where a double has 64 bits, dpar_cost.h answer, as
 * sums of a line each. They are the same on every target: golden.txt beside this file, which
 * tests/compile/targets.sh compares. GOLDEN_SMALL: what takes 16 KB of data. */
#define DPAR_IMPLEMENTATION
#define DPAR_STATIC
#include <float.h>
#if DBL_MANT_DIG == 53 && !defined(GOLDEN_SMALL)
#include "dpar_cost.h"
#else
#include "dpar_schedule.h"
#endif

#include "say.h"

#ifdef GOLDEN_SMALL
enum { CELLS = 320 };
#else
enum { CELLS = 4096 };
#endif
static int64_t memory[CELLS], more[CELLS];

/* FNV-1a of the 8 bytes of each number, the lowest first: no matter how they lie in memory. */
static uint64_t sum;
static void add(int64_t v)
{
    uint64_t u = (uint64_t)v;
    int k;
    for (k = 0; k < 8; k++) {
        sum = (sum ^ (u & 255u)) * UINT64_C(1099511628211);
        u >>= 8;
    }
}

/* What was added since the last line, under this name. */
static void line(const char *name)
{
    char digits[18];
    int k;
    for (k = 15; k >= 0; k--) {
        digits[k] = "0123456789abcdef"[sum & 15u];
        sum >>= 4;
    }
    digits[16] = '\n';
    digits[17] = 0;
    say(name);
    say(" ");
    say(digits);
    sum = UINT64_C(14695981039346656037);
}

static void splits(void)
{
    static const int64_t counts[4] = {0, 10, 1000000007, INT64_C(1) << 62}, cuts[4] = {0, 3, 3, 10};
    dpar_split s;
    int32_t rule, n, p;
    for (rule = 0; rule < DPAR_SPLIT_RULE_COUNT; rule++) {
        for (n = 0; n < 4; n++) {
            if ((rule == DPAR_SPLIT_RAGGED
                     ? dpar_split_init_ragged(&s, 3, cuts, NULL)
                     : dpar_split_init(&s, rule, counts[n], 7, 3, NULL)) != DPAR_OK) {
                add(-1);
                continue;
            }
            for (p = 0; p < s.parts; p++) {
                int64_t local = 0, run = 0;
                add(dpar_split_part_count(&s, p));
                add(dpar_split_part_first(&s, p));
                add(dpar_split_locate(&s, s.count / 7 * p, &local, &run));
                add(local);
                add(run);
            }
        }
    }
    line("splits");
}

static void transfer(const dpar_transfer *t)
{
    int32_t d;
    add(t->peer);
    add(t->op);
    add(t->flip);
    add(t->turn);
    for (d = 0; d < t->dims; d++) {
        add(t->extent[d]);
        add(t->mine[d]);
        add(t->theirs[d]);
        add(t->global[d]);
    }
}

static dpar_layout laid(const char *names, int32_t a, int32_t b, dpar_placement first,
                        dpar_placement second)
{
    static const int64_t extent[3] = {23, 10, 4};
    int32_t sizes[2];
    dpar_mesh mesh;
    dpar_layout l;
    sizes[0] = a;
    sizes[1] = b;
    if (dpar_mesh_init(&mesh, names, sizes, DPAR_ORDER_LAST_FASTEST, 0, NULL) != DPAR_OK) {
        say("no mesh\n");
    }
    {
        dpar_placement cut[2];
        cut[0] = first;
        cut[1] = second;
        if (dpar_layout_init(&l, &mesh, 3, extent, cut, NULL) != DPAR_OK) {
            say("no layout\n");
        }
    }
    return l;
}

static void layouts(void)
{
    dpar_layout l = laid("dp tp", 4, 2, dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 3),
                         dpar_shard_by(0, DPAR_SPLIT_EVEN, 0));
    int32_t r, d;
    for (r = 0; r < l.mesh.size; r++) {
        int64_t shape[3], offset[3];
        dpar_layout_local(&l, r, shape, offset);
        for (d = 0; d < 3; d++) {
            add(shape[d]);
            add(offset[d]);
            add(dpar_layout_global(&l, r, d, 1, NULL));
        }
        add(dpar_mesh_group_index(&l.mesh, 1, r));
        add(dpar_mesh_shift(&l.mesh, r, 0, 3, 1));
    }
    line("layouts");
}

static void moves(const char *name, const dpar_layout *from, const dpar_layout *to)
{
    static dpar_redistribute_cursor w;
    dpar_transfer t;
    int32_t r, direction;
    for (r = 0; r < 8; r++) {
        for (direction = 0; direction < 2; direction++) {
            add(dpar_redistribute_first(&w, from, to, r, direction, 4));
            while (dpar_redistribute_next(&w, &t)) {
                transfer(&t);
            }
        }
    }
    line(name);
}

static void transfers(void)
{
    dpar_layout from = laid("dp tp", 4, 2, dpar_shard(0), dpar_shard(1));
    dpar_layout to = laid("x y", 2, 4, dpar_shard_by(1, DPAR_SPLIT_ZIGZAG, 0), dpar_replicate());
    moves("transfers-shards", &from, &to);
    from = laid("dp tp", 4, 2, dpar_shard_by(0, DPAR_SPLIT_STRIDED, 2), dpar_partial(DPAR_SUM));
    moves("transfers-partial", &from, &to);
    moves("transfers-copies", &to, &to);
}

static void walk_halo(const char *name, const dpar_halo *h)
{
    dpar_halo_cursor w;
    dpar_transfer t;
    int32_t r, way;
    for (r = 0; r < h->grid.mesh.size; r++) {
        for (way = 0; way < 2; way++) {
            add(dpar_halo_first(&w, h, r, way, way == 0 ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT,
                                NULL));
            while (dpar_halo_next(&w, &t)) {
                transfer(&t);
            }
        }
    }
    line(name);
}

static void halos(void)
{
    static dpar_halo h;
    int32_t d;
    h.grid = laid("y x", 2, 2, dpar_shard(0), dpar_shard_by(1, DPAR_SPLIT_EVEN, 0));
    for (d = 0; d < 3; d++) {
        h.low[d] = 1;
        h.high[d] = 2;
    }
    walk_halo("halo-star", &h);
    h.shape = DPAR_STENCIL_BOX;
    h.periodic = 6;
    walk_halo("halo-box-periodic", &h);
    h.folds = h.mirror = 1;
    h.on_row = 1;
    walk_halo("halo-tripolar", &h);
    h.folds = h.mirror = h.on_row = 0;
    h.poles = DPAR_HALO_POLE_LOW | DPAR_HALO_POLE_HIGH;
    walk_halo("halo-poles", &h);
    h.poles = 0;
    h.periodic = 0;
    h.points[0] = DPAR_HALO_AT_LOW_FACES;
    h.points[1] = DPAR_HALO_AT_HIGH_FACES;
    walk_halo("halo-faces", &h);
    h.points[0] = h.points[1] = DPAR_HALO_AT_CELLS;
    h.low[0] = h.high[0] = 0;
    h.window[0].kernel = 5;
    h.window[0].stride = 2;
    h.window[0].pad_low = h.window[0].pad_high = 2;
    walk_halo("halo-window", &h);
}

static void samples(void)
{
    static dpar_sampler s;
    int32_t r;
    int64_t k;
    s.ranks = 3;
    s.count = INT64_C(1000000007);
    s.shuffle = 1;
    s.seed = 42;
    add(dpar_sampler_init(&s, NULL));
    for (r = 0; r < 3; r++) {
        for (k = 0; k < 1000000; k += 99991) {
            add(dpar_sampler_at(&s, r, k));
        }
    }
    for (r = 0; r < 200; r++) {
        memory[r] = r;
    }
    add(dpar_sampler_shuffle(memory, 200, 7, (dpar_mt19937 *)(void *)more, NULL));
    for (r = 0; r < 200; r++) {
        add(memory[r]);
    }
    line("samples");
}

static void carts(void)
{
    static const int32_t ranks[4] = {6, 60, 1001, 65536};
    static const int64_t cells[3] = {100, 300, 20};
    int32_t parts[3], n, d;
    for (n = 0; n < 4; n++) {
        parts[0] = parts[1] = parts[2] = 0;
        add(dpar_cart_dims(ranks[n], 3, parts, NULL));
        for (d = 0; d < 3; d++) {
            int64_t first[3] = {0, 0, 0}, count[3] = {0, 0, 0};
            add(parts[d]);
            add(dpar_cart_range(3, cells, parts, ranks[n] - 1 - d, first, count));
            add(first[d]);
            add(count[d]);
        }
    }
    line("carts");
}

static void listed(const dpar_schedule *s)
{
    int64_t k;
    for (k = 0; k < s->begin[s->ranks]; k++) {
        const dpar_action *a = &s->action[k];
        add(a->kind);
        add(a->joined);
        add(a->stage);
        add(a->micro_batch);
        add(a->peer);
    }
}

static void schedules(int32_t ranks, int32_t micros, int lower)
{
    static dpar_schedule_desc o;
    dpar_schedule s, lowered;
    dpar_why why;
    o.ranks = ranks;
    o.micro_batches = micros;
    for (o.rule = 1; o.rule < DPAR_SCHEDULE_END; o.rule++) {
        if (dpar_schedule_generate(&s, &o, memory, sizeof memory, &why) != DPAR_OK) {
            say(why.text);
            say("\n");
            continue;
        }
        listed(&s);
        if (lower) {
            dpar_schedule_lower_desc how = {0, 0, 0};
            how.passes = DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE | DPAR_LOWER_MESSAGES;
            add(dpar_schedule_lower(&lowered, &s, &how, more, sizeof more, NULL));
            listed(&lowered);
        }
        say(lower ? "lowered-" : "schedule-");
        line(dpar_schedule_name(o.rule));
    }
}

#ifdef DPAR_COST_H
/* The choices of the best plan, exactly; bytes and seconds to four digits, since a compiler may
 * round sums of doubles its own way. */
static void plans(void)
{
    static const char *const job[4][3] = {{"llama-2-13b", "2x8:a100-40", "batch=1024"},
                                          {"llama-3-70b", "8x8:h100-80", "batch=512"},
                                          {"mixtral-8x7b", "4x8:h100-80", "batch=512"},
                                          {"gpt-oss-20b", "dgx-h100", "batch=256"}};
    static dpar_plan_result plan;
    int k;
    for (k = 0; k < 4; k++) {
        dpar_why why;
        const dpar_strategy *s = &plan.plan[0].strategy;
        double step;
        if (dpar_plan_search(job[k][0], job[k][1], job[k][2], &plan, &why) < 0) {
            say(why.text);
            say("\n");
            continue;
        }
        add(s->tp);
        add(s->cp);
        add(s->dp);
        add(s->zero);
        add(s->pp);
        add(s->vp);
        add(s->schedule);
        add(s->ep);
        add(s->micro_batch);
        add(s->recompute);
        add((int64_t)(plan.memory * 1e-7 + 0.5));
        for (step = plan.step; step < 1000.0; step *= 10.0) {
        }
        add((int64_t)(step + 0.5));
        say("plan-");
        line(job[k][0]);
    }
}
#endif

int main(void)
{
    begin();
    sum = UINT64_C(14695981039346656037);
    splits();
    layouts();
    transfers();
    halos();
    samples();
    carts();
    schedules(2, 4, 0);
#ifndef GOLDEN_SMALL
    schedules(4, 8, 1);
#endif
#ifdef DPAR_COST_H
    plans();
#endif
    end(0);
    return 0;
}
