/* SPDX-License-Identifier: MIT-0 */
/* Tests movements of a mesh against brute force. Every rank knows the whole mesh that a seed makes
 * and computes what each rank must get. The mesh is distributed to the ranks in two different ways,
 * with the same result.
 *     ./points_move [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_points.h"
#include "rank_program.h"

enum { MOST = 60, ELEMENTS = 50, CORNERS = 4, RANKS = 8 };

/* Sets which rank has each of n things now: some ranks have none, sometimes one has all. In a row:
 * the first rank has the first ones, as consecutive numbering requires. */
static void deal(int *holder, int n, int ranks, int in_a_row, uint64_t *seed)
{
    const int all = lot_below(seed, 4) == 0 ? (int)lot_below(seed, ranks) : -1;
    int i, k;
    for (i = 0; i < n; i++) {
        holder[i] = all >= 0 ? all : (int)lot_below(seed, ranks);
    }
    for (i = 1; in_a_row && i < n; i++) {
        for (k = i; k > 0 && holder[k - 1] > holder[k]; k--) {
            const int t = holder[k];
            holder[k] = holder[k - 1];
            holder[k - 1] = t;
        }
    }
}

typedef struct mesh {
    int n, m, corners, named, by, ordered, ranks;
    int64_t id[MOST], order[MOST], element_id[ELEMENTS], element_order[ELEMENTS];
    int corner[ELEMENTS][CORNERS]; /* numbers of points */
    int owner[MOST], element_owner[ELEMENTS];
    int alone[MOST]; /* in no element */
} mesh;

enum { BY_POINTS, BY_ELEMENTS, BY_BOTH };

/* Returns the rank that has most of an element's corners. */
static int majority(const mesh *w, int e)
{
    int count[RANKS] = {0}, k, best = 0;
    for (k = 0; k < w->corners; k++) {
        count[w->owner[w->corner[e][k]]]++;
    }
    for (k = 1; k < w->ranks; k++) {
        best = count[k] > count[best] ? k : best;
    }
    return best;
}

static void make_mesh(mesh *w, int ranks, uint64_t *seed)
{
    int i, k;
    memset(w, 0, sizeof *w);
    w->ranks = ranks;
    w->n = (int)lot_below(seed, MOST + 1);
    w->m = w->n > 0 && lot_below(seed, 5) > 0 ? (int)lot_below(seed, ELEMENTS + 1) : 0;
    w->corners = 1 + (int)lot_below(seed, CORNERS);
    w->named = (int)lot_below(seed, 2);
    w->ordered = (int)lot_below(seed, 2);
    w->by = w->m > 0 ? (int)lot_below(seed, 3) : BY_POINTS;
    for (i = 0; i < w->n; i++) {
        w->id[i] = w->named ? (int64_t)lot_next(seed) / MOST * MOST + i : i;
        w->order[i] = w->ordered ? lot_below(seed, 7) - 3 : w->id[i];
        w->owner[i] = (int)lot_below(seed, ranks);
        w->alone[i] = 1;
    }
    for (i = 0; i < w->m; i++) {
        w->element_id[i] = w->named ? (int64_t)lot_next(seed) / MOST * MOST + i : i;
        w->element_order[i] = w->ordered ? lot_below(seed, 5) : w->element_id[i];
        for (k = 0; k < w->corners; k++) {
            w->corner[i][k] = (int)lot_below(seed, w->n);
            w->alone[w->corner[i][k]] = 0;
        }
        w->element_owner[i] = w->by == BY_POINTS ? majority(w, i) : (int)lot_below(seed, ranks);
    }
}

/* Returns the number of the point or element with this id. */
static int number_of(const int64_t *id, int n, int64_t which)
{
    int i;
    for (i = 0; i < n && id[i] != which; i++) {
    }
    CHECK(i < n);
    return i < n ? i : 0;
}

/* This rank's part as distributed. */
typedef struct piece {
    int64_t id[MOST], order[MOST], corner[ELEMENTS * CORNERS], element_id[ELEMENTS];
    int64_t element_order[ELEMENTS];
    int32_t owner[MOST], element_owner[ELEMENTS];
    int point[MOST], element[ELEMENTS]; /* their numbers */
    dpar_points_migration_desc d;
} piece;

static void hold(const mesh *w, int me, const int *holder, const int *element_holder, piece *p)
{
    int i, k;
    memset(p, 0, sizeof *p);
    for (i = 0; i < w->n; i++) {
        if (holder[i] == me) {
            k = (int)p->d.point_count++;
            p->id[k] = w->id[i];
            p->order[k] = w->order[i];
            p->owner[k] = w->owner[i];
            p->point[k] = i;
        }
    }
    for (i = 0; i < w->m; i++) {
        if (element_holder[i] == me) {
            const int e = (int)p->d.element_count++;
            for (k = 0; k < w->corners; k++) {
                p->corner[e * w->corners + k] = w->id[w->corner[i][k]];
            }
            p->element_id[e] = w->element_id[i];
            p->element_order[e] = w->element_order[i];
            p->element_owner[e] = w->element_owner[i];
            p->element[e] = i;
        }
    }
    p->d.id = w->named && p->d.point_count > 0 ? p->id : NULL;
    p->d.owner = w->by != BY_ELEMENTS && p->d.point_count > 0 ? p->owner : NULL;
    p->d.order = w->ordered ? p->order : NULL;
    p->d.corner_count = p->d.element_count > 0 ? w->corners : 0;
    p->d.corner = p->d.element_count > 0 ? p->corner : NULL;
    p->d.element_id = w->named ? p->element_id : NULL;
    p->d.element_owner = w->by != BY_POINTS ? p->element_owner : NULL;
    p->d.element_order = w->ordered ? p->element_order : NULL;
}

/* Collects owners that the caller did not set: all ranks learn the result, which must be allowed.
 * lower: how many points that several ranks may have went to the first of these; higher: to
 * another. */
static void learn_owners(dpar_comm *c, mesh *w, const int *holder, const dpar_points_migration *to,
                         int *lower, int *higher)
{
    int32_t owner[MOST];
    int64_t i;
    int e, k;
    memset(owner, 0, sizeof owner);
    for (i = 0; i < to->desc.own_count; i++) {
        owner[number_of(w->id, w->n, to->desc.own_id[i])] += 1 + c->rank;
    }
    CHECK_INT(dpar_all_reduce(c, owner, owner, MOST, DPAR_I32, DPAR_SUM, NULL), DPAR_OK);
    for (i = 0; i < w->n; i++) {
        int allowed = w->alone[i] && owner[i] - 1 == holder[i], first = RANKS, last = -1;
        for (e = 0; e < w->m; e++) {
            for (k = 0; k < w->corners; k++) {
                const int may = w->corner[e][k] == i ? w->element_owner[e] : -1;
                allowed |= may >= 0 && owner[i] - 1 == may;
                first = may >= 0 && may < first ? may : first;
                last = may > last ? may : last;
            }
        }
        *lower += first < last && owner[i] - 1 == first;
        *higher += first < last && owner[i] - 1 != first;
        CHECK(allowed);
        w->owner[i] = owner[i] - 1;
    }
}

/* Checks that own points and elements are those of the world, in its order. */
static void check_lists(const dpar_comm *c, const mesh *w, const dpar_points_migration *to)
{
    int64_t i, own = 0, elements = 0;
    for (i = 0; i < w->n; i++) {
        own += w->owner[i] == c->rank;
    }
    for (i = 0; i < w->m; i++) {
        elements += w->element_owner[i] == c->rank;
    }
    CHECK_INT(to->desc.own_count, own);
    CHECK_INT(to->element_count, elements);
    for (i = 0; i < to->desc.own_count; i++) {
        const int k = number_of(w->id, w->n, to->desc.own_id[i]);
        CHECK_INT(w->owner[k], c->rank);
        if (i > 0) {
            const int j = number_of(w->id, w->n, to->desc.own_id[i - 1]);
            CHECK(w->order[j] < w->order[k] || (w->order[j] == w->order[k] && w->id[j] < w->id[k]));
        }
    }
    for (i = 0; i < to->element_count; i++) {
        const int k = number_of(w->element_id, w->m, to->element_id[i]);
        CHECK_INT(w->element_owner[k], c->rank);
        if (i > 0) {
            const int j = number_of(w->element_id, w->m, to->element_id[i - 1]);
            CHECK(w->element_order[j] < w->element_order[k] ||
                  (w->element_order[j] == w->element_order[k] &&
                   w->element_id[j] < w->element_id[k]));
        }
    }
}

/* Checks that corners name the same points as before, and that ghosts are those among them that
 * others own. */
static void check_corners(const dpar_comm *c, const mesh *w, const dpar_points_migration *to)
{
    const dpar_points_desc *d = &to->desc;
    int read[MOST] = {0}, e, k;
    int64_t i, ghosts = 0;
    for (e = 0; e < to->element_count; e++) {
        const int was = number_of(w->element_id, w->m, to->element_id[e]);
        for (k = 0; k < w->corners; k++) {
            const int32_t at = to->corner[e * w->corners + k];
            const int point = w->corner[was][k];
            CHECK(at >= 0 && at < d->own_count + d->ghost_count);
            CHECK_INT(at < d->own_count ? d->own_id[at] : d->ghost_id[at - d->own_count],
                      w->id[point]);
            CHECK_INT(at < d->own_count, w->owner[point] == c->rank);
            read[point] = w->owner[point] != c->rank;
        }
    }
    for (i = 0; i < w->n; i++) {
        ghosts += read[i];
    }
    CHECK_INT(d->ghost_count, ghosts);
    for (i = 0; i < d->ghost_count; i++) {
        const int point = number_of(w->id, w->n, d->ghost_id[i]);
        CHECK_INT(d->owner[i], w->owner[point]);
        CHECK(i == 0 || d->owner[i - 1] < d->owner[i] ||
              (d->owner[i - 1] == d->owner[i] && d->ghost_id[i - 1] < d->ghost_id[i]));
    }
}

/* Checks that vectors of several types and components are moved too, and back. */
static void check_values(const mesh *w, const piece *p, const dpar_points_migration *to)
{
    double xyz[MOST * 3], back[MOST * 3], new_xyz[MOST * 3];
    uint8_t flag[MOST], new_flag[MOST];
    float weight[ELEMENTS], new_weight[ELEMENTS];
    dpar_points_field v[2];
    int64_t i;
    int k;
    for (i = 0; i < p->d.point_count; i++) {
        for (k = 0; k < 3; k++) {
            xyz[3 * i + k] = p->point[i] + 100.0 * k + 0.125;
        }
        flag[i] = (uint8_t)(p->point[i] * 3);
    }
    memset(v, 0, sizeof v);
    v[0].type = DPAR_F64, v[0].components = 3, v[0].data = xyz, v[0].ghosts = new_xyz;
    v[1].type = DPAR_U8, v[1].data = flag, v[1].ghosts = new_flag;
    CHECK_INT(dpar_points_exchange_many(to->points, v, 2), DPAR_OK);
    for (i = 0; i < to->desc.own_count; i++) {
        const int point = number_of(w->id, w->n, to->desc.own_id[i]);
        for (k = 0; k < 3; k++) {
            CHECK(new_xyz[3 * i + k] == point + 100.0 * k + 0.125);
        }
        CHECK_INT(new_flag[i], (uint8_t)(point * 3));
    }
    memset(back, 0, sizeof back);
    v[0].data = back;
    CHECK_INT(dpar_points_reduce_begin_many(to->points, v, 1, DPAR_SUM), DPAR_OK);
    CHECK_INT(dpar_points_end(to->points), DPAR_OK);
    CHECK(p->d.point_count == 0 || memcmp(back, xyz, (size_t)p->d.point_count * 24) == 0);
    CHECK_INT(to->element_points != NULL, w->m > 0);
    if (to->element_points == NULL) {
        return;
    }
    for (i = 0; i < p->d.element_count; i++) {
        weight[i] = (float)p->element[i] + 0.5f;
    }
    memset(v, 0, sizeof v);
    v[0].type = DPAR_F32, v[0].data = weight, v[0].ghosts = new_weight;
    CHECK_INT(dpar_points_exchange_many(to->element_points, v, 1), DPAR_OK);
    for (i = 0; i < to->element_count; i++) {
        CHECK(new_weight[i] == (float)number_of(w->element_id, w->m, to->element_id[i]) + 0.5f);
    }
}

/* Checks that the description makes a plan directly: ghosts get their owners' values. */
static void check_plan(dpar_comm *c, const mesh *w, const dpar_points_migration *to)
{
    const dpar_points_desc *d = &to->desc;
    double x[2 * MOST];
    dpar_points *p = NULL;
    dpar_why why;
    int64_t i;
    CHECK_INT(dpar_points_make(c, d, &p, &why), DPAR_OK);
    for (i = 0; i < d->own_count; i++) {
        x[i] = number_of(w->id, w->n, d->own_id[i]);
    }
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    for (i = 0; i < d->ghost_count; i++) {
        CHECK(x[d->own_count + i] == number_of(w->id, w->n, d->ghost_id[i]));
    }
    CHECK_INT(dpar_points_free(p), DPAR_OK);
}

static void move_mesh(dpar_comm *c, mesh *w, int turn, uint64_t *seed, int *lower, int *higher)
{
    int holder[MOST], element_holder[ELEMENTS];
    dpar_points_migration *to = NULL;
    dpar_why why;
    piece p;
    deal(holder, w->n, c->size, !w->named, seed);
    deal(element_holder, w->m, c->size, !w->named, seed);
    hold(w, c->rank, holder, element_holder, &p);
    why.text[0] = 0;
    CHECK_INT(dpar_points_migration_make(c, &p.d, &to, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    if (to == NULL) {
        return;
    }
    if (w->by == BY_ELEMENTS) {
        int i, owner[MOST];
        memcpy(owner, w->owner, sizeof owner);
        learn_owners(c, w, holder, to, lower, higher);
        for (i = 0; turn > 0 && i < w->n; i++) { /* however they were distributed */
            CHECK(w->alone[i] || owner[i] == w->owner[i]);
        }
    }
    check_lists(c, w, to);
    check_corners(c, w, to);
    check_values(w, &p, to);
    check_plan(c, w, to);
    CHECK_INT(dpar_points_migration_free(to), DPAR_OK);
}

static void movements(dpar_comm *c, uint64_t seed)
{
    int round, turn, lower = 0, higher = 0;
    mesh w;
    for (round = 0; round < 40; round++) {
        make_mesh(&w, c->size, &seed);
        for (turn = 0; turn < 2; turn++) {
            move_mesh(c, &w, turn, &seed, &lower, &higher);
        }
    }
    CHECK(c->size == 1 || (lower > 0 && higher > 0)); /* no rank is preferred */
}

static void not_moved(dpar_comm *c, const dpar_points_migration_desc *d, dpar_status wrong,
                      const char *word)
{
    dpar_points_migration *to = NULL;
    dpar_why why;
    const dpar_status got = dpar_points_migration_make(c, d, &to, &why);
    CHECK_INT(got, wrong);
    CHECK(to == NULL && strstr(why.text, word) != NULL);
    if (got != wrong || strstr(why.text, word) == NULL) {
        printf("    \"%s\", not \"%s\"\n", why.text, word);
    }
}

static void wrong_pieces(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    const int64_t id[2] = {c->rank * 2, c->rank * 2 + 1}, twice[2] = {0, 0};
    const int64_t corner[2] = {0, 1}, nobody[2] = {0, 1000};
    const int32_t owner[2] = {0, c->size - 1}, none[2] = {0, c->size};
    dpar_points_migration_desc right, d;
    dpar_points_migration *to = NULL;
    dpar_why why;
    memset(&right, 0, sizeof right);
    right.point_count = 2;
    right.id = id;
    right.owner = owner;
    right.element_count = 1;
    right.corner_count = 2;
    right.corner = corner;
    d = right;
    d.owner = last ? none : owner;
    not_moved(c, &d, DPAR_E_ARG, "point 1: owner ");
    d = right;
    d.element_owner = last ? none + 1 : owner;
    not_moved(c, &d, DPAR_E_ARG, "element 0: owner ");
    d = right;
    d.owner = NULL;
    not_moved(c, &d, DPAR_E_ARG, "neither owner nor element_owner");
    d = right;
    d.corner = last ? nobody : corner;
    not_moved(c, &d, DPAR_E_ARG, "id 1000");
    d = right;
    d.id = last ? twice : id;
    not_moved(c, &d, DPAR_E_ARG, "id 0 ");
    d = right;
    d.corner_count = last ? 0 : 2;
    not_moved(c, &d, DPAR_E_ARG, "corner_count 0");
    d = right;
    d.point_count = last ? -1 : 2;
    not_moved(c, &d, DPAR_E_ARG, "point_count -1");
    d = right;
    d.element_count = last ? INT64_C(1) << 31 : 1;
    not_moved(c, &d, DPAR_E_RANGE, "are more than 2^31 - 1 ids");
    if (c->size > 1) {
        d = right;
        d.owner = last ? NULL : owner;
        not_moved(c, &d, DPAR_E_MISMATCH, "owner is NULL on some ranks");
        d = right;
        d.id = last ? NULL : id;
        not_moved(c, &d, DPAR_E_MISMATCH, "id is NULL on some ranks");
        d = right;
        d.corner_count = last ? 1 : 2;
        not_moved(c, &d, DPAR_E_MISMATCH, "elements have 1 corners on one rank, 2 on another");
    }
    CHECK_INT(dpar_points_migration_make(c, &right, last ? NULL : &to, &why), DPAR_E_ARG);
    CHECK(to == NULL && strstr(why.text, "moved is NULL") != NULL);
    CHECK_INT(dpar_points_migration_make(NULL, &right, NULL, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_points_migration_free(NULL), DPAR_OK);
}

static int each(dpar_comm *c, void *arg)
{
    (void)arg;
    movements(c, 54321);
    wrong_pieces(c);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 6, 4, NULL);
}
