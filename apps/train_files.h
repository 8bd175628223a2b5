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
static void move_run(image *m, int64_t at, int64_t count, gpt_real *values)
{
    int64_t i;
    if (m->file == NULL) {
        memcpy(m->memory + at, values, (size_t)count * sizeof *values);
        return;
    }
    m->bad |= fseek(m->file, (long)(HEAD * 8 + at * (int64_t)sizeof *values), SEEK_SET) != 0;
    if (!m->write) {
        m->bad |= fread(values, sizeof *values, (size_t)count, m->file) != (size_t)count;
        return;
    }
    m->bad |= fwrite(values, sizeof *values, (size_t)count, m->file) != (size_t)count;
    for (i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &values[i], sizeof *values);
        m->sum += mix(bits, (uint64_t)(at + i));
    }
}

/* Moves elements lo <= i < hi of this rank's piece of a parameter, row by row. */
static void move_piece(image *m, const parameter *q, int32_t array, int64_t lo, int64_t hi,
                       gpt_real *values)
{
    const gpt_parameter *p = &q->p;
    int64_t n[3] = {1, 1, 1}, w[3] = {1, 1, 1}, at[3] = {0, 0, 0};
    int32_t d;
    for (d = 0; d < p->dims; d++) {
        n[3 - p->dims + d] = p->local[d];
        w[3 - p->dims + d] = p->whole[d];
        at[3 - p->dims + d] = p->at[d];
    }
    while (lo < hi) {
        const int64_t column = lo % n[2], row = at[1] + lo / n[2] % n[1];
        const int64_t plane = at[0] + lo / (n[1] * n[2]), left = w[2] - at[2] - column;
        const int64_t run = hi - lo < n[2] - column ? hi - lo : n[2] - column;
        if (plane < w[0] && row < w[1] && left > 0) { /* otherwise it is padding */
            move_run(m,
                     array * m->whole + q->whole_at + (plane * w[1] + row) * w[2] + at[2] + column,
                     run < left ? run : left, values);
        }
        lo += run;
        values += run;
    }
}

/* Moves elements first to first + count - 1 of a unit. */
static void move_unit(image *m, const store *s, int32_t array, int32_t unit, int64_t first,
                      int64_t count, gpt_real *values)
{
    int32_t i;
    for (i = 0; i < s->params; i++) {
        const parameter *q = &s->of[i];
        const int64_t lo = larger(first, q->start), end = q->start + q->p.numel;
        const int64_t hi = first + count < end ? first + count : end;
        if (q->unit == unit && lo < hi && !(m->write && q->p.copy > 0)) {
            move_piece(m, q, array, lo - q->start, hi - q->start, values + (lo - first));
        }
    }
}

/* True if this rank writes its part of a store. If several ranks have the same, the first one does.
 */
static int writes(const trainer *t, int32_t k)
{
    const store *s = &t->stores[k];
    const dpar_comm *alike = s->ddp != NULL ? s->all : s->across;
    return s->params > 0 && (alike == NULL || alike->rank == 0) &&
           (k != TABLE || t->at[0] == t->list.rank_of[0]);
}

/* Writes this rank's part of the first arrays of all stores. */
static void write_all(trainer *t, image *m, int32_t arrays)
{
    int32_t k, a, u, i;
    m->whole = t->whole;
    m->write = 1;
    for (k = 0; k < STORES; k++) {
        store *s = &t->stores[k];
        for (a = 0; a < arrays && writes(t, k); a++) {
            for (u = 0; u < s->units && s->fsdp != NULL; u++) {
                int64_t count;
                int32_t type;
                void *state = dpar_fsdp_state(s->fsdp, a, u, &count, &type);
                gpt_real *shard = brought(t, state, count, type);
                m->bad |= shard == NULL && count > 0;
                if (shard != NULL) {
                    move_unit(m, s, a, u, count * s->shard->rank, count, shard);
                }
            }
            for (i = 0; i < s->params && s->ddp != NULL; i++) {
                const parameter *q = &s->of[i];
                if (q->p.copy == 0) {
                    gpt_real *values = brought(t, s->array[a] + q->start, q->p.numel, GPT_TYPE);
                    m->bad |= values == NULL;
                    if (values != NULL) {
                        move_piece(m, q, a, 0, q->p.numel, values);
                    }
                }
            }
        }
    }
}

/* Fills the head of a checkpoint with everything that must be the same when a run is resumed. */
static void head_of(const trainer *t, int64_t *head)
{
    const gpt_config *c = &t->config;
    int n = 0;
    memset(head, 0, HEAD * 8);
    memcpy(head, "dpar-gpt", 8);
    head[1] = 1; /* reveals another byte order */
    head[2] = (int64_t)sizeof(gpt_real);
    n = 3;
    head[n++] = c->blocks;
    head[n++] = c->width;
    head[n++] = c->heads;
    head[n++] = c->groups;
    head[n++] = c->hidden;
    head[n++] = c->length;
    head[n++] = c->tied;
    head[n++] = c->gelu;
    head[n++] = c->layer_norm;
    head[n++] = c->experts;
    head[n++] = (int64_t)t->s->batch;
    head[n++] = (int64_t)t->s->seed;
    head[n++] = (int64_t)t->s->hash;
    head[n] = t->whole; /* HEAD - 2: steps, HEAD - 1: checksum */
}

/* The worst exit code of all ranks. Collective. */
static int worst(dpar_comm *c, int bad)
{
    int32_t all = bad;
    return dpar_all_reduce(c, &all, &all, 1, DPAR_I32, DPAR_MAX, NULL) != DPAR_OK ? 1 : all;
}

static int anyone(dpar_comm *c, int bad)
{
    return worst(c, bad != 0);
}

/* Writes a checkpoint. All ranks write into one new file, which replaces the old one when it is
 * complete. Returns 1 after a message on failure. */
static int save(trainer *t, int64_t steps)
{
    int64_t head[HEAD];
    char name[1100];
    image m;
    int bad;
    memset(&m, 0, sizeof m);
    snprintf(name, sizeof name, "%s.new", t->s->save);
    head_of(t, head);
    head[HEAD - 2] = steps;
    if (t->world->rank == 0) {
        m.file = fopen(name, "wb");
        m.bad = m.file == NULL || fwrite(head, 8, HEAD, m.file) != HEAD;
        m.bad |= m.file != NULL && fclose(m.file) != 0;
    }
    bad = anyone(t->world, m.bad);
    m.file = bad ? NULL : fopen(name, "r+b");
    m.bad = m.file == NULL;
    if (!m.bad) {
        write_all(t, &m, ARRAYS);
        m.bad |= fclose(m.file) != 0;
    }
    bad = anyone(t->world, m.bad) ||
          dpar_all_reduce(t->world, &m.sum, &m.sum, 1, DPAR_U64, DPAR_SUM, NULL) != DPAR_OK;
    if (t->world->rank == 0 && !bad) {
        head[HEAD - 1] = (int64_t)mix(m.sum, (uint64_t)steps);
        m.file = fopen(name, "r+b");
        bad = m.file == NULL || fwrite(head, 8, HEAD, m.file) != HEAD;
        bad |= m.file != NULL && fclose(m.file) != 0;
        bad = bad || rename(name, t->s->save) != 0;
    }
    if (anyone(t->world, bad)) {
        (void)complain("the checkpoint could not be written:", t->s->save);
        return 1;
    }
    return 0;
}

/* Checks that a checkpoint is complete and fits this model. Returns NULL, or what is wrong. */
static const char *inspect(const trainer *t, FILE *file, int64_t *steps)
{
    static const char *const what[] = {"blocks", "width",  "heads", "groups",     "hidden",
                                       "length", "untied", "gelu",  "layer-norm", "experts",
                                       "batch",  "seed",   "text",  "parameters"};
    static char text[200];
    int64_t head[HEAD], own[HEAD], i, all;
    uint64_t sum = 0;
    gpt_real x;
    if (file == NULL || fread(head, 8, HEAD, file) != HEAD || memcmp(head, "dpar-gpt", 8) != 0 ||
        head[1] != 1) {
        return "no checkpoint of this program";
    }
    head_of(t, own);
    for (i = 2; i < 17; i++) {
        if (head[i] != own[i]) {
            snprintf(text, sizeof text, "the checkpoint differs in %s: %lld there, %lld here; in",
                     i == 2 ? "bytes of a number" : what[i - 3], (long long)head[i],
                     (long long)own[i]);
            return text;
        }
    }
    all = ARRAYS * t->whole;
    for (i = 0; i < all && fread(&x, sizeof x, 1, file) == 1; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &x, sizeof x);
        sum += mix(bits, (uint64_t)i);
    }
    if (i < all) {
        snprintf(text, sizeof text, "truncated: %lld of %lld numbers are in", (long long)i,
                 (long long)all);
        return text;
    }
    *steps = head[HEAD - 2];
    if ((int64_t)mix(sum, (uint64_t)*steps) != head[HEAD - 1]) {
        return "damaged: the checksum differs in";
    }
    return NULL;
}

typedef struct reading {
    image m;
    trainer *t;
    const store *s;
} reading;

/* A callback of dpar_fsdp_load: reads elements of a unit. */
static dpar_status read_shard(void *ctx, int32_t array, int32_t u, int32_t rank, int64_t first,
                              int64_t count, void *to)
{
    reading *r = (reading *)ctx;
    gpt_real *values = stage(r->t, count);
    int32_t type;
    (void)rank; /* the file does not depend on who wrote it */
    if (values == NULL) {
        return DPAR_E_MEMORY;
    }
    memset(values, 0, (size_t)count * sizeof *values); /* padding has no values in the file */
    move_unit(&r->m, r->s, array, u, first, count, values);
    (void)dpar_fsdp_state(r->s->fsdp, array, u, NULL, &type);
    bring(r->t, to, values, count, type);
    return r->m.bad ? DPAR_E_SYSTEM : DPAR_OK;
}

/* Reads the checkpoint of --resume. Returns 0, or an exit code. */
static int resume(trainer *t)
{
    FILE *file = fopen(t->s->resume, "rb");
    const char *wrong = NULL;
    reading r;
    int64_t steps = 0;
    int32_t k, a, i;
    dpar_status st = DPAR_OK;
    if (t->world->rank == 0 || file == NULL) {
        wrong = file == NULL ? strerror(errno) : inspect(t, file, &steps);
        if (wrong != NULL) {
            (void)complain(wrong, t->s->resume);
        }
    }
    memset(&r, 0, sizeof r);
    r.t = t;
    r.m.file = file;
    r.m.whole = t->whole;
    if (anyone(t->world, wrong != NULL) ||
        dpar_broadcast(t->world, &steps, 1, DPAR_I64, 0, NULL) != DPAR_OK) {
        return 2;
    }
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        store *s = &t->stores[k];
        r.s = s;
        st = s->fsdp != NULL ? dpar_fsdp_load(s->fsdp, 1, steps, read_shard, &r, &t->why) : st;
        s->steps = steps;
        for (a = 0; a < ARRAYS && s->ddp != NULL; a++) {
            for (i = 0; i < s->params; i++) {
                const parameter *q = &s->of[i];
                gpt_real *values = stage(t, q->p.numel + 1);
                if (values == NULL) {
                    r.m.bad = 1;
                    continue;
                }
                memset(values, 0, (size_t)q->p.numel * sizeof *values);
                move_piece(&r.m, q, a, 0, q->p.numel, values);
                gpt_put(t->g, s->array[a] + q->start, values, q->p.numel * (int64_t)sizeof *values);
            }
        }
    }
    fclose(file);
    t->first_step = steps;
    return anyone(t->world, st != DPAR_OK || r.m.bad);
}

/* Gathers all parameters, whole, on the first rank of the world. Returns 1 on failure. */
static int gather_whole(trainer *t, result *r)
{
    const size_t most = (size_t)t->layers * GPT_SLOTS;
    int32_t layer, slot;
    gpt_parameter p;
    image m;
    memset(&m, 0, sizeof m);
    m.memory = (gpt_real *)calloc((size_t)t->whole + 1, sizeof *m.memory);
    r->shape = (part *)calloc(most, sizeof *r->shape);
    if (anyone(t->world, m.memory == NULL || r->shape == NULL)) {
        return 1;
    }
    for (layer = 0; layer < t->layers; layer++) {
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            if (gpt_parameter_of(t->g, layer, slot, &p) && !p.tied) {
                memcpy(r->shape[r->parts].name, p.name, sizeof p.name);
                r->shape[r->parts++].count = whole_count(&p);
            }
        }
    }
    write_all(t, &m, 1); /* the parts of other ranks stay 0, so that the sum is the whole */
    r->whole = m.memory;
    return dpar_reduce(t->world, m.memory, m.memory, t->whole, GPT_TYPE, DPAR_SUM, 0, NULL) !=
           DPAR_OK;
}

#endif
