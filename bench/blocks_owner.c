/* SPDX-License-Identifier: MIT-0 */
/* blocks_owner - compares who owns the blocks of an ocean: dpar's orders, and the methods of CICE
 * and AMReX.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/blocks_owner.c -o blocks_owner && ./blocks_owner
 *
 * The ocean has the coasts of helpers/continents.h. A block weighs as many ocean cells as it has,
 * and is dropped if it has none. The peers are written by hand after their sources:
 *
 *   CICE cartesian      rectangles of blocks (create_distrb_cart)
 *   CICE roundrobin     block after block, without land (create_distrb_roundrobin)
 *   CICE spacecurve     equal numbers of blocks along a Hilbert curve of squares
 *                       (create_distrb_spacecurve, where the numbers of blocks are powers of 2)
 *   AMReX SFC           Morton order, filled rank by rank up to the mean (Distribute)
 *   AMReX knapsack      heaviest block to the lightest rank, then swaps (knapsack)
 *
 * Columns: weight of the heaviest rank / mean; neighbours of a rank on average, and of the rank
 * with the most; cells that all ranks send in an exchange of a halo 1 wide across faces, and the
 * rank that sends the most. The row without weights cuts Hilbert's curve into equal numbers of
 * blocks.
 *
 * The last table follows sea ice through twelve months. It makes the blocks that it covers three
 * times as expensive, and owners are decided again each month. Columns: mean imbalance, and how
 * many blocks moved in the year. dpar_blocks_rebalance assumes steps of about 20 ms, and blocks of
 * 4 MB that move at 1 GB/s. If it decides for 30 steps only, most moves do not pay.
 *
 * No times are measured. */
#include "dpar_blocks.h"

static const char program[] = "blocks_owner";
static const char help[] =
    "blocks_owner: who owns the blocks of an ocean, by dpar and by the methods of CICE and AMReX\n"
    "\n"
    "  blocks_owner [options]\n"
    "\n"
    "  --rows N        rows of cells, twice as many columns; a power of 2 (default 1024)\n"
    "  -h, --help      show this text\n"
    "\n"
    "Exit code: 0 done, 2 bad input\n";

#include "../helpers/options.h"
#include "../helpers/continents.h"

/* The ocean, and owners of its blocks. */
typedef struct ocean {
    dpar_blocks_assign_desc desc;
    int32_t rows, columns, blocks; /* of blocks */
    double *weight;
    unsigned char *exists;
    int32_t *owner, *list;
} ocean;

static void *memory(size_t bytes)
{
    void *at = calloc(bytes, 1);
    if (at == NULL) {
        exit(complain("there is not enough memory", NULL));
    }
    return at;
}

static void make_ocean(ocean *sea, int64_t rows, int64_t size, int32_t ranks)
{
    int32_t i;
    memset(sea, 0, sizeof *sea);
    sea->rows = (int32_t)(rows / size);
    sea->columns = 2 * sea->rows;
    sea->blocks = sea->rows * sea->columns;
    sea->weight = (double *)memory((size_t)sea->blocks * sizeof(double));
    sea->exists = (unsigned char *)memory((size_t)sea->blocks);
    sea->owner = (int32_t *)memory((size_t)sea->blocks * sizeof(int32_t));
    sea->list = (int32_t *)memory((size_t)sea->blocks * sizeof(int32_t));
    count_ocean(rows, 2 * rows, size, size, sea->weight);
    for (i = 0; i < sea->blocks; i++) {
        sea->exists[i] = sea->weight[i] > 0;
    }
    sea->desc.dims = 2;
    sea->desc.ranks = ranks;
    sea->desc.periodic = 2;
    sea->desc.cells[0] = rows;
    sea->desc.cells[1] = 2 * rows;
    sea->desc.block[0] = size;
    sea->desc.block[1] = size;
    sea->desc.weight = sea->weight;
    sea->desc.exists = sea->exists;
    sea->desc.bytes = 12 * (int64_t)sea->blocks + 32 * (int64_t)ranks + 24;
    sea->desc.memory = memory((size_t)sea->desc.bytes);
}

static void free_ocean(ocean *sea)
{
    free(sea->weight);
    free(sea->exists);
    free(sea->owner);
    free(sea->list);
    free(sea->desc.memory);
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Rectangles of blocks. The process grid is the one whose rectangles are nearest to squares. */
static void cartesian(ocean *sea)
{
    int32_t down = 1, i, d;
    double best = 1e30;
    int32_t high, wide, across;
    for (d = 1; d <= sea->desc.ranks; d++) {
        const double a = (double)sea->rows / d;
        const double b = (double)sea->columns / (sea->desc.ranks / d);
        const double ratio = a > b ? a / b : b / a;
        if (sea->desc.ranks % d == 0 && ratio < best) {
            best = ratio;
            down = d;
        }
    }
    across = sea->desc.ranks / down;
    high = (sea->rows - 1) / down + 1;
    wide = (sea->columns - 1) / across + 1;
    for (i = 0; i < sea->blocks; i++) {
        sea->owner[i] = i / sea->columns / high * across + i % sea->columns / wide;
    }
}

static void round_robin(ocean *sea)
{
    int32_t i, next = 0;
    for (i = 0; i < sea->blocks; i++) {
        sea->owner[i] = next % sea->desc.ranks;
        next += sea->exists[i];
    }
}

/* Converts a place on Hilbert's curve of a square of 2^k blocks to coordinates. */
static void place_on_curve(int32_t side, int32_t place, int32_t *x, int32_t *y)
{
    int32_t size;
    *x = 0;
    *y = 0;
    for (size = 1; size < side; size *= 2) {
        const int32_t right = place / 2 % 2, up = (place ^ right) % 2;
        if (up == 0) {
            const int32_t old = right == 1 ? size - 1 - *x : *x;
            *x = right == 1 ? size - 1 - *y : *y;
            *y = old;
        }
        *x += size * right;
        *y += size * up;
        place /= 4;
    }
}

/* Squares of the curve are two blocks wide, because the grid is. */
static void space_curve(ocean *sea)
{
    const int32_t side = sea->rows;
    int32_t i, k, x, y, n = 0, least, extra;
    for (i = 0; i < side * side; i++) {
        place_on_curve(side, i, &x, &y);
        for (k = 0; k < 2; k++) {
            const int32_t block = y * sea->columns + 2 * x + k;
            if (sea->exists[block]) {
                sea->list[n++] = block;
            }
        }
    }
    least = n / sea->desc.ranks;
    extra = n % sea->desc.ranks;
    for (i = 0; i < n; i++) {
        const int32_t more = extra * (least + 1);
        sea->owner[sea->list[i]] = i < more ? i / (least + 1) : extra + (i - more) / least;
    }
}

static void morton_filled(ocean *sea)
{
    double mean = 0, all = 0;
    int32_t i, r, n = 0, at = 0, key;
    const int32_t side = sea->columns;
    for (key = 0; key < side * side; key++) { /* x has the lower bits */
        int32_t x = 0, y = 0, bit;
        for (bit = 0; bit < 15; bit++) {
            x |= (key >> 2 * bit & 1) << bit;
            y |= (key >> (2 * bit + 1) & 1) << bit;
        }
        if (y < sea->rows && sea->exists[y * sea->columns + x]) {
            sea->list[n++] = y * sea->columns + x;
        }
    }
    for (i = 0; i < n; i++) {
        mean += sea->weight[sea->list[i]] / sea->desc.ranks;
    }
    for (r = 0; r < sea->desc.ranks; r++) {
        const int last = r == sea->desc.ranks - 1;
        double sum = 0;
        int32_t count = 0;
        while (at < n && (last || sum < mean)) {
            sum += sea->weight[sea->list[at]];
            sea->owner[sea->list[at++]] = r;
            count++;
        }
        all += sum;
        if (all / (r + 1) > mean && count > 1 && !last) {
            at--;
            all -= sea->weight[sea->list[at]];
        }
    }
}

static const double *sort_weight;

static int heavier(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const double x = sort_weight[i], y = sort_weight[j];
    return x < y ? 1 : x > y ? -1 : i - j;
}

/* Finds the lightest and the heaviest rank. */
static void extremes(const double *load, int32_t ranks, int32_t *lightest, int32_t *heaviest)
{
    int32_t r;
    *lightest = 0;
    *heaviest = 0;
    for (r = 1; r < ranks; r++) {
        *lightest = load[r] < load[*lightest] ? r : *lightest;
        *heaviest = load[r] > load[*heaviest] ? r : *heaviest;
    }
}

/* Swaps a block of the heaviest rank with one of the lightest. Returns 0 if that helps no more. */
static int swap_blocks(ocean *sea, double *load, int32_t n)
{
    int32_t low, high, i, j;
    extremes(load, sea->desc.ranks, &low, &high);
    for (i = 0; i < n; i++) {
        for (j = 0; j < n && sea->owner[sea->list[i]] == high; j++) {
            const double less = sea->weight[sea->list[i]] - sea->weight[sea->list[j]];
            if (sea->owner[sea->list[j]] == low && less > 0 && load[low] + less < load[high]) {
                sea->owner[sea->list[i]] = low;
                sea->owner[sea->list[j]] = high;
                load[low] += less;
                load[high] -= less;
                return 1;
            }
        }
    }
    return 0;
}

static void knapsack(ocean *sea)
{
    double *load = (double *)memory((size_t)sea->desc.ranks * sizeof *load);
    int32_t i, n = 0, low, high, turn = 0;
    for (i = 0; i < sea->blocks; i++) {
        if (sea->exists[i]) {
            sea->list[n++] = i;
        }
    }
    sort_weight = sea->weight;
    qsort(sea->list, (size_t)n, sizeof *sea->list, heavier);
    for (i = 0; i < n; i++) {
        extremes(load, sea->desc.ranks, &low, &high);
        sea->owner[sea->list[i]] = low;
        load[low] += sea->weight[sea->list[i]];
    }
    while (turn < 1000 && swap_blocks(sea, load, n)) {
        turn++;
    }
    free(load);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_row(const char *name, const dpar_blocks_stats *stats)
{
    printf("%-18s%10.3f%9lld..%-6lld%8.2f%6ld%12lld%12lld\n", name, stats->imbalance,
           (long long)stats->blocks_least, (long long)stats->blocks_most, stats->neighbours,
           (long)stats->neighbours_most, (long long)stats->cut, (long long)stats->cut_most);
}

static int table(int64_t rows, int64_t size, int32_t ranks)
{
    static const char order[DPAR_BLOCKS_ORDER_COUNT][16] = {
        "dpar hilbert", "dpar morton", "dpar rows", "dpar snake", "dpar bisection"};
    static const struct {
        char name[16];
        void (*assign)(ocean *sea);
    } peer[] = {{"CICE cartesian", cartesian},
                {"CICE roundrobin", round_robin},
                {"CICE spacecurve", space_curve},
                {"AMReX SFC", morton_filled},
                {"AMReX knapsack", knapsack}};
    ocean sea;
    dpar_blocks_stats stats;
    dpar_why why;
    size_t i;
    make_ocean(&sea, rows, size, ranks);
    if (dpar_blocks_assign(&sea.desc, sea.owner, &stats, &why) < 0) {
        return complain(why.text, NULL);
    }
    printf("\n%ld x %ld blocks of %lld x %lld, %lld with ocean, %ld ranks\n", (long)sea.rows,
           (long)sea.columns, (long long)size, (long long)size, (long long)stats.blocks,
           (long)ranks);
    printf("%-18s%10s%17s%14s%12s%12s\n", "", "imbalance", "blocks", "neighbours", "all send",
           "one sends");
    for (i = 0; i < sizeof peer / sizeof *peer; i++) {
        peer[i].assign(&sea);
        if (dpar_blocks_measure(&sea.desc, sea.owner, &stats, &why) < 0) {
            return complain(why.text, NULL);
        }
        print_row(peer[i].name, &stats);
    }
    for (i = 0; i < (size_t)sea.blocks; i++) {
        sea.weight[i] = sea.exists[i] ? 1 : 0;
    }
    if (dpar_blocks_assign(&sea.desc, sea.owner, NULL, &why) < 0) {
        return complain(why.text, NULL);
    }
    count_ocean(rows, 2 * rows, size, size, sea.weight);
    if (dpar_blocks_measure(&sea.desc, sea.owner, &stats, &why) < 0) {
        return complain(why.text, NULL);
    }
    print_row("dpar, no weights", &stats);
    for (i = 0; i < DPAR_BLOCKS_ORDER_COUNT; i++) {
        sea.desc.order = (int32_t)i;
        if (dpar_blocks_assign(&sea.desc, sea.owner, &stats, &why) < 0) {
            return complain(why.text, NULL);
        }
        print_row(order[i], &stats);
    }
    free_ocean(&sea);
    return 0;
}

/* ---- ice ------------------------------------------------------------------------------------- */

/* Sets the weights of a month in seconds per step. The ice edge moves between 60 and 80 degrees. */
static void freeze(ocean *sea, const double *cells, int month)
{
    const int swing = month < 6 ? month : 12 - month; /* 0 to 6 */
    const double north = 60 + 20.0 * swing / 6, south = 80 - 20.0 * swing / 6;
    int32_t i;
    for (i = 0; i < sea->blocks; i++) {
        const double latitude = 90 - 180 * (i / sea->columns + 0.5) / sea->rows;
        sea->weight[i] = cells[i] * 6e-7 * (latitude > north || -latitude > south ? 3 : 1);
    }
}

static void assign_anew(ocean *sea)
{
    sea->desc.order = DPAR_BLOCKS_HILBERT;
    dpar_blocks_assign(&sea->desc, sea->owner, NULL, NULL);
}

static void bisect_anew(ocean *sea)
{
    sea->desc.order = DPAR_BLOCKS_BISECTION;
    dpar_blocks_assign(&sea->desc, sea->owner, NULL, NULL);
}

/* Lets dpar_blocks_rebalance decide for some steps. */
static void rebalance(ocean *sea, int64_t steps)
{
    dpar_blocks_rebalance_desc how;
    dpar_blocks_rebalance_result result;
    memset(&how, 0, sizeof how);
    sea->desc.order = DPAR_BLOCKS_HILBERT;
    how.blocks = &sea->desc;
    how.owner = sea->owner;
    how.steps = steps;
    how.block_bytes = 4000000;
    how.seconds_per_byte = 1e-9;
    dpar_blocks_rebalance(&how, sea->owner, &result, NULL);
}

static void rebalance_month(ocean *sea)
{
    rebalance(sea, 10000);
}

static void rebalance_minute(ocean *sea)
{
    rebalance(sea, 30);
}

static void keep(ocean *sea)
{
    (void)sea;
}

static int year(int64_t rows, int64_t size, int32_t ranks)
{
    static const struct {
        char name[24];
        void (*first)(ocean *sea);
        void (*next)(ocean *sea);
    } method[] = {{"nothing moves", assign_anew, keep},
                  {"AMReX SFC", morton_filled, morton_filled},
                  {"AMReX knapsack", knapsack, knapsack},
                  {"dpar bisection anew", bisect_anew, bisect_anew},
                  {"dpar hilbert anew", assign_anew, assign_anew},
                  {"rebalance, 10000 steps", assign_anew, rebalance_month},
                  {"rebalance, 30 steps", assign_anew, rebalance_minute}};
    size_t i;
    printf("\nice on blocks of %lld x %lld, %ld ranks, twelve months\n%-24s%10s%14s\n",
           (long long)size, (long long)size, (long)ranks, "", "imbalance", "blocks moved");
    for (i = 0; i < sizeof method / sizeof *method; i++) {
        ocean sea;
        dpar_blocks_stats stats;
        dpar_why why;
        double *cells, imbalance = 0;
        int32_t *before, k;
        long long moved = 0;
        int month;
        make_ocean(&sea, rows, size, ranks);
        cells = (double *)memory((size_t)sea.blocks * sizeof *cells);
        before = (int32_t *)memory((size_t)sea.blocks * sizeof *before);
        memcpy(cells, sea.weight, (size_t)sea.blocks * sizeof *cells);
        for (month = 0; month < 12; month++) {
            freeze(&sea, cells, month);
            memcpy(before, sea.owner, (size_t)sea.blocks * sizeof *before);
            if (month == 0) {
                method[i].first(&sea);
            } else {
                method[i].next(&sea);
            }
            if (dpar_blocks_measure(&sea.desc, sea.owner, &stats, &why) < 0) {
                return complain(why.text, NULL);
            }
            imbalance += stats.imbalance / 12;
            for (k = 0; k < sea.blocks && month > 0; k++) {
                moved += sea.exists[k] && sea.owner[k] != before[k];
            }
        }
        printf("%-24s%10.3f%14lld\n", method[i].name, imbalance, moved);
        free(cells);
        free(before);
        free_ocean(&sea);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int rows = 1024, code;
    const option list[] = {{"--rows", OPTION_INT, &rows, 256, 8192}};
    code = options_read(argc, argv, list, 1, NULL, 0);
    if (code >= 0) {
        return code;
    }
    if ((rows & (rows - 1)) != 0) {
        return complain("--rows is not a power of 2", NULL);
    }
    printf("a grid of %d x %d cells\n", rows, 2 * rows);
    code = table(rows, rows / 16, 48);
    code = code != 0 ? code : table(rows, rows / 32, 48);
    code = code != 0 ? code : table(rows, rows / 32, 256);
    code = code != 0 ? code : table(rows, rows / 64, 256);
    return code != 0 ? code : year(rows, rows / 32, 48);
}
