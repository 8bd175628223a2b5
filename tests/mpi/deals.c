/* SPDX-License-Identifier: MIT-0 */
/* Tests all_to_all and all_to_all_v by nodes, with pieces of all sizes around the one from which
 * they are sent directly. Each element is compared with the value that follows from its sender and
 * position. Ranks that expect another size get an error. mpirun -n 5 deals */
#include "dpar_mpi.h"
#include "check.h"

enum { RANKS = 64, ROUNDS = 60 };

static dpar_comm *c;

static dpar_comm *made(double timeout_s)
{
    dpar_mpi_desc o;
    dpar_comm *made = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.timeout_s = timeout_s;
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, &o, &made, &why), DPAR_OK);
    if (made == NULL) {
        printf("%s\n", why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (made->node != NULL) { /* over several nodes by nodes, even if that is slower here */
        dpari_mpi_ctx_of(made)->world->dealt[0] = DPARI_MPI_DEALT;
        dpari_mpi_ctx_of(made)->world->dealt[1] = DPARI_MPI_DEALT;
    }
    return made;
}

static uint64_t mixed(uint64_t h)
{
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Returns the number of elements of `size` bytes for a pair of ranks. Kinds of rounds: all small,
 * all large, around the limit, some of each, many empty. */
static int64_t count_of(uint64_t round, int64_t from, int64_t to, int64_t size)
{
    const uint64_t h = mixed(mixed(round * 4099 + (uint64_t)from) * 4099 + (uint64_t)to);
    const int64_t border = DPARI_MPI_DEALT / size;
    switch (round % 6) {
    case 0: return (int64_t)(h >> 8) % 5;
    case 1: return border + 1 + (int64_t)(h >> 8) % 300;
    case 2: return border - 2 + (int64_t)(h >> 8) % 5;
    case 3: return h % 3 == 0 ? border + (int64_t)(h >> 8) % 5000 : (int64_t)(h >> 8) % 50;
    case 4: return h % 5 == 0 ? (int64_t)(h >> 8) % 2000 : 0;
    default: return (int64_t)(h >> 8) % (border + 1);
    }
}

static unsigned char byte_of(uint64_t round, int32_t from, int32_t to, int64_t at)
{
    return (unsigned char)(mixed(round * 64 + (uint64_t)from) * 31 + (uint64_t)to * 7 +
                           (uint64_t)at * 13);
}

typedef struct exchange {
    uint64_t round;
    int64_t to[RANKS], from[RANKS], in_begin[RANKS], out_begin[RANKS];
    unsigned char *in, *out;
    int64_t size, out_bytes;
    int32_t type;
    dpar_work work;
} exchange;

static unsigned char *memory(int64_t bytes)
{
    unsigned char *m = (unsigned char *)malloc((size_t)bytes + 1);
    if (m == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return m;
}

/* Returns the total and sets where pieces begin. gaps: pieces in reverse order of ranks, with a gap
 * of one element before each. */
static int64_t begins(const int64_t *count, int64_t *begin, int32_t gaps)
{
    int64_t at = 0;
    int32_t i;
    for (i = 0; i < c->size; i++) {
        const int32_t r = gaps ? c->size - 1 - i : i;
        at += gaps;
        begin[r] = at;
        at += count[r];
    }
    return at;
}

static void start(exchange *x, uint64_t round, int32_t gaps, int32_t in_place, int32_t post)
{
    static const int32_t types[4] = {DPAR_U8, DPAR_F32, DPAR_F64, DPAR_BF16};
    int64_t in_bytes, i;
    int32_t r;
    dpar_call call;
    memset(x, 0, sizeof *x);
    x->round = round;
    x->type = types[round / 2 % 4];
    x->size = dpar_type_bytes(x->type);
    for (r = 0; r < c->size; r++) {
        const int32_t low = c->rank < r ? c->rank : r, high = c->rank < r ? r : c->rank;
        x->to[r] =
            in_place ? count_of(round, low, high, x->size) : count_of(round, c->rank, r, x->size);
        x->from[r] = in_place ? x->to[r] : count_of(round, r, c->rank, x->size);
    }
    in_bytes = begins(x->to, x->in_begin, gaps) * x->size;
    x->out_bytes = begins(x->from, x->out_begin, gaps) * x->size;
    x->in = memory(in_bytes);
    x->out = in_place ? x->in : memory(x->out_bytes);
    memset(x->in, 0xee, (size_t)in_bytes);
    memset(x->out, 0xee, (size_t)x->out_bytes);
    for (r = 0; r < c->size; r++) {
        for (i = 0; i < x->to[r] * x->size; i++) {
            x->in[x->in_begin[r] * x->size + i] = byte_of(round, c->rank, r, i);
        }
    }
    memset(&call, 0, sizeof call);
    call.kind = DPAR_CALL_ALL_TO_ALL;
    call.type = x->type;
    call.variable_counts = 1;
    call.in = x->in, call.out = x->out;
    call.in_count = x->to, call.out_count = x->from;
    call.in_first = gaps ? x->in_begin : NULL;
    call.out_first = gaps ? x->out_begin : NULL;
    CHECK_INT(dpari_post(c, &call, post ? &x->work : NULL), DPAR_OK);
}

static void finish(exchange *x, int32_t post)
{
    int64_t i, wrong = 0, filled = 0, left = 0;
    int32_t r;
    if (post) {
        CHECK_INT(dpar_wait(&x->work), DPAR_OK);
    }
    for (r = 0; r < c->size; r++) {
        filled += x->from[r] * x->size;
        for (i = 0; i < x->from[r] * x->size; i++) {
            const int64_t at = x->out_begin[r] * x->size + i;
            wrong += x->out[at] != byte_of(x->round, r, c->rank, i);
            x->out[at] = 0xee;
        }
    }
    for (i = 0; i < x->out_bytes; i++) {
        left += x->out[i] != 0xee;
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(left, 0); /* nothing outside of the pieces has changed */
    CHECK(filled <= x->out_bytes);
    if (x->out != x->in) {
        free(x->out);
    }
    free(x->in);
}

/* Tests pieces of equal size. */
static void even(uint64_t round)
{
    const int64_t border = DPARI_MPI_DEALT, n = (int64_t[]){1, 7, border, border + 1}[round % 4];
    unsigned char *in = memory(n * c->size), *out = round % 3 == 0 ? in : memory(n * c->size);
    int64_t i, wrong = 0;
    int32_t r;
    for (r = 0; r < c->size; r++) {
        for (i = 0; i < n; i++) {
            in[r * n + i] = byte_of(round, c->rank, r, i);
        }
    }
    CHECK_INT(dpar_all_to_all(c, in, out, n, DPAR_U8, NULL), DPAR_OK);
    for (r = 0; r < c->size; r++) {
        for (i = 0; i < n; i++) {
            wrong += out[r * n + i] != byte_of(round, r, c->rank, i);
        }
    }
    CHECK_INT(wrong, 0);
    if (out != in) {
        free(out);
    }
    free(in);
}

/* Tests right calls. turned: ranks of even number come first, so that those of a node are not
 * consecutive. */
static void right(int32_t turned)
{
    dpar_comm *world = made(60);
    uint64_t round;
    c = world;
    if (turned) {
        CHECK_INT(dpar_comm_split(world, 0, world->rank % 2 * world->size + world->rank, &c),
                  DPAR_OK);
    }
    for (round = 0; round < ROUNDS; round++) {
        const int32_t gaps = round / 3 % 2 == 1, in_place = round % 7 == 6;
        exchange x, y;
        if (round % 4 == 3) { /* two in progress */
            start(&x, round, gaps, in_place, 1);
            start(&y, round + 1000, gaps, 0, 1);
            finish(&y, 1);
            finish(&x, 1);
        } else {
            start(&x, round, gaps, in_place, 0);
            finish(&x, 0);
        }
        even(round);
    }
    if (turned) {
        CHECK_INT(dpar_comm_free(c), DPAR_OK);
    }
    CHECK_INT(dpar_comm_free(world), DPAR_OK);
}

/* The last rank sends `sent` elements to rank 0, which expects `expected`; all others match with
 * `others` elements. */
static void told(int64_t sent, int64_t expected, int64_t others)
{
    static char in[RANKS * 6000], out[RANKS * 6000];
    const double begin = MPI_Wtime();
    int64_t to[RANKS], from[RANKS];
    char words[64];
    dpar_status s;
    int32_t r;
    c = made(8);
    for (r = 0; r < c->size; r++) {
        to[r] = from[r] = others;
    }
    if (c->rank == c->size - 1) {
        to[0] = sent;
    }
    if (c->rank == 0) {
        from[c->size - 1] = expected;
    }
    s = dpar_all_to_all_v(c, in, to, NULL, out, from, NULL, DPAR_U8, NULL);
    if (c->rank == 0) {
        CHECK_INT(s, DPAR_E_MISMATCH);
        (void)snprintf(words, sizeof words, " not the %d that rank 0 expects", (int)expected);
        CHECK(strstr(c->why.text, words) != NULL);
        (void)snprintf(words, sizeof words, "rank %d", (int)c->size - 1);
        CHECK(strstr(c->why.text, words) != NULL);
        if (strstr(c->why.text, words) == NULL || s != DPAR_E_MISMATCH) {
            printf("%d, %d, %d: %s\n", (int)sent, (int)expected, (int)others, c->why.text);
        }
    } else { /* complete, or failed with rank 0's message */
        CHECK(s == DPAR_OK || s == DPAR_E_MISMATCH);
    }
    CHECK(MPI_Wtime() - begin < 5); /* well below the timeout of 8 s */
    dpar_comm_free(c);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    const int64_t border = DPARI_MPI_DEALT;
    int size;
    setenv("DPAR_MPI_FLAT", "0", 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    setenv("DPAR_MPI_NODE", "2", 1);
    right(0);
    setenv("DPAR_MPI_NODE", size == 4 ? "2" : "3", 1); /* 5 ranks: nodes of 3 and 2 */
    right(1);
    if (size > 3) {
        told(3, 4, 5);                    /* both small */
        told(0, 4, 5);                    /* nothing sent */
        told(4, 0, 5);                    /* nothing expected */
        told(3, border + 9, 5);           /* small, but expected large */
        told(border + 9, 3, 5);           /* large, but expected small */
        told(border + 9, border + 10, 5); /* both large */
        told(3, border + 9, border + 9);  /* small, while the other pieces of the node are large */
        told(border + 9, 3, border + 9);
        told(border + 9, 0, border + 9);
    }
    MPI_Finalize();
    return CHECK_DONE();
}
