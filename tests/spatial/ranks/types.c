/* SPDX-License-Identifier: MIT-0 */
/* Tests a type that is 0. Each call that describes data refuses it with E_ARG and a message, on all
 * ranks without waiting, and the communicator still works. Where ranks agree on a plan, one rank
 * with such a type is enough: all ranks get the error. */
#include "dpar_spatial.h"
#include "expert_calls.h"
#include "halo_plans.h"
#include "rank_program.h"

#define ROOM 65536

/* Each rank has its own arrays, also as threads, and nothing is moved. */
static double from[64], to[64];

/* Checks for E_ARG and, on a rank whose type is 0, a message that contains "none". */
static void left_out(dpar_status st, const char *text, int mine, const char *what)
{
    const int fine = st == DPAR_E_ARG && text[0] != 0 && (!mine || strstr(text, "none") != NULL);
    CHECK(fine);
    if (!fine) {
        printf("    %s: %s: \"%s\"\n", what, dpar_status_text(st), text);
    }
}
#define LEFT_OUT(call, mine)                                                                       \
    do {                                                                                           \
        why.text[0] = 0;                                                                           \
        left_out(call, why.text, mine, #call);                                                     \
    } while (0)
/* The same with the communicator's message. */
#define LEFT_OUT_OF(c, call)                                                                       \
    do {                                                                                           \
        (c)->why.text[0] = 0;                                                                      \
        left_out(call, (c)->why.text, 1, #call);                                                   \
    } while (0)

static void operations(dpar_comm *c)
{
    const int64_t ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    dpar_call call[2];
    dpar_work work[2];
    LEFT_OUT_OF(c, dpar_broadcast(c, to, 1, 0, 0, NULL));
    LEFT_OUT_OF(c, dpar_reduce(c, from, to, 1, 0, DPAR_SUM, 0, NULL));
    LEFT_OUT_OF(c, dpar_all_reduce(c, from, to, 1, 0, DPAR_SUM, NULL));
    LEFT_OUT_OF(c, dpar_all_gather(c, from, to, 1, 0, NULL));
    LEFT_OUT_OF(c, dpar_reduce_scatter(c, from, to, 1, 0, DPAR_SUM, NULL));
    LEFT_OUT_OF(c, dpar_all_to_all(c, from, to, 1, 0, NULL));
    LEFT_OUT_OF(c, dpar_gather(c, from, to, 1, 0, 0, NULL));
    LEFT_OUT_OF(c, dpar_scatter(c, from, to, 1, 0, 0, NULL));
    LEFT_OUT_OF(c, dpar_all_gather_v(c, from, to, ones, NULL, 0, NULL));
    LEFT_OUT_OF(c, dpar_reduce_scatter_v(c, from, to, ones, 0, DPAR_SUM, NULL));
    LEFT_OUT_OF(c, dpar_all_to_all_v(c, from, ones, NULL, to, ones, NULL, 0, NULL));
    LEFT_OUT_OF(c, dpar_gather_v(c, from, 1, to, ones, NULL, 0, 0, NULL));
    LEFT_OUT_OF(c, dpar_scatter_v(c, from, ones, NULL, to, 1, 0, 0, NULL));
    LEFT_OUT_OF(c, dpar_send(c, from, 1, 0, 0, 0, NULL));
    LEFT_OUT_OF(c, dpar_recv(c, to, 1, 0, 0, 0, NULL));
    memset(call, 0, sizeof call);
    memset(work, 0, sizeof work);
    call[0].kind = DPAR_CALL_ALL_REDUCE;
    call[0].op = DPAR_SUM;
    call[0].in = from;
    call[0].out = to;
    call[0].count = 1;
    LEFT_OUT_OF(c, dpari_post(c, call, NULL));
    LEFT_OUT_OF(c, dpari_post(c, call, &work[0]));
    CHECK_INT(dpar_wait(&work[0]), DPAR_E_ARG);
    call[1] = call[0];
    call[0].kind = DPAR_CALL_RECV;
    call[1].kind = DPAR_CALL_SEND;
    call[0].op = call[1].op = 0;
    LEFT_OUT_OF(c, dpar_batch(c, call, 2, NULL));
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
}

/* Cuts rows of 8 elements. */
static void rows(dpar_comm *c, dpar_layout *l)
{
    const int64_t cells[2] = {24, 8};
    const dpar_placement cut[1] = {dpar_shard(0)};
    dpar_mesh mesh;
    CHECK_INT(dpar_mesh_init(&mesh, "rows", &c->size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(l, &mesh, 2, cells, cut, NULL), DPAR_OK);
}

static void moves(dpar_comm *c, int last)
{
    const int64_t shape[2] = {3, 8};
    dpar_layout l;
    dpar_transfer t;
    dpar_redistribute_desc m;
    dpar_why why;
    rows(c, &l);
    memset(&t, 0, sizeof t);
    t.peer = c->rank;
    t.dims = 2;
    t.extent[0] = t.extent[1] = 1;
    memset(&m, 0, sizeof m);
    m.from = m.to = &l;
    m.in = from;
    m.out = to;
    LEFT_OUT(dpar_redistribute(c, &m, &why), 1);
    m.type = last ? DPAR_TYPE_NONE : DPAR_F64;
    LEFT_OUT(dpar_redistribute(c, &m, &why), last);
    m.type = DPAR_TYPE_NONE;
    m.from = m.to = NULL;
    m.send = m.receive = &t;
    m.send_count = m.receive_count = 1;
    m.in_shape = m.out_shape = shape;
    LEFT_OUT(dpar_transfers_exchange(c, &m, &why), 1);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
}

static void halos(dpar_comm *c, int last, void *memory)
{
    dpar_halo h;
    dpar_halo_field f;
    dpar_halo_plan_desc choice;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    int64_t bytes = 0;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    rows(c, &h.grid);
    h.low[0] = h.high[0] = 1;
    f.halo = &h;
    f.data = from;
    LEFT_OUT(plan_bytes(c, &f, 1, NULL, &bytes, &why), 1);
    LEFT_OUT(plan_init(memory, ROOM, c, &f, 1, NULL, &x, &why), 1);
    LEFT_OUT(plan_tune(c, &f, 1, NULL, &choice, NULL, &why), 1);
    f.wire_type = DPAR_F32;
    LEFT_OUT(plan_bytes(c, &f, 1, NULL, &bytes, &why), 1);
    f.wire_type = DPAR_TYPE_NONE;
    f.type = last ? DPAR_TYPE_NONE : DPAR_F32;
    LEFT_OUT(plan_init(memory, ROOM, c, &f, 1, NULL, &x, &why), last);
    CHECK(x == NULL);
    f.type = DPAR_F32; /* the wire type: given or by default the same */
    f.wire_type = last ? DPAR_F32 : DPAR_TYPE_NONE;
    CHECK_INT(plan_init(memory, ROOM, c, &f, 1, NULL, &x, &why), DPAR_OK);
    CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
}

static void gradients(dpar_comm *c, int last)
{
    const int64_t numel[2] = {5, 7};
    dpar_ddp_desc o;
    dpar_fsdp_desc p;
    dpar_ddp *ddp = NULL;
    dpar_fsdp *fsdp = NULL;
    dpar_why why;
    int32_t i;
    memset(&o, 0, sizeof o);
    o.params = 2;
    o.count = numel;
    LEFT_OUT(dpar_ddp_make(c, &o, &ddp, &why), 1);
    o.type = last ? DPAR_TYPE_NONE : DPAR_F32;
    LEFT_OUT(dpar_ddp_make(c, &o, &ddp, &why), last);
    o.type = DPAR_F32; /* the wire type: by default that of the gradients */
    o.wire_type = last ? DPAR_F32 : DPAR_TYPE_NONE;
    CHECK_INT(dpar_ddp_make(c, &o, &ddp, &why), DPAR_OK);
    CHECK_INT(dpar_ddp_free(ddp), DPAR_OK);
    memset(&p, 0, sizeof p); /* here types that are 0 select the default */
    p.units = 2;
    p.count = numel;
    dpar_optimizer_init(&p.optimizer, DPAR_OPTIMIZER_ADAMW);
    CHECK_INT(dpar_fsdp_make(c, &p, &fsdp, &why), DPAR_OK);
    (void)dpar_fsdp_state(fsdp, DPAR_FSDP_MASTER, 0, NULL, &i);
    CHECK_INT(i, DPAR_F32);
    CHECK_INT(dpar_fsdp_free(fsdp), DPAR_OK);
    /* given on one rank and by default on the others: the same */
    p.type = last ? DPAR_F32 : DPAR_TYPE_NONE;
    CHECK_INT(dpar_fsdp_make(c, &p, &fsdp, &why), DPAR_OK);
    CHECK_INT(dpar_fsdp_free(fsdp), DPAR_OK);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
}

static dpar_status nothing(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    (void)ctx, (void)task, (void)why;
    return DPAR_OK;
}

static void stages(dpar_comm *c, int last, void *memory)
{
    dpar_schedule s;
    dpar_schedule_desc order;
    dpar_pipeline_desc o;
    dpar_pipeline *p = NULL;
    dpar_why why;
    int64_t bytes = 0;
    void *list;
    int tied;
    memset(&o, 0, sizeof o);
    memset(&order, 0, sizeof order);
    order.rule = DPAR_SCHEDULE_GPIPE;
    order.ranks = c->size;
    order.micro_batches = 2;
    bytes = dpari_schedule_generate_bytes(&order, &why);
    list = zeroed(bytes);
    CHECK_INT(dpar_schedule_generate(&s, &order, list, bytes, &why), DPAR_OK);
    o.schedule = &s;
    o.memory = memory;
    o.bytes = ROOM;
    o.count = 1;
    o.forward = o.backward = nothing;
    for (tied = 0; tied < 2; tied++) {
        o.type = tied ? DPAR_F32 : DPAR_TYPE_NONE;
        o.tied = from;
        o.tied_count = tied;
        LEFT_OUT(dpar_pipeline_make(c, &o, &p, &why), 1);
        if (!last) {
            o.type = o.tied_type = DPAR_F32;
        }
        LEFT_OUT(dpar_pipeline_make(c, &o, &p, &why), last);
        o.tied_type = DPAR_TYPE_NONE;
    }
    free(list);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
}

static void layers(dpar_comm *c, int last, void *memory)
{
    static const int64_t ends[2] = {0, 64};
    dpar_tensor_parallel t;
    dpar_router g;
    dpar_experts_desc e;
    dpar_mem_attention_merge merge;
    dpar_experts_plan *experts = NULL;
    dpar_attention_desc a;
    dpar_attention_plan *attention = NULL;
    dpar_why why;
    int32_t chosen[4];
    int way;
    double scratch[16], out[4] = {0, 0, 0, 0};
    LEFT_OUT(dpar_tensor_parallel_init(&t, c, 0, 8, NULL, &why), 1);
    memset(&g, 0, sizeof g);
    g.experts = 4;
    g.choices = 1;
    LEFT_OUT(router_forward(&g, 1, from, chosen, to, scratch, &why), 1);
    memset(&e, 0, sizeof e);
    CHECK_INT(dpar_split_init(&e.experts, DPAR_SPLIT_EVEN, 16, c->size, 0, NULL), DPAR_OK);
    e.choices = 1;
    e.max_tokens = e.width = 2;
    e.memory = memory;
    e.bytes = ROOM;
    LEFT_OUT(dpar_experts_make(c, &e, &experts, &why), 1);
    e.type = last ? DPAR_TYPE_NONE : DPAR_F32;
    LEFT_OUT(dpar_experts_make(c, &e, &experts, &why), last);
    for (way = 0; way < 2; way++) {
        memset(&a, 0, sizeof a);
        a.method = way ? dpar_attention_ulysses : NULL;
        a.tokens.docs = 1;
        a.tokens.ends = ends;
        a.tokens.ranks = c->size;
        a.tokens.rule = DPAR_SPLIT_CHUNK;
        a.heads = a.groups = 8;
        a.width = a.value_width = 1;
        a.memory = memory;
        a.bytes = ROOM;
        LEFT_OUT(dpar_attention_make(c, &a, &attention, &why), 1);
        a.type = last ? DPAR_TYPE_NONE : DPAR_F32;
        LEFT_OUT(dpar_attention_make(c, &a, &attention, &why), last);
    }
    memset(&merge, 0, sizeof merge);
    merge.rows = merge.values = 1;
    merge.out = merge.lse = out;
    merge.more = merge.more_lse = out;
    CHECK_INT(dpar_mem_host_layers().attention_merge(NULL, &merge), DPAR_E_ARG);
    CHECK_NEAR(out[0], 0.0, 0.0);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
}

static void grids(dpar_comm *c, int last, void *memory)
{
    dpar_spatial_desc s;
    dpar_spatial_plan *plan = NULL;
    dpar_norm n;
    dpar_norm_arrays arrays;
    dpar_tile tile;
    dpar_why why;
    double room[64];
    memset(&s, 0, sizeof s);
    rows(c, &s.in);
    s.window[0].kernel = 3;
    s.type = DPAR_F32; /* a kind that is 0 is not a convolution */
    s.memory = memory;
    s.bytes = ROOM;
    CHECK_INT(dpar_spatial_make(c, &s, &plan, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "kind is 0 and outputs is 0; kinds 1 to 4 and outputs 0 to 2 are allowed");
    s.type = DPAR_TYPE_NONE;
    s.kind = DPAR_SPATIAL_CONVOLUTION;
    LEFT_OUT(dpar_spatial_make(c, &s, &plan, &why), 1);
    s.type = last ? DPAR_TYPE_NONE : DPAR_F32;
    LEFT_OUT(dpar_spatial_make(c, &s, &plan, &why), last);
    memset(&n, 0, sizeof n);
    memset(&tile, 0, sizeof tile);
    n.samples = n.channels = 1;
    memset(&arrays, 0, sizeof arrays);
    arrays.x = arrays.y = &tile;
    arrays.saved = arrays.scratch = room;
    LEFT_OUT_OF(c, dpar_norm_forward(c, &n, &arrays));
}

/* Tests a linear layer without a kind: only the caller knows which half of a pair it is. This
 * breaks the communicator, so that all ranks get the error. */
static void linear(dpar_comm *c)
{
    dpar_comm *apart = NULL;
    dpar_tensor_parallel t;
    dpar_linear layer;
    dpar_linear_arrays arrays;
    dpar_why why;
    CHECK_INT(dpar_comm_split(c, 0, 0, &apart), DPAR_OK);
    CHECK_INT(dpar_tensor_parallel_init(&t, apart, DPAR_F32, 8, NULL, &why), DPAR_OK);
    memset(&layer, 0, sizeof layer);
    memset(&arrays, 0, sizeof arrays);
    CHECK_INT(dpar_linear_forward(&t, &layer, &arrays), DPAR_E_ARG);
    CHECK(strstr(apart->why.text, "linear: kind is 0, in ") != NULL);
    (void)dpar_comm_free(apart);
}

static int each(dpar_comm *c, void *arg)
{
    const int last = c->rank == c->size - 1;
    void *whole, *memory = zeroed_aligned(ROOM, &whole);
    dpar_comm *own = NULL;
    (void)arg;
    operations(c);
    moves(c, last);
    halos(c, last, memory);
    gradients(c, last);
    linear(c);
    stages(c, last, memory);
    layers(c, last, memory);
    CHECK_INT(dpar_comm_split(c, 0, 0, &own), DPAR_OK);
    grids(own, last, memory); /* an error in a norm breaks it */
    (void)dpar_comm_free(own);
    free(whole);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 4, 3, NULL);
}
