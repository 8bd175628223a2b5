/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_grid_reduce over real ranks with random grids, fields and operations, and looks at
 * each element afterwards. Every rank knows the blocks of all ranks and what they hold at first, so
 * that it finds the values of a point by its position in space, without the library. Without halos
 * it adds them in the order of the blocks in space, and all bits must be equal.
 *     ./grid_reduce [processes|threads] [ranks]     without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_halo.h"
#include "rank_program.h"

enum { MOST = 3, ROUNDS = 60, HOLDERS = 4096, PAD = -77 };

static int below(uint64_t *lot, int n)
{
    return (int)lot_below(lot, n);
}

typedef struct block {
    int64_t first[3], count[3];
} block;

typedef struct array {
    dpar_grid_field f;
    int32_t type, comps;
    int8_t direction[12];
    int64_t stride[3], at, count; /* at: index of the first own point in memory */
    int registered;
    void *memory;
    unsigned char *u;
} array;

typedef struct one_case {
    dpar_grid_desc d;
    dpar_grid *g;
    block *blocks; /* [ranks] */
    int64_t cuts[3][8], low[3], high[3];
    int n, exact; /* exact: sums are compared bit by bit with those of the documented order */
    array a[MOST];
} one_case;

/* ---- a random case ---- */

static void random_grid(one_case *k, uint64_t *lot, int ranks)
{
    int left = ranks;
    memset(k, 0, sizeof *k);
    k->d.dims = 1 + below(lot, 3);
    k->d.order = below(lot, 2);
    k->d.check = below(lot, 4) == 0;
    k->d.star = below(lot, 4) == 0;
    k->d.array_start = below(lot, 4) == 0;
    k->d.halo = below(lot, 3) == 0 ? 1 + below(lot, 2) : 0;
    for (int d = 0; d < k->d.dims; d++) {
        k->d.cells[d] = ranks + below(lot, 4);
        k->d.periodic[d] = below(lot, 2);
        k->d.parts[d] = 1 + below(lot, left);
        while (left % k->d.parts[d] != 0) {
            k->d.parts[d]--;
        }
        if (d + 1 == k->d.dims) {
            k->d.parts[d] = left;
        }
        left /= k->d.parts[d];
        if (below(lot, 2)) { /* any numbers, also none */
            k->d.cells[d] = 1 + below(lot, 8);
            for (int i = 1; i < k->d.parts[d]; i++) {
                const int64_t rest = k->d.cells[d] - k->cuts[d][i - 1];
                k->cuts[d][i] = k->cuts[d][i - 1] + below(lot, (int)rest + 1);
            }
            k->cuts[d][k->d.parts[d]] = k->d.cells[d];
            k->d.cuts[d] = k->cuts[d];
        }
        if (k->d.halo == 0 && below(lot, 8) == 0) {
            k->d.halo_high[d] = 1;
        }
        k->low[d] = k->d.halo;
        k->high[d] = k->d.halo_high[d] ? k->d.halo_high[d] : k->d.halo;
        k->exact += k->low[d] + k->high[d] > 0;
    }
    k->exact = k->exact == 0;
}

static void random_array(one_case *k, array *a, uint64_t *lot)
{
    static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_I32};
    const int dims = k->d.dims, strided = below(lot, 2);
    int64_t step;
    memset(a, 0, sizeof *a);
    a->type = types[below(lot, 3)];
    a->comps = 1 + below(lot, 3);
    a->f.components = a->comps;
    a->f.order = below(lot, 2);
    step = a->comps;
    for (int d = 0; d < dims; d++) {
        a->f.location[d] = below(lot, 3) > 0;
    }
    if (below(lot, 5) == 0) {
        for (int i = 0; i < a->comps * dims; i++) {
            a->direction[i] = (int8_t)(below(lot, 3) - 1);
        }
        a->f.direction = a->direction;
        memset(a->f.location, 0, sizeof a->f.location);
    }
    a->at = 2;
    for (int i = 0; i < dims; i++) {
        const int d = a->f.order == DPAR_ORDER_FIRST_FASTEST ? i : dims - 1 - i;
        a->stride[d] = step;
        a->at += k->low[d] * step;
        step *= k->low[d] + k->g->count[d] + a->f.location[d] + k->high[d];
        step += strided ? below(lot, 3) : 0;
        a->f.stride[d] = strided ? a->stride[d] : 0;
    }
    a->count = step + 4;
}

static void make_array(one_case *k, array *a, uint64_t *lot)
{
    const int64_t bytes = dpar_type_bytes(a->type);
    dpar_why why;
    a->registered = below(lot, 2);
    if (a->registered) {
        CHECK_INT(dpar_comm_alloc(k->g->comm, a->count * bytes, &a->memory), DPAR_OK);
    } else {
        a->memory = zeroed(a->count * bytes);
    }
    a->u = (unsigned char *)a->memory + (k->d.array_start ? 2 : a->at) * bytes;
    CHECK_INT(dpar_grid_attach(k->g, a->u, a->type, &a->f, &why), DPAR_OK);
}

/* ---- what ranks hold ---- */

/* The value that a rank has at first at a local point. Without halos it has a fraction, so that the
 * order of sums changes their bits. */
static double value(const one_case *k, const array *a, int rank, const int64_t *x, int comp,
                    int turn)
{
    const int64_t at = (x[0] + 8) * 4096 + (x[1] + 8) * 64 + x[2] + 8;
    const uint32_t h = scrambled((uint32_t)(rank * 64 + comp * 8 + turn), at);
    const double n = (double)(h % 2001u) - 1000.0;
    if (!k->exact || a->type == DPAR_I32) {
        return n;
    }
    return a->type == DPAR_F32 ? (double)(float)(n / 7.0) : n / 7.0;
}

static int is_empty(const one_case *k, const block *b)
{
    int empty = 0;
    for (int d = 0; d < k->d.dims; d++) {
        empty = empty || b->count[d] == 0;
    }
    return empty;
}

/* Returns 1 if a block owns local point x in dim d. */
static int owns(const one_case *k, const array *a, const block *b, int d, int64_t x)
{
    const int last = !k->d.periodic[d] && b->first[d] + b->count[d] == k->d.cells[d];
    return x >= 0 && x < b->count[d] + (last ? a->f.location[d] : 0);
}

/* Returns 1 if local point x is inside the grid or across a periodic end, and the block holds it as
 * its own, as a shared one, or in the halo that an exchange fills. */
static int takes_part(const one_case *k, const array *a, const block *b, const int64_t *x, int comp)
{
    int outside = 0, faces = 0;
    for (int d = 0; d < k->d.dims; d++) {
        const int64_t p = b->first[d] + x[d], n = b->count[d] + a->f.location[d];
        const int own = owns(k, a, b, d, x[d]);
        if (x[d] < -k->low[d] || x[d] >= n + k->high[d]) {
            return 0;
        }
        if (!k->d.periodic[d] && (p < 0 || p >= k->d.cells[d] + a->f.location[d])) {
            return 0;
        }
        if (a->f.direction && !own && a->direction[comp * k->d.dims + d] != (x[d] < 0 ? 1 : -1)) {
            return 0;
        }
        outside += !own;
        faces += a->f.location[d];
    }
    return !is_empty(k, b) && (!k->d.star || faces > 0 || outside < 2);
}

/* Returns 1 if the rank with this block gets the result at x: it is none of its halo. */
static int gets(const one_case *k, const array *a, const block *b, const int64_t *x)
{
    for (int d = 0; d < k->d.dims; d++) {
        if (x[d] < 0 || x[d] >= b->count[d] + a->f.location[d]) {
            return 0;
        }
    }
    return 1;
}

typedef struct holder {
    double v;
    int32_t place; /* in the order of blocks: bits of dims in which its block is above the point */
} holder;

/* Lists the local points of block o that are in dim d where local point x of block b is. Returns
 * their number. */
static int same_place(const one_case *k, const array *a, const block *o, const block *b, int d,
                      int64_t x, int64_t *y)
{
    const int64_t end = o->count[d] + a->f.location[d] + k->high[d];
    int n = 0;
    for (int64_t i = -k->low[d]; i < end; i++) {
        const int64_t apart = o->first[d] + i - b->first[d] - x;
        if (apart == 0 || (k->d.periodic[d] && apart % k->d.cells[d] == 0)) {
            y[n++] = i;
        }
    }
    return n;
}

/* Lists the values at the point of the grid that local point x of a block shows. */
static int holders_of(const one_case *k, const array *a, const block *b, const int64_t *x, int comp,
                      int turn, holder *list)
{
    int n = 0;
    for (int r = 0; r < k->g->comm->size; r++) {
        const block *o = &k->blocks[r];
        int64_t y[3][32] = {{0}}, p[3];
        int many[3] = {1, 1, 1};
        for (int d = 0; d < k->d.dims; d++) {
            many[d] = same_place(k, a, o, b, d, x[d], y[d]);
        }
        for (int i = 0; i < many[0] * many[1] * many[2]; i++) {
            p[0] = y[0][i / many[2] / many[1]];
            p[1] = y[1][i / many[2] % many[1]];
            p[2] = y[2][i % many[2]];
            if (takes_part(k, a, o, p, comp)) {
                list[n].v = value(k, a, r, p, comp, turn);
                list[n].place = 0;
                for (int d = 0; d < k->d.dims; d++) {
                    list[n].place = 2 * list[n].place + (p[d] == 0);
                }
                n++;
            }
        }
    }
    return n;
}

static double combined(const array *a, int op, holder *list, int n)
{
    double v;
    for (int i = 1; i < n; i++) { /* by place; places are different if there are no halos */
        const holder h = list[i];
        int j = i;
        for (; j > 0 && list[j - 1].place > h.place; j--) {
            list[j] = list[j - 1];
        }
        list[j] = h;
    }
    v = list[0].v;
    for (int i = 1; i < n; i++) {
        const double w = list[i].v;
        if (op == DPAR_SUM) {
            v = a->type == DPAR_F32 ? (double)((float)v + (float)w) : v + w;
        } else if (op == DPAR_MAX ? w > v : w < v) {
            v = w;
        }
    }
    return v;
}

/* ---- the elements of an array ---- */

static double get(const array *a, int64_t i)
{
    float s;
    int32_t w;
    double v;
    const unsigned char *at = (const unsigned char *)a->memory + i * dpar_type_bytes(a->type);
    switch (a->type) {
    case DPAR_F64: memcpy(&v, at, 8); return v;
    case DPAR_F32: memcpy(&s, at, 4); return (double)s;
    default: memcpy(&w, at, 4); return (double)w;
    }
}

static void set(const array *a, int64_t i, double v)
{
    const float s = (float)v;
    const int32_t w = (int32_t)v;
    unsigned char *at = (unsigned char *)a->memory + i * dpar_type_bytes(a->type);
    switch (a->type) {
    case DPAR_F64: memcpy(at, &v, 8); break;
    case DPAR_F32: memcpy(at, &s, 4); break;
    default: memcpy(at, &w, 4);
    }
}

/* Calls of a function for each element of an array: fills it, or compares it. */
static int64_t each_element(const one_case *k, const array *a, int turn, int op, int reduced)
{
    holder list[HOLDERS];
    const int rank = k->g->comm->rank;
    const block *b = &k->blocks[rank];
    int64_t mistakes = 0, x[3], n[3] = {1, 1, 1};
    for (int d = 0; d < k->d.dims; d++) {
        n[d] = b->count[d] + a->f.location[d] + k->high[d];
    }
    for (int64_t i = 0; op < 0 && i < a->count; i++) {
        set(a, i, PAD);
    }
    for (x[0] = -k->low[0]; x[0] < n[0]; x[0]++) {
        for (x[1] = -k->low[1]; x[1] < n[1]; x[1]++) {
            for (x[2] = -k->low[2]; x[2] < n[2]; x[2]++) {
                int64_t at = a->at;
                for (int d = 0; d < k->d.dims; d++) {
                    at += x[d] * a->stride[d];
                }
                for (int c = 0; c < a->comps && !is_empty(k, b); c++, at++) {
                    double want = value(k, a, rank, x, c, turn);
                    if (op < 0) {
                        set(a, at, want);
                        continue;
                    }
                    if (reduced && takes_part(k, a, b, x, c)) {
                        want = 0;
                        if (gets(k, a, b, x)) {
                            want = combined(a, op, list, holders_of(k, a, b, x, c, turn, list));
                        }
                    }
                    if (get(a, at) != want && mistakes++ < 2) {
                        printf(
                            "    rank %d, point %lld %lld %lld, component %d: %.17g, not %.17g\n",
                            rank, (long long)x[0], (long long)x[1], (long long)x[2], c, get(a, at),
                            want);
                    }
                    set(a, at, PAD);
                }
            }
        }
    }
    for (int64_t i = 0; op >= 0 && i < a->count; i++) {
        mistakes += get(a, i) != PAD; /* padding and margins */
    }
    return mistakes;
}

/* ---- a round ---- */

static int64_t one_round(dpar_comm *c, uint64_t *lot)
{
    one_case *k = (one_case *)zeroed((int64_t)sizeof *k);
    void *list[MOST];
    block mine;
    dpar_why why;
    int64_t mistakes = 0;
    random_grid(k, lot, c->size);
    CHECK_INT(dpar_grid_make(c, &k->d, &k->g, &why), DPAR_OK);
    memset(&mine, 0, sizeof mine);
    for (int d = 0; d < k->d.dims; d++) {
        mine.first[d] = k->g->first[d];
        mine.count[d] = k->g->count[d];
    }
    k->blocks = (block *)zeroed(c->size * (int64_t)sizeof mine);
    CHECK_INT(dpar_all_gather(c, &mine, k->blocks, 6, DPAR_I64, NULL), DPAR_OK);
    k->n = 1 + below(lot, MOST);
    for (int i = 0; i < k->n; i++) {
        random_array(k, &k->a[i], lot);
        make_array(k, &k->a[i], lot);
    }
    for (int turn = 0; turn < 4; turn++) {
        static const int32_t ops[] = {DPAR_SUM, DPAR_SUM, DPAR_MAX, DPAR_MIN};
        const int32_t op = ops[below(lot, 4)];
        const int mask = 1 + below(lot, (1 << k->n) - 1);
        int32_t count = 0;
        for (int i = 0; i < k->n; i++) {
            (void)each_element(k, &k->a[i], turn, -1, 0);
            if (mask >> i & 1) {
                list[count++] = k->a[i].u;
            }
        }
        if (count == 1 && below(lot, 2)) {
            CHECK_INT(dpar_grid_reduce(k->g, list[0], op), DPAR_OK);
        } else {
            CHECK_INT(dpar_grid_reduce_many(k->g, list, count, op), DPAR_OK);
        }
        for (int i = 0; i < k->n; i++) {
            mistakes += each_element(k, &k->a[i], turn, op, mask >> i & 1);
        }
        if (below(lot, 3) == 0) { /* the plans of exchanges are others */
            CHECK_INT(dpar_grid_exchange_many(k->g, list, count, 0), DPAR_OK);
        }
    }
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    CHECK_INT(dpar_grid_free(k->g), DPAR_OK);
    for (int i = 0; i < k->n; i++) {
        if (k->a[i].registered) {
            dpar_comm_release(c, k->a[i].memory);
        } else {
            free(k->a[i].memory);
        }
    }
    free(k->blocks);
    free(k);
    return mistakes;
}

/* ---- bad input ---- */

static void says(const char *text, const char *word)
{
    if (strstr(text, word) == NULL) {
        printf("    \"%s\" does not say \"%s\"\n", text, word);
        CHECK(0);
    }
}

static void refusals(dpar_comm *c)
{
    dpar_grid_desc d;
    dpar_grid_field f;
    dpar_grid *g;
    unsigned char bytes[64] = {0};
    double u[2] = {1, 2};
    memset(&d, 0, sizeof d);
    memset(&f, 0, sizeof f);
    d.dims = 1;
    d.cells[0] = c->size;
    f.location[0] = DPAR_HALO_AT_FACES;
    CHECK_INT(dpar_grid_make(c, &d, &g, NULL), DPAR_OK);
    CHECK_INT(dpar_grid_reduce(NULL, u, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_grid_reduce(g, u, DPAR_SUM), DPAR_E_ARG);
    says(c->why.text, "does not belong to this grid");
    CHECK_INT(dpar_grid_attach(g, u, DPAR_F64, &f, NULL), DPAR_OK);
    CHECK_INT(dpar_grid_reduce(g, u, DPAR_COPY), DPAR_E_ARG);
    says(c->why.text, "op is 0; it must be DPAR_SUM");
    CHECK(u[0] == 1 && u[1] == 2);
    CHECK_INT(dpar_grid_reduce_many(g, NULL, 1, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_grid_attach(g, bytes, DPAR_F8, &f, NULL), DPAR_OK);
    CHECK_INT(dpar_grid_reduce(g, bytes, DPAR_SUM), DPAR_E_ARG);
    says(c->why.text, "cannot be combined");
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

/* One rank exchanges what the others reduce. */
static void another_call(dpar_comm *c)
{
    dpar_grid_desc d;
    dpar_grid_field f;
    dpar_comm *part;
    dpar_grid *g;
    double u[2] = {1, 2};
    if (c->size == 1) {
        return;
    }
    memset(&d, 0, sizeof d);
    memset(&f, 0, sizeof f);
    d.dims = 1;
    d.cells[0] = c->size;
    f.location[0] = DPAR_HALO_AT_FACES;
    CHECK_INT(dpar_comm_split(c, 0, 0, &part), DPAR_OK);
    CHECK_INT(dpar_grid_make(part, &d, &g, NULL), DPAR_OK);
    CHECK_INT(dpar_grid_attach(g, u, DPAR_F64, &f, NULL), DPAR_OK);
    CHECK_INT(part->rank == 0 ? dpar_grid_exchange(g, u) : dpar_grid_reduce(g, u, DPAR_SUM),
              DPAR_E_MISMATCH);
    says(part->why.text, "kind of exchange");
    CHECK(u[0] == 1 && u[1] == 2);
    (void)dpar_grid_free(g);
    (void)dpar_comm_free(part);
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    int64_t mistakes = 0;
    (void)arg;
    for (int i = 0; i < ROUNDS && mistakes == 0; i++) {
        uint64_t lot = (uint64_t)i * 1000 + 11;
        mistakes += all_sum(c, one_round(c, &lot));
        if (mistakes > 0) {
            printf("    round %d\n", i);
        }
    }
    refusals(c);
    another_call(c);
    return all_right(c, mistakes + failures(), began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 6, 4, NULL);
}
