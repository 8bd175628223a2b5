/* SPDX-License-Identifier: MIT-0 */
/* train_files - checkpoints of train_gpt.c, which any mesh can read, and all parameters on one rank
 * for --check. train_gpt.c includes it after the trainer. */
#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

/* ---- whole parameters: checkpoints and comparisons ------------------------------------------- */

/* All arrays of all parameters, whole and one after the other, in a file or in memory. If ranks
 * have parts of a parameter each moves its own rows, so that any mesh can read what another one
 * wrote. */
enum { HEAD = 32 };

typedef struct image {
    FILE *file;
    gpt_real *memory; /* holds the first array only */
    int64_t whole;
    int write, bad;
    uint64_t sum; /* checksum of what was written and where, which does not depend on who wrote
                     it */
} image;

/* Moves `count` consecutive elements, from or to place `at` of the image. */
static void move_run(image *stored, int64_t at, int64_t count, gpt_real *values)
{
    int64_t i;
    if (stored->file == NULL) {
        memcpy(stored->memory + at, values, (size_t)count * sizeof *values);
        return;
    }
    stored->bad |=
        fseek(stored->file, (long)(HEAD * 8 + at * (int64_t)sizeof *values), SEEK_SET) != 0;
    if (!stored->write) {
        stored->bad |= fread(values, sizeof *values, (size_t)count, stored->file) != (size_t)count;
        return;
    }
    stored->bad |= fwrite(values, sizeof *values, (size_t)count, stored->file) != (size_t)count;
    for (i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &values[i], sizeof *values);
        stored->sum += mix(bits, (uint64_t)(at + i));
    }
}

/* Moves elements lo <= i < hi of this rank's piece of a parameter, row by row. */
static void move_piece(image *stored, const parameter *entry, int32_t array, int64_t lo, int64_t hi,
                       gpt_real *values)
{
    const gpt_parameter *shape = &entry->shape;
    int64_t local[3] = {1, 1, 1}, whole[3] = {1, 1, 1}, at[3] = {0, 0, 0};
    int32_t dim;
    for (dim = 0; dim < shape->dims; dim++) {
        local[3 - shape->dims + dim] = shape->local[dim];
        whole[3 - shape->dims + dim] = shape->whole[dim];
        at[3 - shape->dims + dim] = shape->at[dim];
    }
    while (lo < hi) {
        const int64_t column = lo % local[2], row = at[1] + lo / local[2] % local[1];
        const int64_t plane = at[0] + lo / (local[1] * local[2]), left = whole[2] - at[2] - column;
        const int64_t run = hi - lo < local[2] - column ? hi - lo : local[2] - column;
        if (plane < whole[0] && row < whole[1] && left > 0) { /* otherwise it is padding */
            move_run(stored,
                     array * stored->whole + entry->whole_at + (plane * whole[1] + row) * whole[2] +
                         at[2] + column,
                     run < left ? run : left, values);
        }
        lo += run;
        values += run;
    }
}

/* Moves elements first to first + count - 1 of a unit. */
static void move_unit(image *stored, const store *held, int32_t array, int32_t unit, int64_t first,
                      int64_t count, gpt_real *values)
{
    int32_t i;
    for (i = 0; i < held->params; i++) {
        const parameter *entry = &held->of[i];
        const int64_t lo = larger(first, entry->start), end = entry->start + entry->shape.numel;
        const int64_t hi = first + count < end ? first + count : end;
        if (entry->unit == unit && lo < hi && !(stored->write && entry->shape.copy > 0)) {
            move_piece(stored, entry, array, lo - entry->start, hi - entry->start,
                       values + (lo - first));
        }
    }
}

/* True if this rank writes its part of a store. If several ranks have the same, the first one does.
 */
static int writes(const trainer *self, int32_t k)
{
    const store *held = &self->stores[k];
    const dpar_comm *alike = held->ddp != NULL ? held->all : held->across;
    return held->params > 0 && (alike == NULL || alike->rank == 0) &&
           (k != TABLE || self->at[0] == self->list.rank_of[0]);
}

/* Writes this rank's part of the first arrays of all stores. */
static void write_all(trainer *self, image *stored, int32_t arrays)
{
    int32_t k, array, unit, i;
    stored->whole = self->whole;
    stored->write = 1;
    for (k = 0; k < STORES; k++) {
        store *held = &self->stores[k];
        for (array = 0; array < arrays && writes(self, k); array++) {
            for (unit = 0; unit < held->units && held->fsdp != NULL; unit++) {
                int64_t count;
                int32_t type;
                void *state = dpar_fsdp_state(held->fsdp, array, unit, &count, &type);
                gpt_real *shard = brought(self, state, count, type);
                stored->bad |= shard == NULL && count > 0;
                if (shard != NULL) {
                    move_unit(stored, held, array, unit, count * held->shard->rank, count, shard);
                }
            }
            for (i = 0; i < held->params && held->ddp != NULL; i++) {
                const parameter *entry = &held->of[i];
                if (entry->shape.copy == 0) {
                    gpt_real *values = brought(self, held->array[array] + entry->start,
                                               entry->shape.numel, GPT_TYPE);
                    stored->bad |= values == NULL;
                    if (values != NULL) {
                        move_piece(stored, entry, array, 0, entry->shape.numel, values);
                    }
                }
            }
        }
    }
}

/* Fills the head of a checkpoint with everything that must be the same when a run is resumed. */
static void head_of(const trainer *self, int64_t *head)
{
    const gpt_config *config = &self->config;
    int n = 0;
    memset(head, 0, HEAD * 8);
    memcpy(head, "dpar-gpt", 8);
    head[1] = 1; /* reveals another byte order */
    head[2] = (int64_t)sizeof(gpt_real);
    n = 3;
    head[n++] = config->blocks;
    head[n++] = config->width;
    head[n++] = config->heads;
    head[n++] = config->groups;
    head[n++] = config->hidden;
    head[n++] = config->length;
    head[n++] = config->tied;
    head[n++] = config->gelu;
    head[n++] = config->layer_norm;
    head[n++] = config->experts;
    head[n++] = (int64_t)self->options->batch;
    head[n++] = (int64_t)self->options->seed;
    head[n++] = (int64_t)self->options->hash;
    head[n] = self->whole; /* HEAD - 3: skipped steps, HEAD - 2: steps, HEAD - 1: checksum */
}

/* The worst exit code of all ranks. Collective. */
static int worst(dpar_comm *comm, int bad)
{
    int32_t all = bad;
    return dpar_all_reduce(comm, &all, &all, 1, DPAR_I32, DPAR_MAX, NULL) != DPAR_OK ? 1 : all;
}

static int anyone(dpar_comm *comm, int bad)
{
    return worst(comm, bad != 0);
}

/* Writes a checkpoint. All ranks write into one new file, which replaces the old one when it is
 * complete. Returns 1 after a message on failure. */
static int save(trainer *self, int64_t steps)
{
    int64_t head[HEAD];
    char name[1100];
    image stored;
    int bad;
    memset(&stored, 0, sizeof stored);
    snprintf(name, sizeof name, "%s.new", self->options->save);
    head_of(self, head);
    head[HEAD - 3] = self->skipped;
    head[HEAD - 2] = steps;
    if (self->world->rank == 0) {
        stored.file = fopen(name, "wb");
        stored.bad = stored.file == NULL || fwrite(head, 8, HEAD, stored.file) != HEAD;
        stored.bad |= stored.file != NULL && fclose(stored.file) != 0;
    }
    bad = anyone(self->world, stored.bad);
    stored.file = bad ? NULL : fopen(name, "r+b");
    stored.bad = stored.file == NULL;
    if (!stored.bad) {
        write_all(self, &stored, ARRAYS);
        stored.bad |= fclose(stored.file) != 0;
    }
    bad = anyone(self->world, stored.bad) ||
          dpar_all_reduce(self->world, &stored.sum, &stored.sum, 1, DPAR_U64, DPAR_SUM, NULL) !=
              DPAR_OK;
    if (self->world->rank == 0 && !bad) {
        head[HEAD - 1] = (int64_t)mix(stored.sum + (uint64_t)self->skipped, (uint64_t)steps);
        stored.file = fopen(name, "r+b");
        bad = stored.file == NULL || fwrite(head, 8, HEAD, stored.file) != HEAD;
        bad |= stored.file != NULL && fclose(stored.file) != 0;
        bad = bad || rename(name, self->options->save) != 0;
    }
    if (anyone(self->world, bad)) {
        (void)complain("the checkpoint could not be written:", self->options->save);
        return 1;
    }
    return 0;
}

/* Checks that a checkpoint is complete and fits this model, and reads its numbers of steps. Returns
 * NULL, or what is wrong. */
static const char *inspect(const trainer *self, FILE *file, int64_t *steps, int64_t *skipped)
{
    static const char *const what[] = {"blocks", "width",  "heads", "groups",     "hidden",
                                       "length", "untied", "gelu",  "layer-norm", "experts",
                                       "batch",  "seed",   "text",  "parameters"};
    static char text[200];
    int64_t head[HEAD], own[HEAD], i, all;
    uint64_t sum = 0;
    gpt_real number;
    if (file == NULL || fread(head, 8, HEAD, file) != HEAD || memcmp(head, "dpar-gpt", 8) != 0 ||
        head[1] != 1) {
        return "no checkpoint of this program";
    }
    head_of(self, own);
    for (i = 2; i < 17; i++) {
        if (head[i] != own[i]) {
            snprintf(text, sizeof text, "the checkpoint differs in %s: %lld there, %lld here; in",
                     i == 2 ? "bytes of a number" : what[i - 3], (long long)head[i],
                     (long long)own[i]);
            return text;
        }
    }
    all = ARRAYS * self->whole;
    for (i = 0; i < all && fread(&number, sizeof number, 1, file) == 1; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &number, sizeof number);
        sum += mix(bits, (uint64_t)i);
    }
    if (i < all) {
        snprintf(text, sizeof text, "truncated: %lld of %lld numbers are in", (long long)i,
                 (long long)all);
        return text;
    }
    *steps = head[HEAD - 2];
    *skipped = head[HEAD - 3];
    if ((int64_t)mix(sum + (uint64_t)*skipped, (uint64_t)*steps) != head[HEAD - 1]) {
        return "damaged: the checksum differs in";
    }
    return NULL;
}

typedef struct reading {
    image stored;
    trainer *self;
    const store *held;
} reading;

/* A callback of dpar_fsdp_load: reads elements of a unit. */
static dpar_status read_shard(void *ctx, int32_t array, int32_t unit, int32_t rank, int64_t first,
                              int64_t count, void *to)
{
    reading *source = (reading *)ctx;
    gpt_real *values = stage(source->self, count);
    int32_t type;
    (void)rank; /* the file does not depend on who wrote it */
    if (values == NULL) {
        return DPAR_E_MEMORY;
    }
    memset(values, 0, (size_t)count * sizeof *values); /* padding has no values in the file */
    move_unit(&source->stored, source->held, array, unit, first, count, values);
    (void)dpar_fsdp_state(source->held->fsdp, array, unit, NULL, &type);
    bring(source->self, to, values, count, type);
    return source->stored.bad ? DPAR_E_SYSTEM : DPAR_OK;
}

/* Reads the checkpoint of --resume. Returns 0, or an exit code. */
static int resume(trainer *self)
{
    FILE *file = fopen(self->options->resume, "rb");
    const char *wrong = NULL;
    reading source;
    int64_t steps[2] = {0, 0}; /* in all, and those that were skipped */
    int32_t k, array, i;
    dpar_status st = DPAR_OK;
    if (self->world->rank == 0 || file == NULL) {
        wrong = file == NULL ? strerror(errno) : inspect(self, file, &steps[0], &steps[1]);
        if (wrong != NULL) {
            (void)complain(wrong, self->options->resume);
        }
    }
    memset(&source, 0, sizeof source);
    source.self = self;
    source.stored.file = file;
    source.stored.whole = self->whole;
    if (anyone(self->world, wrong != NULL) ||
        dpar_broadcast(self->world, steps, 2, DPAR_I64, 0, NULL) != DPAR_OK) {
        return 2;
    }
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        store *held = &self->stores[k];
        source.held = held;
        st = held->fsdp != NULL ? dpar_fsdp_load(held->fsdp, 1, steps[0] - steps[1], read_shard,
                                                 &source, &self->why)
                                : st;
        held->steps = steps[0] - steps[1];
        for (array = 0; array < ARRAYS && held->ddp != NULL; array++) {
            for (i = 0; i < held->params; i++) {
                const parameter *entry = &held->of[i];
                gpt_real *values = stage(self, entry->shape.numel + 1);
                if (values == NULL) {
                    source.stored.bad = 1;
                    continue;
                }
                memset(values, 0, (size_t)entry->shape.numel * sizeof *values);
                move_piece(&source.stored, entry, array, 0, entry->shape.numel, values);
                gpt_put(self->model, held->array[array] + entry->start, values,
                        entry->shape.numel * (int64_t)sizeof *values);
            }
        }
    }
    fclose(file);
    self->first_step = steps[0];
    self->skipped = steps[1];
    return anyone(self->world, st != DPAR_OK || source.stored.bad);
}

/* Gathers all parameters, whole, on the first rank of the world. Returns 1 on failure. */
static int gather_whole(trainer *self, result *results)
{
    const size_t most = (size_t)self->layers * GPT_SLOTS;
    int32_t layer, slot;
    gpt_parameter shape;
    image stored;
    memset(&stored, 0, sizeof stored);
    stored.memory = (gpt_real *)calloc((size_t)self->whole + 1, sizeof *stored.memory);
    results->shape = (part *)calloc(most, sizeof *results->shape);
    if (anyone(self->world, stored.memory == NULL || results->shape == NULL)) {
        return 1;
    }
    for (layer = 0; layer < self->layers; layer++) {
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            if (gpt_parameter_of(self->model, layer, slot, &shape) && !shape.tied) {
                memcpy(results->shape[results->parts].name, shape.name, sizeof shape.name);
                results->shape[results->parts++].count = whole_count(&shape);
            }
        }
    }
    write_all(self, &stored, 1); /* the parts of other ranks stay 0, so that the sum is the whole */
    results->whole = stored.memory;
    return dpar_reduce(self->world, stored.memory, stored.memory, self->whole, GPT_TYPE, DPAR_SUM,
                       0, NULL) != DPAR_OK;
}

#endif
