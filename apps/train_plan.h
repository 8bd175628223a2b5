/* SPDX-License-Identifier: MIT-0 */
/* train_plan - predicts memory and time of a step of train_gpt.c. train_gpt.c includes it after the
 * trainer.
 *
 * Memory. The planner (dpar_cost.h) predicts weights, gradients, the optimizer's state, and the
 * activations that a layer keeps, from the shape of the model. dpar_schedule_slots counts how many
 * micro-batches a rank keeps at a time, and how many messages. What this program holds besides is
 * added: scratch memory, and whole gradients where micro-batches overlap.
 *
 * Time. train_rates.h measures a layer of each kind, the messages and the optimizer on this
 * machine. dpar_schedule_simulate computes how long the pipeline takes if every rank has a core. If
 * there are fewer cores than ranks, the step takes at least the work of all ranks divided by the
 * cores. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

/* What a plan predicts. */
typedef struct forecast {
    double seconds; /* of a step; 0 if it is not planned */
    double bytes;   /* of the rank that needs the most; 0 if they are not planned */
} forecast;

#if defined(GPT_CUDA) /* no prediction, because the measurement would time the host */
static int plan(trainer *self, forecast *expected)
{
    (void)self;
    memset(expected, 0, sizeof *expected);
    return 0;
}
#else
#include "train_rates.h"

/* ---- memory ---------------------------------------------------------------------------------- */

enum {
    MEMORY_WEIGHTS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_GATHERED,    /* ZeRO-3: the pool of gathered weights */
    MEMORY_BUCKETS,     /* ZeRO-2 and 3: whole gradients of a layer before they are reduced */
    MEMORY_ACTIVATIONS, /* kept from F to B or W, and from I to W */
    MEMORY_MESSAGES,    /* between stages */
    MEMORY_SCRATCH,
    MEMORY_TERMS
};
static const char *const memory_names[MEMORY_TERMS] = {"weights",  "gradients", "optimizer",
                                                       "gathered", "buckets",   "activations",
                                                       "messages", "scratch"};

/* The planner's schedule whose stages are on the same ranks as those of the list. How many
 * micro-batches a rank keeps does not come from the planner. */
static int32_t placed_like(const trainer *self)
{
    const dpar_schedule *list = &self->list;
    if (self->both_ways) {
        return DPAR_SCHEDULE_DUALPIPE;
    }
    if (list->stages == list->ranks) {
        return DPAR_SCHEDULE_1F1B;
    }
    return list->rank_of[list->ranks] == list->rank_of[0] ? DPAR_SCHEDULE_INTERLEAVED
                                                          : DPAR_SCHEDULE_ZBV;
}

static dpar_strategy strategy_of(const trainer *self)
{
    const settings *options = self->options;
    dpar_strategy strategy;
    dpar_strategy_init(&strategy);
    strategy.tp = (int32_t)options->tp;
    strategy.etp = options->experts > 0 ? (int32_t)options->tp : 1;
    strategy.sp = options->sp && options->tp > 1;
    strategy.cp = (int32_t)options->cp;
    strategy.cp_kind = options->ulysses ? DPAR_CP_ULYSSES : DPAR_CP_RING;
    strategy.dp = (int32_t)options->dp;
    strategy.shard = (int32_t)(options->dp / options->replicas);
    strategy.zero = options->dp * options->cp > 1 ? (int32_t)options->zero : 0;
    strategy.pp = (int32_t)options->pp;
    strategy.vp = self->list.chain / self->list.ranks;
    strategy.ep = (int32_t)options->ep;
    strategy.micro_batch = (int32_t)options->micro;
    strategy.micro_batches = options->micros;
    strategy.schedule = options->pp > 1 ? placed_like(self) : (int32_t)DPAR_SCHEDULE_1F1B;
    return strategy;
}

/* Describes the model to the planner. A job needs a cluster, too, but its rates are not used. */
static dpar_status describe_job(const trainer *self, dpar_workload *work, dpar_cluster *cluster,
                                dpar_job *job, dpar_why *why)
{
    const gpt_config *config = &self->config;
    const double mine = ceil((double)config->experts / self->options->ep);
    const char *recipe = "fp32";
    char text[400], machine[40];
    dpar_model model;
    int length;
    dpar_status st;
    memset(job, 0, sizeof *job);
    job->work = work;
    job->cluster = cluster;
    if (self->options->pure) {
        recipe = "pure-bf16";
    } else if (self->options->bf16) {
        recipe = "megatron";
    }
    length = snprintf(text, sizeof text,
                      "%s:layers=%d,hidden=%d,heads=%d,kv_heads=%d,ffn=%d,vocab=%d,seq=%d,"
                      "tied=%d,biases=-1,element=%d,attention=flash,stack=core",
                      config->gelu ? "gpt" : "llama", config->blocks, config->width, config->heads,
                      config->groups, config->hidden, config->vocab, config->length, config->tied,
                      (int)sizeof(gpt_real));
    if (config->experts > 0) { /* a rank has capacity for all rows that could come */
        const double most = mine < config->choices ? mine : config->choices;
        length += snprintf(text + length, sizeof text - (size_t)length,
                           ",experts=%d,topk=%d,expert_ffn=%d,shared_ffn=%d,expert_step=2,"
                           "expert_offset=1,capacity=%.9g",
                           config->experts, config->choices, config->hidden, config->shared,
                           self->options->ep * most / config->choices);
    }
    st = dpar_model_read(&model, text, (size_t)length, why);
    if (st == DPAR_OK) {
        st = dpar_workload_init(work, &model, 0, why);
    }
    if (st == DPAR_OK) {
        st = dpar_recipe_find(&job->recipe, recipe, why);
    }
    if (st == DPAR_OK) {
        length = snprintf(machine, sizeof machine, "1x%d:core", (int)self->world->size);
        st = dpar_cluster_read(cluster, machine, (size_t)length, why);
    }
    if (self->options->pure) { /* the model's gradients have its own type */
        job->recipe.gradient = job->recipe.reduced = (double)sizeof(gpt_real);
    }
    if (!self->options->bf16) { /* the recipe counts 4 bytes for each number */
        const double scale = (double)sizeof(gpt_real) / 4.0;
        job->recipe.weight *= scale;
        job->recipe.gradient *= scale;
        job->recipe.master *= scale;
        job->recipe.moments *= scale;
        job->recipe.gathered *= scale;
        job->recipe.reduced *= scale;
    }
    return st;
}

/* Bytes that a rank of the pipeline keeps of a micro-batch in one of its stages: the planner's
 * activations, and the logits, which become their own gradient. */
static double kept_bytes(const trainer *self, const dpar_job *job, const dpar_strategy *strategy,
                         int32_t stage)
{
    const int32_t place = stage % self->list.chain;
    dpar_strategy chain = *strategy;
    dpar_memory_usage usage;
    double bytes;
    chain.pp = self->list.chain;
    chain.vp = 1;
    chain.schedule = DPAR_SCHEDULE_1F1B;
    chain.micro_batches = 1;
    dpar_memory_stage(job, &chain, place, &usage);
    bytes = usage.term[DPAR_MEMORY_ACTIVATIONS];
    if (place == self->list.chain - 1) {
        bytes += (double)self->model->tokens * (double)dpar_vocab_row_count(&self->model->vocab) *
                 (double)sizeof(gpt_real);
    }
    return bytes;
}

/* Bytes that I leaves for W in a stage. */
static double pending_bytes(const trainer *self, int32_t stage)
{
    double bytes = 0.0;
    int32_t last, layer = stage_layers(self, stage, &last);
    for (; layer < last; layer++) {
        bytes += (double)gpt_pending_bytes(self->model, layer);
    }
    return bytes;
}

/* True if a rank of the pipeline has the first or the last stage of a chain. */
static int has_end(const trainer *self, int32_t rank)
{
    int32_t stage;
    for (stage = 0; stage < self->list.stages; stage++) {
        const int32_t place = stage % self->list.chain;
        if (self->list.rank_of[stage] == rank && (place == 0 || place == self->list.chain - 1)) {
            return 1;
        }
    }
    return 0;
}

/* Predicts the memory of a rank of the pipeline. */
static void memory_of(const trainer *self, const dpar_job *job, int32_t rank,
                      const dpar_slot_counts *slots, const int64_t *model_bytes, double *term)
{
    const settings *options = self->options;
    const dpar_strategy strategy = strategy_of(self);
    const double between =
        (double)self->model->own * (double)self->config.width * (double)sizeof(gpt_real);
    const double units = self->list.ranks == 1 ? options->prefetch + 1.0 : 1.0;
    const int tied = self->config.tied && has_end(self, rank);
    double kept = 0.0, pending = 0.0, local = 0.0;
    dpar_strategy pooled = strategy, summed = strategy;
    dpar_memory_usage usage, pools;
    int32_t stage;
    memset(term, 0, MEMORY_TERMS * sizeof *term);
    dpar_memory_stage(job, &strategy, rank, &usage);
    term[MEMORY_WEIGHTS] = usage.term[DPAR_MEMORY_WEIGHTS];
    term[MEMORY_OPTIMIZER] = usage.term[DPAR_MEMORY_MASTER] + usage.term[DPAR_MEMORY_OPTIMIZER];
    if (options->zero > 1) { /* the planner has these from two ranks on */
        pooled.zero = (int32_t)options->zero;
        if (pooled.dp * pooled.cp < 2) {
            pooled.dp = pooled.shard = 2;
        }
        dpar_memory_stage(job, &pooled, rank, &pools);
        term[MEMORY_GATHERED] = pools.term[DPAR_MEMORY_GATHERED] * units / 2.0; /* it counts two */
        term[MEMORY_BUCKETS] = self->each ? pools.term[DPAR_MEMORY_BUCKETS] : 0.0;
    }
    if (!self->each && strategy.zero > 1) { /* gradients are accumulated over micro-batches */
        summed.zero = 1;
        dpar_memory_stage(job, &summed, rank, &usage);
    }
    term[MEMORY_GRADIENTS] = usage.term[DPAR_MEMORY_GRADIENTS];
    if (tied) { /* the table has units of its own, and the gradient that the pipeline adds up */
        const double count = (double)self->tied_count;
        term[MEMORY_GATHERED] += options->zero > 2 ? count * job->recipe.gathered : 0.0;
        term[MEMORY_BUCKETS] += options->zero > 1 ? count * job->recipe.reduced : 0.0;
        term[MEMORY_SCRATCH] += count * (double)sizeof(gpt_real);
    }
    for (stage = 0; stage < self->list.stages; stage++) {
        if (self->list.rank_of[stage] == rank) {
            kept = fmax(kept, kept_bytes(self, job, &strategy, stage));
            pending = fmax(pending, pending_bytes(self, stage));
        }
        if (stage > 0 && stage % self->list.chain > 0 && self->list.rank_of[stage] == rank &&
            self->list.rank_of[stage - 1] == rank) {
            local += 2.0; /* stages of one rank pass an activation and a gradient */
        }
    }
    term[MEMORY_ACTIVATIONS] = slots->activation * kept + slots->weight * pending;
    term[MEMORY_MESSAGES] = (slots->receive + slots->send + local) * between;
    term[MEMORY_SCRATCH] += (double)(model_bytes[GPT_PLANS] + model_bytes[GPT_ARRAYS]);
    term[MEMORY_SCRATCH] += 2.0 * between + (double)wide_bytes(self);
}

/* Predicts the memory of the rank of the pipeline that needs the most. */
static dpar_status plan_memory_of(const trainer *self, const dpar_job *job, double *term,
                                  double *bytes, dpar_why *why)
{
    dpar_slot_counts *slots;
    dpar_schedule_slots_desc desc;
    int64_t model_bytes[GPT_PIECES];
    void *memory;
    int32_t rank, i;
    dpar_status st = gpt_bytes(&self->config, &self->in_model, model_bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    memset(&desc, 0, sizeof desc);
    (void)dpar_schedule_slots(&self->list, &desc, NULL, 0, why); /* sets why->bytes */
    slots = (dpar_slot_counts *)calloc((size_t)self->list.ranks, sizeof *slots);
    memory = malloc((size_t)why->bytes + 1);
    desc.counts = slots;
    st = DPAR_E_MEMORY;
    if (slots != NULL && memory != NULL) {
        st = dpar_schedule_slots(&self->list, &desc, memory, why->bytes, why);
    }
    for (rank = 0; rank < self->list.ranks && st == DPAR_OK; rank++) {
        double one[MEMORY_TERMS], sum = 0.0;
        memory_of(self, job, rank, &slots[rank], model_bytes, one);
        for (i = 0; i < MEMORY_TERMS; i++) {
            sum += one[i];
        }
        if (sum > *bytes) {
            *bytes = sum;
            memcpy(term, one, sizeof one);
        }
    }
    free(slots);
    free(memory);
    return st;
}

/* ---- time ------------------------------------------------------------------------------------ */

enum {
    TIME_FORWARD,
    TIME_BACKWARD,
    TIME_IDLE,  /* waiting in the pipeline, and its messages */
    TIME_CORES, /* waiting for a core that other ranks use */
    TIME_DATA,  /* messages of data parallelism */
    TIME_OPTIMIZER,
    TIME_HOST, /* samples, gradients set to 0, the norm and the loss of all ranks */
    TIME_TERMS
};
static const char *const time_names[TIME_TERMS] = {"forward", "backward",  "idle", "cores",
                                                   "data",    "optimizer", "host"};

/* Sets the times of a stage in ns, from those of its layers. */
static void stage_times(const trainer *self, const step_rates *rates, int32_t stage,
                        int64_t *const *row)
{
    int32_t last, layer = stage_layers(self, stage, &last);
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    int32_t i;
    for (; layer < last; layer++) {
        const layer_cost *cost = &rates->layer[layer_kind(self, layer)];
        sum[0] += cost->forward;
        sum[1] += cost->backward;
        sum[2] += cost->input;
        sum[3] += cost->weight;
    }
    for (i = 0; i < 4; i++) {
        row[i][stage] = (int64_t)(1e9 * sum[i]);
    }
}

/* Adds up the work of a micro-batch in forward and in backward over all actions of the schedule. */
static void add_work(const trainer *self, int64_t *const *row, double *term)
{
    int64_t k;
    for (k = 0; k < self->list.begin[self->list.ranks]; k++) {
        const dpar_action *action = &self->list.action[k];
        switch (action->kind) {
        case DPAR_ACTION_FORWARD: term[TIME_FORWARD] += 1e-9 * (double)row[0][action->stage]; break;
        case DPAR_ACTION_BACKWARD:
            term[TIME_BACKWARD] += 1e-9 * (double)row[1][action->stage];
            break;
        case DPAR_ACTION_INPUT: term[TIME_BACKWARD] += 1e-9 * (double)row[2][action->stage]; break;
        case DPAR_ACTION_WEIGHT: term[TIME_BACKWARD] += 1e-9 * (double)row[3][action->stage]; break;
        default: break;
        }
    }
}

/* Simulates the schedule. Sets the seconds of a step in which each rank has a core. */
static dpar_status simulate(const trainer *self, const step_rates *rates, int64_t *const *row,
                            double *seconds, dpar_why *why)
{
    dpar_schedule_times times;
    dpar_schedule_simulate_desc desc;
    dpar_timing timing;
    void *memory;
    dpar_status st;
    memset(&times, 0, sizeof times);
    memset(&desc, 0, sizeof desc);
    times.forward.each = row[0];
    times.backward.each = row[1];
    times.input.each = row[2];
    times.weight.each = row[3];
    times.latency.all = (int64_t)(1e9 * rates->latency);
    times.bytes.all = (int64_t)self->model->own * self->config.width * (int64_t)sizeof(gpt_real);
    times.bandwidth.all = (int64_t)(rates->copy_Bps / 2.0); /* a copy reads and writes */
    desc.times = &times;
    (void)dpar_schedule_simulate(&self->list, &desc, &timing, NULL, 0, why); /* sets why->bytes */
    memory = malloc((size_t)why->bytes + 1);
    if (memory == NULL) {
        return DPAR_E_MEMORY;
    }
    st = dpar_schedule_simulate(&self->list, &desc, &timing, memory, why->bytes, why);
    *seconds = 1e-9 * (double)timing.makespan;
    free(memory);
    return st;
}

/* Predicts the time of a step. */
static dpar_status plan_time(const trainer *self, const step_rates *rates, double *term,
                             dpar_why *why)
{
    const double ranks = self->list.ranks, all = self->world->size;
    int64_t *row[4];
    double alone = 0.0, work;
    int32_t i, stage;
    dpar_status st;
    memset(term, 0, TIME_TERMS * sizeof *term);
    row[0] = (int64_t *)calloc((size_t)self->list.stages * 4, sizeof *row[0]);
    if (row[0] == NULL) {
        return DPAR_E_MEMORY;
    }
    for (i = 1; i < 4; i++) {
        row[i] = row[0] + (int64_t)i * self->list.stages;
    }
    for (stage = 0; stage < self->list.stages; stage++) {
        stage_times(self, rates, stage, row);
    }
    add_work(self, row, term);
    st = simulate(self, rates, row, &alone, why);
    free(row[0]);
    term[TIME_FORWARD] /= ranks;
    term[TIME_BACKWARD] /= ranks;
    term[TIME_OPTIMIZER] = rates->optimizer;
    term[TIME_HOST] = rates->host + 3.0 * rates->latency;
    term[TIME_DATA] = rates->data;
    work = term[TIME_FORWARD] + term[TIME_BACKWARD];
    term[TIME_IDLE] = alone - work;
    work += term[TIME_OPTIMIZER] + rates->host;
    alone += term[TIME_OPTIMIZER] + rates->host;
    if (rates->cores > 0.0 && work * all > alone * rates->cores) {
        term[TIME_CORES] = work * all / rates->cores - alone;
    }
    return st;
}

/* ---- both ------------------------------------------------------------------------------------ */

static void print_terms(const char *what, const char *const *names, const double *term, int32_t n,
                        double unit)
{
    int32_t i;
    printf("planned %s:", what);
    for (i = 0; i < n; i++) {
        if (term[i] > 0.0) {
            printf(" %s %.3f", names[i], term[i] * unit);
        }
    }
}

/* Predicts memory and time of this job, and prints them, or why the planner cannot. Returns 1 on
 * failure. */
static int plan(trainer *self, forecast *expected)
{
    static dpar_workload work;
    static dpar_cluster cluster;
    static dpar_plan price;
    const dpar_strategy strategy = strategy_of(self);
    double memory[MEMORY_TERMS] = {0.0}, time[TIME_TERMS] = {0.0};
    step_rates rates;
    dpar_job job;
    dpar_why why;
    int32_t i;
    dpar_status st;
    memset(expected, 0, sizeof *expected);
    memset(&why, 0, sizeof why);
    st = describe_job(self, &work, &cluster, &job, &why);
    if (st == DPAR_OK) {
        st = dpar_plan_price(&job, &strategy, 0, &price, NULL, &why);
    }
    if (st == DPAR_OK) {
        st = plan_memory_of(self, &job, memory, &expected->bytes, &why);
    }
    if (self->world->rank == 0 && st != DPAR_OK) {
        printf("the planner cannot predict the memory: %s\n", why.text);
    } else if (self->world->rank == 0) {
        print_terms("memory of a rank", memory_names, memory, MEMORY_TERMS, 1e-6);
        printf(" = %.3f MB\n", expected->bytes / 1e6);
    }
    if (measure_step(self, &rates) || plan_time(self, &rates, time, &why) != DPAR_OK) {
        if (self->world->rank == 0 && self->world->status == DPAR_OK) {
            printf("the time is not planned: there is no memory for the measurements\n");
        }
        return self->world->status != DPAR_OK;
    }
    for (i = 0; i < TIME_TERMS; i++) {
        expected->seconds += time[i];
    }
    if (self->world->rank == 0) {
        print_terms("step", time_names, time, TIME_TERMS, 1e3);
        printf(" = %.3f ms, %.0f tokens/s\n", expected->seconds * 1e3,
               self->options->batch * self->options->length / expected->seconds);
        fflush(stdout);
    }
    return 0;
}
#endif

#endif
