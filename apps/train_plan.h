/* SPDX-License-Identifier: MIT-0 */
/* train_plan - predicts memory and time of a job of train_gpt.c with the planner, for this machine,
 * which it measures quickly. train_gpt.c includes it after the trainer. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

/* ---- prediction by the planner --------------------------------------------------------------- */

#if defined(GPT_CUDA) /* no prediction, because the measurement would time the host */
static int plan(trainer *t, double *seconds, double *bytes)
{
    (void)t;
    *seconds = *bytes = 0.0;
    return 0;
}
#else
typedef struct gauge {
    double flops, Bps, link_Bps, link_s; /* of one rank while all others work, too */
} gauge;

/* Measures matrix products of the MLP's shape and copies, 10 ms each, and all-reduces of 8 bytes
 * and of a megabyte. Returns 1 on failure. */
static int measure(trainer *self, gauge *rates)
{
    enum { BIG = 1 << 20, MOST = 1 << 16 };
    const int64_t m = self->model->own < 256 ? self->model->own : 256;
    const int64_t n = self->config.hidden / (int64_t)self->options->tp;
    const int64_t k = self->config.width;
    char *first = (char *)take(self, BIG), *second = (char *)take(self, BIG);
    const int fits = m * k * 8 <= BIG / 2 && n * k * 8 <= BIG / 2 && m * n * 8 <= BIG;
    dpar_matmul product;
    double began, took = 0.0;
    int32_t i, all = 0, bad = first == NULL || second == NULL;
    self->registered -= 2 * BIG; /* they are released below */
    memset(&product, 0, sizeof product);
    product.type = GPT_TYPE;
    product.transpose_b = 1;
    product.m = fits ? m : 64;
    product.n = fits ? n : 64;
    product.k = fits ? k : 64;
    product.alpha = 1.0;
    product.a = first;
    product.b = first + BIG / 2;
    product.c = second;
    product.lda = product.ldb = product.k;
    product.ldc = product.n;
    if (anyone(self->world, bad)) {
        return 1;
    }
    began = now();
    for (i = 0; i < MOST && took < 0.01; i++) {
        bad |= gpt_matmul(NULL, &product) != DPAR_OK;
        took = now() - began;
    }
    rates->flops = 2.0 * (double)product.m * (double)product.n * (double)product.k * i / took;
    bad |= dpar_barrier(self->world, NULL) != DPAR_OK;
    began = now();
    took = 0.0;
    for (i = 0; i < MOST && took < 0.01; i++) {
        if (i % 2 == 0) {
            memcpy(second, first, BIG);
        } else {
            memcpy(first, second, BIG);
        }
        took = now() - began;
    }
    rates->Bps = 2.0 * BIG * i / took;
    bad |= dpar_barrier(self->world, NULL) != DPAR_OK;
    began = now();
    for (i = 0; i < 20 && !bad; i++) {
        bad |= dpar_all_reduce(self->world, first, first, 1, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    }
    rates->link_s = (now() - began) / 20;
    began = now();
    for (i = 0; i < 4 && !bad; i++) {
        bad |= dpar_all_reduce(self->world, first, first, BIG / 8, DPAR_F64, DPAR_SUM, NULL) !=
               DPAR_OK;
    }
    all = self->world->size;
    took = (now() - began) / 4 - rates->link_s;
    rates->link_Bps = all > 1 && took > 0.0 ? 2.0 * (all - 1) / all * BIG / took : rates->Bps;
    bad = bad || dpar_broadcast(self->world, rates, 4, DPAR_F64, 0, NULL) != DPAR_OK;
    for (i = 0; i < 2 && !bad; i++) {
        dpar_comm_release(self->world, self->memory[--self->memories]);
    }
    return bad;
}

/* Describes this machine as a file of doctor --cluster does, with the measured rates as its peaks.
 */
static dpar_status describe(dpar_cluster *cluster, const gauge *rates, int32_t ranks, dpar_why *why)
{
    const double teraflops = rates->flops * 1e-12;
    char text[400];
    int n = snprintf(text, sizeof text,
                     "machine = 1x%d:core\nstream = %.9g\ntflops = %.9g\ntflops32 = %.9g\n"
                     "tflops64 = %.9g\ngemm = 1\nattention = 1\nhbm = 1\nlaunch_us = 0.01\n"
                     "step_ms = 0.00001\n",
                     (int)ranks, rates->Bps * 1e-9, teraflops, teraflops, teraflops);
    if (ranks > 1) {
        n +=
            snprintf(text + n, sizeof text - (size_t)n,
                     "link_reduce = %dx8x%.9g\nlink_reduce = %dx1048576x%.9g\n", (int)ranks,
                     rates->link_s * 1e6, (int)ranks,
                     1e6 * (rates->link_s + 2.0 * (ranks - 1) / ranks * 1048576 / rates->link_Bps));
    }
    return dpar_cluster_read(cluster, text, (size_t)n, why);
}

static dpar_strategy strategy_of(const trainer *self)
{
    const settings *options = self->options;
    dpar_strategy strategy;
    dpar_schedule_desc order;
    dpar_strategy_init(&strategy);
    strategy.tp = (int32_t)options->tp;
    strategy.sp = options->sp && options->tp > 1;
    strategy.cp = (int32_t)options->cp;
    strategy.cp_kind = options->ulysses ? DPAR_CP_ULYSSES : DPAR_CP_RING;
    strategy.dp = (int32_t)options->dp;
    strategy.shard = (int32_t)(options->dp / options->replicas);
    strategy.zero = options->dp > 1 ? (int32_t)options->zero : 0;
    strategy.pp = (int32_t)options->pp;
    strategy.vp = options->pp > 1 ? self->list.stages / self->list.ranks : 1;
    strategy.ep = (int32_t)options->ep;
    strategy.micro_batch = (int32_t)options->micro;
    strategy.micro_batches = options->micros;
    if (dpar_schedule_find(&order, options->schedule, NULL) == DPAR_OK && options->pp > 1 &&
        order.rule < DPAR_SCHEDULE_PRICED_END) {
        strategy.schedule = order.rule;
    }
    return strategy;
}

static void print_plan(const trainer *self, const gauge *rates, const dpar_plan *price)
{
    int32_t i;
    printf("this machine, all ranks at once: %.2f GFLOP/s, copies %.2f GB/s a rank; all-reduce of "
           "8 B %.1f us, %.2f GB/s\n",
           rates->flops / 1e9, rates->Bps / 1e9, rates->link_s * 1e6, rates->link_Bps / 1e9);
    printf("planned memory of a rank:");
    for (i = 0; i < DPAR_MEMORY_COMM; i++) {
        if (price->memory.term[i] > 0.0) {
            printf(" %s %.3f", dpar_memory_name(i), price->memory.term[i] / 1e6);
        }
    }
    printf(" = %.3f MB\nplanned step:", price->memory.allocated / 1e6);
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        if (price->step.term[i] > 0.0) {
            printf(" %s %.3f", dpar_time_name(i), price->step.term[i] * 1e3);
        }
    }
    printf(" = %.3f ms, %.0f tokens/s\n", price->step.total * 1e3,
           self->options->batch * self->options->length / price->step.total);
    fflush(stdout);
}

/* Predicts memory and time of this job, and prints them, or why the planner cannot. Returns 1 on
 * failure. */
static int plan(trainer *self, double *seconds, double *bytes)
{
    static dpar_workload work;
    static dpar_cluster cluster;
    static dpar_plan price;
    const gpt_config *config = &self->config;
    const dpar_strategy strategy = strategy_of(self);
    const char *recipe = "fp32";
    char text[320];
    dpar_model model;
    dpar_job job;
    dpar_why why;
    gauge rates;
    int length;
    dpar_status st;
    *seconds = *bytes = 0.0;
    if (self->options->pure) {
        recipe = "pure-bf16";
    } else if (self->options->bf16) {
        recipe = "megatron";
    }
    if (measure(self, &rates)) {
        return 1;
    }
    length = snprintf(text, sizeof text,
                      "%s:layers=%d,hidden=%d,heads=%d,kv_heads=%d,ffn=%d,vocab=%d,seq=%d,"
                      "tied=%d,biases=-1,element=%d,attention=flash,stack=core",
                      config->gelu ? "gpt" : "llama", config->blocks, config->width, config->heads,
                      config->groups, config->hidden, config->vocab, config->length, config->tied,
                      (int)sizeof(gpt_real));
    if (config->experts > 0) {
        length += snprintf(text + length, sizeof text - (size_t)length,
                           ",experts=%d,topk=%d,expert_ffn=%d,shared_ffn=%d", config->experts,
                           config->choices, config->hidden, config->shared);
    }
    memset(&job, 0, sizeof job);
    job.work = &work;
    job.cluster = &cluster;
    st = describe(&cluster, &rates, self->world->size, &why);
    if (st == DPAR_OK) {
        st = dpar_model_read(&model, text, (size_t)length, &why);
    }
    if (st == DPAR_OK) {
        st = dpar_workload_init(&work, &model, 0, &why);
    }
    if (st == DPAR_OK) {
        st = dpar_recipe_find(&job.recipe, recipe, &why);
    }
    if (self->options->pure) { /* the model's gradients have its own type */
        job.recipe.gradient = job.recipe.reduced = (double)sizeof(gpt_real);
    }
    if (st == DPAR_OK) {
        st = dpar_plan_price(&job, &strategy, 0, &price, NULL, &why);
    }
    if (self->world->rank == 0 && st != DPAR_OK) {
        printf("the planner has no price for this: %s\n", why.text);
    } else if (st == DPAR_OK) {
        *seconds = price.step.total;
        *bytes = price.memory.allocated;
        if (self->world->rank == 0) {
            print_plan(self, &rates, &price);
        }
    }
    return 0;
}
#endif

#endif
