/* SPDX-License-Identifier: MIT-0 */
/* Finds out which launcher started this process, and its rank and size.
 *
 * A table has a row of environment variables for each launcher. Because launchers start each other
 * and set each other's variables (Slurm sets PMI variables for an MPI, for example), dpari_job_seen
 * decides which launcher really started the job. All numbers are then taken from the row of that
 * launcher. Variables and files are read through a dpari_site, which tests replace. Called by
 * dpar_launcher_detect, and by launch.c and simple.c. */
#include "job.h"

#include "../base/base_private.h"

/* The name of one launcher in messages, and its variables. A variable is read if those before it
 * are not set; missing ones are NULL. */
typedef struct dpari_job_row {
    const char *title;
    const char *rank[3], *size[3], *local_rank[3], *local_size[3];
} dpari_job_row;

/* Does what getenv does, which the library does not call (tools/lint). */
static DPARI_COLD const char *dpari_job_environ(const void *user, const char *name)
{
    char **at = dpari_os_environment();
    size_t n = dpari_length(name);
    (void)user;
    for (; at != NULL && *at != NULL; at++) {
        size_t i = 0;
        while (i < n && (*at)[i] == name[i]) {
            i++;
        }
        if (i == n && (*at)[n] == '=') {
            return *at + n + 1;
        }
    }
    return NULL;
}

DPARI_API DPARI_COLD void dpari_site_here(dpari_site *site)
{
    site->env = dpari_job_environ;
    site->user = NULL;
    site->root = "";
}

DPARI_API DPARI_COLD const char *dpari_site_env(const dpari_site *site, const char *name)
{
    return site->env(site->user, name);
}

DPARI_API DPARI_COLD int64_t dpari_site_read(const dpari_site *site, const char *path, char *text,
                                             size_t room)
{
    char full[512];
    dpar_text t;
    dpar_text_init(&t, full, sizeof full);
    dpari_text_print(&t, "%s%s", site->root, path);
    if (t.used >= sizeof full || room == 0) {
        return -1;
    }
    return dpari_os_text(full, text, room);
}

DPARI_API DPARI_COLD int dpari_job_number(const char *text, int64_t most, int64_t *value)
{
    int64_t v;
    const char *end = dpari_os_digits(text, &v);
    if (end == text || *end != 0 || v > most || v == INT64_MAX) {
        return 0;
    }
    *value = v;
    return 1;
}

/* Reads digits at text[*at] and moves *at past them. Returns 0 if there are none or the value is
 * above INT32_MAX. */
static int dpari_job_digits(const char *text, size_t *at, int32_t *value)
{
    int64_t v;
    const char *begin = text + *at, *end = dpari_os_digits(begin, &v);
    if (end == begin || v > INT32_MAX) {
        return 0;
    }
    *at += (size_t)(end - begin);
    *value = (int32_t)v;
    return 1;
}

/* Reads one "4" or "4(x2)" at text[*at] and the comma after it, and moves *at past them. Returns 0
 * if the text has another form. */
static int dpari_job_group(const char *text, size_t *at, int32_t *tasks, int32_t *times)
{
    size_t i = *at;
    *times = 1;
    if (!dpari_job_digits(text, &i, tasks)) {
        return 0;
    }
    if (text[i] == '(') {
        i++;
        if (text[i++] != 'x' || !dpari_job_digits(text, &i, times) || text[i++] != ')') {
            return 0;
        }
    }
    if (text[i] == ',' && text[i + 1] != 0) {
        i++;
    } else if (text[i] != 0) {
        return 0;
    }
    *at = i;
    return *times > 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_job_tasks(const char *text, int32_t node, int32_t *tasks,
                                              int32_t *nodes)
{
    int32_t count = 0, found = -1, here, times;
    size_t at = 0;
    int same = 1;
    while (text[at] != 0) {
        if (!dpari_job_group(text, &at, &here, &times) || times > INT32_MAX - count) {
            return 0;
        }
        if (node >= count && node - count < times) {
            found = here;
        }
        if (node < 0) {
            same = same && (found < 0 || found == here);
            found = here;
        }
        count += times;
    }
    if (found < 0 || !same) {
        return 0;
    }
    *tasks = found;
    *nodes = count;
    return 1;
}

static dpari_job_row dpari_job_row_make(const char *title, const char *rank, const char *size,
                                        const char *local_rank, const char *local_size)
{
    dpari_job_row row;
    dpari_zero(&row, sizeof row);
    row.title = title;
    row.rank[0] = rank;
    row.size[0] = size;
    row.local_rank[0] = local_rank;
    row.local_size[0] = local_size;
    return row;
}

/* The table. */
DPARI_STATIC_NOINLINE DPARI_COLD dpari_job_row dpari_job_row_of(int32_t launcher)
{
    dpari_job_row row;
    switch (launcher) {
    case DPAR_LAUNCHER_NONE: return dpari_job_row_make("none", NULL, NULL, NULL, NULL);
    case DPAR_LAUNCHER_DPAR:
        return dpari_job_row_make("dpar", "DPAR_RANK", "DPAR_SIZE", "DPAR_LOCAL_RANK",
                                  "DPAR_LOCAL_SIZE");
    case DPAR_LAUNCHER_TORCHRUN:
        return dpari_job_row_make("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE");
    case DPAR_LAUNCHER_OPENMPI:
        return dpari_job_row_make("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    case DPAR_LAUNCHER_HYDRA:
        return dpari_job_row_make("Hydra (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE",
                                  "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    case DPAR_LAUNCHER_PALS:
        row = dpari_job_row_make("PALS (Cray)", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK",
                                 "PMI_LOCAL_SIZE");
        row.rank[1] = "PALS_RANKID";
        row.size[1] = "PALS_NRANKS";
        row.size[2] = "PALS_SIZE";
        row.local_rank[1] = "PALS_LOCAL_RANKID";
        row.local_size[1] = "PALS_LOCAL_SIZE";
        return row;
    case DPAR_LAUNCHER_MVAPICH:
        return dpari_job_row_make("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                                  "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE");
    case DPAR_LAUNCHER_FLUX:
        return dpari_job_row_make("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID",
                                  NULL);
    case DPAR_LAUNCHER_JSRUN:
        return dpari_job_row_make("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                                  "JSM_NAMESPACE_LOCAL_RANK", NULL);
    case DPAR_LAUNCHER_SLURM:
        return dpari_job_row_make("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                                  NULL);
    default: return dpari_job_row_make("?", NULL, NULL, NULL, NULL);
    }
}

DPARI_API DPARI_COLD const char *dpari_launcher_name(int32_t launcher)
{
    return dpari_job_row_of(launcher).title;
}

/* Returns the text of the first of up to n names that is set and sets *name to that name, or
 * returns NULL. */
static const char *dpari_job_pick(const dpari_site *site, const char *const *names, int n,
                                  const char **name)
{
    int i;
    *name = names[0];
    for (i = 0; i < n && names[i] != NULL; i++) {
        const char *text = dpari_site_env(site, names[i]);
        if (text != NULL) {
            *name = names[i];
            return text;
        }
    }
    return NULL;
}

static int dpari_job_has(const dpari_site *site, const char *name)
{
    return dpari_site_env(site, name) != NULL;
}

/* True if both variables are set to the same text. */
static int dpari_job_equal(const dpari_site *site, const char *a, const char *b)
{
    const char *x = dpari_site_env(site, a), *y = dpari_site_env(site, b);
    return x != NULL && y != NULL && dpari_same(x, y);
}

/* True in a step of Slurm that runs ranks. The batch script and the shell of an allocation are in
 * no step, or in a special step, whose number is 2^32 - 16 or more. */
static int dpari_job_in_step(const dpari_site *site)
{
    const char *step = dpari_site_env(site, "SLURM_STEP_ID");
    int64_t number;
    return step != NULL && dpari_job_has(site, "SLURM_STEP_NUM_TASKS") &&
           !(dpari_job_number(step, INT64_MAX, &number) && number >= INT64_C(4294967280));
}

/* True if PMI or PALS variables are set and agree with the variables `rank` and `size`. */
static int dpari_job_is_of(const dpari_site *site, const char *rank, const char *size)
{
    const int pmi = dpari_job_has(site, "PMI_RANK"), pals = dpari_job_has(site, "PALS_RANKID");
    return (pmi || pals) && (!pmi || dpari_job_equal(site, "PMI_RANK", rank)) &&
           (!pals || dpari_job_equal(site, "PALS_RANKID", rank)) &&
           (!dpari_job_has(site, "PMI_SIZE") || dpari_job_equal(site, "PMI_SIZE", size));
}

/* True if Slurm (--mpi=pmi2, cray_shasta) or Flux set the PMI or PALS variables for the MPI of
 * their jobs. PALS_RANKID may then lack a size, whereas the row of Slurm or Flux is complete and
 * has the nodes, so it is used. False if Hydra's own variables are set. */
static int dpari_job_serves(const dpari_site *site)
{
    return !dpari_job_has(site, "MPI_LOCALNRANKS") && !dpari_job_has(site, "MPI_LOCALRANKID") &&
           ((dpari_job_in_step(site) &&
             dpari_job_is_of(site, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")) ||
            dpari_job_is_of(site, "FLUX_TASK_RANK", "FLUX_JOB_SIZE"));
}

static int dpari_job_is_pals(const dpari_site *site)
{
    return dpari_job_has(site, "PALS_RANKID") || dpari_job_has(site, "PALS_APID") ||
           dpari_job_has(site, "PMI_LOCAL_RANK");
}

/* Splits "fd.pid". Returns 0 if the text has another form. */
static int dpari_job_segment_read(const char *text, int32_t *fd, int32_t *pid)
{
    size_t at = 0;
    if (!dpari_job_digits(text, &at, fd) || text[at++] != '.') {
        return 0;
    }
    return dpari_job_digits(text, &at, pid) && text[at] == 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_job_segment(const dpari_site *site)
{
    const char *text = dpari_site_env(site, DPARI_JOB_SEGMENT);
    int32_t fd, pid;
    if (text == NULL || !dpari_job_segment_read(text, &fd, &pid) || pid != (int32_t)getpid()) {
        return -1;
    }
    return fd;
}

/* True if DPAR_RANK and DPAR_SIZE belong to another process, a rank of dpar_init_or_launch that
 * started this process as its child. */
static int dpari_job_is_anothers(const dpari_site *site)
{
    return dpari_job_has(site, DPARI_JOB_SEGMENT) && dpari_job_segment(site) < 0;
}

/* True if this launcher started the process, by the variables that it sets. */
DPARI_STATIC_NOINLINE int dpari_job_seen(const dpari_site *site, int32_t launcher)
{
    switch (launcher) {
    case DPAR_LAUNCHER_DPAR:
        return (dpari_job_has(site, "DPAR_RANK") || dpari_job_has(site, "DPAR_SIZE")) &&
               !dpari_job_is_anothers(site);
    case DPAR_LAUNCHER_TORCHRUN: return dpari_job_has(site, "RANK");
    case DPAR_LAUNCHER_OPENMPI: return dpari_job_has(site, "OMPI_COMM_WORLD_RANK");
    case DPAR_LAUNCHER_HYDRA:
        return dpari_job_has(site, "PMI_RANK") &&
               (dpari_job_has(site, "MPI_LOCALRANKID") ||
                (!dpari_job_is_pals(site) && !dpari_job_serves(site)));
    case DPAR_LAUNCHER_PALS:
        return !dpari_job_serves(site) &&
               (dpari_job_has(site, "PALS_RANKID") ||
                (dpari_job_has(site, "PMI_RANK") && dpari_job_is_pals(site)));
    case DPAR_LAUNCHER_MVAPICH: return dpari_job_has(site, "MV2_COMM_WORLD_RANK");
    case DPAR_LAUNCHER_FLUX: return dpari_job_has(site, "FLUX_TASK_RANK");
    case DPAR_LAUNCHER_JSRUN: return dpari_job_has(site, "JSM_NAMESPACE_RANK");
    case DPAR_LAUNCHER_SLURM: return dpari_job_in_step(site);
    default: return 0;
    }
}

/* Counts the lines that are not empty in the file that PBS_NODEFILE names, which has a line for
 * each rank. Returns 0 if there is no such file. */
static int32_t dpari_job_nodefile(const dpari_site *site)
{
    const char *path = dpari_site_env(site, "PBS_NODEFILE");
    char text[4096];
    dpari_site other = *site;
    int64_t bytes, i, lines = 0;
    if (path == NULL) {
        return 0;
    }
    bytes = dpari_site_read(&other, path, text, sizeof text);
    if (bytes < 0 || bytes >= (int64_t)sizeof text - 1) {
        return 0; /* a job with such a large file runs on several nodes anyway */
    }
    for (i = 0; i < bytes; i++) {
        lines += text[i] != '\n' && (text[i + 1] == '\n' || text[i + 1] == 0);
    }
    return (int32_t)lines;
}

/* Reads a number of a row into *value, or sets it to `absent` if none of the names is set. */
static dpar_status dpari_job_value(const dpari_site *site, const char *const *names, int n,
                                   int32_t absent, int32_t *value, dpar_why *why)
{
    const char *name, *text = dpari_job_pick(site, names, n, &name);
    int64_t v;
    if (text == NULL) {
        *value = absent;
        return DPAR_OK;
    }
    if (!dpari_job_number(text, INT32_MAX, &v)) {
        return dpari_wrong(why, "%s is \"%s\", not a whole number from 0 to 2147483647", name,
                           text);
    }
    *value = (int32_t)v;
    return DPAR_OK;
}

/* Reads the four numbers of a launcher, or -1 for a number that is not set. Fails if the rank or
 * the size is missing. */
DPARI_STATIC_NOINLINE dpar_status dpari_job_take(const dpari_site *site, int32_t launcher,
                                                 dpar_launcher_info *job, dpar_why *why)
{
    const dpari_job_row row = dpari_job_row_of(launcher);
    const char *const *const names[] = {row.rank, row.size, row.local_rank, row.local_size};
    int32_t *const values[] = {&job->rank, &job->size, &job->local_rank, &job->local_size};
    dpar_status status = DPAR_OK;
    for (int i = 0; i < 4 && status == DPAR_OK; i++) {
        status = dpari_job_value(site, names[i], 3, -1, values[i], why);
    }
    if (status == DPAR_OK && job->size < 0 && launcher == DPAR_LAUNCHER_PALS) {
        job->size = dpari_job_nodefile(site);
        job->size = job->size > 0 ? job->size : -1;
    }
    if (status == DPAR_OK && (job->rank < 0 || job->size < 0)) {
        const char *present = job->rank < 0 ? row.size[0] : row.rank[0];
        const char *missing = job->rank < 0 ? row.rank[0] : row.size[0];
        if (launcher == DPAR_LAUNCHER_PALS && job->rank >= 0) {
            dpari_job_pick(site, row.rank, 3, &present);
            missing = "none of PMI_SIZE, PALS_NRANKS, PALS_SIZE, PBS_NODEFILE";
            return dpari_wrong(why, "%s: %s is set but %s", row.title, present, missing);
        }
        return dpari_wrong(why, "%s: %s is set but %s is not: set both, or neither for one rank",
                           row.title, present, missing);
    }
    return status;
}

/* Reads the number of nodes, the only such number that Flux sets. If it divides the number of
 * ranks, all nodes have equally many ranks. */
static dpar_status dpari_job_flux(const dpari_site *site, dpar_launcher_info *job, int32_t *nodes,
                                  dpar_why *why)
{
    const char *name = "FLUX_JOB_NNODES";
    dpar_status status = dpari_job_value(site, &name, 1, 0, nodes, why);
    if (status == DPAR_OK && *nodes > 0 && job->size % *nodes == 0) {
        job->local_size = job->size / *nodes;
    }
    return status;
}

static dpar_status dpari_job_slurm(const dpari_site *site, dpar_launcher_info *job, int32_t *nodes,
                                   dpar_why *why)
{
    const char *name = "SLURM_NODEID", *text = dpari_site_env(site, "SLURM_STEP_TASKS_PER_NODE");
    int32_t node;
    dpar_status status = dpari_job_value(site, &name, 1, -1, &node, why);
    if (status != DPAR_OK || text == NULL) {
        return status;
    }
    if (!dpari_job_tasks(text, node, &job->local_size, nodes)) {
        return dpari_wrong(why,
                           "SLURM_STEP_TASKS_PER_NODE is \"%s\", which does not contain the number "
                           "of tasks of this node%s",
                           text, node < 0 ? " (SLURM_NODEID is not set)" : "");
    }
    return DPAR_OK;
}

/* Checks that the numbers of a launcher are consistent. */
static dpar_status dpari_job_is_sound(const dpar_launcher_info *job, dpar_why *why)
{
    const char *name = dpari_launcher_name(job->kind);
    if (job->size < 1) {
        return dpari_wrong(why, "%s: the job has %d ranks, but must have at least 1", name,
                           job->size);
    }
    if (job->rank >= job->size) {
        return dpari_wrong(why, "%s: rank %d is not in a job of %d ranks (0 .. %d)", name,
                           job->rank, job->size, job->size - 1);
    }
    if (job->local_size == 0 || job->local_size > job->size) {
        return dpari_wrong(why, "%s: %d ranks on this node, but %d in the whole job", name,
                           job->local_size, job->size);
    }
    if (job->local_rank >= (job->local_size > 0 ? job->local_size : job->size)) {
        return dpari_wrong(why, "%s: local rank %d does not fit %d ranks on the node", name,
                           job->local_rank, job->local_size > 0 ? job->local_size : job->size);
    }
    return DPAR_OK;
}

/* If the variable is set and not empty, appends `before` and its text. */
static void dpari_job_part(const dpari_site *site, dpar_text *out, const char *before,
                           const char *name)
{
    const char *text = dpari_site_env(site, name);
    if (text != NULL && text[0] != 0) {
        dpari_text_print(out, "%s%s", before, text);
    }
}

/* Appends what distinguishes this job from other jobs of the same user, such as job and step
 * numbers. Appends nothing if no variable contains that. */
static void dpari_job_id(const dpari_site *site, int32_t launcher, dpar_text *text)
{
    switch (launcher) {
    case DPAR_LAUNCHER_DPAR: dpari_job_part(site, text, "", "DPAR_JOB"); break;
    case DPAR_LAUNCHER_TORCHRUN:
        if (dpari_job_has(site, "MASTER_PORT") || dpari_job_has(site, "TORCHELASTIC_RUN_ID")) {
            dpari_job_part(site, text, "", "TORCHELASTIC_RUN_ID");
            dpari_job_part(site, text, "@", "MASTER_ADDR");
            dpari_job_part(site, text, ":", "MASTER_PORT");
            dpari_job_part(site, text, "#", "TORCHELASTIC_RESTART_COUNT");
        }
        break;
    case DPAR_LAUNCHER_OPENMPI:
        dpari_job_part(site, text, "",
                       dpari_job_has(site, "PMIX_NAMESPACE") ? "PMIX_NAMESPACE"
                                                             : "OMPI_MCA_ess_base_jobid");
        break;
    case DPAR_LAUNCHER_PALS:
        if (dpari_job_has(site, "PALS_APID")) {
            dpari_job_part(site, text, "", "PBS_JOBID");
            dpari_job_part(site, text, "+", "PALS_APID");
        }
        break;
    case DPAR_LAUNCHER_MVAPICH:
        if (dpari_job_has(site, "MPIRUN_ID")) {
            dpari_job_part(site, text, "", "MPIRUN_HOST");
            dpari_job_part(site, text, ":", "MPIRUN_ID");
        }
        break;
    case DPAR_LAUNCHER_FLUX: dpari_job_part(site, text, "", "FLUX_JOB_ID"); break;
    case DPAR_LAUNCHER_JSRUN:
        dpari_job_part(site, text, "", "LSB_JOBID");
        dpari_job_part(site, text, ".", "JSM_NAMESPACE_ID");
        break;
    case DPAR_LAUNCHER_SLURM:
        dpari_job_part(site, text, "",
                       dpari_job_has(site, "SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID");
        dpari_job_part(site, text, ".", "SLURM_STEP_ID");
        break;
    default: break; /* Hydra sets no such variable */
    }
}

/* Stores the id. If it has 64 characters or more, stores its first 46, a '~' and 16 hexadecimal
 * digits of the hash of the whole id. */
static void dpari_job_fold(const char *text, size_t n, char id[64])
{
    dpar_text digits;
    dpari_copy_text(id, 64, text, n);
    if (n >= 64) {
        id[46] = '~';
        dpar_text_init(&digits, id + 47, 17);
        dpari_os_put_hex(&digits, dpari_os_hash(DPARI_OS_HASH, text, n));
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_job_from(const dpari_site *site,
                                                     dpar_launcher_info *job, int32_t *nodes,
                                                     dpar_why *why)
{
    dpar_launcher_info found;
    dpar_status status = DPAR_OK;
    char id[512];
    dpar_text t;
    int32_t l = DPAR_LAUNCHER_DPAR, many = 0;
    while (l < DPAR_LAUNCHER_COUNT && !dpari_job_seen(site, l)) {
        l++;
    }
    dpari_zero(&found, sizeof found);
    found.size = found.local_size = 1;
    if (l == DPAR_LAUNCHER_COUNT && dpari_job_has(site, "PMIX_RANK")) {
        return dpari_wrong(why, "PMIX_RANK is set but no variable has the number of ranks: start "
                                "with mpirun or srun, or set DPAR_RANK, DPAR_SIZE and DPAR_JOB");
    }
    if (l < DPAR_LAUNCHER_COUNT) {
        found.kind = l;
        status = dpari_job_take(site, l, &found, why);
        if (status == DPAR_OK && l == DPAR_LAUNCHER_FLUX) {
            status = dpari_job_flux(site, &found, &many, why);
        } else if (status == DPAR_OK && l == DPAR_LAUNCHER_SLURM) {
            status = dpari_job_slurm(site, &found, &many, why);
        }
        if (status == DPAR_OK) {
            status = dpari_job_is_sound(&found, why);
        }
        dpar_text_init(&t, id, sizeof id);
        dpari_job_id(site, l, &t);
        if (status == DPAR_OK && t.used >= sizeof id) { /* cut off, two jobs might have the same
                                                           id */
            status = dpari_wrong(
                why, "the name of this job has %ld characters, but at most %ld are allowed",
                (int64_t)t.used, (int64_t)sizeof id - 1);
        }
        dpari_job_fold(id, dpari_length(id), found.id);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (many == 0 && found.local_size == found.size) {
        many = 1;
    }
    *job = found;
    *nodes = many;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_job_process(int64_t pid, int32_t wanted)
{
    char path[64], text[512];
    const char *at;
    dpar_text t;
    int64_t field = 2, value;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "/proc/%ld/stat", pid);
    (void)dpari_os_text(path, text, sizeof text);
    at = strchr(text, ')'); /* the end of field 2, the name in parentheses, which may have some */
    if (at == NULL) {
        return 0;
    }
    while (strchr(at + 1, ')') != NULL) {
        at = strchr(at + 1, ')');
    }
    for (; *at != 0 && field < wanted; at++) {
        field += *at == ' ';
    }
    (void)dpari_os_digits(at, &value);
    return wanted == DPARI_PROCESS_STATE ? *at : value;
}

/* Returns the pid of the process at the other end of the socket in PMI_FD, or 0 if unknown. That
 * process is Hydra's proxy, which all ranks of a node have in common, even if other processes run
 * between it and them. */
static int64_t dpari_job_proxy(const dpari_site *site)
{
    const char *text = dpari_site_env(site, "PMI_FD");
    int64_t fd, pid, user;
    if (text == NULL || !dpari_job_number(text, INT32_MAX, &fd) ||
        dpari_os_peer((int)fd, &pid, &user) != 0) {
        return 0;
    }
    return dpari_most(pid, 0);
}

DPARI_API DPARI_COLD dpar_status dpari_job_here(dpar_launcher_info *job, int32_t *nodes,
                                                dpar_why *why)
{
    dpari_site here;
    dpar_text t;
    dpar_status status;
    int64_t starter = 0;
    dpari_site_here(&here);
    status = dpari_job_from(&here, job, nodes, why);
    if (status != DPAR_OK || job->id[0] != 0) {
        return status;
    }
    /* No variable distinguishes this job from others, so the process that started its ranks must.
     * Because pids are reused, the id also has the time at which that process started. */
    if (job->kind == DPAR_LAUNCHER_HYDRA) {
        starter = dpari_job_proxy(&here);
    }
    if (job->kind == DPAR_LAUNCHER_NONE) {
        starter = (int64_t)getpid();
    }
    starter = starter > 0 ? starter : (int64_t)getppid();
    dpar_text_init(&t, job->id, sizeof job->id);
    dpari_text_print(&t, "process %ld of %ld", starter,
                     dpari_job_process(starter, DPARI_PROCESS_STARTED));
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_launcher_detect(dpar_launcher_info *job, dpar_why *why)
{
    int32_t nodes;
    if (job == NULL) {
        return dpari_wrong(why, "dpar_launcher_detect: job is NULL");
    }
    return dpari_job_here(job, &nodes, why);
}
