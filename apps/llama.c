/* SPDX-License-Identifier: MIT-0 */
/* llama - generates tokens with a small llama, tensor-parallel, with matrix products of its own. It
 * reads the checkpoints of llama2.c (stories15M.bin); without a file the weights are random.
 *
 *   cc -O3 -march=native -DDPAR_IMPLEMENTATION -I. apps/llama.c -o llama -lm
 *   ./llama stories15M.bin --tokenizer tokenizer.bin --ranks 2 --check
 *
 * and over MPI:
 *
 *   mpicc -O3 -march=native -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/llama.c -o llama -lm
 *   mpirun -np 2 ./llama stories15M.bin
 *
 * What a rank has. Attention heads are divided by dpar_heads_init, also if they do not divide by
 * the ranks: 6 heads on 4 ranks, or 2 key-value heads on 3 ranks, two of which have copies. The
 * units of the MLP and the tokens of the vocabulary are divided by dpar_split_range. A rank keeps
 * only these parts of the matrices, and the keys and values of its heads:
 *
 *   weights                     cut into   rows or columns of
 *   query, key, value, fused    rows       own heads (dpar_heads_local)
 *   projection of attention     columns    own query heads
 *   gate and up, fused          rows       own units
 *   down                        columns    own units
 *   embedding, logits           rows       own tokens
 *   norms                       not cut    every rank has them
 *
 * Communication. Products with cut columns give each rank a part of a sum, so there are two
 * dpar_all_reduce per layer. The owner of a token sends its embedding to all (dpar_broadcast). The
 * next token is the one with the largest logit of all ranks (dpar_max_location); the logits
 * themselves stay where they are. All ranks then have the same bits, and choose the same token.
 *
 * On other numbers of ranks sums are added in another order, so logits differ by rounding. The
 * tokens are the same unless two logits are equal up to rounding; --check compares them.
 *
 * Exit code: 0, or 1 if --check finds a difference or a rank fails, 2 for bad input. */
#include "dpar_comm.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char program[] = "llama";
static const char help[] =
    "llama: generates tokens with a small llama, tensor-parallel\n"
    "\n"
    "  llama [FILE] [--steps N] [--prompt LIST] [--tokenizer FILE] [--check] [--ranks N]\n"
    "  llama [--width N ...] [--write FILE] ...    random weights\n"
    "  mpirun -np N llama ...                      built with -DUSE_MPI\n"
    "\n"
    "  FILE         a checkpoint of llama2.c, such as stories15M.bin\n"
    "  --steps      tokens that pass through the model (default: as long as it allows)\n"
    "  --prompt     numbers of the first tokens, such as 1,9038,2501 (default 1)\n"
    "  --tokenizer  tokenizer.bin of llama2.c: prints text in place of numbers\n"
    "  --check      compares the tokens with those of one rank\n"
    "  --ranks      1 to 64 (default 1)\n"
    "\n"
    "the model, if no FILE is named:\n"
    "  --width      numbers per token (default 288)\n"
    "  --hidden     units of the MLP (default 768)\n"
    "  --layers     (default 6)\n"
    "  --heads      query heads (default 6)\n"
    "  --groups     key-value heads, which divides heads (default: heads)\n"
    "  --vocab      tokens of the vocabulary (default 32000)\n"
    "  --length     most tokens of a text (default 256)\n"
    "  --untied     the logits have weights of their own, not those of the embedding\n"
    "  --seed       of the weights (default 1)\n"
    "  --write      writes a checkpoint with these weights\n"
    "Exit code: 0 fine, 1 an error, or --check found other tokens, 2 bad input\n"
    "\n"
    "examples\n"
    "  llama stories15M.bin --tokenizer tokenizer.bin --ranks 2\n"
    "  llama --width 48 --heads 6 --groups 2 --vocab 301 --length 32 --check --ranks 4\n"
    "  mpirun -np 4 llama --steps 64\n";
#include "../helpers/options.h"

#define REQUIRE(comm, call) dpar_require(comm, call, NULL)

enum {
    STORY_ENDS = 1,     /* the token before the first and after the last of a story */
    HUGE_PAGE = 1 << 21 /* alignment of the weights */
};

/* The sizes of a model, in the order of a checkpoint's header. */
typedef struct sizes {
    int width, hidden, layers, heads, groups, vocab, length;
    int untied; /* in a checkpoint, the sign of vocab */
} sizes;

/* The command line. */
typedef struct request {
    sizes model;
    const char *file, *prompt, *tokenizer, *write;
    int steps, seed, check;
} request;

/* ---- errors ---------------------------------------------------------------------------------- */

static dpar_comm *world;

/* Reports bad input, once for all ranks (options_says of helpers/options.h). */
static void report(const char *message)
{
    dpar_why why;
    memset(&why, 0, sizeof why);
    snprintf(why.text, sizeof why.text, "%s", message);
    (void)dpar_fail(world, &why);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Plain C for any compiler, with vectors for gcc and clang. */
#ifdef __GNUC__
#if defined(__AVX512F__)
typedef float lanes __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float lanes __attribute__((vector_size(32)));
#else
typedef float lanes __attribute__((vector_size(16)));
#endif
#else
typedef float lanes;
#endif
enum { LANES = (int)(sizeof(lanes) / sizeof(float)) };

static lanes lanes_at(const float *x)
{
    lanes some;
    memcpy(&some, x, sizeof some);
    return some;
}

/* Computes the sum of a[i] * b[i], in four sums of lanes, because an addition takes several cycles.
 */
static float dot(const float *a, const float *b, int64_t n)
{
    lanes sum[4];
    float part[LANES], all = 0.0f;
    int64_t j;
    int i;
    memset(sum, 0, sizeof sum);
    for (j = 0; j + 4 * LANES <= n; j += 4 * LANES) {
        sum[0] += lanes_at(a + j) * lanes_at(b + j);
        sum[1] += lanes_at(a + j + LANES) * lanes_at(b + j + LANES);
        sum[2] += lanes_at(a + j + 2 * LANES) * lanes_at(b + j + 2 * LANES);
        sum[3] += lanes_at(a + j + 3 * LANES) * lanes_at(b + j + 3 * LANES);
    }
    for (; j + LANES <= n; j += LANES) {
        sum[0] += lanes_at(a + j) * lanes_at(b + j);
    }
    sum[0] += sum[1] + (sum[2] + sum[3]);
    memcpy(part, sum, sizeof part);
    for (i = 0; i < LANES; i++) {
        all += part[i];
    }
    for (; j < n; j++) {
        all += a[j] * b[j];
    }
    return all;
}

/* Computes y[rows] = w[rows][columns] x[columns]. */
static void multiply(const float *w, int64_t rows, int64_t columns, const float *x, float *y)
{
    int64_t i;
    for (i = 0; i < rows; i++) {
        y[i] = dot(w + i * columns, x, columns);
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The tensors of a checkpoint, in its order. All but EMBEDDING, NORM_LAST, ROTATION and LOGITS have
 * a matrix for each layer: [layers][rows][columns]. */
enum {
    EMBEDDING,
    NORM_ATTENTION,
    QUERY,
    KEY,
    VALUE,
    PROJECTION,
    NORM_MLP,
    GATE,
    DOWN,
    UP,
    NORM_LAST,
    ROTATION, /* tables of sines and cosines, which are computed here instead */
    LOGITS,
    TENSORS
};

/* A tensor in a checkpoint. */
typedef struct tensor {
    int64_t first, count, rows, columns; /* in numbers of 4 bytes; the header is not counted */
} tensor;

/* Finds all tensors, and returns how many numbers they have together. */
static int64_t find_tensors(const sizes *m, tensor *all)
{
    const int64_t layers = m->layers, width = m->width, hidden = m->hidden, head = width / m->heads;
    const int64_t shape[TENSORS][3] = {{1, m->vocab, width},
                                       {layers, 1, width},
                                       {layers, width, width},
                                       {layers, m->groups * head, width},
                                       {layers, m->groups * head, width},
                                       {layers, width, width},
                                       {layers, 1, width},
                                       {layers, hidden, width},
                                       {layers, width, hidden},
                                       {layers, hidden, width},
                                       {1, 1, width},
                                       {2, m->length, head / 2},
                                       {m->untied, m->vocab, width}};
    int64_t first = 0;
    int k;
    for (k = 0; k < TENSORS; k++) {
        all[k].first = first;
        all[k].count = shape[k][0] * shape[k][1] * shape[k][2];
        all[k].rows = shape[k][1];
        all[k].columns = shape[k][2];
        first += all[k].count;
    }
    return first;
}

/* Where weights come from: a file, or random numbers, one for each place in such a file. */
typedef struct source {
    tensor tensors[TENSORS];
    const float *file; /* NULL for random numbers */
    uint64_t seed;
} source;

/* Returns a random number of -1 to 1 for place i (splitmix64). */
static float random_at(uint64_t seed, int64_t i)
{
    uint64_t x = (seed << 40) + (uint64_t)i;
    x = (x + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x = x ^ x >> 31;
    return (float)(x >> 40) / 8388608.0f - 1.0f;
}

/* Copies `count` numbers of a tensor from place `at` on, or makes random ones. Random matrices are
 * large and the embedding is small, because otherwise a model would only repeat its last token. */
static void read_numbers(const source *from, int which, int64_t at, int64_t count, float *to)
{
    const tensor *t = &from->tensors[which];
    float scale, middle = 0.0f;
    int64_t i;
    if (from->file != NULL) {
        memcpy(to, from->file + t->first + at, (size_t)count * sizeof *to);
        return;
    }
    scale = which == EMBEDDING ? 0.1f : 3.0f / sqrtf((float)t->columns);
    if (which == NORM_ATTENTION || which == NORM_MLP || which == NORM_LAST) {
        scale = 0.1f;
        middle = 1.0f;
    }
    for (i = 0; i < count; i++) {
        to[i] = middle + scale * random_at(from->seed, t->first + at + i);
    }
}

/* Reads some rows and columns of a matrix of one layer into to[rows][columns]. */
static void read_part(const source *from, int which, int64_t layer, const int64_t rows[2],
                      const int64_t columns[2], float *to)
{
    const tensor *t = &from->tensors[which];
    const int64_t count = columns[1] - columns[0];
    int64_t row;
    for (row = rows[0]; row < rows[1]; row++) {
        read_numbers(from, which, (layer * t->rows + row) * t->columns + columns[0], count, to);
        to += count;
    }
}

/* Checks the sizes of a model. Returns 0, or 2 after a message. */
static int check_sizes(const sizes *m, const char *where)
{
    const struct {
        const char *name;
        int value, most;
    } each[] = {{"width", m->width, 1 << 16},   {"hidden", m->hidden, 1 << 20},
                {"layers", m->layers, 1000},    {"heads", m->heads, 1 << 12},
                {"groups", m->groups, 1 << 12}, {"vocab", m->vocab, 1 << 24},
                {"length", m->length, 1 << 20}};
    char text[300];
    size_t k;
    for (k = 0; k < sizeof each / sizeof each[0]; k++) {
        if (each[k].value < 1 || each[k].value > each[k].most) {
            snprintf(text, sizeof text, "%.99s: %s is %d, but must be 1 to %d", where, each[k].name,
                     each[k].value, each[k].most);
            return complain(text, NULL);
        }
    }
    if (m->heads % m->groups != 0 || m->width % (2 * m->heads) != 0) {
        snprintf(text, sizeof text,
                 "%.99s: width is %d, heads %d, groups %d, but groups must divide heads, and "
                 "width / heads must be an even number",
                 where, m->width, m->heads, m->groups);
        return complain(text, NULL);
    }
    return 0;
}

/* Reads the header at the start of a file into *m. Returns 0, or 2 after a message. */
static int read_header(const char *path, const void *file, int64_t bytes, sizes *m)
{
    int32_t word[7];
    char text[300];
    if (bytes < (int64_t)sizeof word) {
        snprintf(text, sizeof text, "%.99s has %lld bytes, but a header has %d", path,
                 (long long)bytes, (int)sizeof word);
        return complain(text, NULL);
    }
    memcpy(word, file, sizeof word);
    if (word[0] == 0x616b3432) {
        snprintf(text, sizeof text,
                 "%.99s is in version %d of the format, but only version 0 can be read: export "
                 "it with --version 0",
                 path, (int)word[1]);
        return complain(text, NULL);
    }
    m->width = word[0];
    m->hidden = word[1];
    m->layers = word[2];
    m->heads = word[3];
    m->groups = word[4];
    m->untied = word[5] < 0;
    m->vocab = m->untied && word[5] != INT32_MIN ? -word[5] : word[5];
    m->length = word[6];
    return check_sizes(m, path);
}

/* Maps a checkpoint into memory, and finds its tensors. Returns 0, or 2 after a message. */
static int open_checkpoint(const char *path, sizes *m, source *from)
{
    struct stat status;
    char text[300];
    void *file = MAP_FAILED;
    int64_t bytes;
    const int descriptor = open(path, O_RDONLY);
    if (descriptor < 0 || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
        if (descriptor >= 0) {
            close(descriptor);
        }
        return complain("this file cannot be read:", path);
    }
    if (status.st_size > 0) {
        file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    close(descriptor);
    if (file == MAP_FAILED && status.st_size > 0) {
        return complain("this file cannot be mapped into memory:", path);
    }
    if (read_header(path, file, status.st_size, m) != 0) {
        return 2;
    }
    bytes = (7 + find_tensors(m, from->tensors)) * (int64_t)sizeof(float);
    if (bytes != status.st_size) {
        snprintf(text, sizeof text, "%.99s has %lld bytes, but its header describes %lld", path,
                 (long long)status.st_size, (long long)bytes);
        return complain(text, NULL);
    }
    from->file = (const float *)file + 7;
    return 0;
}

/* Writes a checkpoint of random weights. Returns 1, or 0 if the file cannot be written. */
static int write_checkpoint(const char *path, const sizes *m, const source *from)
{
    const int32_t word[7] = {m->width, m->hidden, m->layers,
                             m->heads, m->groups, m->untied ? -m->vocab : m->vocab,
                             m->length};
    enum { CHUNK = 4096 };
    float some[CHUNK];
    FILE *file = fopen(path, "wb");
    int64_t i;
    int k, good = file != NULL && fwrite(word, sizeof word, 1, file) == 1;
    for (k = 0; good && k < TENSORS; k++) {
        for (i = 0; good && i < from->tensors[k].count; i += CHUNK) {
            const int64_t left = from->tensors[k].count - i, count = left < CHUNK ? left : CHUNK;
            read_numbers(from, k, i, count, some);
            good = fwrite(some, sizeof *some, (size_t)count, file) == (size_t)count;
        }
    }
    if (file != NULL && fclose(file) != 0) {
        good = 0;
    }
    return good;
}

/* ---- the model of a rank --------------------------------------------------------------------- */

typedef struct llama {
    sizes all;
    dpar_comm *comm;
    dpar_heads_share heads;      /* own heads */
    int64_t qkv_rows;            /* own rows of the fused query-key-value matrix */
    int64_t first_unit, units;   /* own units of the MLP */
    int64_t first_token, tokens; /* own tokens of the vocabulary */
    int64_t head;                /* width of a head */
    int64_t numbers;             /* size of `memory`, in floats */
    float *memory;               /* holds the arrays from norm_attention to logits */
    float *norm_attention, *norm_mlp, *norm_last;
    float *qkv;           /* [layers][qkv_rows][width]: own queries, keys, values */
    float *projection;    /* [layers][width][own queries x head] */
    float *gate_up;       /* [layers][2 units][width] */
    float *down;          /* [layers][width][units] */
    float *embedding;     /* [tokens][width] */
    float *last;          /* [tokens][width], the embedding if tied */
    float *keys, *values; /* [layers][own groups][length][head] */
    float *cosine, *sine; /* [length][head / 2], the rotations of positions */
    float *normed, *rows, *attended, *scores, *logits;
    float *x;   /* [width], equal on all ranks; in registered memory */
    float *sum; /* [width], this rank's part of a sum; in registered memory */
} llama;

/* Returns an array of the model's memory, or NULL as long as the memory is only counted. */
static float *place(llama *m, int64_t count)
{
    float *at = m->memory != NULL ? m->memory + m->numbers : NULL;
    m->numbers += (count + 15) / 16 * 16; /* begins on a cache line */
    return at;
}

static void place_arrays(llama *m)
{
    const sizes *all = &m->all;
    const int64_t layers = all->layers, width = all->width, own = m->heads.queries * m->head;
    const int64_t cached = layers * m->heads.groups * all->length * m->head;
    m->numbers = 0;
    m->norm_attention = place(m, layers * width);
    m->norm_mlp = place(m, layers * width);
    m->norm_last = place(m, width);
    m->qkv = place(m, layers * m->qkv_rows * width);
    m->projection = place(m, layers * width * own);
    m->gate_up = place(m, layers * 2 * m->units * width);
    m->down = place(m, layers * width * m->units);
    m->embedding = place(m, m->tokens * width);
    m->last = all->untied ? place(m, m->tokens * width) : m->embedding;
    m->keys = place(m, cached);
    m->values = place(m, cached);
    m->cosine = place(m, all->length * m->head / 2);
    m->sine = place(m, all->length * m->head / 2);
    m->normed = place(m, width);
    m->rows = place(m, m->qkv_rows > 2 * m->units ? m->qkv_rows : 2 * m->units);
    m->attended = place(m, own);
    m->scores = place(m, all->length);
    m->logits = place(m, m->tokens);
}

static void read_layer(llama *m, const source *from, int64_t layer)
{
    const int64_t width = m->all.width, head = m->head, own = m->heads.queries * head;
    const int64_t all[2] = {0, width}, units[2] = {m->first_unit, m->first_unit + m->units};
    const int64_t first_query = m->heads.first_query * head;
    const int64_t first_group = m->heads.first_group * head;
    const int64_t queries[2] = {first_query, first_query + own};
    const int64_t groups[2] = {first_group, first_group + m->heads.groups * head};
    float *qkv = m->qkv + layer * m->qkv_rows * width;
    float *gate_up = m->gate_up + layer * 2 * m->units * width;
    read_part(from, QUERY, layer, queries, all, qkv);
    read_part(from, KEY, layer, groups, all, qkv + own * width);
    read_part(from, VALUE, layer, groups, all, qkv + (own + m->heads.groups * head) * width);
    read_part(from, PROJECTION, layer, all, queries, m->projection + layer * width * own);
    read_part(from, GATE, layer, units, all, gate_up);
    read_part(from, UP, layer, units, all, gate_up + m->units * width);
    read_part(from, DOWN, layer, all, units, m->down + layer * width * m->units);
}

static void read_weights(llama *m, const source *from)
{
    const int64_t width = m->all.width, all[2] = {0, width};
    const int64_t tokens[2] = {m->first_token, m->first_token + m->tokens};
    int64_t layer;
    read_numbers(from, NORM_ATTENTION, 0, m->all.layers * width, m->norm_attention);
    read_numbers(from, NORM_MLP, 0, m->all.layers * width, m->norm_mlp);
    read_numbers(from, NORM_LAST, 0, width, m->norm_last);
    read_part(from, EMBEDDING, 0, tokens, all, m->embedding);
    if (m->all.untied) {
        read_part(from, LOGITS, 0, tokens, all, m->last);
    }
    for (layer = 0; layer < m->all.layers; layer++) {
        read_layer(m, from, layer);
    }
}

/* Prepares the angles by which positions rotate the pairs of a head. */
static void fill_rotations(llama *m)
{
    const int64_t pairs = m->head / 2;
    int64_t i;
    for (i = 0; i < m->all.length * pairs; i++) {
        const double power = (double)(2 * (i % pairs)) / (double)m->head;
        const double angle = (double)(i / pairs) / pow(10000.0, power);
        m->cosine[i] = (float)cos(angle);
        m->sine[i] = (float)sin(angle);
    }
}

/* Makes this rank's part of a model over the ranks of comm. */
static void llama_make(dpar_comm *comm, const sizes *all, const source *from, llama *m)
{
    dpar_heads heads;
    void *memory = NULL;
    memset(m, 0, sizeof *m);
    m->all = *all;
    m->comm = comm;
    m->head = all->width / all->heads;
    REQUIRE(comm,
            dpar_heads_init(&heads, all->heads, all->groups, comm->size, DPAR_SPLIT_EVEN, NULL));
    m->heads = dpar_heads_local(&heads, comm->rank);
    if (m->heads.queries == 0) {
        m->heads.groups = 0; /* keys and values would have no use */
    }
    m->qkv_rows = (m->heads.queries + 2 * m->heads.groups) * m->head;
    dpar_split_range(DPAR_SPLIT_EVEN, all->hidden, comm->size, comm->rank, &m->first_unit,
                     &m->units);
    dpar_split_range(DPAR_SPLIT_EVEN, all->vocab, comm->size, comm->rank, &m->first_token,
                     &m->tokens);
    place_arrays(m); /* counts */
    REQUIRE(comm, posix_memalign(&memory, HUGE_PAGE, (size_t)m->numbers * sizeof(float)) == 0
                      ? DPAR_OK
                      : DPAR_E_MEMORY);
#ifdef MADV_HUGEPAGE
    /* A token reads all weights, so most of the time would pass in misses of the page tables: huge
     * pages make it twice as fast. */
    (void)madvise(memory, (size_t)m->numbers * sizeof(float), MADV_HUGEPAGE);
#endif
    m->memory = (float *)memory;
    place_arrays(m);
    REQUIRE(comm, dpar_comm_alloc(comm, 2 * all->width * (int64_t)sizeof(float), &memory));
    m->x = (float *)memory;
    m->sum = m->x + all->width;
    read_weights(m, from);
    fill_rotations(m);
}

static void llama_free(llama *m)
{
    dpar_comm_release(m->comm, m->x);
    free(m->memory);
}

/* ---- a token --------------------------------------------------------------------------------- */

/* Scales x to a mean square of 1, and by the weights. */
static void normalise(const float *x, const float *weight, int64_t width, float *y)
{
    const float scale = 1.0f / sqrtf(dot(x, x, width) / (float)width + 1e-5f);
    int64_t i;
    for (i = 0; i < width; i++) {
        y[i] = weight[i] * (scale * x[i]);
    }
}

/* Rotates the pairs of `heads` heads by the angles of a position. */
static void rotate(const llama *m, int64_t position, int64_t heads, float *x)
{
    const int64_t pairs = m->head / 2;
    const float *cosine = m->cosine + position * pairs, *sine = m->sine + position * pairs;
    int64_t h, i;
    for (h = 0; h < heads; h++) {
        for (i = 0; i < pairs; i++) {
            const float real = x[2 * i], imaginary = x[2 * i + 1];
            x[2 * i] = real * cosine[i] - imaginary * sine[i];
            x[2 * i + 1] = real * sine[i] + imaginary * cosine[i];
        }
        x += m->head;
    }
}

/* Attends with one query head to the keys and values of its group up to a position. */
static void attend(const llama *m, int64_t position, const float *query, const float *keys,
                   const float *values, float *to)
{
    const int64_t head = m->head;
    const float scale = 1.0f / sqrtf((float)head);
    float *score = m->scores, most = -FLT_MAX, sum = 0.0f;
    int64_t at, i;
    for (at = 0; at <= position; at++) {
        score[at] = scale * dot(query, keys + at * head, head);
        most = score[at] > most ? score[at] : most;
    }
    for (at = 0; at <= position; at++) {
        score[at] = expf(score[at] - most);
        sum += score[at];
    }
    memset(to, 0, (size_t)head * sizeof *to);
    for (at = 0; at <= position; at++) {
        const float share = score[at] / sum;
        for (i = 0; i < head; i++) {
            to[i] += share * values[at * head + i];
        }
    }
}

/* Computes this rank's part of attention: m->sum is to be added over the ranks. */
static void attention(llama *m, int64_t layer, int64_t position)
{
    const int64_t width = m->all.width, head = m->head, own = m->heads.queries * head;
    const int64_t groups = m->heads.groups, shared = m->all.heads / m->all.groups;
    const int64_t cached = m->all.length * head;
    float *query = m->rows, *key = query + own, *value = key + groups * head;
    float *keys = m->keys + layer * groups * cached, *values = m->values + layer * groups * cached;
    int64_t h;
    multiply(m->qkv + layer * m->qkv_rows * width, m->qkv_rows, width, m->normed, m->rows);
    rotate(m, position, m->heads.queries, query);
    rotate(m, position, groups, key);
    for (h = 0; h < groups; h++) {
        const int64_t at = h * cached + position * head;
        memcpy(keys + at, key + h * head, (size_t)head * sizeof *keys);
        memcpy(values + at, value + h * head, (size_t)head * sizeof *values);
    }
    for (h = 0; h < m->heads.queries; h++) {
        const int64_t group = (m->heads.first_query + h) / shared - m->heads.first_group;
        attend(m, position, query + h * head, keys + group * cached, values + group * cached,
               m->attended + h * head);
    }
    multiply(m->projection + layer * width * own, width, own, m->attended, m->sum);
}

/* Computes this rank's part of the MLP: m->sum is to be added over the ranks. */
static void mlp(llama *m, int64_t layer)
{
    const int64_t width = m->all.width, units = m->units;
    float *gate = m->rows, *up = m->rows + units;
    int64_t i;
    multiply(m->gate_up + layer * 2 * units * width, 2 * units, width, m->normed, m->rows);
    for (i = 0; i < units; i++) {
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
    multiply(m->down + layer * width * units, width, units, gate, m->sum);
}

/* Adds m->sum of all ranks to x. */
static void add_sums(llama *m)
{
    const int64_t width = m->all.width;
    int64_t i;
    REQUIRE(m->comm, dpar_all_reduce(m->comm, m->sum, m->sum, width, DPAR_F32, DPAR_SUM, NULL));
    for (i = 0; i < width; i++) {
        m->x[i] += m->sum[i];
    }
}

/* Passes a token through all layers. */
static void pass(llama *m, int token, int64_t position)
{
    const int64_t width = m->all.width;
    const int32_t owner = dpar_split_owner(DPAR_SPLIT_EVEN, m->all.vocab, m->comm->size, token);
    int64_t layer;
    if (m->comm->rank == owner) {
        memcpy(m->x, m->embedding + (token - m->first_token) * width, (size_t)width * sizeof *m->x);
    }
    REQUIRE(m->comm, dpar_broadcast(m->comm, m->x, width, DPAR_F32, owner, NULL));
    for (layer = 0; layer < m->all.layers; layer++) {
        normalise(m->x, m->norm_attention + layer * width, width, m->normed);
        attention(m, layer, position);
        add_sums(m);
        normalise(m->x, m->norm_mlp + layer * width, width, m->normed);
        mlp(m, layer);
        add_sums(m);
    }
}

/* Returns the token with the largest logit, the first one if several have it. */
static int choose(llama *m)
{
    const int64_t width = m->all.width;
    float most = -FLT_MAX;
    double largest;
    int64_t i, token = m->all.vocab; /* of a rank without tokens */
    normalise(m->x, m->norm_last, width, m->normed);
    multiply(m->last, m->tokens, width, m->normed, m->logits);
    for (i = 0; i < m->tokens; i++) {
        if (m->logits[i] > most || isnan(m->logits[i])) {
            most = m->logits[i];
            token = m->first_token + i;
        }
    }
    largest = dpar_max_location(m->comm, (double)most, &token);
    REQUIRE(m->comm, m->comm->status);
    return isfinite(largest) && token < m->all.vocab ? (int)token : -1;
}

/* Generates text[0 .. steps] from text[0 .. prompt). Returns the number of tokens, or -1 if logits
 * are not finite. *seconds gets the time per token, without the first. */
static int generate(llama *m, int prompt, int steps, int *text, double *seconds)
{
    double since = now();
    int position, next;
    for (position = 0; position < steps; position++) {
        if (position == 1) {
            since = now();
        }
        pass(m, text[position], position);
        if (position + 1 < prompt) {
            continue;
        }
        next = choose(m);
        if (next < 0) {
            return -1;
        }
        text[position + 1] = next;
        if (next == STORY_ENDS) {
            position++;
            break;
        }
    }
    *seconds = position > 1 ? (now() - since) / (position - 1) : 0.0;
    return position + 1;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Reads a tokenizer: the longest length, then for each token a score, a length and the letters.
 * Returns the letters of all tokens, each with an end of string, or NULL after a message. */
static char **read_tokenizer(const char *path, int vocab)
{
    FILE *file = fopen(path, "rb");
    char **word = (char **)calloc((size_t)vocab, sizeof *word);
    int32_t longest = 0, length = 0, k = 0;
    float score;
    int good = file != NULL && word != NULL && fread(&longest, sizeof longest, 1, file) == 1;
    for (k = 0; good && k < vocab; k++) {
        good = fread(&score, sizeof score, 1, file) == 1 &&
               fread(&length, sizeof length, 1, file) == 1 && length >= 0 && length < 4096;
        word[k] = good ? (char *)calloc((size_t)length + 1, 1) : NULL;
        good = word[k] != NULL && fread(word[k], 1, (size_t)length, file) == (size_t)length;
    }
    if (file != NULL) {
        fclose(file);
    }
    if (!good) {
        (void)complain("this file is no tokenizer for all tokens of the vocabulary:", path);
        return NULL;
    }
    return word;
}

/* Prints the letters of a token. <0x0A> is a byte; no blank begins a story. */
static void print_word(const char *word, int before)
{
    unsigned byte;
    char end;
    if (sscanf(word, "<0x%2X%c", &byte, &end) == 2 && end == '>') {
        putchar((int)byte);
        return;
    }
    if (before == STORY_ENDS && word[0] == ' ') {
        word++;
    }
    fputs(word, stdout);
}

static void free_words(char **word, int vocab)
{
    int k;
    for (k = 0; word != NULL && k < vocab; k++) {
        free(word[k]);
    }
    free(word);
}

static void print_tokens(const int *text, int count, char **word)
{
    int i;
    for (i = 0; i < count; i++) {
        if (word == NULL) {
            printf("%d%s", text[i], i + 1 < count ? " " : "");
        } else if (text[i] != STORY_ENDS) {
            print_word(word[text[i]], i > 0 ? text[i - 1] : STORY_ENDS);
        }
    }
    printf("\n");
}

/* Reads the numbers of a prompt into text[0 .. most). Returns how many there are, or 0 after a
 * message. */
static int read_prompt(const char *prompt, int most, int vocab, int *text)
{
    char message[200], *end = NULL;
    int count = 0;
    do {
        const long token = strtol(prompt, &end, 10);
        if (end == prompt || (*end != ',' && *end != 0) || token < 0 || token >= vocab) {
            snprintf(message, sizeof message,
                     "--prompt needs numbers of 0 to %d with commas between them, not", vocab - 1);
            (void)complain(message, prompt);
            return 0;
        }
        if (count == most) {
            snprintf(message, sizeof message, "--prompt has more tokens than --steps, which is %d",
                     most);
            (void)complain(message, NULL);
            return 0;
        }
        text[count++] = (int)token;
        prompt = end + 1;
    } while (*end == ',');
    return count;
}

/* ---- the program ----------------------------------------------------------------------------- */

/* Compares the tokens with those that rank 0 generates with the whole model. Returns 0 if all are
 * equal, otherwise 1. Collective. */
static int check(const sizes *all, const source *from, int prompt, int steps, const int *text,
                 int count)
{
    int *alone = (int *)calloc((size_t)steps + 1, sizeof *alone);
    int32_t differ = 0;
    double seconds;
    dpar_comm *self = NULL;
    REQUIRE(world, alone != NULL ? DPAR_OK : DPAR_E_MEMORY);
    REQUIRE(world, dpar_comm_split(world, world->rank, 0, &self));
    if (world->rank == 0) {
        llama m;
        int i = 0, counted;
        memcpy(alone, text, (size_t)prompt * sizeof *alone);
        llama_make(self, all, from, &m);
        counted = generate(&m, prompt, steps, alone, &seconds);
        llama_free(&m);
        while (i < count && i < counted && alone[i] == text[i]) {
            i++;
        }
        differ = i < count || i < counted;
        printf("%d of %d tokens are equal to those of one rank (%.1f tokens/s)\n", i, counted,
               seconds > 0.0 ? 1.0 / seconds : 0.0);
        if (differ) {
            fprintf(stderr, "%s: token %d differs from that of one rank\n", program, i);
        }
    }
    REQUIRE(world, dpar_broadcast(world, &differ, 1, DPAR_I32, 0, NULL));
    REQUIRE(NULL, dpar_comm_free(self));
    free(alone);
    return (int)differ;
}

static void print_model(const llama *m)
{
    const sizes *all = &m->all;
    printf("%d layers of width %d, %d heads in %d groups, %d units, %d tokens\n", all->layers,
           all->width, all->heads, all->groups, all->hidden, all->vocab);
    printf("rank 0 of %d has %d heads in %d groups, %d units, %d tokens: %.1f MB\n",
           (int)m->comm->size, (int)m->heads.queries, (int)m->heads.groups, (int)m->units,
           (int)m->tokens, 4e-6 * (double)m->numbers);
}

/* Generates and prints what the command line asks for. Returns the exit code. */
static int run(request *options, source *from)
{
    const int steps = options->steps;
    int *text = (int *)calloc((size_t)steps + 1, sizeof *text);
    char **word = NULL;
    int count, prompt, code = 0;
    double seconds = 0.0;
    llama m;
    REQUIRE(world, text != NULL ? DPAR_OK : DPAR_E_MEMORY);
    prompt = read_prompt(options->prompt, steps, options->model.vocab, text);
    if (prompt == 0) {
        return 2;
    }
    if (options->tokenizer != NULL) {
        word = read_tokenizer(options->tokenizer, options->model.vocab);
        if (word == NULL) {
            return 2;
        }
    }
    llama_make(world, &options->model, from, &m);
    print_model(&m);
    count = generate(&m, prompt, steps, text, &seconds);
    if (count < 0) {
        (void)dpar_barrier(world, NULL); /* no rank ends while another still waits for it */
        return complain("the logits are not finite", NULL);
    }
    print_tokens(text, count, word);
    printf("%d tokens, %.1f tokens/s\n", count, seconds > 0.0 ? 1.0 / seconds : 0.0);
    llama_free(&m);
    if (options->check) {
        code = check(&options->model, from, prompt, steps, text, count);
    }
    free_words(word, options->model.vocab);
    free(text);
    return options_finish(code);
}

/* Reads the command line and the model. Returns -1 to continue, otherwise the exit code. */
static int prepare(int argc, char **argv, request *options, source *from)
{
    const sizes usual = options->model;
    sizes *m = &options->model;
    int32_t good;
    const option list[] = {{"--steps", OPTION_INT, &options->steps, 1, 1 << 20},
                           {"--prompt", OPTION_WORD, &options->prompt, 0, 0},
                           {"--tokenizer", OPTION_WORD, &options->tokenizer, 0, 0},
                           {"--check", OPTION_FLAG, &options->check, 0, 0},
                           {"--write", OPTION_WORD, &options->write, 0, 0},
                           {"--width", OPTION_INT, &m->width, 1, 1 << 30},
                           {"--hidden", OPTION_INT, &m->hidden, 1, 1 << 30},
                           {"--layers", OPTION_INT, &m->layers, 1, 1 << 30},
                           {"--heads", OPTION_INT, &m->heads, 1, 1 << 30},
                           {"--groups", OPTION_INT, &m->groups, 1, 1 << 30},
                           {"--vocab", OPTION_INT, &m->vocab, 1, 1 << 30},
                           {"--length", OPTION_INT, &m->length, 1, 1 << 30},
                           {"--untied", OPTION_FLAG, &m->untied, 0, 0},
                           {"--seed", OPTION_INT, &options->seed, 0, 1 << 20}};
    const int code =
        options_read(argc, argv, list, (int)(sizeof list / sizeof list[0]), &options->file, 1);
    if (code >= 0) {
        return code;
    }
    if (options->file != NULL) {
        if (options->write != NULL || memcmp(m, &usual, sizeof usual) != 0) {
            return complain("sizes and --write are for random weights, but a file is named:",
                            options->file);
        }
        if (open_checkpoint(options->file, m, from) != 0) {
            return 2;
        }
    } else {
        m->groups = m->groups > 0 ? m->groups : m->heads;
        if (check_sizes(m, "the model") != 0) {
            return 2;
        }
        from->seed = (uint64_t)options->seed;
        (void)find_tensors(m, from->tensors);
    }
    options->steps = options->steps > 0 ? options->steps : m->length;
    if (options->steps > m->length) {
        return complain("--steps is more than the length of the model", NULL);
    }
    if (options->write != NULL) {
        good = world->rank > 0 || write_checkpoint(options->write, m, from);
        REQUIRE(world, dpar_broadcast(world, &good, 1, DPAR_I32, 0, NULL));
        if (!good) {
            return complain("this file cannot be written:", options->write);
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    request options = {{288, 768, 6, 6, 0, 32000, 256, 0}, NULL, "1", NULL, NULL, 0, 1, 0};
    source from;
    dpar_why why;
    int code;
    memset(&from, 0, sizeof from);
#ifdef USE_MPI
    MPI_Init(&argc, &argv);
    dpar_require(NULL, dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why), &why);
#else
    if (dpar_init_or_launch(&argc, &argv, NULL, &world, &why) < 0) {
        (void)dpar_fail(NULL, &why);
        return 2;
    }
#endif
    (void)dpar_quiet(world);
    options_says = report;
    code = prepare(argc, argv, &options, &from);
    code = code < 0 ? run(&options, &from) : code;
#ifdef USE_MPI
    if (code == 0) {
        dpar_require(NULL, dpar_comm_free(world), NULL);
        MPI_Finalize();
    } else {
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, code); /* MPI_Finalize might never return */
    }
    return code;
#else
    if (code == 0) {
        return dpar_finalize(world);
    }
    return code;
#endif
}
