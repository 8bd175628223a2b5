/* SPDX-License-Identifier: MIT-0 */
/* Compares the bytes of an fsdp (dpar_fsdp_sizes_init) with the planner's terms for the same model,
 * and checks models of up to 2^48 elements. */
#include "dpar_cost.h"
#include "dpar_train.h"

#include "check.h"
#include "plan_calls.h"

enum { MOST_UNITS = 64, RANKS = 8 };

/* Lists the layers of a model as fsdp units. */
static int32_t units_of(const dpar_workload *w, int32_t *params_of, int64_t *numel)
{
    int32_t l, k, units = 0;
    for (l = 0; l < w->layers; l++) {
        for (k = 0; k < w->layer[l].count && units < MOST_UNITS; k++, units++) {
            params_of[units] = 1;
            numel[units] = (int64_t)dpari_layer_params(w, l);
        }
    }
    return units;
}

/* Compares each term, to the byte. For ZeRO-2 the planner counts PyTorch's flat buffers of 100
 * MB. */
static void compare(const char *recipe, int32_t zero, int32_t type, int32_t compute,
                    int32_t gradient, int32_t moment_type)
{
    static dpar_workload w;
    static dpar_cluster cluster;
    const char *text = "gpt:layers=12,hidden=768,heads=12,vocab=8192,seq=1024,stack=torch";
    int32_t params_of[MOST_UNITS], units;
    int64_t numel[MOST_UNITS];
    dpar_fsdp_desc o;
    dpar_fsdp_sizes z;
    dpar_strategy s = plain_strategy();
    dpar_memory_usage m;
    dpar_model model;
    dpar_job job;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_model_read(&model, text, strlen(text), &why), DPAR_OK);
    CHECK_INT(dpar_workload_init(&w, &model, 0, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&cluster, "1x8:h100-80", 11, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    job.work = &w;
    job.cluster = &cluster;
    CHECK_INT(dpar_recipe_find(&job.recipe, recipe, &why), DPAR_OK);
    s.dp = RANKS;
    s.zero = zero;
    (void)memory_of(&job, &s, &m);
    memset(&o, 0, sizeof o);
    o.zero = zero;
    o.type = type;
    o.compute_type = compute;
    o.gradient_type = gradient;
    o.prefetch = 1;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    o.optimizer.moment_type = moment_type;
    units = units_of(&w, params_of, numel);
    o.units = units;
    o.params_per_unit = params_of;
    o.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&z, RANKS, &o, &why), DPAR_OK);
    CHECK((double)(z.weights + z.master) ==
          m.term[DPAR_MEMORY_WEIGHTS] + m.term[DPAR_MEMORY_MASTER]);
    CHECK((double)z.gradients == m.term[DPAR_MEMORY_GRADIENTS]);
    CHECK((double)z.moments == m.term[DPAR_MEMORY_OPTIMIZER]);
    CHECK((double)z.gathered == m.term[DPAR_MEMORY_GATHERED]);
    CHECK((double)z.buckets <= m.term[DPAR_MEMORY_BUCKETS]);
    CHECK(zero < 3 || (double)z.buckets == m.term[DPAR_MEMORY_BUCKETS]);
    CHECK_INT(z.registered,
              z.weights + z.gradients + z.master + z.moments + z.gathered + z.buckets);
}

static void test_bytes(void)
{
    compare("fsdp", 3, DPAR_F32, DPAR_BF16, DPAR_BF16, 0);
    compare("fp32", 3, DPAR_F32, DPAR_F32, DPAR_F32, 0);
    compare("megatron", 1, DPAR_F32, DPAR_BF16, DPAR_F32, 0);
    compare("megatron", 2, DPAR_F32, DPAR_BF16, DPAR_F32, 0);
    compare("fp32", 1, DPAR_F32, DPAR_F32, DPAR_F32, 0);
    compare("fp32", 2, DPAR_F32, DPAR_F32, DPAR_F32, 0);
    compare("zero", 1, DPAR_F32, DPAR_BF16, DPAR_BF16, 0);
    compare("bf16-moments", 1, DPAR_F32, DPAR_BF16, DPAR_F32, DPAR_BF16);
    compare("bf16-moments", 2, DPAR_F32, DPAR_BF16, DPAR_F32, DPAR_BF16);
    compare("no-master", 1, DPAR_BF16, DPAR_BF16, DPAR_BF16, 0);
    compare("pure-bf16", 1, DPAR_BF16, DPAR_BF16, DPAR_BF16, DPAR_BF16);
}

/* Checks the size of narrow moments: 2 bytes instead of 4. Masters of F64 allow none. */
static void test_narrow_bytes(void)
{
    const int32_t params_of[1] = {1};
    const int64_t numel[1] = {1000};
    dpar_fsdp_desc o;
    dpar_fsdp_sizes z;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.zero = 1;
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    o.units = 1;
    o.params_per_unit = params_of;
    o.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&z, 4, &o, &why), DPAR_OK);
    CHECK_INT(z.moments, 250 * 8);
    o.optimizer.moment_type = DPAR_BF16;
    CHECK_INT(dpar_fsdp_sizes_init(&z, 4, &o, &why), DPAR_OK);
    CHECK_INT(z.moments, 250 * 4);
    o.type = o.compute_type = o.gradient_type = DPAR_F64;
    CHECK_INT(dpar_fsdp_sizes_init(&z, 4, &o, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "optimizer: moment_type is bf16, but weights are f64, which need f64 moments");
}

/* Adds huge units to small ones: units of up to 2^48 elements make pools of more than 2^50. */
static void test_huge(void)
{
    enum { SMALL = 20 };
    int32_t params_of[SMALL + 1], i;
    int64_t numel[SMALL + 1];
    dpar_fsdp_desc o;
    dpar_fsdp_sizes z;
    dpar_why why;
    for (i = 0; i <= SMALL; i++) {
        params_of[i] = 1;
        numel[i] = i == 0 ? INT64_C(1) << 48 : 1;
    }
    memset(&o, 0, sizeof o);
    o.type = o.compute_type = o.gradient_type = DPAR_F64;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    for (o.zero = 1; o.zero <= 3; o.zero++) { /* as many units as fit, and one more */
        o.prefetch = o.zero == 3 ? 3 : SMALL;
        o.gradient_buffers = o.zero == 1 ? SMALL : 4;
        o.units = SMALL + 1;
        o.params_per_unit = params_of;
        o.count = numel;
        CHECK_INT(dpar_fsdp_sizes_init(&z, 1, &o, &why), DPAR_OK);
        CHECK(z.registered > 0);
        o.prefetch += o.zero == 3;
        o.gradient_buffers += o.zero == 2;
        CHECK_INT(dpar_fsdp_sizes_init(&z, 1, &o, &why), o.zero == 1 ? DPAR_OK : DPAR_E_RANGE);
    }
    CHECK_TEXT(why.text,
               "fsdp: 5 units of up to 281474976710656 elements are in memory at once, but "
               "together they may have at most 2^50 elements");
    o.zero = 3;
    numel[1] = INT64_MAX;
    CHECK_INT(dpar_fsdp_sizes_init(&z, 1, &o, &why), DPAR_E_RANGE);
}

/* Frozen units have weights and masters, but neither gradients nor moments: 100, 60 and 41 elements
 * on 4 ranks, of which the first and the last unit are frozen. */
static void test_frozen(void)
{
    static const int64_t count[3] = {100, 60, 41};
    static const int32_t frozen[3] = {1, 0, 1};
    dpar_fsdp_desc desc;
    dpar_fsdp_sizes sizes;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    desc.units = 3;
    desc.count = count;
    desc.frozen = frozen;
    dpar_optimizer_init(&desc.optimizer, DPAR_OPTIMIZER_ADAMW);
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, 4, &desc, &why), DPAR_OK); /* ZeRO-3 */
    CHECK_INT(sizes.master, (25 + 15 + 11) * 4);
    CHECK_INT(sizes.gathered, 100 * 4);
    CHECK_INT(sizes.gradients, 15 * 4);
    CHECK_INT(sizes.buckets, 60 * 4);
    CHECK_INT(sizes.moments, 2 * 15 * 4);
    desc.zero = 1;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, 4, &desc, &why), DPAR_OK);
    CHECK_INT(sizes.weights, (100 + 60 + 44) * 4);
    CHECK_INT(sizes.gradients, 60 * 4);
    CHECK_INT(sizes.moments, 2 * 15 * 4);
}

int main(void)
{
    test_frozen();
    test_bytes();
    test_narrow_bytes();
    test_huge();
    return CHECK_DONE();
}
