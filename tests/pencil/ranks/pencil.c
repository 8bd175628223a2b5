/* SPDX-License-Identifier: MIT-0 */
/* Tests transposes of pencils against brute force. Each byte of a point is computed from the
 * point's global index, so that any rank knows what each byte of its pencil must be. The boxes are
 * computed point by point from the definitions of the cut and of the table in pencil.h.
 *     ./pencil [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_pencil.h"
#include "rank_program.h"
#include "refused.h"

enum { EDGE = 64 }; /* bytes before and after each array that must not change */

/* ---- the oracle ------------------------------------------------------------------------------ */

/* Returns the part that owns element i of n in a balanced cut, by counting through the parts. */
static int32_t part_of(int64_t n, int32_t parts, int32_t last_larger, int64_t i)
{
    int64_t end = 0;
    int32_t p = 0;
    for (p = 0; p < parts; p++) {
        end += n / parts + (last_larger ? p >= parts - n % parts : p < n % parts);
        if (i < end) {
            return p;
        }
    }
    return -1;
}

/* True if this rank has a point in its pencil along `axis`, by the table in pencil.h. */
static int has_point(const dpar_pencil *p, const dpar_pencil_desc *desc, int32_t axis,
                     const int64_t *index)
{
    const int32_t by_row = axis == 0 ? 1 : 0, by_column = axis == 2 ? 1 : 2;
    const int32_t row = part_of(p->size[by_row], p->grid[0], desc->last_larger, index[by_row]);
    const int32_t column =
        part_of(p->size[by_column], p->grid[1], desc->last_larger, index[by_column]);
    if (desc->rank_order == DPAR_ORDER_FIRST_FASTEST) {
        return p->comm->rank == column * p->grid[0] + row;
    }
    return p->comm->rank == row * p->grid[1] + column;
}

static unsigned char byte_of(const dpar_pencil *p, const int64_t *index, int64_t byte,
                             uint32_t salt)
{
    const int64_t point = (index[0] * p->size[1] + index[1]) * p->size[2] + index[2];
    return (unsigned char)scrambled(salt, point * 16 + byte);
}

/* Visits the points of a pencil in the order of memory. Fills the array, or counts wrong bytes. */
static int64_t visit(const dpar_pencil *p, const dpar_pencil_desc *desc, int32_t axis,
                     int64_t point, unsigned char *at, uint32_t salt, int fills)
{
    const int32_t dims[3][3] = {{1, 2, 0}, {0, 2, 1}, {0, 1, 2}};
    const int32_t *dim = dims[desc->order == DPAR_PENCIL_AXIS_LAST ? axis : 2];
    int64_t index[3], k, wrong = 0, n = 0;
    int64_t *i = &index[dim[0]], *j = &index[dim[1]], *l = &index[dim[2]];
    for (*i = 0; *i < p->size[dim[0]]; ++*i) {
        for (*j = 0; *j < p->size[dim[1]]; ++*j) {
            for (*l = 0; *l < p->size[dim[2]]; ++*l) {
                if (!has_point(p, desc, axis, index)) {
                    continue;
                }
                for (k = 0; k < point; k++, n++) {
                    if (fills) {
                        at[n] = byte_of(p, index, k, salt);
                    } else {
                        wrong += at[n] != byte_of(p, index, k, salt);
                    }
                }
            }
        }
    }
    return wrong + (n != p->bytes[axis]);
}

/* Counts mistakes of dpar_pencil_box. */
static int64_t check_boxes(const dpar_pencil *p, const dpar_pencil_desc *desc)
{
    int64_t first[3], count[3], stride[3], index[3], wrong = 0, inside;
    int32_t axis, d;
    for (axis = 0; axis < 3; axis++) {
        wrong += dpar_pencil_box(p, axis, first, count, stride) != DPAR_OK;
        wrong += count[0] * count[1] * count[2] > 0 && count[axis] != p->size[axis];
        if (desc->order == DPAR_PENCIL_AXIS_LAST && count[axis] > 0) {
            wrong += stride[axis] != 1;
        }
        for (index[0] = 0; index[0] < p->size[0]; index[0]++) {
            for (index[1] = 0; index[1] < p->size[1]; index[1]++) {
                for (index[2] = 0; index[2] < p->size[2]; index[2]++) {
                    inside = 1;
                    for (d = 0; d < 3; d++) {
                        inside &= index[d] >= first[d] && index[d] < first[d] + count[d];
                    }
                    wrong += inside != has_point(p, desc, axis, index);
                }
            }
        }
    }
    return wrong;
}

/* ---- random transposes ----------------------------------------------------------------------- */

typedef struct guarded {
    unsigned char *whole, *at;
    int registered;
} guarded;

static guarded guard(dpar_comm *c, const dpar_pencil *p, int registered)
{
    int64_t bytes = p->bytes[0] > p->bytes[1] ? p->bytes[0] : p->bytes[1];
    guarded g;
    bytes = (bytes > p->bytes[2] ? bytes : p->bytes[2]) + 2 * EDGE;
    g.registered = registered;
    g.whole = NULL;
    if (registered) {
        void *memory = NULL;
        CHECK_INT(dpar_comm_alloc(c, bytes, &memory), DPAR_OK);
        g.whole = (unsigned char *)memory;
    } else {
        g.whole = (unsigned char *)zeroed(bytes);
    }
    g.at = g.whole + EDGE;
    return g;
}

static void drop(dpar_comm *c, guarded *g)
{
    if (g->registered) {
        dpar_comm_release(c, g->whole);
    } else {
        free(g->whole);
    }
}

/* Transposes between random axes. Returns the number of wrong bytes. */
static int64_t transposes(dpar_comm *c, dpar_pencil *p, const dpar_pencil_desc *desc, int64_t point,
                          uint64_t *seed)
{
    uint64_t mine = *seed + 77u * (uint64_t)c->rank; /* ranks may differ in their arrays */
    guarded array[2];
    int64_t wrong = 0;
    int32_t from = (int32_t)lot_below(seed, 3), to, step, k;
    const int steps = 4 + (int)lot_below(seed, 4);
    array[0] = guard(c, p, (int)lot_below(&mine, 2));
    array[1] = guard(c, p, (int)lot_below(&mine, 2));
    wrong += visit(p, desc, from, point, array[0].at, 1u, 1);
    for (step = 0; step < steps; step++) {
        const guarded *in = &array[step % 2], *out = &array[(step + 1) % 2];
        to = (from + 1 + (int32_t)lot_below(seed, 2)) % 3;
        memset(out->whole, 0x5a, (size_t)(p->bytes[to] + 2 * EDGE));
        if (lot_below(seed, 2)) {
            wrong += dpar_pencil_transpose(p, from, to, in->at, out->at) != DPAR_OK;
        } else {
            dpar_status st = dpar_pencil_begin(p, from, to, in->at, out->at);
            wrong += st != DPAR_OK;
            for (k = 0; k < 3 && st >= 0; k++) {
                st = dpar_pencil_test(p);
            }
            wrong += st < 0;
            wrong += dpar_pencil_end(p) != DPAR_OK;
        }
        wrong += visit(p, desc, to, point, out->at, 1u, 0);
        wrong += visit(p, desc, from, point, in->at, 1u, 0);
        for (k = 0; k < EDGE; k++) {
            wrong += out->whole[k] != 0x5a || out->at[p->bytes[to] + k] != 0x5a;
        }
        from = to;
    }
    drop(c, &array[0]);
    drop(c, &array[1]);
    return wrong;
}

/* Chooses a description. Some dims are shorter than the grid, so that some ranks have no points. */
static dpar_pencil_desc random_desc(const dpar_comm *c, uint64_t *seed)
{
    const int32_t types[6] = {DPAR_U8, DPAR_BF16, DPAR_F32, DPAR_F64, DPAR_I64, DPAR_U8};
    const int32_t most[6] = {16, 8, 4, 2, 2, 16};
    const int kind = (int)lot_below(seed, 6), whole = (int)lot_below(seed, 4);
    dpar_pencil_desc desc;
    int32_t d;
    memset(&desc, 0, sizeof desc);
    for (d = 0; d < 3; d++) {
        desc.size[d] = 1 + lot_below(seed, whole == 0 ? 40 : 9);
    }
    desc.type = types[kind];
    desc.components = (int32_t)lot_below(seed, most[kind] + 1);
    desc.order = (int32_t)lot_below(seed, 2);
    desc.measure = lot_below(seed, 16) == 0;
    desc.tag = (int32_t)lot_below(seed, 3);
    desc.rank_order = (int32_t)lot_below(seed, 2);
    desc.last_larger = (int32_t)lot_below(seed, 2);
    if (whole != 1) {
        do {
            desc.grid[0] = 1 + (int32_t)lot_below(seed, c->size);
        } while (c->size % desc.grid[0] != 0);
        desc.grid[1] = whole == 2 ? 0 : c->size / desc.grid[0];
    }
    return desc;
}

static int64_t random_worlds(dpar_comm *c)
{
    uint64_t seed = 5;
    int64_t wrong = 0;
    int i;
    for (i = 0; i < 60; i++) {
        const dpar_pencil_desc desc = random_desc(c, &seed);
        const int64_t point =
            dpar_type_bytes(desc.type) * (int64_t)(desc.components > 0 ? desc.components : 1);
        dpar_pencil *p = NULL;
        dpar_why why;
        int64_t bad;
        const dpar_status st = dpar_pencil_make(c, &desc, &p, &why);
        CHECK_INT(st, DPAR_OK);
        if (st != DPAR_OK) {
            printf("    %s\n", why.text);
            return wrong + 1;
        }
        CHECK_INT(p->grid[0] * p->grid[1], c->size);
        bad = check_boxes(p, &desc) + transposes(c, p, &desc, point, &seed);
        if (bad != 0) {
            printf("    world %d, rank %d: %lld wrong: %lld x %lld x %lld over %d x %d, order %d, "
                   "rank_order %d, last_larger %d, %lld bytes\n",
                   i, (int)c->rank, (long long)bad, (long long)desc.size[0],
                   (long long)desc.size[1], (long long)desc.size[2], (int)p->grid[0],
                   (int)p->grid[1], (int)desc.order, (int)desc.rank_order, (int)desc.last_larger,
                   (long long)point);
        }
        wrong += bad;
        CHECK_INT(dpar_pencil_free(p), DPAR_OK);
    }
    return wrong;
}

/* The arrays of dpar_pencil_array, and two plans in progress at a time. */
static int64_t two_plans(dpar_comm *c)
{
    dpar_pencil_desc desc[2];
    dpar_pencil *p[2] = {NULL, NULL};
    unsigned char *a[2], *b[2];
    int64_t wrong = 0;
    int i;
    memset(desc, 0, sizeof desc);
    for (i = 0; i < 2; i++) {
        desc[i].size[0] = 7;
        desc[i].size[1] = 6;
        desc[i].size[2] = 9;
        desc[i].type = DPAR_F64;
        desc[i].components = 2;
        desc[i].order = i;
        desc[i].tag = i;
        CHECK_INT(dpar_pencil_make(c, &desc[i], &p[i], NULL), DPAR_OK);
        a[i] = (unsigned char *)dpar_pencil_array(p[i]);
        b[i] = (unsigned char *)dpar_pencil_array(p[i]);
        CHECK(a[i] != NULL && b[i] != NULL);
        visit(p[i], &desc[i], 2, 16, a[i], (uint32_t)i, 1);
    }
    for (i = 0; i < 2; i++) {
        CHECK_INT(dpar_pencil_begin(p[i], 2, 0, a[i], b[i]), DPAR_OK);
    }
    for (i = 1; i >= 0; i--) {
        CHECK_INT(dpar_pencil_end(p[i]), DPAR_OK);
        wrong += visit(p[i], &desc[i], 0, 16, b[i], (uint32_t)i, 0);
    }
    for (i = 0; i < 2; i++) {
        CHECK_INT(dpar_pencil_free(p[i]), DPAR_OK);
        dpar_comm_release(c, a[i]);
        dpar_comm_release(c, b[i]);
    }
    return wrong;
}

/* ---- refused --------------------------------------------------------------------------------- */

static dpar_pencil_desc good(void)
{
    dpar_pencil_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.size[0] = desc.size[1] = desc.size[2] = 8;
    desc.type = DPAR_F64;
    return desc;
}

#define REFUSED_DESC(change, status, words)                                                        \
    do {                                                                                           \
        desc = good();                                                                             \
        change;                                                                                    \
        REFUSED(dpar_pencil_make(c, &desc, &p, &why), status, words);                              \
        CHECK(p == NULL);                                                                          \
    } while (0)

static void refused_descs(dpar_comm *c)
{
    dpar_pencil_desc desc = good();
    dpar_pencil *p = NULL;
    dpar_why why;
    const int last = c->rank == c->size - 1;
    REFUSED(dpar_pencil_make(NULL, &desc, &p, &why), DPAR_E_ARG, "comm is NULL");
    REFUSED(dpar_pencil_make(c, NULL, &p, &why), DPAR_E_ARG, "desc or pencil is NULL");
    REFUSED(dpar_pencil_make(c, &desc, NULL, &why), DPAR_E_ARG, "desc or pencil is NULL");
    REFUSED_DESC(desc.size[1] = 0, DPAR_E_ARG, "size is 8 x 0 x 8, but each must be at least 1");
    REFUSED_DESC(desc.size[2] = -3, DPAR_E_ARG, "size is 8 x 8 x -3");
    REFUSED_DESC(desc.size[0] = INT64_MAX, DPAR_E_RANGE, "more than 2^56 bytes");
    REFUSED_DESC(desc.size[0] = desc.size[1] = desc.size[2] = INT64_C(1) << 22, DPAR_E_RANGE,
                 "4194304 x 4194304 x 4194304 points of 8 bytes are more than 2^56 bytes");
    REFUSED_DESC(desc.type = DPAR_TYPE_NONE, DPAR_E_ARG, "0 components of type none");
    REFUSED_DESC(desc.type = DPAR_F4, DPAR_E_ARG, "of a type with bytes");
    REFUSED_DESC(desc.components = -1, DPAR_E_ARG, "-1 components of type f64");
    REFUSED_DESC(desc.components = INT32_MAX, DPAR_E_ARG, "2147483647 components of type f64");
    REFUSED_DESC(desc.order = 2, DPAR_E_ARG, "order 2");
    REFUSED_DESC(desc.measure = -1, DPAR_E_ARG, "measure -1");
    REFUSED_DESC(desc.tag = -1, DPAR_E_ARG, "tag -1");
    REFUSED_DESC(desc.rank_order = 2, DPAR_E_ARG, "rank_order 2, last_larger 0");
    REFUSED_DESC(desc.last_larger = -1, DPAR_E_ARG, "rank_order 0, last_larger -1");
    REFUSED_DESC(desc.grid[1] = -1, DPAR_E_ARG, "grid is 0 x -1, but no number may be negative");
    REFUSED_DESC((desc.grid[0] = c->size, desc.grid[1] = 2), DPAR_E_ARG,
                 "the product of its numbers must be");
    REFUSED_DESC((desc.grid[0] = INT32_MAX, desc.grid[1] = INT32_MAX), DPAR_E_ARG,
                 "grid is 2147483647 x 2147483647");
    REFUSED_DESC(desc.grid[0] = c->size + 1, DPAR_E_ARG, "the number of ranks");
    if (c->size > 1) { /* one rank differs: all of them fail */
        REFUSED_DESC(desc.size[1] = last ? 0 : 8, DPAR_E_ARG, "size is 8 x 0 x 8");
        REFUSED_DESC(desc.size[1] = last ? 9 : 8, DPAR_E_MISMATCH, "size[1] is");
        REFUSED_DESC(desc.grid[0] = last ? 1 : 0, DPAR_E_MISMATCH, "grid[0] is");
        REFUSED_DESC(desc.type = last ? DPAR_F32 : DPAR_F64, DPAR_E_MISMATCH, "type is");
        REFUSED_DESC(desc.components = last ? 2 : 1, DPAR_E_MISMATCH, "components is");
        REFUSED_DESC(desc.order = last, DPAR_E_MISMATCH, "order is");
        REFUSED_DESC(desc.measure = last, DPAR_E_MISMATCH, "measure is");
        REFUSED_DESC(desc.tag = last, DPAR_E_MISMATCH, "tag is");
        REFUSED_DESC(desc.rank_order = last, DPAR_E_MISMATCH, "rank_order is");
        REFUSED_DESC(desc.last_larger = last, DPAR_E_MISMATCH, "last_larger is");
        REFUSED(dpar_pencil_make(c, last ? NULL : &desc, &p, &why), DPAR_E_ARG, "is NULL");
    }
}

/* Checks that a call on this rank fails with words in the communicator's message. */
#define REFUSED_HERE(call, words)                                                                  \
    do {                                                                                           \
        c->why.text[0] = 0;                                                                        \
        CHECK_INT(call, DPAR_E_ARG);                                                               \
        CHECK(strstr(c->why.text, words) != NULL);                                                 \
    } while (0)

static void refused_calls(dpar_comm *c)
{
    dpar_pencil_desc desc = good();
    dpar_pencil *p = NULL;
    int64_t first[3];
    char *a, *b;
    CHECK_INT(dpar_pencil_begin(NULL, 2, 1, &desc, first), DPAR_E_ARG);
    CHECK_INT(dpar_pencil_transpose(NULL, 2, 1, &desc, first), DPAR_E_ARG);
    CHECK_INT(dpar_pencil_test(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_pencil_end(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_pencil_box(NULL, 0, first, NULL, NULL), DPAR_E_ARG);
    CHECK(dpar_pencil_array(NULL) == NULL);
    CHECK_INT(dpar_pencil_free(NULL), DPAR_OK);
    CHECK_INT(dpar_pencil_make(c, &desc, &p, NULL), DPAR_OK);
    if (p == NULL) {
        return;
    }
    a = (char *)dpar_pencil_array(p);
    b = (char *)dpar_pencil_array(p);
    CHECK_INT(dpar_pencil_end(p), DPAR_OK); /* nothing is in progress */
    CHECK_INT(dpar_pencil_box(p, 1, NULL, NULL, NULL), DPAR_OK);
    REFUSED_HERE(dpar_pencil_box(p, 3, first, NULL, NULL), "axis 3 is not 0, 1 or 2");
    REFUSED_HERE(dpar_pencil_transpose(p, 1, 1, a, b), "from axis 1 to axis 1");
    REFUSED_HERE(dpar_pencil_transpose(p, -1, 1, a, b), "from axis -1 to axis 1");
    REFUSED_HERE(dpar_pencil_transpose(p, 0, INT32_MAX, a, b), "two different axes");
    if (p->bytes[2] > 0 && p->bytes[1] > 0) {
        REFUSED_HERE(dpar_pencil_transpose(p, 2, 1, NULL, b), "in is NULL but must hold");
        REFUSED_HERE(dpar_pencil_transpose(p, 2, 1, a, NULL), "out is NULL but must hold");
        REFUSED_HERE(dpar_pencil_transpose(p, 2, 1, a, a), "overlap; use two arrays");
        REFUSED_HERE(dpar_pencil_transpose(p, 2, 1, a, a + 8), "overlap");
    }
    if (c->rank == c->size - 1) { /* the others are in the next call meanwhile, and wait */
        REFUSED_HERE(dpar_pencil_transpose(p, 2, 2, a, b), "from axis 2 to axis 2");
    }
    CHECK_INT(dpar_pencil_begin(p, 2, 1, a, b), DPAR_OK); /* it works after all these */
    if (dpar_pencil_test(p) == DPAR_MORE) {
        REFUSED_HERE(dpar_pencil_begin(p, 2, 1, a, b), "call dpar_pencil_end first");
    }
    CHECK_INT(dpar_pencil_end(p), DPAR_OK);
    CHECK_INT(dpar_pencil_free(p), DPAR_OK);
    dpar_comm_release(c, a);
    dpar_comm_release(c, b);
}

/* The last rank transposes slabs in the opposite direction. All ranks get an error if they share
 * memory. The communicator breaks, so that it is one of its own. */
static void other_axes(dpar_comm *world)
{
    dpar_pencil_desc desc = good();
    dpar_pencil *p = NULL;
    dpar_comm *c = NULL;
    const int last = world->rank == world->size - 1;
    char *a, *b;
    dpar_status st;
    if (world->size == 1 || strcmp(world->engine.name, "shm") != 0) {
        return; /* messages of other sizes are noticed only with the deadline */
    }
    desc.grid[0] = world->size;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    CHECK_INT(dpar_pencil_make(c, &desc, &p, NULL), DPAR_OK);
    a = (char *)dpar_pencil_array(p);
    b = (char *)dpar_pencil_array(p);
    st = dpar_pencil_transpose(p, last ? 0 : 1, last ? 1 : 0, a, b);
    CHECK_INT(st, DPAR_E_MISMATCH);
    CHECK(strstr(c->why.text, "of other arrays") != NULL);
    (void)dpar_pencil_free(p);
    (void)dpar_comm_free(c);
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    const int before = failures();
    int64_t wrong;
    (void)arg;
    refused_descs(c);
    refused_calls(c);
    wrong = random_worlds(c);
    wrong += two_plans(c);
    other_axes(c);
    CHECK_INT(wrong, 0);
    return all_right(c, wrong, began) || failures() != before;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 6, 4, NULL);
}
