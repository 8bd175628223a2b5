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
static int measure(trainer *t, gauge *u)
{
    enum { BIG = 1 << 20, MOST = 1 << 16 };
    const int64_t m = t->g->own < 256 ? t->g->own : 256, n = t->config.hidden / (int64_t)t->s->tp;
    const int64_t k = t->config.width;
    char *a = (char *)take(t, BIG), *b = (char *)take(t, BIG);
    const int fits = m * k * 8 <= BIG / 2 && n * k * 8 <= BIG / 2 && m * n * 8 <= BIG;
    dpar_matmul p;
    double began, took = 0.0;
    int32_t i, all = 0, bad = a == NULL || b == NULL;
    t->registered -= 2 * BIG; /* they are released below */
    memset(&p, 0, sizeof p);
    p.type = GPT_TYPE;
    p.transpose_b = 1;
    p.m = fits ? m : 64;
    p.n = fits ? n : 64;
    p.k = fits ? k : 64;
    p.alpha = 1.0;
    p.a = a;
    p.b = a + BIG / 2;
    p.c = b;
    p.lda = p.ldb = p.k;
    p.ldc = p.n;
    if (anyone(t->world, bad)) {
        return 1;
    }
    began = now();
    for (i = 0; i < MOST && took < 0.01; i++) {
        bad |= gpt_matmul(NULL, &p) != DPAR_OK;
        took = now() - began;
    }
    u->flops = 2.0 * (double)p.m * (double)p.n * (double)p.k * i / took;
    bad |= dpar_barrier(t->world, NULL) != DPAR_OK;
    began = now();
    took = 0.0;
    for (i = 0; i < MOST && took < 0.01; i++) {
        memcpy(i % 2 ? a : b, i % 2 ? b : a, BIG);
        took = now() - began;
    }
    u->Bps = 2.0 * BIG * i / took;
    bad |= dpar_barrier(t->world, NULL) != DPAR_OK;
    began = now();
    for (i = 0; i < 20 && !bad; i++) {
        bad |= dpar_all_reduce(t->world, a, a, 1, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    }
    u->link_s = (now() - began) / 20;
    began = now();
    for (i = 0; i < 4 && !bad; i++) {
        bad |= dpar_all_reduce(t->world, a, a, BIG / 8, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    }
    all = t->world->size;
    took = (now() - began) / 4 - u->link_s;
    u->link_Bps = all > 1 && took > 0.0 ? 2.0 * (all - 1) / all * BIG / took : u->Bps;
    bad = bad || dpar_broadcast(t->world, u, 4, DPAR_F64, 0, NULL) != DPAR_OK;
    for (i = 0; i < 2 && !bad; i++) {
        dpar_comm_release(t->world, t->memory[--t->memories]);
    }
    return bad;
}

/* Describes this machine as a file of doctor --cluster does, with the measured rates as its peaks.
 */
static dpar_status describe(dpar_cluster *c, const gauge *u, int32_t ranks, dpar_why *why)
{
    const double teraflops = u->flops * 1e-12;
    char text[400];
    int n = snprintf(text, sizeof text,
                     "machine = 1x%d:core\nstream = %.9g\ntflops = %.9g\ntflops32 = %.9g\n"
                     "tflops64 = %.9g\ngemm = 1\nattention = 1\nhbm = 1\nlaunch_us = 0.01\n"
                     "step_ms = 0.00001\n",
                     (int)ranks, u->Bps * 1e-9, teraflops, teraflops, teraflops);
    if (ranks > 1) {
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "link_reduce = %dx8x%.9g\nlink_reduce = %dx1048576x%.9g\n", (int)ranks,
                      u->link_s * 1e6, (int)ranks,
                      1e6 * (u->link_s + 2.0 * (ranks - 1) / ranks * 1048576 / u->link_Bps));
    }
    return dpar_cluster_read(c, text, (size_t)n, why);
}

static dpar_strategy strategy_of(const trainer *t)
{
    const settings *s = t->s;
    dpar_strategy y;
    dpar_schedule_desc order;
    dpar_strategy_init(&y);
    y.tp = (int32_t)s->tp;
    y.sp = s->sp && s->tp > 1;
    y.cp = (int32_t)s->cp;
    y.cp_kind = s->ulysses ? DPAR_CP_ULYSSES : DPAR_CP_RING;
    y.dp = (int32_t)s->dp;
    y.shard = (int32_t)(s->dp / s->replicas);
    y.zero = s->dp > 1 ? (int32_t)s->zero : 0;
    y.pp = (int32_t)s->pp;
    y.vp = s->pp > 1 ? t->list.stages / t->list.ranks : 1;
    y.ep = (int32_t)s->ep;
    y.micro_batch = (int32_t)s->micro;
    y.micro_batches = s->micros;
    if (dpar_schedule_find(&order, s->schedule, NULL) == DPAR_OK && s->pp > 1 &&
        order.rule < DPAR_SCHEDULE_PRICED_END) {
        y.schedule = order.rule;
    }
    return y;
}

static void print_plan(const trainer *t, const gauge *u, const dpar_plan *p)
{
    int32_t i;
    printf("this machine, all ranks at once: %.2f GFLOP/s, copies %.2f GB/s a rank; all-reduce of "
           "8 B %.1f us, %.2f GB/s\n",
           u->flops / 1e9, u->Bps / 1e9, u->link_s * 1e6, u->link_Bps / 1e9);
    printf("planned memory of a rank:");
    for (i = 0; i < DPAR_MEMORY_COMM; i++) {
        if (p->memory.term[i] > 0.0) {
            printf(" %s %.3f", dpar_memory_name(i), p->memory.term[i] / 1e6);
        }
    }
    printf(" = %.3f MB\nplanned step:", p->memory.allocated / 1e6);
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        if (p->step.term[i] > 0.0) {
            printf(" %s %.3f", dpar_time_name(i), p->step.term[i] * 1e3);
        }
    }
    printf(" = %.3f ms, %.0f tokens/s\n", p->step.total * 1e3,
           t->s->batch * t->s->length / p->step.total);
    fflush(stdout);
}

/* Predicts memory and time of this job, and prints them, or why the planner cannot. Returns 1 on
 * failure. */
static int plan(trainer *t, double *seconds, double *bytes)
{
    static dpar_workload work;
    static dpar_cluster cluster;
    static dpar_plan p;
    const gpt_config *c = &t->config;
    const dpar_strategy y = strategy_of(t);
    const char *recipe = "fp32";
    char text[320];
    dpar_model m;
    dpar_job job;
    dpar_why why;
    gauge u;
    int length;
    dpar_status st;
    *seconds = *bytes = 0.0;
    if (t->s->pure) {
        recipe = "pure-bf16";
    } else if (t->s->bf16) {
        recipe = "megatron";
    }
    if (measure(t, &u)) {
        return 1;
    }
    length = snprintf(text, sizeof text,
                      "%s:layers=%d,hidden=%d,heads=%d,kv_heads=%d,ffn=%d,vocab=%d,seq=%d,"
                      "tied=%d,biases=-1,element=%d,attention=flash,stack=core",
                      c->gelu ? "gpt" : "llama", c->blocks, c->width, c->heads, c->groups,
                      c->hidden, c->vocab, c->length, c->tied, (int)sizeof(gpt_real));
    if (c->experts > 0) {
        length += snprintf(text + length, sizeof text - (size_t)length,
                           ",experts=%d,topk=%d,expert_ffn=%d,shared_ffn=%d", c->experts,
                           c->choices, c->hidden, c->shared);
    }
    memset(&job, 0, sizeof job);
    job.work = &work;
    job.cluster = &cluster;
    st = describe(&cluster, &u, t->world->size, &why);
    if (st == DPAR_OK) {
        st = dpar_model_read(&m, text, (size_t)length, &why);
    }
    if (st == DPAR_OK) {
        st = dpar_workload_init(&work, &m, 0, &why);
    }
    if (st == DPAR_OK) {
        st = dpar_recipe_find(&job.recipe, recipe, &why);
    }
    if (t->s->pure) { /* the model's gradients have its own type */
        job.recipe.gradient = job.recipe.reduced = (double)sizeof(gpt_real);
    }
    if (st == DPAR_OK) {
        st = dpar_plan_price(&job, &y, 0, &p, NULL, &why);
    }
    if (t->world->rank == 0 && st != DPAR_OK) {
        printf("the planner has no price for this: %s\n", why.text);
    } else if (st == DPAR_OK) {
        *seconds = p.step.total;
        *bytes = p.memory.allocated;
        if (t->world->rank == 0) {
            print_plan(t, &u, &p);
        }
    }
    return 0;
}
#endif

#endif
