/* SPDX-License-Identifier: MIT-0 */
/* halo_engine - the engines that mpi_halo.c measures in the same run as the MPI library:
 *
 *   registered  dpar_halo.h, with fields from dpar_comm_alloc
 *   private     the same with fields in the program's own memory
 *   messages    the same, by packed messages only
 *   adjoint     adds the halos to the cells that they are copies of, registered fields
 *   eight       eight registered fields in one exchange
 *   in_turn     eight registered fields in eight exchanges, one after the other. An eighth of its
 *               time is what `eight` is compared with, because a field that is exchanged over and
 *               over stays in the caches, and eight do not
 *   petsc       DMGlobalToLocal of PETSc's DMDA (-DHALO_PETSC)
 *
 *   mpicc -O2 -I. -Ibench -DENGINE_H='"halo_engine.h"' bench/mpi_halo.c -o build/mpi_halo */
#ifdef OVER_MPI /* the communicator is that of dpar_mpi_make, so that ranks may be on several      \
                   nodes */
#include "dpar_mpi.h"
#endif
#include "dpar_halo.h"

/* What one engine needs for its exchange. */
typedef struct {
    dpar_mesh mesh;
    dpar_halo halo;
    dpar_halo_field field[MAX_ARRAYS];
    dpar_halo_plan *plan;
    int arrays, registered;
} dpar_case;

static dpar_comm *dpar_world;
static dpar_case dpar_registered, dpar_private, dpar_messages, dpar_adjoint, dpar_eight;
static dpar_case dpar_in_turn[MAX_ARRAYS];

/* Ends all ranks if a call failed. */
static void dpar_must(dpar_status status, const char *call, const char *why)
{
    if (status < 0) {
        fprintf(stderr, "mpi_halo: rank %d: %s failed: %s: %s\n", block.rank, call,
                dpar_status_text(status), why);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Describes the blocks of mpi_halo as a mesh, a layout and a halo of dpar. */
static void dpar_describe(dpar_case *state)
{
    int32_t size[3];
    int64_t extent[3];
    dpar_placement cut[3];
    dpar_why why;
    memset(&state->halo, 0, sizeof state->halo);
    for (int d = 0; d < 3; d++) {
        size[d] = block.grid[d];
        extent[d] = (int64_t)block.n * block.grid[d];
        cut[d] = dpar_shard(d);
        state->halo.low[d] = state->halo.high[d] = block.w;
    }
    state->halo.shape = block.full ? DPAR_STENCIL_BOX : DPAR_STENCIL_STAR;
    state->halo.periodic = 7;
    dpar_must(dpar_mesh_init(&state->mesh, "z y x", size, DPAR_ORDER_LAST_FASTEST, 0, &why),
              "dpar_mesh_init", why.text);
    dpar_must(dpar_layout_init(&state->halo.grid, &state->mesh, 3, extent, cut, &why),
              "dpar_layout_init", why.text);
}

/* Makes the communicator, which all engines use. */
static void dpar_join(void)
{
    dpar_world_desc desc;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    desc.timeout_s = 60;
#ifdef OVER_MPI
    if (dpar_world == NULL) {
        dpar_must(dpar_mpi_make(MPI_COMM_WORLD, NULL, &dpar_world, &why), "dpar_mpi_make",
                  why.text);
    }
#else
    if (dpar_world == NULL) {
        dpar_must(dpar_init(&dpar_world, &desc, &why), "dpar_init", why.text);
    }
#endif
}

/* Makes the plan of an engine for so many fields and returns their number. registered: the fields
 * are allocated by dpar_comm_alloc, otherwise all use `common`. way: DPAR_HALO_x. */
static int dpar_open(dpar_case *state, int arrays, int registered, int way, real *common,
                     real **array)
{
    dpar_halo_plan_desc desc;
    dpar_why why;
    const size_t array_bytes = cells_in_all() * sizeof(real);
    dpar_join();
    dpar_describe(state);
    memset(&desc, 0, sizeof desc);
    memset(state->field, 0, sizeof state->field);
    desc.method = way;
    desc.field = state->field;
    desc.field_count = arrays;
    state->arrays = arrays;
    state->registered = registered;
    for (int i = 0; i < arrays; i++) {
        void *data = common;
        if (registered) {
            dpar_must(dpar_comm_alloc(dpar_world, (int64_t)array_bytes, &data), "dpar_comm_alloc",
                      dpar_world->why.text);
        }
        state->field[i].halo = &state->halo;
        state->field[i].type = sizeof(real) == 4 ? DPAR_F32 : DPAR_F64;
        state->field[i].data = data;
        array[i] = (real *)data;
    }
    dpar_must(dpar_halo_plan_make(dpar_world, &desc, &state->plan, &why), "dpar_halo_plan_make",
              why.text);
    return arrays;
}

static void dpar_close(dpar_case *state)
{
    dpar_must(dpar_halo_plan_free(state->plan), "dpar_halo_plan_free", dpar_world->why.text);
    for (int i = 0; i < state->arrays && state->registered; i++) {
        dpar_comm_release(dpar_world, state->field[i].data);
    }
}

static void dpar_run(dpar_case *state)
{
    dpar_must(dpar_halo_plan_exchange(state->plan), "dpar_halo_plan_exchange",
              dpar_world->why.text);
}

#define DPAR_CASE(which, arrays, in_heap, way)                                                     \
    static int which##_open(real *common, real **array)                                            \
    {                                                                                              \
        return dpar_open(&which, arrays, in_heap, way, common, array);                             \
    }                                                                                              \
    static void which##_close(void)                                                                \
    {                                                                                              \
        dpar_close(&which);                                                                        \
    }
#define DPAR_ACTION_FORWARD(which)                                                                 \
    static void which##_run(real **array)                                                          \
    {                                                                                              \
        (void)array;                                                                               \
        dpar_run(&which);                                                                          \
    }

DPAR_CASE(dpar_registered, 1, 1, DPAR_HALO_AUTO)
DPAR_CASE(dpar_private, 1, 0, DPAR_HALO_AUTO)
DPAR_CASE(dpar_messages, 1, 0, DPAR_HALO_MESSAGES)
DPAR_CASE(dpar_adjoint, 1, 1, DPAR_HALO_AUTO)
DPAR_ACTION_FORWARD(dpar_registered)
DPAR_ACTION_FORWARD(dpar_private)
DPAR_ACTION_FORWARD(dpar_messages)
DPAR_ACTION_FORWARD(dpar_eight)

static void dpar_adjoint_run(real **array)
{
    (void)array;
    dpar_must(dpar_halo_plan_reduce_begin(dpar_adjoint.plan, DPAR_SUM),
              "dpar_halo_plan_reduce_begin", dpar_world->why.text);
    dpar_must(dpar_halo_plan_end(dpar_adjoint.plan), "dpar_halo_plan_end", dpar_world->why.text);
}

/* Eight fields of more than 64^3 are left out, because they do not fit the caches anyway. */
static int dpar_eight_open(real *common, real **array)
{
    return block.n > 64 ? 0 : dpar_open(&dpar_eight, 8, 1, DPAR_HALO_AUTO, common, array);
}

static void dpar_eight_close(void)
{
    dpar_close(&dpar_eight);
}

static int dpar_in_turn_open(real *common, real **array)
{
    for (int i = 0; i < MAX_ARRAYS && block.n <= 64; i++) {
        dpar_open(&dpar_in_turn[i], 1, 1, DPAR_HALO_AUTO, common, array + i);
    }
    return block.n > 64 ? 0 : MAX_ARRAYS;
}

static void dpar_in_turn_close(void)
{
    for (int i = 0; i < MAX_ARRAYS; i++) {
        dpar_close(&dpar_in_turn[i]);
    }
}

static void dpar_in_turn_run(real **array)
{
    (void)array;
    for (int i = 0; i < MAX_ARRAYS; i++) {
        dpar_run(&dpar_in_turn[i]);
    }
}

static void halo_bench_end(void)
{
    if (dpar_world != NULL) {
        dpar_comm_free(dpar_world);
    }
}

#ifdef HALO_PETSC
#include <petscdmda.h>

static struct {
    DM grid;
    Vec own, with_halos;
    PetscScalar *array;
    int started;
} petsc;

/* Ends all ranks with PETSc's message if a call fails. */
#define PETSC_MUST(call) PetscCallAbort(PETSC_COMM_WORLD, call)

static int petsc_open(real *common, real **array)
{
    const DMBoundaryType around = DM_BOUNDARY_PERIODIC;
    const DMDAStencilType shape = block.full ? DMDA_STENCIL_BOX : DMDA_STENCIL_STAR;
    const int *g = block.grid;
    (void)common;
    if (!petsc.started) {
        PETSC_MUST(PetscInitializeNoArguments());
        petsc.started = 1;
    }
    PETSC_MUST(DMDACreate3d(PETSC_COMM_WORLD, around, around, around, shape, block.n * g[2],
                            block.n * g[1], block.n * g[0], g[2], g[1], g[0], 1, block.w, NULL,
                            NULL, NULL, &petsc.grid));
    PETSC_MUST(DMSetUp(petsc.grid));
    PETSC_MUST(DMCreateGlobalVector(petsc.grid, &petsc.own));
    PETSC_MUST(DMCreateLocalVector(petsc.grid, &petsc.with_halos));
    PETSC_MUST(VecGetArray(petsc.with_halos, &petsc.array));
    array[0] = petsc.array;
    return 1;
}

/* Copies the own cells into the vector without halos, from which DMGlobalToLocal reads. */
static void petsc_ready(real **array)
{
    PetscScalar *own;
    const int first[3] = {block.w, block.w, block.w};
    const int extent[3] = {block.n, block.n, block.n};
    const size_t n = (size_t)block.n, edge = (size_t)block.edge;
    PETSC_MUST(VecGetArray(petsc.own, &own));
    copy_box(own, n, n * n, array[0] + index_of(first), edge, edge * edge, extent);
    PETSC_MUST(VecRestoreArray(petsc.own, &own));
    PETSC_MUST(VecRestoreArray(petsc.with_halos, &petsc.array));
}

static void petsc_run(real **array)
{
    (void)array;
    PETSC_MUST(DMGlobalToLocal(petsc.grid, petsc.own, INSERT_VALUES, petsc.with_halos));
}

static void petsc_close(void)
{
    PETSC_MUST(VecDestroy(&petsc.own));
    PETSC_MUST(VecDestroy(&petsc.with_halos));
    PETSC_MUST(DMDestroy(&petsc.grid));
}

static void petsc_end(void)
{
    if (petsc.started) {
        PETSC_MUST(PetscFinalize());
    }
}
#define PETSC_ENGINE {"petsc", FORWARD, petsc_open, petsc_ready, petsc_run, petsc_close},
#else
static void petsc_end(void)
{
}
#define PETSC_ENGINE
#endif

static void engines_end(void)
{
    halo_bench_end();
    petsc_end();
}
#define ENGINES_END engines_end

#define EXTRA_ENGINES                                                                              \
    {                                                                                              \
        "registered",         FORWARD, dpar_registered_open, NULL, dpar_registered_run,            \
        dpar_registered_close},                                                                    \
        {"private", FORWARD, dpar_private_open, NULL, dpar_private_run, dpar_private_close},       \
        {"messages", FORWARD, dpar_messages_open, NULL, dpar_messages_run, dpar_messages_close},   \
        {"adjoint", ADJOINT, dpar_adjoint_open, NULL, dpar_adjoint_run, dpar_adjoint_close},       \
        {"eight", FORWARD, dpar_eight_open, NULL, dpar_eight_run, dpar_eight_close},               \
        {"in_turn", FORWARD, dpar_in_turn_open, NULL, dpar_in_turn_run, dpar_in_turn_close},       \
        PETSC_ENGINE
