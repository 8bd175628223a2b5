/* SPDX-License-Identifier: MIT-0 */
/* moments: trains with 8-bit moments on real ranks (ZeRO-1, 2 and 3 of fsdp, ZeRO-1 on a ddp). The
 * weights must have the same bits on any number of ranks, and after a load on one rank of what all
 * ranks saved.
 *
 *   moments [processes|threads] [ranks]   without arguments: both, 1 to 4 ranks
 *   mpirun -np 4 moments                  built with -DUSE_MPI */
#include "dpar_train.h"
#include "optimizers.h"
#include "rank_program.h"

enum { UNITS = 3, N = 2000, STEPS = 5, BLOCKS = 8 + UNITS };
static const int64_t count[UNITS] = {300, 1100, 600}; /* N together */

/* Returns the gradient of element e, which rank 0 has in this step; the other ranks have 0. */
static float number(int step, int64_t e)
{
    return (float)(scrambled((uint32_t)step, e) % 255u) / 64.0f - 2.0f;
}

/* What all ranks know of an fsdp's state. */
typedef struct saved {
    unsigned char *all[DPAR_FSDP_ARRAY_COUNT][UNITS];
    int64_t bytes[DPAR_FSDP_ARRAY_COUNT][UNITS], each[DPAR_FSDP_ARRAY_COUNT];
} saved;

static dpar_status read_saved(void *ctx, int32_t array, int32_t u, int32_t rank, int64_t first,
                              int64_t n, void *to)
{
    const saved *s = (const saved *)ctx;
    CHECK((first + n) * s->each[array] <= s->bytes[array][u]);
    memcpy(to, s->all[array][u] + rank * s->bytes[array][u] + first * s->each[array],
           (size_t)(n * s->each[array]));
    return DPAR_OK;
}

static dpar_fsdp *opened(dpar_comm *c, int32_t zero)
{
    dpar_fsdp_desc desc;
    dpar_fsdp_sizes sizes;
    dpar_fsdp *f = NULL;
    dpar_why why;
    int64_t shards = 0;
    memset(&desc, 0, sizeof desc);
    desc.units = UNITS;
    desc.zero = zero;
    desc.count = count;
    desc.sum = 1;
    desc.optimizer = adamw();
    desc.optimizer.moment_type = DPAR_F8;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &desc, &why), DPAR_OK);
    for (int32_t u = 0; u < UNITS; u++) {
        shards += ((count[u] + c->size - 1) / c->size + 255) / 256;
    }
    CHECK_INT(sizes.moments, 2 * 260 * shards);
    CHECK_INT(dpar_fsdp_make(c, &desc, &f, &why), DPAR_OK);
    return f;
}

/* Takes a step, in which rank 0 has all gradients. */
static void step(dpar_comm *c, dpar_fsdp *f, int t)
{
    int64_t first = N;
    dpar_fsdp_zero(f);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
    for (int32_t u = UNITS - 1; u >= 0; u--) {
        float *g;
        first -= count[u];
        CHECK_INT(dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        g = (float *)dpar_fsdp_gradient(f, u, NULL);
        for (int64_t i = 0; i < count[u] && c->rank == 0; i++) {
            g[i] += number(t, first + i);
        }
        CHECK_INT(dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_ready(f, u), DPAR_OK);
    }
    CHECK_INT(dpar_fsdp_end(f), DPAR_OK);
    CHECK_INT(dpar_fsdp_step(f, 0.01, 1.0), DPAR_OK);
}

/* Copies all weights. */
static void weights(dpar_fsdp *f, float *w)
{
    for (int32_t u = 0; u < UNITS; w += count[u++]) {
        CHECK_INT(dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
        memcpy(w, dpar_fsdp_weight(f, u), (size_t)count[u] * 4);
        CHECK_INT(dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
    }
}

/* Trains on one rank by dpar_optimizer_step. The units begin at multiples of 256 elements. */
static void train_alone(float *w, int steps, int padded)
{
    float g[N];
    unsigned char *m = (unsigned char *)calloc(BLOCKS, 260),
                  *v = (unsigned char *)calloc(BLOCKS, 260);
    dpar_optimizer o = adamw();
    dpar_optimizer_piece p;
    o.moment_type = DPAR_F8;
    memset(&p, 0, sizeof p);
    p.weight_type = p.gradient_type = DPAR_F32;
    for (int t = 1; t <= steps; t++) {
        int64_t first = 0, block = 0;
        for (int64_t e = 0; e < N; e++) {
            g[e] = number(t, e);
        }
        for (int32_t u = 0; u < (padded ? UNITS : 1); u++) {
            p.weight = w + first;
            p.gradient = g + first;
            p.count = padded ? count[u] : N;
            p.index = (uint64_t)block * 256;
            p.m = m + block * 260;
            p.v = v + block * 260;
            CHECK_INT(dpar_optimizer_step(&o, &p, t, 0.01, 1.0), DPAR_OK);
            first += p.count;
            block += (p.count + 255) / 256;
        }
    }
    free(m);
    free(v);
}

static void shards(dpar_comm *c, int32_t zero)
{
    float want[N], got[N];
    dpar_comm *self = NULL;
    dpar_fsdp *f = opened(c, zero), *one;
    saved s;
    dpar_why why;
    memset(&s, 0, sizeof s);
    memset(want, 0, sizeof want);
    for (int t = 1; t < STEPS; t++) {
        step(c, f, t);
    }
    for (int32_t array = 0; array < DPAR_FSDP_ARRAY_COUNT; array++) {
        for (int32_t u = 0; u < UNITS; u++) {
            int64_t n;
            int32_t type = 0;
            void *at = dpar_fsdp_state(f, array, u, &n, &type);
            s.each[array] = dpar_type_bytes(type);
            s.bytes[array][u] = n * s.each[array];
            s.all[array][u] = (unsigned char *)malloc((size_t)(s.bytes[array][u] * c->size + 1));
            CHECK_INT(dpar_all_gather(c, at, s.all[array][u], s.bytes[array][u], DPAR_U8, NULL),
                      DPAR_OK);
        }
    }
    CHECK_INT(dpar_comm_split(c, c->rank, 0, &self), DPAR_OK);
    one = opened(self, zero);
    CHECK_INT(dpar_fsdp_load(one, c->size, STEPS - 1, read_saved, &s, &why), DPAR_OK);
    step(self, one, STEPS);
    step(c, f, STEPS);
    train_alone(want, STEPS, 1);
    weights(f, got);
    CHECK(memcmp(got, want, sizeof want) == 0);
    memset(got, 0, sizeof got);
    for (int32_t u = 0, first = 0; u < UNITS; first += (int32_t)count[u++]) {
        CHECK_INT(dpar_fsdp_unshard(one, u, DPAR_ACTION_FORWARD), DPAR_OK);
        memcpy(got + first, dpar_fsdp_weight(one, u), (size_t)count[u] * 4);
        CHECK_INT(dpar_fsdp_reshard(one, u, DPAR_ACTION_FORWARD), DPAR_OK);
    }
    CHECK(memcmp(got, want, sizeof want) == 0);
    CHECK_INT(dpar_fsdp_free(one), DPAR_OK);
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    CHECK_INT(dpar_comm_free(self), DPAR_OK);
    for (int32_t array = 0; array < DPAR_FSDP_ARRAY_COUNT; array++) {
        for (int32_t u = 0; u < UNITS; u++) {
            free(s.all[array][u]);
        }
    }
}

/* ZeRO-1 on one flat array with a group that begins and ends inside of blocks. The group has the
 * optimizer's numbers, so that only its place matters. */
static void flat(dpar_comm *c, int groups)
{
    float *g = NULL, *w = NULL, want[N];
    const int64_t n = N;
    dpar_optimizer o = adamw();
    dpar_zero1_group group;
    dpar_ddp_desc desc;
    dpar_zero1_desc zero;
    dpar_ddp *ddp = NULL;
    dpar_zero1 *z = NULL;
    dpar_why why;
    int64_t first = 0, bytes = 0;
    int32_t type = 0;
    int wrong = 0;
    memset(&desc, 0, sizeof desc);
    memset(&zero, 0, sizeof zero);
    memset(&group, 0, sizeof group);
    memset(want, 0, sizeof want);
    o.moment_type = DPAR_F8;
    group.first = 333;
    group.count = 700;
    group.numbers.decay = o.decay;
    CHECK_INT(dpar_comm_alloc(c, n * 4, (void **)&g), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, n * 4, (void **)&w), DPAR_OK);
    desc.params = 1;
    desc.count = &n;
    desc.type = DPAR_F32;
    desc.gradients = g;
    zero.weights = w;
    zero.optimizer = &o;
    zero.group = &group;
    zero.groups = groups;
    CHECK_INT(dpar_ddp_make(c, &desc, &ddp, &why), DPAR_OK);
    CHECK_INT(dpar_zero1_make(ddp, &zero, &z, &why), DPAR_OK);
    CHECK(dpar_zero1_state(z, 1, &first, &bytes, &type) != NULL);
    CHECK_INT(type, DPAR_F8);
    CHECK_INT(bytes % 260, 0);
    CHECK_INT(first % 260, 0);
    for (int t = 1; t <= STEPS; t++) {
        for (int64_t i = 0; i < N; i++) { /* all ranks have the same, so the average is exact */
            g[i] = number(t, i);
        }
        CHECK_INT(dpar_zero1_step(z, 0.01, 0.0), DPAR_OK);
    }
    train_alone(want, STEPS, 0);
    for (int64_t i = 0; i < N;
         i++) { /* with the group, moments in its first and last block differ */
        wrong += groups == 0 ? w[i] != want[i] : fabsf(w[i] - want[i]) > 0.01f * STEPS;
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(dpar_zero1_free(z), DPAR_OK);
    CHECK_INT(dpar_ddp_free(ddp), DPAR_OK);
    dpar_comm_release(c, g);
    dpar_comm_release(c, w);
}

static int everything(dpar_comm *c, void *arg)
{
    (void)arg;
    for (int32_t zero = 1; zero <= 3; zero++) {
        shards(c, zero);
    }
    flat(c, 0);
    flat(c, 1);
    return failures();
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, 4, 3, NULL);
}
