/* SPDX-License-Identifier: MIT-0 */
/* plan_job: the job that tests of strategies and plans use: model, cluster and settings. */
#ifndef PLAN_JOB_H
#define PLAN_JOB_H

#include "dpar_cost.h"

#include "check.h"

static dpar_workload w;
static dpar_cluster c;
static dpar_job job;

static inline void set(const char *model, const char *cluster, const char *recipe)
{
    dpar_model m;
    dpar_why why;
    CHECK_INT(dpar_model_read(&m, model, strlen(model), &why), DPAR_OK);
    CHECK_INT(dpar_workload_init(&w, &m, 0, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_read(&c, cluster, strlen(cluster), &why), DPAR_OK);
    CHECK_INT(dpar_recipe_find(&job.recipe, recipe, &why), DPAR_OK);
    job.work = &w;
    job.cluster = &c;
}

#endif
