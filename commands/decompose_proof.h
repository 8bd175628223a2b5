/* SPDX-License-Identifier: MIT-0 */
/* decompose_proof - proves the halo exchange of a process grid for `decompose --prove`. */
#ifndef DPAR_COMMANDS_DECOMPOSE_PROOF_H
#define DPAR_COMMANDS_DECOMPOSE_PROOF_H

/* What `decompose --prove` proves, in addition to the grid. */
typedef struct proof_job {
    int wanted;                   /* 1 if there is --prove */
    int has_parts;                /* 1 if --parts names the process grid */
    int64_t parts[DPAR_MAX_DIMS]; /* of --parts */
    int64_t fold[2], poles[2];    /* of --fold and --poles: the axis and its mirror */
    int folds, has_poles;         /* 1 if the option is there */
} proof_job;

/* The progress of a proof. */
typedef struct proof_progress {
    double began, shown; /* seconds */
    int to_terminal;
} proof_progress;

enum { PROOF_MEMORY = 64 << 20 }; /* bytes to begin with; a proof that needs more gets more */

/* Shows the progress from 2 seconds on, then each second on a terminal and otherwise every 10 s. */
static int proof_show(void *context, int64_t done, int64_t total)
{
    proof_progress *progress = (proof_progress *)context;
    const double passed = now() - progress->began;
    if (passed >= 2 && passed - progress->shown >= (progress->to_terminal ? 1 : 10)) {
        progress->shown = passed;
        fprintf(stderr, "%sdecompose: %3.0f %% of %lld ranks proved, %.0f s%s",
                progress->to_terminal ? "\r" : "", 100.0 * (double)done / (double)total,
                (long long)total, passed, progress->to_terminal ? "" : "\n");
    }
    return 0;
}

/* Reads "--fold 0,1". Returns 0, or 2 after a message. */
static int proof_read_axes(const char *name, const char *value, int32_t dims, int64_t *axes)
{
    char text[160];
    if (value == NULL ||
        (numbers(value, ',', 0, axes, 2) == 2 && axes[0] < dims && axes[1] < dims)) {
        return 0;
    }
    snprintf(text, sizeof text,
             "%s takes the axis that ends there and the periodic axis around it, below %d and with "
             "a comma between, not",
             name, (int)dims);
    return complain(text, value);
}

/* Reads the options of a proof. Returns 0, or 2 after a message. */
static int proof_read(proof_job *job, int32_t dims, const char *parts, const char *fold,
                      const char *poles)
{
    if (!job->wanted && (parts != NULL || fold != NULL || poles != NULL)) {
        return complain("--parts, --fold and --poles need --prove", NULL);
    }
    job->has_parts = parts != NULL;
    job->folds = fold != NULL;
    job->has_poles = poles != NULL;
    if (parts != NULL && numbers(parts, 'x', 1, job->parts, DPAR_MAX_DIMS) != dims) {
        return complain("--parts takes a number of parts for each axis, such as 8x4, not", parts);
    }
    if (proof_read_axes("--fold", fold, dims, job->fold) != 0) {
        return 2;
    }
    return proof_read_axes("--poles", poles, dims, job->poles);
}

/* Describes the grid whose axes are cut into parts[], evenly. */
static dpar_status proof_grid(dpar_halo *halo, const problem *given, const proof_job *job,
                              const int32_t *parts, dpar_why *why)
{
    static const char names[] = "a b c d e f";
    char used[sizeof names] = "";
    dpar_placement cut[DPAR_MAX_DIMS];
    dpar_mesh mesh;
    int32_t dim;
    dpar_status status;
    memset(halo, 0, sizeof *halo);
    for (dim = 0; dim < given->dims; dim++) {
        cut[dim] = dpar_shard_by(dim, DPAR_SPLIT_EVEN, 0);
        halo->low[dim] = given->halo;
        halo->high[dim] = given->halo;
    }
    memcpy(used, names, (size_t)(2 * given->dims - 1));
    status = dpar_mesh_init(&mesh, used, parts, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (status == DPAR_OK) {
        status = dpar_layout_init(&halo->grid, &mesh, given->dims, given->cells, cut, why);
    }
    halo->shape = given->shape;
    halo->periodic = given->periodic;
    if (job->folds || job->has_poles) {
        const int64_t *axes = job->folds ? job->fold : job->poles;
        halo->folds = job->folds;
        halo->fold = (int32_t)axes[0];
        halo->mirror = (int32_t)axes[1];
    }
    if (job->has_poles) {
        halo->poles = job->folds ? DPAR_HALO_POLE_LOW : DPAR_HALO_POLE_LOW | DPAR_HALO_POLE_HIGH;
    }
    return status;
}

/* Proves the exchange on the process grid parts[] and prints the verdict. Returns the exit code: 0
 * if it is proved, 1 if it is refuted, 2 after a message. */
static int prove(const problem *given, const proof_job *job, const int32_t *parts)
{
    static char text[2000];
    proof_progress progress = {0, 0, 0};
    dpar_proof_desc desc;
    dpar_proof_report report;
    dpar_halo halo;
    dpar_text out;
    dpar_why why;
    dpar_status status = proof_grid(&halo, given, job, parts, &why);
    if (status != DPAR_OK) {
        return complain(why.text, NULL);
    }
    memset(&desc, 0, sizeof desc);
    progress.began = now();
    progress.to_terminal = options_terminal(2);
    desc.bytes = PROOF_MEMORY;
    desc.point_bytes = given->bytes;
    desc.progress = proof_show;
    desc.context = &progress;
    do {
        desc.memory = malloc((size_t)desc.bytes);
        if (desc.memory == NULL) {
            return complain("the memory for the proof cannot be allocated", NULL);
        }
        status = dpar_proof_halo(&halo, &desc, &report, &why);
        free(desc.memory);
        desc.bytes = why.bytes;
    } while (status == DPAR_E_ROOM);
    if (progress.to_terminal && progress.shown > 0) {
        fprintf(stderr, "\r%60s\r", "");
    }
    if (status != DPAR_OK && status != DPAR_E_MISMATCH) {
        return complain(why.text, NULL);
    }
    printf("proof of the exchange on ");
    print_grid(given->dims, parts, 0);
    printf("ranks, %.1f s on one core\n\n", now() - progress.began);
    if (status == DPAR_E_MISMATCH) {
        printf("REFUTED: %s\n", why.text);
        return 1;
    }
    dpar_text_init(&out, text, sizeof text);
    dpar_proof_draw(&report, &out);
    fputs(text, stdout);
    return 0;
}

#endif
