/* SPDX-License-Identifier: MIT-0 */
/* Tests the bytes that dpar_traffic_count counts, with formulas written out here. Run with:
 * tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"
#include "plan_calls.h"
#include "plan_job.h"

static dpar_strategy of(const char *text)
{
    dpar_strategy s = plain_strategy();
    dpar_why why;
    uint32_t named;
    CHECK_INT(dpar_strategy_read(&s, text, strlen(text), &named, &why), DPAR_OK);
    return s;
}

/* Checks that dpar_traffic_count counts, over all ranks, what dpari_step_of prices, and what is too
 * small to be priced. tests/train/ranks/wire.c tests the bytes that are really sent. */
static void test_traffic(void)
{
    static const char *const text[] = {"tp=2,cp=2,dp=2,zero=1,m=3",
                                       "tp=2,sp=1,cp=4,cp_kind=ulysses,zero=0,m=2",
                                       "dp=8,shard=4,zero=2,m=5,mbs=2",
                                       "tp=4,dp=2,zero=0,m=2,recompute=full",
                                       "tp=2,dp=4,recompute=selective,m=2",
                                       "tp=2,sp=1,dp=4,m=2,recompute=full,recompute_layers=3",
                                       "cp=8,cp_kind=gather,m=2"};
    dpar_traffic t;
    dpar_step_cost step;
    double loss, norms;
    size_t i;
    set("llama-2-7b", "1x8:a100-80", "megatron");
    for (i = 0; i < sizeof text / sizeof text[0]; i++) {
        dpar_strategy s = of(text[i]);
        dpari_step_of(&job, &s, &step);
        dpar_traffic_count(&job, &s, &t);
        /* the loss: 12 bytes per token to each of the others; two norms per layer, one at the
         * end */
        loss = s.tp * (s.tp - 1.0) * 12.0 * 4096 / s.cp * s.micro_batch * s.micro_batches;
        norms = s.sp ? 2.0 * (s.tp - 1.0) * 65 * 4096 * 4 : 0.0;
        CHECK_NEAR(t.total, 8.0 * (step.link_bytes + step.nic_bytes) + 8 / s.tp * (loss + norms),
                   1e-12);
    }
    /* a pipeline of 4: three borders, 5 micro-batches, both directions, 4096 x 4096 in bf16 */
    {
        dpar_strategy s = of("pp=4,dp=2,m=5");
        dpar_traffic_count(&job, &s, &t);
        CHECK_NEAR(t.bytes[DPAR_TRAFFIC_PP][DPAR_CALL_SEND_RECV], 3.0 * 5 * 2 * 4096 * 4096 * 2 * 2,
                   0);
        s = of("pp=4,vp=2,dp=2,m=8,schedule=zbv"); /* six of seven borders of a V have two sides */
        dpar_traffic_count(&job, &s, &t);
        CHECK_NEAR(t.bytes[DPAR_TRAFFIC_PP][DPAR_CALL_SEND_RECV], 6.0 * 8 * 2 * 4096 * 4096 * 2 * 2,
                   0);
    }
    /* a tied table: in a loop the last rank has a copy, in a V the first rank has both ends */
    {
        dpar_strategy loop = of("pp=4,dp=2,m=8"), v = of("pp=4,vp=2,dp=2,m=8,schedule=zbv");
        dpar_memory_usage m[4], all;
        double sum[2] = {0.0, 0.0};
        int32_t k;
        set("gpt:layers=8,hidden=64,heads=4,vocab=1000,seq=16,tied=1", "1x8:a100-80", "megatron");
        for (k = 0; k < 4; k++) {
            dpar_memory_stage(&job, &loop, k, &m[k]);
            dpar_memory_stage(&job, &v, k, &all);
            sum[0] += m[k].params;
            sum[1] += all.params;
        }
        CHECK_NEAR(sum[0], w.params + 64000, 0);
        CHECK_NEAR(sum[1], w.params, 0);
        dpar_traffic_count(&job, &loop, &t);
        CHECK_NEAR(t.bytes[DPAR_TRAFFIC_PP][DPAR_CALL_ALL_REDUCE], 2.0 * 2 * 64000 * 4, 0);
        dpar_traffic_count(&job, &v, &t);
        CHECK_NEAR(t.bytes[DPAR_TRAFFIC_PP][DPAR_CALL_ALL_REDUCE], 0, 0);
        /* under tp the bias of a row layer is not cut: 2 of 64 per block */
        loop = of("tp=2,dp=4");
        (void)memory_of(&job, &loop, &all);
        CHECK_NEAR(all.params,
                   (w.params - 8 * (4 * 64 + 2 * 64) - 2 * 64 - 16 * 64) / 2 +
                       8 * (4 * 64 + 2 * 64) + 2 * 64 + 16 * 64,
                   0);
    }
}

int main(void)
{
    test_traffic();
    return CHECK_DONE();
}
