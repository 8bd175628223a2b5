/* SPDX-License-Identifier: MIT-0 */
/* Tests the owners of blocks: orders by their definitions, cuts against dynamic programming, and
 * statistics against counts cell by cell. Run with: tests/run test blocks. */
#include "dpar_blocks.h"

#include "check.h"
#include "../../helpers/continents.h"
#include "random.h"
#include "refused.h"

#include <stdlib.h>

enum { BLOCKS = 4096, RANKS = 64 };

static int64_t room[BLOCKS * 2 + RANKS * 5 + 3];
static int32_t owner[BLOCKS], order[BLOCKS], place[BLOCKS];
static unsigned char exists[BLOCKS];
static double weight[BLOCKS];
static dpar_why why;

/* ---- orders ---------------------------------------------------------------------------------- */

static void coordinates(int32_t dims, const int32_t *parts, int64_t block, int32_t *coord)
{
    int32_t d;
    for (d = dims - 1; d >= 0; d--) {
        coord[d] = (int32_t)(block % parts[d]);
        block /= parts[d];
    }
}

/* Returns the digits of Morton's order: bits of the coordinates, the first dim's bit first. */
static uint64_t interleaved(int32_t dims, const int32_t *coord)
{
    uint64_t key = 0;
    int32_t bit, d;
    for (bit = 9; bit >= 0; bit--) {
        for (d = 0; d < dims; d++) {
            key = key * 2 + (uint64_t)(coord[d] >> bit & 1);
        }
    }
    return key;
}

/* Checks an order of all blocks. Returns how many steps of it are not to a face neighbour; *widest
 * receives the longest step, as a sum over the dims. */
static int32_t check_order(int32_t kind, int32_t dims, const int32_t *parts, int32_t *widest)
{
    int32_t before[DPAR_MAX_DIMS] = {0}, coord[DPAR_MAX_DIMS], jumps = 0, blocks = 1, i, d;
    for (d = 0; d < dims; d++) {
        blocks *= parts[d];
    }
    CHECK_INT(dpari_blocks_curve(kind, dims, parts, NULL, order), blocks);
    memset(place, 0, sizeof place);
    *widest = 0;
    for (i = 0; i < blocks; i++) {
        int32_t steps = 0;
        CHECK(order[i] >= 0 && order[i] < blocks && place[order[i]] == 0);
        place[order[i]] = i + 1;
        coordinates(dims, parts, order[i], coord);
        for (d = 0; d < dims && i > 0; d++) {
            steps += abs(coord[d] - before[d]);
        }
        jumps += i > 0 && steps != 1;
        *widest = steps > *widest ? steps : *widest;
        if (kind == DPAR_BLOCKS_MORTON && i > 0) {
            CHECK(interleaved(dims, before) < interleaved(dims, coord));
        }
        if (kind == DPAR_BLOCKS_ROWS) {
            CHECK_INT(order[i], i);
        }
        memcpy(before, coord, sizeof before);
    }
    return jumps;
}

/* Checks that each aligned square of 2^k blocks is contiguous on the curve. */
static void check_squares(int32_t side)
{
    int32_t size, x, y, i, j;
    for (size = 2; size < side; size *= 2) {
        for (x = 0; x < side; x += size) {
            for (y = 0; y < side; y += size) {
                int32_t first = INT32_MAX, last = 0;
                for (i = 0; i < size * size; i++) {
                    j = place[(x + i / size) * side + y + i % size];
                    first = j < first ? j : first;
                    last = j > last ? j : last;
                }
                CHECK_INT(last - first, size * size - 1);
            }
        }
    }
}

static void orders(void)
{
    int32_t parts[DPAR_MAX_DIMS], widest, i, dims, d;
    for (parts[0] = 1; parts[0] <= 32; parts[0]++) {
        for (parts[1] = 1; parts[1] <= 32; parts[1]++) {
            const int even = parts[0] % 2 == 0 || parts[1] % 2 == 0;
            const int32_t jumps = check_order(DPAR_BLOCKS_HILBERT, 2, parts, &widest);
            const int32_t longest = parts[0] > parts[1] ? parts[0] : parts[1];
            const int32_t shortest = parts[0] + parts[1] - longest;
            CHECK(jumps <= 1 && widest <= 2);
            if (longest % 2 == 0 || !even || shortest >= longest / 2) {
                CHECK_INT(jumps, 0);
            }
            check_order(DPAR_BLOCKS_MORTON, 2, parts, &widest);
            check_order(DPAR_BLOCKS_ROWS, 2, parts, &widest);
            CHECK_INT(check_order(DPAR_BLOCKS_SNAKE, 2, parts, &widest), 0);
        }
    }
    for (i = 2; i <= 64; i *= 2) {
        parts[0] = i;
        parts[1] = i;
        CHECK_INT(check_order(DPAR_BLOCKS_HILBERT, 2, parts, &widest), 0);
        check_squares(i);
    }
    random_seed = 7;
    for (i = 0; i < 600; i++) {
        int32_t blocks = 1;
        dims = random_int(1, DPAR_MAX_DIMS);
        for (d = 0; d < dims; d++) {
            parts[d] = random_int(1, BLOCKS / blocks < 16 ? BLOCKS / blocks : 16);
            blocks *= parts[d];
        }
        CHECK(check_order(DPAR_BLOCKS_HILBERT, dims, parts, &widest) <= 1 && widest <= 2);
        check_order(DPAR_BLOCKS_MORTON, dims, parts, &widest);
        check_order(DPAR_BLOCKS_ROWS, dims, parts, &widest);
        CHECK_INT(check_order(DPAR_BLOCKS_SNAKE, dims, parts, &widest), 0);
    }
    for (i = 1; i <= 3; i++) { /* cubes of 2^i blocks in 3 and 4 dims */
        for (dims = 3; dims <= 4; dims++) {
            for (d = 0; d < dims; d++) {
                parts[d] = 1 << i;
            }
            CHECK_INT(check_order(DPAR_BLOCKS_HILBERT, dims, parts, &widest), 0);
        }
    }
}

/* ---- the oracle ------------------------------------------------------------------------------ */

/* Returns the least weight that the heaviest of `ranks` contiguous pieces can have. */
static double least_heaviest(const double *along, int32_t n, int32_t ranks)
{
    static double best[2][BLOCKS + 1];
    int32_t i, j, r;
    for (i = 0; i <= n; i++) {
        best[0][i] = i == 0 ? 0.0 : best[0][i - 1] + along[i - 1];
    }
    for (r = 1; r < ranks; r++) {
        for (i = 0; i <= n; i++) {
            double sum = 0.0, least = best[0][i];
            for (j = i - 1; j >= 0 && sum < least; j--) { /* the last piece begins at j */
                sum += along[j];
                least = fmin(least, fmax(best[0][j], sum));
            }
            best[1][i] = least;
        }
        memcpy(best[0], best[1], sizeof best[0]);
    }
    return best[0][n];
}

static int64_t block_size(const dpar_blocks_assign_desc *desc, int32_t d)
{
    return desc->block[d] > 0 ? desc->block[d] : 1;
}

static int64_t parts_of(const dpar_blocks_assign_desc *desc, int32_t d)
{
    return (desc->cells[d] + block_size(desc, d) - 1) / block_size(desc, d);
}

/* Returns the block of a cell. */
static int64_t block_of(const dpar_blocks_assign_desc *desc, const int64_t *cell)
{
    int64_t block = 0;
    int32_t d;
    for (d = 0; d < desc->dims; d++) {
        block = block * parts_of(desc, d) + cell[d] / block_size(desc, d);
    }
    return block;
}

static int is_there(const dpar_blocks_assign_desc *desc, int64_t block)
{
    return desc->exists == NULL || desc->exists[block] != 0;
}

/* Checks the statistics of owners cell by cell. */
static void check_stats(const dpar_blocks_assign_desc *desc, const int32_t *owns,
                        const dpar_blocks_stats *stats)
{
    static double load[RANKS];
    static int64_t sends[RANKS], count[RANKS];
    static char meets[RANKS][RANKS];
    int64_t cell[DPAR_MAX_DIMS] = {0}, first[DPAR_MAX_DIMS] = {0}, cut = 0, cut_most = 0,
            blocks = 0;
    int64_t least = INT64_MAX, most = 0, pairs = 0, neighbours_most = 0, cells = 1, i, idle = 0;
    double all = 0, heaviest = 0;
    int32_t d, side, r, s;
    memset(load, 0, sizeof load);
    memset(sends, 0, sizeof sends);
    memset(count, 0, sizeof count);
    memset(meets, 0, sizeof meets);
    for (d = 0; d < desc->dims; d++) {
        cells *= desc->cells[d];
    }
    for (i = 0; i < cells; i++) {
        int64_t rest = i, block;
        int begins = 1;
        for (d = desc->dims - 1; d >= 0; d--) {
            cell[d] = rest % desc->cells[d];
            rest /= desc->cells[d];
            begins = begins && cell[d] % block_size(desc, d) == 0;
        }
        block = block_of(desc, cell);
        if (!is_there(desc, block)) {
            continue;
        }
        if (begins) {
            count[owns[block]]++;
            blocks++;
            load[owns[block]] += desc->weight != NULL ? desc->weight[block] : 0.0;
        }
        load[owns[block]] += desc->weight == NULL;
        for (d = 0; d < desc->dims; d++) {
            for (side = -1; side <= 1; side += 2) {
                int64_t other;
                memcpy(first, cell, sizeof first);
                first[d] += side;
                if ((desc->periodic >> d & 1u) != 0) {
                    first[d] = (first[d] + desc->cells[d]) % desc->cells[d];
                }
                if (first[d] < 0 || first[d] >= desc->cells[d]) {
                    continue;
                }
                other = block_of(desc, first);
                if (is_there(desc, other) && owns[other] != owns[block]) {
                    sends[owns[block]]++;
                    meets[owns[block]][owns[other]] = 1;
                }
            }
        }
    }
    for (r = 0; r < desc->ranks; r++) {
        int64_t neighbours = 0;
        for (s = 0; s < desc->ranks; s++) {
            neighbours += meets[r][s];
        }
        pairs += neighbours;
        neighbours_most = neighbours > neighbours_most ? neighbours : neighbours_most;
        cut += sends[r];
        cut_most = sends[r] > cut_most ? sends[r] : cut_most;
        least = count[r] < least ? count[r] : least;
        most = count[r] > most ? count[r] : most;
        idle += count[r] == 0;
        all += load[r];
        heaviest = load[r] > heaviest ? load[r] : heaviest;
    }
    CHECK_INT(stats->blocks, blocks);
    CHECK_INT(stats->blocks_least, least);
    CHECK_INT(stats->blocks_most, most);
    CHECK_INT(stats->cut, cut);
    CHECK_INT(stats->cut_most, cut_most);
    CHECK_INT(stats->neighbours_most, neighbours_most);
    CHECK_INT(stats->idle, idle);
    CHECK_NEAR(stats->neighbours, (double)pairs / desc->ranks, 1e-12);
    CHECK_NEAR(stats->heaviest, heaviest, 1e-9);
    if (all > 0) {
        CHECK_NEAR(stats->imbalance, heaviest * desc->ranks / all, 1e-9);
    }
}

/* ---- random grids ---------------------------------------------------------------------------- */

/* Draws a grid. Returns the number of blocks. */
static int64_t draw_grid(dpar_blocks_assign_desc *desc)
{
    int64_t blocks = 1, i, cells = 1;
    const int32_t mask = random_int(0, 3), kind = random_int(0, 5);
    int32_t d;
    memset(desc, 0, sizeof *desc);
    desc->dims = random_int(1, random_int(0, 3) == 0 ? 6 : 3);
    desc->ranks = random_int(1, random_int(0, 1) == 0 ? 6 : RANKS);
    desc->order = random_int(0, DPAR_BLOCKS_ORDER_COUNT - 1);
    desc->periodic = (uint32_t)random_int(0, (1 << desc->dims) - 1);
    desc->memory = room;
    desc->bytes = sizeof room;
    for (d = 0; d < desc->dims; d++) {
        const int64_t most = 2000 / cells < 60 ? 2000 / cells : 60;
        desc->cells[d] = random_int(1, (int)most);
        desc->block[d] = random_int(0, 5);
        cells *= desc->cells[d];
        blocks *= parts_of(desc, d);
    }
    for (i = 0; i < blocks; i++) {
        exists[i] = (unsigned char)(random_int(0, 9) < 3 * mask);
        weight[i] = random_int(0, 1 << 20);
        switch (kind) {
        case 1: weight[i] = random_int(1, 1000); break;
        case 2: weight[i] = random_int(0, 2); break;
        case 3: weight[i] = 0.0; break;
        case 4: weight[i] = ldexp(weight[i], random_int(-20, 20)); break;
        case 5: weight[i] = random_int(0, 4) == 0 ? 1e304 : 3e-308 * random_int(0, 3); break;
        default: weight[i] = 1.0; break;
        }
    }
    desc->exists = mask > 0 ? exists : NULL;
    desc->weight = kind > 0 ? weight : NULL;
    return blocks;
}

/* Lists the blocks in the order of a description. Returns how many there are. */
static int32_t list_order(const dpar_blocks_assign_desc *desc, const int32_t *parts)
{
    dpari_bo blocks;
    int32_t i;
    if (desc->order != DPAR_BLOCKS_BISECTION) {
        return dpari_blocks_curve(desc->order, desc->dims, parts, desc->exists, order);
    }
    CHECK_INT(dpari_bo_open(&blocks, desc, &why), DPAR_OK);
    dpari_bo_line_up(&blocks);
    memset(place, 0, sizeof place);
    for (i = 0; i < blocks.count; i++) { /* any order will do, if it has each block once */
        order[i] = blocks.list[i];
        CHECK(is_there(desc, order[i]) && place[order[i]] == 0);
        place[order[i]] = 1;
    }
    return blocks.count;
}

/* Checks that the owners are contiguous on the curve, and the heaviest rank the lightest possible.
 */
static void check_owners(const dpar_blocks_assign_desc *desc, int64_t blocks,
                         const dpar_blocks_stats *stats)
{
    static double along[BLOCKS];
    int32_t parts[DPAR_MAX_DIMS], n, i, d, last = 0;
    int64_t there = 0;
    double all = 0;
    for (d = 0; d < desc->dims; d++) {
        parts[d] = (int32_t)parts_of(desc, d);
    }
    for (i = 0; i < blocks; i++) {
        there += is_there(desc, i);
        CHECK(is_there(desc, i) ? owner[i] >= 0 && owner[i] < desc->ranks : owner[i] == -1);
    }
    n = list_order(desc, parts);
    CHECK_INT(n, there);
    for (i = 0; i < n; i++) {
        CHECK(owner[order[i]] >= last);
        last = owner[order[i]];
        along[i] = desc->weight != NULL ? desc->weight[order[i]] : 1.0;
        if (desc->weight == NULL) {
            int32_t coord[DPAR_MAX_DIMS];
            coordinates(desc->dims, parts, order[i], coord);
            for (d = 0; d < desc->dims; d++) {
                const int64_t rest = desc->cells[d] - coord[d] * block_size(desc, d);
                along[i] *= (double)(rest < block_size(desc, d) ? rest : block_size(desc, d));
            }
        }
        all += along[i];
    }
    if (n >= desc->ranks) {
        CHECK_INT(stats->idle, 0);
    } else {
        CHECK_INT(stats->blocks_most, n > 0);
    }
    CHECK_NEAR(stats->heaviest, least_heaviest(along, n, desc->ranks), 1e-9);
    if (all <= 0 && n > 0) { /* equal weights */
        CHECK(stats->blocks_most <= (n + desc->ranks - 1) / desc->ranks);
        CHECK(stats->imbalance >= 1.0);
    }
}

static void random_grids(void)
{
    dpar_blocks_assign_desc desc;
    dpar_blocks_stats stats, again;
    int i, k;
    random_seed = 11;
    for (i = 0; i < 2000; i++) {
        const int64_t blocks = draw_grid(&desc);
        CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
        check_owners(&desc, blocks, &stats);
        check_stats(&desc, owner, &stats);
        CHECK_INT(dpar_blocks_measure(&desc, owner, &again, &why), DPAR_OK);
        CHECK(memcmp(&stats, &again, sizeof stats) == 0);
        for (k = 0; k < blocks; k++) { /* any owners */
            owner[k] = random_int(0, desc.ranks - 1);
        }
        CHECK_INT(dpar_blocks_measure(&desc, owner, &again, &why), DPAR_OK);
        check_stats(&desc, owner, &again);
    }
}

/* Checks bisections: two ranks share the longest side, and 2^k ranks get equal boxes. */
static void bisections(void)
{
    dpar_blocks_assign_desc desc;
    dpar_blocks_stats stats;
    int32_t i, d, r, k;
    random_seed = 23;
    for (i = 0; i < 300; i++) {
        const int64_t blocks = draw_grid(&desc);
        int32_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS], parts[DPAR_MAX_DIMS], longest = 0,
                                                                               last = -1;
        int32_t coord[DPAR_MAX_DIMS], first = INT32_MAX;
        desc.ranks = 2;
        desc.order = DPAR_BLOCKS_BISECTION;
        for (d = 0; d < desc.dims; d++) {
            parts[d] = (int32_t)parts_of(&desc, d);
            low[d] = INT32_MAX;
            high[d] = -1;
        }
        CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
        if (stats.blocks < 2) {
            continue;
        }
        for (r = 0; r <= 1; r++) { /* the extents, then those of each rank along the longest */
            for (k = 0; k < blocks; k++) {
                coordinates(desc.dims, parts, k, coord);
                for (d = 0; d < desc.dims && is_there(&desc, k) && r == 0; d++) {
                    low[d] = coord[d] < low[d] ? coord[d] : low[d];
                    high[d] = coord[d] > high[d] ? coord[d] : high[d];
                }
                if (r == 1 && is_there(&desc, k) && owner[k] == 0 && coord[longest] > last) {
                    last = coord[longest];
                }
                if (r == 1 && is_there(&desc, k) && owner[k] == 1 && coord[longest] < first) {
                    first = coord[longest];
                }
            }
            for (d = 1; d < desc.dims && r == 0; d++) {
                if ((high[d] - low[d] + 1) * block_size(&desc, d) >
                    (high[longest] - low[longest] + 1) * block_size(&desc, longest)) {
                    longest = d;
                }
            }
        }
        CHECK(last <= first);
    }
    for (k = 0; k <= 6; k++) {
        memset(&desc, 0, sizeof desc);
        desc.dims = 2 + k % 2;
        desc.ranks = 1 << k;
        desc.order = DPAR_BLOCKS_BISECTION;
        desc.memory = room;
        desc.bytes = sizeof room;
        for (d = 0; d < desc.dims; d++) {
            desc.cells[d] = 16;
        }
        CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
        for (r = 0; r < desc.ranks; r++) {
            int32_t low[3] = {99, 99, 99}, high[3] = {0, 0, 0}, coord[3], box = 1, count = 0;
            const int32_t parts[3] = {16, 16, 16}, blocks = desc.dims == 2 ? 256 : 4096;
            for (i = 0; i < blocks; i++) {
                coordinates(desc.dims, parts, i, coord);
                for (d = 0; d < desc.dims && owner[i] == r; d++) {
                    low[d] = coord[d] < low[d] ? coord[d] : low[d];
                    high[d] = coord[d] > high[d] ? coord[d] : high[d];
                }
                count += owner[i] == r;
            }
            for (d = 0; d < desc.dims; d++) {
                box *= high[d] - low[d] + 1;
            }
            CHECK_INT(box, blocks / desc.ranks);
            CHECK_INT(count, box);
        }
    }
}

/* Checks all cuts of short rows by brute force: the heaviest rank, and that no best cuts are nearer
 * to equal weights in the place of the first cut. */
static void all_cuts(void)
{
    dpar_blocks_assign_desc desc;
    dpar_blocks_stats stats;
    int turn, n, i, j, k;
    random_seed = 3;
    for (turn = 0; turn < 2000; turn++) {
        double best = 1e30, before[13] = {0}, nearest = 1e30;
        memset(&desc, 0, sizeof desc);
        n = random_int(3, 12);
        desc.dims = 1;
        desc.ranks = 3;
        desc.cells[0] = n;
        desc.weight = weight;
        desc.memory = room;
        desc.bytes = sizeof room;
        for (i = 0; i < n; i++) {
            weight[i] = random_int(0, 9);
            before[i + 1] = before[i] + weight[i];
        }
        weight[0] += before[n] <= 0;
        before[1] = weight[0];
        for (i = 1; i < n; i++) {
            before[i + 1] = before[i] + weight[i];
        }
        for (i = 1; i < n - 1; i++) {
            for (j = i + 1; j < n; j++) {
                const double heaviest =
                    fmax(before[i], fmax(before[j] - before[i], before[n] - before[j]));
                const double away = fabs(before[i] - before[n] / 3);
                if (heaviest < best || (heaviest <= best && away < nearest)) {
                    nearest = away;
                }
                best = fmin(best, heaviest);
            }
        }
        CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
        CHECK_NEAR(stats.heaviest, best, 1e-12);
        for (k = 0; k < n && owner[k] == 0; k++) {
        }
        CHECK_NEAR(fabs(before[k] - before[n] / 3), nearest, 1e-9);
    }
}

/* ---- rebalancing ----------------------------------------------------------------------------- */

static void rebalance(void)
{
    static int32_t old[BLOCKS], next[BLOCKS], same[BLOCKS];
    dpar_blocks_assign_desc desc;
    dpar_blocks_rebalance_desc how;
    dpar_blocks_rebalance_result result;
    dpar_blocks_stats stats;
    int i, paid = 0, kept = 0;
    int32_t r;
    int64_t k;
    random_seed = 5;
    for (i = 0; i < 2000; i++) {
        const int64_t blocks = draw_grid(&desc);
        int64_t moved = 0, busy[RANKS] = {0}, most = 0;
        double seconds;
        CHECK_INT(dpar_blocks_assign(&desc, old, NULL, &why), DPAR_OK);
        for (k = 0; k < blocks; k++) {
            weight[k] = random_int(0, 100) + 100.0 * (double)k / (double)blocks;
            old[k] = i % 4 == 0 ? random_int(0, desc.ranks - 1) : old[k];
        }
        desc.weight = weight;
        memset(&how, 0, sizeof how);
        how.blocks = &desc;
        how.owner = old;
        how.steps = random_int(1, 50);
        how.block_bytes = random_int(0, 1000);
        how.seconds_per_byte = random_int(0, 3) * 0.01;
        how.seconds = random_int(0, 3) * 10.0;
        how.seconds_per_weight = random_int(0, 1) * 0.5;
        how.threshold = random_int(0, 4) == 0 ? 0.3 : 0.0;
        memset(next, 77, sizeof next);
        CHECK_INT(dpar_blocks_rebalance(&how, next, &result, &why), DPAR_OK);
        check_stats(&desc, old, &result.before);
        check_stats(&desc, next, &result.after);
        for (k = 0; k < blocks; k++) {
            if (!is_there(&desc, k)) {
                continue;
            }
            if (next[k] != old[k]) {
                moved++;
                busy[next[k]]++;
                busy[old[k]]++;
            }
        }
        for (r = 0; r < desc.ranks; r++) {
            most = busy[r] > most ? busy[r] : most;
        }
        CHECK_INT(result.blocks_moved, moved);
        CHECK_INT(result.bytes_moved, moved * how.block_bytes);
        CHECK_INT(result.bytes_most, most * how.block_bytes);
        seconds = (double)how.steps * (how.seconds_per_weight > 0 ? 0.5 : 1.0);
        if (result.pays) {
            CHECK_NEAR(result.gain, (result.before.heaviest - result.after.heaviest) * seconds,
                       1e-9);
            CHECK_NEAR(result.cost,
                       (double)(most * how.block_bytes) * how.seconds_per_byte + how.seconds, 1e-9);
            CHECK(result.gain > result.cost);
            CHECK(result.gain >= how.threshold * result.before.heaviest * seconds * (1 - 1e-9));
            paid++;
        } else {
            CHECK_INT(moved, 0);
            CHECK(memcmp(&result.before, &result.after, sizeof stats) == 0);
            CHECK(result.gain <= result.cost * (1 + 1e-9) ||
                  result.gain <= how.threshold * result.before.heaviest * seconds * (1 + 1e-9));
            kept++;
        }
        memcpy(same, old, sizeof same); /* in place */
        how.owner = same;
        CHECK_INT(dpar_blocks_rebalance(&how, same, &result, &why), DPAR_OK);
        CHECK(memcmp(same, next, (size_t)blocks * sizeof *same) == 0 || desc.exists != NULL);
        how.seconds = 0; /* what costs nothing is done as well as possible */
        how.seconds_per_byte = 0;
        how.steps = 0;
        how.threshold = 0;
        how.owner = old;
        CHECK_INT(dpar_blocks_rebalance(&how, next, &result, &why), DPAR_OK);
        CHECK_INT(dpar_blocks_assign(&desc, next, &stats, &why), DPAR_OK);
        CHECK_NEAR(result.after.heaviest, fmin(stats.heaviest, result.before.heaviest), 1e-9);
    }
    CHECK(paid > 300 && kept > 300);
}

/* Moves the one cut of two ranks: as little as the least heaviest rank allows. */
static void little_moves(void)
{
    int32_t old[40], next[40], turn, i, cut, from, least;
    dpar_blocks_assign_desc desc;
    dpar_blocks_rebalance_desc how;
    dpar_blocks_rebalance_result result;
    random_seed = 17;
    memset(&desc, 0, sizeof desc);
    desc.dims = 1;
    desc.ranks = 2;
    desc.weight = weight;
    desc.memory = room;
    desc.bytes = sizeof room;
    desc.order = DPAR_BLOCKS_ROWS;
    memset(&how, 0, sizeof how);
    how.blocks = &desc;
    how.owner = old;
    how.block_bytes = 8;
    for (turn = 0; turn < 1000; turn++) {
        const int32_t n = random_int(2, 40);
        double before[41] = {0}, best = 1e30;
        desc.cells[0] = n;
        from = random_int(1, n - 1);
        for (i = 0; i < n; i++) {
            weight[i] = random_int(0, 2);
            before[i + 1] = before[i] + weight[i];
            old[i] = i >= from;
        }
        for (i = 1; i < n; i++) {
            best = fmin(best, fmax(before[i], before[n] - before[i]));
        }
        least = n;
        for (i = 1; i < n; i++) {
            if (fmax(before[i], before[n] - before[i]) <= best && abs(i - from) < least) {
                least = abs(i - from);
            }
        }
        CHECK_INT(dpar_blocks_rebalance(&how, next, &result, &why), DPAR_OK);
        for (cut = 0; cut < n && next[cut] == 0; cut++) {
        }
        if (before[n] > 0) {
            CHECK_INT(abs(cut - from), least);
            CHECK_INT(result.blocks_moved, least);
        }
    }
}

/* 55 and 40 blocks on two ranks, where the last block of the first rank weighs 10. If it moves, the
 * ranks have 54 and 50. With two more blocks they have 52 each. */
static void worthwhile(void)
{
    static const struct {
        double seconds; /* to move a block */
        int32_t moved;
    } cases[] = {{0.0, 3}, {0.9, 3}, {1.5, 1}, {9.5, 1}, {10.5, 0}};
    int32_t old[95], next[95], i;
    dpar_blocks_assign_desc desc;
    dpar_blocks_rebalance_desc how;
    dpar_blocks_rebalance_result result;
    memset(&desc, 0, sizeof desc);
    desc.dims = 1;
    desc.ranks = 2;
    desc.cells[0] = 95;
    desc.weight = weight;
    desc.memory = room;
    desc.bytes = sizeof room;
    memset(&how, 0, sizeof how);
    how.blocks = &desc;
    how.owner = old;
    how.steps = 1;
    how.block_bytes = 10;
    for (i = 0; i < 95; i++) {
        weight[i] = i == 54 ? 10 : 1;
        old[i] = i >= 55;
    }
    for (i = 0; i < 5; i++) {
        how.seconds_per_byte = cases[i].seconds / 10;
        CHECK_INT(dpar_blocks_rebalance(&how, next, &result, &why), DPAR_OK);
        CHECK_INT(result.blocks_moved, cases[i].moved);
        CHECK_INT(result.pays, cases[i].moved > 0);
        CHECK_NEAR(result.before.heaviest, 64, 0);
    }
}

/* A hot spot that wanders over the grid: balance is restored, and most blocks stay. */
static void wandering(void)
{
    static int32_t now[1024];
    dpar_blocks_assign_desc desc;
    dpar_blocks_rebalance_desc how;
    dpar_blocks_rebalance_result result;
    dpar_blocks_stats stats;
    int32_t turn, i;
    memset(&desc, 0, sizeof desc);
    desc.dims = 2;
    desc.ranks = 16;
    desc.cells[0] = 32;
    desc.cells[1] = 32;
    desc.memory = room;
    desc.bytes = sizeof room;
    CHECK_INT(dpar_blocks_assign(&desc, now, &stats, &why), DPAR_OK);
    CHECK_NEAR(stats.imbalance, 1.0, 1e-12);
    desc.weight = weight;
    memset(&how, 0, sizeof how);
    how.blocks = &desc;
    how.owner = now;
    how.steps = 100;
    how.block_bytes = 1 << 20;
    how.seconds_per_byte = 1e-9;
    for (turn = 0; turn < 20; turn++) {
        for (i = 0; i < 1024; i++) {
            const int32_t y = i / 32 - 16, x = i % 32 - 6 - turn;
            weight[i] = 1e-3 * (1.0 + (x * x + y * y < 30));
        }
        CHECK_INT(dpar_blocks_rebalance(&how, now, &result, &why), DPAR_OK);
        CHECK(result.after.imbalance < 1.1 && result.after.imbalance <= result.before.imbalance);
        CHECK(turn == 0 || result.blocks_moved < 512);
    }
}

/* ---- limits and messages --------------------------------------------------------------------- */

static void refusals(void)
{
    dpar_blocks_assign_desc desc, good;
    dpar_blocks_rebalance_desc how;
    dpar_blocks_rebalance_result result;
    dpar_blocks_stats stats;
    const double zero = 0.0;
    memset(&good, 0, sizeof good);
    good.dims = 2;
    good.ranks = 3;
    good.cells[0] = 4;
    good.cells[1] = 4;
    good.memory = room;
    good.bytes = 12 * 16 + 32 * 3 + 24;
    memset(owner, 77, sizeof owner);
    desc = good;
#define ASSIGN(status, words) REFUSED(dpar_blocks_assign(&desc, owner, &stats, &why), status, words)
    REFUSED(dpar_blocks_assign(NULL, owner, &stats, &why), DPAR_E_ARG, "dims is 0");
    REFUSED(dpar_blocks_assign(&desc, NULL, &stats, &why), DPAR_E_ARG, "owner is NULL");
    desc.dims = 7;
    ASSIGN(DPAR_E_ARG, "dims is 7, but must be 1 to 6");
    desc = good;
    desc.ranks = 0;
    ASSIGN(DPAR_E_ARG, "ranks 0 is less than 1");
    desc = good;
    desc.order = DPAR_BLOCKS_ORDER_COUNT;
    ASSIGN(DPAR_E_ARG, "order 5 is none of");
    desc.order = -1;
    ASSIGN(DPAR_E_ARG, "order -1 is none of");
    desc = good;
    desc.periodic = 4;
    ASSIGN(DPAR_E_ARG, "beyond the 2 dims");
    desc = good;
    desc.cells[1] = 0;
    ASSIGN(DPAR_E_ARG, "dim 1: cells is 0, but must be at least 1");
    desc = good;
    desc.block[0] = -3;
    ASSIGN(DPAR_E_ARG, "block is -3, but must not be negative");
    desc = good;
    desc.cells[0] = INT64_MAX;
    ASSIGN(DPAR_E_RANGE, "more than 2^59 cells");
    desc.block[0] = INT64_MAX;
    ASSIGN(DPAR_E_RANGE, "more than 2^59 cells");
    desc.cells[0] = INT64_C(1) << 32;
    desc.block[0] = 1;
    ASSIGN(DPAR_E_RANGE, "2^31 - 1 blocks");
    desc = good;
    desc.bytes--;
    why.bytes = 0;
    ASSIGN(DPAR_E_ROOM, "16 blocks on 3 ranks need 312 bytes");
    CHECK_INT(why.bytes, 312);
    desc.memory = NULL;
    ASSIGN(DPAR_E_ROOM, "312 bytes");
    desc = good;
    desc.weight = weight;
    memset(weight, 0, sizeof weight);
    weight[5] = -1e-300;
    ASSIGN(DPAR_E_ARG, "block 5: its weight is negative or not finite");
    weight[5] = zero / zero;
    ASSIGN(DPAR_E_ARG, "block 5: its weight is");
    weight[5] = 1 / zero;
    ASSIGN(DPAR_E_ARG, "block 5: its weight is");
    memset(exists, 1, sizeof exists);
    exists[5] = 0;
    CHECK(owner[0] == 77 * 0x01010101);
    desc.exists = exists; /* weights of blocks that do not exist are not read */
    CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
    CHECK_INT(stats.blocks, 15);
    REFUSED(dpar_blocks_measure(&desc, owner, NULL, &why), DPAR_E_ARG, "stats is NULL");
    REFUSED(dpar_blocks_measure(NULL, owner, &stats, &why), DPAR_E_ARG, "dims is 0");
    owner[3] = 3;
    REFUSED(dpar_blocks_measure(&desc, owner, &stats, &why), DPAR_E_ARG,
            "block 3: its owner is 3, but must be a rank from 0 to 2");
    owner[3] = -1;
    REFUSED(dpar_blocks_measure(&desc, owner, &stats, &why), DPAR_E_ARG,
            "block 3: its owner is -1");
    owner[3] = 0;
    memset(&how, 0, sizeof how);
    how.blocks = &desc;
#define AGAIN(status, words)                                                                       \
    REFUSED(dpar_blocks_rebalance(&how, owner, &result, &why), status, words)
    AGAIN(DPAR_E_ARG, "desc.owner, owner or result is NULL");
    how.owner = owner;
    how.threshold = -0.1;
    AGAIN(DPAR_E_ARG, "or threshold is negative");
    how.threshold = 0;
    how.seconds_per_weight = 1 / zero;
    AGAIN(DPAR_E_ARG, "seconds_per_weight or");
    how.seconds_per_weight = 0;
    how.steps = -1;
    AGAIN(DPAR_E_ARG, "steps -1 or block_bytes 0 is negative");
    how.steps = 0;
    how.seconds = 1;
    AGAIN(DPAR_E_ARG, "steps is 0, but must be at least 1");
    how.steps = 1;
    how.block_bytes = INT64_MAX;
    AGAIN(DPAR_E_RANGE, "16 blocks of 9223372036854775807 bytes");
    how.block_bytes = 0;
    owner[3] = 9;
    AGAIN(DPAR_E_ARG, "block 3: its owner is 9");
}

static void limits(void)
{
    dpar_blocks_assign_desc desc;
    dpar_blocks_stats stats;
    int i;
    memset(&desc, 0, sizeof desc);
    desc.dims = 2; /* the most cells, in 16 blocks */
    desc.ranks = 4;
    desc.cells[0] = INT64_C(1) << 30;
    desc.cells[1] = INT64_C(1) << 29;
    desc.block[0] = desc.cells[0] / 4;
    desc.block[1] = desc.cells[1] / 4;
    desc.periodic = 3;
    desc.memory = room;
    desc.bytes = sizeof room;
    CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
    CHECK_NEAR(stats.heaviest, 0x1p57, 0);
    CHECK_INT(stats.cut, 4 * 2 * (desc.cells[0] / 2 + desc.cells[1] / 2));
    memset(exists, 0, sizeof exists); /* no block at all */
    desc.exists = exists;
    CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
    CHECK(stats.blocks == 0 && stats.idle == 4 && stats.cut == 0 && owner[7] == -1);
    CHECK_NEAR(stats.imbalance, 1.0, 0);
    desc.exists = NULL;
    desc.weight = weight;
    for (i = 0; i < 16; i++) {
        weight[i] = 1.7976931348623157e308;
    }
    CHECK_INT(dpar_blocks_assign(&desc, owner, &stats, &why), DPAR_OK);
    CHECK_NEAR(stats.imbalance, 1.0, 0);
}

/* ---- the earth ------------------------------------------------------------------------------- */

/* The owners of ocean blocks are the same on all compilers and targets. */
static void ocean(void)
{
    static double cells[800];
    dpar_blocks_assign_desc desc;
    dpar_blocks_stats stats[DPAR_BLOCKS_ORDER_COUNT];
    uint32_t hash[DPAR_BLOCKS_ORDER_COUNT];
    int32_t i;
    count_ocean(720, 1440, 36, 36, cells);
    for (i = 0; i < 800; i++) {
        exists[i] = cells[i] > 0;
    }
    memset(&desc, 0, sizeof desc);
    desc.dims = 2;
    desc.ranks = 48;
    desc.cells[0] = 720;
    desc.cells[1] = 1440;
    desc.block[0] = 36;
    desc.block[1] = 36;
    desc.periodic = 2;
    desc.exists = exists;
    desc.weight = cells;
    desc.memory = room;
    desc.bytes = sizeof room;
    for (desc.order = 0; desc.order < DPAR_BLOCKS_ORDER_COUNT; desc.order++) {
        CHECK_INT(dpar_blocks_assign(&desc, owner, &stats[desc.order], &why), DPAR_OK);
        check_stats(&desc, owner, &stats[desc.order]);
        hash[desc.order] = 1;
        for (i = 0; i < 800; i++) {
            hash[desc.order] = hash[desc.order] * 31 + (uint32_t)(owner[i] + 1);
        }
        CHECK(stats[desc.order].imbalance < 1.1);
    }
    CHECK(stats[DPAR_BLOCKS_HILBERT].cut < stats[DPAR_BLOCKS_MORTON].cut);
    CHECK(stats[DPAR_BLOCKS_HILBERT].cut < 0.8 * (double)stats[DPAR_BLOCKS_ROWS].cut);
    CHECK(stats[DPAR_BLOCKS_BISECTION].cut < stats[DPAR_BLOCKS_MORTON].cut);
    CHECK_INT(hash[DPAR_BLOCKS_BISECTION], 2810335785u);
    CHECK_INT(hash[DPAR_BLOCKS_HILBERT], 2582249524u);
    CHECK_INT(hash[DPAR_BLOCKS_MORTON], 3203672388u);
    CHECK_INT(hash[DPAR_BLOCKS_ROWS], 2965925839u);
}

int main(void)
{
    orders();
    all_cuts();
    random_grids();
    bisections();
    rebalance();
    little_moves();
    worthwhile();
    wandering();
    refusals();
    limits();
    ocean();
    return CHECK_DONE();
}
