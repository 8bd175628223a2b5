/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes other functions that check a descriptor: spatial layers, clouds and pieces of a mesh, the
 * cost of halos, models as structs, searches for plans, searches for schedules, cuts by weights,
 * heads, routes, options of a communicator. A refusal must have a message; what is accepted is used
 * and freed. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed
 * pseudo-random inputs. Run with: tests/compile/fuzz.sh. */
#include "dpar_cost.h"
#include "dpar_points.h"
#include "dpar_spatial.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "one_rank.h"

/* Returns 1 for OK, 0 for a refusal, which must have a message. */
static int fine(dpar_status st)
{
    must(st >= DPAR_OK || why.text[0] != 0);
    must(memchr(why.text, 0, sizeof why.text) != NULL);
    return st >= DPAR_OK;
}

static void no_kernel(const dpar_spatial_call *call)
{
    must(call->layer != NULL);
}

static dpar_layout a_layout(bytes *b, int32_t dims)
{
    dpar_layout l;
    dpar_mesh m;
    dpar_placement p =
        take(b, 4) ? dpar_replicate() : dpar_shard_by(take(b, 3), DPAR_SPLIT_EVEN, 0);
    int64_t extent[DPAR_MAX_DIMS];
    int32_t one = 1, d;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        extent[d] = take(b, 16) ? take(b, 9) : odd64(b);
        extent[d] = extent[d] < 0 ? 0 : extent[d] > INT64_C(1) << 60 ? INT64_C(1) << 60 : extent[d];
    }
    must(dpar_mesh_init(&m, "a", &one, 0, 0, NULL) == DPAR_OK);
    if (dpar_layout_init(&l, &m, dims, extent, &p, NULL) != DPAR_OK) {
        memset(&l, 0, sizeof l);
    }
    return l;
}

static void spatial(bytes *b)
{
    dpar_spatial_desc layer;
    dpar_spatial_boxes boxes;
    dpar_spatial_plan *plan = NULL;
    dpar_halo_plan_desc o;
    dpar_spatial_tap_range taps;
    int32_t d, dims = take(b, 4), small = 1;
    memset(&layer, 0, sizeof layer);
    memset(&o, 0, sizeof o);
    layer.kind = take(b, 8) ? 1 + take(b, 4) : odd32(b);
    layer.outputs = take(b, 8) ? take(b, 3) : odd32(b);
    layer.in = a_layout(b, dims);
    layer.given_layout = a_layout(b, take(b, 8) ? dims : take(b, 4));
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        dpar_window *w = &layer.window[d];
        w->kernel = take(b, 16) ? take(b, 5) : odd64(b);
        w->stride = take(b, 16) ? take(b, 4) : odd64(b);
        w->dilation = take(b, 16) ? take(b, 4) : odd64(b);
        w->pad_low = take(b, 16) ? take(b, 4) : odd64(b);
        w->pad_high = take(b, 16) ? take(b, 4) : odd64(b);
        w->ceil_mode = take(b, 2), w->kind = take(b, 16) ? 0 : odd32(b);
        w->align_corners = take(b, 2);
        layer.padding[d] = take(b, 16) ? take(b, 5) : odd32(b);
        layer.out_extent[d] = take(b, 2) ? 0 : odd64(b);
        if (take(b, 16) == 0) {
            layer.in_box.dims = take(b, 5);
            layer.in_box.lo[d] = odd64(b) / -2, layer.in_box.hi[d] = odd64(b);
        }
    }
    layer.align_corners = take(b, 2), layer.type = take(b, 8) ? 1 + take(b, 2) : odd32(b);
    layer.tensors = take(b, 8) ? take(b, 5) : odd32(b);
    layer.channels_last = take(b, 2), layer.no_overlap = take(b, 2);
    layer.planes = take(b, 8) ? take(b, 4) : odd64(b);
    layer.out_planes = take(b, 8) ? take(b, 4) : odd64(b);
    layer.forward = take(b, 16) ? no_kernel : NULL;
    layer.input_gradient = take(b, 2) ? no_kernel : NULL;
    layer.weight_gradient = take(b, 2) ? no_kernel : NULL;
    o.method = take(b, 6), o.run_bytes = odd64(b), o.ordered = take(b, 2);
    layer.halo = take(b, 2) ? &o : NULL;
    for (d = 0; d < dims; d++) {
        small = small && layer.in.extent[d] < 5000 && layer.out_extent[d] < 5000;
    }
    memset(&boxes, 0, sizeof boxes);
    if (fine(dpar_spatial_check(&layer, take(b, 16) ? 0 : odd32(b), &boxes, &why))) {
        for (d = 0; d < dims; d++) {
            small = small && boxes.extent[d] < 5000 && layer.window[d].kernel < 5000;
            (void)dpar_spatial_taps(&layer, d, take(b, 4) ? take(b, 5) : odd64(b), &taps);
        }
    }
    if (!small) { /* O(outputs x taps) */
        return;
    }
    layer.bytes = 1; /* to ask for the size */
    why.bytes = 0;
    must(!fine(dpar_spatial_make(world, &layer, &plan, &why)));
    if (why.bytes == 0 || why.bytes > MOST) {
        return;
    }
    layer.bytes = take(b, 2) ? why.bytes : 0;
    layer.memory = layer.bytes > 0 ? room(layer.bytes) : NULL;
    if (fine(dpar_spatial_make(world, &layer, &plan, &why))) {
        must(dpar_spatial_free(plan) == DPAR_OK);
    }
    free(layer.memory);
}

static void clouds(bytes *b)
{
    dpar_points_partition_desc d;
    double at[24], weight[8];
    int64_t id[8], key[8];
    int32_t owner[8], i;
    memset(&d, 0, sizeof d);
    for (i = 0; i < 24; i++) {
        at[i] = odd_real(b) * take(b, 9);
    }
    for (i = 0; i < 8; i++) {
        weight[i] = take(b, 16) ? take(b, 5) : odd_real(b);
        id[i] = take(b, 16) ? i : odd64(b);
    }
    d.dims = take(b, 16) ? 2 + take(b, 2) : odd32(b);
    d.parts = take(b, 8) ? take(b, 9) : odd32(b);
    d.count = take(b, 16) ? take(b, 9) : odd64(b);
    d.count = d.count > 8 ? 8 : d.count; /* as many as exist */
    d.position = take(b, 16) ? at : NULL, d.weight = take(b, 2) ? weight : NULL;
    d.id = take(b, 2) ? id : NULL;
    if (fine(dpar_points_partition(world, &d, take(b, 16) ? owner : NULL, take(b, 2) ? key : NULL,
                                   &why))) {
        for (i = 0; i < d.count; i++) {
            must(owner[i] >= 0 && owner[i] < (d.parts > 0 ? d.parts : 1));
        }
    }
}

static void pieces(bytes *b)
{
    dpar_points_migration_desc d;
    dpar_points_migration *moved = NULL;
    dpar_points *p = NULL;
    int64_t id[8], order[8], corner[32], element_id[8], element_order[8];
    int32_t owner[8], element_owner[8], i;
    memset(&d, 0, sizeof d);
    for (i = 0; i < 8; i++) {
        id[i] = take(b, 16) ? 7 - i : odd64(b), order[i] = odd64(b),
        owner[i] = odd32(b) * !take(b, 4);
        element_id[i] = take(b, 16) ? i : odd64(b), element_order[i] = odd64(b);
        element_owner[i] = odd32(b) * !take(b, 4);
    }
    for (i = 0; i < 32; i++) {
        corner[i] = take(b, 32) ? take(b, 8) : odd64(b);
    }
    d.point_count = take(b, 16) ? take(b, 9) : odd64(b);
    d.point_count = d.point_count > 8 ? 8 : d.point_count;
    d.element_count = take(b, 16) ? take(b, 9) : odd64(b);
    d.element_count = d.element_count > 8 ? 8 : d.element_count;
    d.corner_count = take(b, 16) ? take(b, 5) : odd32(b);
    d.corner_count = d.corner_count > 4 ? 65 : d.corner_count;
    d.id = take(b, 2) ? id : NULL, d.owner = take(b, 2) ? owner : NULL;
    d.order = take(b, 2) ? order : NULL, d.corner = take(b, 16) ? corner : NULL;
    d.element_id = take(b, 2) ? element_id : NULL;
    d.element_owner = take(b, 2) ? element_owner : NULL;
    d.element_order = take(b, 2) ? element_order : NULL;
    if (fine(dpar_points_migration_make(world, &d, &moved, &why))) {
        must(moved != NULL && moved->desc.own_count == d.point_count &&
             moved->element_count == d.element_count);
        if (fine(dpar_points_make(world, &moved->desc, &p, &why))) {
            must(dpar_points_free(p) == DPAR_OK);
        }
        must(dpar_points_migration_free(moved) == DPAR_OK);
    }
}

static void halo_costs(bytes *b)
{
    dpar_halo_cost_desc job;
    dpar_halo_rates rates;
    dpar_halo_cost grid;
    int32_t d;
    memset(&job, 0, sizeof job);
    memset(&grid, 0, sizeof grid);
    dpar_halo_rates_init(&rates);
    job.ranks = take(b, 8) ? 1 + take(b, 64) : odd32(b);
    job.per_node = take(b, 4) ? take(b, 9) : odd32(b);
    job.dims = take(b, 16) ? 1 + take(b, 3) : odd32(b),
    job.shape = take(b, 8) ? take(b, 3) : odd32(b);
    job.periodic = (uint32_t)odd32(b), job.bytes = odd64(b), job.contiguous_bytes = odd64(b);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        job.cells[d] = take(b, 4) ? 1 + take(b, 200) : odd64(b), job.width[d] = odd64(b);
        grid.parts[d] = take(b, 4) ? 1 + take(b, 4) : odd32(b);
        grid.stride[d] = take(b, 4) ? 1 + take(b, 16) : odd32(b);
    }
    if (take(b, 4) == 0) {
        memset(&rates, 0, sizeof rates);
    }
    (void)fine(dpar_halo_cost_predict(&job, take(b, 2) ? &rates : NULL, &grid, &why));
    if (job.ranks <= 64 && job.dims <= 3) { /* larger ones take seconds */
        if (fine(dpar_halo_cost_choose(&job, take(b, 2) ? &rates : NULL, &grid, &why))) {
            int64_t product = 1;
            for (d = 0; d < job.dims; d++) {
                product *= grid.parts[d];
            }
            must(product == job.ranks);
        }
    }
}

/* Changes some numbers of a preset, and searches for plans if the result is a workload. */
static void searches(bytes *b)
{
    static dpar_workload w;
    static dpar_planner planner;
    static dpar_cluster cluster;
    static dpar_plan top[4], front[4];
    static const char *const machines[] = {"dgx-h100", "2x8:a100-80", "frontier"};
    static const char *const names[] = {"llama-3-8b", "mixtral-8x7b", "unet-0.25deg", "deepseek-v2",
                                        "t5-11b",     "resnet-50",    "vit-h",        "gpt3-175b"};
    dpar_model m;
    dpar_job job;
    dpar_planner_desc q;
    const char *machine = machines[take(b, 3)];
    int32_t *field, k, n, fields = (int32_t)((offsetof(dpar_strategy, tiles) + 12) / 4);
    memset(&job, 0, sizeof job);
    memset(&q, 0, sizeof q);
    must(dpar_model_find(&m, names[take(b, 8)], NULL) == DPAR_OK);
    field = &m.family;
    for (n = take(b, 4); n > 0; n--) {
        field[take(b, (int)(((char *)m.pattern - (char *)field) / 4))] = odd32(b);
    }
    if (!fine(dpar_workload_init(&w, &m, take(b, 8) ? 0 : odd32(b), &why))) {
        return;
    }
    must(dpar_cluster_read(&cluster, machine, strlen(machine), NULL) == DPAR_OK);
    must(dpar_recipe_find(&job.recipe, "megatron", NULL) == DPAR_OK);
    job.work = &w, job.cluster = &cluster;
    if (take(b, 8) == 0) {
        job.recipe.weight = odd_real(b), job.recipe.bucket = odd_real(b);
        job.recipe.compute = odd32(b);
    }
    dpar_strategy_init(&q.fixed);
    for (n = take(b, 3); n > 0; n--) {
        k = take(b, fields);
        ((int32_t *)&q.fixed)[k] = odd32(b);
        q.fixed_fields |=
            UINT32_C(1) << (k < DPAR_STRATEGY_FIELD_COUNT - 1 ? k : DPAR_STRATEGY_FIELD_COUNT - 1);
    }
    if (take(b, 16) == 0) {
        q.fixed_fields = (uint32_t)odd32(b);
    }
    q.gpus = take(b, 4) ? 0 : odd32(b), q.global_batch = take(b, 4) ? take(b, 65) : odd64(b);
    q.space = take(b, 8) ? take(b, 3) : odd32(b);
    q.memory_bytes = take(b, 4) ? 0.0 : odd_real(b) * 1e9;
    q.top = take(b, 8) ? top : NULL, q.top_capacity = take(b, 8) ? take(b, 5) : -1;
    q.front = take(b, 8) ? front : NULL, q.front_capacity = take(b, 8) ? take(b, 5) : -1;
    if (fine(dpar_planner_init(&planner, &job, &q, &why))) {
        (void)fine(dpar_planner_run(&planner, 20, &why));
    }
}

static void schedules(bytes *b)
{
    dpar_schedule_optimize_desc job;
    dpar_schedule_partition_desc how;
    dpar_schedule_times t;
    dpar_schedule_optimize_result result;
    dpar_schedule s;
    dpar_stage_values *each[10];
    int64_t some[8], cuts[12], need;
    uint16_t rank_of[8];
    int32_t i;
    void *memory;
    memset(&job, 0, sizeof job);
    memset(&t, 0, sizeof t);
    for (i = 0; i < 8; i++) {
        some[i] = odd64(b), rank_of[i] = (uint16_t)(take(b, 16) ? take(b, 4) : 65535);
    }
    each[0] = &t.forward, each[1] = &t.input, each[2] = &t.weight, each[3] = &t.backward;
    each[4] = &t.latency, each[5] = &t.bytes, each[6] = &t.bandwidth, each[7] = &t.hold_forward;
    each[8] = &t.hold_always, each[9] = &job.cap;
    for (i = 0; i < 10; i++) {
        each[i]->all = take(b, 2) ? odd64(b) : 1;
        each[i]->each = take(b, 8) ? NULL : some;
    }
    t.hold_input.all = t.hold_forward.all > 0 && take(b, 2) ? -t.hold_forward.all : 0;
    job.ranks = take(b, 16) ? 1 + take(b, 4) : odd32(b);
    job.ranks = job.ranks > 8 ? INT32_MAX : job.ranks;
    job.stages = take(b, 16) ? (job.ranks > 0 && job.ranks < 9 ? job.ranks : 4) * (1 + take(b, 2))
                             : odd32(b);
    job.stages = job.stages > 8 ? INT32_MAX : job.stages;
    job.micro_batches = take(b, 16) ? 1 + take(b, 6) : odd32(b);
    job.micro_batches = job.micro_batches > 64 ? INT32_MAX : job.micro_batches;
    job.map = take(b, 16) ? take(b, 2) : odd32(b), job.split = take(b, 2);
    job.objective = take(b, 16) ? take(b, 2) : odd32(b);
    job.rank_of = take(b, 4) ? NULL : rank_of, job.times = take(b, 32) ? &t : NULL;
    job.nodes = take(b, 4) ? 0 : take(b, 50);
    need = dpari_schedule_auto_bytes(&job, &why);
    must(need >= 0 || why.text[0] != 0);
    if (need >= 0 && (memory = room(need)) != NULL) {
        (void)fine(dpar_schedule_optimize(&s, &job, &result, memory, need, &why));
        free(memory);
    }
    memset(&how, 0, sizeof how);
    for (i = 0; i < 10; i++) {
        each[i]->each = NULL; /* there are more layers */
    }
    how.job = &job, how.layers = take(b, 16) ? take(b, 12) : odd32(b), how.tries = take(b, 9);
    how.cuts = cuts;
    need = dpari_schedule_place_bytes(&how);
    if (need >= 0 && how.layers < 5000 && (memory = room(need)) != NULL) {
        (void)fine(dpar_schedule_partition(&s, &how, &result, memory, need, &why));
        free(memory);
    }
}

static void cuts(bytes *b)
{
    dpar_split s;
    dpar_heads h;
    dpar_box box[4];
    int64_t weight[8], cut[10], extent[3];
    int32_t order[8], n, i, d;
    for (i = 0; i < 8; i++) {
        weight[i] = odd64(b);
    }
    n = take(b, 9) - (take(b, 16) == 0);
    if (fine(dpar_split_weighted_cuts(cut, odd64(b), n, weight, odd64(b), &why))) {
        must(fine(dpar_split_init_ragged(&s, n, cut, &why)));
        must(dpar_split_part_first(&s, n - 1) + dpar_split_part_count(&s, n - 1) == cut[n]);
    }
    if (fine(dpar_split_init_ragged(&s, take(b, 8), weight, &why))) {
        must(s.count >= 0);
    }
    i = take(b, 8) ? 1 + take(b, 8) : -1;
    if (fine(dpar_split_balance(cut, n, weight, i, &why))) {
        must(cut[0] == 0 && cut[i] == n);
    }
    if (fine(dpar_heads_init(&h, odd32(b), odd32(b), odd32(b), odd32(b), &why))) {
        (void)dpar_heads_local(&h, 0);
    }
    memset(box, 0, sizeof box);
    for (i = 0; i < 4; i++) {
        box[i].dims = 3;
        for (d = 0; d < 3; d++) {
            box[i].lo[d] = odd64(b), box[i].hi[d] = odd64(b), extent[d] = odd64(b);
        }
    }
    (void)fine(dpar_box_cover(take(b, 4), extent, box, take(b, 5), order, &why));
}

static void routes(bytes *b)
{
    static dpar_route_node nodes[1000];
    dpar_mesh m = take_mesh(b, 16);
    dpar_layout from, to, at, next;
    dpar_route_desc q;
    dpar_route_step step[8];
    int64_t extent[3], ends[2][DPAR_MAX_AXES][8], cost[DPAR_MAX_AXES];
    int32_t dims = take_extents(b, extent, 12), count = 0, i;
    memset(&q, 0, sizeof q);
    if (take_layout(b, &from, &m, dims, extent, ends[0]) != DPAR_OK ||
        take_layout(b, &to, &m, dims, extent, ends[1]) != DPAR_OK) {
        return;
    }
    for (i = 0; i < DPAR_MAX_AXES; i++) {
        cost[i] = odd64(b);
    }
    q.from = &from, q.to = &to, q.byte_cost = take(b, 2) ? cost : NULL, q.step_cost = odd64(b);
    q.nodes = nodes, q.node_capacity = take(b, 4) ? 1000 : take(b, 100);
    if (fine(dpar_route_plan(&q, step, take(b, 9), &count, &why))) {
        at = from;
        for (i = 0; i < count; i++) {
            must(fine(dpar_route_step_apply(&at, &step[i], &to, &next, &why)));
            at = next;
        }
    }
}

static void options(bytes *b)
{
    dpar_world_desc o;
    dpar_comm *c = NULL;
    memset(&o, 0, sizeof o);
    o.timeout_s = take(b, 4) ? 0.0 : odd_real(b), o.grace_s = take(b, 4) ? 0.0 : odd_real(b);
    o.heap_bytes = take(b, 2) ? 0 : odd64(b), o.slot_bytes = take(b, 2) ? 0 : odd64(b);
    o.slot_bytes = take(b, 4) ? o.slot_bytes : INT64_C(1) << take(b, 40);
    o.threads = odd32(b), o.disable = odd32(b);
    if (fine(dpar_init(&c, &o, &why))) {
        must(dpar_comm_free(c) == DPAR_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes in = input_of(data, size);
    switch (take(&in, 12)) {
    case 0: clouds(&in); break;
    case 1: pieces(&in); break;
    case 2: halo_costs(&in); break;
    case 3: searches(&in); break;
    case 4: schedules(&in); break;
    case 5: cuts(&in); break;
    case 6: routes(&in); break;
    case 7: options(&in); break;
    default: spatial(&in); break;
    }
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
int main(int argc, char **argv)
{
    return feed_random(argc > 1 ? atol(argv[1]) : 20000);
}
#endif
