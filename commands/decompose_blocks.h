/* SPDX-License-Identifier: MIT-0 */
/* decompose_blocks.h - the part of decompose.c for grids of many blocks per rank (--blocks): reads
 * a mask, compares the orders of blocks, and draws the owners. */
#ifndef DPAR_COMMANDS_DECOMPOSE_BLOCKS_H
#define DPAR_COMMANDS_DECOMPOSE_BLOCKS_H

#if defined(__unix__) || defined(__APPLE__)

static const char order_names[DPAR_BLOCKS_ORDER_COUNT][12] = {"hilbert", "morton", "rows", "snake",
                                                              "bisection"};

/* ---- masks ----------------------------------------------------------------------------------- */

/* A mask of rows x columns cells, 0 where the grid has no cell. */
typedef struct cell_mask {
    unsigned char *cell; /* [rows][columns] */
    int64_t rows, columns;
} cell_mask;

/* Prints "decompose: mask 'FILE': what". Returns 2. */
static int complain_mask(const char *file, const char *what)
{
    char text[1300];
    snprintf(text, sizeof text, "mask '%s': %s", file, what);
    return complain(text, NULL);
}

/* Reads a file of at most 4 GB into memory that the caller frees. Returns NULL after a message. */
static char *read_file(const char *name, size_t *length)
{
    FILE *file = fopen(name, "rb");
    size_t room = 1 << 16, used = 0, got;
    char *text = file != NULL ? (char *)malloc(room) : NULL;
    if (file == NULL) {
        complain_mask(name, strerror(errno));
        return NULL;
    }
    while (text != NULL && (got = fread(text + used, 1, room - used, file)) > 0) {
        used += got;
        if (used == room) {
            char *more = room < ((size_t)1 << 31) ? (char *)realloc(text, 2 * room) : NULL;
            if (more == NULL) {
                free(text);
            }
            text = more;
            room *= 2;
        }
    }
    if (text == NULL || ferror(file)) {
        complain_mask(name, text == NULL ? "it is too large" : "it cannot be read");
        free(text);
        text = NULL;
    }
    fclose(file);
    *length = used;
    return text;
}

/* Reads the next number of a PGM file, which may follow comments. Returns -1 if there is none. */
static int64_t next_number(const char *text, size_t length, size_t *at)
{
    int64_t value = 0;
    size_t first;
    while (*at < length && (strchr(" \t\r\n", text[*at]) != NULL || text[*at] == '#')) {
        if (text[*at] == '#') {
            while (*at < length && text[*at] != '\n') {
                ++*at;
            }
            continue;
        }
        ++*at;
    }
    first = *at;
    while (*at < length && text[*at] >= '0' && text[*at] <= '9' && value < INT32_MAX) {
        value = value * 10 + (text[*at] - '0');
        ++*at;
    }
    return *at > first ? value : -1;
}

/* Reads a PGM image, P2 or P5. The cells replace the text. */
static int read_pgm(cell_mask *mask, char *text, size_t length, const char *name)
{
    const int binary = text[1] == '5';
    size_t at = 2, i, cells, wide;
    int64_t most;
    mask->columns = next_number(text, length, &at);
    mask->rows = next_number(text, length, &at);
    most = next_number(text, length, &at);
    if (mask->columns < 1 || mask->rows < 1 || most < 1 || most > 65535) {
        return complain_mask(name, "a PGM begins with P2 or P5, its width, height and a maximum of "
                                   "1 to 65535");
    }
    at += binary; /* one blank follows the maximum */
    wide = most > 255 ? 2 : 1;
    if ((uint64_t)mask->rows > length / (uint64_t)mask->columns ||
        (binary && (at > length || (size_t)(mask->rows * mask->columns) * wide > length - at))) {
        return complain_mask(name, "the PGM has fewer cells than width x height");
    }
    cells = (size_t)(mask->rows * mask->columns);
    for (i = 0; i < cells; i++) {
        int64_t value;
        if (binary) {
            value = text[at] != 0 || text[at + wide - 1] != 0;
            at += wide;
        } else {
            value = next_number(text, length, &at);
        }
        if (value < 0) {
            return complain_mask(name, "the PGM has fewer cells than width x height");
        }
        text[i] = value != 0; /* each number takes a byte of the text or more */
    }
    return 0;
}

/* Reads lines of 0 and 1, with or without blanks between them. The cells replace the text. */
static int read_digits(cell_mask *mask, char *text, size_t length, const char *name)
{
    int64_t columns = 0, line = 1;
    size_t at, used = 0;
    char what[160];
    for (at = 0; at <= length; at++) {
        const char c = at < length ? text[at] : '\n';
        if (c == '0' || c == '1') {
            text[used++] = c == '1';
            columns++;
        } else if (c == '\n') {
            if (columns > 0 && mask->rows > 0 && columns != mask->columns) {
                snprintf(what, sizeof what, "line %lld has %lld cells, but lines above have %lld",
                         (long long)line, (long long)columns, (long long)mask->columns);
                return complain_mask(name, what);
            }
            if (columns > 0) {
                mask->columns = columns;
                mask->rows++;
            }
            columns = 0;
            line++;
        } else if (c != ' ' && c != '\t' && c != '\r' && c != ',') {
            snprintf(what, sizeof what,
                     "line %lld has more than 0 and 1, and the file is no PGM (P2 or P5)",
                     (long long)line);
            return complain_mask(name, what);
        }
    }
    return mask->rows > 0 ? 0 : complain_mask(name, "it is empty");
}

/* Reads a mask. The caller frees mask->cell. Returns 0, or 2 after a message. */
static int read_mask(cell_mask *mask, const char *name)
{
    size_t length = 0;
    char *text = read_file(name, &length);
    mask->rows = 0;
    mask->columns = 0;
    mask->cell = (unsigned char *)text;
    if (text == NULL) {
        return 2;
    }
    if (length > 2 && text[0] == 'P' && (text[1] == '2' || text[1] == '5')) {
        return read_pgm(mask, text, length, name);
    }
    return read_digits(mask, text, length, name);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The grid of blocks, with memory for all that is computed. */
typedef struct blocks_job {
    dpar_blocks_assign_desc desc;
    int64_t parts[DPAR_MAX_DIMS], blocks;
    double *weight;
    unsigned char *exists;
    int32_t *owner;
    double inside; /* cells that the mask leaves */
} blocks_job;

/* Finds the two axes that a mask covers: the last two, or the first two. Returns the first of them,
 * or -1 after a message. */
static int32_t mask_axis(const dpar_blocks_assign_desc *desc, const cell_mask *mask,
                         const char *name)
{
    char what[200];
    int32_t axis;
    for (axis = desc->dims - 2; axis >= 0; axis = axis > 0 ? 0 : -1) {
        if (desc->cells[axis] == mask->rows && desc->cells[axis + 1] == mask->columns) {
            return axis;
        }
    }
    snprintf(what, sizeof what,
             "it has %lld x %lld cells, which are neither the last nor the first two axes of the "
             "grid",
             (long long)mask->rows, (long long)mask->columns);
    complain_mask(name, what);
    return -1;
}

/* Sets the weight of each block: the cells that the mask leaves. */
static int weigh(blocks_job *job, const cell_mask *mask, const char *name)
{
    const dpar_blocks_assign_desc *desc = &job->desc;
    const int32_t axis = mask_axis(desc, mask, name);
    int64_t i, j, block;
    if (axis < 0) {
        return 2;
    }
    for (block = 0; block < job->blocks; block++) {
        int64_t rest = block, first[2] = {0, 0}, last[2] = {0, 0};
        double others = 1, cells = 0;
        int32_t d;
        for (d = desc->dims - 1; d >= 0; d--) {
            const int64_t from = rest % job->parts[d] * desc->block[d];
            const int64_t to =
                from + desc->block[d] < desc->cells[d] ? from + desc->block[d] : desc->cells[d];
            rest /= job->parts[d];
            if (d == axis || d == axis + 1) {
                first[d - axis] = from;
                last[d - axis] = to;
            } else {
                others *= (double)(to - from);
            }
        }
        for (i = first[0]; i < last[0]; i++) {
            for (j = first[1]; j < last[1]; j++) {
                cells += mask->cell[i * mask->columns + j];
            }
        }
        job->weight[block] = cells * others;
        job->exists[block] = cells > 0;
        job->inside += cells * others;
    }
    job->desc.weight = job->weight;
    job->desc.exists = job->exists;
    return 0;
}

/* Describes the blocks and allocates memory. */
static int open_blocks(blocks_job *job, const problem *given, const blocks_options *asked)
{
    dpar_why why;
    dpar_blocks_stats stats;
    int32_t d, none;
    memset(job, 0, sizeof *job);
    job->desc.dims = given->dims;
    job->desc.ranks = given->nodes * given->per_node;
    job->desc.periodic = given->periodic;
    memcpy(job->desc.cells, given->cells, sizeof given->cells);
    if (numbers(asked->size, 'x', 1, job->desc.block, DPAR_MAX_DIMS) != given->dims) {
        return complain("--blocks needs the cells of a block along each axis, such as 36x36 for a "
                        "grid of 2 axes, not",
                        asked->size);
    }
    /* Fails, and reports how much memory is needed. */
    if (dpar_blocks_assign(&job->desc, &none, &stats, &why) != DPAR_E_ROOM) {
        return complain(why.text, NULL);
    }
    job->blocks = 1;
    job->inside = 1;
    for (d = 0; d < given->dims; d++) {
        job->parts[d] = (given->cells[d] - 1) / job->desc.block[d] + 1;
        job->blocks *= job->parts[d];
        job->inside *= (double)given->cells[d];
    }
    job->desc.bytes = why.bytes;
    job->desc.memory = malloc((size_t)why.bytes);
    job->owner = (int32_t *)malloc((size_t)job->blocks * sizeof *job->owner);
    job->weight = (double *)malloc((size_t)job->blocks * sizeof *job->weight);
    job->exists = (unsigned char *)malloc((size_t)job->blocks);
    if (job->desc.memory == NULL || job->owner == NULL || job->weight == NULL ||
        job->exists == NULL) {
        return complain("there is not enough memory for these blocks and ranks", NULL);
    }
    return 0;
}

static void close_blocks(blocks_job *job)
{
    free(job->desc.memory);
    free(job->owner);
    free(job->weight);
    free(job->exists);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Draws into memory that the caller frees. Returns NULL if there is not enough. */
static char *picture_of(const blocks_job *job, const dpar_blocks_stats *stats, int32_t format)
{
    dpar_blocks_draw_desc desc;
    dpar_text text;
    char *page;
    memset(&desc, 0, sizeof desc);
    desc.blocks = &job->desc;
    desc.owner = job->owner;
    desc.stats = stats;
    dpar_text_init(&text, NULL, 0);
    dpar_blocks_draw(&text, &desc, format, NULL);
    page = (char *)malloc(text.used + 1);
    if (page != NULL) {
        dpar_text_init(&text, page, text.used + 1);
        dpar_blocks_draw(&text, &desc, format, NULL);
    }
    return page;
}

/* Writes the pictures that are wanted. Returns 0, or 2 after a message. */
static int draw_blocks(const blocks_job *job, const dpar_blocks_stats *stats,
                       const blocks_options *asked)
{
    FILE *file;
    int bad;
    char *page = picture_of(job, stats, DPAR_BLOCKS_DRAW_TEXT);
    if (page != NULL && asked->draw) {
        printf("\n%s", page);
    }
    free(page);
    page = picture_of(job, stats, DPAR_BLOCKS_DRAW_SVG);
    if (page == NULL) {
        return complain("there is not enough memory for the picture", NULL);
    }
    file = asked->svg != NULL ? fopen(asked->svg, "w") : NULL;
    bad = asked->svg != NULL && file == NULL;
    if (file != NULL) {
        bad = fputs(page, file) < 0;
        bad = fclose(file) != 0 || bad;
    }
    free(page);
    return bad ? complain("the picture cannot be written to", asked->svg) : 0;
}

/* Prints the table: a line for each order. Leaves the owners and statistics of `chosen`. */
static int print_orders(blocks_job *job, const problem *given, int32_t chosen,
                        dpar_blocks_stats *stats)
{
    const double each = (double)given->halo * (double)given->bytes;
    dpar_why why;
    int32_t i;
    printf("%-10s%10s%18s%19s%10s%10s\n", "order", "imbalance", "blocks per rank",
           "neighbours (most)", "all ranks", "one rank");
    for (i = 0; i <= DPAR_BLOCKS_ORDER_COUNT; i++) {
        char range[60], most[60];
        job->desc.order = i < DPAR_BLOCKS_ORDER_COUNT ? i : chosen; /* `chosen` again as the last */
        if (dpar_blocks_assign(&job->desc, job->owner, stats, &why) != DPAR_OK) {
            return complain(why.text, NULL);
        }
        if (i == DPAR_BLOCKS_ORDER_COUNT) {
            break;
        }
        snprintf(range, sizeof range, "%lld to %lld", (long long)stats->blocks_least,
                 (long long)stats->blocks_most);
        snprintf(most, sizeof most, "%.1f (%ld)", stats->neighbours, (long)stats->neighbours_most);
        printf("%-10s%10.3f%18s%19s", order_names[i], stats->imbalance, range, most);
        print_bytes((double)stats->cut * each);
        print_bytes((double)stats->cut_most * each);
        printf("\n");
    }
    return 0;
}

/* Prints the header of the table, and the table. */
static int print_blocks(blocks_job *job, const problem *given, const blocks_options *asked,
                        int32_t chosen)
{
    dpar_blocks_stats stats;
    dpar_why why;
    double cells = 1;
    int32_t d;
    if (dpar_blocks_assign(&job->desc, job->owner, &stats, &why) != DPAR_OK) {
        return complain(why.text, NULL);
    }
    if (stats.blocks == 0) {
        return complain("no block exists: in the mask 0 is land, and all of its cells are 0 in",
                        asked->mask);
    }
    printf("grid ");
    for (d = 0; d < given->dims; d++) {
        printf("%s%lld", d > 0 ? " x " : "", (long long)given->cells[d]);
        cells *= (double)given->cells[d];
    }
    printf(", blocks of ");
    for (d = 0; d < given->dims; d++) {
        printf("%s%lld", d > 0 ? " x " : "", (long long)job->desc.block[d]);
    }
    printf(", %ld rank%s, halo %lld, %lld B a cell\n", (long)job->desc.ranks,
           options_plural(job->desc.ranks, "s"), (long long)given->halo, (long long)given->bytes);
    printf("%lld of %lld blocks have an owner; they hold %.1f %% of the cells\n\n",
           (long long)stats.blocks, (long long)job->blocks, 100 * job->inside / cells);
    if (print_orders(job, given, chosen, &stats) != 0) {
        return 2;
    }
    if (stats.idle > 0) {
        printf("%ld rank%s no block\n", (long)stats.idle, stats.idle == 1 ? " has" : "s have");
    }
    return draw_blocks(job, &stats, asked);
}

/* Compares the orders of blocks and draws the owners. Returns the exit code. */
static int show_blocks(const problem *given, const blocks_options *asked)
{
    cell_mask mask = {NULL, 0, 0};
    blocks_job job;
    int32_t chosen = 0;
    int code;
    while (asked->order != NULL && chosen < DPAR_BLOCKS_ORDER_COUNT &&
           strcmp(asked->order, order_names[chosen]) != 0) {
        chosen++;
    }
    if (chosen == DPAR_BLOCKS_ORDER_COUNT) {
        return complain("--order is hilbert, morton, rows, snake or bisection, not", asked->order);
    }
    code = open_blocks(&job, given, asked);
    if (code == 0 && asked->mask != NULL) {
        job.inside = 0;
        code = read_mask(&mask, asked->mask);
        if (code == 0) {
            code = weigh(&job, &mask, asked->mask);
        }
        free(mask.cell);
    }
    if (code == 0) {
        code = print_blocks(&job, given, asked, chosen);
    }
    close_blocks(&job);
    return code;
}

#else

static int show_blocks(const problem *given, const blocks_options *asked)
{
    (void)given;
    return complain("--blocks needs POSIX:", asked->size);
}

#endif

#endif
