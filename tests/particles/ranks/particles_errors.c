/* SPDX-License-Identifier: MIT-0 */
/* Tests that wrong descriptions and arguments of particles are refused: with a message, on all
 * ranks, and without waiting for a deadline.
 *     ./particles_errors [processes|threads] [ranks]  without arguments: both, 1 to 8 and 1 to 4 */
#include "dpar_particles.h"
#include "rank_program.h"

static void refuse(dpar_comm *c, const dpar_particles_desc *desc, int status, const char *text)
{
    dpar_particles *p = NULL;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_particles_make(c, desc, &p, &why), status);
    if (!strstr(why.text, text)) {
        CHECK(0);
        printf("    \"%s\" does not say \"%s\"\n", why.text, text);
    }
}

static void wrong_descriptions(dpar_comm *c)
{
    const double down[3] = {0.0, 2.0, 1.0}, outside[2] = {0.0, 2.0};
    dpar_particles_desc good = {0}, desc;
    good.dims = 2;
    good.high[0] = good.high[1] = 1.0;
    good.cutoff = 0.01;
    refuse(c, NULL, DPAR_E_ARG, "NULL");
    desc = good;
    desc.dims = 4;
    refuse(c, &desc, DPAR_E_ARG, "4 dims");
    desc = good;
    desc.high[1] = 0.0;
    refuse(c, &desc, DPAR_E_ARG, "dim 1 goes from low 0 to high 0");
    desc.high[1] = NAN;
    refuse(c, &desc, DPAR_E_ARG, "dim 1 goes from");
    desc = good;
    desc.periodic[0] = 2;
    refuse(c, &desc, DPAR_E_ARG, "periodic[0] is 2");
    desc = good;
    desc.cutoff = -1.0;
    refuse(c, &desc, DPAR_E_ARG, "cutoff -1");
    desc = good;
    desc.parts[0] = c->size + 1;
    desc.parts[1] = 1;
    refuse(c, &desc, DPAR_E_DIVIDE, "");
    desc = good;
    desc.cutoff = 1.5;
    desc.periodic[0] = 1;
    refuse(c, &desc, DPAR_E_ARG, "cutoff 1.5 is wider than block");
    desc = good;
    desc.parts[0] = c->size;
    desc.cuts[1] = outside;
    refuse(c, &desc, DPAR_E_ARG, "cuts[1] needs");
    desc.parts[1] = 1;
    refuse(c, &desc, DPAR_E_ARG, "cuts[1] goes from 0 to 2");
    if (c->size == 2) {
        desc.high[1] = 1.0;
        desc.cuts[1] = down;
        desc.parts[0] = 1;
        desc.parts[1] = 2;
        refuse(c, &desc, DPAR_E_ARG, "is cut at 2 and then at 1");
        desc = good;
        desc.cutoff = c->rank ? 0.01 : 0.02;
        refuse(c, &desc, DPAR_E_MISMATCH, "cutoff is 0.02 on rank 0, 0.01 on rank 1");
    }
}

/* Checks that the cutoff may be the width of a block, also if that is rounded. */
static void cutoff_of_a_block(dpar_comm *c)
{
    dpar_particles *p = NULL;
    dpar_particles_desc desc = {0};
    dpar_why why;
    int low;
    for (low = -4; low <= 4; low++) {
        desc.dims = 1;
        desc.low[0] = low;
        desc.high[0] = low + 2;
        desc.periodic[0] = 1;
        desc.cutoff = (desc.high[0] - desc.low[0]) / c->size;
        CHECK_INT(dpar_particles_make(c, &desc, &p, &why), DPAR_OK);
        CHECK_INT(dpar_particles_free(p), DPAR_OK);
        p = NULL;
        desc.cutoff *= 1.0 + 1e-12;
        refuse(c, &desc, DPAR_E_ARG, "is wider than block");
    }
}

static void wrong_calls(dpar_comm *c)
{
    dpar_particles_desc desc = {0};
    dpar_particles_arrays arrays = {0};
    dpar_particles_field field = {0}, other = {0};
    dpar_particles *p = NULL;
    double x[8][3] = {{0}}, f[8] = {0};
    const double far[1] = {1e300}, nan[1] = {NAN};
    dpar_why why;
    desc.dims = 1;
    desc.high[0] = 1.0;
    desc.periodic[0] = 1;
    CHECK_INT(dpar_particles_make(c, &desc, &p, &why), DPAR_OK);
    CHECK_INT(p->parts[0], c->size);
    CHECK_INT(dpar_particles_owner(p, far), -1);
    CHECK_INT(dpar_particles_owner(p, nan), -1);
    CHECK_INT(dpar_particles_owner(NULL, nan), -1);
    field.data = x;
    field.type = DPAR_F64;
    field.components = 3;
    arrays.capacity = 8;
    arrays.fields = &field;
    arrays.field_count = 1;
    arrays.position = field;
    CHECK_INT(dpar_particles_update(p, &field, 1), DPAR_OK); /* of no particles */
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_OK);
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_OK);
    CHECK_INT(dpar_particles_update(p, &field, 1), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "dpar_particles_ghosts first"));
    CHECK_INT(dpar_particles_reduce(p, &field, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_migrate(p, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_particles_ghosts(p, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_particles_migrate(NULL, &arrays), DPAR_E_ARG);
    arrays.count = 9;
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "9 particles in a capacity of 8"));
    arrays.count = 0;
    arrays.position.data = f;
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "none of the 1 fields"));
    arrays.position = field;
    arrays.position.type = DPAR_I32;
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_E_ARG);
    arrays.position = field;
    arrays.ghost_fields = 2;
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_E_ARG);
    arrays.ghost_fields = 0;
    arrays.field_count = 65;
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_E_ARG);
    arrays.field_count = 1;
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_OK);
    other.data = f;
    other.type = DPAR_U8;
    other.components = 8;
    CHECK_INT(dpar_particles_update(p, &other, 1), DPAR_OK);
    CHECK_INT(dpar_particles_update(NULL, &other, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_reduce(NULL, &other, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_test(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_particles_end(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_particles_free(p), DPAR_OK);
    CHECK_INT(dpar_particles_free(NULL), DPAR_OK);
}

/* A wrong argument on one rank: all ranks that wait for it fail with its message. */
static void wrong_on_one_rank(dpar_comm *c)
{
    static const char *const text[6] = {"but 1 to 64 are allowed",
                                        "field 0 is NULL, but there are",
                                        "field 0, the positions, has",
                                        "which must be 0, or at",
                                        "field 0 of type f8 cannot be added",
                                        "components of type"};
    static const int32_t types[6] = {DPAR_F64, DPAR_F64, DPAR_U8, DPAR_F64, DPAR_F8, 999};
    dpar_comm *sub[6] = {NULL};
    int k;
    for (k = 0; k < 6; k++) {
        const int wrong = c->size / 2;
        double x[30] = {0};
        dpar_particles_desc desc = {0};
        dpar_particles_arrays arrays = {0};
        dpar_particles_field field = {0};
        dpar_particles *p = NULL;
        dpar_status status;
        dpar_why why;
        char from[40];
        (void)snprintf(from, sizeof from, "(rank %d)", wrong);
        CHECK_INT(dpar_comm_split(c, 0, c->rank, &sub[k]), DPAR_OK);
        desc.dims = 1;
        desc.high[0] = 1.0;
        desc.periodic[0] = 1;
        CHECK_INT(dpar_particles_make(sub[k], &desc, &p, &why), DPAR_OK);
        field.data = x;
        field.type = DPAR_F64;
        x[0] = c->rank / (double)c->size; /* exactly on a face, so that there are ghosts */
        arrays.count = 1;
        arrays.capacity = 30;
        arrays.fields = &field;
        arrays.field_count = 1;
        arrays.position = field;
        CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_OK);
        CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_OK);
        CHECK_INT(dpar_barrier(c, NULL), DPAR_OK); /* all have their ghosts */
        if (c->rank == wrong) {
            field.data = k == 1 ? NULL : x;
            field.type = types[k];
            field.is_position = k == 2;
            field.stride = k == 3 ? 4 : 0;
        }
        status = k == 4 ? dpar_particles_reduce(p, &field, 1)
                        : dpar_particles_update(p, &field, k == 0 && c->rank == wrong ? 65 : 1);
        /* A rank that is no neighbour of the wrong one may have finished before. */
        CHECK(status == DPAR_E_ARG || (status == DPAR_OK && c->rank != wrong && c->size > 3));
        if (status == DPAR_OK) {
            status = dpar_barrier(sub[k], NULL);
        }
        CHECK_INT(status, DPAR_E_ARG);
        CHECK(strstr(sub[k]->why.text, text[k]) && strstr(sub[k]->why.text, from));
        CHECK_INT(dpar_particles_free(p), DPAR_E_ARG);
    }
    for (k = 0; k < 6; k++) {
        (void)dpar_comm_free(sub[k]);
    }
}

static int test(dpar_comm *c, void *arg)
{
    (void)arg;
    wrong_descriptions(c);
    cutoff_of_a_block(c);
    wrong_calls(c);
    wrong_on_one_rank(c);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, test, NULL, 8, 4, NULL);
}
