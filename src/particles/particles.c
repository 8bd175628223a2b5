/* SPDX-License-Identifier: MIT-0 */
/* Makes distributed particles: checks the description, cuts the box, lists the neighbours and the
 * directions in which they are, and finds the owner of a position. particles_migrate.c sends
 * particles to new owners, and particles_ghosts.c makes and updates ghosts. */
#include "particles.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/object_memory.h"
#include "../index/cart.h"
#include "neighbours_private.h"
#include "particles_plan.h"

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pp_wrong(dpar_why *why, const char *form, ...)
{
    dpar_text text;
    va_list list;
    if (why) {
        dpari_text_why(&text, why);
        va_start(list, form);
        dpari_text_print_list(&text, form, &list);
        va_end(list);
    }
    return DPAR_E_ARG;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static dpar_status dpari_pp_check_dim(const dpar_particles_desc *desc, int32_t d, dpar_why *why)
{
    if (!dpari_finite(desc->low[d]) || !dpari_finite(desc->high[d]) ||
        !(desc->low[d] < desc->high[d]) || !dpari_finite(desc->high[d] - desc->low[d])) {
        return dpari_pp_wrong(
            why,
            "dpar_particles_make: dim %d goes from low %.9g to high %.9g, but high "
            "must be above low",
            d, desc->low[d], desc->high[d]);
    }
    if (!dpari_is_flag(desc->periodic[d]) || desc->parts[d] < 0) {
        return dpari_wrong(why,
                           "dpar_particles_make: periodic[%d] is %d, but must be 0 or 1, or "
                           "parts[%d] is %d, but must not be negative",
                           d, desc->periodic[d], d, desc->parts[d]);
    }
    if (desc->cuts[d] && desc->parts[d] < 1) {
        return dpari_wrong(why, "dpar_particles_make: cuts[%d] needs parts[%d] of at least 1", d,
                           d);
    }
    return DPAR_OK;
}

static dpar_status dpari_pp_check(const dpar_comm *comm, const dpar_particles_desc *desc,
                                  dpar_why *why)
{
    int32_t d;
    if (!desc) {
        return dpari_wrong(why, "dpar_particles_make: desc or particles is NULL");
    }
    if (desc->dims < 1 || desc->dims > DPAR_PARTICLES_MAX_DIMS) {
        return dpari_wrong(why, "dpar_particles_make: %d dims, but 1 to %d are allowed", desc->dims,
                           (int32_t)DPAR_PARTICLES_MAX_DIMS);
    }
    if (!dpari_is_flag(desc->half) || !dpari_is_flag(desc->order) || desc->tag < 0 ||
        !(desc->cutoff >= 0.0) || !dpari_finite(desc->cutoff)) {
        return dpari_pp_wrong(
            why,
            "dpar_particles_make: half %d, order %d, tag %d, cutoff %.9g: half and order "
            "must be 0 or 1, and tag and cutoff at least 0",
            desc->half, desc->order, desc->tag, desc->cutoff);
    }
    if (comm->size > 1 << 24) {
        return dpari_say(DPAR_E_RANGE, why, "dpar_particles_make: %d ranks, but at most 2^24",
                         comm->size);
    }
    for (d = 0; d < desc->dims; d++) {
        const dpar_status status = dpari_pp_check_dim(desc, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* Chooses the numbers of ranks along the dims that the description leaves open. */
static dpar_status dpari_pp_choose(const dpar_comm *comm, const dpar_particles_desc *desc,
                                   int32_t *parts, dpar_why *why)
{
    dpar_cart_choose_desc grid;
    double longest = 0.0;
    int32_t d;
    dpari_zero(&grid, sizeof grid);
    for (d = 0; d < desc->dims; d++) {
        longest = dpari_mostf(longest, desc->high[d] - desc->low[d]);
    }
    grid.ranks = comm->size;
    grid.dims = desc->dims;
    for (d = 0; d < desc->dims; d++) { /* cubic cells, at least as many as there are ranks */
        grid.cells[d] =
            comm->size + (int64_t)((desc->high[d] - desc->low[d]) / longest * 16777216.0);
        parts[d] = desc->parts[d];
        grid.periodic |= (uint32_t)desc->periodic[d] << d;
    }
    return dpar_cart_choose_parts(&grid, parts, NULL, why);
}

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pp_state(dpari_facts *facts, const void *given)
{
    const dpar_particles_desc *desc = (const dpar_particles_desc *)given;
    int32_t d, i;
    facts->of = NULL;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "half", 0, desc->half);
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "tag", 0, desc->tag);
    dpari_fact_real(facts, "cutoff", 0, desc->cutoff);
    for (d = 0; d < desc->dims; d++) {
        uint64_t hash = 0;
        dpari_fact_real(facts, "low[#]", d, desc->low[d]);
        dpari_fact_real(facts, "high[#]", d, desc->high[d]);
        dpari_fact(facts, "periodic[#]", d, desc->periodic[d]);
        dpari_fact(facts, "parts[#]", d, desc->parts[d]);
        dpari_fact(facts, "cuts[#] (0: NULL)", d, desc->cuts[d] != NULL);
        for (i = 0; desc->cuts[d] && i <= desc->parts[d]; i++) {
            hash = dpari_hash_real(hash, desc->cuts[d][i]);
        }
        dpari_fact_hash(facts, "cuts[#]", d, hash);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

DPARI_INTERNAL int32_t dpari_pp_rank(const dpari_particles *plan, const int32_t *coord)
{
    const int32_t dims = plan->head.dims;
    int32_t rank = 0, i;
    for (i = 0; i < dims; i++) {
        const int32_t d = plan->order == DPAR_ORDER_FIRST_FASTEST ? dims - 1 - i : i;
        rank = rank * plan->head.parts[d] + coord[d];
    }
    return rank;
}

static void dpari_pp_set_coord(dpari_particles *plan)
{
    const int32_t dims = plan->head.dims;
    int32_t rest = plan->head.comm->rank, i;
    for (i = dims - 1; i >= 0; i--) {
        const int32_t d = plan->order == DPAR_ORDER_FIRST_FASTEST ? dims - 1 - i : i;
        plan->head.coord[d] = rest % plan->head.parts[d];
        rest /= plan->head.parts[d];
    }
}

/* Sets the cuts of a dim, and checks that they ascend and that no block is narrower than the
 * cutoff. */
static dpar_status dpari_pp_cut(dpari_particles *plan, const dpar_particles_desc *desc, int32_t d,
                                dpar_why *why)
{
    const int32_t parts = plan->head.parts[d], at = plan->head.coord[d];
    const int open = !plan->periodic[d] && parts == 1;
    /* A cutoff of (high - low) / parts may exceed the width of a block by the rounding of cuts. */
    const double rounding = 1e-15 * (desc->high[d] > -desc->low[d] ? desc->high[d] : -desc->low[d]);
    double *cuts = plan->cuts[d];
    int32_t i;
    for (i = 0; i <= parts; i++) {
        cuts[i] = desc->cuts[d] ? desc->cuts[d][i]
                                : desc->low[d] + (desc->high[d] - desc->low[d]) * i / parts;
    }
    if (!desc->cuts[d]) {
        cuts[parts] = desc->high[d];
    }
    if (!(cuts[0] >= desc->low[d] && cuts[0] <= desc->low[d]) ||
        !(cuts[parts] >= desc->high[d] && cuts[parts] <= desc->high[d])) {
        return dpari_pp_wrong(
            why,
            "dpar_particles_make: cuts[%d] goes from %.9g to %.9g, but must go from "
            "low, %.9g, to high, %.9g",
            d, cuts[0], cuts[parts], desc->low[d], desc->high[d]);
    }
    for (i = 0; i < parts; i++) {
        if (!(cuts[i] < cuts[i + 1])) {
            return dpari_pp_wrong(
                why,
                "dpar_particles_make: dim %d is cut at %.9g and then at %.9g, but "
                "cuts must ascend",
                d, cuts[i], cuts[i + 1]);
        }
        if (!open && desc->cutoff > cuts[i + 1] - cuts[i] + rounding) {
            return dpari_pp_wrong(
                why,
                "dpar_particles_make: cutoff %.9g is wider than block %d of dim %d, "
                "which has width %.9g; use fewer parts in this dim",
                desc->cutoff, i, d, cuts[i + 1] - cuts[i]);
        }
    }
    plan->head.low[d] = plan->low_open[d] = plan->face[d][0] = cuts[at];
    plan->head.high[d] = plan->high_open[d] = plan->face[d][1] = cuts[at + 1];
    if (plan->periodic[d] && at == 0) { /* the neighbour below is at the high end */
        plan->face[d][0] = plan->high[d];
        plan->face_shift[d][0] = plan->high[d] - plan->low[d];
    }
    if (plan->periodic[d] && at == parts - 1) {
        plan->face[d][1] = plan->low[d];
        plan->face_shift[d][1] = plan->low[d] - plan->high[d];
    }
    if (!plan->periodic[d] && at == 0) {
        plan->low_open[d] = -1.7976931348623157e308;
    }
    if (!plan->periodic[d] && at == parts - 1) {
        plan->high_open[d] = 1.7976931348623157e308;
    }
    return DPAR_OK;
}

/* Moves x back into the box in a periodic dim. Returns 0 if it is too far away, otherwise 1. */
static int dpari_pp_wrap(const dpari_particles *plan, int32_t d, int32_t single, double *x)
{
    const double low = plan->low[d], length = plan->high[d] - low, q = (*x - low) / length;
    int64_t k;
    if (!(q < 1125899906842624.0 && q > -1125899906842624.0)) { /* 2^50 */
        return 0;
    }
    if (*x >= low && *x < plan->high[d]) {
        return 1;
    }
    k = (int64_t)q;
    k -= (double)k > q;
    *x -= (double)k * length;
    if (*x < low) {
        *x += length;
    }
    if (single) {
        *x = (double)(float)*x;
    }
    if (*x >= plan->high[d] || *x < low) { /* rounding has moved it to the end */
        *x = low;
    }
    return 1;
}

DPARI_INTERNAL int dpari_pp_locate(const dpari_particles *plan, double *x, int32_t single,
                                   int32_t *coord)
{
    int32_t d;
    for (d = 0; d < plan->head.dims; d++) {
        int32_t first = 0, last = plan->head.parts[d] - 1; /* the block is one of these */
        if (!dpari_finite(x[d]) || (plan->periodic[d] && !dpari_pp_wrap(plan, d, single, &x[d]))) {
            return 0;
        }
        while (first < last) {
            const int32_t middle = (first + last + 1) / 2;
            if (x[d] < plan->cuts[d][middle]) {
                last = middle - 1;
            } else {
                first = middle;
            }
        }
        coord[d] = first;
    }
    return 1;
}

DPAR_API int32_t dpar_particles_owner(const dpar_particles *particles, const double *position)
{
    const dpari_particles *plan = (const dpari_particles *)(const void *)particles;
    double x[DPAR_PARTICLES_MAX_DIMS];
    int32_t coord[DPAR_PARTICLES_MAX_DIMS], d;
    if (!particles || !position) {
        return -1;
    }
    for (d = 0; d < particles->dims; d++) {
        x[d] = position[d];
    }
    return dpari_pp_locate(plan, x, 0, coord) ? dpari_pp_rank(plan, coord) : -1;
}

/* ---- directions ------------------------------------------------------------------------------ */

/* Returns the rank in a direction, or -1 if a wall is there, and sets direction->shift. */
static int32_t dpari_pp_rank_towards(const dpari_particles *plan, dpari_pp_direction *direction)
{
    int32_t coord[DPAR_PARTICLES_MAX_DIMS], d;
    for (d = 0; d < plan->head.dims; d++) {
        const int32_t parts = plan->head.parts[d], at = plan->head.coord[d] + direction->step[d];
        const double length = plan->high[d] - plan->low[d];
        if ((at < 0 || at >= parts) && !plan->periodic[d]) {
            return -1;
        }
        coord[d] = at;
        direction->shift[d] = 0.0;
        if (at < 0) { /* its particles, at the high end, are shifted to below the low end */
            coord[d] = parts - 1;
            direction->shift[d] = -length;
        } else if (at >= parts) {
            coord[d] = 0;
            direction->shift[d] = length;
        }
    }
    return dpari_pp_rank(plan, coord);
}

/* Sets the neighbours in all directions; in the middle one it is this rank. Lists their ranks in
 * rank[], each once, in ascending order, and returns their number. */
static int32_t dpari_pp_set_directions(dpari_particles *plan, int32_t *rank)
{
    int32_t of[DPARI_PP_DIRECTIONS], n = 0, c, d, i;
    for (c = 0; c < plan->directions; c++) {
        dpari_pp_direction *direction = &plan->direction[c];
        int32_t rest = c;
        for (d = plan->head.dims - 1; d >= 0; d--) {
            direction->step[d] = rest % 3 - 1;
            rest /= 3;
        }
        of[c] = dpari_pp_rank_towards(plan, direction);
        for (i = 0; i < n && rank[i] < of[c]; i++) {
        }
        if (of[c] < 0 || (i < n && rank[i] == of[c])) {
            continue;
        }
        for (d = n++; d > i; d--) {
            rank[d] = rank[d - 1];
        }
        rank[i] = of[c];
    }
    for (c = 0; c < plan->directions; c++) {
        plan->direction[c].peer = -1;
        for (i = 0; i < n; i++) {
            if (rank[i] == of[c]) {
                plan->direction[c].peer = i;
            }
        }
    }
    return n;
}

/* True if particles are sent in direction c as ghosts. The receiver sees this rank in the opposite
 * direction, which is in the upper half of the codes if c is in the lower half. */
static int dpari_pp_is_target(const dpari_particles *plan, int32_t c)
{
    const int32_t middle = plan->directions / 2;
    return c != middle && plan->direction[c].peer >= 0 && (!plan->half || c < middle);
}

/* Lists the directions in which a particle is sent, for each set of faces that it may be near. */
static void dpari_pp_set_targets(dpari_particles *plan)
{
    int32_t mask, c, d;
    for (mask = 0; mask < DPARI_PP_MASKS; mask++) {
        for (c = 0; c < plan->directions; c++) {
            int adjacent = dpari_pp_is_target(plan, c);
            for (d = 0; d < plan->head.dims; d++) {
                const int32_t step = plan->direction[c].step[d];
                adjacent = adjacent && (step == 0 || (mask >> (2 * d + (step > 0)) & 1) != 0);
            }
            if (adjacent) {
                plan->target[mask][plan->targets[mask]++] = (int8_t)c;
            }
        }
    }
}

/* ---- fields ---------------------------------------------------------------------------------- */

DPARI_INTERNAL dpar_status dpari_pp_grow(const dpari_particles *plan, dpari_pp_list *list,
                                         int64_t need, int64_t keep, dpar_why *why)
{
    const int64_t room = need + need / 2 + 64;
    int32_t *at;
    int64_t i;
    if (list->room >= need) {
        return DPAR_OK;
    }
    at = (int32_t *)dpari_object_alloc(plan->head.comm, (int64_t)sizeof *at * room);
    if (!at) {
        return dpari_say(DPAR_E_MEMORY, why, "particles: no memory for a list of %ld numbers",
                         room);
    }
    for (i = 0; i < keep; i++) {
        at[i] = list->at[i];
    }
    dpari_object_release(list->at);
    list->at = at;
    list->room = room;
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_pp_set_fields(dpari_particles *plan, const char *caller,
                                               const dpar_particles_field *fields, int32_t n,
                                               dpar_why *why)
{
    int32_t i;
    if (n < 1 || n > DPARI_PP_FIELDS || !fields) {
        return dpari_wrong(why, "%s: %d fields (0 if fields is NULL), but 1 to %d are allowed",
                           caller, fields ? n : 0, (int32_t)DPARI_PP_FIELDS);
    }
    for (i = 0; i < n; i++) {
        dpari_pp_field *field = &plan->field[i];
        const int64_t bytes = dpar_type_bytes(fields[i].type);
        field->type = fields[i].type;
        field->numbers = fields[i].components > 0 ? fields[i].components : 1;
        field->size = bytes * field->numbers;
        field->stride = fields[i].stride > 0 ? fields[i].stride : field->size;
        field->at = (unsigned char *)fields[i].data;
        field->is_position = fields[i].is_position;
        if (bytes == 0 || fields[i].components < 0 || fields[i].components > 1 << 20) {
            return dpari_wrong(why,
                               "%s: field %d has %d components of type %s, but 0 to 2^20 of a type "
                               "with bytes are allowed",
                               caller, i, fields[i].components, dpar_type_name(fields[i].type));
        }
        if (fields[i].stride < 0 || fields[i].stride > INT64_C(1) << 30 ||
            field->stride < field->size) {
            return dpari_wrong(why,
                               "%s: field %d has %ld bytes per particle and stride %ld, which must "
                               "be 0, or at least the bytes and at most 2^30",
                               caller, i, field->size, fields[i].stride);
        }
    }
    return DPAR_OK;
}

/* Finds the field that contains the positions. */
static dpar_status dpari_pp_set_position(const dpari_particles *plan, const char *caller,
                                         const dpar_particles_arrays *arrays,
                                         dpari_pp_position *position, dpar_why *why)
{
    const dpar_particles_field *given = &arrays->position;
    const int64_t bytes = dpar_type_bytes(given->type);
    const int32_t numbers = given->components > 0 ? given->components : 1;
    const int64_t stride = given->stride > 0 ? given->stride : bytes * numbers;
    const int32_t last = arrays->ghost_fields > 0 ? arrays->ghost_fields : arrays->field_count;
    int32_t i;
    if ((given->type != DPAR_F64 && given->type != DPAR_F32) || numbers < plan->head.dims ||
        given->stride < 0) {
        return dpari_wrong(why,
                           "%s: positions have %d components of type %s and stride %ld, but %d or "
                           "more of f64 or f32, and no negative stride, are needed",
                           caller, numbers, dpar_type_name(given->type), given->stride,
                           plan->head.dims);
    }
    position->at = (const unsigned char *)given->data;
    position->stride = stride;
    position->single = given->type == DPAR_F32;
    for (i = 0; i < last; i++) {
        const dpari_pp_field *field = &plan->field[i];
        const int64_t offset = (int64_t)((uintptr_t)given->data - (uintptr_t)field->at);
        if (field->stride == stride && offset >= 0 && offset + bytes * numbers <= field->size) {
            position->field = i;
            position->offset = offset;
            return DPAR_OK;
        }
    }
    return dpari_wrong(why,
                       "%s: the positions are in none of the %d fields that move (or that ghosts "
                       "get); add their array to these, with the same stride",
                       caller, last);
}

DPARI_INTERNAL dpar_status dpari_pp_set_arrays(dpari_particles *plan, const char *caller,
                                               const dpar_particles_arrays *arrays,
                                               dpari_pp_position *position, dpar_why *why)
{
    dpar_status status;
    int32_t i;
    if (!arrays) {
        return dpari_wrong(why, "%s: arrays is NULL", caller);
    }
    if (arrays->count < 0 || arrays->capacity < arrays->count || arrays->capacity > INT32_MAX) {
        return dpari_wrong(why,
                           "%s: %ld particles in a capacity of %ld, but count must be 0 to the "
                           "capacity, and the capacity at most 2^31 - 1",
                           caller, arrays->count, arrays->capacity);
    }
    status = dpari_pp_set_fields(plan, caller, arrays->fields, arrays->field_count, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (arrays->ghost_fields < 0 || arrays->ghost_fields > arrays->field_count) {
        return dpari_wrong(why, "%s: ghost_fields is %d, but must be 0 to %d", caller,
                           arrays->ghost_fields, arrays->field_count);
    }
    for (i = 0; i < arrays->field_count; i++) {
        if (!plan->field[i].at && arrays->capacity > 0) {
            return dpari_wrong(why, "%s: field %d is NULL, but the capacity is %ld", caller, i,
                               arrays->capacity);
        }
    }
    return dpari_pp_set_position(plan, caller, arrays, position, why);
}

DPARI_INTERNAL uint64_t dpari_pp_hash(const dpari_particles *plan, int32_t kind, int32_t n)
{
    uint64_t hash = dpari_hash(0, kind);
    int32_t i;
    for (i = 0; i < n; i++) {
        hash = dpari_hash(hash, plan->field[i].size);
    }
    return hash << 2; /* the lowest two bits hold the operation, DPARI_EXCHANGE_OP */
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* Allocates a plan with its cuts, and sets the fields that do not depend on other ranks. */
static dpar_status dpari_pp_build(dpar_comm *comm, const dpar_particles_desc *desc,
                                  const int32_t *parts, dpari_particles **made, dpar_why *why)
{
    dpari_particles *plan = (dpari_particles *)dpari_object_alloc(comm, (int64_t)sizeof *plan);
    int64_t all = 0;
    int32_t d;
    *made = plan;
    if (!plan) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_particles_make: no memory");
    }
    for (d = 0; d < desc->dims; d++) {
        all += parts[d] + 1;
    }
    plan->memory = dpari_object_alloc(comm, (int64_t)sizeof(double) * all);
    if (!plan->memory) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_particles_make: no memory for %ld cuts", all);
    }
    plan->head.comm = comm;
    plan->head.dims = desc->dims;
    plan->order = desc->order;
    plan->half = desc->half;
    plan->cutoff = desc->cutoff;
    plan->directions = 1;
    all = 0;
    for (d = 0; d < desc->dims; d++) {
        plan->head.parts[d] = parts[d];
        plan->periodic[d] = desc->periodic[d];
        plan->low[d] = desc->low[d];
        plan->high[d] = desc->high[d];
        plan->cuts[d] = (double *)plan->memory + all;
        plan->directions *= 3;
        all += parts[d] + 1;
    }
    dpari_pp_set_coord(plan);
    for (d = 0; d < desc->dims; d++) {
        const dpar_status status = dpari_pp_cut(plan, desc, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_pp_release(dpari_particles *plan)
{
    if (plan) {
        dpari_object_release(plan->sent.at);
        dpari_object_release(plan->border.at);
        dpari_object_release(plan->owner.at);
        dpari_object_release(plan->memory);
        dpari_object_release(plan);
    }
}

DPAR_API DPARI_COLD dpar_status dpar_particles_make(dpar_comm *comm,
                                                    const dpar_particles_desc *desc,
                                                    dpar_particles **particles, dpar_why *why)
{
    int32_t parts[DPAR_PARTICLES_MAX_DIMS], rank[DPARI_PP_DIRECTIONS];
    dpar_neighbours_desc neighbours;
    dpari_particles *plan = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_particles_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_pp_check(comm, particles ? desc : NULL, why);
    if (status == DPAR_OK) {
        status = dpari_pp_choose(comm, desc, parts, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pp_build(comm, desc, parts, &plan, why);
    }
    status = dpari_agree_on(comm, status, "particles", dpari_pp_state, desc, why);
    if (status == DPAR_OK) {
        dpari_zero(&neighbours, sizeof neighbours);
        neighbours.count = dpari_pp_set_directions(plan, rank);
        neighbours.rank = rank;
        neighbours.tag = desc->tag;
        dpari_pp_set_targets(plan);
        status = dpar_neighbours_make(comm, &neighbours, &plan->neighbours, why);
    }
    if (status != DPAR_OK) {
        dpari_pp_release(plan);
        return status;
    }
    *particles = &plan->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_particles_free(dpar_particles *particles)
{
    dpari_particles *plan = dpari_pp_of(particles);
    dpar_comm *comm;
    dpar_status status;
    if (!particles) {
        return DPAR_OK;
    }
    comm = particles->comm;
    status = dpar_neighbours_free(plan->neighbours);
    if (dpari_object_refused(comm, status)) {
        return status;
    }
    dpari_pp_release(plan);
    return status;
}
