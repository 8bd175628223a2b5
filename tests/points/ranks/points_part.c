/* SPDX-License-Identifier: MIT-0 */
/* Tests partitions against brute force. Every rank knows the whole cloud that a seed makes and
 * computes what each rank must get. The cloud is distributed to the ranks in two different ways,
 * with the same result.
 *     ./points_part [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_points.h"
#include "rank_program.h"

enum { MOST = 60, RANKS = 8, PARTS = 10 };

typedef struct cloud {
    int dims, parts, n, weighted, named;
    double at[MOST][3];
    int64_t weight[MOST], id[MOST], key[MOST], largest;
    int part[MOST]; /* the expected result */
} cloud;

/* Returns a point's place on the curve by the header's definition. */
static int64_t place_of(const cloud *w, int i)
{
    const double side = w->dims == 2 ? 2147483648.0 : 2097152.0;
    double low[3] = {0, 0, 0}, high[3] = {0, 0, 0}, widest = 0;
    uint32_t cell[3] = {0, 0, 0};
    int d, k;
    for (d = 0; d < w->dims; d++) {
        low[d] = high[d] = w->at[0][d];
        for (k = 1; k < w->n; k++) {
            low[d] = w->at[k][d] < low[d] ? w->at[k][d] : low[d];
            high[d] = w->at[k][d] > high[d] ? w->at[k][d] : high[d];
        }
        widest = high[d] - low[d] > widest ? high[d] - low[d] : widest;
    }
    for (d = 0; d < w->dims; d++) {
        const double x = widest > 0 ? (w->at[i][d] - low[d]) / widest * side : 0;
        cell[d] = (uint32_t)(x < side - 1 ? x : side - 1);
    }
    return dpari_points_curve(w->dims, cell);
}

/* Returns 1 if point a comes before point b. */
static int comes_before(const cloud *w, int a, int b)
{
    return w->key[a] != w->key[b] ? w->key[a] < w->key[b] : w->id[a] < w->id[b];
}

static void make_cloud(cloud *w, int ranks, uint64_t *seed)
{
    const int kind = (int)lot_below(seed, 4); /* anywhere, few places, a line, one place */
    int64_t whole = 0;
    int i, k, d;
    memset(w, 0, sizeof *w);
    w->dims = 2 + (int)lot_below(seed, 2);
    w->parts = lot_below(seed, 2) ? 0 : 1 + (int)lot_below(seed, PARTS);
    w->n = (int)lot_below(seed, MOST + 1);
    w->weighted = (int)lot_below(seed, 2);
    w->named = (int)lot_below(seed, 3);
    for (i = 0; i < w->n; i++) {
        for (d = 0; d < w->dims; d++) {
            const double any = (double)(lot_next(seed) >> 11) / 9007199254740992.0;
            w->at[i][d] = kind == 0   ? any * 8 - 3
                          : kind == 1 ? (double)lot_below(seed, 3) * 0.25
                          : kind == 2 ? (d == 0 ? any : 0.5)
                                      : -7.5;
        }
        /* any ids of 64 bits, each once: the lowest digits are the point's number */
        w->id[i] = w->named == 2   ? (i % 2 ? INT64_MAX - i : INT64_MIN + i) /* the last ones */
                   : w->named == 1 ? (int64_t)lot_next(seed) / MOST * MOST + i
                                   : i;
        w->weight[i] = !w->weighted ? 1 : lot_below(seed, 4) == 0 ? 0 : lot_below(seed, 65);
        if (i == 0 && w->weighted) {
            w->weight[i] = 64; /* the largest is a power of 2, so that no weight is rounded */
        }
        whole += w->weight[i];
        w->largest = w->weight[i] > w->largest ? w->weight[i] : w->largest;
    }
    for (i = 0; i < w->n; i++) {
        w->key[i] = place_of(w, i);
    }
    for (i = 0; i < w->n; i++) {
        const int64_t parts = w->parts > 0 ? w->parts : ranks;
        int64_t before = 0;
        for (k = 0; k < w->n; k++) {
            before += comes_before(w, k, i) ? w->weight[k] : 0;
        }
        w->part[i] = (int)((2 * before + w->weight[i]) * parts / (2 * whole));
        w->part[i] = w->part[i] < parts ? w->part[i] : (int)parts - 1;
    }
}

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

static void cut_cloud(dpar_comm *c, const cloud *w, const int *holder)
{
    double at[MOST * 3], weight[MOST];
    int64_t id[MOST], key[MOST], total[PARTS] = {0}, whole = 0;
    int32_t owner[MOST];
    dpar_points_partition_desc d;
    dpar_why why;
    int i, k, of[MOST], n = 0;
    const int parts = w->parts > 0 ? w->parts : c->size;
    memset(&d, 0, sizeof d);
    for (i = 0; i < w->n; i++) {
        if (holder[i] == c->rank) {
            for (k = 0; k < w->dims; k++) {
                at[n * w->dims + k] = w->at[i][k];
            }
            weight[n] = (double)w->weight[i] * 0.375;
            id[n] = w->id[i];
            of[n++] = i;
        }
    }
    d.dims = w->dims;
    d.parts = w->parts;
    d.count = n;
    d.position = n > 0 ? at : NULL;
    d.weight = w->weighted ? weight : NULL;
    d.id = w->named ? id : NULL;
    why.text[0] = 0;
    CHECK_INT(dpar_points_partition(c, &d, n > 0 ? owner : NULL, key, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    for (i = 0; i < n; i++) {
        CHECK_INT(owner[i], w->part[of[i]]);
        CHECK_INT(key[i], w->key[of[i]]);
    }
    for (i = 0; i < w->n; i++) { /* what the header promises of the weights */
        total[w->part[i]] += w->weight[i];
        whole += w->weight[i];
    }
    for (i = 0; i < parts && w->n > 0; i++) {
        CHECK(llabs((long long)(total[i] * parts - whole)) < (long long)(w->largest * parts));
    }
}

static void partitions(dpar_comm *c, uint64_t seed)
{
    int round, turn, holder[MOST];
    cloud w;
    for (round = 0; round < 60; round++) {
        make_cloud(&w, c->size, &seed);
        for (turn = 0; turn < 2; turn++) {
            deal(holder, w.n, c->size, !w.named, &seed);
            cut_cloud(c, &w, holder);
        }
    }
}

/* Checks many points in each part: the weights are within 1 %, and parts are compact. */
static void balance(dpar_comm *c)
{
    enum { EACH = 4000 };
    double *at = (double *)zeroed(EACH * 3 * 8), *weight = (double *)zeroed(EACH * 8);
    double total[RANKS] = {0}, whole = 0;
    int32_t *owner = (int32_t *)zeroed(EACH * 4);
    uint64_t seed = 77 + (uint64_t)c->rank;
    dpar_points_partition_desc d;
    dpar_why why;
    int64_t i;
    memset(&d, 0, sizeof d);
    for (i = 0; i < EACH; i++) {
        int k;
        for (k = 0; k < 3; k++) { /* denser towards a corner */
            const double x = (double)(lot_next(&seed) >> 11) / 9007199254740992.0;
            at[3 * i + k] = x * x;
        }
        weight[i] = 1.0 + 3.0 * at[3 * i];
    }
    d.dims = 3;
    d.count = EACH;
    d.position = at;
    d.weight = weight;
    CHECK_INT(dpar_points_partition(c, &d, owner, NULL, &why), DPAR_OK);
    for (i = 0; i < EACH; i++) {
        total[owner[i]] += weight[i];
        whole += weight[i];
    }
    CHECK_INT(dpar_all_reduce(c, total, total, c->size, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
    whole = dpar_sum(c, whole);
    for (i = 0; i < c->size; i++) {
        CHECK_NEAR(total[i] * c->size / whole, 1.0, 0.01);
    }
    free(at), free(weight), free(owner);
}

/* Checks that all ranks report what the last one passes wrongly. */
static void refused(dpar_comm *c, const dpar_points_partition_desc *d, dpar_status wrong,
                    const char *word)
{
    int32_t owner[4];
    dpar_why why;
    const dpar_status got = dpar_points_partition(c, d, owner, NULL, &why);
    CHECK_INT(got, wrong);
    CHECK(strstr(why.text, word) != NULL);
    if (got != wrong || strstr(why.text, word) == NULL) {
        printf("    \"%s\", not \"%s\"\n", why.text, word);
    }
}

static void wrong_clouds(dpar_comm *c)
{
    const double at[4] = {0.0, 1.0, 2.0, (double)NAN}, weight[2] = {0.0, -1.0}, none[2] = {0, 0};
    const int last = c->rank == c->size - 1;
    dpar_points_partition_desc right, d;
    memset(&right, 0, sizeof right);
    right.dims = 2;
    right.count = 1;
    right.position = at;
    d = right;
    d.count += last;
    refused(c, &d, DPAR_E_ARG, "point 1: coordinate 1 is not finite");
    d = right;
    d.weight = last ? weight + 1 : NULL;
    refused(c, &d, DPAR_E_ARG, "point 0: its weight is negative");
    d = right;
    d.weight = none;
    refused(c, &d, DPAR_E_ARG, "are 0");
    d = right;
    d.dims = last ? 4 : 2;
    refused(c, &d, DPAR_E_ARG, "desc.dims is 4");
    d = right;
    d.parts = last ? -1 : 0;
    refused(c, &d, DPAR_E_ARG, "parts -1 is out of range");
    d = right;
    d.position = last ? NULL : at;
    refused(c, &d, DPAR_E_ARG, "position or owner is NULL");
    d = right;
    d.count = last ? INT64_C(1) << 31 : 1;
    refused(c, &d, DPAR_E_RANGE, "at most 2^31 - 1");
    if (c->size > 1) {
        d = right;
        d.parts = last ? 3 : 2;
        refused(c, &d, DPAR_E_MISMATCH, "parts is ");
    }
    CHECK_INT(dpar_points_partition(NULL, &right, NULL, NULL, NULL), DPAR_E_ARG);
}

static int each(dpar_comm *c, void *arg)
{
    (void)arg;
    partitions(c, 12345);
    balance(c);
    wrong_clouds(c);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 6, 4, NULL);
}
