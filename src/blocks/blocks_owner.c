/* SPDX-License-Identifier: MIT-0 */
/* Distributes the blocks of a grid over ranks. It implements blocks_owner.h.
 *
 * The blocks are put in an order (blocks_curve.h, or bisection below), and their weights, as
 * integers, are summed along it. Whether each rank can have at most some weight is decided by
 * filling rank after rank. A binary search finds the least such weight, the bottleneck. The
 * position of each cut between two ranks is then free in a window: not so early that the rest would
 * be too heavy for the ranks behind it, and not so late that the rank before it would be too heavy.
 * In the window the cut is put nearest to where it should be: at an equal share of the weights, or
 * where it was before. */
#include "blocks_owner.h"

#include "../base/base_private.h"
#include "blocks_curve.h"

enum {
    DPARI_BO_WEIGHT_BITS = 60,   /* the sum of all weights is at most 2^60, so that a few times the
                                    sum fits in an int64_t */
    DPARI_BO_MANTISSA_BITS = 52, /* of a double: finer steps would not be more accurate */
    DPARI_BO_SLACKS = 6          /* balances that dpar_blocks_rebalance compares */
};

/* A description that was checked, and the scratch memory. */
typedef struct dpari_bo {
    const dpar_blocks_assign_desc *desc;
    int32_t parts[DPAR_MAX_DIMS]; /* blocks along each dim */
    int32_t blocks;               /* their product */
    int32_t count;                /* blocks that exist */
    int32_t ranks;
    double unit;      /* the largest power of 2 that is not above the largest weight */
    double steps;     /* the unit in steps, a power of 2; 0 if blocks count as equal */
    int64_t *before;  /* [blocks + 1] weight before each place of the order, in steps */
    int64_t *load;    /* [ranks] */
    int64_t *sends;   /* [ranks] */
    int32_t *list;    /* [blocks] the blocks in the order */
    int32_t *room[4]; /* [ranks + 1] each */
} dpari_bo;

/* ---- the description ------------------------------------------------------------------------- */

/* True if x is a weight or a time. */
static int dpari_bo_is_amount(double x)
{
    return x >= 0 && dpari_finite(x);
}

/* Finds the largest weight and chooses the steps. */
static DPARI_COLD dpar_status dpari_bo_weights(dpari_bo *blocks, dpar_why *why)
{
    const dpar_blocks_assign_desc *desc = blocks->desc;
    int64_t all = 2 * (int64_t)blocks->blocks; /* upper bound of all weights, in steps */
    double largest = 0.0;
    int32_t i;
    if (desc->weight == NULL) {
        return DPAR_OK;
    }
    for (i = 0; i < blocks->blocks; i++) {
        if (desc->exists != NULL && desc->exists[i] == 0) {
            continue;
        }
        if (!dpari_bo_is_amount(desc->weight[i])) {
            return dpari_wrong(why, "block %d: its weight is negative or not finite", i);
        }
        largest = dpari_mostf(largest, desc->weight[i]);
    }
    if (!(largest > 0)) {
        return DPAR_OK;
    }
    blocks->unit = 1.0; /* a power of 2, so that whole weights are whole numbers of steps */
    while (blocks->unit <= largest / 2) {
        blocks->unit *= 2;
    }
    while (blocks->unit > largest) {
        blocks->unit /= 2;
    }
    blocks->steps = 1.0;
    for (i = 0; i < DPARI_BO_MANTISSA_BITS && all <= INT64_C(1) << (DPARI_BO_WEIGHT_BITS - 1);
         i++) {
        all *= 2;
        blocks->steps *= 2;
    }
    return DPAR_OK;
}

/* Checks a description and divides the scratch memory. */
static DPARI_COLD dpar_status dpari_bo_open(dpari_bo *blocks, const dpar_blocks_assign_desc *desc,
                                            dpar_why *why)
{
    int64_t bytes;
    int32_t i;
    dpar_status status;
    dpari_zero(blocks, sizeof *blocks);
    status = dpari_blocks_parts(desc, blocks->parts, &blocks->blocks, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (desc->ranks < 1 || desc->order < 0 || desc->order >= DPAR_BLOCKS_ORDER_COUNT ||
        desc->periodic >> desc->dims != 0) {
        return dpari_wrong(why,
                           "ranks %d is less than 1, order %d is none of DPAR_BLOCKS_HILBERT to "
                           "DPAR_BLOCKS_BISECTION, or periodic has a bit beyond the %d dims",
                           desc->ranks, desc->order, desc->dims);
    }
    blocks->desc = desc;
    blocks->ranks = desc->ranks;
    status = dpari_bo_weights(blocks, why);
    if (status != DPAR_OK) {
        return status;
    }
    bytes = 12 * (int64_t)blocks->blocks + 32 * (int64_t)desc->ranks + 24;
    if (desc->memory == NULL || desc->bytes < bytes) {
        dpari_needs_bytes(why, bytes);
        return dpari_say(DPAR_E_ROOM, why, "%d blocks on %d ranks need %ld bytes of memory",
                         blocks->blocks, desc->ranks, bytes);
    }
    blocks->before = (int64_t *)desc->memory;
    blocks->load = blocks->before + blocks->blocks + 1;
    blocks->sends = blocks->load + desc->ranks;
    blocks->list = (int32_t *)(void *)(blocks->sends + desc->ranks);
    for (i = 0; i < 4; i++) {
        blocks->room[i] = blocks->list + blocks->blocks + i * ((int64_t)desc->ranks + 1);
    }
    return DPAR_OK;
}

/* ---- single blocks --------------------------------------------------------------------------- */

/* Computes the coordinates of a block, and its cells along each dim. */
static void dpari_bo_block(const dpari_bo *blocks, int64_t block, int32_t *coord, int64_t *cells)
{
    const dpar_blocks_assign_desc *desc = blocks->desc;
    int32_t d;
    for (d = desc->dims - 1; d >= 0; d--) {
        const int64_t size = desc->block[d] == 0 ? 1 : desc->block[d];
        coord[d] = (int32_t)(block % blocks->parts[d]);
        block /= blocks->parts[d];
        cells[d] = dpari_least(size, desc->cells[d] - coord[d] * size);
    }
}

/* Returns the weight of a block in steps. */
static int64_t dpari_bo_weight(const dpari_bo *blocks, int32_t block)
{
    int64_t cells[DPAR_MAX_DIMS], all = 1;
    int32_t coord[DPAR_MAX_DIMS], d;
    if (blocks->desc->weight != NULL) {
        return blocks->steps > 0
                   ? (int64_t)(blocks->desc->weight[block] / blocks->unit * blocks->steps + 0.5)
                   : 1;
    }
    dpari_bo_block(blocks, block, coord, cells);
    for (d = 0; d < blocks->desc->dims; d++) {
        all *= cells[d];
    }
    return all;
}

/* Converts a weight from steps to the caller's unit. */
static double dpari_bo_unit(const dpari_bo *blocks, int64_t weight)
{
    if (blocks->desc->weight == NULL) {
        return (double)weight;
    }
    return blocks->steps > 0 ? (double)weight / blocks->steps * blocks->unit : 0.0;
}

/* Returns 1 if a block has an owner. */
static int dpari_bo_exists(const dpari_bo *blocks, int64_t block)
{
    return blocks->desc->exists == NULL || blocks->desc->exists[block] != 0;
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Groups the blocks by their owners: rank r has list[start[r] .. start[r + 1] - 1]. Sums the weight
 * of each rank. */
static dpar_status dpari_bo_group(const dpari_bo *blocks, const int32_t *owner, int32_t *start,
                                  dpar_why *why)
{
    int32_t i, r, sum = 0;
    dpari_zero(start, ((size_t)blocks->ranks + 1) * sizeof *start);
    dpari_zero(blocks->load, (size_t)blocks->ranks * sizeof *blocks->load);
    for (i = 0; i < blocks->blocks; i++) {
        if (!dpari_bo_exists(blocks, i)) {
            continue;
        }
        if (owner[i] < 0 || owner[i] >= blocks->ranks) {
            return dpari_wrong(why, "block %d: its owner is %d, but must be a rank from 0 to %d", i,
                               owner[i], blocks->ranks - 1);
        }
        start[owner[i]]++;
        blocks->load[owner[i]] += dpari_bo_weight(blocks, i);
    }
    for (r = 0; r <= blocks->ranks; r++) { /* start[r] becomes the end of r's blocks */
        sum += start[r];
        start[r] = sum;
    }
    for (i = blocks->blocks - 1; i >= 0; i--) {
        if (dpari_bo_exists(blocks, i)) {
            blocks->list[--start[owner[i]]] = i;
        }
    }
    return DPAR_OK;
}

/* Adds up what a block sends to other ranks, and counts ranks that were not seen yet. seen: [ranks]
 * the last rank whose neighbour each rank was found to be. */
static void dpari_bo_faces(const dpari_bo *blocks, const int32_t *owner, int32_t block,
                           int32_t *seen, int32_t *neighbours)
{
    int64_t cells[DPAR_MAX_DIMS], all = 1, stride = 1;
    int32_t coord[DPAR_MAX_DIMS], d, side;
    const int32_t rank = owner[block];
    dpari_bo_block(blocks, block, coord, cells);
    for (d = 0; d < blocks->desc->dims; d++) {
        all *= cells[d];
    }
    for (d = blocks->desc->dims - 1; d >= 0; d--) {
        const int32_t parts = blocks->parts[d];
        for (side = -1; side <= 1; side += 2) {
            int32_t to = coord[d] + side, other;
            int64_t next;
            if ((blocks->desc->periodic >> d & 1u) != 0) {
                to = (to + parts) % parts;
            }
            if (to < 0 || to >= parts) {
                continue;
            }
            next = block + ((int64_t)to - coord[d]) * stride;
            if (!dpari_bo_exists(blocks, next) || owner[next] == rank) {
                continue;
            }
            other = owner[next];
            blocks->sends[rank] += all / cells[d];
            *neighbours += seen[other] != rank;
            seen[other] = rank;
        }
        stride *= parts;
    }
}

/* Computes the statistics of owners. Uses all of the scratch memory but `before`. */
static DPARI_COLD dpar_status dpari_bo_measure(const dpari_bo *blocks, const int32_t *owner,
                                               dpar_blocks_stats *stats, dpar_why *why)
{
    int32_t *start = blocks->room[0], *seen = blocks->room[1], r, i;
    int64_t heaviest = 0, weight = 0, pairs = 0;
    dpar_blocks_stats found;
    const dpar_status status = dpari_bo_group(blocks, owner, start, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&found, sizeof found);
    found.blocks = start[blocks->ranks];
    found.blocks_least = found.blocks;
    for (r = 0; r < blocks->ranks; r++) {
        seen[r] = -1;
    }
    for (r = 0; r < blocks->ranks; r++) {
        const int32_t count = start[r + 1] - start[r];
        int32_t neighbours = 0;
        blocks->sends[r] = 0;
        for (i = start[r]; i < start[r + 1]; i++) {
            dpari_bo_faces(blocks, owner, blocks->list[i], seen, &neighbours);
        }
        weight += blocks->load[r];
        heaviest = dpari_most(heaviest, blocks->load[r]);
        found.blocks_least = dpari_least(found.blocks_least, count);
        found.blocks_most = dpari_most(found.blocks_most, count);
        found.idle += count == 0;
        found.cut += blocks->sends[r];
        found.cut_most = dpari_most(found.cut_most, blocks->sends[r]);
        found.neighbours_most = (int32_t)dpari_most(found.neighbours_most, neighbours);
        pairs += neighbours;
    }
    found.heaviest = dpari_bo_unit(blocks, heaviest);
    found.imbalance = weight > 0 ? (double)heaviest * blocks->ranks / (double)weight : 1.0;
    found.neighbours = (double)pairs / blocks->ranks;
    *stats = found;
    return DPAR_OK;
}

/* ---- bisection ------------------------------------------------------------------------------- */

/* Returns how many blocks precede the next one along a dim. */
static int64_t dpari_bo_stride(const dpari_bo *blocks, int32_t dim)
{
    int64_t stride = 1;
    int32_t d;
    for (d = dim + 1; d < blocks->desc->dims; d++) {
        stride *= blocks->parts[d];
    }
    return stride;
}

/* Finds the dim along which some blocks extend over the most cells. *low and *high receive the
 * least and the largest coordinate along it. */
static int32_t dpari_bo_longest(const dpari_bo *blocks, const int32_t *list, int32_t count,
                                int32_t *low, int32_t *high)
{
    int64_t most = -1;
    int32_t longest = 0, d, i;
    for (d = 0; d < blocks->desc->dims; d++) {
        const int64_t stride = dpari_bo_stride(blocks, d);
        int32_t first = INT32_MAX, last = 0;
        int64_t size;
        for (i = 0; i < count; i++) {
            const int32_t at = (int32_t)(list[i] / stride % blocks->parts[d]);
            first = (int32_t)dpari_least(first, at);
            last = (int32_t)dpari_most(last, at);
        }
        size = ((int64_t)last - first + 1) * dpari_most(blocks->desc->block[d], 1);
        if (size > most) {
            most = size;
            longest = d;
            *low = first;
            *high = last;
        }
    }
    return longest;
}

/* Sorts blocks by their coordinate along a dim, by counting. Blocks with the same coordinate keep
 * their order. Uses the memory of `before`. */
static void dpari_bo_sort(const dpari_bo *blocks, int32_t *list, int32_t count, int32_t dim,
                          int32_t low, int32_t high)
{
    int32_t *sorted = (int32_t *)(void *)blocks->before; /* [blocks], then [blocks + 1] counts */
    int32_t *start = sorted + blocks->blocks, i;
    const int64_t stride = dpari_bo_stride(blocks, dim);
    dpari_zero(start, ((size_t)(high - low) + 2) * sizeof *start);
    for (i = 0; i < count; i++) {
        start[list[i] / stride % blocks->parts[dim] - low + 1]++;
    }
    for (i = 0; i < high - low; i++) {
        start[i + 1] += start[i];
    }
    for (i = 0; i < count; i++) {
        sorted[start[list[i] / stride % blocks->parts[dim] - low]++] = list[i];
    }
    for (i = 0; i < count; i++) {
        list[i] = sorted[i];
    }
}

/* Returns 2 x k / ranks of a weight, rounded up. The product is below 2^63, because k < ranks <
 * 2^31. */
static int64_t dpari_bo_twice(int64_t weight, int32_t k, int32_t ranks)
{
    return 2 * (weight / ranks) * k + dpari_ceil_div(2 * (weight % ranks) * k, ranks);
}

/* Orders blocks for some ranks: the first half of the ranks gets the blocks at the lower end of the
 * longest side, and so on in each half. The recursion is log2(ranks) deep. */
static void dpari_bo_bisect(const dpari_bo *blocks, int32_t *list, int32_t count, int32_t ranks)
{
    const int32_t half = ranks / 2;
    int64_t weight = 0, sum = 0, wanted;
    int32_t low = 0, high = 0, dim, i;
    if (count < 2 || ranks < 2) {
        return;
    }
    dim = dpari_bo_longest(blocks, list, count, &low, &high);
    dpari_bo_sort(blocks, list, count, dim, low, high);
    for (i = 0; i < count; i++) {
        weight += dpari_bo_weight(blocks, list[i]);
    }
    wanted = dpari_bo_twice(weight, half, ranks);
    for (i = 0; i < count; i++) { /* up to the block whose middle is at the wanted weight */
        const int64_t next = dpari_bo_weight(blocks, list[i]);
        if (2 * sum + next >= wanted) {
            break;
        }
        sum += next;
    }
    dpari_bo_bisect(blocks, list, i, half);
    dpari_bo_bisect(blocks, list + i, count - i, ranks - half);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* Puts the blocks in order and sums their weights. */
static void dpari_bo_line_up(dpari_bo *blocks)
{
    const int32_t bisects = blocks->desc->order == DPAR_BLOCKS_BISECTION;
    int32_t i;
    blocks->count =
        dpari_blocks_curve(bisects ? DPAR_BLOCKS_ROWS : blocks->desc->order, blocks->desc->dims,
                           blocks->parts, blocks->desc->exists, blocks->list);
    if (bisects) {
        dpari_bo_bisect(blocks, blocks->list, blocks->count, blocks->ranks);
    }
    blocks->before[0] = 0;
    for (i = 0; i < blocks->count; i++) {
        blocks->before[i + 1] = blocks->before[i] + dpari_bo_weight(blocks, blocks->list[i]);
    }
}

/* Returns the last place up to which the blocks from `from` on weigh at most `most`. Searches
 * nearby first, so that filling all ranks costs O(ranks x log(blocks / ranks)). */
static int32_t dpari_bo_reach(const dpari_bo *blocks, int32_t from, int64_t most)
{
    const int64_t limit = blocks->before[from] + most;
    int64_t low = from, high, step = 1; /* before[low] <= limit < before[high] */
    while (low + step <= blocks->count && blocks->before[low + step] <= limit) {
        low += step;
        step *= 2;
    }
    high = dpari_least(low + step, (int64_t)blocks->count + 1);
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (blocks->before[middle] <= limit) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return (int32_t)low;
}

/* Returns the least weight that the heaviest rank can have. */
static int64_t dpari_bo_bottleneck(const dpari_bo *blocks)
{
    const int64_t all = blocks->before[blocks->count];
    int64_t low = dpari_ceil_div(all, blocks->ranks), high, heaviest = 0;
    int32_t i, rank;
    for (i = 0; i < blocks->count; i++) {
        heaviest = dpari_most(heaviest, blocks->before[i + 1] - blocks->before[i]);
    }
    high = low + heaviest; /* filling up to this weight gives each rank the mean or more */
    low = dpari_most(low, heaviest);
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        int32_t at = 0;
        for (rank = 0; rank < blocks->ranks && at < blocks->count; rank++) {
            at = dpari_bo_reach(blocks, at, middle);
        }
        if (at == blocks->count) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Returns the place nearest to k / ranks of all weight. `from` is the one for k - 1. */
static int32_t dpari_bo_share(const dpari_bo *blocks, int32_t k, int32_t from)
{
    const int64_t twice = dpari_bo_twice(blocks->before[blocks->count], k, blocks->ranks);
    int32_t at = dpari_bo_reach(blocks, from, twice / 2 - blocks->before[from]);
    if (at < blocks->count && blocks->before[at] + blocks->before[at + 1] < twice) {
        at++;
    }
    return at;
}

/* Chooses the cuts: rank r gets the places cut[r] .. cut[r + 1] - 1. No rank gets more than `most`,
 * which must be at least the bottleneck. wish: [ranks + 1] where the cuts should be, or NULL for
 * equal weights. early: [ranks + 1] scratch. */
static void dpari_bo_cuts(const dpari_bo *blocks, int64_t most, const int32_t *wish, int32_t *early,
                          int32_t *cut)
{
    const int32_t ranks = blocks->ranks, count = blocks->count;
    int32_t k, share = 0;
    cut[0] = 0;
    cut[ranks] = count;
    if (count < ranks) { /* one block for each of some ranks */
        for (k = 1; k < ranks; k++) {
            cut[k] = (int32_t)((int64_t)k * count / ranks);
        }
        return;
    }
    early[ranks] = count;
    for (k = ranks - 1; k > 0; k--) {
        int32_t at = early[k + 1];
        while (at > 0 && blocks->before[early[k + 1]] - blocks->before[at - 1] <= most) {
            at--;
        }
        early[k] = at;
    }
    for (k = 1; k < ranks; k++) {
        const int64_t first = dpari_most(early[k], cut[k - 1] + 1);
        const int64_t last =
            dpari_least(dpari_bo_reach(blocks, cut[k - 1], most), count - (ranks - k));
        if (wish == NULL) {
            share = dpari_bo_share(blocks, k, share);
        }
        cut[k] = (int32_t)dpari_least(dpari_most(wish != NULL ? wish[k] : share, first), last);
    }
}

/* Writes the owner of each block. */
static void dpari_bo_deal(const dpari_bo *blocks, const int32_t *cut, int32_t *owner)
{
    int32_t i, r;
    for (i = 0; i < blocks->blocks; i++) {
        owner[i] = -1;
    }
    for (r = 0; r < blocks->ranks; r++) {
        for (i = cut[r]; i < cut[r + 1]; i++) {
            owner[blocks->list[i]] = r;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_assign(const dpar_blocks_assign_desc *desc,
                                                   int32_t *owner, dpar_blocks_stats *stats,
                                                   dpar_why *why)
{
    dpari_bo blocks;
    const dpar_status status = dpari_bo_open(&blocks, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (owner == NULL) {
        return dpari_wrong(why, "dpar_blocks_assign: owner is NULL");
    }
    dpari_bo_line_up(&blocks);
    dpari_bo_cuts(&blocks, dpari_bo_bottleneck(&blocks), NULL, blocks.room[0], blocks.room[1]);
    dpari_bo_deal(&blocks, blocks.room[1], owner);
    return stats != NULL ? dpari_bo_measure(&blocks, owner, stats, why) : DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_measure(const dpar_blocks_assign_desc *desc,
                                                    const int32_t *owner, dpar_blocks_stats *stats,
                                                    dpar_why *why)
{
    dpari_bo blocks;
    const dpar_status status = dpari_bo_open(&blocks, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (owner == NULL || stats == NULL) {
        return dpari_wrong(why, "dpar_blocks_measure: owner or stats is NULL");
    }
    return dpari_bo_measure(&blocks, owner, stats, why);
}

/* ---- rebalancing ----------------------------------------------------------------------------- */

/* New cuts and what they cost. */
typedef struct dpari_bo_choice {
    int32_t *cut;
    int64_t moved, most; /* blocks that move, and that the busiest rank sends and receives */
    double gain, cost;   /* seconds that they save, and that moving to them takes */
    double time;         /* seconds that the steps take with the present cuts */
} dpari_bo_choice;

/* Checks the costs. */
static DPARI_COLD dpar_status dpari_bo_check_costs(const dpar_blocks_rebalance_desc *desc,
                                                   dpar_why *why)
{
    if (!dpari_bo_is_amount(desc->seconds_per_byte) || !dpari_bo_is_amount(desc->seconds) ||
        !dpari_bo_is_amount(desc->seconds_per_weight) || !dpari_bo_is_amount(desc->threshold)) {
        return dpari_wrong(why, "seconds_per_byte, seconds, seconds_per_weight or threshold is "
                                "negative or not finite");
    }
    if (desc->block_bytes < 0 || desc->steps < 0) {
        return dpari_wrong(why, "steps %ld or block_bytes %ld is negative", desc->steps,
                           desc->block_bytes);
    }
    if (desc->steps == 0 && (desc->seconds > 0 || desc->seconds_per_byte > 0)) {
        return dpari_wrong(why, "steps is 0, but must be at least 1 if moving costs time");
    }
    return DPAR_OK;
}

/* Finds the present cuts. Returns 0 if the ranks' blocks are not contiguous and ascending. */
static int dpari_bo_present(const dpari_bo *blocks, const int32_t *owner, int32_t *cut)
{
    int32_t i, rank = 0;
    cut[0] = 0;
    for (i = 0; i < blocks->count; i++) {
        const int32_t next = owner[blocks->list[i]];
        if (next < rank) {
            return 0;
        }
        while (rank < next) {
            cut[++rank] = i;
        }
    }
    while (rank < blocks->ranks) {
        cut[++rank] = blocks->count;
    }
    return 1;
}

/* Computes what a move from `owner` to the cuts of a choice gains and costs. heaviest: weight of
 * the heaviest rank at present. */
static void dpari_bo_price(const dpari_bo *blocks, const dpar_blocks_rebalance_desc *desc,
                           int64_t heaviest, dpari_bo_choice *choice)
{
    const double seconds = desc->seconds_per_weight > 0 ? desc->seconds_per_weight : 1.0;
    const double steps = desc->steps > 0 ? (double)desc->steps : 1.0;
    int64_t *moves = blocks->load, weight = 0;
    int32_t r, i;
    choice->moved = 0;
    choice->most = 0;
    dpari_zero(moves, (size_t)blocks->ranks * sizeof *moves);
    for (r = 0; r < blocks->ranks; r++) {
        weight =
            dpari_most(weight, blocks->before[choice->cut[r + 1]] - blocks->before[choice->cut[r]]);
        for (i = choice->cut[r]; i < choice->cut[r + 1]; i++) {
            const int32_t from = desc->owner[blocks->list[i]];
            if (from != r) {
                choice->moved++;
                moves[from]++;
                moves[r]++;
            }
        }
    }
    for (r = 0; r < blocks->ranks; r++) {
        choice->most = dpari_most(choice->most, moves[r]);
    }
    choice->time = dpari_bo_unit(blocks, heaviest) * seconds * steps;
    choice->gain = dpari_bo_unit(blocks, heaviest - weight) * seconds * steps;
    choice->cost = (double)choice->most * (double)desc->block_bytes * desc->seconds_per_byte;
    choice->cost += choice->moved > 0 ? desc->seconds : 0.0;
}

/* Chooses the cuts that save the most. The scratch memory holds the order. */
static DPARI_COLD void dpari_bo_choose(const dpari_bo *blocks,
                                       const dpar_blocks_rebalance_desc *desc, int64_t heaviest,
                                       dpari_bo_choice *best)
{
    int32_t *present = blocks->room[1];
    const int contiguous = dpari_bo_present(blocks, desc->owner, present);
    const int64_t least = dpari_bo_bottleneck(blocks);
    dpari_bo_choice choice;
    int32_t i;
    dpari_zero(best, sizeof *best);
    best->cut = blocks->room[2];
    choice.cut = blocks->room[3];
    for (i = 0; i < DPARI_BO_SLACKS; i++) {
        const int64_t slack = i == 0 ? 0 : least >> (DPARI_BO_SLACKS + 1 - i); /* 1/64 to 1/4 */
        dpari_bo_cuts(blocks, least + slack, contiguous ? present : NULL, blocks->room[0],
                      choice.cut);
        dpari_bo_price(blocks, desc, heaviest, &choice);
        if (i == 0 || choice.gain - choice.cost > best->gain - best->cost) {
            int32_t *other = best->cut;
            *best = choice;
            choice.cut = other;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_rebalance(const dpar_blocks_rebalance_desc *desc,
                                                      int32_t *owner,
                                                      dpar_blocks_rebalance_result *result,
                                                      dpar_why *why)
{
    dpari_bo blocks;
    dpari_bo_choice best;
    dpar_blocks_rebalance_result found;
    int64_t heaviest = 0, bytes;
    int32_t i;
    dpar_status status;
    if (desc == NULL || desc->owner == NULL || owner == NULL || result == NULL) {
        return dpari_wrong(why, "dpar_blocks_rebalance: desc, desc.owner, owner or result is NULL");
    }
    status = dpari_bo_open(&blocks, desc->blocks, why);
    if (status == DPAR_OK) {
        status = dpari_bo_check_costs(desc, why);
    }
    dpari_zero(&found, sizeof found);
    if (status == DPAR_OK) {
        status = dpari_bo_measure(&blocks, desc->owner, &found.before, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (!dpari_mul(blocks.blocks, desc->block_bytes, &bytes)) {
        return dpari_say(DPAR_E_RANGE, why, "%d blocks of %ld bytes have more than 2^63 - 1 bytes",
                         blocks.blocks, desc->block_bytes);
    }
    for (i = 0; i < blocks.ranks; i++) {
        heaviest = dpari_most(heaviest, blocks.load[i]);
    }
    dpari_bo_line_up(&blocks);
    dpari_bo_choose(&blocks, desc, heaviest, &best);
    found.gain = best.gain;
    found.cost = best.cost;
    found.after = found.before;
    found.pays = best.gain > best.cost && best.gain >= desc->threshold * best.time;
    if (!found.pays) {
        for (i = 0; i < blocks.blocks; i++) {
            owner[i] = desc->owner[i];
        }
        *result = found;
        return DPAR_OK;
    }
    found.blocks_moved = best.moved;
    found.bytes_moved = best.moved * desc->block_bytes;
    found.bytes_most = best.most * desc->block_bytes;
    dpari_bo_deal(&blocks, best.cut, owner);
    status = dpari_bo_measure(&blocks, owner, &found.after, why);
    *result = found;
    return status;
}
