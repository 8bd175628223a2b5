/* SPDX-License-Identifier: MIT-0 */
/* Proves schedules. Each action is first checked on its own, then against the earlier actions of
 * its rank. Then the set of all actions is checked. To find deadlocks the ranks run their lists as
 * far as possible under the rules of the transport. A step of one rank never disables a step of
 * another one. Therefore the order in which ranks advance does not decide whether they reach the
 * end, and one run is a proof. If the ranks get stuck, a cycle of ranks that wait for each other is
 * found and reported. */
#include "check.h"

#include "../base/base_private.h"
#include "action.h"
#include "needed_bytes.h"

/* Sets of kinds, with a bit for each kind. */
enum {
    DPARI_SET_F = 1 << DPAR_ACTION_FORWARD,
    DPARI_SET_B = 1 << DPAR_ACTION_BACKWARD,
    DPARI_SET_I = 1 << DPAR_ACTION_INPUT,
    DPARI_SET_W = 1 << DPAR_ACTION_WEIGHT,
    DPARI_SET_SENDS = (1 << DPAR_ACTION_SEND_F) | (1 << DPAR_ACTION_SEND_B),
    DPARI_SET_RECVS = (1 << DPAR_ACTION_RECV_F) | (1 << DPAR_ACTION_RECV_B),
    DPARI_SET_MESSAGES = DPARI_SET_SENDS | DPARI_SET_RECVS,
    DPARI_SET_SHARDING = (1 << DPAR_ACTION_UNSHARD) | (1 << DPAR_ACTION_RESHARD),
    DPARI_SET_OFFLOADS = (1 << DPAR_ACTION_OFFLOAD) | (1 << DPAR_ACTION_RELOAD),
    DPARI_SET_GRADIENT = DPARI_SET_B | DPARI_SET_I, /* they make the gradient of a stage's input */
    DPARI_SET_TRAINING = DPARI_SET_GRADIENT | DPARI_SET_W,
    DPARI_SET_COMPUTE = DPARI_SET_F | DPARI_SET_TRAINING | (1 << DPAR_ACTION_RECOMPUTE)
};
/* The state of a stage while its rank's list is read. */
enum {
    DPARI_STAGE_UNSHARDED = 1,
    DPARI_STAGE_REDUCED = 2,
    DPARI_STAGE_TRAINED = 4,
    DPARI_STAGE_WAITED = 8
};
enum { DPARI_NO_CHAIN = 65535 };

/* The actions of a stage and a micro-batch. */
typedef struct dpari_proof_cell {
    int32_t send[2]; /* SEND_F and SEND_B: first the number on its channel, then its index */
    uint16_t seen;   /* kinds in its rank's list */
    uint16_t done;   /* kinds that the run has completed */
} dpari_proof_cell;

/* A message in its queue. The record of the first message of a queue also describes the queue. */
typedef struct dpari_proof_link {
    int32_t mate;  /* the other end; after the transfer, the next message in `pending` */
    int32_t next;  /* the next message of the queue, or -1 */
    int32_t first; /* the first message of the queue */
    /* In the record of a queue's first message: the first message that was not transferred, or -1.
     * With EAGER, on the receiver's side: the number of messages in the buffer. */
    int32_t head;
} dpari_proof_link;

/* The position of a rank in its list. */
typedef struct dpari_proof_lane {
    int32_t at, end; /* the next action, and one past the last */
    int32_t queued;  /* 1 while the rank is in `ready` */
} dpari_proof_lane;

typedef struct dpari_proof {
    const dpar_schedule *s;
    dpar_why *why;
    dpari_proof_link *link; /* [actions]; NULL if messages only wait for their data */
    dpari_proof_cell *cell; /* [chain][micros] */
    dpari_proof_lane *lane; /* [ranks] */
    int32_t *ready;         /* [ranks], a stack of ranks that may be able to continue */
    int32_t *key;           /* [2 ranks], a counter or the last message of a queue */
    uint16_t *chain;        /* [micros], the chain that a micro-batch passes */
    uint8_t *stage;         /* [stages], DPARI_STAGE_x */
    uint32_t kinds;         /* the kinds of all actions */
    int32_t transport, room, ready_count;
    /* the first of a list of transferred messages whose successors may be next, or -1 */
    int32_t pending;
} dpari_proof;

/* ---- messages -------------------------------------------------------------------------------- */

/* Appends `form`, with `number` in place of '#', `action` in place of the first '@' and `other` in
 * place of the second. */
static void dpari_proof_words(dpar_text *text, const char *form, int64_t number,
                              const dpar_action *action, const dpar_action *other)
{
    for (; *form != 0; form++) {
        if (*form == '#') {
            dpari_text_int(text, number);
        } else if (*form == '@') {
            dpari_action_put(action, text);
            action = other;
        } else {
            dpari_text_char(text, *form);
        }
    }
}

/* Writes a message about actions of rank r or a peer, and a number. dpari_proof_say, _say_number
 * and _say_pair leave out what their messages do not contain. */
DPARI_STATIC_NOINLINE dpar_status dpari_proof_report(const dpari_proof *proof, int32_t r,
                                                     const dpar_action *action, const char *form,
                                                     int64_t number, const dpar_action *other)
{
    dpar_text t;
    if (proof->why != NULL) {
        dpari_text_why(&t, proof->why);
        dpar_text_put(&t, "rank "); /* not dpari_text_say, which takes more stack */
        dpari_text_int(&t, r);
        dpar_text_put(&t, ": ");
        dpari_proof_words(&t, form, number, action, other);
    }
    return DPAR_E_ARG;
}

/* Writes a message about an action: "rank 2: 1B3 is listed twice". */
static dpar_status dpari_proof_say(const dpari_proof *proof, int32_t r, const dpar_action *action,
                                   const char *form)
{
    return dpari_proof_report(proof, r, action, form, 0, NULL);
}

/* Writes a message about an action and a number: "rank 2: the stage of 1B3 is on rank 1". */
static dpar_status dpari_proof_say_number(const dpari_proof *proof, int32_t r,
                                          const dpar_action *action, const char *form,
                                          int64_t number)
{
    return dpari_proof_report(proof, r, action, form, number, NULL);
}

/* Writes a message about two actions: "rank 2: 1F3 comes after 1B3, which needs it". */
static dpar_status dpari_proof_say_pair(const dpari_proof *proof, int32_t r,
                                        const dpar_action *action, const char *form,
                                        const dpar_action *other)
{
    return dpari_proof_report(proof, r, action, form, 0, other);
}

/* Returns the smallest kind of a set. */
static int32_t dpari_proof_kind(uint32_t set)
{
    int32_t kind = 0;
    while (kind + 1 < DPAR_ACTION_COUNT && (set >> kind & 1) == 0) {
        kind++;
    }
    return kind;
}

/* ---- shape and memory ------------------------------------------------------------------------ */

static dpar_status dpari_proof_begins(const dpar_schedule *schedule, dpar_why *why)
{
    int32_t r;
    if (schedule->begin[0] != 0) {
        return dpari_wrong(why, "begin[0] is %ld; it must be 0", schedule->begin[0]);
    }
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[r + 1] < schedule->begin[r]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", r,
                               schedule->begin[r], schedule->begin[r + 1]);
        }
    }
    if (schedule->begin[schedule->ranks] >= INT32_MAX) {
        return dpari_wrong(why, "the schedule has %ld actions; at most 2147483646 can be checked",
                           schedule->begin[schedule->ranks]);
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_proof_shape(const dpar_schedule *schedule, dpar_why *why)
{
    if (schedule->ranks < 1 || schedule->ranks > DPAR_MAX_STAGES || schedule->stages < 1 ||
        schedule->stages > DPAR_MAX_STAGES) {
        return dpari_wrong(why, "the schedule has %d ranks and %d stages; 1 to 65535 are allowed",
                           schedule->ranks, schedule->stages);
    }
    if (schedule->chain < 1 || schedule->stages % schedule->chain != 0) {
        return dpari_wrong(why, "chains of %d stages do not divide %d stages", schedule->chain,
                           schedule->stages);
    }
    if (schedule->micro_batches < 1 || schedule->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_wrong(why, "the schedule has %d micro-batches; 1 to 65535 are allowed",
                           schedule->micro_batches);
    }
    if (schedule->slices < 1 || schedule->micro_batches % schedule->slices != 0) {
        return dpari_wrong(why, "slices of %d do not divide %d micro-batches", schedule->slices,
                           schedule->micro_batches);
    }
    return dpari_proof_begins(schedule, why);
}

/* Returns the number of cells, one for each stage of a chain and micro-batch, or 0 if there are
 * fewer actions than cells, because a correct schedule has a forward for each cell. */
DPARI_STATIC_NOINLINE int64_t dpari_proof_cells(const dpar_schedule *schedule)
{
    int64_t cells = (int64_t)schedule->chain * schedule->micro_batches;
    return cells <= schedule->begin[schedule->ranks] ? cells : 0;
}

/* Returns the bytes of all arrays, with `link` bytes for the link of each action, or -1 if the
 * shape is wrong. */
DPARI_STATIC_NOINLINE int64_t dpari_proof_size(const dpar_schedule *schedule, int64_t link)
{
    if (dpari_proof_shape(schedule, NULL) != DPAR_OK) {
        return -1;
    }
    return dpari_whole_words(link * schedule->begin[schedule->ranks] +
                             (int64_t)sizeof(dpari_proof_cell) * dpari_proof_cells(schedule) +
                             ((int64_t)sizeof(dpari_proof_lane) + 12) * schedule->ranks +
                             2 * (int64_t)schedule->micro_batches + schedule->stages);
}

DPARI_API int64_t dpari_schedule_check_bytes(const dpar_schedule *schedule,
                                             const dpar_schedule_check_desc *how)
{
    const int run = how != NULL && how->transport != DPAR_TRANSPORT_NONE;
    return dpari_proof_size(schedule, run ? (int64_t)sizeof(dpari_proof_link) : 0);
}

/* Places the arrays in mem and zeroes them. The shape of the schedule and the size of mem were
 * checked. */
static void dpari_proof_arrange(dpari_proof *proof, const dpar_schedule *schedule, int run,
                                void *mem, dpar_why *why)
{
    int64_t cells = dpari_proof_cells(schedule), links = run ? schedule->begin[schedule->ranks] : 0;
    int32_t r;
    dpari_zero(proof, sizeof(*proof));
    dpari_zero(mem,
               (size_t)dpari_proof_size(schedule, run ? (int64_t)sizeof(dpari_proof_link) : 0));
    proof->s = schedule;
    proof->why = why;
    proof->cell = (dpari_proof_cell *)(void *)((dpari_proof_link *)mem + links);
    proof->lane = (dpari_proof_lane *)(void *)(proof->cell + cells);
    proof->ready = (int32_t *)(void *)(proof->lane + schedule->ranks);
    proof->key = proof->ready + schedule->ranks;
    proof->chain = (uint16_t *)(void *)(proof->key + 2 * (int64_t)schedule->ranks);
    proof->stage = (uint8_t *)(void *)(proof->chain + schedule->micro_batches);
    proof->link = run ? (dpari_proof_link *)mem : NULL;
    proof->pending = -1;
    for (r = 0; r < schedule->micro_batches; r++) {
        proof->chain[r] = DPARI_NO_CHAIN;
    }
    for (r = 0; r < schedule->ranks; r++) {
        proof->lane[r].at = (int32_t)schedule->begin[r];
        proof->lane[r].end = (int32_t)schedule->begin[r + 1];
    }
}

/* ---- access ---------------------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE dpari_proof_cell *dpari_proof_at(const dpari_proof *proof, int32_t stage,
                                                       int32_t micro)
{
    return &proof->cell[(int64_t)(stage % proof->s->chain) * proof->s->micro_batches + micro];
}

static int dpari_proof_is(int32_t kind, uint32_t set)
{
    return (set >> kind & 1) != 0;
}

/* Returns the cell of a message's other end. */
static dpari_proof_cell *dpari_proof_mate_cell(const dpari_proof *proof, const dpar_action *action)
{
    return dpari_proof_at(proof, dpar_schedule_partner(proof->s, action->kind, action->stage),
                          action->micro_batch);
}

/* ---- each action on its own ------------------------------------------------------------------ */

/* Collects the kinds of all actions and checks that they exist. */
static dpar_status dpari_proof_kinds(dpari_proof *proof)
{
    const dpar_schedule *schedule = proof->s;
    int32_t r;
    int64_t i;
    for (r = 0; r < schedule->ranks; r++) {
        for (i = schedule->begin[r]; i < schedule->begin[r + 1]; i++) {
            if (schedule->action[i].kind >= DPAR_ACTION_COUNT) {
                return dpari_wrong(proof->why,
                                   "rank %d: action %ld of its list has kind %d; kinds are 0 to %d",
                                   r, i - schedule->begin[r], (int32_t)schedule->action[i].kind,
                                   (int32_t)DPAR_ACTION_COUNT - 1);
            }
            proof->kinds |= 1u << schedule->action[i].kind;
        }
    }
    return DPAR_OK;
}

/* Checks a joined forward, which is the last action of its rank if `last` is 1. */
static dpar_status dpari_proof_joined(const dpari_proof *proof, int32_t r,
                                      const dpar_action *action, int last)
{
    if (action->joined != 1 || action->kind != DPAR_ACTION_FORWARD || last || action[1].joined ||
        !dpari_proof_is(action[1].kind, DPARI_SET_GRADIENT)) {
        return dpari_proof_say(proof, r, action,
                               "@ is joined, but it is not an F that a B or I follows");
    }
    if (action[1].stage == action->stage && action[1].micro_batch == action->micro_batch) {
        return dpari_proof_say_pair(proof, r, action, "@ is joined with its own @", action + 1);
    }
    return DPAR_OK;
}

/* Checks that a message connects neighbouring stages on two ranks and names the right peer. */
static dpar_status dpari_proof_message(const dpari_proof *proof, int32_t r,
                                       const dpar_action *action)
{
    int32_t there = dpar_schedule_partner(proof->s, action->kind, action->stage);
    if (there < 0) {
        return dpari_proof_say_number(
            proof, r, action, "@ has no partner, because stage # ends its chain", action->stage);
    }
    if (proof->s->rank_of[there] == r) {
        return dpari_proof_say_number(
            proof, r, action, "@ is not needed, because stage # is on the same rank", there);
    }
    if (action->peer != proof->s->rank_of[there]) {
        return dpari_proof_say_number(
            proof, r, action, "@ has peer #, but its other end is on another rank", action->peer);
    }
    return DPAR_OK;
}

/* Checks that the numbers of an action are in range, that its stage is on its rank and that its
 * micro-batch passes one chain only. After this check an action has a cell. */
static dpar_status dpari_proof_ids(dpari_proof *proof, int32_t r, const dpar_action *action)
{
    const dpar_schedule *schedule = proof->s;
    int32_t chain = action->stage / schedule->chain;
    if (action->stage >= schedule->stages) {
        return dpari_proof_say_number(proof, r, action, "@ does not exist, there are only # stages",
                                      schedule->stages);
    }
    if (schedule->rank_of[action->stage] != r) {
        return dpari_proof_say_number(proof, r, action, "the stage of @ is on rank #",
                                      schedule->rank_of[action->stage]);
    }
    if (!dpari_action_has_micro(action->kind)) {
        return DPAR_OK;
    }
    if (action->micro_batch >= schedule->micro_batches) {
        return dpari_proof_say_number(proof, r, action,
                                      "@ does not exist, there are only # micro-batches",
                                      schedule->micro_batches);
    }
    if (proof->chain[action->micro_batch] != DPARI_NO_CHAIN &&
        proof->chain[action->micro_batch] != chain) {
        return dpari_proof_say_number(proof, r, action,
                                      "the micro-batch of @ is also in the chain from stage # on",
                                      proof->chain[action->micro_batch] * (int64_t)schedule->chain);
    }
    proof->chain[action->micro_batch] = (uint16_t)chain;
    return dpari_proof_is(action->kind, DPARI_SET_MESSAGES) ? dpari_proof_message(proof, r, action)
                                                            : DPAR_OK;
}

/* ---- order in a rank ------------------------------------------------------------------------- */

/* Returns the kinds that must come after `kind` in the list, for the same stage and micro-batch. */
static uint32_t dpari_proof_later(int32_t kind)
{
    const uint32_t backward = DPARI_SET_GRADIENT, recompute = 1u << DPAR_ACTION_RECOMPUTE;
    switch (kind) {
    case DPAR_ACTION_RECV_F: return DPARI_SET_F;
    case DPAR_ACTION_FORWARD:
        return (1u << DPAR_ACTION_SEND_F) | DPARI_SET_OFFLOADS | recompute | DPARI_SET_TRAINING;
    case DPAR_ACTION_OFFLOAD: return (1u << DPAR_ACTION_RELOAD) | recompute | backward;
    case DPAR_ACTION_RELOAD: return recompute | backward;
    case DPAR_ACTION_RECOMPUTE:
    case DPAR_ACTION_RECV_B: return backward;
    case DPAR_ACTION_BACKWARD: return 1u << DPAR_ACTION_SEND_B;
    case DPAR_ACTION_INPUT: return (1u << DPAR_ACTION_SEND_B) | DPARI_SET_W;
    default: return 0;
    }
}

/* Checks that no action of `set` with this stage and micro-batch comes before `action`, which each
 * of them needs. */
static dpar_status dpari_proof_after(const dpari_proof *proof, int32_t r, const dpar_action *action,
                                     uint32_t set, int32_t stage, int32_t micro)
{
    uint32_t seen = set & dpari_proof_at(proof, stage, micro)->seen;
    dpar_action needs = dpari_action_of(dpari_proof_kind(seen), stage, micro);
    if (seen != 0) {
        return dpari_proof_say_pair(proof, r, action, "@ comes after @, which needs it", &needs);
    }
    return DPAR_OK;
}

/* Checks that an F, B or I comes before the actions on the same rank that need its result: those of
 * the neighbouring stage and of the next slice. */
static dpar_status dpari_proof_local(const dpari_proof *proof, int32_t r, const dpar_action *action)
{
    uint32_t set =
        action->kind == DPAR_ACTION_FORWARD ? (uint32_t)DPARI_SET_F : (uint32_t)DPARI_SET_GRADIENT;
    int32_t there = dpar_schedule_partner(proof->s, action->kind, action->stage),
            slice = action->micro_batch % proof->s->slices;
    int32_t next = action->kind == DPAR_ACTION_FORWARD ? 1 : -1;
    dpar_status st = DPAR_OK;
    if (there >= 0 && proof->s->rank_of[there] == r) {
        st = dpari_proof_after(proof, r, action, set, there, action->micro_batch);
    }
    if (st == DPAR_OK && slice + next >= 0 && slice + next < proof->s->slices) {
        st = dpari_proof_after(proof, r, action, set, action->stage, action->micro_batch + next);
    }
    return st;
}

/* Checks the position of an action in its rank's list and enters it in its cell. */
static dpar_status dpari_proof_order(const dpari_proof *proof, int32_t r, const dpar_action *action)
{
    dpari_proof_cell *cell = dpari_proof_at(proof, action->stage, action->micro_batch);
    uint32_t split = DPARI_SET_I | DPARI_SET_W, twin = 0;
    dpar_status st;
    if (dpari_proof_is(action->kind, cell->seen)) {
        return dpari_proof_say(proof, r, action, "@ is listed twice");
    }
    if (action->kind == DPAR_ACTION_BACKWARD) {
        twin = split & cell->seen;
    } else if (dpari_proof_is(action->kind, split)) {
        twin = (uint32_t)DPARI_SET_B & cell->seen;
    }
    if (twin != 0) {
        dpar_action other =
            dpari_action_of(dpari_proof_kind(twin), action->stage, action->micro_batch);
        return dpari_proof_say_pair(
            proof, r, &other, "@ and @ exclude each other, because a B is I and W in one", action);
    }
    st = dpari_proof_after(proof, r, action, dpari_proof_later(action->kind), action->stage,
                           action->micro_batch);
    if (st == DPAR_OK && dpari_proof_is(action->kind, DPARI_SET_F | DPARI_SET_GRADIENT)) {
        st = dpari_proof_local(proof, r, action);
    }
    cell->seen = (uint16_t)(cell->seen | 1u << action->kind);
    return st;
}

/* Checks an action against the state of its stage, sharding and reduction, and updates the state.
 */
static dpar_status dpari_proof_state(const dpari_proof *proof, int32_t r, const dpar_action *action)
{
    uint8_t *state = &proof->stage[action->stage];
    int unsharded = (*state & DPARI_STAGE_UNSHARDED) != 0;
    if (action->kind == DPAR_ACTION_UNSHARD && unsharded) {
        return dpari_proof_say_number(proof, r, action, "@, but stage # is already unsharded",
                                      action->stage);
    }
    if (!unsharded &&
        (action->kind == DPAR_ACTION_RESHARD || (dpari_proof_is(action->kind, DPARI_SET_COMPUTE) &&
                                                 (proof->kinds & DPARI_SET_SHARDING) != 0))) {
        return dpari_proof_say_number(proof, r, action, "@, but stage # is not unsharded there",
                                      action->stage);
    }
    if ((*state & DPARI_STAGE_REDUCED) != 0 &&
        dpari_proof_is(action->kind, DPARI_SET_TRAINING | 1u << DPAR_ACTION_REDUCE_GRAD)) {
        return dpari_proof_say_number(proof, r, action, "@ comes after #REDUCE_GRAD",
                                      action->stage);
    }
    if (action->kind == DPAR_ACTION_WAIT_REDUCE) {
        if ((*state & DPARI_STAGE_REDUCED) == 0 || (*state & DPARI_STAGE_WAITED) != 0) {
            return dpari_proof_say_number(proof, r, action, "@ has no #REDUCE_GRAD before it",
                                          action->stage);
        }
        *state |= DPARI_STAGE_WAITED;
    } else if (dpari_proof_is(action->kind, DPARI_SET_SHARDING)) {
        *state ^= DPARI_STAGE_UNSHARDED;
    } else if (dpari_proof_is(action->kind, DPARI_SET_TRAINING)) {
        *state |= DPARI_STAGE_TRAINED;
    } else if (action->kind == DPAR_ACTION_REDUCE_GRAD) {
        *state |= DPARI_STAGE_REDUCED;
    }
    return DPAR_OK;
}

static dpar_status dpari_proof_list(dpari_proof *proof, int32_t r)
{
    const dpar_schedule *schedule = proof->s;
    dpar_status st = DPAR_OK;
    int64_t i;
    for (i = schedule->begin[r]; i < schedule->begin[r + 1] && st == DPAR_OK; i++) {
        const dpar_action *action = &schedule->action[i];
        if (action->joined) {
            st = dpari_proof_joined(proof, r, action, i + 1 == schedule->begin[r + 1]);
        }
        if (st == DPAR_OK && action->kind != DPAR_ACTION_IDLE) {
            st = dpari_proof_ids(proof, r, action);
            if (st == DPAR_OK) {
                st = dpari_proof_state(proof, r, action);
            }
            if (st == DPAR_OK && dpari_action_has_micro(action->kind)) {
                st = dpari_proof_order(proof, r, action);
            }
        }
    }
    return st;
}

/* ---- missing and superfluous actions --------------------------------------------------------- */

/* Returns the kinds that a stage must have for a micro-batch. `seen` decides between B, and I and
 * W. */
static uint32_t dpari_proof_expected(const dpari_proof *proof, int32_t stage, uint32_t seen)
{
    uint32_t set = DPARI_SET_F;
    int32_t kind;
    if ((seen >> DPAR_ACTION_RELOAD & 1) != 0) {
        set |= 1u << DPAR_ACTION_OFFLOAD;
    }
    if ((proof->kinds & DPARI_SET_TRAINING) != 0) {
        set |= (seen & (DPARI_SET_I | DPARI_SET_W)) != 0 ? DPARI_SET_I | DPARI_SET_W : DPARI_SET_B;
        set |= (seen & DPARI_SET_OFFLOADS) != 0 ? (uint32_t)DPARI_SET_OFFLOADS : 0;
    }
    for (kind = DPAR_ACTION_SEND_F;
         kind <= DPAR_ACTION_RECV_B && (proof->kinds & DPARI_SET_MESSAGES) != 0; kind++) {
        int32_t there = dpar_schedule_partner(proof->s, kind, stage);
        if (there >= 0 && proof->s->rank_of[there] != proof->s->rank_of[stage] &&
            (!dpari_message_way(kind) || (proof->kinds & DPARI_SET_TRAINING) != 0)) {
            set |= 1u << kind;
        }
    }
    return set;
}

static dpar_status dpari_proof_complete(const dpari_proof *proof, int32_t stage, int32_t micro)
{
    uint32_t seen = dpari_proof_at(proof, stage, micro)->seen;
    uint32_t set = dpari_proof_expected(proof, stage, seen),
             extra = seen & ~set & DPARI_SET_MESSAGES;
    dpar_action a = dpari_action_of(dpari_proof_kind((set & ~seen) | extra), stage, micro);
    if ((set & ~seen) != 0) {
        a = dpari_action_of(dpari_proof_kind(set & ~seen), stage, micro);
        return dpari_proof_say(proof, proof->s->rank_of[stage], &a, "@ is missing");
    }
    if (extra != 0) {
        return dpari_proof_say(proof, proof->s->rank_of[stage], &a,
                               "@ is not needed, because there is no backward");
    }
    return DPAR_OK;
}

static dpar_status dpari_proof_micros(const dpari_proof *proof)
{
    const dpar_schedule *schedule = proof->s;
    dpar_status st = DPAR_OK;
    int32_t m, k;
    for (m = 0; m < schedule->micro_batches; m++) {
        if (proof->chain[m] == DPARI_NO_CHAIN) {
            return dpari_wrong(proof->why, "micro-batch %d of %d is in no list", m,
                               schedule->micro_batches);
        }
        if (proof->chain[m] != proof->chain[m - m % schedule->slices]) {
            return dpari_wrong(proof->why,
                               "%d and %d are slices of one micro-batch, but pass different chains",
                               m - m % schedule->slices, m);
        }
    }
    for (k = 0; k < schedule->chain && st == DPAR_OK; k++) {
        for (m = 0; m < schedule->micro_batches && st == DPAR_OK; m++) {
            st = dpari_proof_complete(proof, proof->chain[m] * schedule->chain + k, m);
        }
    }
    return st;
}

/* Checks the final state of all stages. */
static dpar_status dpari_proof_stages(const dpari_proof *proof)
{
    const int reduces = dpari_proof_is(DPAR_ACTION_REDUCE_GRAD, proof->kinds);
    int32_t k;
    if (reduces && (proof->kinds & DPARI_SET_TRAINING) == 0) {
        return dpari_wrong(proof->why, "there is a REDUCE_GRAD, but no backward");
    }
    for (k = 0; k < proof->s->stages; k++) {
        if ((proof->stage[k] & DPARI_STAGE_UNSHARDED) != 0) {
            return dpari_wrong(proof->why, "rank %d: the last %dUNSHARD has no %dRESHARD after it",
                               (int32_t)proof->s->rank_of[k], k, k);
        }
        if (reduces && (proof->stage[k] & DPARI_STAGE_TRAINED) != 0 &&
            (proof->stage[k] & DPARI_STAGE_REDUCED) == 0) {
            return dpari_wrong(proof->why, "rank %d: %dREDUCE_GRAD is missing",
                               (int32_t)proof->s->rank_of[k], k);
        }
    }
    return DPAR_OK;
}

/* ---- order of a channel ---------------------------------------------------------------------- */

/* Resets the keys that rank r used. Only the keys of its peers are written, so that the cost is
 * O(its actions) however many ranks there are. */
static void dpari_proof_forget(const dpari_proof *proof, int32_t r, int32_t value)
{
    int64_t i;
    for (i = proof->s->begin[r]; i < proof->s->begin[r + 1]; i++) {
        if (dpari_proof_is(proof->s->action[i].kind, DPARI_SET_MESSAGES)) {
            proof->key[2 * proof->s->action[i].peer] = value;
            proof->key[2 * proof->s->action[i].peer + 1] = value;
        }
    }
}

/* Numbers the sends of rank r on each of its channels. */
static void dpari_proof_number(const dpari_proof *proof, int32_t r)
{
    int64_t i;
    for (i = proof->s->begin[r]; i < proof->s->begin[r + 1]; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_SENDS)) {
            dpari_proof_at(proof, action->stage, action->micro_batch)
                ->send[dpari_message_way(action->kind)] = proof->key[2 * action->peer]++;
        }
    }
    dpari_proof_forget(proof, r, 0);
}

/* Returns send number n of rank q to rank r, counted from 0. It must exist. */
static const dpar_action *dpari_proof_nth(const dpari_proof *proof, int32_t q, int32_t r, int32_t n)
{
    int64_t i = proof->s->begin[q];
    for (;; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_SENDS) && action->peer == r && n-- == 0) {
            return action;
        }
    }
}

/* Checks that rank r receives the messages of each peer in the order in which the peer sends them.
 */
static dpar_status dpari_proof_channel(const dpari_proof *proof, int32_t r)
{
    int64_t i;
    for (i = proof->s->begin[r]; i < proof->s->begin[r + 1]; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_RECVS)) {
            int32_t n = proof->key[2 * action->peer]++;
            if (dpari_proof_mate_cell(proof, action)->send[dpari_message_way(action->kind)] != n) {
                return dpari_proof_report(proof, r, action,
                                          "@ is in the place where rank # sends @; without tags "
                                          "(NCCL) it receives the wrong data",
                                          action->peer, dpari_proof_nth(proof, action->peer, r, n));
            }
        }
    }
    dpari_proof_forget(proof, r, 0);
    return DPAR_OK;
}

static dpar_status dpari_proof_channels(const dpari_proof *proof)
{
    dpar_status st = DPAR_OK;
    int32_t r;
    for (r = 0; r < proof->s->ranks; r++) {
        dpari_proof_number(proof, r);
    }
    for (r = 0; r < proof->s->ranks && st == DPAR_OK; r++) {
        st = dpari_proof_channel(proof, r);
    }
    return st;
}

/* ---- the run: ranks advance until each waits for another ------------------------------------- */

/* True if messages are posted and wait in queues. */
static int dpari_proof_queues(const dpari_proof *proof)
{
    return proof->link != NULL && proof->transport >= DPAR_TRANSPORT_RANK &&
           proof->transport <= DPAR_TRANSPORT_EDGE;
}

/* Adds a rank to the stack of those that may be able to continue. */
static void dpari_proof_wake(dpari_proof *proof, int32_t r)
{
    if (!proof->lane[r].queued) {
        proof->lane[r].queued = 1;
        proof->ready[proof->ready_count++] = r;
    }
}

static int dpari_proof_done(const dpari_proof *proof, int64_t i)
{
    const dpar_action *action = &proof->s->action[i];
    return dpari_proof_is(action->kind,
                          dpari_proof_at(proof, action->stage, action->micro_batch)->done);
}

static void dpari_proof_do(dpari_proof *proof, int64_t i)
{
    const dpar_action *action = &proof->s->action[i];
    if (dpari_action_has_micro(action->kind)) {
        dpari_proof_cell *cell = dpari_proof_at(proof, action->stage, action->micro_batch);
        cell->done = (uint16_t)(cell->done | 1u << action->kind);
    }
}

/* Returns the stage on another rank from which a computation gets its data, or -1 if there is none.
 */
static int32_t dpari_proof_source(const dpar_schedule *schedule, const dpar_action *action)
{
    int32_t from = -1;
    if (action->kind == DPAR_ACTION_FORWARD) {
        from = dpari_schedule_before(schedule, action->stage);
    } else if (dpari_proof_is(action->kind, DPARI_SET_GRADIENT)) {
        from = dpari_schedule_behind(schedule, action->stage);
    }
    return from >= 0 && schedule->rank_of[from] != schedule->rank_of[action->stage] ? from : -1;
}

/* True if the data that a computation needs from another rank have not arrived. */
static int dpari_proof_waits(const dpari_proof *proof, const dpar_action *action)
{
    int32_t from = dpari_proof_source(proof->s, action);
    int forward = action->kind == DPAR_ACTION_FORWARD;
    if (from < 0) {
        return 0;
    }
    if ((proof->kinds & DPARI_SET_MESSAGES) != 0) {
        return !dpari_proof_is(forward ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B,
                               dpari_proof_at(proof, action->stage, action->micro_batch)->done);
    }
    return (dpari_proof_at(proof, from, action->micro_batch)->done &
            (forward ? (uint32_t)DPARI_SET_F : (uint32_t)DPARI_SET_GRADIENT)) == 0;
}

/* Runs the rank's next computation, or both of a joined pair, unless it waits. Returns 1 if it ran.
 */
static int dpari_proof_compute(dpari_proof *proof, int32_t r)
{
    const dpar_action *action = &proof->s->action[proof->lane[r].at];
    int k, count = 1 + action->joined;
    for (k = 0; k < count; k++) {
        if (dpari_proof_waits(proof, action + k)) {
            return 0;
        }
    }
    for (k = 0; k < count; k++) {
        int32_t there = dpar_schedule_partner(proof->s, action[k].kind, action[k].stage);
        dpari_proof_do(proof, proof->lane[r].at + k);
        if (there >= 0 && (proof->kinds & DPARI_SET_MESSAGES) == 0) {
            dpari_proof_wake(proof, proof->s->rank_of[there]);
        }
    }
    proof->lane[r].at += count;
    return 1;
}

/* The next three functions run message i, the next action of its rank, and return 1, or return 0 if
 * it has to wait. Without a transport a send never waits and a receive waits for its send. */
static int dpari_proof_free(dpari_proof *proof, int32_t i)
{
    const dpar_action *action = &proof->s->action[i];
    if (dpari_proof_is(action->kind, DPARI_SET_RECVS) &&
        !dpari_proof_is(action->kind - 1 /* its send */,
                        dpari_proof_mate_cell(proof, action)->done)) {
        return 0;
    }
    dpari_proof_do(proof, i);
    dpari_proof_wake(proof, action->peer);
    return 1;
}

/* BLOCKING: both ends run at the same time, once both are the next action of their rank. */
static int dpari_proof_meet(dpari_proof *proof, int32_t i)
{
    int32_t q = proof->s->action[i].peer, mate = proof->link[i].mate;
    if (proof->lane[q].at != mate) {
        return 0;
    }
    dpari_proof_do(proof, i);
    dpari_proof_do(proof, mate);
    proof->lane[q].at++;
    dpari_proof_wake(proof, q);
    return 1;
}

/* EAGER: a send waits for a free place in the buffer, a receive until its message is at the front.
 */
static int dpari_proof_buffer(dpari_proof *proof, int32_t i)
{
    const int sends = dpari_proof_is(proof->s->action[i].kind, DPARI_SET_SENDS);
    const int32_t send = sends ? i : proof->link[i].mate;
    dpari_proof_link *queue = &proof->link[proof->link[send].first];
    int32_t *held = &proof->link[queue->mate].head;
    if (sends && *held >= proof->room) {
        return 0;
    }
    if (!sends && (queue->head != send || !dpari_proof_done(proof, send))) {
        return 0;
    }
    *held += sends ? 1 : -1;
    if (!sends) {
        queue->head = proof->link[send].next;
    }
    dpari_proof_do(proof, i);
    dpari_proof_wake(proof, proof->s->action[i].peer);
    return 1;
}

/* Returns the first message in the queue of message i that was not transferred. */
static int32_t dpari_proof_head(const dpari_proof *proof, int32_t i)
{
    return proof->link[proof->link[i].first].head;
}

/* Transfers message i if it and its other end are posted and both are first in their queues. Both
 * are then added to `pending`. */
static void dpari_proof_transfer(dpari_proof *proof, int32_t i)
{
    const dpar_action *list = proof->s->action;
    int32_t j = proof->link[i].mate, end[2], k;
    if (dpari_proof_head(proof, i) != i || dpari_proof_head(proof, j) != j ||
        i >= proof->lane[list[j].peer].at || j >= proof->lane[list[i].peer].at) {
        return;
    }
    end[0] = i;
    end[1] = j;
    for (k = 0; k < 2; k++) {
        dpari_proof_link *l = &proof->link[end[k]];
        dpari_proof_do(proof, end[k]);
        if (dpari_proof_is(list[end[k]].kind, DPARI_SET_RECVS)) {
            dpari_proof_wake(proof, list[end[1 - k]].peer);
        }
        proof->link[l->first].head = l->next;
        l->mate = proof->pending;
        proof->pending = end[k];
    }
}

/* Posts message i, then transfers all messages that this enables, one after the other. */
static int dpari_proof_post(dpari_proof *proof, int32_t r, int32_t i)
{
    proof->lane[r].at++;
    dpari_proof_transfer(proof, i);
    while (proof->pending >= 0) {
        const dpari_proof_link *l = &proof->link[proof->pending];
        proof->pending = l->mate;
        if (l->next >= 0 && dpari_proof_head(proof, l->next) == l->next) {
            dpari_proof_transfer(proof, l->next);
        }
    }
    return 1;
}

/* Runs the rank's next action. Returns 0 if it has to wait. */
static int dpari_proof_step(dpari_proof *proof, int32_t r)
{
    int32_t i = proof->lane[r].at;
    int went;
    if (!dpari_proof_is(proof->s->action[i].kind, DPARI_SET_MESSAGES)) {
        return dpari_proof_compute(proof, r);
    }
    if (dpari_proof_queues(proof)) {
        return dpari_proof_post(proof, r, i);
    }
    if (proof->link == NULL) {
        went = dpari_proof_free(proof, i);
    } else if (proof->transport == DPAR_TRANSPORT_BLOCKING) {
        went = dpari_proof_meet(proof, i);
    } else {
        went = dpari_proof_buffer(proof, i);
    }
    proof->lane[r].at += went;
    return went;
}

/* ---- stuck: which rank waits for which ------------------------------------------------------- */

/* Returns the index of the action at which a rank is stuck, or -1 if it has finished. For a
 * computation that waits for a queued message it is the first message of that queue. A rank at the
 * end of its list is stuck if one of its messages was not transferred. */
static int32_t dpari_proof_stuck(const dpari_proof *proof, int32_t r)
{
    int32_t i = proof->lane[r].at;
    const dpar_action *action = &proof->s->action[i];
    if (i < proof->lane[r].end) {
        int32_t from;
        int way;
        action += action->joined && !dpari_proof_waits(proof, action);
        if (!dpari_proof_queues(proof)) {
            return (int32_t)(action - proof->s->action);
        }
        from = dpari_proof_source(proof->s, action);
        way = action->kind != DPAR_ACTION_FORWARD;
        return dpari_proof_head(
            proof, proof->link[dpari_proof_at(proof, from, action->micro_batch)->send[way]].mate);
    }
    for (i = (int32_t)proof->s->begin[r]; i < proof->lane[r].end; i++) {
        if (dpari_proof_is(proof->s->action[i].kind, DPARI_SET_MESSAGES) &&
            !dpari_proof_done(proof, i)) {
            return i;
        }
    }
    return -1;
}

/* Why a rank is stuck: `rank` is at action `at` and waits for `needs`, an action of `other_rank`,
 * which is itself stuck at action `other`. */
typedef struct dpari_proof_wait {
    int32_t rank, at, other_rank, other;
    dpar_action needs;
} dpari_proof_wait;

/* Finds what a rank waits for if actions wait only for their data. */
static void dpari_proof_wait_data(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    const dpar_action *action = &proof->s->action[blocked->at];
    int32_t message = dpari_proof_is(action->kind, DPARI_SET_MESSAGES);
    int32_t from = message ? dpar_schedule_partner(proof->s, action->kind, action->stage)
                           : dpari_proof_source(proof->s, action);
    uint32_t seen = dpari_proof_at(proof, from, action->micro_batch)->seen;
    int32_t kind = DPAR_ACTION_FORWARD;
    if (message) { /* only a RECV waits, for its SEND */
        kind = action->kind - 1;
    } else if (action->kind != DPAR_ACTION_FORWARD) {
        kind = dpari_proof_kind(seen & DPARI_SET_GRADIENT);
    }
    blocked->needs = dpari_action_of(kind, from, action->micro_batch);
    blocked->other_rank = proof->s->rank_of[from];
    blocked->other = dpari_proof_stuck(proof, blocked->other_rank);
}

/* Finds what a rank waits for on a transport. */
static void dpari_proof_wait_message(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    const dpar_action *action = &proof->s->action[blocked->at];
    int32_t mate = proof->link[blocked->at].mate;
    blocked->other_rank = action->peer;
    if (proof->transport == DPAR_TRANSPORT_EAGER && dpari_proof_is(action->kind, DPARI_SET_SENDS)) {
        mate = proof->link[dpari_proof_head(proof, blocked->at)].mate; /* the buffer is full */
    } else if (proof->transport == DPAR_TRANSPORT_EAGER && dpari_proof_done(proof, mate)) {
        mate =
            proof->link[dpari_proof_head(proof, mate)].mate; /* another message is at the front */
        blocked->other_rank = blocked->rank;
    }
    blocked->needs = proof->s->action[mate];
    blocked->other = dpari_proof_queues(proof) && mate < proof->lane[blocked->other_rank].at
                         ? dpari_proof_head(proof, mate)
                         : dpari_proof_stuck(proof, blocked->other_rank);
}

static void dpari_proof_blocker(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    if (proof->link == NULL) {
        dpari_proof_wait_data(proof, blocked);
    } else {
        dpari_proof_wait_message(proof, blocked);
    }
}

DPARI_STATIC_NOINLINE void dpari_proof_follow(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    blocked->rank = blocked->other_rank;
    blocked->at = blocked->other;
    dpari_proof_blocker(proof, blocked);
}

/* Moves *blocked from a stuck rank to a cycle of waiting ranks, with Floyd's algorithm of a slow
 * and a fast pointer. Then moves it to the action of the cycle with the lowest index, so that the
 * message does not depend on the start of the search. */
static void dpari_proof_circle(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    dpari_proof_wait fast = *blocked, least;
    do {
        dpari_proof_follow(proof, blocked);
        dpari_proof_follow(proof, &fast);
        dpari_proof_follow(proof, &fast);
    } while (fast.at != blocked->at);
    least = *blocked;
    do {
        dpari_proof_follow(proof, blocked);
        least = blocked->at < least.at ? *blocked : least;
    } while (blocked->at != fast.at);
    *blocked = least;
}

static int dpari_proof_same(const dpar_action *action, const dpar_action *b)
{
    return action->kind == b->kind && action->stage == b->stage &&
           action->micro_batch == b->micro_batch;
}

static const char *dpari_transport_name(int32_t transport)
{
    switch (transport) { /* no table: its pointers would be data to relocate */
    case DPAR_TRANSPORT_BLOCKING: return "blocking";
    case DPAR_TRANSPORT_RANK: return "rank";
    case DPAR_TRANSPORT_DIRECTION: return "dir";
    case DPAR_TRANSPORT_PAIR: return "pair";
    case DPAR_TRANSPORT_EDGE: return "edge";
    default: return "eager";
    }
}

/* Describes the first two members of the cycle and counts the others. More would not fit into
 * dpar_why if the numbers are long. */
static void dpari_proof_say_circle(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    const dpar_action *list = proof->s->action;
    int32_t start = blocked->at, count = 0;
    dpar_text t;
    dpari_text_why(&t, proof->why);
    dpar_text_put(&t, proof->link == NULL ? "endless: " : dpari_transport_name(proof->transport));
    dpar_text_put(&t, proof->link == NULL ? "" : ": ");
    do {
        if (count++ < 2) {
            dpar_text_put(&t, count > 1 ? "; " : "");
            dpari_proof_words(&t, "rank # at @ waits for ", blocked->rank, &list[blocked->at],
                              NULL);
            if (dpari_proof_same(&list[blocked->other], &blocked->needs)) {
                dpari_proof_words(&t, "@ of rank #", blocked->other_rank, &blocked->needs, NULL);
            } else {
                dpari_proof_words(&t, "@ that rank # has after @", blocked->other_rank,
                                  &blocked->needs, &list[blocked->other]);
            }
        }
        dpari_proof_follow(proof, blocked);
    } while (blocked->at != start);
    if (count > 2) {
        dpar_text_put(&t, "; and ");
        dpari_text_int(&t, count - 2);
        dpar_text_put(&t, " more");
    }
}

/* Runs all ranks as far as possible. Returns DPAR_E_STUCK if not all reach the end of their lists.
 */
static DPARI_COLD dpar_status dpari_proof_run(dpari_proof *proof, int64_t *stuck)
{
    int32_t r, through = 0;
    dpari_proof_wait k;
    for (r = proof->s->ranks - 1; r >= 0; r--) {
        dpari_proof_wake(proof, r);
    }
    while (proof->ready_count > 0) {
        r = proof->ready[--proof->ready_count];
        proof->lane[r].queued = 0;
        while (proof->lane[r].at < proof->lane[r].end && dpari_proof_step(proof, r)) {
        }
    }
    for (r = 0; r < proof->s->ranks; r++) {
        through += proof->lane[r].at == proof->lane[r].end;
    }
    /* If all lists have ended, each RECV has been done, too, because an F, B or I waits for it. */
    if (through == proof->s->ranks) {
        return DPAR_OK;
    }
    for (r = 0; r < proof->s->ranks && stuck != NULL; r++) {
        stuck[r] = dpari_proof_stuck(proof, r);
    }
    k.rank = 0;
    k.at = dpari_proof_stuck(proof, k.rank);
    while (k.at < 0) {
        k.rank++;
        k.at = dpari_proof_stuck(proof, k.rank);
    }
    if (proof->why != NULL) {
        dpari_proof_blocker(proof, &k);
        dpari_proof_circle(proof, &k);
        dpari_proof_say_circle(proof, &k);
    }
    return DPAR_E_STUCK;
}

/* ---- the check as a whole -------------------------------------------------------------------- */

/* Checks everything except the order of channels and deadlock. */
static dpar_status dpari_proof_lists(dpari_proof *proof)
{
    dpar_status st = dpari_proof_kinds(proof);
    int32_t r;
    if (st == DPAR_OK) {
        st = dpari_schedule_check_ranks(proof->s, proof->why);
    }
    for (r = 0; r < proof->s->ranks && st == DPAR_OK; r++) {
        st = dpari_proof_list(proof, r);
    }
    if (st == DPAR_OK) {
        st = dpari_proof_micros(proof);
    }
    return st == DPAR_OK ? dpari_proof_stages(proof) : st;
}

/* Proves the schedule without a transport. Not inlined, like dpari_proof_transport, so that the
 * frames of the two are not on the stack at the same time. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_proof_rules(const dpar_schedule *schedule,
                                                               int32_t flags, void *mem,
                                                               dpar_why *why)
{
    dpari_proof w;
    dpar_status st;
    dpari_proof_arrange(&w, schedule, 0, mem, why);
    st = dpari_proof_lists(&w);
    if (st == DPAR_OK && (flags & DPAR_CHECK_TRAINS) != 0 && (w.kinds & DPARI_SET_TRAINING) == 0) {
        st = dpari_wrong(why, "the schedule has no backward, which DPAR_CHECK_TRAINS requires");
    }
    if (st == DPAR_OK && (flags & DPAR_CHECK_TAGGED) == 0) {
        st = dpari_proof_channels(&w);
    }
    return st == DPAR_OK ? dpari_proof_run(&w, NULL) : st;
}

/* ---- transports ------------------------------------------------------------------------------ */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_transport_check(int32_t transport, int32_t capacity,
                                                            dpar_why *why)
{
    if (transport < 0 || transport >= DPAR_TRANSPORT_COUNT) {
        return dpari_wrong(why, "transport=%d; 0 to %d are allowed", transport,
                           (int32_t)DPAR_TRANSPORT_COUNT - 1);
    }
    if (transport == DPAR_TRANSPORT_EAGER && capacity < 1) {
        return dpari_wrong(why, "capacity=%d; an eager buffer needs 1 or more", capacity);
    }
    return DPAR_OK;
}

DPARI_INTERNAL int32_t dpari_transport_queue(int32_t transport, int32_t kind, int32_t peer)
{
    switch (transport) {
    case DPAR_TRANSPORT_DIRECTION: return dpari_message_way(kind);
    case DPAR_TRANSPORT_PAIR: return 2 * peer;
    case DPAR_TRANSPORT_EDGE:
    case DPAR_TRANSPORT_EAGER: return 2 * peer + dpari_action_is_send(kind);
    default: return 0;
    }
}

/* Links the messages of a rank into its queues and enters its sends in their cells. All keys are -1
 * before and after the call. */
static void dpari_proof_queue(dpari_proof *proof, int32_t r)
{
    int32_t i, end = (int32_t)proof->s->begin[r + 1];
    for (i = (int32_t)proof->s->begin[r]; i < end; i++) {
        const dpar_action *action = &proof->s->action[i];
        int32_t sends = dpari_proof_is(action->kind, DPARI_SET_SENDS), *last;
        if (!dpari_proof_is(action->kind, DPARI_SET_MESSAGES)) {
            continue;
        }
        last = &proof->key[dpari_transport_queue(proof->transport, action->kind, action->peer)];
        proof->link[i].next = -1;
        proof->link[i].first = *last < 0 ? i : proof->link[*last].first;
        proof->link[i].head = proof->transport == DPAR_TRANSPORT_EAGER && !sends ? 0 : i;
        if (*last >= 0) {
            proof->link[*last].next = i;
        }
        *last = i;
        if (sends) {
            dpari_proof_at(proof, action->stage, action->micro_batch)
                ->send[dpari_message_way(action->kind)] = i;
        }
    }
    proof->key[0] = proof->key[1] = -1;
    dpari_proof_forget(proof, r, -1);
}

/* Links the messages of all queues and connects the two ends of each message. */
static void dpari_proof_connect(dpari_proof *proof)
{
    int32_t r, i, count = (int32_t)proof->s->begin[proof->s->ranks];
    for (r = 0; r < 2 * proof->s->ranks; r++) {
        proof->key[r] = -1;
    }
    for (r = 0; r < proof->s->ranks; r++) {
        dpari_proof_queue(proof, r);
    }
    for (i = 0; i < count; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_RECVS)) {
            int32_t send =
                dpari_proof_mate_cell(proof, action)->send[dpari_message_way(action->kind)];
            proof->link[i].mate = send;
            proof->link[send].mate = i;
        }
    }
}

/* Checks that a schedule without messages needs none. */
static dpar_status dpari_proof_lowered(const dpari_proof *proof)
{
    int32_t k;
    for (k = 0; k < proof->s->stages && (proof->kinds & DPARI_SET_MESSAGES) == 0; k++) {
        int32_t next = dpari_schedule_behind(proof->s, k);
        if (next >= 0 && proof->s->rank_of[k] != proof->s->rank_of[next]) {
            return dpari_wrong(
                proof->why,
                "stage %d on rank %d feeds stage %d on rank %d, but the schedule has no messages; "
                "call dpar_schedule_lower first",
                k, (int32_t)proof->s->rank_of[k], next, (int32_t)proof->s->rank_of[next]);
        }
    }
    return DPAR_OK;
}

/* Runs the schedule, which was proved before, on the transport. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_proof_transport(
    const dpar_schedule *schedule, const dpar_schedule_check_desc *how, void *mem, dpar_why *why)
{
    dpari_proof w;
    dpar_status st;
    dpari_proof_arrange(&w, schedule, 1, mem, why);
    (void)dpari_proof_kinds(&w);
    st = dpari_proof_lowered(&w);
    if (st != DPAR_OK) {
        return st;
    }
    w.transport = how->transport;
    w.room = how->capacity;
    dpari_proof_connect(&w);
    return dpari_proof_run(&w, how->stuck);
}

/* Checks the arguments: the descriptor, the shape of the schedule and the memory. Not inlined, so
 * that its frame is gone before the proof. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status
dpari_proof_arguments(const dpar_schedule *schedule, const dpar_schedule_check_desc *how,
                      int64_t bytes, dpar_why *why)
{
    int64_t needed;
    dpar_status st =
        how != NULL ? dpari_transport_check(how->transport, how->capacity, why) : DPAR_OK;
    if (st == DPAR_OK) {
        st = dpari_proof_shape(schedule, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (dpari_proof_cells(schedule) == 0) {
        return dpari_wrong(
            why, "%d stages per chain and %d micro-batches need more than %ld actions",
            schedule->chain, schedule->micro_batches, schedule->begin[schedule->ranks]);
    }
    needed = dpari_schedule_check_bytes(schedule, how);
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why, "the check of %ld actions needs %ld bytes, got %ld",
                         schedule->begin[schedule->ranks], needed, bytes);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *schedule,
                                         const dpar_schedule_check_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    const int run = how != NULL && how->transport != DPAR_TRANSPORT_NONE;
    int32_t flags = how != NULL ? how->flags : 0;
    dpar_status st = dpari_proof_arguments(schedule, how, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (run) { /* the run itself shows whether the order of a channel matters */
        flags |= DPAR_CHECK_TAGGED;
    }
    st = dpari_proof_rules(schedule, flags, mem, why);
    if (st != DPAR_OK || !run) {
        return st;
    }
    return dpari_proof_transport(schedule, how, mem, why);
}
