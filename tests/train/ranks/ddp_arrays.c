/* SPDX-License-Identifier: MIT-0 */
/* ddp_arrays: tests ddp on the caller's gradients on real ranks, in one flat array or in an array
 * for each parameter, with many elements, in registered memory and in ordinary memory. Gradients
 * are small whole numbers, whose sums are exact, so that an average is one correctly rounded
 * division in F64 and F32.
 *
 *   ddp_arrays [processes|threads] [ranks]     without arguments: both, 1 to 4 ranks
 *   mpirun -np 4 ddp_arrays                    built with -DUSE_MPI */
#include "dpar_train.h"
#include "rank_program.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define dpar_ddp_ready(d, i) (dpar_status) ON_DEVICE(dpar_ddp_ready(d, i))
#define dpar_ddp_end(d) (dpar_status) ON_DEVICE(dpar_ddp_end(d))
#define dpar_ddp_free(d) (dpar_status) ON_DEVICE(dpar_ddp_free(d))
enum { ELSEWHERE = 1 };
#else
enum { ELSEWHERE = 0 };
#endif

enum { CASES = 60, MOST = 24, MIB = 1 << 20 };

/* Returns the gradient of element e on rank r in a step. */
static int number(int r, int step, int64_t e)
{
    return (int)(scrambled((uint32_t)(r * 31 + step), e) % 7u) - 3;
}

static double average(int ranks, int step, int64_t e)
{
    double sum = 0.0;
    int r;
    for (r = 0; r < ranks; r++) {
        sum += number(r, step, e);
    }
    return sum / ranks;
}

/* Returns the largest relative error of an average: half a unit of the last place, or 0 if one
 * division in the type gives the nearest number, to which the comparison rounds too. */
static double rounding(int32_t type)
{
    return type == DPAR_F64 ? 0.0 : type == DPAR_F32 ? 6e-8 : type == DPAR_F16 ? 4.9e-4 : 3.95e-3;
}

static int64_t sent(const dpar_comm *c)
{
    return c->sent[DPAR_CALL_ALL_REDUCE] + c->sent[DPAR_CALL_REDUCE] +
           c->sent[DPAR_CALL_REDUCE_SCATTER];
}

static void *memory_of(dpar_comm *c, int registered, int64_t bytes)
{
    void *memory = NULL;
    if (!registered && !ELSEWHERE) {
        return zeroed(bytes);
    }
    CHECK_INT(dpar_comm_alloc(c, bytes, &memory), DPAR_OK);
    return memory;
}

static void let_go(dpar_comm *c, int registered, void *memory)
{
    if (registered || ELSEWHERE) {
        dpar_comm_release(c, memory);
    } else {
        free(memory);
    }
}

/* ---- averages -------------------------------------------------------------------------------- */

typedef struct flat {
    dpar_comm *c;
    dpar_ddp *d;
    void *grads;
    int64_t n, cut[MOST + 1];
    int32_t type, parts, registered, apart; /* apart: an array for each part */
} flat;

static void backward(const flat *f, int step)
{
    int64_t e;
    for (e = 0; e < f->n; e++) {
        float_put(f->grads, e, f->type, number(f->c->rank, step, e));
    }
}

/* Makes a ddp whose parameters are the parts. */
static dpar_status flat_open(flat *f, int64_t bucket_bytes)
{
    int64_t count[MOST];
    void *array[MOST];
    dpar_ddp_desc o;
    dpar_why why;
    int32_t i;
    memset(&o, 0, sizeof o);
    for (i = 0; i < f->parts; i++) {
        count[i] = f->cut[i + 1] - f->cut[i];
        array[i] = (char *)f->grads + f->cut[i] * dpar_type_bytes(f->type);
    }
    o.params = f->parts;
    o.count = count;
    o.type = f->type;
    o.bucket_bytes = bucket_bytes;
    o.first_bucket_bytes = bucket_bytes;
    if (f->apart) {
        o.arrays = array;
    } else {
        o.gradients = f->grads;
    }
    return dpar_ddp_make(f->c, &o, &f->d, &why);
}

/* Reports parts in this rank's own random order. If `some` is set, leaves some out. */
static void report(const flat *f, uint64_t seed, int some)
{
    int32_t order[MOST], i;
    seed += (uint64_t)f->c->rank * 77;
    for (i = 0; i < f->parts; i++) {
        const int32_t at = (int32_t)lot_below(&seed, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (i = 0; i < f->parts; i++) {
        if (!some || lot_below(&seed, 4) != 0) {
            CHECK_INT(dpar_ddp_ready(f->d, order[i]), DPAR_OK);
        }
    }
}

static void compare(const flat *f, int step, int64_t first, int64_t count)
{
    int64_t e, wrong = 0;
    for (e = first; e < first + count && wrong == 0; e++) {
        const double got = float_get(f->grads, e, f->type), want = average(f->c->size, step, e);
        wrong = !(fabs(got - want) <= rounding(f->type) * fabs(want));
        if (wrong) {
            printf("element %lld of %lld, step %d: %.9g, not %.9g\n", (long long)e, (long long)f->n,
                   step, got, want);
        }
    }
    CHECK_INT(wrong, 0);
}

static void draw(flat *f, dpar_comm *c, uint64_t *seed)
{
    static const int32_t types[4] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16};
    int32_t i;
    memset(f, 0, sizeof *f);
    f->c = c;
    f->type = types[lot_below(seed, 4)];
    f->registered = (int32_t)lot_below(seed, 2);
    f->n = lot_below(seed, lot_below(seed, 5) == 0 ? 1500000 : 3000);
    f->parts = 1 + (int32_t)lot_below(seed, MOST);
    for (i = 1; i < f->parts; i++) { /* ascending: a random walk that ends at n */
        f->cut[i] = f->cut[i - 1] + lot_below(seed, 1 + (f->n - f->cut[i - 1]) * 2 / f->parts);
    }
    f->cut[f->parts] = f->n;
    f->grads = memory_of(c, f->registered, 64 + f->n * 8);
}

static void random_case(dpar_comm *c, uint64_t seed)
{
    flat f;
    uint64_t s = seed;
    int step;
    const int some = seed % 3 == 0, stays = seed % 5 == 0;
    draw(&f, c, &s);
    f.apart = (int32_t)lot_below(&s, 2);
    CHECK_INT(flat_open(&f, lot_below(&s, 2) * (1 + lot_below(&s, 1 << 19))), DPAR_OK);
    for (step = 0; step < 3 && failures() == 0; step++) {
        if (stays) { /* a micro-batch whose gradients are not sent */
            const int64_t before = sent(c);
            CHECK_INT(dpar_ddp_begin(f.d, 0), DPAR_OK);
            report(&f, seed, 0);
            CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
            CHECK_INT(sent(c), before);
        }
        backward(&f, step);
        CHECK_INT(step < 2 ? dpar_ddp_begin(f.d, 1) : 0, DPAR_OK); /* dpar_ddp_begin is optional */
        /* otherwise no gradient is reported */
        if (step > 0 || !some) {
            report(&f, seed + (uint64_t)step, some);
        }
        CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
        compare(&f, step, 0, f.n);
    }
    CHECK_INT(dpar_ddp_free(f.d), DPAR_OK);
    let_go(c, f.registered, f.grads);
}

/* Checks that gradients are sent during backward: once all are reported and before the end all
 * bytes are in transfer, also in the first pass. */
static void early(dpar_comm *c, int apart)
{
    flat f;
    int64_t before, left;
    int32_t i;
    int step;
    memset(&f, 0, sizeof f);
    f.c = c;
    f.type = DPAR_F32;
    f.registered = 1;
    f.apart = apart;
    f.n = 12 * MIB / 4 + 5;
    f.parts = 12;
    for (i = 0; i <= f.parts; i++) {
        f.cut[i] = i < f.parts ? i * (MIB / 4) : f.n;
    }
    f.grads = memory_of(c, 1, f.n * 4);
    CHECK_INT(flat_open(&f, 4 * MIB), DPAR_OK);
    for (step = 0; step < 3; step++) {
        backward(&f, step);
        before = sent(c);
        report(&f, 1, 0);
        CHECK(c->size == 1 || sent(c) > before);
        CHECK_INT(dpar_ddp_free(f.d), DPAR_E_ARG);
        CHECK_TEXT(c->why.text, "dpar_ddp_free: a pass is in progress (dpar_ddp_end)");
        left = sent(c);
        CHECK_INT(dpar_ddp_end(f.d), DPAR_OK);
        CHECK_INT(sent(c), left);
        compare(&f, step, 0, f.n);
    }
    CHECK_INT(dpar_ddp_free(f.d), DPAR_OK);
    dpar_comm_release(c, f.grads);
}

/* Uses several arrays: an empty one, one longer than a bucket, short and long ones. */
static void lists(dpar_comm *c, int64_t bucket_bytes)
{
    enum { ARRAYS = 12 };
    static const int64_t count[ARRAYS] = {1000,  0,     MIB / 2, 1,       77,  16384,
                                          16383, 30000, 5,       MIB + 3, 640, 2}; /* f32 */
    void *list[ARRAYS];
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    dpar_why why;
    int64_t e, wrong = 0;
    int32_t k;
    int step;
    memset(&o, 0, sizeof o);
    for (k = 0; k < ARRAYS; k++) {
        list[k] = memory_of(c, k % 2 == 0, 64 + count[k] * 4);
    }
    o.params = ARRAYS;
    o.count = count;
    o.type = DPAR_F32;
    o.arrays = list;
    o.bucket_bytes = bucket_bytes;
    o.track_used = 1;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_OK);
    for (step = 0; step < 4; step++) {
        for (k = 0; k < ARRAYS; k++) {
            CHECK(dpar_ddp_gradient(d, k, NULL) == list[k]);
            for (e = 0; e < count[k]; e++) {
                ((float *)list[k])[e] = (float)number(c->rank, step + k, e);
            }
        }
        for (k = ARRAYS - 1; k >= 0 && step != 1; k--) { /* each rank begins with another array */
            CHECK_INT(dpar_ddp_ready(d, (k + 5 * c->rank) % ARRAYS), DPAR_OK);
        }
        CHECK_INT(dpar_ddp_end(d), DPAR_OK);
        for (k = 0; k < ARRAYS; k++) {
            for (e = 0; e < count[k]; e++) {
                wrong += fabs(((float *)list[k])[e] - average(c->size, step + k, e)) > 2e-7;
            }
        }
        CHECK_INT(wrong, 0);
    }
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    for (k = 0; k < ARRAYS; k++) {
        let_go(c, k % 2 == 0, list[k]);
    }
}

/* ---- what is refused
 * -------------------------------------------------------------------------- */

static void refused(dpar_comm *c)
{
    float *const grads = (float *)memory_of(c, 0, 400);
    const int last = c->size - 1;
    int64_t count[2] = {20, 20};
    void *list[2];
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.params = 2;
    o.count = count;
    o.type = DPAR_F32;
    o.gradients = grads;
    o.arrays = list;
    list[0] = grads;
    list[1] = grads + 50;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dpar_ddp_make: at most one of gradients, arrays and align may be set");
    o.gradients = NULL;
    o.align = 1;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    o.arrays = NULL;
    o.gradients = grads;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    o.align = 0;
    count[1] = -1;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "dpar_ddp_make: parameter 1 has -1 elements, but needs 0 or more, and with "
               "desc.arrays an array that is not NULL");
    count[1] = 20;
    if (c->size > 1) { /* values that differ on one rank: all ranks get the error */
        count[0] = c->rank == last ? 21 : 20;
        CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text, c->size, "ddp: count[0]", "20", "21"));
        count[0] = c->rank == last ? -2 : 20;
        CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
        CHECK(c->rank == last ||
              strstr(why.text, ": dpar_ddp_make: parameter 0 has -2 elements") != NULL);
        count[0] = 20;
        o.gradients = c->rank == last ? NULL : grads; /* on one rank dpar allocates the gradients */
        CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_MISMATCH);
        CHECK(says_who_differs(why.text, c->size, "ddp: gradients != NULL", "1", "0"));
        o.gradients = c->rank == last ? NULL : grads;
        o.arrays = c->rank == last ? list : NULL;
        CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_MISMATCH);
    }
    o.gradients = NULL;
    o.arrays = list;
    list[0] = list[1] = grads; /* equal arrays, one inside another, one that begins in another */
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    list[0] = grads + 10;
    count[0] = 5;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    list[0] = grads + 19;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dpar_ddp_make: arrays 1 and 0 overlap: the second begins 76 bytes after "
                         "the beginning of the first, which has 80 bytes");
    if (c->size > 1) { /* wrong on one rank: all ranks get the error */
        list[0] = grads + (c->rank == last ? 19 : 20);
        CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    }
    list[0] = c->rank == last ? NULL : (void *)grads;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_E_ARG);
    CHECK(d == NULL);
    list[0] = grads + 20;
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_OK);
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    o.params = 0; /* no gradients */
    CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_OK);
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    CHECK_INT(dpar_ddp_ready(d, 0), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
    let_go(c, 0, grads);
}

#if !defined(USE_MPI) && !defined(DEVICE_CUDA)
/* Puts a NaN into one array of one rank: the error on all ranks names the array. */
static void not_finite(dpar_comm *world)
{
    static const int64_t count[3] = {40, 20000, 7};
    static const char *const names[3] = {"a", "b", "c"};
    void *list[3];
    char expected[200];
    dpar_comm *c = NULL;
    dpar_ddp *d = NULL;
    dpar_ddp_desc o;
    dpar_why why;
    int32_t i, k;
    for (i = 0; i < 3; i++) {
        CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
        for (k = 0; k < 3; k++) {
            list[k] = memory_of(c, 1, count[k] * 4);
        }
        memset(&o, 0, sizeof o);
        o.params = 3;
        o.count = count;
        o.type = DPAR_F32;
        o.arrays = list;
        o.check_finite = 1;
        o.names = names;
        CHECK_INT(dpar_ddp_make(c, &o, &d, &why), DPAR_OK);
        if (c->rank == c->size - 1) {
            ((float *)list[i])[5] = i == 1 ? INFINITY : NAN;
            ((float *)list[i])[6] = NAN;
        }
        CHECK_INT(dpar_ddp_end(d), DPAR_E_ARG);
        (void)snprintf(expected, sizeof expected,
                       "ddp: the gradient of '%s' is NaN or infinite at element 5 on rank %d",
                       names[i], (int)c->size - 1);
        CHECK_TEXT(c->why.text, expected);
        CHECK_INT(dpar_ddp_free(d), DPAR_OK);
        for (k = 0; k < 3; k++) {
            dpar_comm_release(c, list[k]);
        }
        (void)dpar_comm_free(c);
    }
}
#endif

static int everything(dpar_comm *c, void *arg)
{
    uint64_t i;
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 27);
    c = device_take(c);
#endif
    for (i = 0; i < (ELSEWHERE ? CASES / 4 : CASES) && failures() == 0; i++) {
        random_case(c, i);
        if (failures() > 0) {
            printf("case %d on rank %d of %d\n", (int)i, c->rank, c->size);
        }
    }
    early(c, 0);
    early(c, 1);
    lists(c, 0);
    lists(c, 100000);
    refused(c);
#if !defined(USE_MPI) && !defined(DEVICE_CUDA) /* a rank fails while others continue */
    not_finite(c);
#endif
#ifdef DEVICE_MEMORY
    CHECK(the_device.calls > 0);
    c = device_return(c);
    device_end();
#endif
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, ELSEWHERE ? 3 : 4, ELSEWHERE ? 2 : 3, NULL);
}
