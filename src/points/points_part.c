/* SPDX-License-Identifier: MIT-0 */
/* Partitions points along Hilbert's curve. It implements dpar_points_partition.
 *
 * Each rank sorts its points by their place on the curve and sums their weights. The cuts between
 * parts are then searched for by all ranks together. Every cut has a bracket that is divided in
 * eight: each rank counts its weights below the seven probes, an all-reduce adds them up, and one
 * eighth remains. If several points are at the place of a cut, their ids are searched in the same
 * way. Integers throughout, so that the result does not depend on the distribution of points. */
#include "points_part.h"

#include "../comm/agree.h"
#include "points_order.h"

enum {
    DPARI_PC_PROBES = 7,        /* counts of each cut in a round: a bracket becomes an eighth */
    DPARI_PC_PARTS = 1 << 20,   /* at most */
    DPARI_PC_WEIGHT_BITS = 61,  /* of all weights together */
    DPARI_PC_MANTISSA_BITS = 52 /* a weight has no more */
};

/* ---- the curve --------------------------------------------------------------------------------
 */

DPARI_FN int32_t dpari_pc_bits(int32_t dims)
{
    return dims == 2 ? 31 : 21;
}

/* The transform is J. Skilling's, "Programming the Hilbert curve" (AIP Conf. Proc. 707, 2004, p.
 * 381). From the coarsest level on: at each, the digit that says which half of every dim the cell
 * is in, as Gray's code counts. Below it the curve is mirrored or two of its dims are exchanged, as
 * that half says. */
DPARI_INTERNAL int64_t dpari_points_curve(int32_t dims, const uint32_t *cell)
{
    uint32_t x[3] = {0, 0, 0}, level, flip = 0;
    int64_t place = 0;
    int32_t d;
    if (dims < 2 || dims > 3) {
        return -1;
    }
    for (d = 0; d < dims; d++) {
        x[d] = cell[d];
        if (x[d] >> dpari_pc_bits(dims) != 0) {
            return -1;
        }
    }
    for (level = UINT32_C(1) << (dpari_pc_bits(dims) - 1); level > 0; level >>= 1) {
        const uint32_t below = level - 1;
        uint32_t code = 0;
        for (d = 0; d < dims; d++) {
            code ^= (x[d] & level) != 0;
            place = place * 2 + (int64_t)(code ^ flip);
        }
        flip ^= code;
        for (d = 0; d < dims; d++) {
            const uint32_t change = (x[0] ^ x[d]) & below;
            if ((x[d] & level) != 0) {
                x[0] ^= below;
            } else {
                x[0] ^= change;
                x[d] ^= change;
            }
        }
    }
    return place;
}

/* ---- what is cut ------------------------------------------------------------------------------
 */

/* A cut: the first point of a part, by place and id. */
typedef struct dpari_pc_cut {
    int64_t key, id;
    int64_t low, high; /* what is searched lies between these */
    int64_t weight;    /* of the points before the part begins */
    int32_t behind;    /* 1: the part begins behind that point */
} dpari_pc_cut;

typedef struct dpari_pc {
    dpar_comm *c;
    const dpar_points_partition_desc *d;
    int32_t parts;
    double low[3], half; /* the cube: its corner, half its side */
    double largest;      /* weight */
    double steps;        /* weights of it become so many */
    int64_t first;       /* id of point 0, where they have none */
    int64_t points;      /* of all ranks */
    int64_t weight;      /* in steps, of all ranks */
    dpari_po_item *item; /* sorted: place, id, index */
    int64_t *before;     /* [points + 1] weight of the sorted ones before each */
    dpari_pc_cut *cut;   /* [parts - 1] */
    int64_t *count;      /* [parts - 1][DPARI_PC_PROBES] */
    dpari_po_pages pages;
} dpari_pc;

static DPARI_COLD void dpari_pc_state(dpari_facts *f, const void *given)
{
    const dpar_points_partition_desc *d = (const dpar_points_partition_desc *)given;
    dpari_fact(f, "dims", 0, d->dims);
    dpari_fact(f, "parts", 0, d->parts);
}

static DPARI_COLD dpar_status dpari_pc_check(const dpar_points_partition_desc *d,
                                             const int32_t *owner, dpar_why *why)
{
    int64_t i;
    int32_t k;
    if (!d || d->dims < 2 || d->dims > 3) {
        return dpari_wrong(why, "%d dims: there are 2 or 3", d ? d->dims : 0);
    }
    if (d->count < 0 || d->parts < 0 || d->parts > DPARI_PC_PARTS ||
        (d->count > 0 && (!d->position || !owner))) {
        return dpari_wrong(why, "%ld points, %d parts, position or owner is NULL", d->count,
                           d->parts);
    }
    if (d->count > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "%ld points on a rank: at most 2^31 - 1", d->count);
    }
    for (i = 0; i < d->count; i++) {
        for (k = 0; k < d->dims; k++) {
            if (!dpari_finite(d->position[i * d->dims + k])) {
                return dpari_wrong(why, "point %ld: coordinate %d is not finite", i, k);
            }
        }
        if (d->weight && !(d->weight[i] >= 0 && dpari_finite(d->weight[i]))) {
            return dpari_wrong(why, "point %ld: its weight is negative or not finite", i);
        }
    }
    return DPAR_OK;
}

/* The cube of all points, the largest weight, the number of points. */
static dpar_status dpari_pc_measure(dpari_pc *x, dpar_why *why)
{
    const dpar_points_partition_desc *d = x->d;
    const double none = 1.7976931348623157e308;
    double least[7] = {none, none, none, none, none, none, 0.0}; /* low, -high, -weight */
    int64_t i, all;
    int32_t k;
    dpar_status st;
    for (i = 0; i < d->count; i++) {
        for (k = 0; k < d->dims; k++) {
            least[k] = dpari_leastf(least[k], d->position[i * d->dims + k]);
            least[3 + k] = dpari_leastf(least[3 + k], -d->position[i * d->dims + k]);
        }
        least[6] = dpari_leastf(least[6], d->weight ? -d->weight[i] : -1.0);
    }
    st = dpar_all_reduce(x->c, least, least, 7, DPAR_F64, DPAR_MIN, NULL);
    if (st == DPAR_OK) {
        st = dpar_all_reduce(x->c, &d->count, &x->points, 1, DPAR_I64, DPAR_SUM, NULL);
    }
    if (st != DPAR_OK) {
        return dpari_po_said(x->c, st, why);
    }
    if (x->points > 0 && !(least[6] < 0)) {
        return dpari_wrong(why, "the weights of all %ld points are 0", x->points);
    }
    x->largest = -least[6];
    for (k = 0; k < d->dims; k++) { /* halves: no difference is infinite */
        x->low[k] = least[k];
        x->half = dpari_mostf(x->half, -least[3 + k] / 2 - least[k] / 2);
    }
    x->steps = 1.0;
    for (all = x->points, k = 0;
         k < DPARI_PC_MANTISSA_BITS && all <= INT64_C(1) << (DPARI_PC_WEIGHT_BITS - 1); k++) {
        all *= 2;
        x->steps *= 2;
    }
    return DPAR_OK;
}

static int64_t dpari_pc_place(const dpari_pc *x, const double *at)
{
    const double side = (double)(UINT32_C(1) << dpari_pc_bits(x->d->dims));
    uint32_t cell[3];
    int32_t k;
    for (k = 0; k < x->d->dims; k++) {
        const double share = x->half > 0 ? (at[k] / 2 - x->low[k] / 2) / x->half : 0.0;
        cell[k] = (uint32_t)dpari_leastf(share * side, side - 1);
    }
    return dpari_points_curve(x->d->dims, cell);
}

static int64_t dpari_pc_steps(const dpari_pc *x, int64_t i)
{
    return (int64_t)((x->d->weight ? x->d->weight[i] / x->largest : 1.0) * x->steps + 0.5);
}

/* Own points along the curve, and their weights. */
static dpar_status dpari_pc_line_up(dpari_pc *x, dpar_why *why)
{
    const dpar_points_partition_desc *d = x->d;
    const int64_t n = d->count, cuts = x->parts - 1;
    dpar_status st = DPAR_OK;
    dpari_po_item *item = (dpari_po_item *)dpari_po_take(&x->pages, 2 * n, sizeof *item, &st, why);
    int64_t i;
    x->before = (int64_t *)dpari_po_take(&x->pages, n + 1, 8, &st, why);
    x->cut = (dpari_pc_cut *)dpari_po_take(&x->pages, cuts, sizeof *x->cut, &st, why);
    x->count = (int64_t *)dpari_po_take(&x->pages, DPARI_PC_PROBES * cuts, 8, &st, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < n; i++) {
        item[i].key = dpari_pc_place(x, d->position + i * d->dims);
        item[i].id = d->id ? d->id[i] : x->first + i;
        item[i].at = i;
    }
    x->item = dpari_po_sort(item, item + n, n);
    for (i = 0; i < n; i++) {
        x->before[i + 1] = x->before[i] + dpari_pc_steps(x, x->item[i].at);
    }
    return DPAR_OK;
}

/* ---- cuts -------------------------------------------------------------------------------------
 */

/* How many own points come before (key, id); with = 1: and are there. */
static int64_t dpari_pc_rank(const dpari_pc *x, int64_t key, int64_t id, int32_t with)
{
    int64_t low = 0, high = x->d->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (dpari_po_compare(&x->item[middle], key, id) < with) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ceil(times k T / parts) without overflow: times <= 2, k < parts <= 2^20, T <= 2^61. */
static int64_t dpari_pc_share(const dpari_pc *x, int64_t k, int64_t times)
{
    return times * (x->weight / x->parts) * k +
           dpari_ceil_div(times * (x->weight % x->parts) * k, x->parts);
}

/* Where probe j of a bracket is: low + an eighth of it, two eighths, ..., below high. */
static int64_t dpari_pc_probe(const dpari_pc_cut *cut, int64_t j)
{
    const uint64_t span = (uint64_t)cut->high - (uint64_t)cut->low;
    const uint64_t part = span / (DPARI_PC_PROBES + 1) + 1;
    uint64_t at = part * (uint64_t)(j + 1) - 1;
    at = at < span ? at : span - 1;
    return (int64_t)((uint64_t)cut->low + at);
}

static DPARI_COLD dpar_status dpari_pc_add(dpari_pc *x, int64_t each, dpar_why *why)
{
    return dpari_po_said(
        x->c,
        dpar_all_reduce(x->c, x->count, x->count, each * (x->parts - 1), DPAR_I64, DPAR_SUM, NULL),
        why);
}

/* Searches for each cut the smallest number in its bracket up to which points weigh as much as it
 * wants: places, then ids at its place. */
static dpar_status dpari_pc_search(dpari_pc *x, int by_id, dpar_why *why)
{
    const int64_t cuts = x->parts - 1;
    dpar_status st = DPAR_OK;
    int64_t i, j, open = cuts;
    while (open > 0 && st == DPAR_OK) {
        for (i = open = 0; i < cuts; i++) {
            const dpari_pc_cut *cut = &x->cut[i];
            open += cut->low < cut->high;
            for (j = 0; j < DPARI_PC_PROBES; j++) {
                const int64_t at = cut->low < cut->high ? dpari_pc_probe(cut, j) : cut->low;
                x->count[i * DPARI_PC_PROBES + j] =
                    x->before[by_id ? dpari_pc_rank(x, cut->key, at, 1)
                                    : dpari_pc_rank(x, at, INT64_MAX, 1)];
            }
        }
        st = open > 0 ? dpari_pc_add(x, DPARI_PC_PROBES, why) : st;
        for (i = 0; i < cuts && open > 0 && st == DPAR_OK; i++) {
            dpari_pc_cut *cut = &x->cut[i];
            const dpari_pc_cut was = *cut;
            if (was.low == was.high) {
                continue;
            }
            for (j = 0; j < DPARI_PC_PROBES && x->count[i * DPARI_PC_PROBES + j] < cut->weight;
                 j++) {
            }
            cut->low = j > 0 ? dpari_pc_probe(&was, j - 1) + 1 : was.low;
            cut->high = j < DPARI_PC_PROBES ? dpari_pc_probe(&was, j) : was.high;
        }
    }
    return st;
}

/* Finds the smallest and largest id at the place of each cut, over all ranks. The places are known
 * by now. */
static DPARI_COLD dpar_status dpari_pc_ids(dpari_pc *x, dpar_why *why)
{
    const int64_t cuts = x->parts - 1;
    dpar_status st;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &x->cut[i];
        int64_t first, last;
        cut->key = cut->low;
        first = dpari_pc_rank(x, cut->key, INT64_MIN, 0);
        last = dpari_pc_rank(x, cut->key, INT64_MAX, 1);
        x->count[2 * i] = first < last ? x->item[first].id : INT64_MAX;
        x->count[2 * i + 1] = first < last ? ~x->item[last - 1].id : INT64_MAX; /* falls with it */
    }
    st = dpar_all_reduce(x->c, x->count, x->count, 2 * cuts, DPAR_I64, DPAR_MIN, NULL);
    for (i = 0; i < cuts && st == DPAR_OK; i++) {
        x->cut[i].low = x->count[2 * i];
        x->cut[i].high = ~x->count[2 * i + 1];
    }
    return dpari_po_said(x->c, st, why);
}

/* Decides for each cut whether the part begins before or behind its point: the cut is behind it if
 * the middle of the point's weight is before the cut. */
static DPARI_COLD dpar_status dpari_pc_sides(dpari_pc *x, dpar_why *why)
{
    const int64_t cuts = x->parts - 1;
    dpar_status st;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &x->cut[i];
        cut->id = cut->low;
        x->count[i] = x->before[dpari_pc_rank(x, cut->key, cut->id, 0)] +
                      x->before[dpari_pc_rank(x, cut->key, cut->id, 1)];
    }
    st = dpari_pc_add(x, 1, why);
    for (i = 0; i < cuts && st == DPAR_OK; i++) {
        x->cut[i].behind = x->count[i] < dpari_pc_share(x, i + 1, 2);
    }
    return st;
}

static DPARI_COLD dpar_status dpari_pc_cuts(dpari_pc *x, dpar_why *why)
{
    dpar_status st =
        dpar_all_reduce(x->c, &x->before[x->d->count], &x->weight, 1, DPAR_I64, DPAR_SUM, NULL);
    int32_t i;
    if (st != DPAR_OK || x->parts == 1 || x->points == 0) {
        return dpari_po_said(x->c, st, why);
    }
    for (i = 0; i < x->parts - 1; i++) {
        x->cut[i].high = INT64_MAX;
        x->cut[i].weight = dpari_pc_share(x, i + 1, 1);
    }
    st = dpari_pc_search(x, 0, why);
    st = st == DPAR_OK ? dpari_pc_ids(x, why) : st;
    st = st == DPAR_OK ? dpari_pc_search(x, 1, why) : st;
    return st == DPAR_OK ? dpari_pc_sides(x, why) : st;
}

/* Parts of own points: both go on along the curve. */
static void dpari_pc_deal(const dpari_pc *x, int32_t *owner, int64_t *key)
{
    int32_t part = 0;
    int64_t i;
    for (i = 0; i < x->d->count; i++) {
        const dpari_po_item *item = &x->item[i];
        while (part < x->parts - 1 &&
               dpari_po_compare(item, x->cut[part].key, x->cut[part].id) >= x->cut[part].behind) {
            part++;
        }
        owner[item->at] = part;
        if (key) {
            key[item->at] = item->key;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_points_partition(dpar_comm *c,
                                                      const dpar_points_partition_desc *d,
                                                      int32_t *owner, int64_t *key, dpar_why *why)
{
    dpari_pc x;
    dpar_status st;
    if (!c) {
        return dpari_wrong(why, "no communicator");
    }
    dpari_zero(&x, sizeof x);
    st = dpari_po_host(c, why);
    st = st == DPAR_OK ? dpari_pc_check(d, owner, why) : st;
    st = dpari_agree_on(c, st, "partition", dpari_pc_state, d, why);
    if (st != DPAR_OK) {
        return st;
    }
    x.c = c;
    x.d = d;
    x.parts = d->parts > 0 ? d->parts : c->size;
    st = dpari_po_first(c, d->count, &x.first, why);
    st = st == DPAR_OK ? dpari_pc_measure(&x, why) : st;
    if (st == DPAR_OK) {
        st = dpari_agree(c, dpari_pc_line_up(&x, why), why);
    }
    st = st == DPAR_OK ? dpari_pc_cuts(&x, why) : st;
    if (st == DPAR_OK) {
        dpari_pc_deal(&x, owner, key);
    }
    dpari_po_free(&x.pages);
    return st;
}
