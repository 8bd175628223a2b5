/* SPDX-License-Identifier: MIT-0 */
/* wire: checks that the engine counts exactly the traffic that the planner predicts. Runs a step of
 * a small transformer in each strategy. The bytes that communicators count (dpar_comm.sent), by
 * kind of operation and summed over ranks, must equal dpar_traffic_count for the same model and
 * strategy, to the byte. The peak of fsdp's registered memory must equal the planner's terms for
 * weights, gradients, state and buffers. Values are not checked here; the tests of each module
 * check them.
 *
 *    wire [processes|threads] [ranks]      without arguments: both, 2 to 8 ranks
 *    mpirun -np 4 wire                     built with -DUSE_MPI */
#include "dpar_cost.h"
#include "dpar_train.h"
#include "rank_program.h"
#include "plan_calls.h"

static const char *const traffic[DPAR_TRAFFIC_COUNT] = {"dp", "tp", "cp", "ep", "pp", "halo"};

#include "expert_calls.h"
#include "tensor_calls.h"

enum { UNITS = 8, MICROS = 3, SEQ = 48, HIDDEN = 48, HEADS = 24, VOCAB = 96, LAYERS = 4 };

/* ---- what the planner predicts --------------------------------------------------------------- */

typedef struct plan {
    dpar_cluster cluster;
    dpar_workload work;
    dpar_job job;
    dpar_strategy strategy;
    dpar_traffic traffic;
    char name[160];
} plan;

static void plan_open(plan *p, int32_t ranks, const char *model, const char *recipe,
                      const char *strategy)
{
    char machine[32];
    dpar_model m;
    dpar_why why = {{0}, 0};
    snprintf(machine, sizeof machine, "1x%d:a100-80", (int)ranks);
    snprintf(p->name, sizeof p->name, "%d ranks, %s, %s, %s", (int)ranks, model, recipe, strategy);
    p->strategy = plain_strategy();
    CHECK_INT(dpar_cluster_read(&p->cluster, machine, strlen(machine), &why), DPAR_OK);
    CHECK_INT(dpar_model_read(&m, model, strlen(model), &why), DPAR_OK);
    CHECK_INT(dpar_workload_init(&p->work, &m, 0, &why), DPAR_OK);
    p->job.work = &p->work;
    p->job.cluster = &p->cluster;
    CHECK_INT(dpar_recipe_find(&p->job.recipe, recipe, &why), DPAR_OK);
    CHECK_INT(dpar_strategy_read(&p->strategy, strategy, strlen(strategy), NULL, &why), DPAR_OK);
    CHECK_INT(dpari_strategy_check(&p->job, &p->strategy, 0, NULL, &why), DPAR_OK);
    CHECK_INT(dpar_strategy_ranks(&p->strategy), ranks);
    if (why.text[0] != 0) {
        printf("%s: %s\n", p->name, why.text);
    }
    dpar_traffic_count(&p->job, &p->strategy, &p->traffic);
}

/* Checks that all ranks of c together have sent the bytes of row `what` of the plan through the
 * communicators `one` and `two`, plus `more` bytes of kind `kind`. Either communicator may be NULL.
 * Then sets their counters to 0. The traffic of c itself is not counted. */
static void counted_is(dpar_comm *c, dpar_comm *one, dpar_comm *two, const plan *p, int32_t what,
                       int32_t kind, int64_t more)
{
    int64_t mine[DPAR_CALL_COLLECTIVE_COUNT], all[DPAR_CALL_COLLECTIVE_COUNT], sum = 0;
    int32_t k;
    for (k = 0; k < DPAR_CALL_COLLECTIVE_COUNT; k++) {
        mine[k] = (one ? one->sent[k] : 0) + (two ? two->sent[k] : 0);
    }
    mine[DPAR_CALL_SEND_RECV] =
        (one ? one->sent[DPAR_CALL_SEND] : 0) + (two ? two->sent[DPAR_CALL_SEND] : 0);
    CHECK_INT(dpar_all_reduce(c, mine, all, DPAR_CALL_COLLECTIVE_COUNT, DPAR_I64, DPAR_SUM, NULL),
              DPAR_OK);
    for (k = 0; k < DPAR_CALL_COLLECTIVE_COUNT; k++) {
        const double want = p->traffic.bytes[what][k] + (k == kind ? (double)more : 0.0);
        CHECK_COUNT(checks_run);
        sum += all[k];
        if ((double)all[k] != want) {
            CHECK_FAILED();
            printf("rank %d: %s: %s, %s: counted %lld, predicted %.17g\n", (int)c->rank, p->name,
                   traffic[what], dpar_call_name(k), (long long)all[k], want);
        }
    }
    CHECK(sum > 0);
    if (one) {
        memset(one->sent, 0, sizeof one->sent);
    }
    if (two) {
        memset(two->sent, 0, sizeof two->sent);
    }
}

/* ---- the count of a single call -------------------------------------------------------------- */

/* Checks the formulas of comm.h for 3 ranks and 7 elements of 4 bytes. */
static void calls_count(void)
{
    static const int64_t pieces[3] = {1, 5, 2};
    /* An all-reduce of 7 elements cuts them into parts of 3, 2 and 2. Rank 0 sends 4 elements of
     * the other parts and its sum of 3 to each of two ranks: 10 elements, 40 bytes. */
    static const int64_t want[DPAR_CALL_COUNT][3] = {
        {0, 0, 0},  {40, 36, 36}, {56, 56, 56}, {56, 56, 56}, {56, 56, 56},
        {0, 56, 0}, {28, 0, 28},  {28, 0, 28},  {0, 56, 0},   {0, 0, 0},
        {0, 0, 0},  {28, 0, 28},  {0, 0, 0}};
    dpar_comm c;
    dpar_call call;
    memset(&c, 0, sizeof c);
    memset(&call, 0, sizeof call);
    c.size = 3;
    call.type = DPAR_F32;
    call.count = 7;
    call.root = 1;
    for (c.rank = 0; c.rank < 3; c.rank++) {
        for (call.kind = 0; call.kind < DPAR_CALL_COUNT; call.kind++) {
            CHECK_INT(dpari_call_sent(&c, &call), want[call.kind][c.rank]);
        }
        call.variable_counts = 1;
        call.in_count = pieces;
        call.kind = DPAR_CALL_ALL_TO_ALL;
        CHECK_INT(dpari_call_sent(&c, &call), 4 * (8 - pieces[c.rank]));
        call.kind = DPAR_CALL_SCATTER;
        CHECK_INT(dpari_call_sent(&c, &call), c.rank == 1 ? 12 : 0);
        call.variable_counts = 0;
        call.kind = DPAR_CALL_COUNT;
        CHECK_INT(dpari_call_sent(&c, &call), 0);
    }
    CHECK_INT(dpari_call_sent(NULL, &call), 0);
}

/* ---- data parallel --------------------------------------------------------------------------- */

/* Parameters of the planner's model in the order of units: one for each operation that has any. */
typedef struct parameters {
    int32_t units, params, params_of[UNITS];
    int64_t numel[UNITS * 16], all;
} parameters;

/* Lists the parameters that one tp rank of a pipeline stage holds. A row layer cuts only its
 * weight; its bias is whole on each rank. */
static void parameters_of(const plan *p, int32_t stage, parameters *a)
{
    const int32_t tp = p->strategy.tp, pp = p->strategy.pp;
    const int32_t each = p->work.blocks / pp; /* blocks per stage */
    int32_t i, k, n, block = 0;
    memset(a, 0, sizeof *a);
    for (i = 0; i < p->work.layers; i++) {
        const dpar_workload_layer *l = &p->work.layer[i];
        for (n = 0; n < l->count; n++) {
            const int32_t of = l->kind == DPAR_LAYER_EMBED  ? 0
                               : l->kind == DPAR_LAYER_HEAD ? pp - 1
                                                            : block++ / each;
            for (k = 0; k < l->ops && of == stage; k++) {
                const dpari_layer_op *op = &p->work.op[l->first + k];
                int64_t numel = (int64_t)op->params, weight = (int64_t)(op->n * op->k);
                if (op->cut == DPARI_CUT_ROW) {
                    numel = weight / tp + (numel - weight);
                } else if (op->cut == DPARI_CUT_COLUMN || op->cut == DPARI_CUT_TENSOR) {
                    numel /= tp;
                }
                if (numel > 0) {
                    a->numel[a->params++] = numel;
                    a->params_of[a->units]++;
                    a->all += numel;
                }
            }
            a->units += of == stage;
        }
    }
    CHECK(tp > 1 || pp > 1 || (double)a->all == p->work.params);
}

static const char *const dense = "gpt:layers=4,hidden=48,heads=24,vocab=96,seq=48,element=4";

static void run_ddp(dpar_comm *c, dpar_comm *g, const plan *p, const parameters *a,
                    const dpar_ddp_desc *how)
{
    dpar_ddp_desc o = *how;
    dpar_ddp *d = NULL;
    dpar_why why;
    dpar_bucket b;
    int64_t elements = 0;
    int32_t i, m;
    o.params = a->params;
    o.count = a->numel;
    o.require_ready = 1;
    CHECK_INT(dpar_ddp_make(g, &o, &d, &why), DPAR_OK);
    memset(g->sent, 0, sizeof g->sent);
    dpar_ddp_zero(d);
    for (m = 0; m < MICROS; m++) {
        CHECK_INT(dpar_ddp_begin(d, m == MICROS - 1), DPAR_OK);
        for (i = a->params - 1; i >= 0; i--) {
            CHECK_INT(dpar_ddp_ready(d, i), DPAR_OK);
        }
        CHECK_INT(dpar_ddp_end(d), DPAR_OK);
    }
    for (i = 0; dpari_ddp_bucket(d, i, &b) != NULL; i++) {
        elements += b.hi - b.lo;
    }
    CHECK(o.align == 1 ? elements == a->all : elements > a->all);
    /* Padding is sent too: it is the whole difference from the plan. */
    counted_is(c, g, NULL, p, DPAR_TRAFFIC_DP, DPAR_CALL_ALL_REDUCE,
               2 * (c->size - 1) * (elements - a->all) * 4);
    CHECK_INT(dpar_ddp_free(d), DPAR_OK);
}

static void test_ddp(dpar_comm *c, dpar_comm *g)
{
    static __thread plan p;
    parameters a;
    dpar_ddp_desc o;
    char strategy[64];
    memset(&o, 0, sizeof o);
    snprintf(strategy, sizeof strategy, "dp=%d,m=3", (int)c->size);
    plan_open(&p, c->size, dense, "fp32", strategy);
    parameters_of(&p, 0, &a);
    o.type = DPAR_F32;
    o.align = 1;
    run_ddp(c, g, &p, &a, &o); /* all parameters fit in one bucket */
    o.first_bucket_bytes = 4096;
    o.bucket_bytes = 20000;
    run_ddp(c, g, &p, &a, &o);
    o.align = 0; /* the default, 64 */
    run_ddp(c, g, &p, &a, &o);
    o.align = 1; /* gradients are sent as two bytes */
    o.wire_type = DPAR_BF16;
    plan_open(&p, c->size, dense, "fsdp", strategy);
    run_ddp(c, g, &p, &a, &o);
}

/* ---- ZeRO ------------------------------------------------------------------------------------ */

/* Counts registered bytes between the library and the engine. */
static __thread struct registered {
    dpar_engine engine;
    void *at[16];
    int64_t bytes[16], now, peak;
} registered;

static dpar_status registered_alloc(dpar_comm *c, int64_t bytes, void **memory)
{
    const dpar_status st = registered.engine.alloc(c, bytes, memory);
    int i;
    for (i = 0; st == DPAR_OK && i < 16 && registered.at[i] != NULL; i++) {
    }
    if (st == DPAR_OK && i < 16) {
        registered.at[i] = *memory;
        registered.bytes[i] = bytes;
        registered.now += bytes;
        registered.peak = registered.now > registered.peak ? registered.now : registered.peak;
    }
    CHECK(i < 16);
    return st;
}

static void registered_release(dpar_comm *c, void *memory)
{
    int i;
    for (i = 0; i < 16; i++) {
        if (registered.at[i] == memory) {
            registered.now -= registered.bytes[i];
            registered.at[i] = NULL;
        }
    }
    registered.engine.release(c, memory);
}

static void registered_from(dpar_comm *c)
{
    memset(&registered, 0, sizeof registered);
    registered.engine = c->engine;
    c->engine.alloc = registered_alloc;
    c->engine.release = registered_release;
}

/* Runs the forward or backward pass of a unit. Gradients keep whatever values they have. */
static void fsdp_unit(dpar_fsdp *f, int32_t u, int32_t direction)
{
    CHECK_INT(dpar_fsdp_unshard(f, u, direction), DPAR_OK);
    CHECK_INT(dpar_fsdp_reshard(f, u, direction), DPAR_OK);
    if (direction == DPAR_ACTION_BACKWARD) {
        CHECK_INT(dpar_fsdp_ready(f, u), DPAR_OK);
    }
}

static void fsdp_step(dpar_fsdp *f, int32_t units, int32_t micros)
{
    int32_t u, m;
    dpar_fsdp_zero(f);
    for (m = 0; m < micros; m++) {
        CHECK_INT(dpar_fsdp_begin(f, m == micros - 1), DPAR_OK);
        for (u = 0; u < units; u++) {
            fsdp_unit(f, u, DPAR_ACTION_FORWARD);
        }
        for (u = units - 1; u >= 0; u--) {
            fsdp_unit(f, u, DPAR_ACTION_BACKWARD);
        }
        CHECK_INT(dpar_fsdp_end(f), DPAR_OK);
    }
    CHECK_INT(dpar_fsdp_step(f, 1e-3, 1.0), DPAR_OK);
}

/* Runs two steps and checks the traffic of each. Sets *peak to the most registered bytes at a
 * time. */
static void run_fsdp(dpar_comm *c, dpar_comm *shard, dpar_comm *replicas, const plan *p,
                     int32_t stage, const dpar_fsdp_desc *how, int64_t *peak,
                     dpar_fsdp_sizes *sizes)
{
    dpar_fsdp_desc o = *how;
    parameters a;
    dpar_fsdp *f = NULL;
    dpar_why why;
    void *whole, *memory;
    int32_t i;
    parameters_of(p, stage, &a);
    o.units = a.units;
    o.params_per_unit = a.params_of;
    o.count = a.numel;
    o.replicas = replicas;
    CHECK_INT(dpar_fsdp_sizes_init(sizes, shard->size, &o, &why), DPAR_OK);
    memory = zeroed_aligned(sizes->plan, &whole);
    o.memory = memory;
    o.bytes = sizes->plan;
    registered_from(shard);
    CHECK_INT(dpar_fsdp_make(shard, &o, &f, &why), DPAR_OK);
    memset(shard->sent, 0, sizeof shard->sent);
    if (replicas) {
        memset(replicas->sent, 0, sizeof replicas->sent);
    }
    for (i = 0; i < 2; i++) {
        fsdp_step(f, a.units, p->strategy.micro_batches);
        counted_is(c, shard, replicas, p, DPAR_TRAFFIC_DP, -1, 0);
    }
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    CHECK_INT(registered.now, 0);
    *peak = registered.peak;
    shard->engine = registered.engine;
    free(whole);
}

/* Returns the sum of the planner's terms that are part of fsdp's registered memory. */
static double planned(const plan *p)
{
    dpar_memory_usage m;
    (void)memory_of(&p->job, &p->strategy, &m);
    return m.term[DPAR_MEMORY_WEIGHTS] + m.term[DPAR_MEMORY_GRADIENTS] +
           m.term[DPAR_MEMORY_MASTER] + m.term[DPAR_MEMORY_OPTIMIZER] +
           m.term[DPAR_MEMORY_GATHERED] + m.term[DPAR_MEMORY_BUCKETS];
}

/* Precision recipes of the planner and the options of fsdp that correspond to them. */
static const struct recipe {
    char name[16];
    int32_t type, compute, gradient, moments; /* moments: 0 if as wide as sums */
} recipes[] = {{"fp32", DPAR_F32, DPAR_F32, DPAR_F32, 0},
               {"fsdp", DPAR_F32, DPAR_BF16, DPAR_BF16, 0},
               {"megatron", DPAR_F32, DPAR_BF16, DPAR_F32, 0},
               {"zero", DPAR_F32, DPAR_BF16, DPAR_BF16, 0},
               {"bf16-moments", DPAR_F32, DPAR_BF16, DPAR_F32, DPAR_BF16},
               {"no-master", DPAR_BF16, DPAR_BF16, DPAR_BF16, 0},
               {"pure-bf16", DPAR_BF16, DPAR_BF16, DPAR_BF16, DPAR_BF16}};
enum { RECIPES = (int)(sizeof recipes / sizeof recipes[0]) };

static void check_memory(const plan *p, const struct recipe *r, int64_t peak,
                         const dpar_fsdp_sizes *s)
{
    const int zero = p->strategy.zero, fsdp = strcmp(r->name, "fsdp") == 0;
    /* The planner sums gradients in 16 bits, but fsdp does so in F32, as in "megatron". */
    const int narrow_sums = r->gradient == DPAR_BF16 && !fsdp && zero > 1;
    const int64_t terms =
        s->weights + s->gradients + s->master + s->moments + s->gathered + s->buckets;
    double more = 0.0;
    if (fsdp && zero < 3) {
        /* The planner has all of it in fp32. The runtime has whole 16-bit weights and shards of
         * masters; with ZeRO-1 its gradients have the type in which they are sent. */
        more = (double)(s->weights - s->master + (zero == 1 ? s->gradients : 0));
    } else if (narrow_sums) {
        more = -0.5 * (double)s->gradients;
    }
    if (zero == 3 && r->type != r->compute && !fsdp) {
        /* The planner adds a 16-bit shard to that of the master. fsdp has none: it rounds as it
         * gathers. */
        more += 0.5 * (double)s->master;
    }
    CHECK_INT(peak, s->registered);
    if (r->type == DPAR_F32 && r->moments == 0) {
        CHECK_INT(peak, terms);
    } else { /* the size of a 16-bit shard may not be a multiple of 64 bytes */
        CHECK(terms <= peak && peak < terms + 2 * 64);
    }
    CHECK_COUNT(checks_run);
    if (planned(p) != (double)terms + more) {
        CHECK_FAILED();
        printf("%s: planned %.17g, terms are %lld, %.17g are known to differ\n", p->name,
               planned(p), (long long)terms, more);
    }
    CHECK(narrow_sums || (double)terms <= planned(p));
}

static void test_fsdp(dpar_comm *c, dpar_comm *g)
{
    static __thread plan p;
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    char strategy[64];
    int64_t peak;
    int32_t i, zero, m;
    /* If the number of ranks is a power of two, each shard is a multiple of 64 bytes. */
    const int even = (c->size & (c->size - 1)) == 0;
    char model[96];
    /* stack=core gives the units of fsdp; Megatron's stack would mean the buckets of DeepSpeed. */
    snprintf(model, sizeof model,
             "gpt:layers=2,hidden=%d,heads=8,vocab=64,seq=16,element=4,biases=-1,stack=core",
             16 * (int)c->size);
    for (i = 0; i < RECIPES; i++) {
        for (zero = 1; zero <= 3; zero++) {
            for (m = 1; m <= MICROS; m += 2) {
                memset(&o, 0, sizeof o);
                o.zero = zero;
                o.type = recipes[i].type;
                o.compute_type = recipes[i].compute;
                o.gradient_type = recipes[i].gradient;
                o.prefetch = 1;
                dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
                o.optimizer.moment_type = recipes[i].moments;
                snprintf(strategy, sizeof strategy, "dp=%d,zero=%d,m=%d", (int)c->size, (int)zero,
                         (int)m);
                plan_open(&p, c->size, even ? model : dense, recipes[i].name, strategy);
                run_fsdp(c, g, NULL, &p, 0, &o, &peak, &sizes);
                if (even) {
                    check_memory(&p, &recipes[i], peak, &sizes);
                }
            }
        }
    }
}

/* Reduces gradients once per step: ZeRO-2 then has the traffic of ZeRO-1, and ZeRO-3 has that of
 * its gathers in addition. */
static void test_once(dpar_comm *c, dpar_comm *g)
{
    static __thread plan p, wide;
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    char strategy[64];
    int64_t peak;
    memset(&o, 0, sizeof o);
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    o.prefetch = o.reduce_last = 1;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_SGD);
    snprintf(strategy, sizeof strategy, "dp=%d,zero=1,m=3", (int)c->size);
    plan_open(&wide, c->size, dense, "fp32", strategy);
    o.zero = 2;
    run_fsdp(c, g, NULL, &wide, 0, &o, &peak, &sizes);
    snprintf(strategy, sizeof strategy, "dp=%d,zero=3,m=3", (int)c->size);
    plan_open(&p, c->size, dense, "fp32", strategy);
    p.traffic.bytes[DPAR_TRAFFIC_DP][DPAR_CALL_REDUCE_SCATTER] =
        wide.traffic.bytes[DPAR_TRAFFIC_DP][DPAR_CALL_REDUCE_SCATTER];
    o.zero = 3;
    run_fsdp(c, g, NULL, &p, 0, &o, &peak, &sizes);
}

/* Shards over each half of the ranks and replicates across the halves. */
static void test_hybrid(dpar_comm *c)
{
    static __thread plan p;
    dpar_comm *shard = NULL, *replicas = NULL;
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    char strategy[64];
    int64_t peak;
    const int32_t half = c->size / 2;
    if (c->size < 4 || c->size % 2 != 0) {
        return;
    }
    CHECK_INT(dpar_comm_split(c, c->rank / half, c->rank, &shard), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, c->rank % half, c->rank, &replicas), DPAR_OK);
    memset(&o, 0, sizeof o);
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    o.prefetch = 1;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    for (o.zero = 1; o.zero <= 3; o.zero++) {
        snprintf(strategy, sizeof strategy, "dp=%d,shard=%d,zero=%d,m=3", (int)c->size, (int)half,
                 (int)o.zero);
        plan_open(&p, c->size, dense, "fp32", strategy);
        run_fsdp(c, shard, replicas, &p, 0, &o, &peak, &sizes);
    }
    CHECK_INT(dpar_comm_free(replicas), DPAR_OK);
    CHECK_INT(dpar_comm_free(shard), DPAR_OK);
}

/* Combines data parallelism with two tensor parallel ranks or two pipeline stages. All data
 * parallel groups run at the same time. */
static void test_beside(dpar_comm *c)
{
    static const char *const other[2] = {"tp", "pp"};
    static __thread plan p;
    dpar_comm *data = NULL;
    parameters a;
    dpar_ddp_desc d;
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    char strategy[64];
    int64_t peak;
    int32_t i, zero;
    if (c->size < 4 || c->size % 2 != 0) {
        return;
    }
    memset(&o, 0, sizeof o);
    memset(&d, 0, sizeof d);
    d.type = o.type = o.compute_type = o.gradient_type = DPAR_F32;
    d.align = o.prefetch = 1;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    for (i = 0; i < 2; i++) {
        /* The tp index varies fastest with the rank, the pp index slowest. */
        const int32_t color = i == 0 ? c->rank % 2 : c->rank / (c->size / 2);
        CHECK_INT(dpar_comm_split(c, color, c->rank, &data), DPAR_OK);
        for (zero = 0; zero <= 3 - i; zero++) {
            snprintf(strategy, sizeof strategy, "%s=2,dp=%d,zero=%d,m=3", other[i],
                     (int)c->size / 2, (int)zero);
            plan_open(&p, c->size, dense, "fp32", strategy);
            o.zero = zero;
            if (zero == 0) {
                parameters_of(&p, i * color, &a);
                run_ddp(c, data, &p, &a, &d);
            } else {
                run_fsdp(c, data, NULL, &p, i * color, &o, &peak, &sizes);
            }
        }
        CHECK_INT(dpar_comm_free(data), DPAR_OK);
    }
}

/* ---- tensor ---------------------------------------------------------------------------------- */

enum { ROOM = SEQ * 4 * HIDDEN * 4 };

static void linear(const dpar_tensor_parallel *t, int32_t kind, int64_t in, int64_t out,
                   float *room, int backward)
{
    dpar_linear layer;
    dpar_linear_arrays a;
    float *part[8];
    int i;
    for (i = 0; i < 8; i++) {
        part[i] = room + i * ROOM;
    }
    memset(&a, 0, sizeof a);
    layer.kind = kind;
    layer.reserved = 0;
    layer.in = in;
    layer.out = out;
    a.w = part[0];
    a.x = part[1];
    a.y = part[2];
    a.dy = part[3];
    a.dx = part[4];
    a.dw = part[5];
    if (t->counts != NULL) {
        a.gathered = part[6];
        a.gathered_dx = part[7];
    }
    CHECK_INT(backward ? dpar_linear_backward(t, &layer, &a) : dpar_linear_forward(t, &layer, &a),
              DPAR_OK);
}

/* Runs one micro-batch forward and backward. */
static void tensor_pass(const dpar_tensor_parallel *t, float *room)
{
    const int32_t n = t->comm->size;
    int32_t ids[SEQ], l, i;
    double *lse = (double *)zeroed(SEQ * 8);
    void *scratch = zeroed(3 * SEQ * (n + 1) * 4);
    float *whole = t->counts != NULL ? room + ROOM : NULL;
    dpar_cross_entropy e;
    dpar_cross_entropy_sum sum;
    dpar_why why;
    memset(&e, 0, sizeof e);
    for (i = 0; i < SEQ; i++) {
        ids[i] = (7 * i) % VOCAB;
    }
    CHECK_INT(dpar_vocab_init(&e.vocab, VOCAB, 0, 1, n, &why), DPAR_OK);
    CHECK_INT(embedding_forward(t, &e.vocab, HIDDEN, ids, room + 2 * ROOM, room, whole), DPAR_OK);
    for (l = 0; l < LAYERS; l++) {
        linear(t, DPAR_LINEAR_COLUMN, HIDDEN, 3 * HIDDEN / n, room, 0);
        linear(t, DPAR_LINEAR_ROW, HIDDEN / n, HIDDEN, room, 0);
        linear(t, DPAR_LINEAR_COLUMN, HIDDEN, 4 * HIDDEN / n, room, 0);
        linear(t, DPAR_LINEAR_ROW, 4 * HIDDEN / n, HIDDEN, room, 0);
    }
    linear(t, DPAR_LINEAR_COLUMN, HIDDEN, VOCAB / n, room, 0);
    CHECK_INT(cross_entropy_forward(t, &e, room, ids, lse, NULL, &sum, scratch), DPAR_OK);
    linear(t, DPAR_LINEAR_COLUMN, HIDDEN, VOCAB / n, room, 1);
    for (l = 0; l < LAYERS; l++) {
        linear(t, DPAR_LINEAR_ROW, 4 * HIDDEN / n, HIDDEN, room, 1);
        linear(t, DPAR_LINEAR_COLUMN, HIDDEN, 4 * HIDDEN / n, room, 1);
        linear(t, DPAR_LINEAR_ROW, HIDDEN / n, HIDDEN, room, 1);
        linear(t, DPAR_LINEAR_COLUMN, HIDDEN, 3 * HIDDEN / n, room, 1);
    }
    CHECK_INT(embedding_backward(t, &e.vocab, HIDDEN, ids, room, room + 2 * ROOM, 0, whole),
              DPAR_OK);
    free(lse);
    free(scratch);
}

static void test_tensor(dpar_comm *c, dpar_comm *g)
{
    static __thread plan p;
    int64_t counts[8];
    float *room = (float *)zeroed(8 * ROOM * (int64_t)sizeof(float));
    /* The parameters that are not cut: weights and biases of two norms per block, the last norm,
     * and the positions. */
    const int64_t alone = 4 * HIDDEN * LAYERS + 2 * HIDDEN + SEQ * HIDDEN;
    char strategy[64];
    dpar_tensor_parallel t;
    dpar_why why;
    int32_t sp, m;
    for (sp = 0; sp < 2; sp++) {
        CHECK_INT(dpar_tensor_parallel_init(&t, g, DPAR_F32, SEQ, sp ? counts : NULL, &why),
                  DPAR_OK);
        snprintf(strategy, sizeof strategy, "tp=%d,sp=%d,m=3", (int)c->size, (int)sp);
        plan_open(&p, c->size, dense, "fp32", strategy);
        memset(g->sent, 0, sizeof g->sent);
        for (m = 0; m < MICROS; m++) {
            tensor_pass(&t, room);
        }
        if (sp) {
            CHECK_INT(dpar_all_reduce(g, room, room, alone, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
        }
        counted_is(c, g, NULL, &p, DPAR_TRAFFIC_TP, -1, 0);
    }
    free(room);
}

/* ---- sequence -------------------------------------------------------------------------------- */

static void test_ring(dpar_comm *c, dpar_comm *g)
{
    static __thread plan p;
    dpar_attention_desc layer;
    dpar_attention_plan *ring = NULL;
    dpar_attention_arrays a;
    dpar_why why;
    char strategy[64];
    int64_t ends[2] = {0, SEQ}, each = (int64_t)SEQ * HIDDEN;
    float *room = (float *)zeroed(9 * each * 4);
    int32_t l;
    memset(&layer, 0, sizeof layer);
    CHECK_INT(dpar_packed_init(&layer.tokens, 1, ends, c->size, DPAR_SPLIT_ZIGZAG, &why), DPAR_OK);
    layer.heads = HEADS;
    layer.groups = HEADS / 2;
    layer.width = HIDDEN / HEADS;
    layer.type = DPAR_F32;
    layer.causal = 1;
    CHECK_INT(dpar_attention_make(g, &layer, &ring, &why), DPAR_OK);
    a.q = room;
    a.k = room + each;
    a.v = room + 2 * each;
    a.out = room + 3 * each;
    a.lse = room + 4 * each;
    a.out_gradient = room + 5 * each;
    a.q_gradient = room + 6 * each;
    a.k_gradient = room + 7 * each;
    a.v_gradient = room + 8 * each;
    snprintf(strategy, sizeof strategy, "cp=%d,cp_kind=ring,m=3", (int)c->size);
    plan_open(&p, c->size, "gpt:layers=4,hidden=48,heads=24,kv_heads=12,vocab=96,seq=48,element=4",
              "fp32", strategy);
    memset(g->sent, 0, sizeof g->sent);
    for (l = 0; l < MICROS * LAYERS; l++) {
        CHECK_INT(dpar_attention_forward(ring, &a), DPAR_OK);
        CHECK_INT(dpar_attention_backward(ring, &a), DPAR_OK);
    }
    counted_is(c, g, NULL, &p, DPAR_TRAFFIC_CP, -1, 0);
    CHECK_INT(dpar_attention_free(ring), DPAR_OK);
    free(room);
}

static void test_ulysses(dpar_comm *c, dpar_comm *g)
{
    static __thread plan p;
    const int32_t groups = HEADS / 2 % c->size == 0 ? HEADS / 2 : HEADS;
    const int64_t ends[2] = {0, SEQ}, each = (int64_t)SEQ * HIDDEN;
    dpar_attention_desc layer;
    dpar_attention_plan *u = NULL;
    dpar_attention_arrays a;
    void *of_kept;
    dpar_why why;
    char strategy[64], model[128];
    float *room = (float *)zeroed(9 * each * 4);
    int32_t l;
    memset(&layer, 0, sizeof layer);
    memset(&a, 0, sizeof a);
    CHECK_INT(dpar_packed_init(&layer.tokens, 1, ends, c->size, DPAR_SPLIT_EVEN, &why), DPAR_OK);
    layer.method = dpar_attention_ulysses;
    layer.heads = HEADS;
    layer.groups = groups;
    layer.width = HIDDEN / HEADS;
    layer.type = DPAR_F32;
    layer.causal = 1;
    CHECK_INT(dpar_attention_make(g, &layer, &u, &why), DPAR_OK);
    a.q = room;
    a.k = room + each;
    a.v = room + 2 * each;
    a.out = room + 3 * each;
    a.out_gradient = room + 5 * each;
    a.q_gradient = room + 6 * each;
    a.k_gradient = room + 7 * each;
    a.v_gradient = room + 8 * each;
    a.saved = zeroed_aligned(u->saved_bytes, &of_kept);
    snprintf(strategy, sizeof strategy, "cp=%d,cp_kind=ulysses,m=3", (int)c->size);
    snprintf(model, sizeof model,
             "gpt:layers=4,hidden=48,heads=24,kv_heads=%d,vocab=96,seq=48,element=4", (int)groups);
    plan_open(&p, c->size, model, "fp32", strategy);
    memset(g->sent, 0, sizeof g->sent);
    for (l = 0; l < MICROS * LAYERS; l++) { /* q, k and v; out; its gradient; dq, dk and dv */
        CHECK_INT(dpar_attention_forward(u, &a), DPAR_OK);
        CHECK_INT(dpar_attention_backward(u, &a), DPAR_OK);
    }
    counted_is(c, g, NULL, &p, DPAR_TRAFFIC_CP, -1, 0);
    CHECK_INT(dpar_attention_free(u), DPAR_OK);
    free(of_kept);
    free(room);
}

/* ---- experts --------------------------------------------------------------------------------- */

static void experts_pass(dpar_experts_plan *e, void *memory, int64_t each, float *room)
{
    int32_t chosen[SEQ * 2], i;
    dpar_experts_routing *route = NULL;
    dpar_why why;
    float *x = room, *rows = x + SEQ * HIDDEN, *kept = rows + e->max_rows * HIDDEN;
    float *y = kept + 2 * SEQ * HIDDEN, *weight = y + SEQ * HIDDEN;
    for (i = 0; i < SEQ * 2; i++) { /* each expert is chosen equally often */
        chosen[i] = i % 24;
    }
    CHECK_INT(experts_route(e, memory, each, SEQ, chosen, NULL, &route, &why), DPAR_OK);
    CHECK_INT(experts_dispatch(e, route, x, rows), DPAR_OK);
    CHECK_INT(experts_combine(e, route, rows, weight, y, kept), DPAR_OK);
    CHECK_INT(experts_combine_backward(e, route, x, weight, kept, rows, y), DPAR_OK);
    CHECK_INT(experts_dispatch_backward(e, route, rows, y), DPAR_OK);
}

static void test_experts(dpar_comm *c, dpar_comm *g)
{
    static __thread plan p;
    dpar_experts_desc layer;
    dpar_experts_plan *e = NULL;
    dpar_why why;
    char strategy[64];
    void *of_route, *route;
    float *room;
    int32_t l;
    memset(&layer, 0, sizeof layer);
    CHECK_INT(dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, 24, c->size, 1, &why), DPAR_OK);
    layer.choices = 2;
    layer.drop = DPAR_EXPERTS_DROP_NONE;
    layer.max_tokens = SEQ;
    layer.width = HIDDEN;
    layer.type = DPAR_F32;
    CHECK_INT(dpar_experts_make(g, &layer, &e, &why), DPAR_OK);
    route = zeroed_aligned(e->routing_bytes, &of_route);
    room = (float *)zeroed((e->max_rows + 5 * SEQ) * HIDDEN * 4);
    snprintf(strategy, sizeof strategy, "dp=%d,ep=%d,m=3", (int)c->size, (int)c->size);
    plan_open(&p, c->size,
              "llama:layers=4,hidden=48,heads=24,vocab=96,seq=48,element=4,experts=24,topk=2,"
              "expert_ffn=96",
              "fp32", strategy);
    memset(g->sent, 0, sizeof g->sent);
    for (l = 0; l < MICROS * LAYERS; l++) {
        experts_pass(e, route, e->routing_bytes, room);
    }
    counted_is(c, g, NULL, &p, DPAR_TRAFFIC_EP, -1, 0);
    CHECK_INT(dpar_experts_free(e), DPAR_OK);
    free(of_route);
    free(room);
}

/* ---- pipeline -------------------------------------------------------------------------------- */

static dpar_status stage(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    (void)ctx, (void)why;
    if (t->out != NULL) {
        memset(t->out, 0, (size_t)t->out_count * 4);
    }
    return DPAR_OK;
}

/* Records the communicator that the pipeline makes for the tied stages when it is split off. */
static __thread dpar_engine split_engine;
static __thread dpar_comm *split_comm;

static dpar_status split_seen(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out)
{
    const dpar_status st = split_engine.split(c, color, key, out);
    split_comm = *out;
    return st;
}

static void run_pipeline(dpar_comm *c, dpar_comm *g, const plan *p, const dpar_schedule *s,
                         int tied)
{
    dpar_pipeline_desc o;
    dpar_pipeline *line = NULL;
    dpar_why why;
    float *table = (float *)zeroed(VOCAB * HIDDEN * 4);
    memset(&o, 0, sizeof o);
    o.schedule = s;
    o.type = DPAR_F32;
    o.count = SEQ * HIDDEN;
    o.forward = o.backward = o.input = o.weight = stage;
    if (tied) {
        o.tied = table;
        o.tied_count = VOCAB * HIDDEN;
        o.tied_type = DPAR_F32;
    }
    split_engine = g->engine;
    split_comm = NULL;
    g->engine.split = split_seen;
    CHECK_INT(dpar_pipeline_make(g, &o, &line, &why), DPAR_OK);
    g->engine = split_engine;
    memset(g->sent, 0, sizeof g->sent);
    if (split_comm != NULL) {
        memset(split_comm->sent, 0, sizeof split_comm->sent);
    }
    CHECK_INT(dpar_pipeline_run(line, 1, &why), DPAR_OK);
    counted_is(c, g, split_comm, p, DPAR_TRAFFIC_PP, -1, 0);
    CHECK_INT(dpar_pipeline_free(line), DPAR_OK);
    free(table);
}

static void test_schedule(dpar_comm *c, dpar_comm *g, int32_t rule, int32_t chunks, int tied)
{
    static __thread plan p;
    char strategy[96], model[128];
    dpar_schedule_desc order;
    dpar_schedule_lower_desc how;
    dpar_schedule s, list;
    dpar_why why;
    int64_t bytes;
    void *mem, *lowered;
    memset(&order, 0, sizeof order);
    memset(&how, 0, sizeof how);
    order.rule = rule;
    order.ranks = c->size;
    order.micro_batches = 2 * c->size;
    order.chunks = rule == DPAR_SCHEDULE_DUALPIPE ? 0 : chunks;
    bytes = dpari_schedule_generate_bytes(&order, &why);
    if (bytes < 0) { /* DualPipe refuses an odd number of ranks */
        CHECK(rule == DPAR_SCHEDULE_DUALPIPE && c->size % 2 == 1);
        return;
    }
    mem = zeroed(bytes);
    CHECK_INT(dpar_schedule_generate(&s, &order, mem, bytes, &why), DPAR_OK);
    how.passes = DPAR_LOWER_MESSAGES;
    bytes = dpari_schedule_lower_bytes(&s, &how, &why);
    lowered = zeroed(bytes);
    CHECK_INT(dpar_schedule_lower(&list, &s, &how, lowered, bytes, &why), DPAR_OK);
    snprintf(model, sizeof model, "gpt:layers=16,hidden=48,heads=24,vocab=96,seq=48,element=4%s",
             tied ? ",tied=1" : "");
    snprintf(strategy, sizeof strategy, "pp=%d,vp=%d,m=%d,schedule=%s", (int)c->size, (int)chunks,
             (int)order.micro_batches, dpar_schedule_name(rule));
    plan_open(&p, c->size, model, "fp32", strategy);
    run_pipeline(c, g, &p, &list, tied);
    free(mem);
    free(lowered);
}

static void test_pipeline(dpar_comm *c, dpar_comm *g)
{
    static const struct {
        int32_t rule, chunks;
    } rules[DPAR_SCHEDULE_PRICED_END - 1] = {
        {DPAR_SCHEDULE_GPIPE, 1},       {DPAR_SCHEDULE_1F1B, 1},
        {DPAR_SCHEDULE_INTERLEAVED, 2}, {DPAR_SCHEDULE_BREADTH_FIRST, 2},
        {DPAR_SCHEDULE_ZB_H1, 1},       {DPAR_SCHEDULE_ZB_2P, 1},
        {DPAR_SCHEDULE_ZBV, 2},         {DPAR_SCHEDULE_V_HALF, 2},
        {DPAR_SCHEDULE_V_MIN, 2},       {DPAR_SCHEDULE_DUALPIPE, 1},
        {DPAR_SCHEDULE_DUALPIPEV, 2}};
    int32_t i;
    for (i = 0; i < DPAR_SCHEDULE_PRICED_END - 1; i++) {
        test_schedule(c, g, rules[i].rule, rules[i].chunks, 0);
    }
    test_schedule(c, g, DPAR_SCHEDULE_1F1B, 1, 1);
    /* first and last stage are on one rank: there is nothing to sum */
    test_schedule(c, g, DPAR_SCHEDULE_ZBV, 2, 1);
}

/* ---- all ------------------------------------------------------------------------------------- */

static int everything(dpar_comm *c, void *arg)
{
    const double began = now();
    dpar_comm *g = NULL;
    (void)arg;
    calls_count();
    if (c->size < 2 || HEADS % c->size != 0) {
        return 0;
    }
    CHECK_INT(dpar_comm_split(c, 0, 0, &g), DPAR_OK);
    test_ddp(c, g);
    test_fsdp(c, g);
    test_once(c, g);
    test_hybrid(c);
    test_beside(c);
    test_tensor(c, g);
    test_ring(c, g);
    test_ulysses(c, g);
    test_experts(c, g);
    test_pipeline(c, g);
    CHECK_INT(dpar_comm_free(g), DPAR_OK);
    return all_right(c, failures(), began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, 8, 4, NULL);
}
