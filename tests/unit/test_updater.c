/* Updater documents, and that gpu/updaters.md tells of each row of the table. Runs in the root of the tree, as
 * `make test` does. */
#include "service/updater.h"

#include "gpu/rules.h"
#include "gpu/schedule.h"
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

#define COMMON_TEXT "\"wd\": 0.0, \"rescale_grad\": 1.0, \"clip_gradient\": null, \"multi_precision\": true"
#define SGD_TEXT_OF(rate, clip, rest)                                                                      \
    "{\"type\": \"sgd\", \"learning_rate\": " rate ", \"wd\": 0.0, \"rescale_grad\": 1.0, "              \
    "\"clip_gradient\": " clip ", \"multi_precision\": true, \"momentum\": 0.0, \"convention\": \"mxnet\"" rest "}"
#define SGD_TEXT SGD_TEXT_OF("0.1", "null", "")
#define ADAM_TEXT "{\"type\": \"adam\", \"learning_rate\": 0.001, " COMMON_TEXT ", \"beta1\": 0.9, \"beta2\": 0.999, " \
                  "\"epsilon\": 1e-08, \"correct_bias\": true, \"convention\": \"mxnet\"}"
#define WARM_TEXT "\"base_lr\": null, \"warmup_steps\": 0.0, \"warmup_begin_lr\": 0.0, \"warmup_mode\": \"linear\""

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
    {"{\"type\": \"sgd\", \"learning_rate\": 1e6, \"clip_gradient\": 1}", SGD_TEXT_OF("1000000.0", "1.0", "")},
    {"{\"type\": \"sgd\", \"schedule\": null, \"overrides\": []}", SGD_TEXT},
    {"{\"type\": \"sgd\", \"overrides\": [{\"wd\": 1, \"match\": \"a\\\"b\\\\c\\u0001\", \"lr_mult\": 2}, {\"match\": \"*\"}]}",
     SGD_TEXT_OF("0.1", "null", ", \"overrides\": [{\"match\": \"a\\\"b\\\\c\\u0001\", \"lr_mult\": 2.0, \"wd\": 1.0}, "
                                "{\"match\": \"*\"}]")},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"constant\"}}",
     SGD_TEXT_OF("0.1", "null", ", \"schedule\": {\"type\": \"constant\", " WARM_TEXT "}")},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"multifactor\", \"step\": [15, 25], \"factor\": 0.5}}",
     SGD_TEXT_OF("0.1", "null", ", \"schedule\": {\"type\": \"multifactor\", " WARM_TEXT
                                ", \"factor\": 0.5, \"step\": [15.0, 25.0]}")},
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
    {"{}", REASON_UPDATER_INVALID, "/type: must be one of assign, add, average, ema, sgd, nag, adam"},
    {"{\"type\": 3}", REASON_UPDATER_INVALID, "/type: must be one of"},
    {"{\"type\": \"sdg\"}", REASON_UPDATER_INVALID, "/type: no updater is called sdg; did you mean sgd?"},
    {"{\"type\": \"banana\"}", REASON_UPDATER_INVALID, "/type: no updater is called banana; there are assign, add"},
    {"{\"type\": \"a\\nb\"}", REASON_UPDATER_INVALID, "a?b"},
    {"{\"type\": \"sgd\", \"learnin_rate\": 1}", REASON_UPDATER_INVALID,
     "/learnin_rate: sgd has no such name; did you mean learning_rate?"},
    {"{\"type\": \"sgd\", \"beta1\": 1}", REASON_UPDATER_INVALID, "/beta1: sgd has no such name"},
    {"{\"type\": \"add\", \"wd\": 0}", REASON_UPDATER_INVALID, "/wd: add has no such name"},
    {"{\"type\": \"add\", \"schedule\": {}}", REASON_UPDATER_INVALID, "/schedule: add has no such name"},
    {"{\"type\": \"sgd\", \"schedule\": {}}", REASON_UPDATER_INVALID, "/schedule/type: must be one of constant, factor"},
    {"{\"type\": \"sgd\", \"schedule\": 3}", REASON_UPDATER_INVALID, "/schedule: must be an object"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"cosine\"}}", REASON_UPDATER_INVALID,
     "/schedule/max_update: must be given"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"cosine\", \"max_updates\": 3}}", REASON_UPDATER_INVALID,
     "/schedule/max_updates: cosine has no such name; did you mean max_update?"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"cosine\", \"max_update\": 3.5}}", REASON_UPDATER_INVALID,
     "/schedule/max_update: must be a whole number"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"poly\", \"max_update\": 10, \"warmup_steps\": 10}}",
     REASON_UPDATER_INVALID, "/schedule/max_update: must be greater than warmup_steps"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"constant\", \"warmup_begin_lr\": 0.2}}", REASON_UPDATER_INVALID,
     "/schedule/warmup_begin_lr: must be at most the base rate, 0.1"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"constant\", \"warmup_mode\": \"sqrt\"}}", REASON_UPDATER_INVALID,
     "/schedule/warmup_mode: must be linear or constant"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"multifactor\"}}", REASON_UPDATER_INVALID,
     "/schedule/step: must be given"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"multifactor\", \"step\": [3, 3]}}", REASON_UPDATER_INVALID,
     "/schedule/step/1: must be a whole number of at least 1, and greater"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"multifactor\", \"step\": [0]}}", REASON_UPDATER_INVALID,
     "/schedule/step/0: "},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"multifactor\", \"step\": 3}}", REASON_UPDATER_INVALID,
     "/schedule/step: must be a list"},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"factor\", \"step\": 0}}", REASON_UPDATER_INVALID, "/schedule/step: "},
    {"{\"type\": \"sgd\", \"schedule\": {\"type\": \"factor\", \"step\": 1, \"factor\": 1.1}}", REASON_UPDATER_INVALID,
     "/schedule/factor: "},
    {"{\"type\": \"adafactor\", \"schedule\": {\"type\": \"constant\"}}", REASON_UPDATER_INVALID,
     "/schedule/base_lr: must be given"},
    {"{\"type\": \"sgd\", \"overrides\": {}}", REASON_UPDATER_INVALID, "/overrides: must be a list"},
    {"{\"type\": \"sgd\", \"overrides\": [3]}", REASON_UPDATER_INVALID, "/overrides/0/match: must be a pattern"},
    {"{\"type\": \"sgd\", \"overrides\": [{\"match\": \"\"}]}", REASON_UPDATER_INVALID, "/overrides/0/match: "},
    {"{\"type\": \"sgd\", \"overrides\": [{\"match\": \"a\"}, {\"match\": \"b\", \"wdmult\": 0}]}", REASON_UPDATER_INVALID,
     "/overrides/1/wdmult: sgd has no such name; did you mean wd_mult?"},
    {"{\"type\": \"sgd\", \"overrides\": [{\"match\": \"a\", \"wd\": -1}]}", REASON_UPDATER_INVALID,
     "/overrides/0/wd: must be a number from 0"},
    {"{\"type\": \"sgd\", \"overrides\": [{\"match\": \"a\", \"convention\": \"torch\"}]}", REASON_UPDATER_INVALID,
     "/overrides/0/convention: is the same for all keys"},
    {"{\"type\": \"sgd\", \"convention\": \"keras\"}", REASON_UPDATER_INVALID, "/convention: must be mxnet or torch"},
    {"{\"type\": \"lion\", \"convention\": \"torch\"}", REASON_UPDATER_INVALID, "/convention: lion has no such name"},
    {"{\"type\": \"rmsprop\", \"centered\": 1}", REASON_UPDATER_INVALID, "/centered: must be false or true"},
    {"{\"type\": \"sgld\", \"seed\": 0.5}", REASON_UPDATER_INVALID, "/seed: must be a whole number"},
    {"{\"type\": \"groupadagrad\", \"wd\": 0.1}", REASON_UPDATER_INVALID, "/wd: must be 0, since there is none in this updater"},
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

/* What people type who come from MXNet 1.x or PyTorch. */
static const struct {
    const char *type, *typed, *says;
} foreign[] = {
    {"sgd", "lr", "write learning_rate"}, {"adam", "eps", "write epsilon"}, {"adamw", "weight_decay", "write wd"},
    {"adam", "betas", "write beta1 and beta2"}, {"nadam", "momentum_decay", "write schedule_decay"},
    {"rmsprop", "gamma1", "is rho here"}, {"rmsprop", "gamma2", "is momentum here"}, {"rmsprop", "alpha", "is rho here"},
    {"sgd", "lazy_update", "leave it out"}, {"adam", "clip", "write clip_gradient"}, {"sgd", "nesterov", "take the type nag"},
    {"adam", "nesterov", "nadam"}, {"adam", "amsgrad", "leave it out"}, {"sgd", "lr_scheduler", "write schedule"},
};

TEST(a_name_of_another_library_is_answered_with_the_one_here)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        struct updater *u = NULL;
        char json[128];

        snprintf(json, sizeof json, "{\"type\": \"%s\", \"%s\": 1}", foreign[i].type, foreign[i].typed);
        CHECK_EQ(updater_parse(bytes_text(json), &u, &error), STATUS_INVALID_ARGUMENT);
        CHECK_SAYS(error.text, foreign[i].says);
    }
    /* A hint never stands for a name that the updater has not. */
    struct updater *u = NULL;
    CHECK_EQ(updater_parse(bytes_text("{\"type\": \"add\", \"lr\": 1}"), &u, &error), STATUS_INVALID_ARGUMENT);
    CHECK(strstr(error.text, "learning_rate") == NULL);
}

TEST(the_type_may_be_written_in_any_case)
{
    static const char *const types[] = {"SGD", "Sgd", "Adam", "RMSProp", "GroupAdaGrad", "AdamW"};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct updater *u = NULL;
        char json[64];

        snprintf(json, sizeof json, "{\"type\": \"%s\"}", types[i]);
        CHECK_OK(updater_parse(bytes_text(json), &u, &error), &error);
        for (const char *c = updater_type(u); *c != '\0'; c++) CHECK(*c >= 'a' && *c <= 'z');
        updater_drop(u);
    }
}

TEST(all_faults_are_told_at_once)
{
    struct updater *u = NULL;

    CHECK_EQ(updater_parse(bytes_text("{\"type\": \"adam\", \"beta1\": 2, \"eps\": 1, \"momentun\": 1, \"wd\": \"x\"}"),
                           &u, &error), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(error.text, "/beta1: must");
    CHECK_SAYS(error.text, "; /eps: adam has no such name; write epsilon");
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
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) test_skip("it needs a German locale: package locales-all");
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

/* An updater as it is for a key of 2 x 3 elements with this name. */
static struct updater_use used_as(const struct updater *u, const char *name, enum dtype type)
{
    static const int64_t dims[] = {2, 3};
    struct updater_use use;

    updater_use(u, &(struct rule_key){bytes_text(name), 2, dims, 6}, type, &use);
    return use;
}

static double hyper(const struct updater *u, const struct updater_use *use, const char *name)
{
    const struct updater_row *row = updater_row_find(bytes_text(updater_type(u)));
    double hypers[UPDATER_HYPERS_MAX];

    use_hypers(u, use, hypers);
    for (unsigned i = 0; i < row->hyper_count; i++)
        if (strcmp(row->hypers[i].name, name) == 0) return hypers[i];
    test_fail(__FILE__, __LINE__, "%s has no %s", row->name, name);
}

TEST(slots_follow_the_numbers)
{
    struct updater *plain = parsed("{\"type\": \"sgd\"}"), *adam = parsed("{\"type\": \"adam\"}");
    struct updater *momentum = parsed("{\"type\": \"sgd\", \"momentum\": 0.9}");

    CHECK_EQ(rule_slots(used_as(plain, "w", DTYPE_f32).rule), 0);
    CHECK_EQ(rule_slots(used_as(momentum, "w", DTYPE_f32).rule), 1);
    CHECK_TEXT(rule_slot_name(used_as(momentum, "w", DTYPE_f32).rule, 0), "momentum");
    CHECK_EQ(rule_slots(used_as(adam, "w", DTYPE_f32).rule), 2);
    CHECK_TEXT(rule_slot_name(used_as(adam, "w", DTYPE_f32).rule, 1), "var");
    updater_drop(plain), updater_drop(momentum), updater_drop(adam);
}

TEST(state_sizes_are_those_of_slots_and_master)
{
    struct updater *adam = parsed("{\"type\": \"adam\"}"), *group = parsed("{\"type\": \"groupadagrad\"}");
    struct updater *low = parsed("{\"type\": \"adam\", \"multi_precision\": false}"), *assign = parsed("null");
    struct updater_use use = used_as(adam, "w", DTYPE_f32);

    CHECK_EQ(updater_state_size(&use, 6, DTYPE_f32), 48);
    CHECK_EQ(updater_state_size(&use, 6, DTYPE_f64), 96);
    use = used_as(adam, "w", DTYPE_bf16);
    CHECK_EQ(updater_state_size(&use, 6, DTYPE_bf16), 72);
    use = used_as(low, "w", DTYPE_f16);
    CHECK_EQ(updater_state_size(&use, 6, DTYPE_f16), 48);
    use = used_as(assign, "w", DTYPE_f16);
    CHECK_EQ(updater_state_size(&use, 6, DTYPE_f16), 0);
    use = used_as(group, "w", DTYPE_f32);
    CHECK_EQ(updater_state_size(&use, 6, DTYPE_f32) - step_scratch_size(use.rule, 6), 8);
    updater_drop(adam), updater_drop(group), updater_drop(low), updater_drop(assign);
}

TEST(an_updater_says_which_types_it_does_not_fit)
{
    struct updater *sgd = parsed("{\"type\": \"sgd\"}"), *add = parsed("{\"type\": \"add\"}");
    struct updater *ema = parsed("{\"type\": \"ema\"}");

    CHECK_EQ(updater_fits(sgd, bytes_text("w"), DTYPE_f32, &error), STATUS_OK);
    CHECK_EQ(updater_fits(sgd, bytes_text("w"), DTYPE_f64, &error), STATUS_OK);
    CHECK_EQ(updater_fits(sgd, bytes_text("w"), DTYPE_bf16, &error), STATUS_OK);
    CHECK_EQ(updater_fits(add, bytes_text("w"), DTYPE_f16, &error), STATUS_OK);
    CHECK_EQ(updater_fits(add, bytes_text("w"), DTYPE_u8, &error), STATUS_OK);
    CHECK_EQ(updater_fits(sgd, bytes_text("w"), DTYPE_i32, &error), STATUS_FAILED_PRECONDITION);
    CHECK_EQ(error.reason, REASON_UPDATER_UNFIT);
    CHECK_SAYS(error.text, "sgd needs fractions, which i32");
    CHECK_EQ(updater_fits(ema, bytes_text("w"), DTYPE_i64, &error), STATUS_FAILED_PRECONDITION);
    updater_drop(sgd), updater_drop(add), updater_drop(ema);
}

static struct step stepped(const struct updater *u, const char *name, uint64_t t, uint64_t num_update)
{
    struct updater_use use = used_as(u, name, DTYPE_f32);
    struct update_moment m = {.t = t, .num_update = num_update, .contributors = 7, .product = 1};
    struct step s = {.count = 9};

    updater_step(u, &use, t, &m, &s);
    return s;
}

TEST(a_step_gets_its_rule_and_scalars)
{
    struct updater *u = parsed("{\"type\": \"adam\", \"learning_rate\": 0.5, \"beta1\": 0.5, \"beta2\": 0.75}");
    struct updater *average = parsed("{\"type\": \"average\"}");
    struct step s = stepped(u, "w", 1, 1);

    CHECK_EQ(s.rule, RULE_adam);
    CHECK_EQ(s.count, 9);
    CHECK(s.scalars.v[ADAM_LR] == 0.5 * sqrt(0.25) / 0.5);
    s = stepped(average, "w", 1, 1);
    CHECK_EQ(s.rule, RULE_average);
    CHECK(s.scalars.v[AVERAGE_CONTRIBUTORS] == 7);
    updater_drop(u), updater_drop(average);
}

TEST(the_torch_convention_has_pytorchs_defaults)
{
    static const struct {
        const char *type, *name;
        double mxnet, torch;
    } cases[] = {
        {"adamw", "wd", 0, 0.01}, {"adamw", "epsilon", 1e-6, 1e-8}, {"adagrad", "epsilon", 1e-6, 1e-10},
        {"rmsprop", "learning_rate", 0.001, 0.01}, {"rmsprop", "rho", 0.9, 0.99}, {"rmsprop", "momentum", 0.9, 0},
        {"nadam", "learning_rate", 0.001, 0.002}, {"adam", "epsilon", 1e-8, 1e-8}, {"adamax", "learning_rate", 0.002, 0.002},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int torch = 0; torch < 2; torch++) {
            char json[100];
            snprintf(json, sizeof json, "{\"type\": \"%s\", \"convention\": \"%s\"}", cases[i].type, torch ? "torch" : "mxnet");
            struct updater *u = parsed(json);
            struct updater_use use = used_as(u, "w", DTYPE_f32);
            CHECK(hyper(u, &use, cases[i].name) == (torch ? cases[i].torch : cases[i].mxnet));
            updater_drop(u);
        }
}

/* ---- overrides -------------------------------------------------------------------------------------------------- */

static bool is_matched(const char *pattern, const char *name)
{
    char json[400];

    snprintf(json, sizeof json, "{\"type\": \"sgd\", \"overrides\": [{\"match\": \"%s\", \"lr_mult\": 7}]}", pattern);
    struct updater *u = parsed(json);
    bool is = used_as(u, name, DTYPE_f32).lr_mult == 7;
    updater_drop(u);
    return is;
}

TEST(patterns_match_whole_names)
{
    static const struct {
        const char *pattern, *name;
        bool is;
    } cases[] = {
        {"*_bias", "fc1_bias", true}, {"*_bias", "_bias", true}, {"*_bias", "fc1_bias_", false}, {"embed/*", "embed/a/b", true},
        {"embed/*", "embed", false}, {"*", "anything", true}, {"fc?_w", "fc1_w", true}, {"fc?_w", "fc12_w", false},
        {"a*b*c", "a--b--c", true}, {"a*b*c", "a--c--b", false}, {"*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
        {"3", "3", true}, {"3*", "31", true}, {"w", "W", false}, {"??", "a", false}, {"**", "x", true}, {"a", "", false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (is_matched(cases[i].pattern, cases[i].name) != cases[i].is)
            test_fail(__FILE__, __LINE__, "'%s' and '%s'", cases[i].pattern, cases[i].name);
}

TEST(overrides_change_numbers_for_matching_keys_and_later_ones_win)
{
    struct updater *u = parsed("{\"type\": \"sgd\", \"learning_rate\": 0.5, \"momentum\": 0.9, \"wd\": 0.25, \"overrides\": ["
                               "{\"match\": \"*_bias\", \"wd_mult\": 0, \"momentum\": 0}, {\"match\": \"fc*\", \"lr_mult\": 0.5},"
                               "{\"match\": \"fc2*\", \"lr_mult\": 0.25, \"learning_rate\": 8}]}");
    struct step plain = stepped(u, "conv", 1, 1), bias = stepped(u, "conv_bias", 1, 1), both = stepped(u, "fc2_bias", 1, 1);

    CHECK_EQ(plain.rule, RULE_momentum);
    CHECK(plain.scalars.v[MOMENTUM_LR] == 0.5 && plain.scalars.v[GRAD_WD] == 0.25);
    CHECK_EQ(bias.rule, RULE_sgd);
    CHECK(bias.scalars.v[SGD_LR] == 0.5 && bias.scalars.v[GRAD_WD] == 0);
    CHECK_EQ(both.rule, RULE_sgd);
    CHECK(both.scalars.v[SGD_LR] == 2 && both.scalars.v[GRAD_WD] == 0);
    updater_drop(u);
}

/* ---- schedules -------------------------------------------------------------------------------------------------- */

#define BASE(rate) "{\"type\": \"sgd\", \"learning_rate\": " rate ", \"schedule\": {"
#define FACTOR BASE("1") "\"type\": \"factor\", \"step\": 100, \"factor\": 0.1, \"stop_factor_lr\": 1e-4, " \
               "\"warmup_steps\": 20, \"warmup_begin_lr\": 0.1, \"warmup_mode\": \"constant\"}}"
#define MULTI BASE("0.1") "\"type\": \"multifactor\", \"step\": [15, 25], \"factor\": 0.1, \"warmup_steps\": 10, " \
              "\"warmup_begin_lr\": 0.05}}"
#define POLY BASE("7") "\"type\": \"poly\", \"max_update\": 1000, \"base_lr\": 3, \"pwr\": 2, \"warmup_steps\": 100}}"
#define COSINE BASE("3") "\"type\": \"cosine\", \"max_update\": 1000, \"final_lr\": 0.1}}"
#define STEP BASE("2") "\"type\": \"step\", \"step_size\": 30}}"
#define INVERSE BASE("2") "\"type\": \"inverse_sqrt\", \"warmup_steps\": 100}}"
#define CYCLE BASE("1") "\"type\": \"one_cycle\", \"max_update\": 100}}"
#define LINEAR_CYCLE BASE("1") "\"type\": \"one_cycle\", \"max_update\": 11, \"pct_start\": 0.5454545454545454, " \
                     "\"div_factor\": 10, \"final_div_factor\": 10, \"anneal_strategy\": \"linear\"}}"

/* The first four are the numbers of MXNet's own tests. */
static const struct {
    const char *json;
    uint64_t n;
    double rate, tolerance;
} rates[] = {
    {FACTOR, 0, 0.1, 0}, {FACTOR, 10, 0.1, 0}, {FACTOR, 21, 1, 0}, {FACTOR, 100, 1, 0}, {FACTOR, 101, 0.1, 1e-15},
    {FACTOR, 201, 0.01, 1e-15}, {FACTOR, 1000, 1e-4, 0}, {FACTOR, UINT64_MAX, 1e-4, 0},
    {MULTI, 0, 0.05, 0}, {MULTI, 5, 0.075, 1e-15}, {MULTI, 15, 0.1, 0}, {MULTI, 16, 0.01, 1e-15}, {MULTI, 20, 0.01, 1e-15},
    {MULTI, 25, 0.01, 1e-15}, {MULTI, 26, 0.001, 1e-15}, {MULTI, 100, 0.001, 1e-15},
    {POLY, 0, 0, 0}, {POLY, 50, 1.5, 0}, {POLY, 100, 3, 0}, {POLY, 101, 3 * (899.0 / 900) * (899.0 / 900), 1e-14},
    {POLY, 550, 0.75, 1e-14}, {POLY, 1000, 0, 0}, {POLY, 5000, 0, 0},
    {COSINE, 0, 3, 0}, {COSINE, 500, 1.55, 1e-14}, {COSINE, 1000, 0.1, 1e-15}, {COSINE, 9999, 0.1, 1e-15},
    {STEP, 0, 2, 0}, {STEP, 1, 2, 0}, {STEP, 30, 2, 0}, {STEP, 31, 0.2, 1e-15}, {STEP, 61, 0.02, 1e-15},
    {INVERSE, 50, 1, 0}, {INVERSE, 100, 2, 0}, {INVERSE, 400, 1, 0}, {INVERSE, 10000, 0.2, 1e-15},
    /* torch.optim.lr_scheduler.OneCycleLR(SGD, max_lr=1, total_steps=100), before each step */
    {CYCLE, 1, 0.04, 1e-15}, {CYCLE, 16, 0.5459866761210004, 1e-14}, {CYCLE, 30, 1, 0}, {CYCLE, 65, 0.500002, 1e-15},
    {CYCLE, 100, 4e-6, 1e-15}, {CYCLE, 200, 4e-6, 1e-15},
    {LINEAR_CYCLE, 1, 0.1, 1e-15}, {LINEAR_CYCLE, 2, 0.28, 1e-14}, {LINEAR_CYCLE, 6, 1, 1e-14},
    {LINEAR_CYCLE, 7, 0.802, 1e-14}, {LINEAR_CYCLE, 11, 0.01, 1e-15},
};

TEST(schedules_give_the_rates_of_their_models)
{
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        struct updater *u = parsed(rates[i].json);
        double got = stepped(u, "w", 1, rates[i].n).scalars.v[SGD_LR];
        if (!(fabs(got - rates[i].rate) <= rates[i].tolerance))
            test_fail(__FILE__, __LINE__, "%s at %llu: %.17g, not %.17g", rates[i].json, (unsigned long long)rates[i].n, got,
                      rates[i].rate);
        updater_drop(u);
    }
}

/* MXNet's factor scheduler, which has a memory, asked for each update in turn. */
TEST(the_factor_schedule_agrees_with_one_that_counts)
{
    struct updater *u = parsed(BASE("0.7") "\"type\": \"factor\", \"step\": 7, \"factor\": 0.9, \"stop_factor_lr\": 0.05}}");
    double lr = 0.7;
    unsigned count = 0;

    for (unsigned n = 1; n < 400; n++) {
        while (n > count + 7) {
            count += 7;
            lr *= 0.9;
            if (lr < 0.05) lr = 0.05;
        }
        CHECK_NEAR(stepped(u, "w", 1, n).scalars.v[SGD_LR], lr, 1e-14);
    }
    updater_drop(u);
}

TEST(a_schedule_scales_with_the_rate_of_an_override)
{
    struct updater *u = parsed("{\"type\": \"sgd\", \"learning_rate\": 4, \"schedule\": {\"type\": \"step\", \"step_size\": 10, "
                               "\"gamma\": 0.5}, \"overrides\": [{\"match\": \"a\", \"learning_rate\": 16}, "
                               "{\"match\": \"b\", \"lr_mult\": 3}]}");

    CHECK(stepped(u, "w", 1, 11).scalars.v[SGD_LR] == 2);
    CHECK(stepped(u, "a", 1, 11).scalars.v[SGD_LR] == 8);
    CHECK(stepped(u, "b", 1, 11).scalars.v[SGD_LR] == 6);
    updater_drop(u);
}

/* ---- from one updater to the next ------------------------------------------------------------------------------- */

/* The origins of the slots of `to` after `from`, both for key "w" of f32, after t steps. */
static bool origins(const char *from, const char *to, enum updater_states how, uint64_t t, struct slot_origin *out)
{
    struct updater *a = parsed(from), *b = parsed(to);
    struct updater_use a_use = used_as(a, "w", DTYPE_f32), b_use = used_as(b, "w", DTYPE_f32);

    updater_follow(a, NULL, STATES_KEEP);
    updater_follow(b, a, how);
    bool goes_on = updater_origins(a, &a_use, b, &b_use, t, t, out);
    updater_drop(a), updater_drop(b);
    return goes_on;
}

#define MOMENTUM_AT(rate) "{\"type\": \"sgd\", \"momentum\": 0.75, \"learning_rate\": " rate "}"

TEST(slots_of_the_same_name_are_kept_and_a_reset_begins_all_anew)
{
    struct slot_origin o[STEP_SLOTS_MAX];

    CHECK(origins(ADAM_TEXT, "{\"type\": \"adamw\"}", STATES_KEEP, 9, o));
    CHECK(o[0].kind == ORIGIN_KEPT && o[0].slot == 0 && o[1].kind == ORIGIN_KEPT && o[1].slot == 1);
    CHECK(origins(MOMENTUM_AT("1"), "{\"type\": \"dcasgd\", \"momentum\": 0.9}", STATES_KEEP, 9, o));
    CHECK(o[0].kind == ORIGIN_NEW && o[1].kind == ORIGIN_KEPT && o[1].slot == 0);
    CHECK(!origins(ADAM_TEXT, "{\"type\": \"adamw\"}", STATES_RESET, 9, o));
    CHECK(o[0].kind == ORIGIN_NEW && o[1].kind == ORIGIN_NEW);
}

/* A mean that is kept beside a variance that begins would be corrected for a start that it did not have. */
TEST(a_rule_that_counts_keeps_all_of_its_slots_or_none)
{
    struct slot_origin o[STEP_SLOTS_MAX];

    CHECK(!origins("{\"type\": \"lion\"}", ADAM_TEXT, STATES_KEEP, 9, o));
    CHECK(o[0].kind == ORIGIN_NEW && o[1].kind == ORIGIN_NEW);
    CHECK(!origins(ADAM_TEXT, "{\"type\": \"nadam\"}", STATES_KEEP, 9, o));
    CHECK(origins(ADAM_TEXT, "{\"type\": \"lion\"}", STATES_KEEP, 9, o));
    CHECK(o[0].kind == ORIGIN_KEPT);
}

TEST(movements_and_means_are_converted_by_their_rates)
{
    struct slot_origin o[STEP_SLOTS_MAX];

    CHECK(origins(MOMENTUM_AT("0.5"), "{\"type\": \"lion\"}", STATES_CONVERT, 9, o));
    CHECK_EQ(o[0].rule, RULE_scaled);
    CHECK(o[0].by == -0.25 / 0.5);
    CHECK(origins(ADAM_TEXT, MOMENTUM_AT("0.5"), STATES_CONVERT, 9, o));
    CHECK_NEAR(o[0].by, -0.5 / 0.1, 1e-12);
    CHECK(origins(MOMENTUM_AT("0.5"), "{\"type\": \"sgd\", \"momentum\": 0.9, \"convention\": \"torch\"}", STATES_CONVERT, 9, o));
    CHECK(o[0].by == -2);
    CHECK(origins(MOMENTUM_AT("0.5"), ADAM_TEXT, STATES_CONVERT, 9, o));
    CHECK(o[0].kind == ORIGIN_CONVERTED && o[1].kind == ORIGIN_CONVERTED);
    CHECK_EQ(o[1].rule, RULE_squared);
    CHECK_NEAR(o[1].by, 0.25 * (1 - pow(0.999, 9)) / pow(1 - pow(0.75, 9), 2), 1e-12);
    CHECK(origins("{\"type\": \"adagrad\"}", "{\"type\": \"rmsprop\"}", STATES_CONVERT, 9, o));
    CHECK_NEAR(o[0].by, (1 - pow(0.9, 9)) / 9, 1e-12);
    CHECK(!origins("{\"type\": \"sgd\"}", ADAM_TEXT, STATES_CONVERT, 9, o));
    CHECK(!origins(MOMENTUM_AT("0"), ADAM_TEXT, STATES_CONVERT, 9, o));
    CHECK(!origins(MOMENTUM_AT("1"), ADAM_TEXT, STATES_CONVERT, 0, o));
}

/* A key that never stepped under the updater in between is still reset. */
TEST(what_was_asked_for_on_the_way_counts)
{
    struct updater *a = parsed(ADAM_TEXT), *b = parsed("null"), *c = parsed("{\"type\": \"adamw\"}");
    struct updater_use a_use = used_as(a, "w", DTYPE_f32), c_use = used_as(c, "w", DTYPE_f32);
    struct slot_origin o[STEP_SLOTS_MAX];

    updater_follow(a, NULL, STATES_KEEP);
    updater_follow(b, a, STATES_RESET);
    updater_follow(c, b, STATES_KEEP);
    CHECK(!updater_origins(a, &a_use, c, &c_use, 9, 9, o));
    CHECK(o[0].kind == ORIGIN_NEW);
    updater_drop(a), updater_drop(b), updater_drop(c);
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

/* jansson gives a string that it found no memory for out as wrong text, or cuts it short, so that is allowed; all of
 * ours are told. */
TEST(every_failing_allocation_of_a_parse_is_refused)
{
    unsigned told = 0;

    static const char *const documents[] = {
        ADAM_TEXT, "null",
        SGD_TEXT_OF("0.1", "null", ", \"schedule\": {\"type\": \"constant\"}, \"overrides\": [{\"match\": \"a\"}]"),
        "{\"type\": \"sgd\", \"a\": [1, {\"b\": \"c\"}]}"};

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
                CHECK_EQ(s, i < 3 ? STATUS_OK : STATUS_INVALID_ARGUMENT);
                break;
            }
            if (s == STATUS_INVALID_ARGUMENT) continue;
            CHECK_EQ(s, STATUS_RESOURCE_EXHAUSTED);
            CHECK_EQ(error.reason, REASON_NO_MEMORY);
            told++;
        }
    json_set_alloc_funcs(malloc, free);
    CHECK(told >= 20);
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

static void value_text(const struct hyper_row *h, double v, char out[32])
{
    if (h->words != NULL) snprintf(out, 32, "%s", h->words[(int)v]);
    else if (isinf(v)) snprintf(out, 32, "needed");
    else if (isnan(v)) snprintf(out, 32, "null");
    else snprintf(out, 32, "%g", v);
}

/* The row of a table: name, default (and that of torch where it is another), bounds, meaning. */
static void hyper_line(const struct hyper_row *h, char *out, size_t size)
{
    char standard[32], torch[32], bounds[80];

    value_text(h, h->standard, standard);
    value_text(h, h->torch, torch);
    bool same = strcmp(standard, torch) == 0;
    if (h->words != NULL) snprintf(bounds, sizeof bounds, "%s or %s", h->words[0], h->words[1]);
    else snprintf(bounds, sizeof bounds, "%.7g to %.7g", h->least, h->most);
    snprintf(out, size, "| `%s` | %s%s%s | %s | %s |", h->name, standard, same ? "" : "; torch: ", same ? "" : torch, bounds,
             h->text);
}

TEST(the_document_tells_of_every_schedule_and_number)
{
    read_page();
    for (unsigned i = 0; schedule_row_at(i) != NULL; i++) {
        const struct schedule_row *row = schedule_row_at(i);
        char *end, *part = section(row->name, &end), was = *end, line[400];
        *end = '\0';
        CHECK_SAYS(part, row->text);
        for (unsigned k = row->warms_up ? S_OWN : 0; k < row->hyper_count; k++) {
            hyper_line(&row->hypers[k], line, sizeof line);
            CHECK_SAYS(part, line);
        }
        *end = was;
    }
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
            bool is_common = row->common && k > H_WD && k < H_OWN;
            hyper_line(h, line, sizeof line);
            CHECK_SAYS(is_common ? page : part, line);
        }
        *end = was;
    }
}
