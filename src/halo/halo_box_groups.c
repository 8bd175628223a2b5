/* SPDX-License-Identifier: MIT-0 */
/* Copies two boxes in one loop, or many small boxes from a list.
 *
 * The two boxes on opposite sides of a block are often in the same cache lines and pages, so that
 * one walk over both is faster than two. A box of a few elements takes longer to set up than to
 * copy; a list holds the runs of many such boxes. halo_prepare.c decides which boxes are paired or
 * listed, and halo_run.c moves them.
 *
 * The names are those of strided_loops.h: a run is contiguous on both sides and moved by one of the
 * loops there; a row consists of runs at equal distances; `zero` is the address of the elements
 * that are set to 0 with each run. The number of the loop is a constant in the inlined functions,
 * so that the compiler makes a function for each loop. */
#include "halo_box_groups.h"

#include "../base/arith.h"
#include "../host/strided_loops.h"

#define DPARI_STRIDE_APART                                                                         \
    512 /* least number of bytes between runs for which the hardware does not prefetch;            \
           measured */
#define DPARI_STRIDE_SOON 48  /* lines are prefetched this many runs ahead; measured on a Xeon */
#define DPARI_STRIDE_ASKED 16 /* the least number of runs that are moved between two prefetches */
#define DPARI_STRIDE_ROW 128  /* the most runs of a row that are prefetched at once */
#define DPARI_STRIDE_PACK_PART                                                                     \
    256                            /* bytes of each box that are packed at a time; measured, Xeon  \
                                    */
#define DPARI_STRIDE_PACK_SOON 512 /* packing prefetches this many bytes ahead; measured, Xeon */

/* ---- two pieces in one loop ---- */

/* Two boxes a and b of the same shape. Each run of a is followed by the run of b, whose addresses
 * are to_b, from_b and zero_b bytes further. */
typedef struct dpari_stride_pair dpari_stride_pair;
typedef void dpari_stride_pair_loop(const dpari_stride_pair *k);
struct dpari_stride_pair {
    dpari_stride_rows a;
    int64_t to_b, from_b, zero_b;
    int64_t next;  /* bytes from the target of a run to the line that is prefetched with it */
    int64_t soon;  /* number of runs at the start of a row that prefetch */
    int64_t least; /* the same for the last row, which must not prefetch beyond the box, because a
                      peer may be about to write there */
    dpari_stride_pair_loop *round; /* a loop that sums both boxes at once, or NULL */
};

/* Moves one run of each box. zero: as in dpari_stride_one. */
DPARI_STRIDE_INLINE void dpari_stride_both_one(unsigned char *t, const unsigned char *f,
                                               unsigned char *z, const dpari_stride_pair *r,
                                               int64_t zero_b, int64_t last, int32_t loop, int zero)
{
    const int apart = zero && dpari_stride_sums(loop);
    const unsigned char *f_b = f + r->from_b;
    dpari_stride_one(t, f, apart ? z : dpari_stride_writable(f), last, loop, zero);
    dpari_stride_one(t + r->to_b, f_b, apart ? z + zero_b : dpari_stride_writable(f_b), last, loop,
                     zero);
}

/* Moves both boxes. r is a copy of *pair, which the caller has read once for all loops. Runs that
 * prefetch have a loop of their own, which makes boxes in the first-level cache a tenth faster. */
DPARI_STRIDE_INLINE void dpari_stride_both_of(const dpari_stride_pair *r,
                                              const dpari_stride_pair *pair, int32_t loop, int zero)
{
    const int apart = zero && dpari_stride_sums(loop);
    const int64_t n = r->a.n, to_step = r->a.to_step, from_step = r->a.from_step;
    const int64_t last = r->a.run - dpari_stride_width(loop), next = pair->next, to_b = r->to_b;
    const int64_t zero_step = apart ? pair->a.zero_step : 0;
    const int64_t zero_b = apart ? pair->zero_b : 0;
    unsigned char *to = r->a.to, *z_row = apart ? pair->a.zero : to;
    const unsigned char *from = r->a.from;
    int64_t row, i;
    for (row = pair->a.rows; row > 0; row--) {
        const int64_t soon = dpari_least(row > 1 ? pair->soon : pair->least, n);
        unsigned char *t = to, *z = z_row;
        const unsigned char *f = from;
        for (i = 0; i < soon; i++, t += to_step, f += from_step, z += zero_step) {
            dpari_stride_ask_line(t + next);
            dpari_stride_ask_line(t + to_b + next);
            dpari_stride_both_one(t, f, z, r, zero_b, last, loop, zero);
        }
        for (; i < n; i++, t += to_step, f += from_step, z += zero_step) {
            dpari_stride_both_one(t, f, z, r, zero_b, last, loop, zero);
        }
        to += pair->a.to_row;
        from += pair->a.from_row;
        z_row += apart ? pair->a.zero_row : 0;
    }
}

/* Sums a row's halo cells h and g at its two ends into the own cells at the other ends, and sets
 * them to 0: |h x ... y g| becomes |0 x+g ... y+h 0|. Here h belongs to box a and g to box b. |h x|
 * and |y g| are one vector each, so that one addition makes both sums. */
#if DPARI_STRIDE_VECTOR
DPARI_STRIDE_INLINE void dpari_stride_round_one(unsigned char *low, unsigned char *high,
                                                int32_t bytes, int32_t f64)
{
    dpari_stride_u2 sum = dpari_stride_met(low, high, bytes, f64), first;
    const uint32_t words[4] = {UINT32_MAX, bytes == 8 ? 0 : UINT32_MAX, 0, 0};
    if (dpari_stride_any(dpari_stride_nan(sum, f64))) {
        sum = dpari_stride_quiet(sum, f64);
    }
    dpari_stride_copy(&first, words, sizeof first);
    dpari_stride_put(low, sum & ~first, bytes);
    dpari_stride_put(high, sum & first, bytes);
}

DPARI_STRIDE_INLINE void dpari_stride_round(const dpari_stride_pair *pair, int32_t bytes,
                                            int32_t f64)
{
    const int64_t n = pair->a.n, step = pair->a.to_step, next = pair->next, to_b = pair->to_b;
    int64_t row, i;
    for (row = 0; row < pair->a.rows; row++) {
        const int64_t soon = row + 1 < pair->a.rows ? pair->soon : pair->least;
        unsigned char *high = pair->a.to + row * pair->a.to_row;
        unsigned char *low = dpari_stride_writable(pair->a.from) + row * pair->a.to_row;
        for (i = 0; i < soon; i++, high += step, low += step) {
            dpari_stride_ask_line(high + next);
            dpari_stride_ask_line(high + to_b + next);
            dpari_stride_round_one(low, high, bytes, f64);
        }
        for (; i < n; i++, high += step, low += step) {
            dpari_stride_round_one(low, high, bytes, f64);
        }
    }
}

DPARI_STATIC_NOINLINE void dpari_stride_round_f32(const dpari_stride_pair *pair)
{
    dpari_stride_round(pair, 8, 0);
}

DPARI_STATIC_NOINLINE void dpari_stride_round_f32_2(const dpari_stride_pair *pair)
{
    dpari_stride_round(pair, 16, 0);
}

DPARI_STATIC_NOINLINE void dpari_stride_round_f64(const dpari_stride_pair *pair)
{
    dpari_stride_round(pair, 16, 1);
}

#if DPARI_STRIDE_WIDE
/* Does the same for two cells of f64 at each end. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_round_two(unsigned char *low,
                                                                     unsigned char *high)
{
    const dpari_stride_u4 first = {UINT64_MAX, UINT64_MAX, 0, 0};
    const dpari_stride_u4 sum = dpari_stride_quiet_wide(low, high);
    const dpari_stride_u4 of_low = sum & ~first, of_high = sum & first;
    dpari_stride_copy(low, &of_low, 32);
    dpari_stride_copy(high, &of_high, 32);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_round_f64_2(const dpari_stride_pair *pair)
{
    const int64_t n = pair->a.n, step = pair->a.to_step, next = pair->next, to_b = pair->to_b;
    int64_t row, i;
    for (row = 0; row < pair->a.rows; row++) {
        const int64_t soon = row + 1 < pair->a.rows ? pair->soon : pair->least;
        unsigned char *high = pair->a.to + row * pair->a.to_row;
        unsigned char *low = dpari_stride_writable(pair->a.from) + row * pair->a.to_row;
        for (i = 0; i < soon; i++, high += step, low += step) {
            dpari_stride_ask_line(high + next);
            dpari_stride_ask_line(high + to_b + next);
            dpari_stride_round_two(low, high);
        }
        for (; i < n; i++, high += step, low += step) {
            dpari_stride_round_two(low, high);
        }
    }
}
#endif
#endif

/* True if the two boxes are the ends of the same rows, with sums of `step` bytes, so that the loops
 * above can be used. If b has the low halo, exchanges a and b, because the loops expect the low
 * halo in a. Also returns 0 if x and y overlap, because the block is narrower than its two halos.
 */
static DPARI_UNUSED int dpari_stride_goes_round(dpari_stride_pair *pair, uintptr_t step)
{
    const uintptr_t to = (uintptr_t)pair->a.to, from = (uintptr_t)pair->a.from;
    const uintptr_t to_b = to + (uintptr_t)pair->to_b, from_b = from + (uintptr_t)pair->from_b;
    if (pair->a.to_step != pair->a.from_step || pair->a.to_row != pair->a.from_row) {
        return 0;
    }
    if (from_b == to + step && to_b == from + step) {
        return to >= from + 2 * step;
    }
    if (from != to_b + step || to != from_b + step || to_b < from_b + 2 * step) {
        return 0;
    }
    pair->a.from += pair->from_b;
    pair->a.to += pair->to_b;
    pair->from_b = -pair->from_b;
    pair->to_b = -pair->to_b;
    return 1;
}

/* Returns the loop above that sums both boxes at once, or NULL if there is none. */
static dpari_stride_pair_loop *dpari_stride_round_of(dpari_stride_pair *pair,
                                                     const dpari_stride *stride)
{
#if DPARI_STRIDE_VECTOR
    if (stride->loop == DPARI_STRIDE_SUM_F32 && dpari_stride_goes_round(pair, 4)) {
        return dpari_stride_round_f32;
    }
    if (stride->loop == DPARI_STRIDE_SUM_F32_2 && dpari_stride_goes_round(pair, 8)) {
        return dpari_stride_round_f32_2;
    }
    if (stride->loop == DPARI_STRIDE_SUM_F64 && dpari_stride_goes_round(pair, 8)) {
        return dpari_stride_round_f64;
    }
#endif
#if DPARI_STRIDE_WIDE
    if (stride->loop == DPARI_STRIDE_SUM_F64_2 && stride->wide &&
        dpari_stride_goes_round(pair, 16)) {
        return dpari_stride_round_f64_2;
    }
#endif
    (void)pair, (void)stride;
    return NULL;
}

/* The loops that are compiled for pairs. They cover usual halos, which are one to four elements of
 * 4 or 8 bytes wide. */
#define DPARI_STRIDE_PAIRED_COPIES(X)                                                              \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_PAIRS(X)                                                                      \
    DPARI_STRIDE_PAIRED_COPIES(X)                                                                  \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F32_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64)                                                                        \
    X(DPARI_STRIDE_SUM_F64_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64_4)
#else
#define DPARI_STRIDE_PAIRS(X) DPARI_STRIDE_PAIRED_COPIES(X) DPARI_STRIDE_SUMS(X)
#endif

/* Moves both boxes by one of the loops that dpari_stride_pairs allows. */
DPARI_STRIDE_ALIGNED static void dpari_stride_move_pair(const dpari_stride_pair *pair, int32_t loop)
{
    const dpari_stride_pair r = *pair; /* read here once, and not in each loop */
    if (pair->round) {
        pair->round(pair);
        return;
    }
    switch (2 * loop + pair->a.zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_both_of(&r, pair, id, 0); break;                                     \
    case 2 * id + 1: dpari_stride_both_of(&r, pair, id, 1); break;
        DPARI_STRIDE_PAIRS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default: break;
    }
}

/* True if the loop is compiled for pairs. */
static int dpari_stride_has_pair(int32_t loop)
{
    switch (loop) {
#define DPARI_STRIDE_CASE(id) case id:
        DPARI_STRIDE_PAIRS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
        return 1;
    default: return 0;
    }
}

/* True if one loop can move both boxes. They must be short copies or sums with the same steps. */
static int dpari_stride_pairs(const dpari_stride *a, const dpari_stride *b)
{
    int32_t d;
    for (d = 0; d < 2; d++) {
        if (a->dim[d].to != b->dim[d].to || a->dim[d].from != b->dim[d].from) {
            return 0;
        }
    }
    return a->dims <= 2 && a->loop == b->loop && a->run == b->run && a->ahead == b->ahead &&
           a->each == b->each && a->asks == b->asks && a->packs == b->packs &&
           a->clear == b->clear && (a->beside != 0) == (b->beside != 0) &&
           dpari_stride_has_pair(a->loop);
}

/* Prefetches `bytes` bytes of both boxes. */
static void dpari_stride_ask_both(const unsigned char *at, int64_t to_b, int64_t bytes)
{
    dpari_stride_ask_lines(at, bytes);
    dpari_stride_ask_lines(at + to_b, bytes);
}

/* Packs both boxes through near memory, some rows at a time, as dpari_stride_pack does for one box.
 * Between these parts it prefetches the target lines that are DPARI_STRIDE_PACK_SOON bytes ahead.
 * More prefetches at once than a core can have in progress would delay the lines that it reads.
 * (Blocks of 32^3 cut along the contiguous dim take 5.9 us on a Xeon, but 6.4 us in parts of 2048
 * bytes.) */
static void dpari_stride_pack_pair(const dpari_stride_pair *pair, int32_t loop)
{
    unsigned char room[2][DPARI_STRIDE_PACK];
    const int64_t row = pair->a.n * pair->a.run, bytes = pair->a.rows * row;
    const int64_t most = dpari_most(1, DPARI_STRIDE_PACK_PART / row);
    dpari_stride_pair some = *pair;
    int64_t at, asked = dpari_least(bytes, DPARI_STRIDE_PACK_SOON);
    some.a.to = room[0];
    some.to_b = DPARI_STRIDE_PACK;
    some.soon = some.least = 0;
    dpari_stride_ask_both(pair->a.to, pair->to_b, asked);
    for (at = 0; at < bytes; at += some.a.rows * row) {
        const int64_t next = dpari_least(at + most * row, bytes), part = next - at;
        const int64_t soon = dpari_least(next + DPARI_STRIDE_PACK_SOON, bytes);
        some.a.rows = part / row;
        dpari_stride_move_pair(&some, loop);
        dpari_stride_ask_both(pair->a.to + asked, pair->to_b, soon - asked);
        asked = soon;
        dpari_stride_copy(pair->a.to + at, room[0], part);
        dpari_stride_copy(pair->a.to + at + pair->to_b, room[1], part);
        some.a.from += some.a.rows * pair->a.from_row;
    }
}

/* Describes the pair of box a at to[0], from[0] and box b at to[1], from[1], and decides which
 * lines are prefetched: those of the next row if rows are short, otherwise those some runs ahead.
 */
static void dpari_stride_pair_of(dpari_stride_pair *pair, const dpari_stride *a,
                                 unsigned char *const *to, const unsigned char *const *from,
                                 const dpari_stride *b)
{
    pair->a.to = to[0];
    pair->a.from = from[0];
    pair->a.n = a->dim[0].count;
    pair->a.rows = a->dim[1].count;
    dpari_stride_steps(a, &pair->a);
    pair->to_b = (int64_t)((uintptr_t)to[1] - (uintptr_t)to[0]);
    pair->from_b = (int64_t)((uintptr_t)from[1] - (uintptr_t)from[0]);
    pair->zero_b = a->beside != 0 ? pair->to_b + b->beside - a->beside : pair->from_b;
    pair->round = a->clear && a->each == 0 ? dpari_stride_round_of(pair, a) : NULL;
    pair->next = pair->soon = pair->least = 0;
    if (a->asks && pair->a.n <= DPARI_STRIDE_ROW) {
        pair->next = pair->a.to_row;
        pair->soon = pair->a.n;
    } else if (a->asks || dpari_stride_size(pair->a.to_step) >= DPARI_STRIDE_APART) {
        pair->next = DPARI_STRIDE_SOON * pair->a.to_step;
        pair->soon = pair->a.n;
        pair->least = pair->a.n - DPARI_STRIDE_SOON;
    }
}

/* Moves both boxes in parts, which are some rows or a part of a row. Before each part it prefetches
 * the lines of later runs in the memory that another core used last. */
static void dpari_stride_pair_ahead(const dpari_stride *stride, dpari_stride_pair *pair)
{
    const dpari_stride_pair all = *pair;
    const int64_t most = dpari_most(DPARI_STRIDE_ASKED, DPARI_STRIDE_AHEAD / stride->each);
    const int64_t rows = dpari_most(1, most / all.a.n);
    int64_t row, i;
    for (row = 0; row < all.a.rows; row += pair->a.rows) {
        pair->a.rows = dpari_least(rows, all.a.rows - row);
        for (i = 0; i < all.a.n; i += pair->a.n) {
            const int64_t least = row + pair->a.rows < all.a.rows ? all.soon : all.least;
            pair->a.to = all.a.to + row * all.a.to_row + i * all.a.to_step;
            pair->a.from = all.a.from + row * all.a.from_row + i * all.a.from_step;
            pair->a.zero = all.a.zero + row * all.a.zero_row + i * all.a.zero_step;
            pair->a.n = dpari_least(most, all.a.n - i);
            pair->soon = all.soon - i;
            pair->least = least - i;
            dpari_stride_ask_ahead(stride, pair->a.to, pair->a.from, DPARI_STRIDE_AHEAD,
                                   pair->a.rows * pair->a.n * stride->each);
            dpari_stride_ask_ahead(stride, pair->a.to + pair->to_b, pair->a.from + pair->from_b,
                                   DPARI_STRIDE_AHEAD, pair->a.rows * pair->a.n * stride->each);
            dpari_stride_move_pair(pair, stride->loop);
        }
    }
}

/* Moves both boxes in one loop, run by run in turns. Returns 0 if there is no such loop. */
static int dpari_stride_run_pair(const dpari_stride *a, unsigned char *const *to,
                                 const unsigned char *const *from, const dpari_stride *b)
{
    dpari_stride_pair k;
    if (!dpari_stride_pairs(a, b)) {
        return 0;
    }
    dpari_stride_pair_of(&k, a, to, from, b);
    dpari_stride_ask_ahead(a, to[0], from[0], 0, a->first);
    dpari_stride_ask_ahead(b, to[1], from[1], 0, b->first);
    if (a->asks) {
        dpari_stride_ask(a, to[0], 1, dpari_least(k.a.n, DPARI_STRIDE_ROW));
        dpari_stride_ask(b, to[1], 1, dpari_least(k.a.n, DPARI_STRIDE_ROW));
    }
    if (a->packs) {
        dpari_stride_pack_pair(&k, a->loop);
    } else if (a->each > 0) {
        dpari_stride_pair_ahead(a, &k);
    } else {
        dpari_stride_move_pair(&k, a->loop);
    }
    return 1;
}

/* True if two boxes have the same shape, so that dpari_stride_walk can move them in turns. */
static int dpari_stride_alike(const dpari_stride *a, const dpari_stride *b)
{
    int32_t d;
    for (d = 0; d < DPARI_STRIDE_DIMS; d++) {
        if (a->dim[d].count != b->dim[d].count) {
            return 0;
        }
    }
    return a->dims == b->dims && a->loop != DPARI_STRIDE_NONE && b->loop != DPARI_STRIDE_NONE;
}

/* Moves boxes of long runs, or of few elements, one after the other. Moves other boxes in one loop
 * if there is one for both, otherwise in turns, some runs of each. */
DPARI_INTERNAL void dpari_stride_run_beside(const dpari_stride *a, void *to_a, const void *from_a,
                                            const dpari_stride *b, void *to_b, const void *from_b)
{
    const dpari_stride *stride[2];
    unsigned char *to[2];
    const unsigned char *from[2];
    int64_t part = a->part < b->part ? a->part : b->part;
    int64_t turn = a->turn < b->turn ? a->turn : b->turn;
    if (a->run > 64 || a->elements <= DPARI_STRIDE_TURN || !dpari_stride_alike(a, b)) {
        dpari_stride_run(a, to_a, from_a);
        dpari_stride_run(b, to_b, from_b);
        return;
    }
    stride[0] = a;
    stride[1] = b;
    to[0] = (unsigned char *)to_a + a->to_start;
    to[1] = (unsigned char *)to_b + b->to_start;
    from[0] = (const unsigned char *)from_a + a->from_start;
    from[1] = (const unsigned char *)from_b + b->from_start;
    if (dpari_stride_run_pair(a, to, from, b)) {
        return;
    }
    if (!a->packs || !b->packs) {
        turn = turn < DPARI_STRIDE_TURN ? turn : DPARI_STRIDE_TURN;
        while (part > 1 && part * turn > DPARI_STRIDE_TURN) {
            part /= 2;
        }
    }
    dpari_stride_walk(stride, to, from, 2, part, turn);
}

/* ---- lists ---- */

/* The copies that are compiled for lists. */
#define DPARI_STRIDE_LIST_COPIES(X)                                                                \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)

/* Moves the runs of a list. */
DPARI_STRIDE_INLINE void dpari_stride_list_of(const dpari_stride_rows *rows,
                                              const dpari_stride_spot *list, int32_t loop, int zero)
{
    const int64_t n = rows->n, last = rows->run - dpari_stride_width(loop);
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t i;
    for (i = 0; i < n; i++) {
        const unsigned char *f = from + list[i].from;
        dpari_stride_one(to + list[i].to, f, dpari_stride_writable(f), last, loop, zero);
    }
}

/* Moves the runs of a list by the given loop, or one by one if it is not compiled for lists. */
static void dpari_stride_move_list(const dpari_stride_rows *rows, const dpari_stride_spot *list,
                                   int32_t loop)
{
    int64_t i;
    switch (2 * loop + rows->zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_list_of(rows, list, id, 0); break;                                   \
    case 2 * id + 1: dpari_stride_list_of(rows, list, id, 1); break;
        DPARI_STRIDE_LIST_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default:
        for (i = 0; i < rows->n; i++) {
            dpari_stride_rows one = *rows;
            one.n = 1;
            one.to = rows->to + list[i].to;
            one.from = rows->from + list[i].from;
            one.zero = dpari_stride_writable(one.from);
            dpari_stride_move(&one, loop);
        }
        break;
    }
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_stride_list(const dpari_stride *stride, int64_t to_at,
                                                    int64_t from_at, dpari_stride_spot *list)
{
    int64_t runs = 1, k;
    int32_t d;
    if (stride->loop == DPARI_STRIDE_NONE || stride->loop == DPARI_STRIDE_LONG ||
        stride->loop >= DPARI_STRIDE_DENSE ||
        (stride->clear && stride->loop == DPARI_STRIDE_MIDDLE) || stride->beside != 0) {
        return 0;
    }
    for (d = 0; d < stride->dims; d++) {
        runs *= stride->dim[d].count;
        if (runs > DPARI_STRIDE_FEW) {
            return 0;
        }
    }
    for (k = 0; k < runs; k++) {
        int64_t to = to_at + stride->to_start, from = from_at + stride->from_start, rest = k;
        for (d = 0; d < stride->dims; d++) {
            to += rest % stride->dim[d].count * stride->dim[d].to;
            from += rest % stride->dim[d].count * stride->dim[d].from;
            rest /= stride->dim[d].count;
        }
        if (to != (int32_t)to || from != (int32_t)from) {
            return 0;
        }
        list[k].to = (int32_t)to;
        list[k].from = (int32_t)from;
    }
    return (int32_t)runs;
}

DPARI_INTERNAL int dpari_stride_lists_alike(const dpari_stride *a, const dpari_stride *b)
{
    return a->loop == b->loop && a->run == b->run && a->clear == b->clear;
}

/* ---- groups ---- */

DPARI_INTERNAL DPARI_COLD int dpari_stride_groups(const dpari_stride *a, const dpari_stride *b,
                                                  int64_t apart, int takes)
{
    const dpari_stride_dim *outer = &a->dim[a->dims == 2];
    int32_t d;
    for (d = 0; d < 2; d++) {
        if (a->dim[d].to != b->dim[d].to || a->dim[d].from != b->dim[d].from) {
            return 0;
        }
    }
    return a->dims <= 2 && b->dims <= 2 && a->dim[1].count == b->dim[1].count &&
           (a->loop == DPARI_STRIDE_8 || a->loop == DPARI_STRIDE_4) && a->loop == b->loop &&
           !a->clear &&
           dpari_stride_size(apart) < dpari_stride_size(takes ? outer->to : outer->from);
}

/* Moves a row of each box, one run of each in turn. Boxes with longer rows come first. */
DPARI_STRIDE_INLINE void dpari_stride_group_row(const dpari_stride *stride,
                                                const dpari_stride_spot *list, int64_t n,
                                                unsigned char *to, const unsigned char *from,
                                                int32_t loop)
{
    const int64_t to_step = stride->dim[0].to, from_step = stride->dim[0].from;
    int64_t i, k;
    for (i = 0; n > 0; i++) {
        for (k = 0; k < n; k += 2) {
            dpari_stride_one(to + list[k].to, from + list[k].from, to, 0, loop, 0);
        }
        to += to_step;
        from += from_step;
        while (n > 0 && list[n - 1].to == i + 1) {
            n -= 2;
        }
    }
}

/* Moves a group. Before each row it prefetches the lines of the next row that another core has used
 * last. */
DPARI_STATIC_NOINLINE void dpari_stride_run_group(const dpari_stride *stride,
                                                  const dpari_stride_spot *list, int64_t n,
                                                  unsigned char *to, const unsigned char *from)
{
    const int64_t bytes = stride->ahead ? stride->dim[0].count * stride->run : 0;
    int64_t row, k;
    for (row = stride->dim[1].count; row > 0; row--) {
        for (k = 0; k < n && row > 1; k += 2) {
            dpari_stride_ask_ahead(stride, to + list[k].to, from + list[k].from, bytes, bytes);
        }
        if (stride->loop == DPARI_STRIDE_8) {
            dpari_stride_group_row(stride, list, n, to, from, DPARI_STRIDE_8);
        } else {
            dpari_stride_group_row(stride, list, n, to, from, DPARI_STRIDE_4);
        }
        to += stride->dim[1].to;
        from += stride->dim[1].from;
    }
}

DPARI_INTERNAL void dpari_stride_run_list(const dpari_stride *stride, const dpari_stride_spot *list,
                                          int64_t n, void *to, const void *from)
{
    dpari_stride_rows k;
    int64_t i;
    if (stride->dim[0].count * stride->dim[1].count > DPARI_STRIDE_FEW) {
        dpari_stride_run_group(stride, list, n, (unsigned char *)to, (const unsigned char *)from);
        return;
    }
    k.to = (unsigned char *)to;
    k.from = (const unsigned char *)from;
    k.zero = k.to;
    k.zeroes = stride->clear;
    k.n = n;
    k.rows = 1;
    k.to_step = k.from_step = k.zero_step = k.to_row = k.from_row = k.zero_row = 0;
    k.run = stride->run;
    for (i = 0; i < n && stride->ahead == DPARI_STRIDE_TO; i++) {
        dpari_stride_ask_line((const unsigned char *)to + list[i].to);
    }
    dpari_stride_move_list(&k, list, stride->loop);
}
