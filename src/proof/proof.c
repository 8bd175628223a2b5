/* SPDX-License-Identifier: MIT-0 */
/* Proves lists of the caller, and writes reports. */
#include "proof.h"

#include "../base/base_private.h"
#include "proof_lists.h"

/* ---- lists of the caller --------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_proof_transfers(const dpar_proof_desc *desc,
                                                     dpar_proof_report *report, dpar_why *why)
{
    dpari_prove_source source;
    dpari_prove_caller caller;
    if (desc == NULL || report == NULL || desc->next == NULL || desc->owner != NULL) {
        return dpari_wrong(why,
                           "dpar_proof_transfers: desc, desc->next and report must be set, and "
                           "desc->owner must be NULL");
    }
    dpari_zero(&source, sizeof source);
    dpari_zero(&caller, sizeof caller);
    caller.next = desc->next;
    caller.lists = desc->lists;
    source.of = &caller;
    source.units = source.ranks = desc->ranks;
    source.dims = DPAR_MAX_DIMS;
    source.first = dpari_prove_caller_first;
    source.next = dpari_prove_caller_next;
    return dpari_prove_run(&source, desc, report, why);
}

/* ---- reports --------------------------------------------------------------------------------- */

/* Appends a line of the table. */
static DPARI_COLD void dpari_prove_put_range(dpar_text *out, const char *name,
                                             const dpar_proof_range *range)
{
    dpari_text_say(out, "  %s", name);
    dpari_text_column(out, 24);
    dpari_text_say(out, "%12ld %12ld  rank %d", range->least, range->most, range->most_rank);
    dpari_text_column(out, 68);
    dpari_text_say(out, "%16ld\n", range->total);
}

DPAR_API DPARI_COLD void dpar_proof_draw(const dpar_proof_report *report, dpar_text *out)
{
    if (report == NULL || out == NULL) {
        return;
    }
    if (report->ranks < 1) {
        dpar_text_put(out, "Nothing is proved.\n");
        return;
    }
    dpari_text_say(out, "PROVED for %d ranks", report->ranks);
    if (report->blocks != report->ranks) {
        dpari_text_say(out, " with %ld blocks", report->blocks);
    }
    dpari_text_say(out, ": %ld transfers of %ld points.\n", report->transfers, report->points);
    dpar_text_put(out, "Each send has its receive, with the same bytes.\n");
    dpar_text_put(out, report->owners ? "Each point that is due comes once, from its owner.\n"
                                      : "No point is written twice.\n");
    dpar_text_put(out, "Ranks that post their messages before they wait cannot deadlock.\n\n");
    dpar_text_put(out, "  of a rank                    least         most");
    dpari_text_column(out, 79);
    dpar_text_put(out, "total\n");
    dpari_prove_put_range(out, "messages sent", &report->messages);
    dpari_prove_put_range(out, "peers", &report->peers);
    dpari_prove_put_range(out, "bytes sent", &report->sent);
    dpari_prove_put_range(out, "bytes received", &report->received);
    dpari_prove_put_range(out, "bytes copied", &report->copied);
    dpari_prove_put_range(out, "bytes of staging", &report->staging);
}
