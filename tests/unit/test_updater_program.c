/* {"type": "program", ...}: the document, and a store under it: what the names of the language mean there, params and
 * texts that change while it runs, and what becomes of slots. */
#include "gpu/program.h"
#include "service/updater.h"
#include "tests/lib/devices.h"

#include "service/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error error;

static struct updater *parsed(const char *json)
{
    struct updater *u = NULL;
    CHECK_OK(updater_parse(bytes_text(json), &u, &error), &error);
    return u;
}

/* ---- documents ------------------------------------------------------------------------------------------------------- */

#define TEXT "\"text\": \"param lr = 0.5, mu = 0\\nslot m = 0\\nm = mu * m + grad\\nstored -= lr * m\""

static const struct {
    const char *json, *text;
} good[] = {
    {"{\"type\": \"program\", \"text\": \"stored += grad * 2\"}",
     "{\"type\": \"program\", \"text\": \"stored += grad * 2\", \"params\": {}}"},
    {"{\"params\": null, \"text\": \"stored = grad\", \"type\": \"program\"}",
     "{\"type\": \"program\", \"text\": \"stored = grad\", \"params\": {}}"},
    {"{\"type\": \"program\", " TEXT "}", "{\"type\": \"program\", " TEXT ", \"params\": {\"lr\": 0.5, \"mu\": 0.0}}"},
    {"{\"type\": \"program\", " TEXT ", \"params\": {\"mu\": 0.25}}",
     "{\"type\": \"program\", " TEXT ", \"params\": {\"lr\": 0.5, \"mu\": 0.25}}"},
    {"{\"type\": \"program\", " TEXT ", \"schedule\": {\"type\": \"constant\"}, \"overrides\": ["
     "{\"params\": {\"mu\": 3, \"lr\": 0.5}, \"match\": \"*b\", \"assign\": false}]}",
     "{\"type\": \"program\", " TEXT ", \"params\": {\"lr\": 0.5, \"mu\": 0.0}, \"schedule\": {\"type\": \"constant\", "
     "\"base_lr\": null, \"warmup_steps\": 0.0, \"warmup_begin_lr\": 0.0, \"warmup_mode\": \"linear\"}, \"overrides\": "
     "[{\"match\": \"*b\", \"assign\": false, \"params\": {\"lr\": 0.5, \"mu\": 3.0}}]}"},
    {"{\"type\": \"program\", \"text\": \"stored = grad # \\\"\\\\ \xc3\xa4\\t\"}",
     "{\"type\": \"program\", \"text\": \"stored = grad # \\\"\\\\ \xc3\xa4\\u0009\", \"params\": {}}"},
};

TEST(a_good_document_is_written_out_with_its_params)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct updater *u = parsed(good[i].json), *again;
        char written[400];
        CHECK_EQ(strlen(good[i].text) < sizeof written, true);
        snprintf(written, sizeof written, "%s", updater_text(u));
        for (char *c = written; (c = strstr(c, "\\u000a")) != NULL;) {      /* a line's end, as the table has it */
            memmove(c + 2, c + 6, strlen(c + 6) + 1);
            memcpy(c, "\\n", 2);
        }
        CHECK_TEXT(written, good[i].text);
        again = parsed(updater_text(u));
        CHECK(updater_equal(u, again));
        updater_drop(u);
        updater_drop(again);
    }
}

static const struct {
    const char *json, *says;
} bad[] = {
    {"{\"type\": \"program\"}", "/text: must be a text in the updater language"},
    {"{\"type\": \"program\", \"text\": 3}", "/text: must be a text"},
    {"{\"type\": \"program\", \"text\": \"stored = gard\"}",
     "/text: line 1, column 10: there is no name 'gard' here; did you mean 'grad'?\n  stored = gard\n           ^"},
    {"{\"type\": \"program\", \"text\": \"\"}", "/text: line 1, column 1: the program is empty"},
    {"{\"type\": \"program\", \"text\": \"slot master = 0; master = grad; stored = grad\"}", "/text: line 1, column 6: 'master' is the slot of the f32 copy"},
    {"{\"type\": \"program\", \"txt\": \"stored = grad\"}", "/txt: program has no such name; did you mean text?"},
    {"{\"type\": \"program\", \"text\": \"stored = grad\", \"learning_rate\": 1}", "/learning_rate: program has no such name"},
    {"{\"type\": \"program\", \"text\": \"stored = grad\", \"schedule\": {\"type\": \"constant\"}}",
     "/schedule: the program has no param called learning_rate or lr"},
    {"{\"type\": \"program\", " TEXT ", \"overrides\": [{\"match\": \"*\", \"params\": {\"lrr\": 1}}]}",
     "/overrides/0/params/lrr: the program has no such name; did you mean lr?"},
    {"{\"type\": \"program\", " TEXT ", \"overrides\": [{\"match\": \"*\", \"params\": {\"lr\": null}}]}",
     "/overrides/0/params/lr: must be a number from"},
    {"{\"type\": \"program\", " TEXT ", \"overrides\": [{\"match\": \"*\", \"params\": 2}]}",
     "/overrides/0/params: must be an object of factors"},
    {"{\"type\": \"program\", " TEXT ", \"overrides\": [{\"match\": \"*\", \"lr_mult\": 2}]}",
     "/overrides/0/lr_mult: program has no such name"},
    {"{\"type\": \"program\", \"text\": \"stored = grad\", \"params\": 3}", "/params: must be an object"},
    {"{\"type\": \"program\", " TEXT ", \"params\": {\"lrr\": 1}}", "/params/lrr: the program has no such name; did you mean lr?"},
    {"{\"type\": \"program\", " TEXT ", \"params\": {\"lr\": \"x\", \"a/b\": 1}}", "/params/lr: must be a number; /params/a~1b: "},
    {"{\"type\": \"sgd\", \"text\": \"stored = grad\"}", "/text: sgd has no such name"},
};

TEST(a_bad_document_is_refused_with_its_place)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct updater *u = NULL;
        struct buf faults = {0};
        int64_t before = mem_live();
        if (updater_parse(bytes_text(bad[i].json), &u, &error) == STATUS_OK)
            test_fail(__FILE__, __LINE__, "accepted: %s", bad[i].json);
        CHECK_EQ(error.reason, REASON_UPDATER_INVALID);
        CHECK_SAYS(error.text, bad[i].says);
        CHECK_EQ(mem_live(), before);
        /* In a list each fault is one line. */
        CHECK_EQ(updater_check(bytes_text(bad[i].json), &faults, &error), STATUS_INVALID_ARGUMENT);
        buf_add(&faults, "", 1);
        for (const char *line = (const char *)faults.at; *line != '\0'; line = strchr(line, '\n') + 1) CHECK_EQ(*line, '/');
        buf_fini(&faults);
    }
}

TEST(every_failing_allocation_of_a_parse_is_told)
{
    static const char *const documents[] = {"{\"type\": \"program\", " TEXT ", \"params\": {\"mu\": 0.5}, "
                                            "\"schedule\": {\"type\": \"constant\"}, \"overrides\": ["
                                            "{\"match\": \"a\", \"frozen\": true, \"params\": {\"lr\": 2}}]}",
                                            "{\"type\": \"program\", \"text\": \"stored = gard\"}"};

    for (size_t i = 0; i < 2; i++)
        for (uint64_t n = 1;; n++) {
            struct updater *u = NULL;
            int64_t before = mem_live();
            mem_fault_at(n);
            enum status s = updater_parse(bytes_text(documents[i]), &u, &error);
            bool hit = mem_fault_hit();
            mem_fault_at(0);
            updater_drop(u);
            CHECK_EQ(mem_live(), before);
            CHECK_EQ(s, hit ? STATUS_RESOURCE_EXHAUSTED : i == 0 ? STATUS_OK : STATUS_INVALID_ARGUMENT);
            if (!hit) break;
        }
}

TEST(a_program_takes_reals_only)
{
    struct updater *u = parsed("{\"type\": \"program\", \"text\": \"stored = grad\"}");

    CHECK_EQ(updater_fits(u, bytes_text("w"), DTYPE_f32, &error), STATUS_OK);
    CHECK_EQ(updater_fits(u, bytes_text("w"), DTYPE_f64, &error), STATUS_OK);
    CHECK_EQ(updater_fits(u, bytes_text("w"), DTYPE_bf16, &error), STATUS_OK);
    CHECK_EQ(updater_fits(u, bytes_text("w"), DTYPE_i32, &error), STATUS_FAILED_PRECONDITION);
    CHECK_SAYS(error.text, "program needs fractions");
    updater_drop(u);
}

/* ---- a store under a program ----------------------------------------------------------------------------------------- */

static const char async_[] = "\"type\": \"dist_async\"";

#define STORE_TEST(name) TEST_ON(ON_CPU | ON_LATE | ON_SIM, name)

static void push(struct client *c, uint64_t id, uint64_t step, float value, size_t count)
{
    do_push(c, id, step, value, count);
    fixture_settle(c->fixture);
}

static void set_text(struct client *c, const char *text, const char *rest)
{
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"program\", \"text\": \"%s\"}%s}", c->store, text, rest);
}

static void set_params(struct client *c, const char *text, const char *params)
{
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"program\", \"text\": \"%s\", \"params\": {%s}}}",
            c->store, text, params);
}

/* MXNet's tutorial: 4, and then the sum of four workers' ones is added twice. */
STORE_TEST(the_tutorials_updater_adds_twice_the_gradient)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 3, 4, 5);

    set_text(c, "stored += grad * 2", "");
    push(c, id, 1, 1, 5);
    CHECK_NEAR(do_pull(c, id, 5), 6, 0);
    client_gone(c);
}

STORE_TEST(step_counts_the_updates_of_the_key)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t a = do_init(c, 1, 0, 3), b = do_init(c, 2, 0, 3);

    set_text(c, "stored += grad * 10 ^ step", "");
    push(c, a, 1, 1, 3);
    CHECK_NEAR(do_pull(c, a, 3), 10, 0);
    push(c, a, 2, 1, 3);
    CHECK_NEAR(do_pull(c, a, 3), 110, 0);
    push(c, b, 1, 1, 3);
    CHECK_NEAR(do_pull(c, b, 3), 10, 0);
    client_gone(c);
}

STORE_TEST(a_round_has_its_contributors_and_the_stores_workers)
{
    static const char sync2[] = "\"type\": \"dist_sync\", \"num_workers\": 2";
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    uint64_t id = do_init(a, 1, 0, 3);

    set_text(a, "stored = grad + 100 * contributors + 1000 * num_workers + 10000 * staleness", "");
    push(a, id, 1, 3, 3);
    push(b, id, 1, 4, 3);
    CHECK_NEAR(do_pull(a, id, 3), 2207, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(staleness_is_how_many_versions_the_pulled_one_is_behind)
{
    struct client *a = client_joined(f, 1, async_), *b = client_joined(f, 2, async_);
    uint64_t id = do_init(a, 1, 0, 3);

    set_text(a, "stored = 10 * stored + staleness", "");
    push(b, id, 1, 0, 3);                 /* b never pulled: nothing is known */
    CHECK_NEAR(do_pull(b, id, 3), 0, 0);
    CHECK_NEAR(do_pull(a, id, 3), 0, 0);
    push(a, id, 1, 0, 3);                 /* from the newest */
    CHECK_NEAR(do_pull(a, id, 3), 0, 0);
    push(b, id, 2, 0, 3);                 /* one behind */
    CHECK_NEAR(do_pull(a, id, 3), 1, 0);
    push(b, id, 3, 0, 3);                 /* two behind */
    CHECK_NEAR(do_pull(a, id, 3), 12, 0);
    push(a, id, 2, 0, 3);
    CHECK_NEAR(do_pull(a, id, 3), 120, 0);
    client_gone(a);
    client_gone(b);
}

STORE_TEST(params_change_while_slots_go_on)
{
    static const char text[] = "param lr = 1, mu = 0.5\\nslot m = 0\\nm = mu * m + grad\\nstored -= lr * m";
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 1, 0, 3);

    set_params(c, text, "");
    push(c, id, 1, 4, 3);                 /* m 4, stored -4 */
    CHECK_NEAR(do_pull(c, id, 3), -4, 0);
    set_params(c, text, "\"lr\": 2");
    push(c, id, 2, 0, 3);                 /* m 2, stored -8 */
    CHECK_NEAR(do_pull(c, id, 3), -8, 0);
    set_params(c, text, "\"lr\": 0, \"mu\": 1");
    push(c, id, 3, 1, 3);                 /* m 3 */
    CHECK_NEAR(do_pull(c, id, 3), -8, 0);
    set_params(c, text, "\"lr\": 1, \"mu\": 1");
    push(c, id, 4, 0, 3);
    CHECK_NEAR(do_pull(c, id, 3), -11, 0);
    client_gone(c);
}

STORE_TEST(a_slot_may_start_as_the_value)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 1, 5, 3);

    set_text(c, "slot first = stored\\nfirst = first\\nstored = grad\\nstored = stored + 10 * first\\nfirst = first * 1", "");
    push(c, id, 1, 1, 3);
    CHECK_NEAR(do_pull(c, id, 3), 51, 0);
    push(c, id, 2, 2, 3);
    CHECK_NEAR(do_pull(c, id, 3), 52, 0);
    client_gone(c);
}

/* From text to text, from a built-in to a text and back: slots of one name stay. */
STORE_TEST(slots_of_one_name_are_kept_over_a_swap)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 1, 0, 3);

    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 1, \"momentum\": 0.5}}",
            c->store);
    push(c, id, 1, -8, 3);                /* momentum 8, stored 8 */
    set_text(c, "slot momentum = 0, last = 0\\nlast = grad\\nmomentum = 0.5 * momentum - last\\nstored += momentum", "");
    push(c, id, 2, 0, 3);                 /* momentum 4, stored 12 */
    CHECK_NEAR(do_pull(c, id, 3), 12, 0);
    set_text(c, "slot other = 0, momentum = 0\\nother += 1\\nmomentum = 0.5 * momentum - grad\\nstored += momentum + other", "");
    push(c, id, 3, 0, 3);                 /* momentum 2, other 1, stored 15 */
    CHECK_NEAR(do_pull(c, id, 3), 15, 0);
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": {\"type\": \"sgd\", \"learning_rate\": 1, \"momentum\": 0.5}}",
            c->store);
    push(c, id, 4, 0, 3);                 /* momentum 1, stored 16 */
    CHECK_NEAR(do_pull(c, id, 3), 16, 0);
    client_gone(c);
}

/* A text whose slots depend on step begins anew when one of them is new; with states reset any does. */
STORE_TEST(step_begins_with_the_slots)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t id = do_init(c, 1, 0, 3);

    set_text(c, "slot m = 0\\nm += 1\\nstored = step * 100 + m + 0 * grad", "");
    push(c, id, 1, 0, 3);
    push(c, id, 2, 0, 3);
    CHECK_NEAR(do_pull(c, id, 3), 202, 0);
    set_text(c, "slot m = 0\\nm += 2\\nstored = step * 100 + m + 0 * grad", "");
    push(c, id, 3, 0, 3);
    CHECK_NEAR(do_pull(c, id, 3), 304, 0);
    set_text(c, "slot m = 0, n = 0\\nm += 2\\nn += 1\\nstored = step * 100 + m + 10 * n + 0 * grad", "");
    push(c, id, 4, 0, 3);
    CHECK_NEAR(do_pull(c, id, 3), 112, 0);
    set_text(c, "slot m = 0, n = 0\\nm += 3\\nn += 1\\nstored = step * 100 + m + 10 * n + 0 * grad", ", \"states\": \"reset\"");
    push(c, id, 5, 0, 3);
    CHECK_NEAR(do_pull(c, id, 3), 113, 0);
    client_gone(c);
}

STORE_TEST(a_text_is_checked_without_a_store)
{
    struct client *c = client_new(f, 1);
    json_t *j = try_json(c, WIRE_UpdaterCheck, &error, "{\"text\": \"param lr = 1; slot m = 0; m += grad; stored -= lr * m\", "
                                                       "\"params\": {\"lr\": 2}}");
    CHECK(j != NULL);
    CHECK_EQ(json_array_size(json_object_get(j, "slots")), 1);
    CHECK_EQ(json_integer_value(json_object_get(j, "instructions")), 2);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(j, "bytes_per_element"), "f32")), 20);
    CHECK_NEAR(json_number_value(json_object_get(json_array_get(json_object_get(j, "params"), 0), "value")), 2, 0);
    json_decref(j);
    CHECK(try_json(c, WIRE_UpdaterCheck, &error, "{\"text\": \"stored = gard\"}") == NULL);
    CHECK_SAYS(error.text, "line 1, column 10: there is no name 'gard' here; did you mean 'grad'?\n  stored = gard\n");
    CHECK(try_json(c, WIRE_UpdaterCheck, &error, "{\"text\": \"stored = grad\", \"params\": {\"lr\": 2}}") == NULL);
    CHECK_SAYS(error.text, "/params/lr: the program has no such param");
    CHECK(try_json(c, WIRE_UpdaterCheck, &error, "{\"text\": \"stored = grad\", \"params\": {\"lr\": \"x\"}}") == NULL);
    CHECK_SAYS(error.text, "/params/lr: a number");
    CHECK(try_json(c, WIRE_UpdaterCheck, &error, "{\"text\": \"stored = grad\", \"params\": 3}") == NULL);
    CHECK(try_json(c, WIRE_UpdaterCheck, &error, "{}") == NULL);
    CHECK_SAYS(error.text, "/text: a text");
    client_gone(c);
}

/* ---- the page --------------------------------------------------------------------------------------------------------- */

static char page[131072];

static void read_page(void)
{
    FILE *f = fopen("gpu/updaters.md", "r");

    CHECK(f != NULL);
    size_t n = fread(page, 1, sizeof page - 1, f);
    page[n] = '\0';
    fclose(f);
    CHECK(n > 0 && n < sizeof page - 1);
}

/* Examples are blocks marked ```program. They run for some steps on gradients that point at the value: what each is to do
 * is to come nearer to zero. */
static void run_example(const char *text, size_t size)
{
    enum { COUNT = 5, STEPS = 60 };
    float room[PROGRAM_SCRATCH0][COUNT] = {{1, -1, 0.5f, -0.25f, 2}}, *arrays[PROGRAM_SCRATCH0];
    double params[PROGRAM_PARAMS_MAX], scalars[PROGRAM_SCALARS_MAX], moments[EXPR_MOMENT_COUNT] = {0, 2, 2, 1};
    float first[COUNT];
    struct program *p = NULL;

    if (program_new(bytes_of(text, size), &p, &error) != STATUS_OK)
        test_fail(__FILE__, __LINE__, "%.*s\n%s", (int)size, text, error.text);
    memcpy(first, room[PROGRAM_STORED], sizeof first);
    for (unsigned i = 0; i < PROGRAM_SCRATCH0; i++) arrays[i] = room[i];
    for (unsigned i = 0; i < p->param_count; i++) params[i] = p->params[i].standard;
    for (unsigned i = 0; i < p->slot_count; i++)
        if (p->slots[i].starts_as_stored) memcpy(room[PROGRAM_SLOT0 + i], first, sizeof first);
    for (unsigned t = 1; t <= STEPS; t++) {
        moments[EXPR_MOMENT_step] = t;
        for (unsigned i = 0; i < COUNT; i++) room[PROGRAM_GRAD][i] = room[PROGRAM_STORED][i];
        program_scalars(p, params, moments, scalars);
        program_run_f32(p, scalars, arrays, COUNT);
    }
    for (unsigned i = 0; i < COUNT; i++)
        if (!(fabsf(room[PROGRAM_STORED][i]) < fabsf(first[i])))
            test_fail(__FILE__, __LINE__, "%.*s\n%g became %g", (int)size, text, (double)first[i],
                      (double)room[PROGRAM_STORED][i]);
    program_free(p);
}

TEST(every_example_of_the_page_trains)
{
    static const char mark[] = "\n```program\n";
    unsigned examples = 0;

    read_page();
    for (const char *at = page; (at = strstr(at, mark)) != NULL; examples++) {
        at += sizeof mark - 1;
        const char *end = strstr(at, "\n```");
        CHECK(end != NULL);
        run_example(at, (size_t)(end - at) + 1);
    }
    CHECK(examples >= 10);
}

TEST(the_page_names_every_word_and_bound)
{
    static const char *const words[] = {
#define MOMENT_WORD(name, text) "`" #name "`",
        EXPR_MOMENTS(MOMENT_WORD)
#undef MOMENT_WORD
        "`grad`", "`stored`", "`pi`", "`e`", "`param`", "`slot`", "`min(a, b)`", "`max(a, b)`", "`abs(x)`", "`sqrt(x)`",
        "`exp(x)`", "`log(x)`", "`tanh(x)`", "`sign(x)`", "`clamp(x, least, most)`", "`where(condition, a, b)`",
    };
    static const struct {
        const char *what;
        int most;
    } bounds[] = {
        {"bytes of text", PROGRAM_TEXT_SIZE_MAX}, {"levels within one another", PROGRAM_DEPTH_MAX},
        {"numbers, names and operations", PROGRAM_NODES_MAX}, {"params", PROGRAM_PARAMS_MAX}, {"slots", PROGRAM_SLOTS_MAX},
        {"names of its own", PROGRAM_LOCALS_MAX}, {"characters of a name", PROGRAM_NAME_SIZE_MAX},
        {"characters of a number", PROGRAM_NUMBER_SIZE_MAX}, {"operations once a step", PROGRAM_HOST_MAX},
        {"scalars that elements read", PROGRAM_SCALARS_MAX}, {"instructions for each element", PROGRAM_INSTRUCTIONS_MAX},
        {"values wanted at once", PROGRAM_REGISTERS_MAX},
    };
    char line[100];

    read_page();
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) CHECK_SAYS(page, words[i]);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        snprintf(line, sizeof line, "| %s | %d |", bounds[i].what, bounds[i].most);
        CHECK_SAYS(page, line);
    }
}

/* ---- overrides and schedules of programs, frozen keys ----------------------------------- */

static void set_document(struct client *c, const char *document)
{
    do_json(c, WIRE_SetUpdater, "{\"store\": %u, \"updater\": %s}", c->store, document);
}

/* The rate of update n is lr * 0.5^floor((n-1)/2), of key 2 a tenth of it, and mu of key 2 is 0.25. */
STORE_TEST(a_program_has_a_scheduled_rate_and_factors_of_its_params_by_key)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t ids[2] = {do_init(c, 1, 3, 5), do_init(c, 2, 3, 5)};
    double stored[2] = {3, 3}, m[2] = {0, 0};

    set_document(c, "{\"type\": \"program\", \"text\": \"param lr = 0.5, mu = 0.5\\nslot m = 0\\nm = mu * m + grad\\n"
                    "stored -= lr * m\", \"params\": {\"lr\": 0.8}, \"schedule\": {\"type\": \"factor\", \"step\": 2, "
                    "\"factor\": 0.5}, \"overrides\": [{\"match\": \"*\", \"params\": {\"lr\": 7}}, {\"match\": \"1\", "
                    "\"params\": {\"lr\": 1}}, {\"match\": \"2\", \"params\": {\"lr\": 0.1, \"mu\": 0.5}}]}");
    for (uint64_t n = 1; n <= 7; n++)
        for (int k = 0; k < 2; k++) {
            double rate = 0.8 * pow(0.5, floor((double)(n - 1) / 2)), grad = (double)n - 3;
            m[k] = (k == 0 ? 0.5 : 0.25) * m[k] + grad;
            stored[k] -= (k == 0 ? rate : 0.1 * rate) * m[k];
            push(c, ids[k], n, (float)grad, 5);
            CHECK_NEAR(do_pull(c, ids[k], 5), stored[k], 1e-5);
        }
    client_gone(c);
}

static const char sync2[] = "\"type\": \"dist_sync\", \"num_workers\": 2";

#define FREEZE_2 "{\"type\": \"sgd\", \"learning_rate\": 0.5, \"overrides\": [{\"match\": \"2\", \"frozen\": true}]}"

static void check_frozen(struct client *c, uint64_t id, uint64_t step)
{
    const float ones[5] = {1, 1, 1, 1, 1};
    struct error e = {0};

    CHECK_EQ(try_push(c, id, step, ones, sizeof ones, DTYPE_f32, &e), STATUS_FAILED_PRECONDITION);
    CHECK_EQ(e.reason, REASON_KEY_FROZEN);
    CHECK_SAYS(e.text, "key 2");
    CHECK_SAYS(e.text, "{\"match\": \"2\", \"frozen\": true}");
}

STORE_TEST(a_push_of_a_frozen_key_is_refused_by_name)
{
    struct client *c = client_joined(f, 1, async_);
    uint64_t a = do_init(c, 1, 3, 5), b = do_init(c, 2, 3, 5);

    set_document(c, "{\"type\": \"sgd\", \"learning_rate\": 0.5, \"momentum\": 0.5}");
    push(c, b, 1, 2, 5);                  /* mom -1, value 2 */
    set_document(c, "{\"type\": \"sgd\", \"learning_rate\": 0.5, \"momentum\": 0.5, \"overrides\": ["
                    "{\"match\": \"2\", \"frozen\": true}]}");
    check_frozen(c, b, 2);
    push(c, a, 1, 2, 5);
    CHECK_NEAR(do_pull(c, a, 5), 2, 0);
    CHECK_NEAR(do_pull(c, b, 5), 2, 0);
    /* A later pattern thaws it, and its momentum goes on. */
    set_document(c, "{\"type\": \"sgd\", \"learning_rate\": 0.5, \"momentum\": 0.5, \"overrides\": ["
                    "{\"match\": \"*\", \"frozen\": true}, {\"match\": \"2\", \"frozen\": false}]}");
    push(c, b, 2, 2, 5);                  /* mom -1.5 */
    CHECK_NEAR(do_pull(c, b, 5), 0.5, 0);
    client_gone(c);
}

STORE_TEST(a_round_that_was_open_closes_after_its_key_is_frozen)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    uint64_t id = do_init(a, 2, 3, 5);

    push(a, id, 1, 1, 5);
    set_document(a, FREEZE_2);
    push(b, id, 1, 4, 5);
    CHECK_NEAR(do_pull(a, id, 5), 5, 0);  /* under assign, as when it opened */
    check_frozen(a, id, 2);
    check_frozen(b, id, 2);
    client_gone(a);
    client_gone(b);
}

/* The counter of a batch norm: a sum of pushes, as under assign, beside weights that an optimizer moves. */
STORE_TEST(keys_that_assign_take_integers_beside_an_optimizer)
{
    struct client *a = client_joined(f, 1, sync2), *b = client_joined(f, 2, sync2);
    uint64_t w = do_init(a, 1, 3, 5), m = do_init(a, 2, 3, 5);

    set_document(a, "{\"type\": \"adam\", \"overrides\": [{\"match\": \"2\", \"assign\": true}]}");
    for (uint64_t step = 1; step <= 3; step++) {
        push(a, m, step, 0.1f, 5);
        push(b, m, step, (float)step, 5);
        push(a, w, step, 1, 5);
        push(b, w, step, 1, 5);
        CHECK_NEAR(do_pull(a, m, 5), 0.1f + (float)step, 0);
        CHECK_NEAR(do_pull(a, w, 5), 3 - 0.001 * (double)step, 1e-6);
    }
    client_gone(a);
    client_gone(b);
}

TEST(an_integer_fits_where_it_assigns_or_is_frozen)
{
    struct updater *plain = parsed("{\"type\": \"adam\"}");
    struct updater *u = parsed("{\"type\": \"adam\", \"overrides\": [{\"match\": \"*.num\", \"assign\": true}, "
                               "{\"match\": \"cold*\", \"frozen\": true}, {\"match\": \"x.num\", \"assign\": false}]}");

    CHECK_EQ(updater_fits(u, bytes_text("bn.num"), DTYPE_i64, &error), STATUS_OK);
    CHECK_EQ(updater_fits(u, bytes_text("cold1"), DTYPE_i8, &error), STATUS_OK);
    CHECK_EQ(updater_fits(u, bytes_text("x.num"), DTYPE_i64, &error), STATUS_FAILED_PRECONDITION);
    CHECK_EQ(updater_fits(plain, bytes_text("bn.num"), DTYPE_i64, &error), STATUS_FAILED_PRECONDITION);
    CHECK_SAYS(error.text, "\"overrides\": [{\"match\": \"bn.num\", \"assign\": true}]");
    CHECK_TEXT(updater_frozen(u, bytes_text("cold1")), "cold*");
    CHECK(updater_frozen(u, bytes_text("bn.num")) == NULL);
    updater_drop(plain), updater_drop(u);
}
