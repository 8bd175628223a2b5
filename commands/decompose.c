/* SPDX-License-Identifier: MIT-0 */
/* decompose - finds how to cut a grid into blocks and which rank should hold which block.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. commands/decompose.c -o decompose
 *   ./decompose 1440x720x100 64x16
 *
 *   grid 1440 x 720 x 100, 1024 ranks on 64 nodes of 16, halo 1, 8 B a cell
 *
 *   process grid                     ranks on nodes       all ranks  one rank all nodes  one node
 *   MPI_Dims_create   16 x 8 x 8     in order                151 MB    167 kB   25.2 MB    449 kB
 *   least cut         32 x 16 x 2    in order               86.9 MB   88.2 kB   38.0 MB    612 kB
 *   least cut, placed 32 x 16 x 2    bricks   4 x 2 x 2     86.9 MB   88.2 kB   24.2 MB    432 kB
 *   best of all       32 x 16 x 2    bricks   4 x 2 x 2     86.9 MB   88.2 kB   24.2 MB    432 kB
 *
 * prints four process grids, each with what a halo exchange sends: the one of MPI_Dims_create, the
 * one with the smallest halo, the same with the best placement of its ranks on the nodes, and of
 * all grids, well placed, the one whose busiest node sends the least. ./decompose --help lists the
 * options. It calls dpar_cart_dims, dpar_cart_choose_parts and dpar_mapping_choose, and
 * dpar_mapping_cost for the bytes. Exit code: 0 done, 2 bad input (one message on stderr). */
#include "dpar_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "decompose";
static const char help[] =
    "decompose: how to cut a grid into blocks, and which rank should hold which\n"
    "\n"
    "  decompose GRID MACHINE [options]\n"
    "\n"
    "GRID     cells along each axis, slowest first: 1440x720x100 (1 to 6 axes)\n"
    "MACHINE  nodes x ranks on each node: 16x4; or a machine that dpar knows: derecho, dgx-h100,\n"
    "         \"8x8:a100-80\"\n"
    "\n"
    "  --halo W        cells that a block needs from its neighbours on each side (default 1)\n"
    "  --bytes B       bytes per cell, all fields together (default 8)\n"
    "  --periodic 0,2  axes that wrap around\n"
    "  --box           exchange edges and corners, too\n"
    "  -h, --help      show this text\n"
    "  --version       show the version of dpar\n"
    "\n"
    "The columns show what is sent in one exchange: by all ranks together, by the busiest rank, "
    "between\n"
    "nodes in all, and by the busiest node to others. All blocks count with the size of the "
    "largest.\n"
    "Exit code: 0 done, 2 bad input (one message on stderr)\n"
    "\n"
    "examples\n"
    "  decompose 1440x720x100 64x16 --periodic 0 --halo 3 --bytes 40\n"
    "  decompose 4096x4096 derecho\n"
    "  decompose 512x512x512 8x8:a100-80 --box --periodic 0,1,2\n";

#include "options.h"

typedef struct problem {
    int32_t dims, nodes, per_node;
    int64_t cells[DPAR_MAX_DIMS], halo, bytes;
    uint32_t periodic;
    int32_t shape;
} problem;

/* Reads a word of numbers with separators between. Returns how many there are, or 0 if it is none.
 */
static int numbers(const char *word, char separator, long long least, int64_t *value, int room)
{
    int n = 0;
    for (;;) {
        char *end;
        if (n == room || *word < '0' || *word > '9') {
            return 0;
        }
        value[n] = strtoll(word, &end, 10);
        if (value[n] < least || value[n] == INT64_MAX) {
            return 0;
        }
        n++;
        if (*end == 0) {
            return n;
        }
        if (*end != separator) {
            return 0;
        }
        word = end + 1;
    }
}

static int read_machine(problem *given, const char *word)
{
    int64_t value[2];
    dpar_cluster cluster;
    dpar_why why;
    if (numbers(word, 'x', 1, value, 2) != 2) {
        if (strspn(word, "0123456789x") == strlen(word)) {
            return complain(
                "a machine is nodes x ranks on each, both at least 1, such as 16x4, not", word);
        }
        if (dpar_cluster_read(&cluster, word, strlen(word), &why) != DPAR_OK) {
            return complain(why.text, NULL);
        }
        value[0] = cluster.nodes;
        value[1] = cluster.gpus_per_node;
    }
    if (value[0] > INT32_MAX / value[1]) {
        return complain("more than 2^31 - 1 ranks:", word);
    }
    given->nodes = (int32_t)value[0];
    given->per_node = (int32_t)value[1];
    return 0;
}

static int read_periodic(problem *given, const char *value)
{
    int64_t axis[DPAR_MAX_DIMS];
    const int n = numbers(value, ',', 0, axis, DPAR_MAX_DIMS);
    int i;
    for (i = 0; i < n; i++) {
        if (axis[i] >= DPAR_MAX_DIMS) {
            return complain("--periodic takes axes 0 to 5, not", value);
        }
        if ((given->periodic >> axis[i] & 1u) != 0) {
            return complain("--periodic names an axis twice:", value);
        }
        given->periodic |= (uint32_t)1 << axis[i];
    }
    return n > 0 ? 0 : complain("--periodic takes axes 0 to 5 with commas between, not", value);
}

/* Returns -1 to go on, or the exit code. */
static int read_all(problem *given, int argc, char **argv)
{
    const char *word[2] = {NULL, NULL}, *periodic = NULL;
    long long halo = 1, bytes = 8;
    int64_t widest = 0;
    int i, code, box = 0;
    const option list[] = {{"--halo", OPTION_LONG, &halo, 0, 1e15},
                           {"--bytes", OPTION_LONG, &bytes, 1, 1e15},
                           {"--periodic", OPTION_WORD, &periodic, 0, 0},
                           {"--box", OPTION_FLAG, &box, 0, 0}};
    memset(given, 0, sizeof *given);
    code = options_read(argc, argv, list, sizeof list / sizeof *list, word, 2);
    if (code >= 0) {
        return code;
    }
    given->halo = halo;
    given->bytes = bytes;
    given->shape = box ? DPAR_STENCIL_BOX : given->shape;
    if (word[1] == NULL) {
        return complain("a grid and a machine are needed; --help shows examples", NULL);
    }
    given->dims = numbers(word[0], 'x', 1, given->cells, DPAR_MAX_DIMS);
    if (given->dims == 0) {
        return complain("a grid is 1 to 6 numbers of at least 1, such as 1440x720x100, not",
                        word[0]);
    }
    if (periodic != NULL && read_periodic(given, periodic) != 0) {
        return 2;
    }
    if (given->periodic >> given->dims != 0) {
        return complain("--periodic names an axis that the grid does not have:", word[0]);
    }
    for (i = 0; i < given->dims; i++) {
        widest = given->cells[i] > widest ? given->cells[i] : widest;
    }
    if (given->halo > widest) {
        fprintf(stderr, "decompose: a halo of %lld is wider than the grid, %lld cells at most\n",
                (long long)given->halo, (long long)widest);
        return 2;
    }
    return read_machine(given, word[1]) != 0 ? 2 : -1;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Prints "12.3 MB". */
static void print_bytes(double bytes)
{
    static const char unit[][3] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    int i = 0;
    while (bytes >= 999.5 && i < 6) {
        bytes /= 1000.0;
        i++;
    }
    printf("  %5.*f %-2s", i > 0 && bytes < 99.95 ? 1 : 0, bytes, unit[i]);
}

/* Prints "8 x 4 x 2", padded to `width` characters. */
static void print_grid(int32_t dims, const int32_t *parts, int width)
{
    int32_t dim;
    int used = 0;
    for (dim = 0; dim < dims; dim++) {
        used += printf("%s%ld", dim > 0 ? " x " : "", (long)parts[dim]);
    }
    printf("%*s", used < width ? width - used : 1, "");
}

static void print_placement(const dpar_mapping *place)
{
    static const char name[][12] = {"in order", "bricks", "Morton", "Hilbert"};
    printf("%-9s", name[place->kind]);
    if (place->kind == DPAR_MAPPING_BRICKS) {
        print_grid(place->grid.dims, place->brick, 11);
    } else {
        printf("%11s", "");
    }
}

/* Returns what a block sends across its faces, edges and corners. Block sizes are rounded up. */
static dpar_stencil stencil_of(const problem *given, const int32_t *parts)
{
    dpar_stencil stencil;
    int32_t dim;
    memset(&stencil, 0, sizeof stencil);
    stencil.shape = given->shape;
    stencil.bytes = given->bytes;
    for (dim = 0; dim < given->dims; dim++) {
        stencil.block[dim] = given->cells[dim] / parts[dim] + (given->cells[dim] % parts[dim] != 0);
        stencil.width[dim] = given->halo;
    }
    return stencil;
}

/* Notes that a halo wider than a block also comes from ranks further away. */
static void note_thin_blocks(const problem *given, const int32_t *parts)
{
    int32_t dim;
    for (dim = 0; dim < given->dims; dim++) {
        if (parts[dim] > 1 && given->cells[dim] / parts[dim] < given->halo) {
            printf("    dim %d: blocks have %lld cells, so the halo of %lld reaches past the "
                   "neighbour; "
                   "all of it is counted as the neighbour's\n",
                   (int)dim, (long long)(given->cells[dim] / parts[dim]), (long long)given->halo);
        }
    }
}

/* Prints a line of the table. Each edge carries its bytes both ways, so all ranks send twice the
 * total. */
static int show(const problem *given, const char *name, const dpar_mapping *place)
{
    dpar_stencil stencil = stencil_of(given, place->grid.parts);
    dpar_mapping apart;
    dpar_why why;
    int64_t all, rank, between, node;
    if (dpar_mapping_init(&apart, &place->grid, DPAR_MAPPING_ROW_MAJOR, 1, &why) != DPAR_OK ||
        dpar_mapping_cost(&apart, &stencil, &all, &rank, &why) != DPAR_OK ||
        dpar_mapping_cost(place, &stencil, &between, &node, &why) != DPAR_OK) {
        return complain(why.text, NULL);
    }
    printf("%-18s", name);
    print_grid(given->dims, place->grid.parts, 15);
    print_placement(place);
    print_bytes(2.0 * (double)all);
    print_bytes((double)rank);
    print_bytes(2.0 * (double)between);
    print_bytes((double)node);
    printf("\n");
    note_thin_blocks(given, place->grid.parts);
    return 0;
}

static int show_header(const problem *given)
{
    int32_t dim;
    printf("grid ");
    for (dim = 0; dim < given->dims; dim++) {
        printf("%s%lld", dim > 0 ? " x " : "", (long long)given->cells[dim]);
    }
    printf(", %ld ranks on %ld nodes of %ld, halo %lld, %lld B a cell\n\n",
           (long)given->nodes * (long)given->per_node, (long)given->nodes, (long)given->per_node,
           (long long)given->halo, (long long)given->bytes);
    printf("%-18s%-15s%-20s%10s%10s%10s%10s\n", "process grid", "", "ranks on nodes", "all ranks",
           "one rank", "all nodes", "one node");
    return 0;
}

/* ---- every grid, placed ---------------------------------------------------------------------- */

enum { PLACED_RANKS = 1000000 }; /* most grids x ranks to try: takes a second or two */

typedef struct search {
    const problem *given;
    int32_t parts[DPAR_MAX_DIMS];
    int64_t grids, worst, total; /* number of grids, and the bytes of the best one */
    dpar_mapping best;
} search;

/* Places the grid in parts[] and keeps it if its busiest node sends the least so far. */
static void try_grid(search *tried)
{
    dpar_cart cart;
    dpar_mapping place;
    dpar_stencil stencil = stencil_of(tried->given, tried->parts);
    int64_t total, worst;
    if (dpar_cart_init(&cart, tried->given->dims, tried->parts, tried->given->periodic, NULL) !=
            DPAR_OK ||
        dpar_mapping_choose(&place, &cart, tried->given->per_node, &stencil, NULL) != DPAR_OK ||
        dpar_mapping_cost(&place, &stencil, &total, &worst, NULL) != DPAR_OK) {
        return;
    }
    if (tried->worst < 0 || worst < tried->worst ||
        (worst == tried->worst && total < tried->total)) {
        tried->worst = worst;
        tried->total = total;
        tried->best = place;
    }
}

/* Counts or tries all ways to cut dims d.. into `rest` parts, none thinner than a cell. */
static void each_grid(search *tried, int32_t dim, int32_t rest, int count)
{
    int32_t k;
    if (dim == tried->given->dims - 1) {
        if (rest <= tried->given->cells[dim]) {
            tried->parts[dim] = rest;
            tried->grids += count;
            if (!count) {
                try_grid(tried);
            }
        }
        return;
    }
    for (k = 1; k <= rest; k++) {
        if (rest % k == 0 && k <= tried->given->cells[dim]) {
            tried->parts[dim] = k;
            each_grid(tried, dim + 1, rest / k, count);
        }
    }
}

/* Finds the best grid with its placement. Returns 1, or 0 if there are too many grids to try. */
static int best_of_all(search *tried, const problem *given, const int32_t *least_cut)
{
    const int32_t ranks = given->nodes * given->per_node;
    memset(tried, 0, sizeof *tried);
    tried->given = given;
    tried->worst = -1;
    each_grid(tried, 0, ranks, 1);
    if (tried->grids > PLACED_RANKS / ranks) {
        return 0;
    }
    memcpy(tried->parts, least_cut, sizeof tried->parts); /* it stays the best among equal ones */
    try_grid(tried);
    each_grid(tried, 0, ranks, 0);
    return tried->worst >= 0;
}

/* Prints both grids with MPI's order of ranks, then the better one well placed, then the best of
 * all. */
static int decompose(const problem *given)
{
    const int32_t ranks = given->nodes * given->per_node;
    int32_t mpi[DPAR_MAX_DIMS] = {0}, best[DPAR_MAX_DIMS] = {0}, dim;
    dpar_cart_choose_desc grid;
    dpar_cart cart;
    dpar_mapping place;
    dpar_stencil stencil;
    dpar_why why;
    search all;
    memset(&grid, 0, sizeof grid);
    grid.ranks = ranks;
    grid.dims = given->dims;
    grid.periodic = given->periodic;
    memcpy(grid.cells, given->cells, sizeof grid.cells);
    if (dpar_cart_dims(ranks, given->dims, mpi, &why) != DPAR_OK ||
        dpar_cart_choose_parts(&grid, best, NULL, &why) != DPAR_OK ||
        dpar_cart_init(&cart, given->dims, mpi, given->periodic, &why) != DPAR_OK ||
        dpar_mapping_init(&place, &cart, DPAR_MAPPING_ROW_MAJOR, given->per_node, &why) !=
            DPAR_OK) {
        return complain(why.text, NULL);
    }
    show_header(given);
    if (show(given, "MPI_Dims_create", &place) != 0) {
        return 2;
    }
    stencil = stencil_of(given, best);
    if (dpar_cart_init(&cart, given->dims, best, given->periodic, &why) != DPAR_OK ||
        dpar_mapping_init(&place, &cart, DPAR_MAPPING_ROW_MAJOR, given->per_node, &why) !=
            DPAR_OK ||
        show(given, "least cut", &place) != 0) {
        return 2;
    }
    if (dpar_mapping_choose(&place, &cart, given->per_node, &stencil, &why) != DPAR_OK) {
        return complain(why.text, NULL);
    }
    if (show(given, "least cut, placed", &place) != 0) {
        return 2;
    }
    if (best_of_all(&all, given, best)) {
        if (show(given, "best of all", &all.best) != 0) {
            return 2;
        }
    } else {
        printf("(best of all: not searched, %lld grids of %ld ranks are too many)\n",
               (long long)all.grids, (long)ranks);
    }
    for (dim = 0; dim < given->dims; dim++) {
        if (mpi[dim] > given->cells[dim]) {
            printf("\nMPI_Dims_create cuts the %lld cells of axis %ld into %ld parts, so some "
                   "are empty\n",
                   (long long)given->cells[dim], (long)dim, (long)mpi[dim]);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    problem given;
    int code;
    if (argc == 1) {
        fputs("usage: decompose GRID MACHINE [options]; see decompose --help\n", stderr);
        return 2;
    }
    code = read_all(&given, argc, argv);
    return options_finish(code >= 0 ? code : decompose(&given));
}
