/* SPDX-License-Identifier: MIT-0 */
/* train_trace - records the actions of train_gpt's last step, for --trace. train_gpt.c includes it
 * after the trainer. On the host the pipeline records the times. On a device the host only enqueues
 * work, so that events around each action of this rank tell when the device did it. They are
 * recorded in the last step only, without a wait in between, and read when it is over.
 *
 * A message runs on the stream of dpar_nccl, in the order in which it was posted. It therefore
 * began when that stream had finished what was posted before the last callback ended, and the
 * compute stream had finished that callback. It ended before the event that the next callback
 * records there, and before the callback that waits for it. Messages that are posted between two
 * callbacks share both times. The clock of each rank begins after a barrier of the pipeline's
 * ranks. */

#ifdef GPT_CUDA
enum { TRACE_BEGAN, TRACE_ENDED, TRACE_BEFORE, TRACE_BEHIND, TRACE_EVENTS };

/* Events in the order of this rank's list: [0] is the beginning of the step, [1 + k] action k, and
 * the last one the end of the list. BEGAN and ENDED are on the compute stream, BEFORE and BEHIND on
 * that of messages. */
typedef struct trace {
    cudaEvent_t (*of)[TRACE_EVENTS];
    int64_t actions, next;
    const dpar_action *action;
    int on;
} trace;

static void trace_mark(trainer *t, int64_t k, int which)
{
    cudaEvent_t event = t->trace->of[k + 1][which];
    right(cudaEventRecord(event,
                          which < TRACE_BEFORE ? gpt_stream(t->g) : dpar_nccl_stream(t->world)));
}

static int trace_message(const dpar_action *a)
{
    return a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_RECV_F ||
           a->kind == DPAR_ACTION_SEND_B || a->kind == DPAR_ACTION_RECV_B;
}

static dpar_status trace_open(trainer *t)
{
    const int64_t at = t->list.begin[t->pp->rank];
    int64_t k;
    int which;
    trace *r;
    if (t->s->trace == NULL) {
        return DPAR_OK;
    }
    r = t->trace = (trace *)calloc(1, sizeof *r);
    if (r == NULL) {
        return DPAR_E_MEMORY;
    }
    r->actions = t->list.begin[t->pp->rank + 1] - at;
    r->action = t->list.action + at;
    r->of = (cudaEvent_t(*)[TRACE_EVENTS])calloc((size_t)r->actions + 2, sizeof *r->of);
    if (r->of == NULL) {
        return DPAR_E_MEMORY;
    }
    for (k = 0; k < r->actions + 2; k++) {
        for (which = 0; which < TRACE_EVENTS; which++) {
            right(cudaEventCreate(&r->of[k][which]));
        }
    }
    return DPAR_OK;
}

static void trace_close(trainer *t)
{
    trace *r = t->trace;
    int64_t k;
    int which;
    for (k = 0; r != NULL && r->of != NULL && k < r->actions + 2; k++) {
        for (which = 0; which < TRACE_EVENTS; which++) {
            right(cudaEventDestroy(r->of[k][which]));
        }
    }
    if (r != NULL) {
        free(r->of);
    }
    free(r);
}

/* Called before the pipeline runs: begins to record in the last step. */
static dpar_status trace_begin(trainer *t, int64_t step)
{
    trace *r = t->trace;
    dpar_status st;
    if (r == NULL || step != (int64_t)t->s->steps - 1) {
        return DPAR_OK;
    }
    st = t->mem.wait(t->mem.ctx);
    if (st == DPAR_OK) {
        st = dpar_barrier(t->pp, NULL);
    }
    r->on = 1;
    r->next = 0;
    trace_mark(t, -1, TRACE_ENDED);
    trace_mark(t, -1, TRACE_BEHIND);
    return st;
}

/* Called after the pipeline. */
static void trace_end(trainer *t)
{
    if (t->trace != NULL && t->trace->on) {
        trace_mark(t, t->trace->actions, TRACE_BEGAN);
        trace_mark(t, t->trace->actions, TRACE_BEFORE);
        t->trace->on = 0;
    }
}

/* Runs a callback between its events. Actions are called in the order of the list. */
static dpar_status traced(trainer *t, const dpar_stage_task *task, dpar_why *why,
                          dpar_stage_callback work)
{
    trace *r = t->trace;
    const dpar_action *a = &task->action;
    dpar_status st;
    if (r == NULL || !r->on) {
        return work(t, task, why);
    }
    while (r->next < r->actions &&
           (r->action[r->next].kind != a->kind || r->action[r->next].stage != a->stage ||
            r->action[r->next].micro_batch != a->micro_batch)) {
        r->next++;
    }
    trace_mark(t, r->next, TRACE_BEFORE);
    trace_mark(t, r->next, TRACE_BEGAN);
    st = work(t, task, why);
    trace_mark(t, r->next, TRACE_ENDED);
    trace_mark(t, r->next++, TRACE_BEHIND);
    return st;
}

static dpar_status traced_forward(void *t, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)t, task, why, on_forward);
}

static dpar_status traced_backward(void *t, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)t, task, why, on_backward);
}

static dpar_status traced_input(void *t, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)t, task, why, on_input);
}

static dpar_status traced_weight(void *t, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)t, task, why, on_weight);
}

static dpar_status traced_reduce(void *t, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)t, task, why, on_reduce);
}

static void trace_callbacks(dpar_pipeline_desc *o)
{
    o->forward = traced_forward;
    o->backward = traced_backward;
    o->input = traced_input;
    o->weight = traced_weight;
    o->reduce = traced_reduce;
}

/* Nanoseconds since the step began. */
static int64_t trace_time(const trace *r, int64_t k, int which)
{
    float ms = 0;
    right(cudaEventElapsedTime(&ms, r->of[0][TRACE_ENDED], r->of[k + 1][which]));
    return (int64_t)((double)ms * 1e6);
}

/* The action that waits for what action k receives, or `actions` if k receives nothing. */
static int64_t trace_waits(const trace *r, int64_t k)
{
    const dpar_action *a = &r->action[k];
    const int forward = a->kind == DPAR_ACTION_RECV_F,
              receives = forward || a->kind == DPAR_ACTION_RECV_B;
    while (receives && ++k < r->actions) {
        const dpar_action *b = &r->action[k];
        if (b->stage == a->stage && b->micro_batch == a->micro_batch &&
            (forward ? b->kind == DPAR_ACTION_FORWARD
                     : b->kind == DPAR_ACTION_BACKWARD || b->kind == DPAR_ACTION_INPUT)) {
            return k > 0 && r->action[k - 1].joined ? k - 1 : k; /* a pair waits for both */
        }
    }
    return r->actions;
}

/* Computes the times of this rank's actions. Messages and idle actions are between the callbacks
 * before and after them. */
static void trace_read(const trace *r, int64_t *start, int64_t *end)
{
    int64_t k, last = -1, next;
    for (k = 0; k < r->actions; k++) {
        if (!trace_message(&r->action[k]) && r->action[k].kind != DPAR_ACTION_IDLE) {
            start[k] = trace_time(r, k, TRACE_BEGAN);
            end[k] = trace_time(r, k, TRACE_ENDED);
            last = k;
            continue;
        }
        for (next = k; next < r->actions && (trace_message(&r->action[next]) ||
                                             r->action[next].kind == DPAR_ACTION_IDLE);
             next++) {
        }
        start[k] = larger(trace_time(r, last, TRACE_ENDED), trace_time(r, last, TRACE_BEHIND));
        end[k] = trace_time(r, next, TRACE_BEFORE);
        next = trace_waits(r, k);
        if (next < r->actions && end[k] > trace_time(r, next, TRACE_BEGAN)) {
            end[k] = trace_time(r, next, TRACE_BEGAN);
        }
        end[k] = larger(start[k], end[k]);
        if (r->action[k].kind == DPAR_ACTION_IDLE) {
            end[k] = start[k];
        }
    }
}

/* Gathers the times of all ranks on the first one of the pipeline. */
static dpar_status trace_times(trainer *t, int64_t *start, int64_t *end)
{
    const trace *r = t->trace;
    int64_t *own = (int64_t *)calloc((size_t)r->actions * 2 + 1, sizeof *own);
    int64_t *counts = (int64_t *)calloc((size_t)t->pp->size, sizeof *counts);
    dpar_status st = own != NULL && counts != NULL ? DPAR_OK : DPAR_E_MEMORY;
    int32_t k;
    for (k = 0; k < t->pp->size && counts != NULL; k++) {
        counts[k] = t->list.begin[k + 1] - t->list.begin[k];
    }
    if (st == DPAR_OK) {
        st = t->mem.wait(t->mem.ctx);
        right(cudaStreamSynchronize(dpar_nccl_stream(t->world)));
        trace_read(r, own, own + r->actions);
        if (st == DPAR_OK) {
            st = dpar_gather_v(t->pp, own, r->actions, start, counts, t->list.begin, DPAR_I64, 0,
                               NULL);
        }
        if (st == DPAR_OK) {
            st = dpar_gather_v(t->pp, own + r->actions, r->actions, end, counts, t->list.begin,
                               DPAR_I64, 0, NULL);
        }
    }
    free(own);
    free(counts);
    return st;
}
#else
static dpar_status trace_open(trainer *t)
{
    const size_t actions =
        (size_t)(t->list.begin[t->pp->rank + 1] - t->list.begin[t->pp->rank]) + 1;
    if (t->s->trace != NULL) {
        t->began = (int64_t *)calloc(actions, sizeof *t->began);
        t->ended = (int64_t *)calloc(actions, sizeof *t->ended);
        if (t->began == NULL || t->ended == NULL) {
            return DPAR_E_MEMORY;
        }
    }
    return DPAR_OK;
}

static void trace_close(trainer *t)
{
    free(t->began);
    free(t->ended);
}

static dpar_status trace_begin(trainer *t, int64_t step)
{
    (void)t;
    (void)step;
    return DPAR_OK;
}

static void trace_end(trainer *t)
{
    (void)t;
}

static void trace_callbacks(dpar_pipeline_desc *o)
{
    (void)o;
}

static dpar_status trace_times(trainer *t, int64_t *start, int64_t *end)
{
    return dpar_pipeline_times(t->pipe, start, end, &t->why);
}
#endif

/* Writes the last step of the first pipeline to the file of --trace. Returns 1 on failure. */
static int write_trace(trainer *t)
{
    const int first = t->world->rank == 0;
    const int64_t actions = t->list.begin[t->list.ranks];
    const int mine = t->in_model.data->rank == 0 && t->at[4] == 0;
    int64_t *times = (int64_t *)calloc((size_t)actions * 2, sizeof *times);
    size_t room = (size_t)actions * 600 + 4096;
    char *text = (char *)malloc(room);
    int bad = times == NULL || text == NULL;
    dpar_schedule_draw_desc g;
    dpar_text out;
    FILE *file;
    if (!mine || bad) {
        free(times);
        free(text);
        return bad;
    }
    bad = trace_times(t, times, times + actions) != DPAR_OK;
    memset(&g, 0, sizeof g);
    g.schedule = &t->list;
    g.start = times;
    g.end = times + actions;
    g.unit = 1000; /* ns to us */
    g.title = "train_gpt";
    dpar_text_init(&out, text, room);
    if (first && !bad) {
        bad = dpar_schedule_draw(&out, &g, DPAR_SCHEDULE_DRAW_TRACE, &t->why) != DPAR_OK ||
              out.used >= room;
        file = bad ? NULL : fopen(t->s->trace, "wb");
        bad = file == NULL || fwrite(text, 1, out.used, file) != out.used;
        bad |= file != NULL && fclose(file) != 0;
        if (bad) {
            (void)complain("the trace could not be written:", t->s->trace);
        }
    }
    free(times);
    free(text);
    return bad;
}
