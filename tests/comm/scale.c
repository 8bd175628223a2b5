/* SPDX-License-Identifier: MIT-0 */
/* Runs the message lists of bench/scale_lists.h symbolically on small worlds. At the end each rank
 * has all data, each contribution once, and each send has its receive. What scale_replay takes from
 * a world must be that of the busiest node and rank. The counts of bench/scale_lines.h are compared
 * with closed forms. tests/mpi/scale.c tests what real ranks send. */
#include "bench/scale_lines.h"
#include "bench/scale_replay.h"
#include "check.h"
#include "dpar_comm.h"
#include "dpar_cost.h"

enum { RANKS_MOST = 64, PIECES_MOST = 96 };

typedef struct list {
    scale_message *m;
    int32_t n, room;
} list;

/* All messages of a world as listed by their senders, and by their receivers. */
static list sent, got;
static int32_t whose;

static void keep(void *unused, const scale_message *m)
{
    list *l = m->from == whose ? &sent : &got;
    (void)unused;
    CHECK((m->from == whose) != (m->to == whose));
    if (l->n == l->room) {
        l->room = 2 * l->room + 64;
        l->m = (scale_message *)realloc(l->m, (size_t)l->room * sizeof *l->m);
    }
    l->m[l->n++] = *m;
}

static int by_all(const void *a, const void *b)
{
    const scale_message *x = (const scale_message *)a, *y = (const scale_message *)b;
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    /* equal messages may be in any order, as long as it is the same in both lists */
    return memcmp(x, y, sizeof *x);
}

/* Collects both lists of all ranks in the order of steps and checks that they are equal. */
static void collect(const scale_job *j)
{
    const int32_t n = j->nodes * j->per_node;
    sent.n = got.n = 0;
    for (whose = 0; whose < n; whose++) {
        scale_walk(j, whose, keep, NULL);
    }
    qsort(sent.m, (size_t)sent.n, sizeof *sent.m, by_all);
    qsort(got.m, (size_t)got.n, sizeof *got.m, by_all);
    CHECK_INT(sent.n, got.n);
    CHECK(sent.n == 0 || memcmp(sent.m, got.m, (size_t)sent.n * sizeof *sent.m) == 0);
    CHECK(sent.n == 0 || sent.m[sent.n - 1].step < scale_steps(j));
}

/* ---- all_reduce: how often rank k's input is in element i of rank r ---- */

static uint8_t has[RANKS_MOST][PIECES_MOST][RANKS_MOST],
    before[RANKS_MOST][PIECES_MOST][RANKS_MOST];

static void land_vector(const scale_message *m, int32_t n)
{
    int64_t i;
    int32_t k;
    for (i = m->begin; i < m->begin + m->count; i++) {
        for (k = 0; k < n; k++) {
            const uint8_t more = before[m->from][i][k];
            has[m->to][i][k] = (uint8_t)(m->adds ? has[m->to][i][k] + more : more);
        }
    }
}

static void reduces(const scale_job *j)
{
    const int32_t n = j->nodes * j->per_node;
    int32_t r, i, k, step = -1, wrong = 0;
    collect(j);
    memset(has, 0, sizeof has);
    for (r = 0; r < n; r++) {
        for (i = 0; i < j->count; i++) {
            has[r][i][r] = 1;
        }
    }
    for (k = 0; k < sent.n; k++) {
        if (sent.m[k].step != step) {
            step = sent.m[k].step;
            memcpy(before, has, sizeof before);
        }
        land_vector(&sent.m[k], n);
    }
    for (r = 0; r < n; r++) {
        for (i = 0; i < j->count; i++) {
            for (k = 0; k < n; k++) {
                wrong += has[r][i][k] != 1;
            }
        }
    }
    CHECK_INT(wrong, 0);
    if (wrong) {
        printf("way %d, %d nodes of %d, %d elements of %d\n", j->way, j->nodes, j->per_node,
               (int)j->count, (int)j->bytes);
    }
}

/* ---- all_to_all: how often rank r has received the piece from s to d ---- */

static uint8_t piece[RANKS_MOST][RANKS_MOST][RANKS_MOST],
    piece_before[RANKS_MOST][RANKS_MOST][RANKS_MOST];

static void land_pieces(const scale_message *m)
{
    int32_t s, i;
    for (s = m->source; s < m->source + m->sources; s++) {
        for (i = 0; i < m->targets; i++) {
            const int32_t d = m->target + i * m->apart;
            CHECK(piece_before[m->from][s][d] > 0); /* the rank has what it sends */
            piece[m->to][s][d]++;
        }
    }
}

static void moves_all(const scale_job *j)
{
    const int32_t n = j->nodes * j->per_node;
    int32_t s, d, k, step = -1, wrong = 0;
    collect(j);
    memset(piece, 0, sizeof piece);
    for (s = 0; s < n; s++) {
        memset(piece[s][s], 1, (size_t)n);
    }
    for (k = 0; k < sent.n; k++) {
        if (sent.m[k].step != step) {
            step = sent.m[k].step;
            memcpy(piece_before, piece, sizeof piece);
        }
        land_pieces(&sent.m[k]);
    }
    for (s = 0; s < n; s++) {
        for (d = 0; d < n; d++) {
            wrong += piece[d][s][d] != 1;
        }
    }
    CHECK_INT(wrong, 0);
    if (wrong) {
        printf("way %d, %d nodes of %d\n", j->way, j->nodes, j->per_node);
    }
}

/* ---- halo: each face is received once, from the neighbour, with its bytes ---- */

static void brings_halos(const scale_job *j)
{
    const int32_t n = j->nodes * j->per_node;
    int64_t bytes[RANKS_MOST];
    int32_t r, k, side, times[RANKS_MOST][6], faces;
    collect(j);
    memset(times, 0, sizeof times);
    memset(bytes, 0, sizeof bytes);
    for (k = 0; k < sent.n; k++) {
        const scale_message *m = &sent.m[k];
        bytes[m->to] += m->bytes;
        CHECK(!m->memory ||
              (j->way == HALO_LEVELS && m->from / j->per_node == m->to / j->per_node));
        for (side = 0; side < 6; side++) {
            if (m->sides >> side & 1u) {
                times[m->to][side]++;
                CHECK_INT(m->from, scale_beside(j, m->to, side / 2, side % 2));
            }
        }
    }
    for (r = 0; r < n; r++) {
        for (faces = side = 0; side < 6; side++) {
            CHECK_INT(times[r][side], j->parts[side / 2] > 1);
            faces += j->parts[side / 2] > 1;
        }
        CHECK_INT(bytes[r], faces * j->cells * j->cells * j->width * j->bytes);
    }
}

/* ---- one node in place of all ---- */

static void same_step(const scale_step *a, const scale_step *b)
{
    CHECK_INT(a->sent, b->sent);
    CHECK_INT(a->got, b->got);
    CHECK_INT(a->far, b->far);
    CHECK_INT(a->near, b->near);
    CHECK_INT(a->far_bytes, b->far_bytes);
    CHECK_INT(a->near_bytes, b->near_bytes);
    CHECK_INT(a->moved_bytes, b->moved_bytes);
    CHECK_INT(a->peers, b->peers);
    CHECK_INT(a->out_messages, b->out_messages);
    CHECK_INT(a->out, b->out);
    CHECK_INT(a->in, b->in);
    CHECK_INT(a->port_bytes, b->port_bytes);
    CHECK_INT(a->node_moved, b->node_moved);
}

/* Replays each rank and compares the maximum over all nodes and ranks in each step. */
static void stands_for_all(const scale_job *job, int32_t ports)
{
    scale_job j = *job;
    const int32_t n = j.nodes * j.per_node;
    scale_step *one, *all, *most;
    int32_t steps, every, node, s;
    if (j.way == REDUCE_RING) {
        j.count = (j.count + n - 1) / n * n;
    }
    every = scale_steps(&j);
    one = scale_replay(&j, ports, &steps);
    all = (scale_step *)malloc((size_t)every * sizeof *all);
    most = (scale_step *)calloc((size_t)every, sizeof *most);
    CHECK(one != NULL && all != NULL && most != NULL);
    for (node = 0; node < j.nodes; node++) {
        CHECK(scale_add_up(&j, node, j.per_node, ports, all));
        for (s = 0; s < every; s++) {
            scale_busier(&most[s], &all[s]);
        }
    }
    if (j.way == REDUCE_RING) {
        CHECK_INT(one->times, every);
    } else {
        CHECK_INT(steps, every);
    }
    for (s = 0; s < every; s++) {
        const scale_step *o = &one[j.way == REDUCE_RING ? 0 : s];
        if (o->port_bytes != most[s].port_bytes || o->far != most[s].far) {
            printf("way %d, %d nodes of %d, step %d\n", j.way, j.nodes, j.per_node, s);
        }
        same_step(o, &most[s]);
    }
    free(one);
    free(all);
    free(most);
}

/* ---- worlds ---- */

static const int32_t node_counts[] = {2, 3, 4, 5, 7, 8, 9, 12, 16};
enum { NODE_COUNTS = sizeof node_counts / sizeof node_counts[0] };

static int is_power(int32_t n)
{
    return (n & (n - 1)) == 0;
}

static void vectors(int32_t nodes, int32_t per_node)
{
    /* Below 16 KiB, above it, and with pieces of 2 KiB between nodes; a message in two parts. */
    static const int32_t count[] = {1, 7, 12, 96, 96, 96}, bytes[] = {4, 8, 2048, 512, 4096, 4096};
    scale_job j;
    int32_t i;
    memset(&j, 0, sizeof j);
    j.nodes = nodes;
    j.per_node = per_node;
    for (i = 0; i < 6; i++) {
        j.count = count[i];
        j.bytes = bytes[i];
        j.at_once = i == 5 ? 10000 : 0;
        j.lanes_from = i == 3 ? INT64_C(1) << 40 : i == 4 ? 1 : 0;
        for (j.way = REDUCE_LEVELS; j.way <= REDUCE_RING; j.way++) {
            reduces(&j);
        }
    }
    for (i = 0; i < 3; i++) { /* pieces of equal size, so that nodes do not differ by rounding */
        j.count = 96 * nodes * per_node;
        j.bytes = i == 0 ? 1 : i == 1 ? 16 : 4096;
        j.at_once = j.lanes_from = 0;
        for (j.way = REDUCE_LEVELS; j.way <= REDUCE_RING; j.way++) {
            if (j.way != REDUCE_DOUBLING || is_power(nodes * per_node)) {
                stands_for_all(&j, 1 + i);
            }
        }
    }
}

static void exchanges(int32_t nodes, int32_t per_node)
{
    scale_job j;
    memset(&j, 0, sizeof j);
    j.nodes = nodes;
    j.per_node = per_node;
    j.count = 5;
    j.bytes = 8;
    for (j.way = ALL_EACH; j.way <= ALL_PAIRS; j.way++) {
        j.at_once = 0;
        moves_all(&j);
        stands_for_all(&j, 1);
        if (per_node % 2 == 0) {
            stands_for_all(&j, 2);
        }
        j.at_once = 30;
        moves_all(&j);
    }
}

/* Tests all grids of nodes x per_node ranks, in two orders of the axes. The bytes of the ports are
 * compared with those of dpar_halo_cost_predict, which counts in another way. */
static void halos(int32_t nodes, int32_t per_node)
{
    const int32_t n = nodes * per_node;
    int32_t a, b, turn;
    scale_job j;
    memset(&j, 0, sizeof j);
    j.nodes = nodes;
    j.per_node = per_node;
    j.bytes = 8;
    j.cells = 6;
    j.width = 2;
    for (a = 1; a <= n; a++) {
        for (b = 1; b <= n / a && n % a == 0; b++) {
            for (turn = 0; n / a % b == 0 && turn < 2; turn++) {
                j.parts[0] = a;
                j.parts[1] = b;
                j.parts[2] = n / a / b;
                j.stride[2] = turn ? a * b : 1;
                j.stride[1] = turn ? a : j.parts[2];
                j.stride[0] = turn ? 1 : j.parts[2] * b;
                j.at_once = turn ? 600 : 0;
                j.way = HALO_LEVELS;
                brings_halos(&j);
                j.way = HALO_FLAT;
                brings_halos(&j);
            }
        }
    }
}

/* Tests the grid that dpar_halo_cost_choose selects and the bytes that it predicts per node. */
static void halos_of_cost(int32_t nodes, int32_t per_node)
{
    dpar_halo_cost_desc cost;
    dpar_halo_cost grid;
    scale_step *step;
    scale_job j;
    int32_t d, steps;
    int64_t out = 0;
    memset(&cost, 0, sizeof cost);
    memset(&j, 0, sizeof j);
    cost.ranks = nodes * per_node;
    cost.per_node = per_node;
    cost.dims = 3;
    cost.shape = DPAR_STENCIL_STAR;
    cost.periodic = 7;
    cost.bytes = cost.contiguous_bytes = 8;
    for (d = 0; d < 3; d++) {
        cost.cells[d] = 64 * nodes * per_node; /* each grid cuts these cells evenly, into cubes */
        cost.width[d] = 1;
    }
    CHECK_INT(dpar_halo_cost_choose(&cost, NULL, &grid, NULL), DPAR_OK);
    for (d = 0; d < 3; d++) { /* blocks of 64^3 on that grid */
        cost.cells[d] = 64 * grid.parts[d];
        j.parts[d] = grid.parts[d];
        j.stride[d] = grid.stride[d];
    }
    CHECK_INT(dpar_halo_cost_predict(&cost, NULL, &grid, NULL), DPAR_OK);
    j.way = HALO_LEVELS;
    j.nodes = nodes;
    j.per_node = per_node;
    j.bytes = 8;
    j.cells = 64;
    j.width = 1;
    step = scale_replay(&j, 1, &steps);
    for (d = 0; step != NULL && d < nodes; d++) {
        scale_step one;
        CHECK(scale_add_up(&j, d, per_node, 1, &one));
        out = scale_most(out, one.out);
    }
    CHECK(step != NULL);
    CHECK_INT(out, grid.network_bytes);
    CHECK_INT(step->out, out);
    CHECK_INT(step->in, out);
    free(step);
}

/* ---- cache lines ---- */

/* Checks counts of cache lines. Two levels of G groups of g ranks: the members' lines go to the
 * first rank of the group, those of the first ranks to each other, and one line back to the
 * members. One level: all to all. */
static void lines(void)
{
    static const int32_t ranks[] = {4, 8, 64, 128, 192};
    scale_line_counts c;
    scale_groups g;
    int32_t i, size;
    for (i = 0; i < 5; i++) {
        const int32_t n = ranks[i];
        g.levels = 1;
        g.level[0] = n;
        CHECK(scale_count_lines(&g, &c));
        CHECK_INT(c.transfers, n * (n - 1));
        CHECK_INT(c.taken_back, n);
        CHECK_INT(c.busiest, n - 1);
        CHECK_INT(c.together, n);
        /* The neighbours of the late rank's right neighbour have not looked at any line after its
         * own. */
        CHECK_INT(c.late, 2 * n - 2);
        for (size = 2; size <= 16 && size < n; size *= 2) {
            const int32_t groups = n / size;
            g.levels = 2;
            g.level[0] = size;
            g.level[1] = groups;
            CHECK(scale_count_lines(&g, &c));
            CHECK_INT(c.transfers, groups * (size - 1) + groups * (groups - 1) + n - groups);
            CHECK_INT(c.taken_back, n + 2 * groups);
            CHECK_INT(c.busiest, size - 1 + groups - 1);
            /* The first ranks of the groups read each other's lines one after the other. */
            CHECK(c.together >= 1 + (size - 1) + 1 + (groups - 1) + 1 + (size - 1));
            CHECK(c.together <= 1 + (size - 1) + 1 + 2 * (groups - 1) + 1 + (size - 1));
            /* A first rank does not look at lines after that of a late one. The rank that gets the
             * late line last must then read those of all others. */
            CHECK_INT(c.late, 1 + (size - 1) + 1 + (groups - 1) + (groups - 2) + 1 + (size - 1));
        }
    }
}

/* Checks the sizes that scale_lines.h assumes: a rank's entry shares no cache line with another
 * one. A number of 4 bytes is in the line that announces the rank's arrival, and the numbers of a
 * cluster are in its leader's line. */
static void entries(void)
{
    CHECK_INT(sizeof(dpari_entry) % DPARI_LINE, 0);
    CHECK_INT(sizeof(dpari_member) % DPARI_LINE, 0);
    CHECK(sizeof(((dpari_entry *)0)->word) + 4 * DPARI_CLUSTER <= 64);
    CHECK(4 <= DPARI_INLINE / DPARI_CLUSTER);
    CHECK_INT(DPARI_CLUSTER, 8);
}

int main(void)
{
    int32_t i, p;
    for (i = 0; i < NODE_COUNTS; i++) {
        for (p = 1; p <= 8; p++) {
            if (node_counts[i] * p <= RANKS_MOST) {
                exchanges(node_counts[i], p);
                halos(node_counts[i], p);
                if (is_power(node_counts[i]) && is_power(p)) { /* otherwise nodes differ */
                    halos_of_cost(node_counts[i], p);
                }
            }
            if (node_counts[i] * p <= RANKS_MOST && p != 1) {
                vectors(node_counts[i], p);
            }
        }
    }
    lines();
    entries();
    free(sent.m);
    free(got.m);
    return CHECK_DONE();
}
