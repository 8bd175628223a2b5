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

static void trace_mark(trainer *self, int64_t k, int which)
{
    cudaEvent_t event = self->trace->of[k + 1][which];
    right(cudaEventRecord(event, which < TRACE_BEFORE ? gpt_stream(self->model)
                                                      : dpar_nccl_stream(self->world)));
}

/* True if a callback runs for the action, which is neither a message nor idle. */
static int trace_computes(const dpar_action *action)
{
    switch (action->kind) {
    case DPAR_ACTION_SEND_F:
    case DPAR_ACTION_RECV_F:
    case DPAR_ACTION_SEND_B:
    case DPAR_ACTION_RECV_B:
    case DPAR_ACTION_IDLE: return 0;
    default: return 1;
    }
}

static dpar_status trace_open(trainer *self)
{
    const int64_t at = self->list.begin[self->pp->rank];
    int64_t k;
    int which;
    trace *record;
    if (self->options->trace == NULL) {
        return DPAR_OK;
    }
    record = self->trace = (trace *)calloc(1, sizeof *record);
    if (record == NULL) {
        return DPAR_E_MEMORY;
    }
    record->actions = self->list.begin[self->pp->rank + 1] - at;
    record->action = self->list.action + at;
    record->of =
        (cudaEvent_t(*)[TRACE_EVENTS])calloc((size_t)record->actions + 2, sizeof *record->of);
    if (record->of == NULL) {
        return DPAR_E_MEMORY;
    }
    for (k = 0; k < record->actions + 2; k++) {
        for (which = 0; which < TRACE_EVENTS; which++) {
            right(cudaEventCreate(&record->of[k][which]));
        }
    }
    return DPAR_OK;
}

static void trace_close(trainer *self)
{
    trace *record = self->trace;
    int64_t k;
    int which;
    for (k = 0; record != NULL && record->of != NULL && k < record->actions + 2; k++) {
        for (which = 0; which < TRACE_EVENTS; which++) {
            right(cudaEventDestroy(record->of[k][which]));
        }
    }
    if (record != NULL) {
        free(record->of);
    }
    free(record);
}

/* Called before the pipeline runs: begins to record in the last step. */
static dpar_status trace_begin(trainer *self, int64_t step)
{
    trace *record = self->trace;
    dpar_status st;
    if (record == NULL || step != (int64_t)self->options->steps - 1) {
        return DPAR_OK;
    }
    st = self->mem.wait(self->mem.ctx);
    if (st == DPAR_OK) {
        st = dpar_barrier(self->pp, NULL);
    }
    record->on = 1;
    record->next = 0;
    trace_mark(self, -1, TRACE_ENDED);
    trace_mark(self, -1, TRACE_BEHIND);
    return st;
}

/* Called after the pipeline. */
static void trace_end(trainer *self)
{
    if (self->trace != NULL && self->trace->on) {
        trace_mark(self, self->trace->actions, TRACE_BEGAN);
        trace_mark(self, self->trace->actions, TRACE_BEFORE);
        self->trace->on = 0;
    }
}

/* Runs a callback between its events. Actions are called in the order of the list. */
static dpar_status traced(trainer *self, const dpar_stage_task *task, dpar_why *why,
                          dpar_stage_callback work)
{
    trace *record = self->trace;
    const dpar_action *action = &task->action;
    dpar_status st;
    if (record == NULL || !record->on) {
        return work(self, task, why);
    }
    while (record->next < record->actions &&
           (record->action[record->next].kind != action->kind ||
            record->action[record->next].stage != action->stage ||
            record->action[record->next].micro_batch != action->micro_batch)) {
        record->next++;
    }
    trace_mark(self, record->next, TRACE_BEFORE);
    trace_mark(self, record->next, TRACE_BEGAN);
    st = work(self, task, why);
    trace_mark(self, record->next, TRACE_ENDED);
    trace_mark(self, record->next++, TRACE_BEHIND);
    return st;
}

static dpar_status traced_forward(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)ctx, task, why, on_forward);
}

static dpar_status traced_backward(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)ctx, task, why, on_backward);
}

static dpar_status traced_input(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)ctx, task, why, on_input);
}

static dpar_status traced_weight(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)ctx, task, why, on_weight);
}

static dpar_status traced_reduce(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return traced((trainer *)ctx, task, why, on_reduce);
}

static void trace_callbacks(dpar_pipeline_desc *desc)
{
    desc->forward = traced_forward;
    desc->backward = traced_backward;
    desc->input = traced_input;
    desc->weight = traced_weight;
    desc->reduce = traced_reduce;
}

/* Nanoseconds since the step began. */
static int64_t trace_time(const trace *record, int64_t k, int which)
{
    float ms = 0;
    right(cudaEventElapsedTime(&ms, record->of[0][TRACE_ENDED], record->of[k + 1][which]));
    return (int64_t)((double)ms * 1e6);
}

/* The action that waits for what action k receives, or `actions` if k receives nothing. */
static int64_t trace_waits(const trace *record, int64_t k)
{
    const dpar_action *action = &record->action[k];
    const int forward = action->kind == DPAR_ACTION_RECV_F;
    const int receives = forward || action->kind == DPAR_ACTION_RECV_B;
    for (k++; receives && k < record->actions; k++) {
        const dpar_action *other = &record->action[k];
        if (other->stage == action->stage && other->micro_batch == action->micro_batch &&
            (forward ? other->kind == DPAR_ACTION_FORWARD
                     : other->kind == DPAR_ACTION_BACKWARD || other->kind == DPAR_ACTION_INPUT)) {
            return k > 0 && record->action[k - 1].joined ? k - 1 : k; /* a pair waits for both */
        }
    }
    return record->actions;
}

/* Computes the times of this rank's actions. Messages and idle actions are between the callbacks
 * before and after them. */
static void trace_read(const trace *record, int64_t *start, int64_t *end)
{
    int64_t k, last = -1, next;
    for (k = 0; k < record->actions; k++) {
        if (trace_computes(&record->action[k])) {
            start[k] = trace_time(record, k, TRACE_BEGAN);
            end[k] = trace_time(record, k, TRACE_ENDED);
            last = k;
            continue;
        }
        next = k;
        while (next < record->actions && !trace_computes(&record->action[next])) {
            next++;
        }
        start[k] =
            larger(trace_time(record, last, TRACE_ENDED), trace_time(record, last, TRACE_BEHIND));
        end[k] = trace_time(record, next, TRACE_BEFORE);
        next = trace_waits(record, k);
        if (next < record->actions && end[k] > trace_time(record, next, TRACE_BEGAN)) {
            end[k] = trace_time(record, next, TRACE_BEGAN);
        }
        end[k] = larger(start[k], end[k]);
        if (record->action[k].kind == DPAR_ACTION_IDLE) {
            end[k] = start[k];
        }
    }
}

/* Gathers the times of all ranks on the first one of the pipeline. */
static dpar_status trace_times(trainer *self, int64_t *start, int64_t *end)
{
    const trace *record = self->trace;
    int64_t *own = (int64_t *)calloc((size_t)record->actions * 2 + 1, sizeof *own);
    int64_t *counts = (int64_t *)calloc((size_t)self->pp->size, sizeof *counts);
    dpar_status st = own != NULL && counts != NULL ? DPAR_OK : DPAR_E_MEMORY;
    int32_t k;
    for (k = 0; k < self->pp->size && counts != NULL; k++) {
        counts[k] = self->list.begin[k + 1] - self->list.begin[k];
    }
    if (st == DPAR_OK) {
        st = self->mem.wait(self->mem.ctx);
        right(cudaStreamSynchronize(dpar_nccl_stream(self->world)));
        trace_read(record, own, own + record->actions);
        if (st == DPAR_OK) {
            st = dpar_gather_v(self->pp, own, record->actions, start, counts, self->list.begin,
                               DPAR_I64, 0, NULL);
        }
        if (st == DPAR_OK) {
            st = dpar_gather_v(self->pp, own + record->actions, record->actions, end, counts,
                               self->list.begin, DPAR_I64, 0, NULL);
        }
    }
    free(own);
    free(counts);
    return st;
}
#else
static dpar_status trace_open(trainer *self)
{
    const size_t actions =
        (size_t)(self->list.begin[self->pp->rank + 1] - self->list.begin[self->pp->rank]) + 1;
    if (self->options->trace != NULL) {
        self->began = (int64_t *)calloc(actions, sizeof *self->began);
        self->ended = (int64_t *)calloc(actions, sizeof *self->ended);
        if (self->began == NULL || self->ended == NULL) {
            return DPAR_E_MEMORY;
        }
    }
    return DPAR_OK;
}

static void trace_close(trainer *self)
{
    free(self->began);
    free(self->ended);
}

static dpar_status trace_begin(trainer *self, int64_t step)
{
    (void)self;
    (void)step;
    return DPAR_OK;
}

static void trace_end(trainer *self)
{
    (void)self;
}

static void trace_callbacks(dpar_pipeline_desc *desc)
{
    (void)desc;
}

static dpar_status trace_times(trainer *self, int64_t *start, int64_t *end)
{
    return dpar_pipeline_times(self->pipe, start, end, &self->why);
}
#endif

/* Writes the last step of the first pipeline to the file of --trace. Returns 1 on failure. */
static int write_trace(trainer *self)
{
    const int first = self->world->rank == 0;
    const int64_t actions = self->list.begin[self->list.ranks];
    const int mine = self->in_model.data->rank == 0 && self->at[4] == 0;
    int64_t *times = (int64_t *)calloc((size_t)actions * 2, sizeof *times);
    size_t room = (size_t)actions * 600 + 4096;
    char *text = (char *)malloc(room);
    int bad = times == NULL || text == NULL;
    dpar_schedule_draw_desc desc;
    dpar_text out;
    FILE *file;
    if (!mine || bad) {
        free(times);
        free(text);
        return bad;
    }
    bad = trace_times(self, times, times + actions) != DPAR_OK;
    memset(&desc, 0, sizeof desc);
    desc.schedule = &self->list;
    desc.start = times;
    desc.end = times + actions;
    desc.unit = 1000; /* ns to us */
    desc.title = "train_gpt";
    dpar_text_init(&out, text, room);
    if (first && !bad) {
        bad = dpar_schedule_draw(&out, &desc, DPAR_SCHEDULE_DRAW_TRACE, &self->why) != DPAR_OK ||
              out.used >= room;
        file = bad ? NULL : fopen(self->options->trace, "wb");
        bad = file == NULL || fwrite(text, 1, out.used, file) != out.used;
        bad |= file != NULL && fclose(file) != 0;
        if (bad) {
            (void)complain("the trace could not be written:", self->options->trace);
        }
    }
    free(times);
    free(text);
    return bad;
}
