/* SPDX-License-Identifier: MIT-0 */
/* Partitions points along Hilbert's curve. It implements dpar_points_partition.
 *
 * Each rank sorts its points by their place on the curve and sums their weights. All ranks together
 * then search for the cuts between parts. Every cut is in a bracket, which seven probes divide into
 * eight: each rank sums its weights up to each probe, an all-reduce adds up these sums, and the
 * eighth that holds the cut becomes the next bracket. If several points are at the place of a cut,
 * their ids are searched in the same way. All sums are integers, so that the result does not depend
 * on the distribution of points. */
#include "points_part.h"

#include "../comm/agree.h"
#include "points_order.h"

enum {
    DPARI_PC_PROBES = 7,        /* per cut and round, so that the bracket shrinks to an eighth */
    DPARI_PC_PARTS = 1 << 20,   /* the most parts */
    DPARI_PC_WEIGHT_BITS = 61,  /* the sum of all weights is at most 2^61, so that twice the sum
                                    fits in an int64_t */
    DPARI_PC_MANTISSA_BITS = 52 /* of a double: finer steps would not be more accurate */
};

/* ---- the curve ------------------------------------------------------------------------------- */

/* Returns the number of bits of a coordinate, so that a place on the curve has at most 63 bits. */
DPARI_FN int32_t dpari_pc_bits(int32_t dims)
{
    return dims == 2 ? 31 : 21;
}

/* The transform is J. Skilling's, "Programming the Hilbert curve" (AIP Conf. Proc. 707, 2004, p.
 * 381). It proceeds from the coarsest level to the finest. At each level the bits of the
 * coordinates tell in which half of each dim the cell is. In Gray code they are the next digit of
 * the place. Depending on these bits, the finer levels are then mirrored, or two of their dims are
 * exchanged. */
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

/* ---- structs --------------------------------------------------------------------------------- */

/* A cut: the first point of a part, by place and id. */
typedef struct dpari_pc_cut {
    int64_t key, id;
    int64_t low, high; /* the bracket: the wanted key or id is in [low, high] */
    int64_t weight;    /* wanted weight of the points before the part, in steps */
    int32_t behind;    /* 1 if the part begins after that point */
} dpari_pc_cut;

typedef struct dpari_pc {
    dpar_comm *comm;
    const dpar_points_partition_desc *desc;
    int32_t parts;
    double low[3], half; /* the cube that holds all points: its corner, half its side */
    double largest;      /* the largest weight */
    double steps;        /* the largest weight in steps; weights are rounded to steps */
    int64_t first;       /* the id of point 0 if the caller passes no ids */
    int64_t points;      /* number of points of all ranks */
    int64_t weight;      /* sum of the weights of all ranks, in steps */
    dpari_po_item *item; /* own points, sorted by place and id */
    int64_t *before;   /* [own points + 1] weight of the sorted points before each one, in steps */
    dpari_pc_cut *cut; /* [parts - 1] */
    int64_t *count;    /* [parts - 1][DPARI_PC_PROBES] weights up to each probe */
    dpari_po_pages pages;
} dpari_pc;

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pc_state(dpari_facts *facts, const void *given)
{
    const dpar_points_partition_desc *desc = (const dpar_points_partition_desc *)given;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "parts", 0, desc->parts);
}

/* Checks what this rank passes. */
static DPARI_COLD dpar_status dpari_pc_check(const dpar_points_partition_desc *desc,
                                             const int32_t *owner, dpar_why *why)
{
    int64_t i;
    int32_t k;
    if (!desc || desc->dims < 2 || desc->dims > 3) {
        return dpari_wrong(why, "desc.dims is %d, but must be 2 or 3", desc ? desc->dims : 0);
    }
    if (desc->count < 0 || desc->parts < 0 || desc->parts > DPARI_PC_PARTS ||
        (desc->count > 0 && (!desc->position || !owner))) {
        return dpari_wrong(why,
                           "count %ld or parts %d is out of range, or position or owner is NULL",
                           desc->count, desc->parts);
    }
    if (desc->count > INT32_MAX) {
        return dpari_say(DPAR_E_RANGE, why, "count is %ld, but must be at most 2^31 - 1",
                         desc->count);
    }
    for (i = 0; i < desc->count; i++) {
        for (k = 0; k < desc->dims; k++) {
            if (!dpari_finite(desc->position[i * desc->dims + k])) {
                return dpari_wrong(why, "point %ld: coordinate %d is not finite", i, k);
            }
        }
        if (desc->weight && !(desc->weight[i] >= 0 && dpari_finite(desc->weight[i]))) {
            return dpari_wrong(why, "point %ld: its weight is negative or not finite", i);
        }
    }
    return DPAR_OK;
}

/* Finds the cube that holds all points, the largest weight, and the number of points. Collective.
 */
static dpar_status dpari_pc_measure(dpari_pc *cutting, dpar_why *why)
{
    const dpar_points_partition_desc *desc = cutting->desc;
    const double none = 1.7976931348623157e308;                  /* the largest double */
    double least[7] = {none, none, none, none, none, none, 0.0}; /* minima of low, -high, -weight */
    int64_t i, all;
    int32_t k;
    dpar_status status;
    for (i = 0; i < desc->count; i++) {
        for (k = 0; k < desc->dims; k++) {
            least[k] = dpari_leastf(least[k], desc->position[i * desc->dims + k]);
            least[3 + k] = dpari_leastf(least[3 + k], -desc->position[i * desc->dims + k]);
        }
        least[6] = dpari_leastf(least[6], desc->weight ? -desc->weight[i] : -1.0);
    }
    status = dpar_all_reduce(cutting->comm, least, least, 7, DPAR_F64, DPAR_MIN, NULL);
    if (status == DPAR_OK) {
        status = dpar_all_reduce(cutting->comm, &desc->count, &cutting->points, 1, DPAR_I64,
                                 DPAR_SUM, NULL);
    }
    if (status != DPAR_OK) {
        return dpari_po_explain(cutting->comm, status, why);
    }
    if (cutting->points > 0 && !(least[6] < 0)) {
        return dpari_wrong(why, "the weights of all %ld points are 0", cutting->points);
    }
    cutting->largest = -least[6];
    for (k = 0; k < desc->dims; k++) { /* halves, because the difference may be infinite */
        cutting->low[k] = least[k];
        cutting->half = dpari_mostf(cutting->half, -least[3 + k] / 2 - least[k] / 2);
    }
    cutting->steps = 1.0;
    all = cutting->points; /* upper bound of the sum of weights, in steps */
    for (k = 0; k < DPARI_PC_MANTISSA_BITS && all <= INT64_C(1) << (DPARI_PC_WEIGHT_BITS - 1);
         k++) {
        all *= 2;
        cutting->steps *= 2;
    }
    return DPAR_OK;
}

/* Returns the place of a position on the curve. */
static int64_t dpari_pc_place(const dpari_pc *cutting, const double *at)
{
    const double side = (double)(UINT32_C(1) << dpari_pc_bits(cutting->desc->dims));
    uint32_t cell[3];
    int32_t k;
    for (k = 0; k < cutting->desc->dims; k++) {
        const double share =
            cutting->half > 0 ? (at[k] / 2 - cutting->low[k] / 2) / cutting->half : 0.0;
        cell[k] = (uint32_t)dpari_leastf(share * side, side - 1);
    }
    return dpari_points_curve(cutting->desc->dims, cell);
}

/* Returns the weight of own point i in steps. */
static int64_t dpari_pc_steps(const dpari_pc *cutting, int64_t i)
{
    return (int64_t)((cutting->desc->weight ? cutting->desc->weight[i] / cutting->largest : 1.0) *
                         cutting->steps +
                     0.5);
}

/* Allocates memory, sorts own points along the curve, and sums their weights. */
static dpar_status dpari_pc_line_up(dpari_pc *cutting, dpar_why *why)
{
    const dpar_points_partition_desc *desc = cutting->desc;
    const int64_t n = desc->count, cuts = cutting->parts - 1;
    dpar_status status = DPAR_OK;
    dpari_po_item *item =
        (dpari_po_item *)dpari_po_take(&cutting->pages, 2 * n, sizeof *item, &status, why);
    int64_t i;
    cutting->before = (int64_t *)dpari_po_take(&cutting->pages, n + 1, 8, &status, why);
    cutting->cut =
        (dpari_pc_cut *)dpari_po_take(&cutting->pages, cuts, sizeof *cutting->cut, &status, why);
    cutting->count =
        (int64_t *)dpari_po_take(&cutting->pages, DPARI_PC_PROBES * cuts, 8, &status, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < n; i++) {
        item[i].key = dpari_pc_place(cutting, desc->position + i * desc->dims);
        item[i].id = desc->id ? desc->id[i] : cutting->first + i;
        item[i].at = i;
    }
    cutting->item = dpari_po_sort(item, item + n, n);
    for (i = 0; i < n; i++) {
        cutting->before[i + 1] = cutting->before[i] + dpari_pc_steps(cutting, cutting->item[i].at);
    }
    return DPAR_OK;
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* Returns the number of own points before (key, id). With `with` 1, points at (key, id) count too.
 */
static int64_t dpari_pc_rank(const dpari_pc *cutting, int64_t key, int64_t id, int32_t with)
{
    int64_t low = 0, high = cutting->desc->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (dpari_po_compare(&cutting->item[middle], key, id) < with) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Returns ceil(times * k * weight / parts) without overflow: times <= 2, k < parts <= 2^20, weight
 * <= 2^61. */
static int64_t dpari_pc_share(const dpari_pc *cutting, int64_t k, int64_t times)
{
    return times * (cutting->weight / cutting->parts) * k +
           dpari_ceil_div(times * (cutting->weight % cutting->parts) * k, cutting->parts);
}

/* Returns where probe j of a bracket is: at one eighth, two eighths, ..., but below high. */
static int64_t dpari_pc_probe(const dpari_pc_cut *cut, int64_t j)
{
    const uint64_t span = (uint64_t)cut->high - (uint64_t)cut->low;
    const uint64_t part = span / (DPARI_PC_PROBES + 1) + 1;
    uint64_t at = part * (uint64_t)(j + 1) - 1;
    at = at < span ? at : span - 1;
    return (int64_t)((uint64_t)cut->low + at);
}

/* Sums `each` counts per cut over all ranks. Collective. */
static DPARI_COLD dpar_status dpari_pc_add(dpari_pc *cutting, int64_t each, dpar_why *why)
{
    return dpari_po_explain(cutting->comm,
                            dpar_all_reduce(cutting->comm, cutting->count, cutting->count,
                                            each * (cutting->parts - 1), DPAR_I64, DPAR_SUM, NULL),
                            why);
}

/* Sums own weights up to each probe of each cut, also of cuts that are found already, so that the
 * array has no gaps. Returns how many cuts are not found yet. */
static int64_t dpari_pc_probe_all(dpari_pc *cutting, int by_id)
{
    int64_t i, j, open = 0;
    for (i = 0; i < cutting->parts - 1; i++) {
        const dpari_pc_cut *cut = &cutting->cut[i];
        const int is_open = cut->low < cut->high;
        open += is_open;
        for (j = 0; j < DPARI_PC_PROBES; j++) {
            const int64_t at = is_open ? dpari_pc_probe(cut, j) : cut->low;
            const int64_t rank = by_id ? dpari_pc_rank(cutting, cut->key, at, 1)
                                       : dpari_pc_rank(cutting, at, INT64_MAX, 1);
            cutting->count[i * DPARI_PC_PROBES + j] = cutting->before[rank];
        }
    }
    return open;
}

/* Shrinks the bracket of a cut to the eighth that holds its place. count: the weights of all ranks
 * up to each probe. */
static void dpari_pc_shrink(dpari_pc_cut *cut, const int64_t *count)
{
    const dpari_pc_cut was = *cut;
    int64_t j = 0;
    while (j < DPARI_PC_PROBES && count[j] < cut->weight) {
        j++;
    }
    if (j > 0) {
        cut->low = dpari_pc_probe(&was, j - 1) + 1;
    }
    if (j < DPARI_PC_PROBES) {
        cut->high = dpari_pc_probe(&was, j);
    }
}

/* Finds for each cut the smallest number in its bracket up to which points have the wanted weight.
 * The numbers are places, or with by_id the ids at the place that was found. Collective. */
static dpar_status dpari_pc_search(dpari_pc *cutting, int by_id, dpar_why *why)
{
    int64_t i;
    while (dpari_pc_probe_all(cutting, by_id) > 0) { /* the same number on all ranks */
        const dpar_status status = dpari_pc_add(cutting, DPARI_PC_PROBES, why);
        if (status != DPAR_OK) {
            return status;
        }
        for (i = 0; i < cutting->parts - 1; i++) {
            if (cutting->cut[i].low < cutting->cut[i].high) {
                dpari_pc_shrink(&cutting->cut[i], cutting->count + i * DPARI_PC_PROBES);
            }
        }
    }
    return DPAR_OK;
}

/* Finds the smallest and the largest id over all ranks at the place of each cut, after the places
 * have been found. Collective. */
static DPARI_COLD dpar_status dpari_pc_ids(dpari_pc *cutting, dpar_why *why)
{
    const int64_t cuts = cutting->parts - 1;
    dpar_status status;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &cutting->cut[i];
        int64_t first, last;
        cut->key = cut->low;
        first = dpari_pc_rank(cutting, cut->key, INT64_MIN, 0);
        last = dpari_pc_rank(cutting, cut->key, INT64_MAX, 1);
        /* The largest id is stored as ~id, because DPAR_MIN of ~id finds the largest id. */
        cutting->count[2 * i] = first < last ? cutting->item[first].id : INT64_MAX;
        cutting->count[2 * i + 1] = first < last ? ~cutting->item[last - 1].id : INT64_MAX;
    }
    status = dpar_all_reduce(cutting->comm, cutting->count, cutting->count, 2 * cuts, DPAR_I64,
                             DPAR_MIN, NULL);
    for (i = 0; i < cuts && status == DPAR_OK; i++) {
        cutting->cut[i].low = cutting->count[2 * i];
        cutting->cut[i].high = ~cutting->count[2 * i + 1];
    }
    return dpari_po_explain(cutting->comm, status, why);
}

/* Decides for each cut whether the part begins before or after the point at the cut: after it if
 * the wanted weight is more than the weight up to the middle of the point. */
static DPARI_COLD dpar_status dpari_pc_sides(dpari_pc *cutting, dpar_why *why)
{
    const int64_t cuts = cutting->parts - 1;
    dpar_status status;
    int64_t i;
    for (i = 0; i < cuts; i++) {
        dpari_pc_cut *cut = &cutting->cut[i];
        cut->id = cut->low;
        cutting->count[i] = cutting->before[dpari_pc_rank(cutting, cut->key, cut->id, 0)] +
                            cutting->before[dpari_pc_rank(cutting, cut->key, cut->id, 1)];
    }
    status = dpari_pc_add(cutting, 1, why);
    for (i = 0; i < cuts && status == DPAR_OK; i++) {
        cutting->cut[i].behind = cutting->count[i] < dpari_pc_share(cutting, i + 1, 2);
    }
    return status;
}

/* Finds all cuts. Collective. */
static DPARI_COLD dpar_status dpari_pc_cuts(dpari_pc *cutting, dpar_why *why)
{
    dpar_status status = dpar_all_reduce(cutting->comm, &cutting->before[cutting->desc->count],
                                         &cutting->weight, 1, DPAR_I64, DPAR_SUM, NULL);
    int32_t i;
    if (status != DPAR_OK || cutting->parts == 1 || cutting->points == 0) {
        return dpari_po_explain(cutting->comm, status, why);
    }
    for (i = 0; i < cutting->parts - 1; i++) {
        cutting->cut[i].high = INT64_MAX;
        cutting->cut[i].weight = dpari_pc_share(cutting, i + 1, 1);
    }
    status = dpari_pc_search(cutting, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_ids(cutting, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_search(cutting, 1, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_pc_sides(cutting, why);
}

/* Sets the part of each own point. Points and cuts are both sorted, so that one pass is enough. */
static void dpari_pc_deal(const dpari_pc *cutting, int32_t *owner, int64_t *key)
{
    int32_t part = 0;
    int64_t i;
    for (i = 0; i < cutting->desc->count; i++) {
        const dpari_po_item *item = &cutting->item[i];
        while (part < cutting->parts - 1 &&
               dpari_po_compare(item, cutting->cut[part].key, cutting->cut[part].id) >=
                   cutting->cut[part].behind) {
            part++;
        }
        owner[item->at] = part;
        if (key) {
            key[item->at] = item->key;
        }
    }
}

/* Partitions points whose description was checked. Collective; the caller frees cutting->pages. */
static DPARI_COLD dpar_status dpari_pc_run(dpari_pc *cutting, int32_t *owner, int64_t *key,
                                           dpar_why *why)
{
    dpar_status status = dpari_po_first(cutting->comm, cutting->desc->count, &cutting->first, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_measure(cutting, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_agree(cutting->comm, dpari_pc_line_up(cutting, why), why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_pc_cuts(cutting, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_pc_deal(cutting, owner, key);
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_partition(dpar_comm *comm,
                                                      const dpar_points_partition_desc *desc,
                                                      int32_t *owner, int64_t *key, dpar_why *why)
{
    dpari_pc cutting;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_partition: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_po_host(comm, why);
    if (status == DPAR_OK) {
        status = dpari_pc_check(desc, owner, why);
    }
    status = dpari_agree_on(comm, status, "partition", dpari_pc_state, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&cutting, sizeof cutting);
    cutting.comm = comm;
    cutting.desc = desc;
    cutting.parts = desc->parts > 0 ? desc->parts : comm->size;
    status = dpari_pc_run(&cutting, owner, key, why);
    dpari_po_free(&cutting.pages);
    return status;
}
