/* What a text needs and does, as JSON for people. */
#include "gpu/program.h"

#include "service/base/nearest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the params' values ------------------------------------------------------------------------------------------ */

static enum status unknown_param(const struct program *p, struct bytes name, struct error *e)
{
    const char *names[PROGRAM_PARAMS_MAX + 1], *near;
    int shown = name.size < PROGRAM_NAME_SIZE_MAX ? (int)name.size : PROGRAM_NAME_SIZE_MAX;

    for (unsigned i = 0; i < p->param_count; i++) names[i] = p->params[i].name;
    names[p->param_count] = NULL;
    near = nearest_name(name, names);
    return error_set(e, REASON_UPDATER_INVALID, "/params/%.*s: the program has no such param%s%s%s", shown,
                     (const char *)name.at, near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                     near != NULL ? "?" : "");
}

static enum status set_params(const struct program *p, const struct program_setting *settings, unsigned count,
                              double *params, struct error *e)
{
    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    for (unsigned i = 0; i < count; i++) {
        int param = program_param_find(p, settings[i].name);
        if (param < 0) return unknown_param(p, settings[i].name, e);
        if (!isfinite(settings[i].value))
            return error_set(e, REASON_UPDATER_INVALID, "/params/%s: must be a finite number", p->params[param].name);
        params[param] = settings[i].value;
    }
    return STATUS_OK;
}

/* ---- what it needs ----------------------------------------------------------------------------------------------- */

static void write_slots(const struct program *p, struct buf *json)
{
    buf_text(json, "\"slots\": [");
    for (unsigned i = 0; i < p->slot_count; i++)
        buf_format(json, "%s{\"name\": \"%s\", \"starts_as\": %s}", i > 0 ? ", " : "", p->slots[i].name,
                   p->slots[i].starts_as_stored ? "\"stored\"" : "0");
    buf_text(json, "], ");
}

static void write_params(const struct program *p, const double *params, struct buf *json)
{
    buf_text(json, "\"params\": [");
    for (unsigned i = 0; i < p->param_count; i++) {
        buf_format(json, "%s{\"name\": \"%s\", \"standard\": ", i > 0 ? ", " : "", p->params[i].name);
        buf_number(json, p->params[i].standard);
        buf_text(json, ", \"value\": ");
        buf_number(json, params[i]);
        buf_text(json, "}");
    }
    buf_text(json, "], ");
}

static unsigned host_operations(const struct program *p)
{
    unsigned n = 0;

    for (unsigned i = 0; i < p->host_count; i++)
        n += p->host[i].op != PROGRAM_HOST_number && p->host[i].op < EXPR_OPS_END;
    return n;
}

static void write_costs(const struct program *p, struct buf *json)
{
    buf_format(json, "\"instructions\": %u, \"host_operations\": %u, \"registers\": %u, \"scalars\": %u, ",
               p->insn_count, host_operations(p), p->register_count, p->scalar_count);
    buf_format(json, "\"bytes_per_element\": {\"f32\": %u, \"f64\": %u}, ", program_bytes(p, DTYPE_f32),
               program_bytes(p, DTYPE_f64));
    buf_format(json, "\"state_bytes_per_element\": {\"f32\": %u, \"f64\": %u}, ", 4 * p->slot_count, 8 * p->slot_count);
}

/* ---- what it does ------------------------------------------------------------------------------------------------ */

enum { ELEMENTS = 4, STEPS = 2 };

static const float example_stored[ELEMENTS] = {1, -0.5f, 0, 2}, example_grad[ELEMENTS] = {0.5f, -1, 0.25f, 0};

/* Seven digits are what a float has; more would show noise. What JSON has no number for is a text, as in values. */
static void write_array(const char *name, const float *at, struct buf *json)
{
    char digits[32];

    buf_format(json, "\"%s\": [", name);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        snprintf(digits, sizeof digits, "%.7g", (double)at[i]);
        if (i > 0) buf_text(json, ", ");
        if (isnan(at[i])) buf_text(json, "\"NaN\"");
        else if (isinf(at[i])) buf_text(json, at[i] > 0 ? "\"Infinity\"" : "\"-Infinity\"");
        else buf_number(json, strtod(digits, NULL));
    }
    buf_text(json, "]");
}

static void write_example(const struct program *p, const double *params, struct buf *json)
{
    float room[PROGRAM_SCRATCH0][ELEMENTS] = {{0}}, *arrays[PROGRAM_SCRATCH0];
    double moments[EXPR_MOMENT_COUNT] = {[EXPR_MOMENT_contributors] = 1, [EXPR_MOMENT_num_workers] = 1};
    double scalars[PROGRAM_SCALARS_MAX];

    memcpy(room[PROGRAM_STORED], example_stored, sizeof example_stored);
    memcpy(room[PROGRAM_GRAD], example_grad, sizeof example_grad);
    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++) arrays[i] = room[i];
    for (unsigned i = 0; i < p->slot_count; i++)
        if (p->slots[i].starts_as_stored) memcpy(room[PROGRAM_SLOT0 + i], example_stored, sizeof example_stored);
    buf_text(json, "\"example\": {\"contributors\": 1, \"num_workers\": 1, \"staleness\": 0, ");
    write_array("stored", example_stored, json);
    buf_text(json, ", ");
    write_array("grad", example_grad, json);
    buf_text(json, ", \"steps\": [");
    for (unsigned t = 1; t <= STEPS; t++) {
        moments[EXPR_MOMENT_step] = t;
        program_scalars(p, params, moments, scalars);
        program_run_f32(p, scalars, arrays, ELEMENTS);
        buf_text(json, t > 1 ? ", {" : "{");
        write_array("stored", room[PROGRAM_STORED], json);
        buf_text(json, ", \"slots\": {");
        for (unsigned i = 0; i < p->slot_count; i++) {
            if (i > 0) buf_text(json, ", ");
            write_array(p->slots[i].name, room[PROGRAM_SLOT0 + i], json);
        }
        buf_text(json, "}}");
    }
    buf_text(json, "]}");
}

enum status program_report(struct bytes text, const struct program_setting *settings, unsigned count, struct buf *json,
                           struct error *e)
{
    double params[PROGRAM_PARAMS_MAX];
    struct program *p = NULL;
    enum status s;

    s = program_new(text, &p, e);
    if (s != STATUS_OK) goto out;
    s = set_params(p, settings, count, params, e);
    if (s != STATUS_OK) goto out;
    buf_text(json, "{");
    write_slots(p, json);
    write_params(p, params, json);
    write_costs(p, json);
    write_example(p, params, json);
    buf_text(json, "}");
    if (json->failed) s = error_set(e, REASON_NO_MEMORY, "no memory to tell of an updater program");
out:
    program_free(p);
    return s;
}
