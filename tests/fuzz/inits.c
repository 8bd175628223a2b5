/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the functions that check a descriptor on a communicator, in a world of one rank: grids,
 * halo exchanges, points, moves, DDP, ZeRO-1, FSDP, tensor layers, experts, attention, pipelines,
 * optimizers; and the reader of a launcher's environment. If `bytes` accepts a descriptor, init
 * accepts it with that much memory or refuses it with a message; a plan is closed again; the world
 * works as before. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed
 * pseudo-random inputs. Run with: tests/compile/fuzz.sh. */
#include "dpar_halo.h"
#include "dpar_points.h"
#include "dpar_train.h"

#include <stdlib.h>
#include <string.h>

#include "one_rank.h"

static double values[4096];
/* Returns 1 for OK, 0 for a refusal, which must have a message. */
static int fine(dpar_status st)
{
    must(st == DPAR_OK || why.text[0] != 0);
    must(memchr(why.text, 0, sizeof why.text) != NULL);
    return st == DPAR_OK;
}

static void a_grid(bytes *b)
{
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    int64_t cuts[3];
    int32_t i, n = 1;
    memset(&d, 0, sizeof d);
    d.dims = take(b, 4) + (take(b, 16) == 0 ? 7 : 0) - (take(b, 16) == 0);
    d.star = take(b, 2), d.halo = take(b, 4) ? take(b, 4) : odd64(b), d.order = take(b, 3);
    d.check = take(b, 2), d.type = take(b, 4) ? 0 : odd32(b);
    for (i = 0; i < DPAR_MAX_DIMS; i++) {
        d.cells[i] = take(b, 8) ? 1 + take(b, 9) : odd64(b);
        d.halo_low[i] = take(b, 4) ? 0 : odd64(b), d.halo_high[i] = take(b, 4) ? 0 : odd64(b);
        d.periodic[i] = take(b, 2);
        d.mirror_low[i] = take(b, 4) ? 0 : take(b, 5),
        d.mirror_high[i] = take(b, 4) ? 0 : take(b, 5);
        d.parts[i] = take(b, 4) ? 0 : take(b, 3);
        d.expected_count[i] = take(b, 8) ? 0 : odd64(b);
    }
    cuts[0] = 0, cuts[1] = odd64(b), cuts[2] = odd64(b);
    d.cuts[0] = take(b, 4) ? NULL : cuts;
    for (i = 0; i < 3 && i < d.dims; i++) {
        n = d.cells[i] > 12 || n > 5000 ? 100000 : n * 20;
    }
    if (d.halo > 3 || n > 10000) { /* makes arrays, none of gigabytes */
        d.cells[0] = d.cells[0] > 100 ? -1 : d.cells[0];
        d.cells[1] = d.cells[1] > 100 ? -1 : d.cells[1];
        d.cells[2] = d.cells[2] > 100 ? -1 : d.cells[2];
    }
    if (fine(dpar_grid_make(world, &d, &g, &why))) {
        must(g != NULL && g->count[0] == d.cells[0]);
        must(dpar_grid_free(g) == DPAR_OK);
    }
}

static void a_halo(bytes *b)
{
    dpar_halo h;
    dpar_halo_field f[2];
    dpar_halo_plan_desc o;
    dpar_halo_plan *x = NULL;
    dpar_mesh m;
    dpar_placement p = dpar_replicate();
    int64_t extent[3], need = 0;
    int32_t one = 1, i, dims = take(b, 4);
    void *memory;
    memset(&h, 0, sizeof h);
    memset(f, 0, sizeof f);
    memset(&o, 0, sizeof o);
    must(dpar_mesh_init(&m, "a", &one, 0, 0, NULL) == DPAR_OK);
    for (i = 0; i < 3; i++) {
        extent[i] = 1 + take(b, 6);
        h.low[i] = take(b, 3), h.high[i] = take(b, 3);
        h.points[i] = take(b, 8) ? 0 : take(b, 4);
    }
    must(dpar_layout_init(&h.grid, &m, dims, extent, &p, NULL) == DPAR_OK);
    h.shape = take(b, 4), h.periodic = (uint32_t)take(b, 8);
    h.folds = take(b, 8) == 0, h.mirror = take(b, 3), h.on_row = take(b, 2);
    for (i = 0; i < 2; i++) {
        f[i].halo = take(b, 16) ? &h : NULL;
        f[i].type = take(b, 8) ? 1 + take(b, 3) : odd32(b);
        f[i].components = take(b, 4) ? take(b, 3) : odd32(b);
        f[i].component_stride = take(b, 8) ? 0 : odd64(b);
        f[i].vector = take(b, 4), f[i].pair = take(b, 8) ? 0 : take(b, 4);
        f[i].wire_type = take(b, 4) ? 0 : odd32(b);
        f[i].stride[0] = take(b, 8) ? 0 : odd64(b), f[i].stride[1] = take(b, 8) ? 0 : odd64(b);
        f[i].data = take(b, 16) ? values + 2048 : NULL;
    }
    o.field = take(b, 32) ? f : NULL, o.field_count = take(b, 8) ? 1 + take(b, 2) : odd32(b);
    if (o.field_count > 2) {
        o.field_count = 4097;
    }
    o.method = take(b, 6), o.ordered = take(b, 2), o.shared = take(b, 8) == 0;
    o.run_bytes = odd64(b), o.timers = take(b, 2);
    o.bytes = take(b, 2); /* 0: the plan allocates its memory */
    if (fine(dpar_halo_plan_make(world, &o, &x, &why))) {
        must(o.bytes == 0 && dpar_halo_plan_free(x) == DPAR_OK);
    } else if (o.bytes == 1 && why.bytes > 0 && (memory = room(why.bytes)) != NULL) {
        o.memory = memory;
        o.bytes = why.bytes;
        if (fine(dpar_halo_plan_make(world, &o, &x, &why))) {
            must(dpar_halo_plan_free(x) == DPAR_OK);
        }
        free(memory);
    }
}

static void some_points(bytes *b)
{
    dpar_points_desc d;
    dpar_points *p = NULL;
    int64_t own[8], ghost[8];
    int32_t owner[8], at[8], i;
    void *memory;
    memset(&d, 0, sizeof d);
    for (i = 0; i < 8; i++) {
        own[i] = take(b, 16) ? (take(b, 2) ? i : take(b, 12)) : odd64(b);
        ghost[i] = take(b, 16) ? take(b, 9) : odd64(b);
        owner[i] = take(b, 16) ? 0 : odd32(b);
    }
    d.own_count = take(b, 16) ? take(b, 9) : -1;
    d.ghost_count = take(b, 16) ? take(b, 9) : -1;
    d.own_id = take(b, 2) ? own : NULL, d.ghost_id = take(b, 16) ? ghost : NULL;
    d.owner = take(b, 3) ? NULL : owner;
    d.order = take(b, 16) ? take(b, 3) : odd32(b), d.method = take(b, 16) ? take(b, 4) : odd32(b);
    d.run_bytes = odd64(b), d.timers = take(b, 2);
    d.bytes = 1;
    if (dpar_points_make(world, &d, &p, &why) != DPAR_E_ROOM) {
        must(p == NULL);
        return;
    }
    memory = room(why.bytes);
    if (memory == NULL) {
        return;
    }
    d.memory = memory;
    d.bytes = why.bytes;
    if (fine(dpar_points_make(world, &d, &p, &why))) {
        (void)dpar_points_to_local(p, ghost, d.ghost_count, at);
        must(dpar_points_free(p) == DPAR_OK);
    }
    free(memory);
}

static dpar_optimizer an_optimizer(bytes *b)
{
    dpar_optimizer o;
    memset(&o, 0, sizeof o);
    if (take(b, 4)) {
        dpar_optimizer_init(&o, 1 + take(b, 3));
        return o;
    }
    o.kind = odd32(b), o.nesterov = odd32(b), o.stochastic = odd32(b), o.moment_type = odd32(b);
    o.beta1 = odd_real(b), o.beta2 = odd_real(b), o.epsilon = odd_real(b);
    o.momentum = odd_real(b), o.decay = odd_real(b);
    return o;
}

static void gradients(bytes *b)
{
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    int64_t numel[6];
    int32_t i;
    void *memory = NULL, *array[6];
    static double grads[6000]; /* 6 parameters of at most 1000 elements */
    memset(&o, 0, sizeof o);
    memset(grads, 0, sizeof grads);
    for (i = 0; i < 6; i++) {
        numel[i] = take(b, 16) ? take(b, 99) : odd64(b);
        array[i] = take(b, 16) ? grads + (take(b, 16) ? i : take(b, 6)) * 1000 : NULL;
    }
    o.params = take(b, 16) ? take(b, 7) : -1, o.type = take(b, 8) ? 1 + take(b, 2) : odd32(b);
    o.count = take(b, 32) ? numel : NULL;
    o.wire_type = take(b, 4) ? 0 : odd32(b);
    o.sum = odd32(b);
    o.require_ready = take(b, 2);
    o.track_used = take(b, 2);
    o.check_finite = take(b, 2);
    o.first_bucket_bytes = odd64(b);
    o.bucket_bytes = odd64(b);
    o.align = take(b, 2) ? 0 : odd64(b);
    o.gradients = take(b, 4) ? NULL : grads;
    o.arrays = take(b, 4) ? NULL : array;
    for (i = 0; i < 6; i++) { /* makes gradients, none of gigabytes */
        if (numel[i] > 1000) {
            numel[i] = INT64_C(1) << 62;
        }
    }
    o.align = o.align > 1000 ? INT64_MAX : o.align;
    if (take(b, 2)) { /* in our memory, of the reported size */
        o.bytes = take(b, 4) ? 1 : odd64(b);
        if (o.bytes != 0 && dpar_ddp_make(world, &o, &d, &why) == DPAR_E_ROOM) {
            o.bytes = why.bytes;
            memory = room(o.bytes);
            o.memory = memory;
        }
        if (memory == NULL) {
            o.bytes = 0;
        }
    }
    must(d == NULL);
    if (fine(dpar_ddp_make(world, &o, &d, &why))) {
        i = take(b, 7);
        if (world->status == DPAR_OK && !o.require_ready) { /* its end would break the world */
            (void)dpar_ddp_ready(d, i);
            (void)dpar_ddp_end(d);
        }
        must(dpar_ddp_free(d) == DPAR_OK);
    }
    free(memory);
}

static void shards(bytes *b)
{
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    dpar_fsdp *f = NULL;
    int64_t numel[6];
    int32_t params[3], i;
    void *memory;
    memset(&o, 0, sizeof o);
    for (i = 0; i < 6; i++) {
        numel[i] = take(b, 16) ? take(b, 99) : odd64(b);
    }
    for (i = 0; i < 3; i++) {
        params[i] = take(b, 16) ? take(b, 3) : -1;
    }
    o.units = take(b, 16) ? take(b, 4) : -1, o.zero = take(b, 16) ? take(b, 4) : odd32(b);
    o.params_per_unit = take(b, 32) ? params : NULL, o.count = take(b, 32) ? numel : NULL;
    o.type = take(b, 8) ? 1 + take(b, 2) : odd32(b),
    o.compute_type = take(b, 8) ? o.type : odd32(b);
    o.gradient_type = take(b, 8) ? o.type : odd32(b);
    o.prefetch = odd32(b), o.gradient_buffers = odd32(b), o.units_in_use = odd32(b),
    o.reduce_last = take(b, 2);
    o.sum = odd32(b), o.overwrite_gradients = take(b, 2), o.align = odd64(b);
    o.optimizer = an_optimizer(b);
    if (fine(dpar_fsdp_sizes_init(&sizes, take(b, 4) ? 1 : odd32(b), &o, &why)) &&
        sizes.registered < MOST && sizes.master < MOST &&
        fine(dpar_fsdp_sizes_init(&sizes, 1, &o, &why)) && sizes.registered < MOST &&
        sizes.weights + sizes.gradients + sizes.master + sizes.moments + sizes.gathered < MOST) {
        o.memory = take(b, 2) ? room(sizes.plan) : NULL;
        memory = o.memory;
        o.bytes = memory != NULL ? sizes.plan : 0;
        if (fine(dpar_fsdp_make(world, &o, &f, &why))) {
            must(dpar_fsdp_free(f) == DPAR_OK);
        }
        free(memory);
    }
}

static void experts(bytes *b)
{
    dpar_experts_desc e;
    dpar_experts_plan *plan = NULL;
    memset(&e, 0, sizeof e);
    if (dpar_split_init(&e.experts, take(b, DPAR_SPLIT_RULE_COUNT),
                        take(b, 16) ? take(b, 9) : odd64(b), take(b, 16) ? 1 : 2, 1 + take(b, 3),
                        &why) != DPAR_OK) {
        return;
    }
    e.choices = take(b, 16) ? take(b, 4) : odd32(b), e.drop = take(b, 4),
    e.capacity_factor = odd_real(b);
    e.max_tokens = take(b, 16) ? take(b, 20) : odd64(b), e.max_rows = take(b, 4) ? 0 : odd64(b);
    e.width = take(b, 16) ? take(b, 9) : odd64(b), e.type = take(b, 8) ? 1 + take(b, 2) : odd32(b);
    e.bytes = 1; /* to ask for the size */
    why.bytes = 0;
    must(!fine(dpar_experts_make(world, &e, &plan, &why)));
    if (why.bytes == 0 || why.bytes > MOST) {
        return;
    }
    e.bytes = take(b, 2) ? why.bytes : 0;
    e.memory = e.bytes > 0 ? room(e.bytes) : NULL;
    if (fine(dpar_experts_make(world, &e, &plan, &why))) {
        must(dpar_experts_free(plan) == DPAR_OK);
    }
    free(e.memory);
}

static void attention(bytes *b)
{
    dpar_attention_desc a;
    dpar_attention_plan *plan = NULL;
    int64_t ends[4] = {0, 0, 0, 0};
    int32_t i;
    memset(&a, 0, sizeof a);
    for (i = 1; i < 4; i++) {
        ends[i] = ends[i - 1] + take(b, 9);
    }
    if (dpar_packed_init(&a.tokens, 3, ends, take(b, 16) ? 1 : 2, take(b, DPAR_SPLIT_RULE_COUNT),
                         &why) != DPAR_OK) {
        return;
    }
    a.method = take(b, 2) ? dpar_attention_ulysses : NULL;
    a.heads = odd32(b), a.groups = odd32(b), a.width = odd32(b), a.value_width = odd32(b);
    a.type = take(b, 8) ? 1 + take(b, 2) : odd32(b), a.causal = take(b, 3), a.window = odd64(b);
    a.scale = odd_real(b), a.heads_chunked = take(b, 2);
    a.bytes = 1; /* to ask for the size */
    why.bytes = 0;
    must(!fine(dpar_attention_make(world, &a, &plan, &why)));
    if (why.bytes == 0 || why.bytes > MOST) {
        return;
    }
    a.bytes = take(b, 2) ? why.bytes : 0;
    a.memory = a.bytes > 0 ? room(a.bytes) : NULL;
    if (fine(dpar_attention_make(world, &a, &plan, &why))) {
        must(dpar_attention_free(plan) == DPAR_OK);
    }
    free(a.memory);
}

static void moves(bytes *b)
{
    dpar_redistribute_desc m;
    dpar_layout from, to;
    dpar_mesh one;
    dpar_placement p = dpar_replicate();
    dpar_transfer send[2], receive[2];
    int64_t extent[3] = {3, 4, 5}, shape[DPAR_MAX_DIMS] = {1, 1, 1, 1, 1, 1};
    int32_t size = 1, i, d, honest = 1; /* whether arrays are as large as the shapes */
    memset(&m, 0, sizeof m);
    memset(send, 0, sizeof send);
    must(dpar_mesh_init(&one, "a", &size, 0, 0, NULL) == DPAR_OK);
    must(dpar_layout_init(&from, &one, 3, extent, &p, NULL) == DPAR_OK);
    to = from;
    m.type = take(b, 8) ? 1 + take(b, 2) : odd32(b), m.ranks_per_node = odd32(b);
    m.in = take(b, 16) ? values : NULL, m.out = take(b, 16) ? values + 2048 : NULL;
    m.piece_bytes = odd64(b);
    for (d = 0; d < 3; d++) {
        shape[d] = take(b, 16) ? 3 + take(b, 5) : odd64(b);
        honest = honest && shape[d] < 9;
    }
    m.in_shape = take(b, 2) ? shape : NULL, m.out_shape = take(b, 2) ? shape : NULL;
    if (take(b, 2)) {
        m.from = take(b, 16) ? &from : NULL, m.to = take(b, 16) ? &to : NULL;
        if (honest) {
            (void)fine(dpar_redistribute(world, &m, &why));
        }
        return;
    }
    for (i = 0; i < 2; i++) {
        send[i].peer = take(b, 16) ? 0 : odd32(b), send[i].dims = take(b, 16) ? 3 : odd32(b);
        send[i].op = take(b, 8) ? 0 : odd32(b), send[i].flip = (uint32_t)take(b, 9);
        for (d = 0; d < 3; d++) {
            send[i].extent[d] = take(b, 16) ? 1 + take(b, 3) : odd64(b);
            send[i].mine[d] = take(b, 16) ? take(b, 3) : odd64(b);
            send[i].theirs[d] = take(b, 16) ? take(b, 3) : odd64(b);
        }
        receive[i] = send[i];
        memcpy(receive[i].mine, send[i].theirs, sizeof send[i].theirs);
        memcpy(receive[i].theirs, send[i].mine, sizeof send[i].mine);
    }
    m.send = send, m.receive = receive, m.send_count = take(b, 3), m.receive_count = take(b, 3);
    if (honest &&
        m.send_count == m.receive_count) { /* else it would wait for messages that no rank sends */
        (void)fine(dpar_transfers_exchange(world, &m, &why));
    }
}

/* Fuzzes ZeRO-1 on one array of gradients; makes a step if it is accepted. */
static void zero1(bytes *b)
{
    dpar_ddp *d = NULL;
    dpar_ddp_desc of;
    dpar_zero1 *zero = NULL;
    dpar_zero1_desc desc;
    dpar_zero1_group group[3];
    dpar_optimizer o;
    int32_t type = take(b, 8) ? 1 + take(b, 2) : odd32(b), i;
    int64_t n = take(b, 16) ? take(b, 200) : odd64(b), first = 0, count = 0;
    double rate, clip;
    n = n > 1000 ? INT64_C(1) << 62 : n; /* arrays have their stated length */
    memset(values, 0, sizeof values);
    memset(&of, 0, sizeof of);
    memset(&desc, 0, sizeof desc);
    of.params = 1;
    of.count = &n;
    of.type = type;
    of.gradients = take(b, 16) ? values : NULL;
    of.sum = take(b, 8) == 0;
    if (!fine(dpar_ddp_make(world, &of, &d, &why))) {
        return;
    }
    o = an_optimizer(b);
    for (i = 0; i < 3; i++) {
        group[i].first = take(b, 16) ? 60 * i + take(b, 60) : odd64(b);
        group[i].count = take(b, 16) ? take(b, 60) : odd64(b);
        group[i].numbers.decay = odd_real(b), group[i].numbers.rate = odd_real(b);
    }
    desc.weights = take(b, 16) ? values + 2048 : NULL;
    desc.optimizer = take(b, 16) ? &o : NULL;
    if (take(b, 2)) {
        desc.group = take(b, 16) ? group : NULL;
        desc.groups = take(b, 5) - 1;
    }
    desc.groups = desc.groups > 3 ? 3 : desc.groups;
    desc.steps = take(b, 3) ? 0 : odd64(b);
    if (fine(dpar_zero1_make(d, &desc, &zero, &why))) {
        must(dpar_zero1_make(d, &desc, &zero, &why) == DPAR_E_ARG);
        must(dpar_ddp_free(d) == DPAR_E_ARG);
        o = take(b, 4) ? o : an_optimizer(b);
        rate = odd_real(b), clip = odd_real(b);
        if (world->status == DPAR_OK) {
            (void)dpar_zero1_step(zero, rate, clip);
        }
        i = take(b, 3);
        must(dpar_zero1_state(zero, i, &first, &count, &type) == NULL ||
             (first == 0 && count == n));
        must(dpar_zero1_free(zero) == DPAR_OK);
    }
    must(dpar_ddp_free(d) == DPAR_OK);
}

/* Fuzzes what tensor-parallel layers share, and a layer on it. */
static void tensor(bytes *b)
{
    dpar_tensor_parallel t;
    dpar_linear l;
    dpar_linear_arrays a;
    int64_t counts[1], tokens = take(b, 8) ? take(b, 5) : odd64(b);
    int32_t type = take(b, 8) ? 1 + take(b, 2) : odd32(b);
    memset(&l, 0, sizeof l);
    memset(&a, 0, sizeof a);
    memset(values, 0, sizeof values);
    if (!fine(dpar_tensor_parallel_init(&t, take(b, 32) ? world : NULL, type, tokens,
                                        take(b, 2) ? counts : NULL, &why))) {
        return;
    }
    l.kind = take(b, 8) ? 1 + take(b, 2) : odd32(b);
    l.in = take(b, 8) ? take(b, 9) : odd64(b), l.out = take(b, 8) ? take(b, 9) : odd64(b);
    a.x = take(b, 16) ? values : NULL, a.y = take(b, 16) ? values + 512 : NULL;
    a.w = take(b, 16) ? values + 1024 : NULL, a.bias = take(b, 2) ? values + 1200 : NULL;
    a.gathered = take(b, 16) ? values + 1536 : NULL,
    a.gathered_dx = take(b, 4) ? values + 1700 : NULL;
    a.dy = take(b, 16) ? values + 512 : NULL, a.dx = take(b, 2) ? values + 1800 : NULL;
    a.dw = take(b, 2) ? values + 1900 : NULL, a.dbias = take(b, 2) ? values + 2000 : NULL;
    a.reuse_gathered = take(b, 2), a.accumulate = take(b, 2), a.accumulate_dx = take(b, 2),
    a.defer_reduce = take(b, 2);
    if (tokens < 9 && l.in < 9 && l.out < 9) { /* arrays have their stated length */
        must(dpar_linear_forward(&t, &l, &a) == DPAR_OK || world->status != DPAR_OK);
        must(world->status != DPAR_OK || dpar_linear_backward(&t, &l, &a) == DPAR_OK ||
             world->status != DPAR_OK);
    }
}

static dpar_status nothing(void *ctx, const dpar_stage_task *task, dpar_why *said)
{
    const dpar_pipeline_desc *o = (const dpar_pipeline_desc *)ctx;
    must(said != NULL && said->text[0] == 0);
    must(task->action.stage < o->schedule->stages &&
         task->action.micro_batch < o->schedule->micro_batches);
    if (task->out != NULL) {
        memset(task->out, 0, (size_t)(task->out_count * dpar_type_bytes(o->type)));
    }
    return DPAR_OK;
}

/* Fuzzes a published schedule, mostly of one rank, lowered or not, perhaps with an action
 * changed. */
static void pipelines(bytes *b)
{
    static int64_t made_in[2000], list_in[6000];
    dpar_schedule_desc order;
    dpar_schedule_lower_desc how;
    dpar_schedule made, list;
    dpar_pipeline_desc o;
    dpar_pipeline *p = NULL;
    dpar_stage_callback work;
    int64_t count_of[8];
    int32_t i;
    memset(&order, 0, sizeof order);
    memset(&how, 0, sizeof how);
    memset(&o, 0, sizeof o);
    order.rule = take(b, DPAR_SCHEDULE_END + 1), order.ranks = take(b, 16) ? 1 : 2;
    order.micro_batches = take(b, 6), order.chunks = take(b, 4),
    order.group = take(b, 4) ? 0 : take(b, 4);
    order.slices = take(b, 4) ? 0 : take(b, 4), order.lifo = take(b, 2);
    if (dpar_schedule_generate(&made, &order, made_in, sizeof made_in, NULL) != DPAR_OK) {
        return;
    }
    how.passes = take(b, 16), how.max_active = take(b, 3), how.channel = take(b, 6);
    list = made;
    if (take(b, 8)) {
        (void)dpar_schedule_lower(&list, &made, &how, list_in, sizeof list_in, NULL);
    }
    if (take(b, 4) == 0 && list.begin[list.ranks] > 0) { /* sets what is in the list too */
        dpar_action *a = &list.action[take(b, 255) % list.begin[list.ranks]];
        a->kind = (uint8_t)take(b, DPAR_ACTION_COUNT + 1), a->stage = (uint16_t)take(b, 5);
        a->micro_batch = (uint16_t)take(b, 7), a->joined = (uint8_t)take(b, 2);
    }
    o.schedule = take(b, 32) ? &list : NULL, o.type = take(b, 8) ? 1 + take(b, 3) : odd32(b);
    o.tag = odd32(b), o.count = take(b, 8) ? take(b, 9) : odd64(b);
    for (i = 0; i < 8; i++) {
        count_of[i] = take(b, 16) ? take(b, 9) : odd64(b);
        count_of[i] = count_of[i] > 1000 ? INT64_C(1) << 62 : count_of[i];
    }
    o.count_per_stage = take(b, 4) || list.stages > 8 ? NULL : count_of;
    o.activation_bytes = odd64(b), o.weight_bytes = odd64(b);
    o.keep_sends = take(b, 8) ? take(b, 2) : odd32(b),
    o.no_final_barrier = take(b, 8) ? take(b, 2) : odd32(b);
    work = nothing;
    o.forward = take(b, 16) ? work : NULL, o.backward = take(b, 16) ? work : NULL;
    o.input = take(b, 16) ? work : NULL, o.weight = take(b, 16) ? work : NULL;
    o.reduce = o.wait_reduce = o.unshard = o.reshard = take(b, 4) ? work : NULL;
    o.recompute = o.offload = o.reload = take(b, 4) ? work : NULL;
    o.ctx = &o;
    o.tied = take(b, 2) ? values : NULL, o.tied_count = take(b, 8) ? take(b, 9) : odd64(b);
    o.tied_count = o.tied_count > 1000 ? INT64_C(1) << 62 : o.tied_count;
    o.tied_type = take(b, 8) ? 1 + take(b, 2) : odd32(b);
    if (o.count > 1000 || o.activation_bytes > 1000 || o.weight_bytes > 1000) {
        o.count = INT64_C(1) << 62; /* makes slots, none of gigabytes */
        o.count_per_stage = NULL;
    }
    o.bytes = 1; /* to ask for the size */
    why.bytes = 0;
    must(!fine(dpar_pipeline_make(world, &o, &p, &why)));
    if (why.bytes == 0 || why.bytes > MOST) {
        return;
    }
    o.bytes = take(b, 2) ? why.bytes : 0;
    o.memory = o.bytes > 0 ? room(o.bytes) : NULL;
    if (fine(dpar_pipeline_make(world, &o, &p, &why))) {
        must(fine(dpar_pipeline_run(p, take(b, 2), &why)));
        must(dpar_pipeline_free(p) == DPAR_OK);
    }
    free(o.memory);
}

/* ---- what a launcher left in the environment ------------------------------------------------- */

enum { VARIABLES = 10, LETTERS = 24 };
typedef struct variable {
    const char *name;
    char text[LETTERS + 1];
} variable;

static const char *variable_of(const void *user, const char *name)
{
    const variable *v = (const variable *)user;
    int i;
    for (i = 0; i < VARIABLES; i++) {
        if (v[i].name != NULL && strcmp(v[i].name, name) == 0) {
            return v[i].text;
        }
    }
    return NULL;
}

static void environment(bytes *b)
{
    static const char *const names[][5] = {
        {"DPAR_RANK", "DPAR_SIZE", "DPAR_LOCAL_RANK", "DPAR_LOCAL_SIZE", "DPAR_JOB"},
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"},
        {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MVAPICH",
         "PBS_NODEFILE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_FD"},
        {"PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "PMIX_RANK", "PBS_JOBID", "LSB_JOBID"},
        {"PALS_RANKID", "PALS_NRANKS", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_APID"},
        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
         "MV2_COMM_WORLD_LOCAL_SIZE", "MPIRUN_ID"},
        {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES", "FLUX_JOB_ID"},
        {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_ID",
         "PALS_SIZE"},
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
         "SLURM_NODEID"},
        {"SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_JOBID", "MPIRUN_HOST", "HOME"}};
    static const char letters[] = "01234567899(x),(x-/ a";
    variable v[VARIABLES];
    dpari_site site;
    dpar_launcher_info job, before;
    int32_t nodes = -7, group = take(b, 12);
    int i, k, n;
    memset(v, 0, sizeof v);
    for (i = 0; i < VARIABLES; i++) { /* a launcher's own variables, and others */
        int at = i < 5 ? group : take(b, 12);
        n = take(b, 16) ? 1 : take(b, LETTERS + 1);
        v[i].name = take(b, 8) || i == 0 ? names[at][i % 5] : NULL;
        for (k = 0; k < n; k++) {
            v[i].text[k] = letters[n == 1 ? take(b, 9) : take(b, (int)sizeof letters - 1)];
        }
    }
    site.env = variable_of, site.user = v, site.root = "/dev/null"; /* no files */
    memset(&job, 0x5a, sizeof job);
    before = job;
    if (fine(dpari_job_from(&site, &job, &nodes, &why))) {
        must(job.kind >= 0 && job.kind < DPAR_LAUNCHER_COUNT && nodes >= 0);
        must(job.size >= 1 && job.rank >= 0 && job.rank < job.size);
        must(job.local_size >= -1 && job.local_size != 0 && job.local_size <= job.size);
        must(job.local_rank < job.size && memchr(job.id, 0, sizeof job.id) != NULL);
    } else {
        must(memcmp(&job, &before, sizeof job) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes in = input_of(data, size);
    switch (take(&in, 13)) {
    case 9: zero1(&in); break;
    case 10: tensor(&in); break;
    case 11: pipelines(&in); break;
    case 12: environment(&in); break;
    case 0: a_grid(&in); break;
    case 1: a_halo(&in); break;
    case 2: some_points(&in); break;
    case 3: gradients(&in); break;
    case 4: shards(&in); break;
    case 5: experts(&in); break;
    case 6: attention(&in); break;
    case 7: moves(&in); break;
    default: {
        dpar_optimizer o = an_optimizer(&in);
        int32_t arrays = 0, type = 0;
        if (fine(dpar_optimizer_check(&o, odd32(&in), &arrays, &type, &why))) {
            must(arrays >= 0 && arrays <= 2);
        }
        break;
    }
    }
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
int main(int argc, char **argv)
{
    return feed_random(argc > 1 ? atol(argv[1]) : 100000);
}
#endif
