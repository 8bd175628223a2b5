/* SPDX-License-Identifier: MIT-0 */
/* Implements the short forms: dpar_launch_main, dpar_init_or_launch and dpar_finalize, dpar_fail,
 * dpar_max and the like, and dpar_comm_check_equal.
 *
 * dpar_fail prints one message for the whole job. If ranks share memory, the first rank that fails
 * claims a word in the segment and prints. Without shared memory, rank 0 prints, and so does a rank
 * whose communicator is not broken yet. dpar_comm_check_equal compares hashes. If they differ, it
 * finds the first different element by bisection, with one all-reduce for each bit of the count. */
#include "simple.h"

#include "../base/base_private.h"
#include "../host/elements.h"
#include "agree.h"
#include "job.h"
#include "launch_private.h"
#include "os.h"
#include "scan.h"
#include "shm.h"

/* ---- the error exit -------------------------------------------------------------------------- */

/* Writes a line to stderr in one piece, after flushing what the program has printed so far. */
static void dpari_main_write(dpar_text *text)
{
    size_t done = 0, n;
    dpari_text_char(text, '\n');
    n = text->used < text->capacity ? text->used : text->capacity - 1;
    text->buffer[n - 1] = '\n'; /* also if the line was too long and was cut off */
    fflush(NULL);
    while (done < n) {
        const ssize_t got = write(2, text->buffer + done, n - done);
        if (got < 0 && errno != EINTR) {
            break;
        }
        done += got > 0 ? (size_t)got : 0;
    }
}

/* True if this rank prints the error for all ranks. */
static int dpari_fail_speaks(dpar_comm *comm)
{
    dpar_comm *shared = dpari_world_of(comm) != NULL ? comm : comm->node;
    if (shared != NULL && dpari_world_of(shared) != NULL) {
        return dpari_shm_speaks(shared);
    }
    return comm->rank == 0 || comm->status == DPAR_OK;
}

/* Prints "rank 2 of 4" and the text to stderr, if no rank has printed anything so far, and breaks
 * comm. */
static void dpari_fail_text(dpar_comm *comm, const char *between, const char *text)
{
    char line[400];
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_text_print(&t, "rank %d failed: %s", comm->rank, text);
    dpar_text_init(&t, line, sizeof line);
    dpari_text_print(&t, "rank %d of %d%s%s", comm->rank, comm->size, between, text);
    if (dpari_fail_speaks(comm)) {
        dpari_main_write(&t);
    }
    dpar_comm_abort(comm, DPAR_E_PEER, why.text);
}

DPAR_API DPARI_COLD int dpar_fail(dpar_comm *comm, const dpar_why *why)
{
    const char *text = "";
    char line[400];
    dpar_text t;
    if (why != NULL) {
        text = why->text;
    } else if (comm != NULL) {
        text = comm->why.text;
    }
    if (text[0] == 0) {
        text = "it failed without a message";
    }
    if (comm != NULL) {
        dpari_fail_text(comm, ": ", text);
        return 1;
    }
    dpar_text_init(&t, line, sizeof line);
    dpar_text_put(&t, text);
    dpari_main_write(&t);
    return 1;
}

DPAR_API DPARI_COLD void dpar_require(dpar_comm *comm, dpar_status status, const dpar_why *why)
{
    dpar_why general;
    if (status >= 0) {
        return;
    }
    if (!comm && !why) {
        (void)dpari_say(status, &general, "%s; pass a dpar_why to the call to learn more",
                        dpar_status_text(status));
        why = &general;
    }
    (void)dpar_fail(comm, why);
    fflush(NULL); /* dpar_fail flushes only on the rank that prints the error */
    _exit(1);
}

/* ---- stdout of one rank ---------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_quiet(dpar_comm *comm)
{
    const dpari_world *world;
    int fd, moved;
    if (comm == NULL) {
        return DPAR_E_ARG;
    }
    world = dpari_world_of(comm);
    if (comm->rank == 0 || (world != NULL && world->threads)) {
        return DPAR_OK;
    }
    fflush(NULL);
    fd = open("/dev/null", O_WRONLY);
    moved = fd < 0 ? -1 : dup2(fd, 1);
    if (fd > 1) {
        close(fd);
    }
    if (moved < 0) {
        return dpari_os_why(&comm->why, "/dev/null in place of stdout", 0, errno);
    }
    return DPAR_OK;
}

/* ---- main ------------------------------------------------------------------------------------ */

/* Prints "heat: " and the message, where heat is the name of the program. */
static void dpari_main_says(const char *program, const char *text)
{
    const char *name = program != NULL ? program : "dpar";
    char line[400];
    dpar_text t;
    for (; program != NULL && *program != 0; program++) {
        name = *program == '/' ? program + 1 : name;
    }
    dpar_text_init(&t, line, sizeof line);
    dpari_text_print(&t, "%s: %s", name, text);
    dpari_main_write(&t);
}

/* Returns the value of the last --ranks, "" if it has none, or NULL if there is no --ranks. */
static const char *dpari_main_ranks(int argc, char **argv)
{
    static const char name[] = "--ranks";
    const size_t n = sizeof name - 1;
    const char *found = NULL;
    int i;
    for (i = 1; i < argc && argv[i] != NULL && !dpari_same(argv[i], "--"); i++) {
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') {
            found = argv[i] + n + 1;
        } else if (dpari_same(argv[i], name)) {
            found = i + 1 < argc && argv[i + 1] != NULL ? argv[++i] : "";
        }
    }
    return found;
}

/* True if a word resembles --ranks. The part between its dashes and '=' or a digit must be "nranks"
 * or "ranks", ignoring case. One letter except the first may be wrong, added or missing, or two
 * adjacent ones exchanged. */
static DPARI_COLD int dpari_main_nearly(const char *word)
{
    static const char name[] = "ranks";
    char s[8];
    size_t n = 0, head = 0, tail = 0, rest;
    if (*word != '-') {
        return 0;
    }
    while (*word == '-') {
        word++;
    }
    for (; *word != 0 && *word != '=' && !(*word >= '0' && *word <= '9'); word++) {
        if (n == 6) {
            return 0;
        }
        s[n++] = dpari_lower(*word);
    }
    s[n] = 0;
    while (head < n && head < 5 && s[head] == name[head]) {
        head++;
    }
    while (tail < n - head && tail < 5 - head && s[n - 1 - tail] == name[4 - tail]) {
        tail++;
    }
    rest = n - head - tail;
    return dpari_same(s, "nranks") ||
           (head > 0 &&
            ((rest <= 1 && 5 - head - tail <= 1) ||
             (rest == 2 && n == 5 && s[head] == name[head + 1] && s[head + 1] == name[head])));
}

/* Takes --ranks and its number out of the arguments, as dpari_main_ranks reads them. */
static void dpari_main_take(int *argc, char **argv)
{
    int i = 1, kept = 1;
    while (i < *argc && argv[i] != NULL && !dpari_same(argv[i], "--")) {
        if (dpari_same(argv[i], "--ranks")) {
            i += 2;
        } else if (strncmp(argv[i], "--ranks=", 8) == 0) {
            i++;
        } else {
            argv[kept++] = argv[i++];
        }
    }
    while (i < *argc) {
        argv[kept++] = argv[i++];
    }
    if (kept < *argc) {
        argv[kept] = NULL;
        *argc = kept;
    }
}

/* Fails if an argument looks like a misspelled --ranks. Called if the number of ranks is not set,
 * because such an argument would otherwise be ignored without a message. */
static DPARI_COLD dpar_status dpari_main_misspelled(int argc, char **argv, dpar_why *why)
{
    int i;
    for (i = 1; i < argc && argv[i] != NULL && !dpari_same(argv[i], "--"); i++) {
        if (dpari_main_nearly(argv[i])) {
            return dpari_wrong(why, "\"%s\" is unknown: --ranks N sets the number of ranks",
                               argv[i]);
        }
    }
    return DPAR_OK;
}

/* Returns the default number of ranks: the cores that this process may use, at most 4. */
static int32_t dpari_main_cores(void)
{
    uint64_t mask[DPARI_CPU_WORDS];
    dpari_os_cpus(mask);
    return (int32_t)dpari_most(1, dpari_least(4, dpari_os_cpu_count(mask)));
}

/* Reads a number of ranks. Sets *asked to 0 if there is no text. */
static dpar_status dpari_main_number(const char *name, const char *text, int64_t *asked,
                                     dpar_why *why)
{
    char line[64];
    dpar_text t;
    *asked = 0;
    if (text == NULL || (dpari_job_number(text, DPARI_MAX_RANKS, asked) && *asked > 0)) {
        return DPAR_OK;
    }
    dpar_text_init(&t, line, sizeof line);
    dpari_text_print(&t, "%s takes a number from 1 to %d, not \"", name, DPARI_MAX_RANKS);
    return dpari_wrong(why, "%s%s\"", line, text);
}

/* Finds out which launcher started this process, and sets *n to the number of ranks, or to 0 if it
 * is not set. If a launcher started only one process, as in an interactive allocation, --ranks or
 * DPAR_RANKS sets the number. */
static dpar_status dpari_main_read(int argc, char **argv, dpar_launcher_info *job, int32_t *n,
                                   dpar_why *why)
{
    const char *text = dpari_main_ranks(argc, argv);
    dpar_status st = dpar_launcher_detect(job, why);
    dpari_site site;
    int64_t asked = 0, usual = 0;
    dpari_site_here(&site);
    if (st == DPAR_OK && job->size <= 1 && text == NULL) {
        st = dpari_main_number("DPAR_RANKS", dpari_site_env(&site, "DPAR_RANKS"), &usual, why);
    }
    if (st == DPAR_OK && job->size <= 1 && text == NULL && usual == 0) {
        st = dpari_main_misspelled(argc, argv, why);
    }
    if (st == DPAR_OK) {
        st = dpari_main_number("--ranks", text, &asked, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (job->size > 1 && asked > 0 && asked != job->size) {
        const char *name = dpari_launcher_name(job->kind);
        return dpari_wrong(why, "--ranks %ld, but %s has started %d ranks", asked, name, job->size);
    }
    *n = (int32_t)(asked > 0 ? asked : usual);
    if (*n == 0 && job->kind != DPAR_LAUNCHER_NONE) {
        *n = job->size;
    }
    return DPAR_OK;
}

/* Converts the result of a rank into an exit code, which is 1 if the result is not in 0 .. 255. */
static int dpari_main_code(int result)
{
    return result > 0 && result < 256 ? result : result != 0;
}

/* Returns the program's exit code after a launch, and prints the error if no rank has printed
 * one. */
static int dpari_main_ends(const char *program, dpar_status st, const dpari_verdict *verdict,
                           const dpar_why *why)
{
    if (st == DPAR_OK) {
        return 0;
    }
    if (!verdict->said) {
        dpari_main_says(program, why->text);
    }
    return dpari_main_code(verdict->result);
}

/* Launches n ranks that run fn. */
static int dpari_main_fork(int32_t n, const char *program, dpar_main fn, void *arg)
{
    dpari_verdict verdict;
    dpari_site site;
    dpar_world_desc o;
    dpar_why why;
    dpar_status st;
    dpari_zero(&o, sizeof o);
    dpari_site_here(&site);
    if (dpari_timeout_here(&site, &o, &why) != DPAR_OK) {
        dpari_main_says(program, why.text);
        return 2;
    }
    st = dpari_launch_verdict(n, fn, arg, &o, &verdict, &why);
    return dpari_main_ends(program, st, &verdict, &why);
}

/* Joins the ranks of a launcher and runs fn. There is no supervisor, so each rank reports its own
 * failure. */
static int dpari_main_join(const char *program, dpar_main fn, void *arg)
{
    dpar_comm *world = NULL;
    dpar_why why;
    dpar_text t;
    int result, whole;
    if (dpar_init(&world, NULL, &why) != DPAR_OK) {
        dpari_main_says(program, why.text);
        return 1;
    }
    result = fn(world, arg);
    whole = world->status == DPAR_OK;
    if (result != 0) {
        dpari_text_why(&t, &why);
        dpari_text_print(&t, " returned %d%s", result, whole ? "" : " after: ");
        dpari_fail_text(world, why.text, whole ? "" : world->why.text);
    }
    if (dpar_comm_free(world) == DPAR_E_ARG && whole && result == 0) {
        dpari_main_says(program, "a rank returned 0 without waiting for all operations that it "
                                 "had posted");
        return 1;
    }
    return dpari_main_code(result);
}

DPAR_API DPARI_COLD int dpar_launch_main(int argc, char **argv, dpar_main fn, void *arg)
{
    const char *program = argc > 0 && argv != NULL ? argv[0] : NULL;
    dpar_launcher_info job;
    dpar_why why;
    int32_t n = 0;
    dpari_zero(&job, sizeof job);
    if (dpari_main_read(argv != NULL ? argc : 0, argv, &job, &n, &why) != DPAR_OK) {
        if (job.rank == 0) {
            dpari_main_says(program, why.text);
        }
        return 2;
    }
    if (job.size > 1) {
        return dpari_main_join(program, fn, arg);
    }
    return dpari_main_fork(n > 0 ? n : dpari_main_cores(), program, fn, arg);
}

/* ---- two calls in a main that was serial ----------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_init_or_launch(int *argc, char ***argv,
                                                    const dpar_world_desc *desc, dpar_comm **world,
                                                    dpar_why *why)
{
    dpari_verdict verdict;
    dpari_site site;
    dpar_launcher_info job;
    dpar_world_desc o;
    dpar_why said;
    dpar_status st;
    char **words = argc != NULL && argv != NULL ? *argv : NULL;
    int32_t n = 0;
    dpari_zero(&o, sizeof o);
    o = desc != NULL ? *desc : o;
    o.threads = 0;
    if (world == NULL) {
        return dpari_wrong(why, "dpar_init_or_launch: world is NULL");
    }
    if (o.ranks < 0 || o.ranks > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "dpar_init_or_launch: ranks must be 0 to %d, not %d",
                           (int32_t)DPARI_MAX_RANKS, o.ranks);
    }
    dpari_site_here(&site);
    st = dpari_timeout_here(&site, &o, why);
    if (st == DPAR_OK) {
        st = dpari_main_read(words != NULL ? *argc : 0, words, &job, &n, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    n = n > 0 ? n : o.ranks;
    if (job.size <= 1 && n > 1) {
        st = dpari_launch_programs(n, words, &o, &verdict, &said);
        exit(dpari_main_ends(words != NULL ? words[0] : NULL, st, &verdict, &said));
    }
    st = dpar_init(world, &o, why);
    if (st == DPAR_OK && words != NULL) {
        dpari_main_take(argc, words);
    }
    return st;
}

DPAR_API DPARI_COLD int dpar_finalize(dpar_comm *world)
{
    if (world == NULL) {
        return 1;
    }
    dpar_barrier(world, NULL); /* dpar_fail can still print why this fails, but not why the close
                                  fails */
    if (world->status < 0) {
        dpar_fail(world, NULL);
        (void)dpar_comm_free(world);
        return 1;
    }
    if (dpar_comm_free(world) == DPAR_E_ARG) {
        dpari_main_says(NULL, "a rank ended without waiting for all operations that it had posted");
        return 1;
    }
    return 0;
}

/* ---- reductions of one number ---------------------------------------------------------------- */

/* Returns NaN if the all-reduce fails. */
DPARI_STATIC_NOINLINE double dpari_scalar(dpar_comm *comm, double x, int32_t op)
{
    double all = 0.0;
    if (dpar_all_reduce(comm, &x, &all, 1, DPAR_F64, op, NULL) != DPAR_OK) {
        const uint64_t nan = UINT64_C(0x7ff8000000000000);
        dpari_elements_bits(&all, &nan, 8);
    }
    return all;
}

DPAR_API double dpar_max(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_MAX);
}

DPAR_API double dpar_min(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_MIN);
}

DPAR_API double dpar_sum(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_SUM);
}

DPAR_API double dpar_mean(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_AVG);
}

DPARI_STATIC_NOINLINE DPARI_COLD double dpari_scalar_location(dpar_comm *comm, double x,
                                                              int64_t *index, int32_t op)
{
    dpar_location all;
    all.value = x;
    all.index = *index;
    if (dpar_all_reduce_location(comm, &all, 1, op) != DPAR_OK) {
        return dpari_scalar(NULL, x, op);
    }
    *index = all.index;
    return all.value;
}

DPAR_API double dpar_max_location(dpar_comm *comm, double x, int64_t *index)
{
    return dpari_scalar_location(comm, x, index, DPAR_MAX);
}

DPAR_API double dpar_min_location(dpar_comm *comm, double x, int64_t *index)
{
    return dpari_scalar_location(comm, x, index, DPAR_MIN);
}

DPAR_API DPARI_COLD int64_t dpar_first_index(dpar_comm *comm, int64_t count)
{
    int64_t first = -1;
    if (dpar_exscan(comm, &count, &first, 1, DPAR_I64, DPAR_SUM) != DPAR_OK) {
        return -1;
    }
    return first;
}

/* ---- comparing data of all ranks ------------------------------------------------------------- */

/* The data of one rank, as passed to dpar_comm_check_equal. */
typedef struct dpari_equal_data {
    const unsigned char *data;
    int64_t count;
    int32_t type;
    int64_t unit; /* bytes of an element */
} dpari_equal_data;

/* Adds the arguments that must be equal before the data can be compared (agree.h). */
static DPARI_COLD void dpari_equal_state(dpari_facts *facts, const void *given)
{
    const dpari_equal_data *s = (const dpari_equal_data *)given;
    dpari_fact(facts, "count", 0, s->count);
    dpari_fact_type(facts, "type", 0, s->type);
}

/* Hashes n bytes in four independent lanes of 8-byte words, because one step of a hash takes longer
 * than loading a word. A step maps different words to different hashes, so that a difference in a
 * single word is always noticed. */
static uint64_t dpari_equal_hash(const unsigned char *at, int64_t n)
{
    uint64_t lane[4] = {1, 2, 3, 4}, h = (uint64_t)n;
    int64_t word[4], i, last = 0;
    int32_t k;
    for (i = 0; i + 32 <= n; i += 32) {
        dpari_elements_bits(word, at + i, 32);
        for (k = 0; k < 4; k++) {
            lane[k] = dpari_hash(lane[k], word[k]);
        }
    }
    for (; i + 8 <= n; i += 8) {
        dpari_elements_bits(word, at + i, 8);
        lane[0] = dpari_hash(lane[0], word[0]);
    }
    for (; i < n; i++) {
        last = last * 256 + at[i];
    }
    for (k = 0; k < 4; k++) {
        h = dpari_hash(h, (int64_t)lane[k]);
    }
    return dpari_hash(h, last);
}

/* Tests whether elements [low, high) have the same hash on all ranks. Returns 1 if they have, 0 if
 * not, or an error. The minimum of the complemented hashes is the complement of the largest
 * hash. */
static dpar_status dpari_equal_part(dpar_comm *comm, const dpari_equal_data *s, int64_t low,
                                    int64_t high)
{
    uint64_t in[2], out[2] = {0, 0};
    dpar_status st;
    in[0] = dpari_equal_hash(s->data + low * s->unit, (high - low) * s->unit);
    in[1] = ~in[0];
    st = dpar_all_reduce(comm, in, out, 2, DPAR_U64, DPAR_MIN, NULL);
    return st != DPAR_OK ? st : out[0] == ~out[1];
}

/* Returns the bits of an element in the first bytes of a word. */
static int64_t dpari_equal_bits(const dpari_equal_data *s, int64_t at)
{
    int64_t bits = 0;
    dpari_kern_copy(&bits, s->data + at * s->unit, s->unit, 0);
    return bits;
}

/* Appends an element, whose bits are at `bits`. digits: number of significant digits of a float. */
DPARI_STATIC_NOINLINE void dpari_equal_put(dpar_text *text, const int64_t *bits, int32_t type,
                                           int32_t digits)
{
    const void *at = bits;
    double real;
    if (dpari_is_float(type) || type == DPAR_TF32) {
        dpari_elements_load(&real, at, 0, 1, type == DPAR_TF32 ? DPAR_F32 : type);
        dpari_text_real(text, real, digits);
        return;
    }
    switch (type) {
    case DPAR_I8: dpari_text_int(text, *(const int8_t *)at); return;
    case DPAR_I32: dpari_text_int(text, *(const int32_t *)at); return;
    case DPAR_U32: dpari_text_int(text, *(const uint32_t *)at); return;
    case DPAR_I64: dpari_text_int(text, *bits); return;
    case DPAR_U64:
        if (*bits < 0) {
            dpari_text_print(text, "%ld%ld", (int64_t)((uint64_t)*bits / 10),
                             (int64_t)((uint64_t)*bits % 10));
            return;
        }
        dpari_text_int(text, *bits);
        return;
    default: dpari_text_int(text, *(const uint8_t *)at); return;
    }
}

/* Writes "element 7 is 0.25 on rank 0, 0.75 on rank 3", with enough digits to distinguish the two
 * values: 6, and then up to 17 for F64 and 9 or more for other types. Values whose texts never
 * differ, such as two NaN, have "other bits". */
static void dpari_equal_say(dpar_why *found, int64_t at, int32_t type, const int64_t *bits,
                            int32_t who)
{
    char word[2][48];
    dpar_text t;
    int32_t i, digits;
    for (digits = 6; digits < 20; digits += type == DPAR_F64 ? 11 : 3) {
        for (i = 0; i < 2; i++) {
            dpar_text_init(&t, word[i], sizeof word[i]);
            dpari_equal_put(&t, bits + i, type, digits);
        }
        if (!dpari_same(word[0], word[1])) {
            break;
        }
    }
    dpari_text_why(&t, found);
    dpari_text_print(&t, "element %ld is %s on rank 0, %s%s%d", at, word[0], word[1],
                     digits < 20 ? " on rank " : " with other bits on rank ", who);
}

/* Finds the first element in which a rank differs from rank 0, by bisection. */
static dpar_status dpari_equal_find(dpar_comm *comm, const dpari_equal_data *s, dpar_why *found)
{
    int64_t low = 0, high = s->count, bits[2];
    int32_t mine, who = 0;
    dpar_status st = DPAR_OK;
    while (high - low > 1 && st >= 0) {
        const int64_t middle = low + (high - low) / 2;
        st = dpari_equal_part(comm, s, low, middle);
        low = st == 1 ? middle : low;
        high = st == 1 ? high : middle;
    }
    bits[0] = bits[1] = dpari_equal_bits(s, low);
    if (st >= 0) {
        st = dpar_broadcast(comm, &bits[0], 8, DPAR_U8, 0, NULL);
    }
    mine = bits[0] != bits[1] ? comm->rank : comm->size - 1;
    if (st >= 0) {
        st = dpar_all_reduce(comm, &mine, &who, 1, DPAR_I32, DPAR_MIN, NULL);
    }
    if (st >= 0) {
        st = dpar_broadcast(comm, &bits[1], 8, DPAR_U8, who, NULL);
    }
    if (st < 0) {
        return st;
    }
    dpari_equal_say(found, low, s->type, bits, who);
    return DPAR_E_MISMATCH;
}

static dpar_status dpari_equal_check(const dpari_equal_data *s, dpar_why *why)
{
    if (s->unit == 0) {
        return dpari_wrong(why, "dpar_comm_check_equal: type %s has no elements of whole bytes",
                           dpar_type_name(s->type));
    }
    if (s->count < 0 || s->count > (INT64_C(1) << 62) / s->unit) {
        return dpari_wrong(why, "dpar_comm_check_equal: count must be 0 to 2^62 bytes, not %ld",
                           s->count);
    }
    if (s->count > 0 && s->data == NULL) {
        return dpari_wrong(why, "dpar_comm_check_equal: data is NULL");
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_comm_check_equal(dpar_comm *comm, const void *data,
                                                      int64_t count, int32_t type, dpar_why *why)
{
    dpari_equal_data s;
    dpar_why found;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_comm_check_equal: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    s.data = (const unsigned char *)data;
    s.count = count;
    s.type = type;
    s.unit = dpar_type_bytes(type);
    dpari_zero(&found, sizeof found);
    st = dpari_equal_check(&s, &found);
    st = dpari_agree_on(comm, st, "dpar_comm_check_equal", st == DPAR_OK ? dpari_equal_state : NULL,
                        &s, &found);
    if (st == DPAR_OK) {
        st = dpari_equal_part(comm, &s, 0, count);
        if (st == 0) {
            st = dpari_equal_find(comm, &s, &found);
        } else if (st == 1) {
            st = DPAR_OK;
        }
    }
    if (st != DPAR_OK) {
        comm->why = found.text[0] != 0 ? found : comm->why;
        if (why != NULL) {
            *why = comm->why;
        }
    }
    return st;
}
