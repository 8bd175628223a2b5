/* SPDX-License-Identifier: MIT-0 */
/* reshard - reads a checkpoint with other ranks, and another distribution, than it was written
 * with.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. apps/reshard.c -o reshard && ./reshard
 *
 *   Llama-3-8B, 291 tensors, shapes / 16: 31.4 million elements
 *   wrote by 8 ranks (dp 4, tp 2): 8 files, 125.5 MB
 *   read by 12 ranks (pp 3, dp 2, tp 2): 2328 boxes, 2328 reads, 125.6 MB
 *   every element is where it belongs
 *
 * Each rank computes by itself which bytes of which file it needs (dpar_redistribute_first), so
 * that no index is written or gathered. The layouts are those of dpar_mesh_init and
 * dpar_layout_init, and dpar_box_cover checks that what was written has no gaps. A file holds the
 * shards of one rank, one after the other, in C order.
 *
 * Exit code: 0 every element is right, 1 one is wrong, 2 bad input, or a file that cannot be read
 * or written (one message on stderr). */
#include "dpar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "reshard";
static const char help[] =
    "reshard: a checkpoint of Llama-3-8B's tensors is written by 8 ranks (dp 4, tp 2) and read by\n"
    "12 (pp 3, dp 2, tp 2), through files, every element checked\n"
    "\n"
    "  reshard [options]\n"
    "\n"
    "  --shrink N    divide every dim by N: 1, 2, 4, 8 or 16 (16; 1 needs 32 GB of disk)\n"
    "  --dir DIR     where the files go (.); they are removed at the end\n"
    "  --keep        leave them\n"
    "  --svg FILE    draw who owned what, before and after\n"
    "  -h, --help    this text\n"
    "\n"
    "Exit code: 0 all is right, 1 an element is wrong, 2 bad input (one message on stderr)\n"
    "\n"
    "examples\n"
    "  reshard\n"
    "  reshard --dir /tmp --svg owners.svg\n"
    "  reshard --shrink 4 --keep\n";

#include "../helpers/options.h"

enum { TENSORS = 400, WRITERS = 8, READERS = 12, LAYERS = 32, STAGES = 3 };

typedef struct tensor {
    char name[48];
    int32_t dims, cut; /* cut: the dim that tensor parallelism shards, or -1 */
    int32_t layer;     /* -1 before the layers, LAYERS after them */
    int64_t extent[2];
    dpar_layout saved, wanted;
} tensor;

static tensor list[TENSORS];
static int tensors;
static const char *folder = ".";
static int64_t shrink = 16;

static int keep; /* 1: the files are not removed */

static void remove_files(void)
{
    char path[512];
    int i;
    for (i = 0; i < WRITERS && !keep; i++) {
        snprintf(path, sizeof path, "%s/reshard-%d.bin", folder, i);
        remove(path);
    }
}

static int writing; /* 1: there are files to be removed */

/* Ends the program with a message, and removes the files. */
static void fail(const char *what, const char *why)
{
    fprintf(stderr, "reshard: %s: %s\n", what, why);
    if (writing) {
        remove_files();
    }
    exit(2);
}

/* ---- the model ------------------------------------------------------------------------------- */

static void add(int32_t layer, const char *name, int32_t cut, int64_t rows, int64_t columns)
{
    tensor *made = &list[tensors++];
    if (layer >= 0 && layer < LAYERS) {
        snprintf(made->name, sizeof made->name, "model.layers.%d.%s.weight", layer, name);
    } else {
        snprintf(made->name, sizeof made->name, "%s.weight", name);
    }
    made->layer = layer;
    made->cut = cut;
    made->dims = columns > 0 ? 2 : 1;
    made->extent[0] = rows / shrink;
    made->extent[1] = columns / shrink;
}

/* Llama-3-8B: hidden 4096, 32 heads, 8 of keys and values, feed-forward 14336, vocabulary 128256.
 */
static void llama_3_8b(void)
{
    int32_t k;
    add(-1, "model.embed_tokens", 0, 128256, 4096);
    for (k = 0; k < LAYERS; k++) {
        add(k, "input_layernorm", -1, 4096, 0);
        add(k, "self_attn.q_proj", 0, 4096, 4096);
        add(k, "self_attn.k_proj", 0, 1024, 4096);
        add(k, "self_attn.v_proj", 0, 1024, 4096);
        add(k, "self_attn.o_proj", 1, 4096, 4096);
        add(k, "post_attention_layernorm", -1, 4096, 0);
        add(k, "mlp.gate_proj", 0, 14336, 4096);
        add(k, "mlp.up_proj", 0, 14336, 4096);
        add(k, "mlp.down_proj", 1, 4096, 14336);
    }
    add(LAYERS, "model.norm", -1, 4096, 0);
    add(LAYERS, "lm_head", 0, 128256, 4096);
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* The layout of a tensor: tensor parallelism cuts first, then data parallelism (FSDP) cuts dim 0 of
 * each part. */
static dpar_layout spread(const tensor *each, const dpar_mesh *mesh)
{
    int32_t dp = dpar_mesh_find(mesh, "dp"), tp = dpar_mesh_find(mesh, "tp");
    dpar_placement placement[2];
    dpar_layout layout;
    dpar_why why;
    placement[dp] = dpar_shard(0);
    placement[tp] = each->cut < 0 ? dpar_replicate() : dpar_shard(each->cut);
    placement[dp].order = 1;
    if (dpar_layout_init(&layout, mesh, each->dims, each->extent, placement, &why) != DPAR_OK) {
        fail(each->name, why.text);
    }
    return layout;
}

/* The pipeline stage of a tensor. Layers are divided evenly; tensors before them belong to the
 * first stage, and those after them to the last. */
static int32_t stage_of(const tensor *each)
{
    if (each->layer < 0) {
        return 0;
    }
    if (each->layer >= LAYERS) {
        return STAGES - 1;
    }
    return dpar_split_owner(DPAR_SPLIT_EVEN, LAYERS, STAGES, each->layer);
}

static void make_layouts(void)
{
    static const int32_t saved_size[] = {4, 2}, wanted_size[] = {STAGES, 2, 2};
    dpar_mesh saved, wanted, stage;
    int i;
    dpar_why why;
    if (dpar_mesh_init(&saved, "dp tp", saved_size, DPAR_ORDER_LAST_FASTEST, WRITERS, &why) ||
        dpar_mesh_init(&wanted, "pp dp tp", wanted_size, DPAR_ORDER_LAST_FASTEST, READERS, &why)) {
        fail("mesh", why.text);
    }
    for (i = 0; i < tensors; i++) {
        if (dpar_mesh_slice(&stage, &wanted, 6u, stage_of(&list[i]) * 4, &why) != DPAR_OK) {
            fail("stage", why.text);
        }
        list[i].saved = spread(&list[i], &saved);
        list[i].wanted = spread(&list[i], &stage);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static FILE *shard_file(int32_t rank, const char *mode)
{
    char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s/reshard-%d.bin", folder, rank);
    file = fopen(path, mode);
    if (file == NULL) {
        fail(path, "cannot be opened; --dir sets the folder");
    }
    return file;
}

/* The value of an element, which differs from that of almost every other element. */
static uint32_t mark(int tensor_id, int64_t index)
{
    uint64_t hash = ((uint64_t)tensor_id << 48) ^ (uint64_t)index;
    hash = (hash ^ hash >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(hash >> 32);
}

/* Visits a rank's elements of a tensor, in the order of its local array, and sets their values.
 * With `check` it first compares them. Returns how many are wrong. */
static int64_t visit(int id, const dpar_layout *layout, int32_t rank, uint32_t *local, int check)
{
    dpar_box_cursor cursor;
    dpar_box box;
    int64_t at[DPAR_MAX_DIMS], stride[DPAR_MAX_DIMS], wrong = 0, i, j;
    int64_t columns = layout->dims > 1 ? layout->extent[1] : 1;
    memset(&cursor, 0, sizeof cursor);
    dpar_layout_strides(layout, rank, NULL, stride);
    while (dpar_layout_next(layout, rank, &cursor, &box, at)) {
        int64_t left = layout->dims > 1 ? box.lo[1] : 0;
        int64_t right = layout->dims > 1 ? box.hi[1] : 1;
        for (i = box.lo[0]; i < box.hi[0]; i++) {
            uint32_t *row =
                local + (at[0] + i - box.lo[0]) * stride[0] + (layout->dims > 1 ? at[1] : 0);
            for (j = left; j < right; j++) {
                uint32_t value = mark(id, i * columns + j);
                wrong += check && row[j - left] != value;
                row[j - left] = value;
            }
        }
    }
    return wrong;
}

static uint32_t *room(int64_t elements)
{
    uint32_t *local = (uint32_t *)malloc((size_t)(elements > 0 ? elements : 1) * sizeof(uint32_t));
    if (local == NULL) {
        fail("memory", "not enough for a tensor: raise --shrink");
    }
    return local;
}

static double write_all(void)
{
    double bytes = 0.0;
    int32_t rank;
    int i;
    for (rank = 0; rank < WRITERS; rank++) {
        FILE *file = shard_file(rank, "wb");
        for (i = 0; i < tensors; i++) {
            const dpar_layout *layout = &list[i].saved;
            int64_t n = dpar_layout_is_primary(layout, rank) ? dpar_layout_count(layout, rank) : 0;
            uint32_t *local = room(n);
            if (n > 0) {
                (void)visit(i, layout, rank, local, 0);
            }
            if (fwrite(local, sizeof *local, (size_t)n, file) != (size_t)n) {
                fail(list[i].name, "cannot be written: the disk may be full");
            }
            bytes += 4.0 * (double)n;
            free(local);
        }
        if (fclose(file) != 0) {
            fail("a file", "cannot be written: the disk may be full");
        }
    }
    return bytes;
}

/* Where tensor i begins in the file of a writer, in elements. */
static int64_t file_offset(int i, int32_t rank)
{
    int64_t at = 0;
    int k;
    for (k = 0; k < i; k++) {
        at += dpar_layout_is_primary(&list[k].saved, rank) ? dpar_layout_count(&list[k].saved, rank)
                                                           : 0;
    }
    return at;
}

/* Reads one box from a file into a local array. Rows that are contiguous on both sides are read
 * together. Returns the number of reads. */
static int64_t read_box(const dpar_transfer *transfer, FILE *file, int64_t base,
                        const int64_t *there, uint32_t *local, const int64_t *here)
{
    int64_t rows = transfer->dims > 1 ? transfer->extent[0] : 1;
    int64_t width = transfer->dims > 1 ? transfer->extent[1] : transfer->extent[0], reads = 0, i;
    int64_t from = transfer->theirs[0] * there[0] + (transfer->dims > 1 ? transfer->theirs[1] : 0);
    int64_t to = transfer->mine[0] * here[0] + (transfer->dims > 1 ? transfer->mine[1] : 0);
    if (transfer->dims > 1 && width == there[0] && width == here[0]) {
        width *= rows;
        rows = 1;
    }
    for (i = 0; i < rows; i++) {
        if (fseek(file, (long)(4 * (base + from + i * there[0])), SEEK_SET) != 0 ||
            fread(local + to + i * here[0], 4, (size_t)width, file) != (size_t)width) {
            fail("reading", "a file is shorter than its layout");
        }
        reads++;
    }
    return reads;
}

typedef struct tally {
    int64_t boxes, reads, elements, wrong;
    int64_t from[READERS][WRITERS]; /* elements */
} tally;

static void read_tensor(int i, int32_t rank, FILE *const *file, tally *sum)
{
    static dpar_redistribute_cursor cursor;
    dpar_transfer transfer;
    int64_t here[DPAR_MAX_DIMS], there[DPAR_MAX_DIMS];
    uint32_t *local = room(dpar_layout_count(&list[i].wanted, rank));
    if (dpar_redistribute_first(&cursor, &list[i].saved, &list[i].wanted, rank, DPAR_TRANSFER_RECV,
                                DPAR_REDISTRIBUTE_PRIMARY) != DPAR_OK) {
        fail(list[i].name, "its two layouts belong to different arrays");
    }
    dpar_layout_strides(&list[i].wanted, rank, NULL, here);
    while (dpar_redistribute_next(&cursor, &transfer)) {
        dpar_layout_strides(&list[i].saved, transfer.peer, NULL, there);
        sum->reads += read_box(&transfer, file[transfer.peer], file_offset(i, transfer.peer), there,
                               local, here);
        sum->boxes++;
        sum->elements += dpar_transfer_volume(&transfer);
        sum->from[rank][transfer.peer] += dpar_transfer_volume(&transfer);
    }
    sum->wrong += visit(i, &list[i].wanted, rank, local, 1);
    free(local);
}

static void read_all(tally *sum)
{
    FILE *file[WRITERS];
    int32_t rank;
    int i;
    for (rank = 0; rank < WRITERS; rank++) {
        file[rank] = shard_file(rank, "rb");
    }
    for (rank = 0; rank < READERS; rank++) {
        for (i = 0; i < tensors; i++) {
            read_tensor(i, rank, file, sum);
        }
    }
    for (rank = 0; rank < WRITERS; rank++) {
        fclose(file[rank]);
    }
}

/* ---- a check before reading ------------------------------------------------------------------ */

/* Checks that the boxes that were saved cover each tensor exactly once. */
static void check_saved(void)
{
    dpar_box box[WRITERS];
    int32_t order[WRITERS], rank, n;
    dpar_why why;
    int i;
    for (i = 0; i < tensors; i++) {
        n = 0;
        for (rank = 0; rank < WRITERS; rank++) {
            dpar_box_cursor cursor;
            memset(&cursor, 0, sizeof cursor);
            if (dpar_layout_is_primary(&list[i].saved, rank) &&
                dpar_layout_next(&list[i].saved, rank, &cursor, &box[n], NULL)) {
                n++;
            }
        }
        if (dpar_box_cover(list[i].dims, list[i].extent, box, n, order, &why) != DPAR_OK) {
            fail(list[i].name, why.text);
        }
    }
}

/* ---- showing --------------------------------------------------------------------------------- */

static void print_plan(const tally *sum)
{
    int32_t reader, writer;
    printf("\nmillions of elements that each reader takes from each writer's file\n  reader (pp dp "
           "tp)");
    for (writer = 0; writer < WRITERS; writer++) {
        printf("   w%d", writer);
    }
    printf("\n");
    for (reader = 0; reader < READERS; reader++) {
        printf("  %6d  (%d  %d  %d) ", reader, reader / 4, reader / 2 % 2, reader % 2);
        for (writer = 0; writer < WRITERS; writer++) {
            if (sum->from[reader][writer] > 0) {
                printf(" %4.1f", (double)sum->from[reader][writer] * 1e-6);
            } else {
                printf("    .");
            }
        }
        printf("\n");
    }
}

/* Draws the boxes of a tensor in a square, with a colour for each rank. */
static void draw(FILE *file, const tensor *each, const dpar_layout *layout, int32_t ranks, double x,
                 double y)
{
    int32_t rank;
    for (rank = 0; rank < ranks; rank++) {
        dpar_box_cursor cursor;
        dpar_box box;
        memset(&cursor, 0, sizeof cursor);
        while (dpar_layout_next(layout, rank, &cursor, &box, NULL)) {
            double rows = 120.0 / (double)each->extent[0];
            double columns = each->dims > 1 ? 120.0 / (double)each->extent[1] : 120.0;
            double left = each->dims > 1 ? (double)box.lo[1] * columns : 0.0;
            double right = each->dims > 1 ? (double)box.hi[1] * columns : 120.0;
            double top = (double)box.lo[0] * rows, bottom = (double)box.hi[0] * rows;
            fprintf(file,
                    "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='hsl(%d,60%%,72%%)' "
                    "stroke='#444'/><text x='%.1f' y='%.1f'>%d</text>\n",
                    x + left, y + top, right - left, bottom - top, rank * 137 % 360,
                    x + (left + right) / 2.0, y + (top + bottom) / 2.0 + 4.0, rank);
        }
    }
}

static void picture(const char *path)
{
    static const int show[] = {0, 2, 3, 5, 9, 290};
    FILE *file = fopen(path, "w");
    int i;
    if (file == NULL) {
        fail(path, "cannot be written");
    }
    fprintf(
        file,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 920 360' font-family='sans-serif' "
        "font-size='11' text-anchor='middle'>\n<rect width='920' height='360' fill='#fff'/>\n"
        "<text x='60' y='110'>saved: dp 4, tp 2</text>\n"
        "<text x='60' y='270'>read: pp 3, dp 2, tp 2</text>\n");
    for (i = 0; i < 6; i++) {
        const tensor *each = &list[show[i]];
        double x = 130.0 + 130.0 * i;
        fprintf(file, "<text x='%.0f' y='24' font-size='9'>%s</text>\n", x + 60.0,
                strncmp(each->name, "model.layers.", 13) == 0 ? each->name + 6 : each->name);
        draw(file, each, &each->saved, WRITERS, x, 40.0);
        draw(file, each, &each->wanted, READERS, x, 200.0);
    }
    fprintf(file, "</svg>\n");
    if (ferror(file) != 0 || fclose(file) != 0) {
        fail(path, "cannot be written");
    }
}

int main(int argc, char **argv)
{
    static tally sum;
    const char *svg = NULL;
    double elements = 0.0, written;
    long long divisor = shrink;
    int i, code;
    const option options[] = {{"--shrink", OPTION_LONG, &divisor, 1, 16},
                              {"--dir", OPTION_WORD, &folder, 0, 0},
                              {"--svg", OPTION_WORD, &svg, 0, 0},
                              {"--keep", OPTION_FLAG, &keep, 0, 0}};
    code = options_read(argc, argv, options, sizeof options / sizeof *options, NULL, 0);
    if (code >= 0) {
        return code;
    }
    shrink = divisor;
    if (16 % shrink != 0) {
        return complain("--shrink takes 1, 2, 4, 8 or 16", NULL);
    }
    llama_3_8b();
    make_layouts();
    check_saved();
    for (i = 0; i < tensors; i++) {
        elements += (double)(list[i].extent[0] * (list[i].dims > 1 ? list[i].extent[1] : 1));
    }
    printf("Llama-3-8B, %d tensors, shapes / %d: %.1f million elements\n", tensors, (int)shrink,
           elements * 1e-6);
    if (svg != NULL) { /* first, so that a wrong file name is reported at once */
        picture(svg);
    }
    writing = 1;
    written = write_all();
    printf("wrote by %d ranks (dp 4, tp 2): %d files, %.1f MB\n", WRITERS, WRITERS, written * 1e-6);
    read_all(&sum);
    printf("read by %d ranks (pp 3, dp 2, tp 2): %ld boxes, %ld reads, %.1f MB\n", READERS,
           (long)sum.boxes, (long)sum.reads, 4e-6 * (double)sum.elements);
    print_plan(&sum);
    remove_files();
    if (sum.wrong > 0) {
        printf("\n%ld elements are WRONG\n", (long)sum.wrong);
        return 1;
    }
    printf("\nevery element is where it belongs\n");
    return options_finish(0);
}
