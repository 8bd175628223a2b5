/* SPDX-License-Identifier: MIT-0 */
/* train_rates - measures how long the parts of a step of train_gpt.c take on this machine, for
 * train_plan.h: a layer of each kind, the messages, and the optimizer. It takes less time than a
 * few steps and changes nothing of the trainer. train_plan.h includes it.
 *
 * All ranks measure the same part at the same time, so that they compete for cores, caches and
 * memory as they do while they train. If a node has more ranks than cores, the ranks take turns,
 * and a time on the clock says little about the work that was done in it. The work of a layer is
 * then its processor time, which does not run while another rank has the core. Messages are always
 * measured on the clock, because most of their time is waiting for other ranks. */
#ifndef TRAIN_RATES_H
#define TRAIN_RATES_H

/* Kinds of layers: the embedding, blocks with an MLP, blocks with experts, and the head. */
enum { LAYER_EMBEDDING, LAYER_BLOCK, LAYER_EXPERTS, LAYER_HEAD, LAYER_KINDS };

/* Seconds of work that a layer takes for a micro-batch, with the messages of tensor, context and
 * expert parallelism in it. backward is both parts at once, input and weight one part each. */
typedef struct layer_cost {
    double forward, backward, input, weight;
} layer_cost;

typedef struct step_rates {
    double cores;                  /* of all nodes; 0 if the system does not tell */
    int turns;                     /* 1: there are more ranks than cores, so that they take turns */
    layer_cost layer[LAYER_KINDS]; /* 0 for kinds that the model does not have */
    double latency, copy_Bps;      /* seconds of an all-reduce of 8 bytes; bytes/s of a copy */
    double data;      /* seconds of a step for messages of data parallelism, of the slowest rank */
    double optimizer; /* seconds of work of a step: squares of gradients, and updates */
    double host;      /* seconds of work of a step: samples, and gradients set to 0 */
} step_rates;

enum { RATE_ROUNDS = 5 }; /* of each measurement, of which the middle one counts */

/* Processor time of this rank in seconds. It suits parts without messages, and parts that are too
 * short for the clock. */
static double worked(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static int32_t layer_kind(const trainer *self, int32_t layer)
{
    if (layer == 0) {
        return LAYER_EMBEDDING;
    }
    if (layer == self->layers - 1) {
        return LAYER_HEAD;
    }
    return gpt_mixes(self->model, layer) ? LAYER_EXPERTS : LAYER_BLOCK;
}

/* ---- the optimizer -------------------------------------------------------------------------- */

/* Fills an array with random numbers of a mean and a deviation. */
static void invent(gpt_real *values, int64_t count, double mean, double deviation)
{
    int64_t i;
    for (i = 0; i < count; i++) {
        const double x = (double)(mix((uint64_t)count, (uint64_t)i) >> 40) / (1 << 23) - 1.0;
        values[i] = (gpt_real)(mean + sqrt(3.0) * deviation * x); /* x has deviation 1 / sqrt(3) */
    }
}

static dpar_status add_squares(const trainer *self, const void *in, int64_t count, int32_t type,
                               double *sum)
{
    dpar_mem_squares desc;
    memset(&desc, 0, sizeof desc);
    desc.in = in;
    desc.count = count;
    desc.type = type;
    desc.accumulate = 1;
    desc.sum = sum;
    return self->of_layers.squares(self->mem.ctx, &desc);
}

/* The optimizer's arrays for as many elements as this rank updates, or for some of them, which are
 * then used again and again. */
typedef struct sweep {
    trainer *self;
    void *shared;     /* the memory, of dpar_comm_alloc */
    gpt_real *memory; /* weights, gradients and moments, `count` of each */
    int64_t count, at;
    double seconds; /* of work that an update takes */
    dpar_status status;
} sweep;

/* Elements of a piece of the next n, at most `count`. */
static int64_t next_piece(sweep *all, int64_t n)
{
    n = n < all->count ? n : all->count;
    all->at = all->at + n <= all->count ? all->at : 0;
    all->at += n;
    return all->at - n;
}

/* Updates a parameter or shard of n elements. */
static void sweep_update(sweep *all, int64_t n)
{
    const trainer *self = all->self;
    dpar_optimizer_piece piece;
    dpar_mem_optimize desc;
    memset(&piece, 0, sizeof piece);
    memset(&desc, 0, sizeof desc);
    piece.weight_type = self->options->pure ? (int32_t)DPAR_BF16 : (int32_t)GPT_TYPE;
    piece.gradient_type = GPT_TYPE;
    desc.optimizer = &self->stores[DENSE].optimizer;
    desc.piece = &piece;
    desc.step = 1;
    desc.factor = 1.0;
    while (n > 0 && all->status == DPAR_OK) {
        const int64_t at = next_piece(all, n);
        piece.count = n < all->count ? n : all->count;
        piece.weight = all->memory + at;
        piece.gradient = all->memory + all->count + at;
        piece.m = all->memory + 2 * all->count + at;
        piece.v = all->memory + 3 * all->count + at;
        all->status = self->of_layers.optimize(self->mem.ctx, &desc);
        n -= piece.count;
    }
}

/* Adds the squares of n gradients. */
static void sweep_squares(sweep *all, int64_t n)
{
    const trainer *self = all->self;
    double sum = 0.0;
    while (n > 0 && all->status == DPAR_OK) {
        const int64_t at = next_piece(all, n), count = n < all->count ? n : all->count;
        all->status =
            add_squares(self, all->memory + all->count + at, count, (int32_t)GPT_TYPE, &sum);
        n -= count;
    }
}

/* Does what an update of all stores does on this rank: with DDP of all parameters, of which each
 * rank squares a part, and otherwise of this rank's shard of each unit. */
static void sweep_stores(sweep *all)
{
    int32_t k, i;
    for (k = 0; k < STORES; k++) {
        const store *held = &all->self->stores[k];
        int64_t unit = 0;
        if (held->ddp != NULL) {
            sweep_squares(all, held->length / held->all->size);
            sweep_update(all, held->length);
        }
        for (i = 0; i < held->params && held->fsdp != NULL; i++) {
            unit += held->numel[i];
            if (i == held->params - 1 || held->of[i + 1].unit != held->of[i].unit) {
                sweep_squares(all, unit / held->shard->size);
                sweep_update(all, unit / held->shard->size);
                unit = 0;
            }
        }
    }
}

/* Allocates the arrays. Returns 1 on failure. */
static int open_sweep(trainer *self, sweep *swept)
{
    enum { MOST = 1 << 22 };
    int64_t all = 1;
    int32_t k, i;
    dpar_status st;
    memset(swept, 0, sizeof *swept);
    for (k = 0; k < STORES; k++) {
        const store *held = &self->stores[k];
        all += held->length;
        for (i = 0; i < held->params && held->fsdp != NULL; i++) {
            all += held->numel[i] / held->shard->size;
        }
    }
    swept->self = self;
    swept->count = all < MOST ? all : (int64_t)MOST;
    st = dpar_comm_alloc(self->world, 4 * swept->count * (int64_t)sizeof *swept->memory,
                         &swept->shared);
    if (anyone(self->world, st != DPAR_OK)) {
        return 1;
    }
    swept->memory = (gpt_real *)swept->shared;
    invent(swept->memory + swept->count, swept->count, 0.0, 0.1);
    sweep_stores(swept); /* makes the second moments positive */
    return 0;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* A layer with invented weights and inputs, on every rank, whichever stage it has. */
typedef struct trial {
    int32_t layer;
    int turns;         /* of step_rates */
    int64_t numel;     /* elements of its weights */
    gpt_real *rounded; /* [numel] with bf16: weights that are converted before each use */
    const gpt_real *weight[GPT_SLOTS];
    gpt_real *gradient[GPT_SLOTS];
    gpt_real *in, *out, *change; /* input; output, also of backward; gradient of the output */
    void *kept, *pending;
    gpt_batch batch;
} trial;

/* Places the arrays of a trial, or counts how many bytes they take if room has no memory. */
static void place_trial(const trainer *self, trial *r, gpt_room *room)
{
    const int64_t own = self->model->own * self->config.width;
    gpt_parameter shape;
    int32_t slot;
    r->numel = 0;
    for (slot = 0; slot < GPT_SLOTS; slot++) {
        r->weight[slot] = NULL;
        r->gradient[slot] = NULL;
        if (gpt_parameter_of(self->model, r->layer, slot, &shape)) {
            gpt_real *values = gpt_take_real(room, shape.numel);
            r->weight[slot] = values;
            r->gradient[slot] = gpt_take_real(room, shape.numel);
            r->numel += shape.numel;
            if (values != NULL) {
                invent(values, shape.numel, shape.mean, shape.deviation);
            }
        }
    }
    r->in = gpt_take_real(room, own);
    r->out = gpt_take_real(room, own);
    r->change = gpt_take_real(room, own);
    r->rounded = gpt_take_real(room, self->options->bf16 ? r->numel : 0);
    r->kept = gpt_take(room, gpt_kept_bytes(self->model, r->layer), 1);
    r->pending = gpt_take(room, gpt_pending_bytes(self->model, r->layer), 1);
    if (r->in != NULL) {
        invent(r->in, own, 0.0, 1.0);
        invent(r->change, own, 0.0, r->batch.scale);
    }
}

/* Runs F (parts 0), B, I or W of a layer once and adds the seconds that it takes to *sum. */
static dpar_status run_trial(trainer *self, trial *r, int32_t parts, double *sum)
{
    const double began = r->turns ? worked() : now();
    dpar_status st = DPAR_OK;
    if (self->options->bf16 && parts != GPT_WEIGHT) {
        st = widen(self, r->rounded, r->numel, self->wide);
    }
    if (st == DPAR_OK && parts == 0) {
        st = gpt_forward(self->model, r->layer, r->weight, &r->batch, r->in, r->out, r->kept);
    } else if (st == DPAR_OK) {
        st = gpt_backward(self->model, r->layer, parts, r->weight, r->gradient, &r->batch,
                          r->change, r->out, r->kept, r->pending);
    }
    *sum += (r->turns ? worked() : now()) - began;
    return st;
}

/* Several layers of a kind, which run one after the other as those of a stage do. So the weights
 * and what is kept are as far away in the caches as they are in training. */
typedef struct trials {
    trial *of;
    int32_t count;
    int whole, split; /* whether the schedule has B, and I and W */
} trials;

/* Runs the layers forward and backward `times` times. Sets *cost to the seconds of one layer. */
static dpar_status run_trials(trainer *self, const trials *all, int32_t times, layer_cost *cost)
{
    const double runs = (double)times * all->count;
    int32_t i, j;
    dpar_status st = dpar_barrier(self->world, NULL);
    memset(cost, 0, sizeof *cost);
    for (i = 0; i < times && st == DPAR_OK; i++) {
        for (j = 0; j < all->count && st == DPAR_OK; j++) {
            st = run_trial(self, &all->of[j], 0, &cost->forward);
        }
        for (j = all->count - 1; j >= 0 && all->whole && st == DPAR_OK; j--) {
            st = run_trial(self, &all->of[j], GPT_BOTH, &cost->backward);
        }
        for (j = all->count - 1; j >= 0 && all->split && st == DPAR_OK; j--) {
            st = run_trial(self, &all->of[j], GPT_INPUT, &cost->input);
        }
        for (j = all->count - 1; j >= 0 && all->split && st == DPAR_OK; j--) {
            st = run_trial(self, &all->of[j], GPT_WEIGHT, &cost->weight);
        }
    }
    cost->forward /= runs;
    cost->backward /= runs;
    cost->input /= runs;
    cost->weight /= runs;
    return st;
}

/* The number in the middle of the rounds. */
static double middle_of(const double *took)
{
    int32_t i, j;
    for (i = 0; i < RATE_ROUNDS; i++) {
        int32_t below = 0;
        for (j = 0; j < RATE_ROUNDS; j++) {
            below += took[j] < took[i] || (j < i && !(took[j] > took[i]));
        }
        if (below == RATE_ROUNDS / 2) {
            return took[i];
        }
    }
    return took[0];
}

static double sum_of(const layer_cost *cost)
{
    return cost->forward + cost->backward + cost->input + cost->weight;
}

/* Runs the layers in rounds like steps: as many micro-batches as a step has, or for about 20 ms,
 * and then an update, so that both find the caches as in training. Sets *cost to the round in the
 * middle. */
static dpar_status time_trials(trainer *self, const trials *all, sweep *swept, layer_cost *cost)
{
    layer_cost round[RATE_ROUNDS];
    double longest, took[RATE_ROUNDS], updates[RATE_ROUNDS] = {0.0};
    int32_t i, times;
    dpar_status st = run_trials(self, all, 1, cost);
    if (st == DPAR_OK) { /* the first run had cold caches and new pages */
        st = run_trials(self, all, 1, cost);
    }
    longest = dpar_max(self->world, all->count * sum_of(cost));
    times = longest > 0.0 && longest < 0.02 ? (int32_t)(0.02 / longest) + 1 : 1;
    times = times < self->options->micros ? times : self->options->micros;
    for (i = 0; i < RATE_ROUNDS && st == DPAR_OK; i++) {
        st = run_trials(self, all, times, &round[i]);
        updates[i] = worked();
        sweep_stores(swept);
        updates[i] = worked() - updates[i];
    }
    for (i = 0; i < RATE_ROUNDS && st == DPAR_OK; i++) {
        took[i] = sum_of(&round[i]);
    }
    longest = middle_of(updates);
    swept->seconds = longest > swept->seconds ? longest : swept->seconds;
    longest = middle_of(took);
    for (i = 0; i < RATE_ROUNDS && st == DPAR_OK; i++) {
        if (!(took[i] < longest) && !(took[i] > longest)) {
            *cost = round[i];
        }
    }
    return st;
}

/* Measures a layer that stands for `count` layers of a rank. Sets *cost to the mean of the ranks.
 */
static int measure_layer(trainer *self, int32_t layer, int32_t count, trials *all, int turns,
                         sweep *swept, layer_cost *cost)
{
    enum { MOST_TRIALS = 8, MOST_BYTES = 64 << 20 };
    const settings *options = self->options;
    gpt_room room = {NULL, 0};
    trial made[MOST_TRIALS];
    double *numbers = (double *)cost;
    void *memory = NULL;
    int32_t i;
    dpar_status st;
    memset(made, 0, sizeof made);
    for (i = 0; i < MOST_TRIALS; i++) {
        made[i].layer = layer;
        made[i].turns = turns;
        made[i].batch = self->batch[0];
        made[i].batch.sum = NULL;
        made[i].batch.scale = 1.0 / (options->batch * options->length);
    }
    place_trial(self, &made[0], &room);
    all->of = made;
    all->count = count < MOST_TRIALS ? count : (int32_t)MOST_TRIALS;
    while (all->count > 1 && all->count * room.used > MOST_BYTES) {
        all->count--;
    }
    numbers[0] = dpar_min(self->world, all->count); /* ranks run the same collectives */
    if (self->world->status != DPAR_OK) {
        return 1;
    }
    all->count = (int32_t)numbers[0];
    st = dpar_comm_alloc(self->world, all->count * room.used, &memory);
    if (anyone(self->world, st != DPAR_OK)) {
        if (memory != NULL) {
            dpar_comm_release(self->world, memory);
        }
        return 1;
    }
    room.memory = (char *)memory;
    room.used = 0;
    for (i = 0; i < all->count; i++) {
        place_trial(self, &made[i], &room);
    }
    st = time_trials(self, all, swept, cost);
    for (i = 0; i < 4; i++) {
        numbers[i] = dpar_mean(self->world, numbers[i]);
    }
    dpar_comm_release(self->world, memory);
    return anyone(self->world, st != DPAR_OK);
}

/* Measures a layer of each kind that the model has. */
static int measure_layers(trainer *self, step_rates *rates, sweep *swept)
{
    int32_t count[LAYER_KINDS] = {0};
    int32_t layer, k;
    int bad = 0;
    trials all;
    memset(&all, 0, sizeof all);
    for (k = 0; k < self->list.begin[self->list.ranks]; k++) {
        all.whole |= self->list.action[k].kind == DPAR_ACTION_BACKWARD;
        all.split |= self->list.action[k].kind == DPAR_ACTION_INPUT;
    }
    for (layer = 0; layer < self->layers; layer++) {
        count[layer_kind(self, layer)]++;
    }
    for (layer = 0; layer < self->layers && !bad; layer++) {
        const int32_t kind = layer_kind(self, layer);
        layer_cost *cost = &rates->layer[kind];
        const int32_t of_rank = (count[kind] + self->list.ranks - 1) / self->list.ranks;
        if (!(cost->forward > 0.0)) {
            bad = measure_layer(self, layer, of_rank, &all, rates->turns, swept, cost);
        }
    }
    return bad;
}

/* ---- messages -------------------------------------------------------------------------------- */

enum { MESSAGE_REDUCE, MESSAGE_GATHER, MESSAGE_SCATTER };

/* Measures a collective of `count` elements in all, rounded up to equal parts. The result is the
 * seconds of one call, or 0 if the group has one rank. Sets *bad on failure. Collective over comm.
 */
static double message_seconds(dpar_comm *comm, int32_t kind, int64_t count, int32_t type, int *bad)
{
    int failed;
    const int64_t share = (count + comm->size - 1) / comm->size;
    const int32_t times = count > 1 << 18 ? 2 : 8;
    double began = 0.0;
    void *all = NULL, *own = NULL;
    dpar_status st;
    int32_t i;
    if (comm->size < 2 || count < 1) {
        return 0.0;
    }
    st = dpar_comm_alloc(comm, share * comm->size * dpar_type_bytes(type), &all);
    if (st == DPAR_OK) {
        st = dpar_comm_alloc(comm, share * dpar_type_bytes(type), &own);
    }
    failed = anyone(comm, st != DPAR_OK);
    for (i = -1; i < times && !failed; i++) {
        if (i == 0) {
            began = now();
        }
        if (kind == MESSAGE_REDUCE) {
            st = dpar_all_reduce(comm, all, all, share * comm->size, type, DPAR_SUM, NULL);
        } else if (kind == MESSAGE_GATHER) {
            st = dpar_all_gather(comm, own, all, share, type, NULL);
        } else {
            st = dpar_reduce_scatter(comm, all, own, share, type, DPAR_SUM, NULL);
        }
        failed = st != DPAR_OK;
    }
    began = (now() - began) / times;
    (void)dpar_barrier(comm, NULL);
    if (own != NULL) {
        dpar_comm_release(comm, own);
    }
    if (all != NULL) {
        dpar_comm_release(comm, all);
    }
    *bad |= failed;
    return failed ? 0.0 : began;
}

/* Measures what the messages of a store take in a step. Every rank that shares the store calls it.
 *
 * DDP reduces all gradients once. ZeRO-1 and 2 gather all weights once a step; ZeRO-3 gathers a
 * unit for forward and for backward of each micro-batch, except for those that are still in the
 * pool. Gradients are reduced once a step, or with ZeRO-2 and 3 in each micro-batch, unless these
 * overlap. Replicas reduce their shards once. */
static double store_messages(trainer *self, const store *held, int *bad)
{
    const settings *options = self->options;
    const int table = held == &self->stores[TABLE];
    const double pool = self->list.ranks == 1 ? options->prefetch + 1.0 : 1.0;
    const int32_t weights = options->bf16 ? (int32_t)DPAR_BF16 : (int32_t)GPT_TYPE;
    double gathers = held->units, scatters = held->units, sum;
    int64_t count = 0;
    int32_t i;
    for (i = 0; i < held->params; i++) {
        count += held->numel[i];
    }
    if (held->ddp != NULL) {
        return message_seconds(held->all, MESSAGE_REDUCE, count, GPT_TYPE, bad);
    }
    if (options->zero > 2 && held->units > pool) {
        gathers = options->micros * 2.0 * (held->units - pool);
    }
    if (options->zero > 1 && self->each && !table) {
        scatters = options->micros * (double)held->units;
    }
    sum = gathers * message_seconds(held->shard, MESSAGE_GATHER, count / held->units, weights, bad);
    sum += scatters *
           message_seconds(held->shard, MESSAGE_SCATTER, count / held->units, GPT_TYPE, bad);
    if (held->across != NULL) {
        sum +=
            message_seconds(held->across, MESSAGE_REDUCE, count / held->shard->size, GPT_TYPE, bad);
    }
    return sum;
}

/* Measures the messages of data parallelism in a step, and those that add up the gradients of the
 * tied table and of parameters that tensor-parallel ranks share. */
static int measure_messages(trainer *self, step_rates *rates)
{
    const settings *options = self->options;
    enum { CALLS = 20 };
    int32_t i;
    int bad = 0;
    double began = 0.0, word = 0.0, sums = 0.0;
    for (i = -2; i < CALLS && !bad; i++) {
        if (i == 0) {
            began = now();
        }
        bad = dpar_all_reduce(self->world, &word, &word, 1, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    }
    rates->latency = self->world->size > 1 ? dpar_max(self->world, (now() - began) / CALLS) : 0.0;
    for (i = 0; i < STORES; i++) { /* also after a failure, because other ranks wait */
        if (self->stores[i].params > 0) {
            rates->data += store_messages(self, &self->stores[i], &bad);
        }
    }
    if (self->tied != NULL && self->stores[TABLE].ends > 1) {
        rates->data += rates->latency +
                       2.0 * (double)self->tied_count * (double)sizeof(gpt_real) / rates->copy_Bps;
    }
    if (options->sp && options->tp > 1) { /* gpt_sum of each norm */
        sums = 2.0 * options->blocks + 1.0;
    }
    rates->data += sums * rates->latency * (options->zero > 1 && self->each ? options->micros : 1);
    rates->data = dpar_max(self->world, rates->data);
    return anyone(self->world, bad);
}

/* ---- the rest of a step ---------------------------------------------------------------------- */

/* True until this rank has worked for 2 ms since `began`. Short parts are repeated until then. */
static int goes_on(double began)
{
    return worked() - began < 0.002;
}

/* Measures copies between two arrays of a megabyte, in bytes that are read or written a second. */
static int measure_copies(trainer *self, step_rates *rates)
{
    enum { BIG = 1 << 20 };
    char *memory = (char *)malloc(2 * BIG);
    double began;
    int32_t i = 0;
    if (anyone(self->world, memory == NULL)) {
        free(memory);
        return 1;
    }
    memset(memory, 1, 2 * BIG);
    began = worked();
    do {
        memcpy(memory + i % 2 * BIG, memory + (i + 1) % 2 * BIG, BIG);
        i++;
    } while (goes_on(began));
    rates->copy_Bps = dpar_mean(self->world, 2.0 * BIG * i / (worked() - began));
    free(memory);
    return 0;
}

/* Measures how long a step's samples take, and adds the gradients that are set to 0. */
static void measure_host(trainer *self, step_rates *rates)
{
    double zeroed = self->tied != NULL ? 2.0 * (double)self->tied_count : 0.0, began;
    int32_t k, i, runs;
    for (k = 0; k < STORES; k++) {
        for (i = 0; i < self->stores[k].params; i++) {
            zeroed += (double)self->stores[k].numel[i];
        }
    }
    began = worked();
    for (runs = 0; runs == 0 || goes_on(began); runs++) {
        read_samples(self, 0, 1.0);
    }
    rates->host = (worked() - began) / runs + zeroed * (double)sizeof(gpt_real) / rates->copy_Bps;
    rates->host = dpar_mean(self->world, rates->host);
}

/* Measures everything. Collective. Returns 1 on all ranks if a rank has no memory for it, or after
 * an error of a communicator. */
static int measure_step(trainer *self, step_rates *rates)
{
    const dpar_comm *node = self->world->node != NULL ? self->world->node : self->world;
    sweep swept;
    dpar_launcher_info job;
    int bad;
    const int launched = dpar_launcher_detect(&job, NULL) == DPAR_OK && job.size > 1;
    memset(rates, 0, sizeof *rates);
    rates->cores = (double)start_cores(launched);
    rates->turns = rates->cores > 0.0 && rates->cores < node->size;
    rates->turns = anyone(self->world, rates->turns); /* nodes may be uneven */
    rates->cores *= (double)self->world->size / node->size;
    if (measure_copies(self, rates) || open_sweep(self, &swept)) {
        return 1;
    }
    measure_host(self, rates);
    bad = measure_layers(self, rates, &swept);
    bad = bad || anyone(self->world, swept.status != DPAR_OK) || measure_messages(self, rates);
    rates->optimizer = dpar_mean(self->world, swept.seconds);
    dpar_comm_release(self->world, swept.shared);
    return bad;
}

#endif
