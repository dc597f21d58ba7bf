/* Updater documents, and that gpu/updaters.md tells of each row of the table. Runs in the root of the tree, as
 * `make test` does. */
#include "service/updater.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <locale.h>
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

#define SGD_TEXT "{\"type\": \"sgd\", \"learning_rate\": 0.1, \"momentum\": 0.0, \"wd\": 0.0, \"rescale_grad\": 1.0, " \
                 "\"clip_gradient\": null}"
#define ADAM_TEXT "{\"type\": \"adam\", \"learning_rate\": 0.001, \"beta1\": 0.9, \"beta2\": 0.999, " \
                  "\"epsilon\": 1e-08, \"wd\": 0.0, \"rescale_grad\": 1.0, \"clip_gradient\": null}"

static const struct {
    const char *json, *text;
} good[] = {
    {"null", "{\"type\": \"assign\"}"},
    {"{\"type\": \"assign\"}", "{\"type\": \"assign\"}"},
    {"{\"type\": \"add\"}", "{\"type\": \"add\"}"},
    {" {\"type\":\"average\"} ", "{\"type\": \"average\"}"},
    {"{\"type\": \"test\"}", "{\"type\": \"test\", \"rescale_grad\": 1.0}"},
    {"{\"rescale_grad\": 2, \"type\": \"test\"}", "{\"type\": \"test\", \"rescale_grad\": 2.0}"},
    {"{\"type\": \"test\", \"rescale_grad\": -1e-3}", "{\"type\": \"test\", \"rescale_grad\": -0.001}"},
    {"{\"type\": \"test\", \"rescale_grad\": 0.30000000000000004}",
     "{\"type\": \"test\", \"rescale_grad\": 0.30000000000000004}"},
    {"{\"type\": \"test\", \"rescale_grad\": -0.0}", "{\"type\": \"test\", \"rescale_grad\": 0.0}"},
    {"{\"type\": \"sgd\"}", SGD_TEXT},
    {"{\"type\": \"sgd\", \"clip_gradient\": null}", SGD_TEXT},
    {"{\"type\": \"sgd\", \"learning_rate\": 1e6, \"clip_gradient\": 1}",
     "{\"type\": \"sgd\", \"learning_rate\": 1000000.0, \"momentum\": 0.0, \"wd\": 0.0, \"rescale_grad\": 1.0, "
     "\"clip_gradient\": 1.0}"},
    {"{\"type\": \"adam\"}", ADAM_TEXT},
};

TEST(a_good_document_is_written_out_in_full)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct updater *u = parsed(good[i].json), *again;
        CHECK_TEXT(updater_text(u), good[i].text);
        again = parsed(updater_text(u));
        CHECK_TEXT(updater_text(again), good[i].text);
        CHECK(updater_equal(u, again));
        updater_drop(u);
        updater_drop(again);
    }
}

static const struct {
    const char *json;
    enum reason reason;
    const char *says;
} bad[] = {
    {"", REASON_BAD_JSON, "empty"},
    {"{\"type\": \"sgd\"", REASON_BAD_JSON, "line 1"},
    {"{\"type\": \"sgd\"} x", REASON_BAD_JSON, "line 1"},
    {"{\"type\": \"sgd\", \"type\": \"adam\"}", REASON_BAD_JSON, "duplicate"},
    {"{\"type\": \"\xff\"}", REASON_BAD_JSON, "line 1"},
    {"{\"type\": \"sgd\", \"wd\": 1e999}", REASON_BAD_JSON, "line 1"},
    {"[]", REASON_UPDATER_INVALID, "must be an object"},
    {"3", REASON_UPDATER_INVALID, "must be an object"},
    {"\"sgd\"", REASON_UPDATER_INVALID, "must be an object"},
    {"{}", REASON_UPDATER_INVALID, "/type: must be one of assign, add, average, sgd, adam, test"},
    {"{\"type\": 3}", REASON_UPDATER_INVALID, "/type: must be one of"},
    {"{\"type\": \"sdg\"}", REASON_UPDATER_INVALID, "/type: no updater is called sdg; did you mean sgd?"},
    {"{\"type\": \"SGD\"}", REASON_UPDATER_INVALID, "did you mean sgd?"},
    {"{\"type\": \"banana\"}", REASON_UPDATER_INVALID, "/type: no updater is called banana; there are assign, add"},
    {"{\"type\": \"a\\nb\"}", REASON_UPDATER_INVALID, "a?b"},
    {"{\"type\": \"sgd\", \"learnin_rate\": 1}", REASON_UPDATER_INVALID,
     "/learnin_rate: sgd has no such name; did you mean learning_rate?"},
    {"{\"type\": \"sgd\", \"beta1\": 1}", REASON_UPDATER_INVALID, "/beta1: sgd has no such name"},
    {"{\"type\": \"add\", \"wd\": 0}", REASON_UPDATER_INVALID, "/wd: add has no such name"},
    {"{\"type\": \"sgd\", \"schedule\": {}}", REASON_UPDATER_INVALID, "/schedule: sgd has no such name"},
    {"{\"type\": \"sgd\", \"a/b~c\": 1}", REASON_UPDATER_INVALID, "/a~1b~0c: "},
    {"{\"type\": \"sgd\", \"\": 1}", REASON_UPDATER_INVALID, "/: sgd has no such name"},
    {"{\"type\": \"sgd\", \"learning_rate\": \"1\"}", REASON_UPDATER_INVALID,
     "/learning_rate: must be a number from 0 to 1000000"},
    {"{\"type\": \"sgd\", \"learning_rate\": null}", REASON_UPDATER_INVALID, "/learning_rate: must be a number"},
    {"{\"type\": \"sgd\", \"learning_rate\": true}", REASON_UPDATER_INVALID, "/learning_rate: must be a number"},
    {"{\"type\": \"sgd\", \"learning_rate\": -1}", REASON_UPDATER_INVALID, "/learning_rate: must be a number"},
    {"{\"type\": \"sgd\", \"learning_rate\": 1e300}", REASON_UPDATER_INVALID, "/learning_rate: must be a number"},
    {"{\"type\": \"sgd\", \"learning_rate\": 99999999999999999999999999}", REASON_UPDATER_INVALID, "/learning_rate: "},
    {"{\"type\": \"sgd\", \"clip_gradient\": 0}", REASON_UPDATER_INVALID,
     "/clip_gradient: must be a number from 1e-30 to 1e+30 or null"},
    {"{\"type\": \"adam\", \"beta1\": 1}", REASON_UPDATER_INVALID, "/beta1: must be a number from 0 to 0.9999999"},
};

TEST(a_bad_document_is_refused_with_its_place)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct updater *u = NULL;
        int64_t before = mem_live();
        if (updater_parse(bytes_text(bad[i].json), &u, &error) == STATUS_OK)
            test_fail(__FILE__, __LINE__, "%s was accepted", bad[i].json);
        CHECK_EQ(error.reason, bad[i].reason);
        CHECK_SAYS(error.text, bad[i].says);
        CHECK(u == NULL);
        CHECK_EQ(mem_live(), before);
    }
}

TEST(all_faults_are_told_at_once)
{
    struct updater *u = NULL;

    CHECK_EQ(updater_parse(bytes_text("{\"type\": \"adam\", \"beta1\": 2, \"eps\": 1, \"momentun\": 1, \"wd\": \"x\"}"),
                           &u, &error), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(error.text, "/beta1: must");
    CHECK_SAYS(error.text, "; /eps: adam has no such name");
    CHECK_SAYS(error.text, "; /momentun: ");
    CHECK_SAYS(error.text, "; /wd: must");
}

TEST(faults_that_find_no_room_are_counted)
{
    struct buf b = {0};
    struct updater *u = NULL;
    unsigned shown = 0, more = 0;

    buf_text(&b, "{\"type\": \"sgd\"");
    for (int i = 0; i < 40; i++) buf_format(&b, ", \"wrong%d%060d\": 1", i, i);
    buf_text(&b, "}");
    CHECK_EQ(updater_parse(bytes_of(b.at, b.size), &u, &error), STATUS_INVALID_ARGUMENT);
    for (const char *at = error.text; (at = strstr(at, "/wrong")) != NULL; at++) shown++;
    CHECK_EQ(sscanf(strstr(error.text, "and "), "and %u more", &more), 1);
    CHECK_EQ(shown + more, 40);
    CHECK(shown > 2);
    buf_fini(&b);
}

/* Longest names of awkward characters, up to the cut and over it. */
TEST(names_of_any_length_and_letters_are_shown)
{
    static const char *const letters[] = {"~", "/", "x", "\xc3\xa4", "\xf0\x9f\x98\x80", "\\u0001"};

    for (size_t l = 0; l < sizeof letters / sizeof letters[0]; l++)
        for (int length = 1; length < 120; length++) {
            struct buf b = {0};
            struct updater *u = NULL;
            buf_text(&b, "{\"type\": \"");
            for (int i = 0; i < length; i++) buf_text(&b, letters[(l + (size_t)i / 47) % 5]);
            buf_text(&b, letters[l]);
            buf_text(&b, "\"}");
            CHECK_EQ(updater_parse(bytes_of(b.at, b.size), &u, &error), STATUS_INVALID_ARGUMENT);
            CHECK(bytes_is_utf8(bytes_text(error.text)));
            buf_fini(&b);
        }
}

TEST(a_document_beyond_the_bound_is_refused_unread)
{
    struct updater *u = NULL;
    char *p = mem_zero(UPDATER_DOCUMENT_SIZE_MAX + 1);

    CHECK(p != NULL);
    CHECK_EQ(updater_parse(bytes_of(p, UPDATER_DOCUMENT_SIZE_MAX + 1), &u, &error), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(error.reason, REASON_TOO_LARGE);
    memset(p, '[', UPDATER_DOCUMENT_SIZE_MAX);
    CHECK_EQ(updater_parse(bytes_of(p, UPDATER_DOCUMENT_SIZE_MAX), &u, &error), STATUS_INVALID_ARGUMENT);
    CHECK_EQ(error.reason, REASON_BAD_JSON);
    mem_free(p);
}

TEST(a_document_cut_anywhere_is_refused)
{
    static const char text[] = ADAM_TEXT;

    for (size_t size = 0; size < sizeof text - 1; size++) {
        struct updater *u = NULL;
        char *exact = guard_new(size);
        memcpy(exact, text, size);
        CHECK_EQ(updater_parse(bytes_of(exact, size), &u, &error), STATUS_INVALID_ARGUMENT);
        guard_free(exact, size);
    }
}

TEST(the_text_of_numbers_does_not_follow_the_locale)
{
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) test_skip("there is no German locale here");
    struct updater *u = parsed("{\"type\": \"sgd\"}");
    setlocale(LC_NUMERIC, "C");
    CHECK_TEXT(updater_text(u), SGD_TEXT);
    updater_drop(u);
}

TEST(equal_documents_are_equal_updaters)
{
    struct updater *a = parsed("{\"type\": \"sgd\"}"), *b = parsed("{\"momentum\": 0, \"type\": \"sgd\"}");
    struct updater *c = parsed("{\"type\": \"sgd\", \"wd\": 1e-9}"), *d = parsed("{\"type\": \"test\"}");

    CHECK(updater_equal(a, b));
    CHECK(!updater_equal(a, c));
    CHECK(!updater_equal(a, d));
    CHECK_TEXT(updater_type(d), "test");
    updater_drop(a), updater_drop(b), updater_drop(c), updater_drop(d);
    updater_drop(NULL);
}

TEST(an_updater_lives_until_its_last_hold_is_dropped)
{
    int64_t before = mem_live();
    struct updater *u = parsed("null");

    CHECK(updater_hold(u) == u);
    updater_drop(u);
    CHECK_TEXT(updater_type(u), "assign");
    updater_drop(u);
    CHECK_EQ(mem_live(), before);
}

TEST(slots_follow_the_numbers)
{
    struct updater *plain = parsed("{\"type\": \"sgd\"}"), *adam = parsed("{\"type\": \"adam\"}");
    struct updater *momentum = parsed("{\"type\": \"sgd\", \"momentum\": 0.9}");

    CHECK_EQ(updater_slots(plain), 0);
    CHECK_EQ(updater_slots(momentum), 1);
    CHECK_TEXT(updater_slot_name(momentum, 0), "momentum");
    CHECK_EQ(updater_slots(adam), 2);
    CHECK_TEXT(updater_slot_name(adam, 1), "var");
    updater_drop(plain), updater_drop(momentum), updater_drop(adam);
}

TEST(an_updater_says_which_types_it_does_not_fit)
{
    struct updater *sgd = parsed("{\"type\": \"sgd\"}"), *add = parsed("{\"type\": \"add\"}");

    CHECK_EQ(updater_fits(sgd, DTYPE_f32, &error), STATUS_OK);
    CHECK_EQ(updater_fits(sgd, DTYPE_f64, &error), STATUS_OK);
    CHECK_EQ(updater_fits(add, DTYPE_u8, &error), STATUS_OK);
    CHECK_EQ(updater_fits(sgd, DTYPE_i32, &error), STATUS_FAILED_PRECONDITION);
    CHECK_EQ(error.reason, REASON_UPDATER_UNFIT);
    CHECK_SAYS(error.text, "sgd needs fractions, which i32");
    CHECK_EQ(updater_fits(add, DTYPE_bf16, &error), STATUS_FAILED_PRECONDITION);
    CHECK_SAYS(error.text, "bf16");
    updater_drop(sgd), updater_drop(add);
}

TEST(a_step_gets_its_rule_and_scalars)
{
    struct updater *u = parsed("{\"type\": \"adam\", \"learning_rate\": 0.5, \"beta1\": 0.5, \"beta2\": 0.75}");
    struct updater *average = parsed("{\"type\": \"average\"}");
    struct update_moment m = {.t = 1, .contributors = 7};
    struct step s = {.count = 9};
    bool rate = false, seven = false;

    updater_step(u, &m, &s);
    CHECK_EQ(s.rule, RULE_adam);
    CHECK_EQ(s.count, 9);
    for (int i = 0; i < RULE_SCALARS_MAX; i++) rate = rate || s.scalars.v[i] == 0.5 * sqrt(0.25) / 0.5;
    CHECK(rate);
    updater_step(average, &m, &s);
    CHECK_EQ(s.rule, RULE_average);
    for (int i = 0; i < RULE_SCALARS_MAX; i++) seven = seven || s.scalars.v[i] == 7;
    CHECK(seven);
    updater_drop(u), updater_drop(average);
}

TEST(the_nearest_name_is_near)
{
    static const char *const names[] = {"learning_rate", "momentum", "wd", "type", NULL};
    static const char *const cases[][2] = {
        {"learning_rte", "learning_rate"}, {"LearningRate", "learning_rate"}, {"momentmu", "momentum"},
        {"lr", NULL}, {"wdd", "wd"}, {"WD", "wd"}, {"tpye", "type"}, {"", NULL}, {"nothing_like_it", NULL},
        {"momentum_momentum_momentum_momentum_momentum_momentum", NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *got = nearest_name(bytes_text(cases[i][0]), names);
        CHECK_TEXT(got != NULL ? got : "none", cases[i][1] != NULL ? cases[i][1] : "none");
    }
}

static void *counted_malloc(size_t size) { return mem_new(size); }

/* jansson gives a string that it found no memory for out as wrong text, so that is allowed; all of ours are told. */
TEST(every_failing_allocation_of_a_parse_is_refused)
{
    unsigned told = 0;

    static const char *const documents[] = {ADAM_TEXT, "null", "{\"type\": \"sgd\", \"a\": [1, {\"b\": \"c\"}]}"};

    json_set_alloc_funcs(counted_malloc, mem_free);
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++)
        for (uint64_t n = 1;; n++) {
            struct updater *u = NULL;
            int64_t before = mem_live();
            mem_fault_at(n);
            enum status s = updater_parse(bytes_text(documents[i]), &u, &error);
            bool hit = mem_fault_hit();
            mem_fault_at(0);
            updater_drop(u);
            CHECK_EQ(mem_live(), before);
            if (!hit) {
                CHECK_EQ(s, i < 2 ? STATUS_OK : STATUS_INVALID_ARGUMENT);
                break;
            }
            if (s == STATUS_INVALID_ARGUMENT && error.reason == REASON_BAD_JSON) continue;
            CHECK_EQ(s, STATUS_RESOURCE_EXHAUSTED);
            CHECK_EQ(error.reason, REASON_NO_MEMORY);
            told++;
        }
    json_set_alloc_funcs(malloc, free);
    CHECK(told >= 10);
}

/* ---- the document ----------------------------------------------------------------------------------------------- */

static char page[65536];

static void read_page(void)
{
    FILE *f = fopen("gpu/updaters.md", "r");

    CHECK(f != NULL);
    size_t n = fread(page, 1, sizeof page - 1, f);
    page[n] = '\0';
    fclose(f);
    CHECK(n > 0 && n < sizeof page - 1);
}

/* The part of the page under "### `name`", cut off where the next heading begins; *end is put back by the caller. */
static char *section(const char *name, char **end)
{
    char heading[64];

    snprintf(heading, sizeof heading, "\n### `%s`\n", name);
    char *at = strstr(page, heading);
    if (at == NULL) test_fail(__FILE__, __LINE__, "gpu/updaters.md has no section `%s`", name);
    *end = strstr(at + strlen(heading), "\n##");
    if (*end == NULL) *end = page + strlen(page);
    return at;
}

TEST(the_document_tells_of_every_updater_and_number)
{
    read_page();
    for (unsigned i = 0; updater_row_at(i) != NULL; i++) {
        const struct updater_row *row = updater_row_at(i);
        char *end, *part = section(row->name, &end), was = *end, line[400];
        *end = '\0';
        CHECK_SAYS(part, row->text);
        for (unsigned k = 0; k < row->hyper_count; k++) {
            const struct hyper_row *h = &row->hypers[k];
            char standard[32] = "null";
            if (!isnan(h->standard)) snprintf(standard, sizeof standard, "%g", h->standard);
            snprintf(line, sizeof line, "| `%s` | %s | %.7g to %.7g | %s |", h->name, standard, h->least, h->most, h->text);
            CHECK_SAYS(part, line);
        }
        *end = was;
    }
}
