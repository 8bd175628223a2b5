/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_grid_check_step and dpar_grid_poison over real ranks: codes without a fault, for which
 * they must find nothing, and codes with a planted fault, whose array, cell and sub-step are known.
 * A ring of N cells per rank, three fields with a halo of 4 and steps of radius 1.
 *     ./grid_check [processes|threads] [ranks]     without arguments: both, 1 to 4 and 1 to 3 */
#include "dpar_debug.h"
#include "rank_program.h"

enum { N = 9, HALO = 4, STEPS = 4, PAD = 4, FIELDS = 3, SIZE = PAD + HALO + N + HALO + PAD };

/* The faults, each in one place of the code. */
enum {
    NONE,
    TOO_MANY,        /* computes sub-step 4 */
    NO_EXCHANGE,     /* begins again at sub-step 0 without exchanging */
    NO_SHRINKING,    /* computes the cells of sub-step 0 in each one */
    TOO_FEW,         /* leaves out the last cell of sub-step 2 */
    TOO_WIDE,        /* reads two cells to each side */
    FIELD_FORGOTTEN, /* exchanges the first two fields only, from the second exchange on */
    NO_REFLECTING    /* the halo cells at a mirror are not filled again */
};

typedef struct code {
    dpar_grid *g;
    int type, fault, poisons, exchanges, mirrors;
    double before[FIELDS][SIZE], after[FIELDS][SIZE]; /* as floats if type is DPAR_F32 */
    void *now[FIELDS], *next[FIELDS];
} code;

static double get(const code *k, const void *u, int64_t x)
{
    return k->type == DPAR_F64 ? ((const double *)u)[x] : (double)((const float *)u)[x];
}

static void put(const code *k, void *u, int64_t x, double v)
{
    if (k->type == DPAR_F64) {
        ((double *)u)[x] = v;
    } else {
        ((float *)u)[x] = (float)v;
    }
}

/* The next value of a field: its own neighbours, and the next field at the same cell. */
static void compute(const code *k, int f, int64_t x)
{
    const int reach = k->fault == TOO_WIDE && f == 1 ? 2 : 1, other = (f + 1) % FIELDS;
    double v;
    if (k->type == DPAR_F64) {
        const double *u = (const double *)k->now[f], *w = (const double *)k->now[other];
        v = 0.25 * (u[x - reach] + u[x + reach]) + 0.25 * u[x] + 0.25 * w[x + 1];
        put(k, k->next[f], x, v);
    } else {
        const float *u = (const float *)k->now[f], *w = (const float *)k->now[other];
        const float s = 0.25f * (u[x - reach] + u[x + reach]) + 0.25f * u[x] + 0.25f * w[x + 1];
        ((float *)k->next[f])[x] = s;
    }
}

static dpar_status sub_step(code *k, int exchange, int j, dpar_why *why)
{
    dpar_status status;
    dpar_box box;
    void *swap;
    const int fault_now = exchange == k->exchanges - 1;
    if (!dpar_grid_valid(k->g, j, &box) && k->fault == TOO_MANY) {
        (void)dpar_grid_valid(k->g, j - 1, &box);
    }
    if (k->fault == NO_SHRINKING) {
        (void)dpar_grid_valid(k->g, 0, &box);
    }
    if (k->poisons) {
        CHECK_INT(dpar_grid_poison(k->g, k->next, FIELDS, why), DPAR_OK);
    }
    for (int f = 0; f < FIELDS; f++) {
        const int less = k->fault == TOO_FEW && fault_now && f == 2 && j == 2;
        for (int64_t x = box.lo[0]; x < box.hi[0] - less; x++) {
            compute(k, f, x);
        }
    }
    status = dpar_grid_check_step(k->g, k->next, FIELDS, j, why);
    if (k->mirrors && k->fault != NO_REFLECTING) {
        CHECK_INT(dpar_grid_reflect(k->g, k->next, FIELDS), DPAR_OK);
    }
    for (int f = 0; f < FIELDS; f++) {
        swap = k->now[f];
        k->now[f] = k->next[f];
        k->next[f] = swap;
    }
    return status;
}

/* Runs the code until an error. `at` receives the sub-step. */
static dpar_status run(code *k, int *at, dpar_why *why)
{
    dpar_status status = DPAR_OK;
    for (int i = 0; i < k->exchanges; i++) {
        const int fields = k->fault == FIELD_FORGOTTEN && i > 0 ? 2 : FIELDS;
        if (k->fault != NO_EXCHANGE || i == 0) {
            CHECK_INT(dpar_grid_exchange_many(k->g, k->now, fields, 0), DPAR_OK);
        }
        for (*at = 0; *at < STEPS + (k->fault == TOO_MANY); ++*at) {
            status = sub_step(k, i, *at, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return status;
}

static void begin(code *k, dpar_comm *c, int check)
{
    dpar_grid_desc d;
    dpar_why why;
    memset(&d, 0, sizeof d);
    d.dims = 1;
    d.cells[0] = (int64_t)N * c->size;
    d.periodic[0] = !k->mirrors;
    d.mirror_low[0] = k->mirrors ? DPAR_GRID_MIRROR_FACE : 0;
    d.halo = HALO;
    d.steps = STEPS;
    d.check = check;
    d.type = k->type;
    CHECK_INT(dpar_grid_make(c, &d, &k->g, &why), DPAR_OK);
    for (int f = 0; f < FIELDS; f++) {
        const int at = (PAD + HALO) * (k->type == DPAR_F64 ? 8 : 4);
        k->now[f] = (char *)k->before[f] + at;
        k->next[f] = (char *)k->after[f] + at;
        for (int x = -HALO - PAD; x < N + HALO + PAD; x++) {
            put(k, k->now[f], x, 1.0 + f + 0.01 * (x + N * c->rank));
            put(k, k->next[f], x, 2.0 + f);
        }
    }
}

/* Runs a code with a fault. at, text: the sub-step in which it is found, and what the message says.
 */
static void faulty(dpar_comm *c, int fault, int type, int poisons, int at, const char *text)
{
    code *k = (code *)zeroed((int64_t)sizeof *k);
    char own[240];
    dpar_why why;
    int found = -1;
    k->fault = fault;
    k->mirrors = fault == NO_REFLECTING;
    k->type = type;
    k->poisons = poisons;
    k->exchanges = 2;
    begin(k, c, 1);
    CHECK_INT(run(k, &found, &why), DPAR_E_ARG);
    CHECK_INT(found, at);
    snprintf(own, sizeof own, "%s", text);
    if (strstr(why.text, own) == NULL) {
        CHECK(0);
        printf("    fault %d: '%s' is not in '%s'\n", fault, own, why.text);
    }
    CHECK_INT(dpar_grid_free(k->g), DPAR_OK);
    free(k);
}

/* A code without a fault: nothing is found, and the values are those without a check. */
static void faultless(dpar_comm *c, int type, int poisons, int mirrors)
{
    code *k = (code *)zeroed((int64_t)sizeof *k), *plain = (code *)zeroed((int64_t)sizeof *plain);
    dpar_why why;
    int at;
    k->type = plain->type = type;
    k->poisons = poisons;
    plain->poisons = 1; /* does nothing without desc.check */
    k->mirrors = plain->mirrors = mirrors;
    k->exchanges = plain->exchanges = 3;
    begin(k, c, 1);
    begin(plain, c, 0);
    CHECK_INT(run(k, &at, &why), DPAR_OK);
    CHECK_INT(run(plain, &at, &why), DPAR_OK);
    for (int f = 0; f < FIELDS; f++) {
        const int bytes = type == DPAR_F64 ? 8 : 4;
        CHECK(memcmp(k->now[f], plain->now[f], (size_t)(N * bytes)) == 0);
        CHECK(get(k, k->now[f], 3) > 0.5 && get(k, k->now[f], 3) < 5);
    }
    CHECK_INT(dpar_grid_free(plain->g), DPAR_OK);
    CHECK_INT(dpar_grid_free(k->g), DPAR_OK);
    free(plain);
    free(k);
}

/* Writes "(x)", the cell with index x of this rank's loops. */
static const char *cell(const dpar_comm *c, int64_t x, char *text)
{
    const int64_t all = (int64_t)N * c->size;
    sprintf(text, "(%lld)", (long long)((x + N * c->rank + all) % all));
    return text;
}

static void faults(dpar_comm *c)
{
    char a[24], b[24], text[240];
    /* each rank has the fault, and reports its own */
    faulty(c, TOO_MANY, DPAR_F64, 0, STEPS, "sub-step 4 is one too many, because desc.steps is 4;");
    faulty(c, TOO_MANY, DPAR_F32, 1, STEPS, "set desc.steps to 5 and the halo to 5 times");
    for (int poisons = 0; poisons < 2; poisons++) {
        snprintf(text, sizeof text, "array 0, cell %s: sub-step 0 has read cell (", cell(c, -3, a));
        faulty(c, NO_EXCHANGE, DPAR_F64, poisons, 0, text);
        faulty(c, NO_EXCHANGE, DPAR_F64, poisons, 0, "stale since sub-step 3; exchange or reflect");
        snprintf(text, sizeof text,
                 "array 0, cell %s: sub-step 1 has read cell %s of array 0, stale since sub-step "
                 "0; compute only the cells of dpar_grid_valid",
                 cell(c, -3, a), cell(c, -4, b));
        faulty(c, NO_SHRINKING, DPAR_F64, poisons, 1, text);
        snprintf(text, sizeof text,
                 "array 1, cell %s: sub-step 1 has read cell %s of array 1, stale since sub-step "
                 "0; a radius of 2 needs a halo of 8",
                 cell(c, -2, a), cell(c, -4, b));
        faulty(c, TOO_WIDE, DPAR_F64, poisons, 1, text);
        snprintf(text, sizeof text,
                 "array 1, cell %s: sub-step 0 has read cell %s of array 2, stale since sub-step 3",
                 cell(c, -3, a), cell(c, -2, b));
        faulty(c, FIELD_FORGOTTEN, DPAR_F64, poisons, 0, text);
        faulty(c, NO_EXCHANGE, DPAR_F32, poisons, 0, "has read cell (unknown) of array");
        faulty(c, NO_SHRINKING, DPAR_F32, poisons, 1, "array 0, cell");
        faulty(c, TOO_WIDE, DPAR_F32, poisons, 1, "array 1, cell");
    }
    faulty(c, NO_REFLECTING, DPAR_F64, 1, 1,
           "array 0, cell (0): sub-step 1 has read cell (-1) of array 0, stale since sub-step 0; "
           "exchange or reflect that array before");
    snprintf(text, sizeof text, "array 2, cell %s: sub-step 2 has not computed it", cell(c, N, a));
    faulty(c, TOO_FEW, DPAR_F64, 1, 2, text);
    faulty(c, TOO_FEW, DPAR_F32, 1, 2, "array 2, cell");
}

/* A fault of the last rank only: all ranks fail, and the message names the rank. In two dims, with
 * two components, a wall, and faces. */
static void one_rank(dpar_comm *c)
{
    dpar_grid_desc d;
    dpar_grid_field f;
    dpar_grid *g;
    dpar_why why;
    dpar_box box;
    void *list[1];
    double *u;
    char text[100];
    memset(&d, 0, sizeof d);
    memset(&f, 0, sizeof f);
    d.dims = 2;
    d.cells[0] = 8 * c->size;
    d.cells[1] = 6;
    d.parts[0] = c->size;
    d.parts[1] = 1;
    d.halo = 2;
    d.steps = 2;
    d.check = 1;
    f.components = 2;
    f.location[1] = DPAR_HALO_AT_FACES;
    CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
    u = (double *)dpar_grid_array(g, DPAR_F64, &f);
    list[0] = u;
    u[-1] = 5; /* beyond a wall: never changed */
    CHECK_INT(dpar_grid_exchange(g, u), DPAR_OK);
    CHECK_INT(dpar_grid_check_step(g, list, 1, 0, &why), DPAR_OK);
    CHECK(u[-1] >= 5 && u[0] <= 0);
    CHECK_INT(dpar_grid_exchange(g, u), DPAR_OK);
    CHECK_INT(dpar_grid_poison(g, list, 1, &why), DPAR_OK);
    CHECK(u[-1] >= 5 && isnan(u[0]));
    CHECK(dpar_grid_valid(g, 0, &box));
    for (int64_t y = box.lo[0]; y < box.hi[0]; y++) {
        for (int64_t x = 0; x < 7 * 2; x++) { /* 6 cells have 7 faces */
            const int left_out = c->rank == c->size - 1 && y == 3 && x == 6 * 2 + 1;
            if (!left_out) {
                u[y * 2 * (7 + 4) + x] = 1;
            }
        }
    }
    CHECK_INT(dpar_grid_check_step(g, list, 1, 0, &why), DPAR_E_ARG);
    snprintf(text, sizeof text, "array 0, cell (%d, 6): sub-step 0 has not computed it",
             8 * (c->size - 1) + 3);
    CHECK(strstr(why.text, text) != NULL);
    snprintf(text, sizeof text, "rank %d: ", c->size - 1);
    CHECK(c->rank == c->size - 1 || strstr(why.text, text) == why.text);
    u[3 * 2 * (7 + 4) + 6 * 2 + 1] = (double)NAN; /* a NaN of the code */
    CHECK_INT(dpar_grid_check_step(g, list, 1, 0, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "it is NaN after sub-step 0") != NULL);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

static void refusals(dpar_comm *c)
{
    dpar_grid_desc d;
    dpar_grid *g;
    dpar_why why;
    int32_t numbers[8] = {0};
    void *list[1];
    memset(&d, 0, sizeof d);
    d.dims = 1;
    d.cells[0] = c->size;
    d.halo = 1;
    d.check = 1;
    d.type = DPAR_I32;
    CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
    list[0] = numbers + 1;
    CHECK_INT(dpar_grid_check_step(NULL, list, 1, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_grid_check_step(g, NULL, 1, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_grid_check_step(g, list, 0, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_grid_poison(g, NULL, 1, &why), DPAR_E_ARG);
    CHECK_INT(dpar_grid_poison(g, list, 1, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "of DPAR_F64 or DPAR_F32") != NULL);
    CHECK_INT(dpar_grid_check_step(g, list, 1, 0, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "array 0 is not an array") != NULL);
    CHECK(numbers[0] == 0 && numbers[1] == 0 && numbers[2] == 0);
    list[0] = NULL;
    CHECK_INT(dpar_grid_poison(g, list, 1, &why), DPAR_E_ARG);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    (void)arg;
    for (int i = 0; i < 8; i++) {
        faultless(c, i % 2 ? DPAR_F64 : DPAR_F32, i / 2 % 2, i / 4 % 2);
    }
    faults(c);
    one_rank(c);
    refusals(c);
    return all_right(c, failures(), began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 4, 3, NULL);
}
