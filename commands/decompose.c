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
 * dpar_mapping_cost for the bytes. With --prove it calls dpar_proof_halo for the last grid. With
 * --blocks it compares owners of many blocks per rank instead (decompose_blocks.h). Exit code: 0
 * done, 1 the exchange is refuted, 2 bad input (one message on stderr).
 *
 * The time is proportional to the ranks times the neighbours of each. A signal every second or ten
 * shows progress, because one call of dpar_mapping_cost can take longer than that. */
#if !defined(_POSIX_C_SOURCE) && (defined(__unix__) || defined(__APPLE__))
#define _POSIX_C_SOURCE 200809L
#endif
#include "dpar_cost.h"
#include "dpar_proof.h"
#if defined(__unix__) || defined(__APPLE__)
#include "dpar_blocks.h"
#endif

#include <errno.h>
#include <signal.h>
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
    "  --step-time NS  nanoseconds that a rank computes per cell and step: shows what it saves to\n"
    "                  exchange a wider halo only every few steps; W is the stencil's radius\n"
    "  --blocks SIZE   cut the grid into blocks of this size, such as 36x36, of which each rank "
    "owns\n"
    "                  several, and compare the orders in which ranks can own them\n"
    "  --mask FILE     with --blocks: the cells that exist, as a PGM image (P2 or P5) or as lines "
    "of\n"
    "                  0 and 1, for the last or the first two axes; 0 is land. Blocks of land have "
    "no\n"
    "                  owner; the others weigh as many cells as exist\n"
    "  --order NAME    with --blocks: hilbert (the default), morton, rows, snake or bisection, "
    "for\n"
    "                  pictures\n"
    "  --svg FILE      with --blocks: write a picture of the owners\n"
    "  --draw          with --blocks: draw the owners as text\n"
    "  --prove         prove the exchange on the last grid of the table, for all ranks: minutes "
    "for\n"
    "                  a million ranks\n"
    "  --parts 8x4x2   prove it on this process grid, without the table\n"
    "  --fold 0,1      prove it with a fold at the end of axis 0, around periodic axis 1\n"
    "  --poles 0,1     prove it with poles at the ends of axis 0; with --fold only at its "
    "beginning\n"
    "  -h, --help      show this text\n"
    "  --version       show the version of dpar\n"
    "\n"
    "The columns show what is sent in one exchange: by all ranks together, by the busiest rank, "
    "between\n"
    "nodes in all, and by the busiest node to others. All blocks count with the size of the "
    "largest.\n"
    "The time grows with the ranks times the neighbours of each, of which at most 200 million are\n"
    "accepted: 50 million ranks of a grid with 2 axes. That takes minutes; from 2 seconds on, "
    "stderr\n"
    "shows the progress. With --blocks, one table line for each order shows the weight of the "
    "heaviest\n"
    "rank / mean, and what is sent across faces.\n"
    "Exit code: 0 done, 1 the exchange is refuted, 2 bad input (one message on stderr)\n"
    "\n"
    "examples\n"
    "  decompose 1440x720x100 64x16 --periodic 0 --halo 3 --bytes 40\n"
    "  decompose 4096x4096 derecho\n"
    "  decompose 512x512x512 8x8:a100-80 --box --periodic 0,1,2\n"
    "  decompose 720x1440 4x16 --blocks 36x36 --periodic 1 --mask ocean.pgm --svg owners.svg\n"
    "  decompose 720x1440x100 64x16 --box --periodic 1 --poles 0,1 --prove\n";

#include "../helpers/options.h"

#include "machine.h"

typedef struct problem {
    int32_t dims, nodes, per_node;
    int64_t cells[DPAR_MAX_DIMS], halo, bytes;
    uint32_t periodic;
    int32_t shape;
    double step_s;         /* seconds per cell and step, or negative */
    dpar_halo_rates rates; /* of the machine */
} problem;

/* What --blocks and the options that go with it ask for. */
typedef struct blocks_options {
    const char *size, *mask, *order, *svg; /* NULL if not given */
    int draw;
} blocks_options;

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
            machine_message(why.text, sizeof why.text, "");
            return complain(why.text, NULL);
        }
        given->rates = cluster.halo;
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

enum { PAIRS_MAX = 200000000 }; /* most ranks x neighbours: three minutes */

/* Returns how many neighbours a block has at most. */
static int64_t neighbours(const problem *given)
{
    int64_t blocks = 1;
    int32_t dim;
    if (given->shape != DPAR_STENCIL_BOX) {
        return 2 * given->dims;
    }
    for (dim = 0; dim < given->dims; dim++) {
        blocks *= 3;
    }
    return blocks - 1;
}

/* Refuses what would take many minutes. Returns 0, or 2 after a message. */
static int refuse_large(const problem *given)
{
    const int64_t ranks = (int64_t)given->nodes * given->per_node;
    char text[160];
    if (ranks <= PAIRS_MAX / neighbours(given)) {
        return 0;
    }
    snprintf(text, sizeof text,
             "%lld ranks with %lld neighbours each take too long; at most %lld ranks are accepted "
             "for this grid",
             (long long)ranks, (long long)neighbours(given),
             (long long)(PAIRS_MAX / neighbours(given)));
    return complain(text, NULL);
}

static void print_grid(int32_t dims, const int32_t *parts, int width);

#include "decompose_proof.h"

/* Refuses options that do not go together. predicts: 1 if an option asks for a proof or for steps.
 * Returns 0, or 2 after a message. */
static int refuse_blocks(const blocks_options *asked, int box, int predicts)
{
    if (asked->size != NULL && predicts) {
        return complain("--prove, --parts, --fold, --poles and --step-time do not go with --blocks",
                        NULL);
    }
    if (asked->size != NULL && box) {
        return complain("--box does not go with --blocks, which counts faces only", NULL);
    }
    if (asked->size == NULL &&
        (asked->mask != NULL || asked->order != NULL || asked->svg != NULL || asked->draw)) {
        return complain("--mask, --order, --svg and --draw need --blocks", NULL);
    }
    return 0;
}

/* Returns -1 to go on, or the exit code. */
static int read_all(problem *given, proof_job *job, blocks_options *asked, int argc, char **argv)
{
    const char *word[2] = {NULL, NULL}, *periodic = NULL, *parts = NULL, *fold = NULL;
    const char *poles = NULL;
    long long halo = 1, bytes = 8;
    double step_ns = -1.0;
    int64_t widest = 0;
    int i, code, box = 0;
    const option list[] = {{"--halo", OPTION_LONG, &halo, 0, 1e15},
                           {"--bytes", OPTION_LONG, &bytes, 1, 1e15},
                           {"--periodic", OPTION_WORD, &periodic, 0, 0},
                           {"--box", OPTION_FLAG, &box, 0, 0},
                           {"--blocks", OPTION_WORD, &asked->size, 0, 0},
                           {"--mask", OPTION_WORD, &asked->mask, 0, 0},
                           {"--order", OPTION_WORD, &asked->order, 0, 0},
                           {"--svg", OPTION_WORD, &asked->svg, 0, 0},
                           {"--draw", OPTION_FLAG, &asked->draw, 0, 0},
                           {"--step-time", OPTION_REAL, &step_ns, 0, 1e9},
                           {"--prove", OPTION_FLAG, &job->wanted, 0, 0},
                           {"--parts", OPTION_WORD, &parts, 0, 0},
                           {"--fold", OPTION_WORD, &fold, 0, 0},
                           {"--poles", OPTION_WORD, &poles, 0, 0}};
    memset(given, 0, sizeof *given);
    memset(asked, 0, sizeof *asked);
    dpar_halo_rates_init(&given->rates);
    memset(job, 0, sizeof *job);
    code = options_read(argc, argv, list, sizeof list / sizeof *list, word, 2);
    if (code >= 0) {
        return code;
    }
    if (refuse_blocks(asked, box,
                      job->wanted || parts != NULL || fold != NULL || poles != NULL ||
                          step_ns >= 0.0) != 0) {
        return 2;
    }
    given->halo = halo;
    given->bytes = bytes;
    given->step_s = 1e-9 * step_ns;
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
        char text[80];
        snprintf(text, sizeof text, "--periodic names an axis that the grid of %d ax%s lacks, not",
                 (int)given->dims, given->dims == 1 ? "is" : "es");
        return complain(text, periodic);
    }
    for (i = 0; i < given->dims; i++) {
        widest = given->cells[i] > widest ? given->cells[i] : widest;
    }
    if (given->halo > widest) {
        fprintf(stderr, "decompose: a halo of %lld is wider than the grid, %lld cells at most\n",
                (long long)given->halo, (long long)widest);
        return 2;
    }
    if (read_machine(given, word[1]) != 0 ||
        proof_read(job, given->dims, parts, fold, poles) != 0) {
        return 2;
    }
    return refuse_large(given) != 0 ? 2 : -1;
}

/* ---- progress -------------------------------------------------------------------------------- */

/* The costs of placements that are to be computed, and those that are. */
static volatile sig_atomic_t costs_all, costs_done;

#if defined(__unix__) || defined(__APPLE__)

static volatile sig_atomic_t seconds, to_terminal;

/* Appends a number to a line. Returns the new length. printf must not be called by a handler. */
static size_t append_number(char *line, size_t n, long value)
{
    char digit[24];
    int digits = 0;
    do {
        digit[digits++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    while (digits > 0) {
        line[n++] = digit[--digits];
    }
    return n;
}

static size_t append_text(char *line, size_t n, const char *text)
{
    while (*text != 0) {
        line[n++] = *text++;
    }
    return n;
}

/* Prints "decompose: 35 % of the placements, 12 s" after 2 s, then each second on a terminal, where
 * it rewrites the line, and otherwise every 10 s. */
static void on_alarm(int signal_number)
{
    const int before = errno, every = to_terminal ? 1 : 10;
    char line[100];
    size_t n = to_terminal ? append_text(line, 0, "\r") : 0;
    (void)signal_number;
    n = append_text(line, n, "decompose: ");
    n = append_number(line, n, costs_all > 0 ? 100L * costs_done / costs_all : 0);
    n = append_text(line, n, " % of the placements compared, ");
    n = append_number(line, n, seconds);
    n = append_text(line, n, to_terminal ? " s" : " s\n");
    if (write(2, line, n) > 0) {
        seconds = seconds + every;
        alarm((unsigned)every);
    }
    errno = before;
}

static void begin_progress(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    to_terminal = options_terminal(2);
    seconds = 2;
    if (sigaction(SIGALRM, &action, NULL) == 0) {
        alarm(2);
    }
}

/* Ends the progress, and removes its line from a terminal. */
static void end_progress(void)
{
    alarm(0);
    if (to_terminal && seconds > 2) {
        fprintf(stderr, "\r%60s\r", "");
    }
}

#else

static void begin_progress(void)
{
}

static void end_progress(void)
{
}

#endif

/* Prints a message below the progress, which ends. Returns 2. */
static int fail(const dpar_why *why)
{
    end_progress();
    return complain(why->text, NULL);
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

/* Returns the characters that print_grid needs, with a blank behind them. */
static int grid_width(int32_t dims, const int32_t *parts)
{
    char text[100];
    int32_t dim;
    int used = 1;
    for (dim = 0; dim < dims; dim++) {
        used += snprintf(text, sizeof text, "%s%ld", dim > 0 ? " x " : "", (long)parts[dim]);
    }
    return used;
}

/* A line of the table: a placement and what it sends. */
typedef struct row {
    const char *name;
    dpar_mapping place;
    int64_t all, rank, between, node; /* bytes */
} row;

typedef struct table {
    row line[4];
    int lines;
    int grid, brick; /* width of these columns */
} table;

static void print_placement(const dpar_mapping *place, int width)
{
    static const char name[][12] = {"in order", "bricks", "Morton", "Hilbert"};
    printf("%-9s", name[place->kind]);
    if (place->kind == DPAR_MAPPING_BRICKS) {
        print_grid(place->grid.dims, place->brick, width);
    } else {
        printf("%*s", width, "");
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

/* Computes a line of the table and appends it. Returns 0, or 2 after a message. */
static int add(table *to, const problem *given, const char *name, const dpar_mapping *place)
{
    dpar_stencil stencil = stencil_of(given, place->grid.parts);
    row *line = &to->line[to->lines++];
    dpar_mapping apart;
    dpar_why why;
    int width;
    line->name = name;
    line->place = *place;
    if (dpar_mapping_init(&apart, &place->grid, DPAR_MAPPING_ROW_MAJOR, 1, &why) != DPAR_OK ||
        dpar_mapping_cost(&apart, &stencil, &line->all, &line->rank, &why) != DPAR_OK ||
        dpar_mapping_cost(place, &stencil, &line->between, &line->node, &why) != DPAR_OK) {
        return fail(&why);
    }
    costs_done = costs_done + 2;
    width = grid_width(given->dims, place->grid.parts);
    to->grid = width > to->grid ? width : to->grid;
    width = grid_width(given->dims, place->brick);
    if (place->kind == DPAR_MAPPING_BRICKS && width > to->brick) {
        to->brick = width;
    }
    return 0;
}

/* Prints a line of the table. Each edge carries its bytes both ways, so all ranks send twice the
 * total. */
static void print_row(const problem *given, const table *from, const row *line)
{
    printf("%-18s", line->name);
    print_grid(given->dims, line->place.grid.parts, from->grid);
    print_placement(&line->place, from->brick);
    print_bytes(2.0 * (double)line->all);
    print_bytes((double)line->rank);
    print_bytes(2.0 * (double)line->between);
    print_bytes((double)line->node);
    printf("\n");
    note_thin_blocks(given, line->place.grid.parts);
}

static void print_table(const problem *given, const table *from)
{
    const long ranks = (long)given->nodes * (long)given->per_node;
    int32_t dim;
    int i;
    printf("grid ");
    for (dim = 0; dim < given->dims; dim++) {
        printf("%s%lld", dim > 0 ? " x " : "", (long long)given->cells[dim]);
    }
    printf(", %ld rank%s on %ld node%s of %ld, halo %lld, %lld B a cell\n\n", ranks,
           options_plural(ranks, "s"), (long)given->nodes, options_plural(given->nodes, "s"),
           (long)given->per_node, (long long)given->halo, (long long)given->bytes);
    printf("%-18s%-*s%-*s%10s%10s%10s%10s\n", "process grid", from->grid, "", 9 + from->brick,
           "ranks on nodes", "all ranks", "one rank", "all nodes", "one node");
    for (i = 0; i < from->lines; i++) {
        print_row(given, from, &from->line[i]);
    }
}

#include "decompose_blocks.h"

/* ---- every grid, placed ---------------------------------------------------------------------- */

enum {
    PLACED_RANKS = 1000000, /* most grids x ranks to try */
    CHOOSE_COSTS = 4,       /* costs that dpar_mapping_choose computes */
    SEARCH_COSTS = 5,       /* those of a grid in the search */
    ROW_COSTS = 2           /* those of a line of the table */
};

typedef struct search {
    const problem *given;
    int32_t parts[DPAR_MAX_DIMS];
    int32_t divisor[1600]; /* of the ranks, ascending; a number below 2^31 has at most 1536 */
    int32_t divisors;
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
    costs_done = costs_done + SEARCH_COSTS;
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
    int32_t i;
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
    for (i = 0; i < tried->divisors; i++) {
        const int32_t part = tried->divisor[i];
        if (rest % part == 0 && part <= tried->given->cells[dim]) {
            tried->parts[dim] = part;
            each_grid(tried, dim + 1, rest / part, count);
        }
    }
}

/* Counts the grids. Returns 1 if they are few enough to try them all. */
static int count_grids(search *tried, const problem *given)
{
    const int32_t ranks = given->nodes * given->per_node;
    int32_t part;
    memset(tried, 0, sizeof *tried);
    tried->given = given;
    tried->worst = -1;
    for (part = 1; part <= ranks / 2; part++) {
        if (ranks % part == 0) {
            tried->divisor[tried->divisors++] = part;
        }
    }
    tried->divisor[tried->divisors++] = ranks;
    each_grid(tried, 0, ranks, 1);
    return tried->grids <= PLACED_RANKS / ranks;
}

/* Finds the best grid with its placement. Returns 1, or 0 if none can be placed. */
static int best_of_all(search *tried, const int32_t *least_cut)
{
    memcpy(tried->parts, least_cut, sizeof tried->parts); /* it stays the best among equal ones */
    try_grid(tried);
    each_grid(tried, 0, tried->given->nodes * tried->given->per_node, 0);
    return tried->worst >= 0;
}

/* Fills the table: both grids with MPI's order of ranks, then the better one well placed, then the
 * best of all unless there are too many to try. `mpi` gets the grid of MPI_Dims_create. Returns 0,
 * or 2 after a message. */
static int fill(table *to, const problem *given, search *all, int few, int32_t *mpi)
{
    const int32_t ranks = given->nodes * given->per_node;
    int32_t best[DPAR_MAX_DIMS] = {0};
    dpar_cart_choose_desc grid;
    dpar_cart cart;
    dpar_mapping place;
    dpar_stencil stencil;
    dpar_why why;
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
        return fail(&why);
    }
    if (add(to, given, "MPI_Dims_create", &place) != 0) {
        return 2;
    }
    stencil = stencil_of(given, best);
    if (dpar_cart_init(&cart, given->dims, best, given->periodic, &why) != DPAR_OK ||
        dpar_mapping_init(&place, &cart, DPAR_MAPPING_ROW_MAJOR, given->per_node, &why) !=
            DPAR_OK) {
        return fail(&why);
    }
    if (add(to, given, "least cut", &place) != 0) {
        return 2;
    }
    if (dpar_mapping_choose(&place, &cart, given->per_node, &stencil, &why) != DPAR_OK) {
        return fail(&why);
    }
    costs_done = costs_done + CHOOSE_COSTS;
    if (add(to, given, "least cut, placed", &place) != 0) {
        return 2;
    }
    if (few && best_of_all(all, best)) {
        return add(to, given, "best of all", &all->best);
    }
    return 0;
}

/* ---- steps between exchanges ----------------------------------------------------------------- */

/* Prints the predicted time of a step for each number of steps between two exchanges, on the grid
 * that is predicted to be the fastest. Returns 0, or 2 after a message. */
static int print_steps(const problem *given)
{
    dpar_halo_cost_desc job;
    dpar_halo_cost grid;
    dpar_halo_cost_steps steps;
    int32_t dim, k;
    dpar_why why;
    memset(&job, 0, sizeof job);
    memset(&grid, 0, sizeof grid);
    job.ranks = given->nodes * given->per_node;
    job.per_node = given->per_node;
    job.dims = given->dims;
    job.shape = given->shape;
    job.periodic = given->periodic;
    job.bytes = given->bytes;
    for (dim = 0; dim < given->dims; dim++) {
        job.cells[dim] = given->cells[dim];
        job.width[dim] = given->halo;
    }
    if (dpar_halo_cost_choose(&job, &given->rates, &grid, &why) != DPAR_OK ||
        dpar_halo_cost_choose_steps(&job, &given->rates, &grid, given->step_s, &steps, &why) !=
            DPAR_OK) {
        return complain(why.text, NULL);
    }
    printf("\nsteps between exchanges, predicted for ");
    print_grid(given->dims, grid.parts, 0);
    printf("ranks, %g ns per cell and step\n\n   steps     halo  us per step\n",
           1e9 * given->step_s);
    for (k = 1; k <= 16 && (k == 1 || steps.seconds[k - 1] > 0.0); k++) {
        printf("  %6ld %8lld %12.3f%s\n", (long)k, (long long)(k * given->halo),
               1e6 * steps.seconds[k - 1], k == steps.best ? "  fastest" : "");
    }
    if (steps.best > 16) {
        printf("  %6ld %8lld %12.3f  fastest\n", (long)steps.best,
               (long long)(steps.best * given->halo), 1e6 * steps.seconds[steps.best - 1]);
    }
    return 0;
}

static int decompose(const problem *given, const proof_job *job)
{
    static search all;
    table shown;
    int32_t mpi[DPAR_MAX_DIMS] = {0}, dim;
    int few, bad;
    memset(&shown, 0, sizeof shown);
    shown.grid = 15;
    shown.brick = 11;
    begin_progress();
    few = count_grids(&all, given);
    costs_all = 3 * ROW_COSTS + CHOOSE_COSTS;
    if (few) {
        costs_all = costs_all + ROW_COSTS + (sig_atomic_t)(all.grids + 1) * SEARCH_COSTS;
    }
    bad = fill(&shown, given, &all, few, mpi);
    end_progress();
    if (bad) {
        return 2;
    }
    print_table(given, &shown);
    if (shown.lines < 4) {
        printf("(best of all: not searched, %lld grid%s of %ld ranks %s too many)\n",
               (long long)all.grids, options_plural(all.grids, "s"),
               (long)given->nodes * (long)given->per_node, all.grids == 1 ? "is" : "are");
    }
    for (dim = 0; dim < given->dims; dim++) {
        if (mpi[dim] > given->cells[dim]) {
            printf("\nMPI_Dims_create cuts the %lld cells of axis %ld into %ld parts, so some "
                   "are empty\n",
                   (long long)given->cells[dim], (long)dim, (long)mpi[dim]);
        }
    }
    if (given->step_s >= 0.0 && print_steps(given) != 0) {
        return 2;
    }
    if (job->wanted) {
        printf("\n");
        return prove(given, job, shown.line[shown.lines - 1].place.grid.parts);
    }
    return 0;
}

/* Proves the exchange on the grid of --parts, whose ranks must be those of the machine. */
static int prove_parts(const problem *given, const proof_job *job)
{
    int32_t parts[DPAR_MAX_DIMS], dim;
    int64_t left = (int64_t)given->nodes * given->per_node;
    for (dim = 0; dim < given->dims; dim++) {
        if (left % job->parts[dim] != 0) {
            return complain("the product of --parts must be the ranks of the machine", NULL);
        }
        parts[dim] = (int32_t)job->parts[dim];
        left /= parts[dim];
    }
    if (left != 1) {
        return complain("the product of --parts must be the ranks of the machine", NULL);
    }
    return prove(given, job, parts);
}

/* Does what the options ask for. Returns the exit code. */
static int run(const problem *given, const proof_job *job, const blocks_options *asked)
{
    if (asked->size != NULL) {
        return show_blocks(given, asked);
    }
    if (job->has_parts) {
        return prove_parts(given, job);
    }
    return decompose(given, job);
}

int main(int argc, char **argv)
{
    problem given;
    proof_job job;
    blocks_options asked;
    int code;
    if (argc == 1) {
        fputs("usage: decompose GRID MACHINE [options]; see decompose --help\n", stderr);
        return 2;
    }
    code = read_all(&given, &job, &asked, argc, argv);
    if (code < 0) {
        code = run(&given, &job, &asked);
    }
    return options_finish(code);
}
