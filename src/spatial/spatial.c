/* SPDX-License-Identifier: MIT-0 */
/* Runs layers of networks on a field that ranks share.
 *
 * The plan has a halo exchange that covers the inputs that a rank reads (spatial_boxes.h). In
 * forward the exchange begins, and the kernel runs on the core: the outputs that read only own
 * points and constants. Then the exchange ends, padding is filled dim by dim, so that corners are
 * filled from corners, and the kernel runs on the slabs around the core. Backward runs the adjoint
 * steps in reverse order: gradients of padding are added to the points from which it was copied,
 * the last dim first, and gradients of halos are added to those of their owners. */
#include "spatial.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "../halo/halo_exchange_private.h"
#include "../halo/halo_traffic.h"
#include "../host/elements.h"
#include "spatial_boxes.h"

/* A plan: the public part and the private fields. */
typedef struct dpari_spatial {
    dpar_spatial_plan head;
    dpar_comm *comm;
    dpar_box core;            /* outputs that need no halo */
    dpar_halo_plan *exchange; /* NULL if there is one rank, and it needs no own values as a halo */
    dpar_halo halo;
    dpar_halo_field field[DPAR_SPATIAL_MAX_TENSORS];
    unsigned char *constants; /* values of padding, in the memory of a device; otherwise NULL */
} dpari_spatial;

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns the bytes of a plan before its halo exchange: its struct, and from a multiple of
 * DPARI_ROOM_ALIGN on the cuts of outputs that follow. */
static int64_t dpari_spatial_own_bytes(const dpar_spatial_desc *layer)
{
    int64_t cuts = 0;
    int32_t i;
    for (i = 0; i < layer->in.mesh.axes; i++) {
        cuts += layer->in.mesh.axis[i].size + 1;
    }
    return dpari_room_up((int64_t)sizeof(dpari_spatial)) + dpari_room_up(8 * cuts);
}

/* Describes the array of an input, or of its gradients, as a tile. */
static void dpari_spatial_input_tile(const dpari_spatial *plan, void *data, dpar_tile *tile)
{
    dpar_tile_init(tile, data, &plan->head.in_box, plan->head.layer.planes,
                   plan->head.layer.channels_last);
}

/* Sets the core of a plan. It stays empty if the kernel must not run before all halos have arrived.
 */
static void dpari_spatial_core(dpari_spatial *plan)
{
    dpar_box core = plan->head.out_owned;
    int32_t d;
    if (plan->head.layer.no_overlap || plan->head.in_owned.dims == 0) {
        return;
    }
    for (d = 0; d < core.dims; d++) {
        const int64_t own[2] = {plan->head.in_owned.lo[d], plan->head.in_owned.hi[d]};
        const int64_t out[2] = {plan->head.out_owned.lo[d], plan->head.out_owned.hi[d]};
        int64_t inner[2];
        dpari_spatial_inner(&plan->head.layer, d, own, out, inner);
        core.lo[d] = inner[0];
        core.hi[d] = inner[1];
        if (inner[1] <= inner[0]) {
            return;
        }
    }
    plan->core = core;
}

/* Describes the inputs as fields of a halo exchange: dense planes of in_box. least: the box of
 * their halo. */
static void dpari_spatial_fields(dpari_spatial *plan, const dpar_box *least)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    dpar_tile tile;
    int32_t i, d;
    dpari_spatial_input_tile(plan, NULL, &tile);
    for (i = 0; i < layer->tensors; i++) {
        dpar_halo_field *field = &plan->field[i];
        dpari_zero(field, sizeof *field);
        field->halo = &plan->halo;
        field->type = layer->type;
        field->components = (int32_t)layer->planes;
        field->component_stride = tile.plane;
        field->mem = plan->comm->mem;
        field->data =
            plan->head.in_box.dims > 0 ? plan : NULL; /* not NULL; each step binds its arrays */
        for (d = 0; d < plan->head.in_box.dims; d++) {
            const int64_t first =
                plan->head.in_owned.dims > 0 ? plan->head.in_owned.lo[d] : least->lo[d];
            field->stride[d] = tile.stride[d];
            field->first[d] = first - plan->head.in_box.lo[d];
        }
    }
}

/* True if an array over the box has at most 2^60 elements, and the offsets of global indices are at
 * most 2^60, too, so that their sums do not overflow. */
static int dpari_spatial_fits(const dpar_box *box, int64_t planes)
{
    const int64_t most = INT64_C(1) << 60;
    int64_t step = planes, sum = 0, reach;
    int32_t d;
    for (d = box->dims - 1; d >= 0; d--) {
        const int64_t lo = box->lo[d], hi = box->hi[d];
        if (lo < -most || hi > most || hi < lo ||
            !dpari_mul(step, dpari_most(-lo, dpari_most(hi, -hi)), &reach) || reach > most - sum ||
            !dpari_mul(step, dpari_most(hi - lo, 1), &step) || step > most) {
            return 0;
        }
        sum += reach;
    }
    return 1;
}

/* Sets the box of the input arrays: the caller's, which must contain `least`, or `least` if there
 * is none. */
static dpar_status dpari_spatial_choose_box(dpari_spatial *plan, const dpar_box *least,
                                            dpar_why *why)
{
    const dpar_box *given = &plan->head.layer.in_box;
    plan->head.in_box = *least;
    if (given->dims != 0) {
        if (given->dims != plan->head.layer.in.dims || !dpari_spatial_fits(given, 1)) {
            return dpari_wrong(
                why, "in_box has %d dims; it must have %d, with lo <= hi, and indices within 2^60",
                given->dims, plan->head.layer.in.dims);
        }
        if (least->dims > 0 || dpar_box_volume(given) > 0) {
            plan->head.in_box = *given;
        }
    }
    if (least->dims > 0 && !dpari_box_contains(&plan->head.in_box, least)) {
        return dpari_wrong(why, "rank %d: in_box does not contain the box of dpar_spatial_check",
                           plan->comm->rank);
    }
    if (!dpari_spatial_fits(&plan->head.in_box, plan->head.layer.planes) ||
        !dpari_spatial_fits(&plan->head.out_owned, plan->head.layer.out_planes)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "%ld planes of inputs or %ld of outputs on rank %d have more than 2^60 elements",
            plan->head.layer.planes, plan->head.layer.out_planes, plan->comm->rank);
    }
    return DPAR_OK;
}

/* Sets all fields of a plan except its exchange, in dpari_spatial_own_bytes bytes. Local. */
static dpar_status dpari_spatial_set_plan(unsigned char *memory, dpar_comm *comm,
                                          const dpar_spatial_desc *layer, dpar_why *why)
{
    dpari_spatial *plan = (dpari_spatial *)(void *)memory;
    int64_t m[DPAR_MAX_DIMS];
    int64_t *cuts = (int64_t *)(void *)(memory + dpari_room_up((int64_t)sizeof *plan));
    dpar_box least;
    dpar_status status;
    dpari_zero(plan, sizeof *plan);
    plan->comm = comm;
    plan->head.layer = *layer;
    plan->head.layer.tensors = layer->tensors > 0 ? layer->tensors : 1;
    plan->head.layer.planes = layer->planes > 0 ? layer->planes : 1;
    plan->head.layer.out_planes =
        layer->out_planes > 0 ? layer->out_planes : plan->head.layer.planes;
    (void)dpari_spatial_outputs(&plan->head.layer, m, NULL);
    status = dpari_spatial_layout(&plan->head.layer, m, cuts, &plan->head.out, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_boxes_of(&plan->head.layer, m, comm->rank, &plan->head.in_owned,
                           &plan->head.out_owned, &least);
    dpari_spatial_halo(&plan->head.layer, &plan->head.out, &plan->halo);
    status = dpar_halo_check(&plan->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&least, sizeof least);
    (void)dpar_halo_box(&plan->halo, comm->rank, &least);
    status = dpari_spatial_choose_box(plan, &least, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_core(plan);
    dpari_spatial_fields(plan, &least);
    return DPAR_OK;
}

/* Describes the exchange of halos of a layer. */
static DPARI_COLD void dpari_spatial_exchange_desc(const dpari_spatial *p,
                                                   const dpar_spatial_desc *layer,
                                                   dpar_halo_plan_desc *desc)
{
    dpari_zero(desc, sizeof *desc);
    if (layer->halo != NULL) {
        *desc = *layer->halo;
    }
    desc->field = p->field;
    desc->field_count = p->head.layer.tensors;
}

/* Checks a layer and counts the bytes of its plan, which is set in temporary memory for that.
 * Local. */
static DPARI_COLD dpar_status dpari_spatial_count(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                  int64_t *need, dpar_why *why)
{
    void *memory;
    int64_t m[DPAR_MAX_DIMS], own, more = 0;
    dpar_status status = dpari_spatial_outputs(layer, m, why);
    if (status != DPAR_OK) {
        return status;
    }
    own = dpari_spatial_own_bytes(layer);
    memory = dpari_os_pages(own);
    if (memory == NULL) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_spatial_make: no memory for %ld temporary bytes",
                         own);
    }
    status = dpari_spatial_set_plan((unsigned char *)memory, comm, layer, why);
    if (status == DPAR_OK) {
        dpar_halo_plan_desc desc;
        dpari_spatial_exchange_desc((const dpari_spatial *)memory, layer, &desc);
        status = dpari_hx_bytes(comm, &desc, &more, why);
    }
    dpari_os_unmap(memory, own);
    *need = own + more;
    return status;
}

/* States the fields that must be equal on all ranks, in addition to those that the halo exchange
 * compares. */
static DPARI_COLD void dpari_spatial_state(dpari_facts *facts, const void *given)
{
    const dpar_spatial_desc *layer = (const dpar_spatial_desc *)given;
    int32_t d;
    dpari_fact(facts, "kind", 0, layer->kind);
    dpari_fact(facts, "outputs", 0, layer->outputs);
    dpari_fact(facts, "tensors", 0, layer->tensors);
    dpari_fact(facts, "planes", 0, layer->planes);
    dpari_fact(facts, "out_planes", 0, layer->out_planes);
    dpari_fact(facts, "align_corners", 0, layer->align_corners != 0);
    dpari_fact(facts, "channels_last", 0, layer->channels_last != 0);
    dpari_fact(facts, "input_gradient != NULL", 0, layer->input_gradient != NULL);
    dpari_fact_type(facts, "type", 0, layer->type);
    dpari_fact(facts, "in.dims", 0, layer->in.dims);
    for (d = 0; d < layer->in.dims; d++) {
        const dpar_window *window = &layer->window[d];
        dpari_fact(facts, "in.extent[#]", d, layer->in.extent[d]);
        dpari_fact(facts, "out_extent[#]", d, layer->out_extent[d]);
        dpari_fact(facts, "padding[#]", d, layer->padding[d]);
        dpari_fact(facts, "window[#].kernel", d, window->kernel);
        dpari_fact(facts, "window[#].stride", d, window->stride);
        dpari_fact(facts, "window[#].dilation", d, window->dilation);
        dpari_fact(facts, "window[#].pad_low", d, window->pad_low);
        dpari_fact(facts, "window[#].pad_high", d, window->pad_high);
        dpari_fact(facts, "window[#].ceil_mode", d, window->ceil_mode != 0);
    }
}

/* Writes the lowest number of a type: minus infinity, or the least integer. */
static void dpari_spatial_lowest(int32_t type, unsigned char *element)
{
    const uint64_t one = 1;
    uint64_t bits = 0;
    int32_t n = dpar_type_bytes(type), i;
    switch (type) {
    case DPAR_F64: bits = UINT64_C(0xfff) << 52; break;
    case DPAR_F32:
    case DPAR_TF32: bits = UINT64_C(0xff800000); break;
    case DPAR_BF16: bits = 0xff80; break;
    case DPAR_F16: bits = 0xfc00; break;
    case DPAR_I8:
    case DPAR_I32:
    case DPAR_I64: bits = one << (8 * n - 1); break;
    default: break;
    }
    for (i = 0; i < n; i++) {
        const int32_t shift = *(const unsigned char *)(const void *)&one == 1 ? i : n - 1 - i;
        element[i] = (unsigned char)(bits >> (8 * shift));
    }
}

/* The offsets of the values of padding in a device's memory: a zero, and the lowest number of the
 * type. */
enum { DPARI_SPATIAL_ZERO = 0, DPARI_SPATIAL_LOWEST = 8, DPARI_SPATIAL_CONSTANTS = 16 };

/* Allocates the values of padding and computes the lowest number. The only operation of a device
 * for that scales a span of floats, so that integers are written as floats with the same bits. */
static dpar_status dpari_spatial_constants(const dpari_spatial *plan, void **constants,
                                           dpar_why *why)
{
    const int32_t type = plan->head.layer.type;
    dpar_mem_span span;
    const dpar_status status = dpar_comm_alloc(plan->comm, DPARI_SPATIAL_CONSTANTS, constants);
    if (status != DPAR_OK) {
        *constants = NULL;
        return dpari_say(status, why, "no memory for %d bytes of padding values",
                         (int32_t)DPARI_SPATIAL_CONSTANTS);
    }
    dpari_zero(&span, sizeof span);
    span.to = (unsigned char *)*constants + DPARI_SPATIAL_LOWEST;
    span.to_type = span.from_type = type == DPAR_TF32 ? (int32_t)DPAR_F32 : type;
    span.count = 1;
    dpari_spatial_lowest(DPAR_F64, (unsigned char *)(void *)&span.scale);
    if (type == DPAR_I32 || type == DPAR_I64) { /* -0 has the bits of the least integer */
        span.to_type = span.from_type = type == DPAR_I32 ? DPAR_F32 : DPAR_F64;
        span.from = *constants;
        span.scale = -1.0;
    } else if (type == DPAR_I8) { /* as BF16, -2^-126 has two bytes 0x80, the least i8 */
        span.to_type = span.from_type = DPAR_BF16;
        span.scale = -1.1754943508222875e-38;
    } else if (!dpari_is_float(span.to_type)) { /* unsigned: the lowest number is 0 */
        return DPAR_OK;
    }
    return dpari_do_span(plan->comm, &span, 1);
}

/* Checks a layer, takes the memory of its plan, and sets the plan except its exchange. Local. */
static DPARI_COLD dpar_status dpari_spatial_prepare(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                    int64_t *need, void **memory, void **constants,
                                                    dpar_why *why)
{
    dpar_status status = dpari_spatial_count(comm, layer, need, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_object_memory(comm, layer->memory, layer->bytes, *need, "spatial", memory, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_spatial_set_plan((unsigned char *)*memory, comm, layer, why);
    if (status != DPAR_OK || comm->mem == NULL) {
        return status;
    }
    return dpari_spatial_constants((const dpari_spatial *)*memory, constants, why);
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_make(dpar_comm *comm, const dpar_spatial_desc *layer,
                                                  dpar_spatial_plan **plan, dpar_why *why)
{
    dpari_spatial *spatial;
    dpari_hx_traffic traffic;
    dpar_halo_plan_desc desc;
    void *memory = NULL, *constants = NULL;
    int64_t own, need = 0;
    int32_t k;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    if (plan == NULL) {
        status = dpari_wrong(why, "the plan is NULL");
    } else {
        status = dpari_spatial_prepare(comm, layer, &need, &memory, &constants, why);
    }
    spatial = (dpari_spatial *)memory;
    status = dpari_agree_on(comm, status, "spatial", dpari_spatial_state,
                            status == DPAR_OK ? &spatial->head.layer : NULL, why);
    if (status == DPAR_OK) {
        dpari_spatial_exchange_desc(spatial, layer, &desc);
        own = dpari_spatial_own_bytes(layer);
        desc.memory = (unsigned char *)memory + own;
        desc.bytes = need - own;
        status = dpari_hx_open(comm, &desc, 1, &spatial->exchange, why);
    }
    if (status != DPAR_OK) {
        if (constants != NULL) {
            dpar_comm_release(comm, constants);
        }
        return dpari_object_failed(status, layer != NULL ? layer->memory : NULL, memory, need, why);
    }
    for (k = 0; dpari_hx_traffic_of(spatial->exchange, k, &traffic); k++) {
        if (traffic.peer != comm->rank) {
            spatial->head.halo_bytes += traffic.bytes;
        }
    }
    spatial->constants = (unsigned char *)constants;
    *plan = &spatial->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_free(dpar_spatial_plan *plan)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    dpar_status status;
    if (spatial == NULL) {
        return DPAR_OK;
    }
    status = dpar_halo_plan_free(spatial->exchange);
    if (dpari_object_refused(spatial->comm, status)) {
        return status;
    }
    if (spatial->constants != NULL) {
        dpar_comm_release(spatial->comm, spatial->constants);
    }
    return dpari_object_end(status, spatial->head.layer.memory == NULL ? spatial : NULL);
}

/* ---- padding --------------------------------------------------------------------------------- */

/* Returns the point from which cell i beyond the ends of a dim is copied, or -1 if it is a
 * constant. */
static int64_t dpari_spatial_image(int32_t padding, int64_t n, int64_t i)
{
    if (padding == DPAR_SPATIAL_PAD_REPLICATE) {
        return i < 0 ? 0 : n - 1;
    }
    if (padding == DPAR_SPATIAL_PAD_REFLECT) {
        i = i < 0 ? -i : 2 * (n - 1) - i;
        return i >= 0 && i < n ? i : -1;
    }
    return -1;
}

/* Operations on slices of padding: fill them, or add their gradients to those of their sources and
 * clear them. */
enum { DPARI_SPATIAL_FILL, DPARI_SPATIAL_FOLD };

/* Slices of a tile with the same operation. They are enqueued together, up to DPARI_SPATIAL_BOXES
 * in one call. */
enum { DPARI_SPATIAL_BOXES = 16 };
typedef struct dpari_spatial_slices {
    dpar_comm *comm;
    const dpar_tile *tile;
    int32_t type;
    int32_t what;                  /* DPARI_SPATIAL_FILL or _FOLD */
    const unsigned char *constant; /* the value of cells without a source */
    unsigned char here[8];         /* holds it if the memory is the host's */
    dpar_status status;
    int32_t count;
    dpar_mem_box box[DPARI_SPATIAL_BOXES];
} dpari_spatial_slices;

/* constant: DPARI_SPATIAL_ZERO or _LOWEST. */
static void dpari_spatial_slices_begin(dpari_spatial_slices *slices, const dpari_spatial *plan,
                                       const dpar_tile *tile, int32_t what, int32_t constant)
{
    slices->comm = plan->comm;
    slices->tile = tile;
    slices->type = plan->head.layer.type;
    slices->what = what;
    dpari_zero(slices->here, sizeof slices->here);
    if (plan->constants != NULL) {
        slices->constant = plan->constants + constant;
    } else {
        slices->constant = slices->here;
        if (constant == DPARI_SPATIAL_LOWEST) {
            dpari_spatial_lowest(slices->type, slices->here);
        }
    }
    slices->status = DPAR_OK;
    slices->count = 0;
}

/* Enqueues the boxes so far. Returns the first error of all runs. */
static dpar_status dpari_spatial_slices_run(dpari_spatial_slices *slices)
{
    if (slices->count > 0 && slices->status == DPAR_OK) {
        slices->status = dpari_do_move(slices->comm, slices->box, slices->count);
    }
    slices->count = 0;
    return slices->status;
}

/* Applies the operation to the cells at index i of dim d. Boxes that add and boxes that copy are
 * enqueued separately, because one call has one operation. from: the index of their source, or -1
 * if they are constants. */
static void dpari_spatial_slice(dpari_spatial_slices *slices, int32_t d, int64_t i, int64_t from)
{
    const dpar_tile *tile = slices->tile;
    const int32_t size = dpar_type_bytes(slices->type);
    const int sums = slices->what == DPARI_SPATIAL_FOLD && from >= 0;
    unsigned char *base = (unsigned char *)tile->data, *cells, *other;
    int64_t at[DPAR_MAX_DIMS];
    dpar_mem_box *b;
    int32_t k;
    if (slices->count == DPARI_SPATIAL_BOXES ||
        (slices->count > 0 && (slices->box[0].op == DPAR_SUM) != sums)) {
        (void)dpari_spatial_slices_run(slices);
    }
    for (k = 0; k < tile->box.dims; k++) {
        at[k] = k == d ? i : tile->box.lo[k];
    }
    cells = base + dpari_tile_at(tile, 0, at) * size;
    at[d] = from;
    other = base + (from >= 0 ? dpari_tile_at(tile, 0, at) * size : 0);
    b = &slices->box[slices->count++];
    dpari_zero(b, sizeof *b);
    b->to_type = b->from_type = b->round_type = slices->type;
    b->op = sums ? (int32_t)DPAR_SUM : (int32_t)DPAR_COPY;
    b->clear = sums;
    b->to = sums ? other : cells;
    if (sums) {
        b->from = cells;
    } else if (from >= 0) {
        b->from = other;
    } else {
        b->from = (void *)(uintptr_t)slices->constant;
    }
    b->dims = tile->box.dims;
    for (k = 0; k < tile->box.dims; k++) { /* dim d of the box is the planes */
        b->extent[k] = k == d ? tile->planes : tile->box.hi[k] - tile->box.lo[k];
        b->to_stride[k] = k == d ? tile->plane : tile->stride[k];
        b->from_stride[k] = from >= 0 ? b->to_stride[k] : 0;
    }
}

/* Applies DPARI_SPATIAL_x to all padding of dim d. */
static dpar_status dpari_spatial_pad(const dpari_spatial *plan, const dpar_tile *tile, int32_t d,
                                     int32_t what)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const int64_t n = layer->in.extent[d];
    const int32_t padding = dpari_spatial_padding(layer, d);
    const int lowest = padding == DPAR_SPATIAL_PAD_LOWEST && what == DPARI_SPATIAL_FILL;
    dpari_spatial_slices slices;
    int64_t i, from;
    dpari_spatial_slices_begin(&slices, plan, tile, what,
                               lowest ? DPARI_SPATIAL_LOWEST : DPARI_SPATIAL_ZERO);
    for (i = tile->box.lo[d]; i < tile->box.hi[d]; i++) {
        if (i >= 0 && i < n) {
            i = dpari_least(n, tile->box.hi[d]) - 1; /* skips the points of the field */
            continue;
        }
        from = dpari_spatial_image(padding, n, i);
        if (from < 0 || (from >= tile->box.lo[d] && from < tile->box.hi[d])) {
            dpari_spatial_slice(&slices, d, i, from); /* no output reads the other cells */
        }
    }
    return dpari_spatial_slices_run(&slices);
}

/* Applies DPARI_SPATIAL_x to the padding of all inputs, whose arrays are `data`. Fills dim after
 * dim, so that corners are filled from corners, and folds in the reverse order. Rings are filled by
 * the halo exchange. constants: 1 leaves out padding that is copied from the field. */
static dpar_status dpari_spatial_pad_all(const dpari_spatial *plan, void *const *data, int32_t what,
                                         int constants)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const int32_t dims = plan->head.in_box.dims;
    dpar_tile tile;
    int32_t i, k;
    dpar_status status = DPAR_OK;
    for (i = 0; i < layer->tensors && dims > 0; i++) {
        dpari_spatial_input_tile(plan, data[i], &tile);
        for (k = 0; k < dims && status == DPAR_OK; k++) {
            const int32_t d = what == DPARI_SPATIAL_FILL ? k : dims - 1 - k;
            if (dpari_spatial_touches(layer, d) && layer->padding[d] != DPAR_SPATIAL_PAD_WRAP &&
                (!constants || dpari_spatial_pads_constant(layer, d))) {
                status = dpari_spatial_pad(plan, &tile, d, what);
            }
        }
    }
    return status;
}

/* Sets the cells around the own points in dim d to 0. */
static dpar_status dpari_spatial_clear_around(const dpari_spatial *plan, const dpar_tile *tile,
                                              int32_t d)
{
    dpari_spatial_slices slices;
    int64_t k;
    dpari_spatial_slices_begin(&slices, plan, tile, DPARI_SPATIAL_FILL, DPARI_SPATIAL_ZERO);
    for (k = tile->box.lo[d]; k < tile->box.hi[d]; k++) {
        if (k < plan->head.in_owned.lo[d] || k >= plan->head.in_owned.hi[d]) {
            dpari_spatial_slice(&slices, d, k, -1);
        }
    }
    return dpari_spatial_slices_run(&slices);
}

/* Sets input gradients to 0 before the kernel adds to them. If they accumulate, own points are left
 * as they are. */
static dpar_status dpari_spatial_clear(const dpari_spatial *plan, const dpar_spatial_arrays *arrays)
{
    const int whole = !arrays->accumulate || plan->head.in_owned.dims == 0;
    const int64_t bytes = dpar_box_volume(&plan->head.in_box) * plan->head.layer.planes *
                          dpar_type_bytes(plan->head.layer.type);
    dpar_tile tile;
    int32_t i, d;
    dpar_status status = DPAR_OK;
    for (i = 0; i < plan->head.layer.tensors && plan->head.in_box.dims > 0; i++) {
        dpari_spatial_input_tile(plan, arrays->in_gradient[i], &tile);
        if (whole && status == DPAR_OK) {
            status = dpari_do_copy(plan->comm, tile.data, NULL, bytes);
        }
        for (d = 0; d < tile.box.dims && !whole && status == DPAR_OK; d++) {
            status = dpari_spatial_clear_around(plan, &tile, d);
        }
    }
    return status;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Runs a kernel on the outputs of a box. */
static void dpari_spatial_kernel_on(const dpari_spatial *plan, const dpar_spatial_arrays *arrays,
                                    dpar_spatial_kernel kernel, const dpar_box *out)
{
    const dpar_spatial_desc *layer = &plan->head.layer;
    const dpar_box *array = arrays->out_box.dims > 0 ? &arrays->out_box : &plan->head.out_owned;
    dpar_spatial_call call;
    dpar_box in;
    int32_t i;
    if (kernel == NULL || out->dims == 0 || dpar_box_volume(out) == 0) {
        return;
    }
    if (!dpari_spatial_needs(layer, out, &in)) {
        in = plan->head.in_box; /* some outputs of a transposed convolution read nothing */
        in.hi[0] = in.lo[0];
    }
    dpari_zero(&call, sizeof call);
    call.layer = layer;
    call.user = layer->user;
    for (i = 0; i < layer->tensors; i++) {
        dpari_spatial_input_tile(plan, arrays->in[i], &call.in[i]);
        dpari_spatial_input_tile(plan, arrays->in_gradient[i], &call.in_gradient[i]);
        call.in[i].box = call.in_gradient[i].box = in;
    }
    dpar_tile_init(&call.out, arrays->out, array, layer->out_planes, layer->channels_last);
    dpar_tile_init(&call.out_gradient, arrays->out_gradient, array, layer->out_planes,
                   layer->channels_last);
    call.out.box = call.out_gradient.box = *out;
    kernel(&call);
}

/* Runs the forward kernel on the outputs around the core: two slabs for each dim, cut to the core
 * in earlier dims. */
static void dpari_spatial_boundary(const dpari_spatial *plan, const dpar_spatial_arrays *arrays)
{
    dpar_box rest = plan->head.out_owned, slab;
    int32_t d;
    if (plan->core.dims == 0) {
        dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &rest);
        return;
    }
    for (d = 0; d < rest.dims; d++) {
        slab = rest;
        slab.hi[d] = plan->core.lo[d];
        dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &slab);
        slab = rest;
        slab.lo[d] = plan->core.hi[d];
        dpari_spatial_kernel_on(plan, arrays, plan->head.layer.forward, &slab);
        rest.lo[d] = plan->core.lo[d];
        rest.hi[d] = plan->core.hi[d];
    }
}

/* Binds the arrays of a step to the halo exchange. */
static dpar_status dpari_spatial_bind(dpari_spatial *plan, void *const *data)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < plan->head.layer.tensors && status == DPAR_OK; i++) {
        status = dpar_halo_plan_bind(plan->exchange, i, plan->head.in_box.dims > 0 ? data[i] : NULL,
                                     NULL);
    }
    return status;
}

/* Checks that a step has all arrays: in forward the inputs and the output, in backward the
 * gradients of all inputs or of none. */
static DPARI_COLD dpar_status dpari_spatial_check_arrays(const dpari_spatial *plan,
                                                         const dpar_spatial_arrays *arrays,
                                                         int forward)
{
    int32_t i, missing = 0;
    int cut; /* 1 if out_box does not hold the outputs */
    if (plan == NULL || arrays == NULL) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < plan->head.layer.tensors && plan->head.in_box.dims > 0; i++) {
        const void *const data = forward ? arrays->in[i] : arrays->in_gradient[i];
        const int wanted = forward || arrays->in_gradient[0] != NULL;
        missing += wanted && data == NULL;
    }
    if (forward && plan->head.out_owned.dims > 0 && arrays->out == NULL) {
        missing++;
    }
    cut = arrays->out_box.dims != 0 &&
          (arrays->out_box.dims != plan->head.layer.in.dims ||
           !dpari_spatial_fits(&arrays->out_box, plan->head.layer.out_planes) ||
           (plan->head.out_owned.dims > 0 &&
            !dpari_box_contains(&arrays->out_box, &plan->head.out_owned)));
    if (cut) {
        const int64_t points = arrays->out_box.dims == plan->head.layer.in.dims
                                   ? dpar_box_volume(&arrays->out_box)
                                   : 0;
        return dpari_comm_wrong_all(
            plan->comm, DPAR_E_ARG,
            "rank %d: out_box, of %ld points, does not hold all %ld outputs", plan->comm->rank,
            points, dpar_box_volume(&plan->head.out_owned));
    }
    if (missing > 0) {
        return dpari_comm_wrong_all(
            plan->comm, DPAR_E_ARG,
            "rank %d has points, but %d arrays of a layer of %d inputs are NULL", plan->comm->rank,
            missing, plan->head.layer.tensors);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_forward(dpar_spatial_plan *plan,
                                                     const dpar_spatial_arrays *arrays)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    dpar_status status = dpari_spatial_check_arrays(spatial, arrays, 1);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_spatial_bind(spatial, arrays->in);
    if (status == DPAR_OK) {
        status = dpar_halo_plan_begin(spatial->exchange);
    }
    if (status == DPAR_OK && spatial->core.dims > 0) {
        status = dpari_spatial_pad_all(spatial, arrays->in, DPARI_SPATIAL_FILL, 1);
    }
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_kernel_on(spatial, arrays, spatial->head.layer.forward, &spatial->core);
    status = dpar_halo_plan_end(spatial->exchange);
    if (status == DPAR_OK) {
        status = dpari_spatial_pad_all(spatial, arrays->in, DPARI_SPATIAL_FILL, 0);
    }
    if (status == DPAR_OK) {
        dpari_spatial_boundary(spatial, arrays);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_spatial_backward(dpar_spatial_plan *plan,
                                                      const dpar_spatial_arrays *arrays)
{
    dpari_spatial *spatial = (dpari_spatial *)(void *)plan;
    const dpar_spatial_desc *layer;
    dpar_status status = dpari_spatial_check_arrays(spatial, arrays, 0);
    if (status != DPAR_OK) {
        return status;
    }
    layer = &spatial->head.layer;
    if (layer->input_gradient == NULL || arrays->in_gradient[0] == NULL) {
        dpari_spatial_kernel_on(spatial, arrays, layer->weight_gradient, &spatial->head.out_owned);
        return DPAR_OK;
    }
    status = dpari_spatial_clear(spatial, arrays);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_kernel_on(spatial, arrays, layer->input_gradient, &spatial->head.out_owned);
    status = dpari_spatial_pad_all(spatial, arrays->in_gradient, DPARI_SPATIAL_FOLD, 0);
    if (status == DPAR_OK) {
        status = dpari_spatial_bind(spatial, arrays->in_gradient);
    }
    if (status == DPAR_OK) {
        status = dpar_halo_plan_reduce_begin(spatial->exchange, DPAR_SUM);
    }
    if (status != DPAR_OK) {
        return status;
    }
    dpari_spatial_kernel_on(spatial, arrays, layer->weight_gradient, &spatial->head.out_owned);
    return dpar_halo_plan_end(spatial->exchange);
}
