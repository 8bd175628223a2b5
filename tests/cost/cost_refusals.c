/* SPDX-License-Identifier: MIT-0 */
/* Tests messages of dpar_cost.h that no other test checks: one wrong number at a time. Run with:
 * tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"
#include "plan_calls.h"
#include "refused.h"

#include <stdlib.h>

static dpar_workload w;

static dpar_model model_of(const char *text)
{
    dpar_model m;
    CHECK_INT(dpar_model_read(&m, text, strlen(text), NULL), DPAR_OK);
    return m;
}

static void test_models(void)
{
    dpar_model m;
    dpar_why why;
    m = model_of("llama-3-8b");
    m.ffn = 0, m.hidden = 1 << 30, m.heads = m.kv_heads = 1 << 20;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_RANGE, "hidden=1073741824 is too large");
    m = model_of("llama-3-8b");
    m.seq = 0;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "seq and vocab must be at least 1");
    m = model_of("llama-3-8b");
    m.vocab = 0;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "vocab=0");
    m = model_of("deepseek-v3");
    m.dense_layers = m.layers + 1;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG,
            "dense_layers=62 must be at most layers=61");
    m = model_of("deepseek-v3");
    m.qk_width = 0;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "needs qk_width and v_width");
    m = model_of("deepseek-v3");
    m.capacity = -1.0;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG,
            "capacity must be 0 or a finite number");
    m = model_of("llama-3-8b");
    memcpy(m.pattern, "WF", 3); /* every second layer has a window, but no width is set */
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "16 layers with a window need");
    m = model_of("llama-3-8b");
    m.tower_layers = 2, m.tower_hidden = 10, m.tower_heads = 3;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "does not divide tower_hidden=10");
    m = model_of("grid:100x100,fields=1");
    m.extent[1] = 0;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "grid axis 1 has 0 cells");
    m = model_of("grid:100x100,fields=1");
    m.dims = 0;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "a grid has 1 to 3 axes, not 0");
    m = model_of("grid:100x100,fields=1");
    m.flops_per_cell = -1.0;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_ARG, "flops_per_cell and bytes_per_cell");
    m = model_of("llama-3-8b");
    m.layers = 1000000, m.hidden = 1 << 20, m.heads = m.kv_heads = 1 << 10, m.ffn = INT32_MAX;
    REFUSED(dpar_workload_init(&w, &m, 0, &why), DPAR_E_RANGE, "more than 4e18 parameters");
    m = model_of("llama-3-8b");
    CHECK_INT(dpar_workload_init(&w, &m, 0, NULL), DPAR_OK);
    w.layers = 25;
    REFUSED(dpari_workload_check(&w, &why), DPAR_E_ARG, "the workload has 25 layer classes");
    CHECK_INT(dpar_workload_init(&w, &m, 0, NULL), DPAR_OK);
    w.layer[0].count = 0;
    REFUSED(dpari_workload_check(&w, &why), DPAR_E_ARG, "layer class 0 is empty");
}

/* Checks that a plan of that model on that machine with that strategy is refused. */
static void refuse_plan(const char *model, const char *machine, const char *strategy, int32_t tiles,
                        dpar_status status, const char *words)
{
    dpar_model m = model_of(model);
    dpar_cluster c;
    dpar_job job;
    dpar_strategy s = plain_strategy();
    dpar_plan plan;
    dpar_why why;
    CHECK_INT(dpar_workload_init(&w, &m, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&c, machine, strlen(machine), NULL), DPAR_OK);
    c.host_bytes = 0.0;
    job.work = &w;
    job.cluster = &c;
    CHECK_INT(dpar_recipe_find(&job.recipe, "megatron", NULL), DPAR_OK);
    CHECK_INT(dpar_strategy_read(&s, strategy, strlen(strategy), NULL, NULL), DPAR_OK);
    s.tiles[0] = tiles;
    REFUSED(dpar_plan_price(&job, &s, 0, &plan, NULL, &why), status, words);
}

static void test_strategies(void)
{
    dpar_strategy s = plain_strategy();
    dpar_why why;
    uint32_t named;
    REFUSED(dpar_strategy_read(&s, "tp=2,,pp=2", 10, &named, &why), DPAR_E_PARSE,
            "'tp=2,,pp=2': a setting (key=value) is missing next to a comma");
    REFUSED(dpar_strategy_read(&s, "tp=2,tp=4", 9, &named, &why), DPAR_E_PARSE,
            "'tp=4' is given twice");
    refuse_plan("llama:layers=2,hidden=96,heads=12,kv_heads=6,vocab=128,seq=16", "1x4:h100-80",
                "tp=4", 1, DPAR_E_DIVIDE, "6 key-value heads: neither divides");
    refuse_plan("llama:layers=2,hidden=96,heads=12,vocab=128,seq=16,inference=1", "1x1:h100-80",
                "recompute=full", 1, DPAR_E_DIVIDE,
                "recompute=2 must be 0 (none), because the job has no backward");
    refuse_plan("llama:layers=2,hidden=96,heads=12,vocab=128,seq=15", "1x2:h100-80",
                "cp=2,cp_kind=ulysses", 1, DPAR_E_DIVIDE, "cp=2 does not divide 15 tokens");
    refuse_plan("grid:100x100,fields=1", "1x1:h100-80", "tp=1", 0, DPAR_E_ARG,
                "tiles must be at least 1");
    refuse_plan("llama:layers=2,hidden=96,heads=12,vocab=128,seq=16", "1x4:h100-80",
                "mbs=2147483647,m=2147483647,dp=4", 1, DPAR_E_DIVIDE, "is too large");
    refuse_plan("llama:layers=2,hidden=96,heads=12,vocab=128,seq=16", "1x1:h100-80",
                "offload=optimizer", 1, DPAR_E_DIVIDE, "offload=1 needs the host's memory");
    refuse_plan("llama:layers=2,hidden=96,heads=12,vocab=128,seq=16", "1x1:h100-80", "m=1,zero=4",
                1, DPAR_E_ARG, "zero=4 must be 0 to 3");
}

static void test_halos(void)
{
    dpar_halo_cost_desc job;
    dpar_halo_rates rates;
    dpar_halo_cost grid;
    dpar_why why;
    memset(&job, 0, sizeof job);
    memset(&grid, 0, sizeof grid);
    dpar_halo_rates_init(&rates);
    job.ranks = 4, job.dims = 2, job.cells[0] = job.cells[1] = 100, job.width[0] = job.width[1] = 1;
    job.bytes = job.contiguous_bytes = 8;
    grid.parts[0] = grid.parts[1] = 2;
    grid.stride[0] = 2, grid.stride[1] = 1;
    CHECK_INT(dpar_halo_cost_predict(&job, &rates, &grid, &why), DPAR_OK);
    CHECK(grid.seconds > 0.0);
    REFUSED(dpar_halo_cost_predict(NULL, &rates, &grid, &why), DPAR_E_ARG, "job or grid is NULL");
    REFUSED(dpar_halo_cost_predict(&job, &rates, NULL, &why), DPAR_E_ARG, "job or grid is NULL");
    grid.stride[1] = 0;
    REFUSED(dpar_halo_cost_predict(&job, &rates, &grid, &why), DPAR_E_ARG,
            "dim 1: stride=0 must be");
    grid.stride[1] = 1;
    grid.parts[0] = 1;
    REFUSED(dpar_halo_cost_predict(&job, &rates, &grid, &why), DPAR_E_ARG,
            "the parts multiply to 2, not to ranks=4");
    grid.parts[0] = 2;
    job.shape = 9;
    REFUSED(dpar_halo_cost_predict(&job, &rates, &grid, &why), DPAR_E_ARG, "shape=9 must be");
}

static void test_advice(void)
{
    static dpar_advice advice;
    dpar_model m = model_of("llama-3-8b");
    dpar_cluster c;
    dpar_job job;
    dpar_planner_desc search;
    dpar_why why;
    CHECK_INT(dpar_workload_init(&w, &m, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&c, "1x8:h100-80", 11, NULL), DPAR_OK);
    job.work = &w;
    job.cluster = &c;
    CHECK_INT(dpar_recipe_find(&job.recipe, "megatron", NULL), DPAR_OK);
    memset(&search, 0, sizeof search);
    search.fixed = plain_strategy();
    search.global_batch = 64;
    search.gpus = 7;
    REFUSED(dpar_plan_recommend(&job, &search, &advice, &why), DPAR_E_ARG,
            "gpus=7 must be 0 or the cluster's 8");
    search.gpus = 0;
    search.global_batch = -1;
    REFUSED(dpar_plan_recommend(&job, &search, &advice, &why), DPAR_E_ARG, "");
}

int main(void)
{
    test_models();
    test_strategies();
    test_halos();
    test_advice();
    return CHECK_DONE();
}
