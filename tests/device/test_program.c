/* Each element updater of the catalogue, written in the updater language, against its compiled rule: equal bits of value
 * and slots after every one of 50 steps. sgld draws random numbers and nadam carries a product from step to step in
 * double, which the language has no words for. */
#include "gpu/array.h"

#include "gpu/program.h"
#include "service/base/mem.h"
#include "service/updater.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* FEW: where PTX is interpreted. */
enum { COUNT = 2600, FEW = 70, STEPS = 50, CONTRIBUTORS = 3 };

static struct error error;

/* ---- the pairs ------------------------------------------------------------------------------------------------------- */

#define NUMBERS "\"learning_rate\": 0.01, \"wd\": 0.03, \"rescale_grad\": 0.6, \"clip_gradient\": 0.3"
#define PARAMS "param lr = 0.01, wd = 0.03, rescale = 0.6, clip = 0.3\n"
#define CLIPPED "g = clamp(rescale * grad, -clip, clip)\n"
#define GRADIENT "g = clamp(rescale * grad, -clip, clip) + wd * stored\n"
#define ADAM_PARAMS PARAMS "param beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8\nslot mean = 0, var = 0\n"
#define MOMENTS "mean = beta1 * mean + (1 - beta1) * g\nvar = beta2 * var + (1 - beta2) * (g * g)\n"
#define RATE "rate = lr * sqrt(1 - beta2^step) / (1 - beta1^step)\n"

static const struct pair {
    const char *document, *text;
} pairs[] = {
    {"\"assign\"", "stored = grad"},
    {"\"add\"", "stored = stored + grad"},
    {"\"average\"", "stored = grad / contributors"},
    {"\"test\", \"rescale_grad\": 2", "stored += 2 * grad"},
    {"\"ema\", \"decay\": 0.9",
     "slot average = stored; stored = grad / contributors; average = 0.9 * average + (1 - 0.9) * stored"},
    {"\"sgd\", " NUMBERS, PARAMS GRADIENT "stored -= lr * g"},
    {"\"sgd\", \"learning_rate\": 0.1", "stored -= 0.1 * grad"},
    {"\"sgd\", \"momentum\": 0.9, " NUMBERS,
     PARAMS "slot momentum = 0\n" GRADIENT "momentum = 0.9 * momentum - lr * g; stored += momentum"},
    {"\"sgd\", \"convention\": \"torch\", \"momentum\": 0.9, " NUMBERS,
     PARAMS "slot velocity = 0\n" GRADIENT "velocity = 0.9 * velocity + g; stored -= lr * velocity"},
    {"\"nag\", " NUMBERS,
     PARAMS "slot momentum = 0\n" GRADIENT "g = lr * g; momentum = 0.9 * momentum - g; stored += 0.9 * momentum - g"},
    {"\"nag\", \"convention\": \"torch\", " NUMBERS,
     PARAMS "slot velocity = 0\n" GRADIENT "velocity = 0.9 * velocity + g; stored -= lr * (g + 0.9 * velocity)"},
    {"\"diloco\", " NUMBERS,
     PARAMS "slot velocity = 0\ng = clamp(rescale / contributors * grad, -clip, clip) + wd * stored\n"
     "velocity = 0.9 * velocity + g; stored -= lr * (g + 0.9 * velocity)"},
    {"\"adam\", " NUMBERS, ADAM_PARAMS GRADIENT MOMENTS RATE "stored -= rate * (mean / (sqrt(var) + epsilon))"},
    {"\"adam\", \"convention\": \"torch\", " NUMBERS,
     ADAM_PARAMS GRADIENT MOMENTS RATE "stored -= rate * (mean / (sqrt(var) + epsilon * sqrt(1 - beta2^step)))"},
    {"\"adam\", \"correct_bias\": false, " NUMBERS,
     ADAM_PARAMS GRADIENT MOMENTS "stored -= lr * (mean / (sqrt(var) + epsilon))"},
    {"\"adamw\", \"epsilon\": 1e-8, " NUMBERS,
     ADAM_PARAMS CLIPPED MOMENTS RATE "stored -= rate * (mean / (sqrt(var) + epsilon) + wd * stored)"},
    {"\"adamw\", \"convention\": \"torch\", " NUMBERS,
     ADAM_PARAMS CLIPPED MOMENTS RATE "root = sqrt(1 - beta2^step)\n"
     "stored -= rate * (mean / (sqrt(var) + epsilon * root) + wd * (1 - beta1^step) / root * stored)"},
    {"\"adabelief\", \"epsilon\": 1e-8, " NUMBERS,
     PARAMS "param beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8\nslot mean = 0, spread = 0\n"
     "g = clamp(rescale * grad + wd * stored, -clip, clip)\nmean = beta1 * mean + (1 - beta1) * g\nd = g - mean\n"
     "spread = beta2 * spread + (1 - beta2) * (d * d) + epsilon\n" RATE "stored -= rate * (mean / (sqrt(spread) + epsilon))"},
    {"\"adamax\", " NUMBERS,
     PARAMS "slot mean = 0, peak = 0\n" GRADIENT "mean = 0.9 * mean + (1 - 0.9) * g\npeak = max(0.999 * peak, abs(g))\n"
     "stored -= lr / (1 - 0.9^step) * (mean / (peak + 1e-8))"},
    {"\"adamax\", \"convention\": \"torch\", " NUMBERS,
     PARAMS "slot mean = 0, peak = 0\n" GRADIENT "mean = 0.9 * mean + (1 - 0.9) * g\n"
     "peak = max(0.999 * peak, abs(g) + 1e-8)\nstored -= lr / (1 - 0.9^step) * (mean / peak)"},
    {"\"radam\", " NUMBERS,
     ADAM_PARAMS GRADIENT MOMENTS "left = beta2^step; most = 2 / (1 - beta2) - 1; n = most - 2 * step * left / (1 - left)\n"
     "known = n > 5\n"
     "rate = where(known, lr * sqrt(1 - beta2^step) / (1 - beta1^step)\n"
     "                    * sqrt((n - 4) * (n - 2) * most / ((most - 4) * (most - 2) * n)), lr / (1 - beta1^step))\n"
     "stored -= rate * (mean / (known * sqrt(var) + where(known, epsilon, 1)))"},
    {"\"yogi\", " NUMBERS,
     PARAMS "slot mean = 0, var = 0\n" GRADIENT "mean = 0.9 * mean + (1 - 0.9) * g\nq = g * g\n"
     "var -= (1 - 0.999) * (sign(var - q) * q)\nstored -= lr * (mean / (sqrt(var) + 1e-3))"},
    {"\"adagrad\", " NUMBERS,
     PARAMS "slot squares = 0\n" GRADIENT "squares += g * g; stored -= lr * (g / (sqrt(squares) + 1e-6))"},
    {"\"adadelta\", " NUMBERS,
     PARAMS "slot var = 0, moves = 0\n" GRADIENT "var = 0.9 * var + (1 - 0.9) * (g * g)\n"
     "d = sqrt(moves + 1e-6) / sqrt(var + 1e-6) * g; moves = 0.9 * moves + (1 - 0.9) * (d * d); stored -= lr * d"},
    {"\"rmsprop\", \"clip_weights\": 0.7, " NUMBERS,
     PARAMS "slot var = 0\n" GRADIENT "var = 0.9 * var + (1 - 0.9) * (g * g)\n"
     "stored = clamp(stored - lr * (g / (sqrt(var) + 1e-8)), -0.7, 0.7)"},
    {"\"rmsprop\", \"centered\": true, " NUMBERS,
     PARAMS "slot var = 0, mean = 0, stride = 0\n" GRADIENT
     "var = 0.9 * var + (1 - 0.9) * (g * g)\nmean = 0.9 * mean + (1 - 0.9) * g\nspread = var - mean * mean\n"
     "stride = 0.9 * stride + -lr * g / sqrt(where(spread < 0, 0, spread) + 1e-8); stored += stride"},
    {"\"rmsprop\", \"centered\": true, \"momentum\": 0.5, \"convention\": \"torch\", \"rho\": 0.9, " NUMBERS,
     PARAMS "slot var = 0, mean = 0, pace = 0\n" GRADIENT
     "var = 0.9 * var + (1 - 0.9) * (g * g)\nmean = 0.9 * mean + (1 - 0.9) * g\nspread = var - mean * mean\n"
     "pace = 0.5 * pace + g / (sqrt(where(spread < 0, 0, spread)) + 1e-8); stored -= lr * pace"},
    {"\"rmsprop\", \"momentum\": 0.5, \"convention\": \"torch\", \"rho\": 0.9, " NUMBERS,
     PARAMS "slot var = 0, pace = 0\n" GRADIENT "var = 0.9 * var + (1 - 0.9) * (g * g)\n"
     "pace = 0.5 * pace + g / (sqrt(var) + 1e-8); stored -= lr * pace"},
    {"\"ftrl\", " NUMBERS,
     PARAMS "param lamda = 0.01, beta = 1\nslot dual = 0, squares = 0\n" CLIPPED "before = sqrt(squares); squares += g * g\n"
     "root = sqrt(squares); dual += g - (root - before) * (1 / lr) * stored; over = abs(dual) - lamda\n"
     "stored = -(sign(dual) * where(over < 0, 0, over)) / ((beta + root) * (1 / lr) + wd)"},
    {"\"ftml\", " NUMBERS,
     PARAMS "slot d = 0, var = 0, z = 0\n" GRADIENT "var = 0.999 * var + (1 - 0.999) * (g * g)\n"
     "root = sqrt(1 - 0.999^step); new = (1 - 0.6^step) / lr * (sqrt(var / (root * root)) + 1e-8)\n"
     "z = 0.6 * z + (1 - 0.6) * g - (new - 0.6 * d) * stored; stored = -z / new; d = new"},
    {"\"signum\", \"wd_lh\": 0.02, " NUMBERS,
     PARAMS "slot mean = 0\n" GRADIENT "mean = 0.9 * mean + (1 - 0.9) * g\n"
     "stored = (1 - lr * 0.02) * stored - lr * sign(mean)"},
    {"\"signum\", \"momentum\": 0, \"learning_rate\": 0.01, \"wd\": 0.03, \"wd_lh\": 0.02",
     "stored = (1 - 0.01 * (0.02 + 0.03)) * stored - 0.01 * sign(grad)"},
    {"\"dcasgd\", " NUMBERS,
     PARAMS "slot previous = stored\n" GRADIENT "g += 0.04 * g * g * (stored - previous); previous = stored; stored -= lr * g"},
    {"\"dcasgd\", \"momentum\": 0.9, " NUMBERS,
     PARAMS "slot previous = stored, momentum = 0\n" GRADIENT "g += 0.04 * g * g * (stored - previous); previous = stored\n"
     "momentum = 0.9 * momentum - lr * g; stored += momentum"},
    {"\"lion\", " NUMBERS,
     PARAMS "slot mean = 0\n" CLIPPED "stored -= lr * (sign(0.9 * mean + (1 - 0.9) * g) + wd * stored)\n"
     "mean = 0.99 * mean + (1 - 0.99) * g"},
};

static struct updater *rule_updater(const struct pair *p)
{
    struct updater *u = NULL;
    char json[400];

    snprintf(json, sizeof json, "{\"type\": %s}", p->document);
    CHECK_OK(updater_parse(bytes_text(json), &u, &error), &error);
    return u;
}

static struct updater *text_updater(const char *text)
{
    struct updater *u = NULL;
    json_t *document = json_pack("{s:s,s:s}", "type", "program", "text", text);
    char *json = json_dumps(document, 0);

    CHECK_OK(updater_parse(bytes_text(json), &u, &error), &error);
    free(json);
    json_decref(document);
    return u;
}

/* ---- running two side by side ----------------------------------------------------------------------------------------- */

struct side {
    struct updater *updater;
    struct updater_use use;
    struct dmem value, master, slots[STEP_SLOTS_MAX];
};

struct run {
    struct device *device;
    struct queue *queue;
    uint32_t home;
    enum dtype type;
    size_t count;
    struct dmem sum, last;
    struct side rule, text;
    uint64_t random;
    uint32_t flags;
};

/* On several devices in parts. */
static struct dmem memory(struct run *r, enum dtype t)
{
    struct dmem m;
    CHECK_OK(device_mem_new_at(r->device, r->count * dtype_size(t), mem_place_of(r->home, dtype_size(t)), &m, &error), &error);
    return m;
}

static void wait_for(struct run *r)
{
    uint64_t mark;
    CHECK_EQ(device_record(r->queue, &mark), STATUS_OK);
    CHECK_EQ(device_wait(r->queue, mark), STATUS_OK);
}

/* Values around 1, for which a half type has few digits: that is what masters are for. */
static void upload_random(struct run *r, struct dmem to, enum dtype type)
{
    size_t size = r->count * dtype_size(type);
    uint8_t *bytes = mem_zero(size);

    CHECK(bytes != NULL);
    for (size_t i = 0; i < r->count; i++) {
        double x = (double)(rng_next(&r->random) >> 11) * 0x1p-52 - 1;
        float f = (float)x;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (type == DTYPE_f64) memcpy(bytes + 8 * i, &x, 8);
        else if (type == DTYPE_f32) memcpy(bytes + 4 * i, &f, 4);
        else memcpy(bytes + 2 * i, &(uint16_t){(uint16_t)(type == DTYPE_bf16 ? bits >> 16 : 0x3000 | bits >> 20)}, 2);
    }
    CHECK_EQ(device_upload(r->queue, to, 0, bytes, size), STATUS_OK);
    wait_for(r);
    mem_free(bytes);
}

static void side_open(struct run *r, struct side *s, struct updater *u)
{
    enum dtype real = dtype_sum(r->type);
    const int64_t dims[] = {(int64_t)r->count};

    s->updater = u;
    updater_use(u, &(struct rule_key){bytes_text("w"), 1, dims, r->count}, r->type, &s->use);
    s->value = memory(r, r->type);
    if (s->use.has_master) s->master = memory(r, real);
    for (unsigned i = 0; i < use_slots(&s->use); i++) s->slots[i] = memory(r, real);
}

static void side_begin(struct run *r, struct side *s)
{
    for (unsigned i = 0; i < use_slots(&s->use); i++) {
        enum status st = use_slot_from_value(&s->use, i)
            ? device_widen(r->queue, s->slots[i], s->value, r->type, r->count)
            : device_zero(r->queue, s->slots[i], s->slots[i].size);
        CHECK_EQ(st, STATUS_OK);
    }
    if (s->use.has_master) CHECK_EQ(device_widen(r->queue, s->master, s->value, r->type, r->count), STATUS_OK);
}

static void side_step(struct run *r, struct side *s, unsigned t)
{
    struct update_moment m = {.t = t, .num_update = t, .contributors = CONTRIBUTORS, .num_workers = 4, .product = 1};
    struct step step = {.type = r->type, .count = r->count, .sum = r->sum, .from = s->value, .to = s->value,
                        .master = s->master, .flags = &r->flags};

    if (t % 3 != 0) step.last = r->last;
    updater_step(s->updater, &s->use, t, &m, &step);
    memcpy(step.slots, s->slots, sizeof step.slots);
    CHECK_OK(device_step(r->queue, &step), device_error(r->device));
}

static void side_close(struct side *s)
{
    device_mem_free(&s->value);
    device_mem_free(&s->master);
    for (unsigned i = 0; i < STEP_SLOTS_MAX; i++) device_mem_free(&s->slots[i]);
    updater_drop(s->updater);
}

static bool equal(struct run *r, struct dmem a, struct dmem b)
{
    uint8_t *x = mem_new(a.size), *y = mem_new(b.size);

    CHECK(x != NULL && y != NULL && a.size == b.size);
    CHECK_EQ(device_download(r->queue, x, a, 0, a.size), STATUS_OK);
    CHECK_EQ(device_download(r->queue, y, b, 0, b.size), STATUS_OK);
    wait_for(r);
    bool same = memcmp(x, y, a.size) == 0;
    mem_free(x);
    mem_free(y);
    return same;
}

static struct dmem slot_named(const struct side *s, const char *name)
{
    for (unsigned i = 0; i < use_slots(&s->use); i++)
        if (strcmp(use_slot_name(&s->use, i), name) == 0) return s->slots[i];
    test_fail(__FILE__, __LINE__, "no slot %s", name);
}

static void compare(struct run *r, const struct pair *p, unsigned t)
{
    CHECK_EQ(use_slots(&r->rule.use), use_slots(&r->text.use));
    if (!equal(r, r->rule.value, r->text.value))
        test_fail(__FILE__, __LINE__, "%s, %s, step %u: the values differ", p->document, dtype_name(r->type), t);
    for (unsigned i = 0; i < use_slots(&r->rule.use); i++) {
        const char *name = use_slot_name(&r->rule.use, i);
        if (!equal(r, r->rule.slots[i], slot_named(&r->text, name)))
            test_fail(__FILE__, __LINE__, "%s, %s, step %u: the slots %s differ", p->document, dtype_name(r->type), t, name);
    }
}

static void begin(struct run *r)
{
    upload_random(r, r->rule.value, r->type);
    CHECK_EQ(device_copy(r->queue, r->text.value, r->rule.value, r->rule.value.size), STATUS_OK);
    side_begin(r, &r->rule);
    side_begin(r, &r->text);
}

static void gradient(struct run *r)
{
    upload_random(r, r->sum, dtype_sum(r->type));
    upload_random(r, r->last, r->type);
}

static struct device_programs look(struct device *d)
{
    struct device_programs now;
    device_programs(d, &now);
    return now;
}

/* A step asks for a kernel of the text's own; those after it are by that. */
static void await_kernel(struct run *r)
{
    begin(r);
    gradient(r);
    side_step(r, &r->text, 1);
    wait_for(r);
    while (look(r->device).waiting > 0) sched_yield();
    if (look(r->device).refused > 0) test_fail(__FILE__, __LINE__, "%s", look(r->device).why);
}

/* How steps of the text have to be computed. */
enum how { ANYHOW, COMPILED };

static void run_pair(struct device *d, const struct pair *p, enum dtype type, size_t count, enum how how)
{
    struct run r = {.device = d, .type = type, .count = count, .random = 11};

    CHECK_OK(device_queue_new(d, &r.queue, &error), &error);
    r.home = device_home_new(d, count, false, 0);
    r.sum = memory(&r, dtype_sum(type));
    r.last = memory(&r, type);
    side_open(&r, &r.rule, rule_updater(p));
    side_open(&r, &r.text, text_updater(p->text));
    if (how == COMPILED) await_kernel(&r);
    uint64_t compiled = look(d).compiled;
    begin(&r);
    for (unsigned t = 1; t <= STEPS; t++) {
        gradient(&r);
        side_step(&r, &r.rule, t);
        side_step(&r, &r.text, t);
        compare(&r, p, t);
    }
    CHECK_EQ(look(d).compiled - compiled, how == COMPILED ? STEPS : 0);
    CHECK_EQ(r.flags, 0);
    side_close(&r.rule);
    side_close(&r.text);
    device_mem_free(&r.sum);
    device_mem_free(&r.last);
    device_queue_free(r.queue);
}

/* Each n-th pair. */
static void run_some(struct device *d, enum dtype type, size_t n)
{
    size_t count = sim_is_ptx() ? FEW : COUNT;

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i += n) run_pair(d, &pairs[i], type, count, ANYHOW);
    device_free(d);
}

static void run_all(struct device *d, enum dtype type) { run_some(d, type, 1); }

static struct device *cpu(unsigned threads)
{
    struct device *d = NULL;
    CHECK_OK(cpu_device_new(threads, &d, &error), &error);
    return d;
}

TEST(texts_give_the_bits_of_the_rules_in_f32) { run_all(cpu(1), DTYPE_f32); }
TEST(texts_give_the_bits_of_the_rules_in_f64) { run_all(cpu(1), DTYPE_f64); }
TEST(texts_give_the_bits_of_the_rules_in_f16) { run_all(cpu(1), DTYPE_f16); }
TEST(texts_give_the_bits_of_the_rules_in_bf16) { run_all(cpu(1), DTYPE_bf16); }

TEST(texts_give_the_bits_of_the_rules_on_a_late_device)
{
    struct device *d = NULL;
    CHECK_OK(late_device_new(7, &d, &error), &error);
    run_all(d, DTYPE_f32);
}

/* There a program is interpreted, a thread an element; one type a seed. */
TEST(texts_give_the_bits_of_the_rules_on_a_gpu)
{
    static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_bf16};

    if (!sim_present()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    for (unsigned i = 0; i < SIM_SEEDS; i++) {
        struct device *d = NULL;
        CHECK_OK(sim_device_new(i, &d, &error), &error);
        run_all(d, types[i]);
        if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
    }
}

/* And there it is compiled; each text for one of the types. PTX is interpreted by the stand-in. */
TEST(texts_give_the_bits_of_the_rules_on_a_gpu_that_compiles_them)
{
    static const enum dtype types[] = {DTYPE_f32, DTYPE_f64, DTYPE_f16, DTYPE_bf16};
    const size_t count = sim_replaced() ? COUNT : FEW;

    if (!sim_present()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    for (unsigned t = 0; t < 4; t++) {
        struct device *d = NULL;
        CHECK_OK(sim_compiling_device_new(t, &d, &error), &error);
        for (size_t i = t; i < sizeof pairs / sizeof pairs[0]; i += SIM_SEEDS > 1 ? 4 : 16)
            run_pair(d, &pairs[i], types[t], count, COMPILED);
        device_free(d);
        if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
    }
}

static struct device *several(struct device *const members[2])
{
    struct device *d = NULL;
    CHECK_OK(array_device_new(&(struct array_config){.members = members, .count = 2, .part = 1024}, &d, &error), &error);
    return d;
}

TEST(texts_give_the_bits_of_the_rules_on_several_devices)
{
    struct device *members[2] = {cpu(1), NULL};

    CHECK_OK(late_device_new(3, &members[1], &error), &error);
    run_all(several(members), DTYPE_f32);
}

/* Where the parts lie is all that differs from one card, so a few do. */
TEST(texts_give_the_bits_of_the_rules_on_several_cards)
{
    struct device *members[2];

    if (!sim_present() || sim_replaced()) test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    CHECK_OK(sim_cards_new(3, 2, members, &error), &error);
    run_some(several(members), DTYPE_f32, 8);
    if (sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

/* The names of the catalogue without a pair are those that cannot have one. */
TEST(every_element_updater_has_a_text)
{
    static const char *const whole[] = {"groupadagrad", "lars", "lamb", "lans", "adafactor"};
    static const char *const without[] = {"sgld", "nadam", "program"};
    char name[64];

    for (unsigned i = 0; updater_row_at(i) != NULL; i++) {
        bool found = false;
        snprintf(name, sizeof name, "\"%s\"", updater_row_at(i)->name);
        for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++)
            found |= strncmp(pairs[k].document, name, strlen(name)) == 0;
        for (size_t k = 0; k < sizeof whole / sizeof whole[0]; k++) found |= strcmp(whole[k], updater_row_at(i)->name) == 0;
        for (size_t k = 0; k < sizeof without / sizeof without[0]; k++)
            found |= strcmp(without[k], updater_row_at(i)->name) == 0;
        if (!found) test_fail(__FILE__, __LINE__, "%s has no text", updater_row_at(i)->name);
    }
}

/* ---- a step with a program ------------------------------------------------------------------------------------------- */

/* Large enough to be cut among the workers. */
TEST(threads_share_a_program)
{
    enum { LARGE = 300000 };
    struct device *d = cpu(3);
    struct queue *q = NULL;
    struct dmem value, sum;
    struct program *p = NULL;
    uint32_t flags = 0;
    uint64_t mark;

    CHECK_OK(program_new(bytes_text("stored += grad * 2"), &p, &error), &error);
    CHECK_OK(device_queue_new(d, &q, &error), &error);
    CHECK_OK(device_mem_new(d, LARGE * 4, &value, &error), &error);
    CHECK_OK(device_mem_new(d, LARGE * 4, &sum, &error), &error);
    for (size_t i = 0; i < LARGE; i++) ((float *)value.host)[i] = 1, ((float *)sum.host)[i] = (float)i;
    struct step s = {.rule = RULE_program, .program = p, .program_scalars = {2}, .type = DTYPE_f32, .count = LARGE,
                     .sum = sum, .from = value, .to = value, .flags = &flags};
    CHECK_EQ(device_step(q, &s), STATUS_OK);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
    for (size_t i = 0; i < LARGE; i++) CHECK(((float *)value.host)[i] == 1 + (float)i * 2);
    /* In place on the gradient, too. */
    s.from = value, s.to = sum;
    CHECK_EQ(device_step(q, &s), STATUS_OK);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
    for (size_t i = 0; i < LARGE; i++) CHECK(((float *)sum.host)[i] == 1 + (float)i * 2 + (float)i * 2);
    device_queue_free(q);
    device_mem_free(&value);
    device_mem_free(&sum);
    device_free(d);
    program_free(p);
}

TEST(a_device_refuses_a_program_that_does_not_fit_its_step)
{
    struct device *d = cpu(1);
    struct queue *q = NULL;
    struct dmem value, sum;
    struct program *p = NULL;
    uint32_t flags = 0;

    CHECK_OK(program_new(bytes_text("slot m = 0; m += grad; stored -= m"), &p, &error), &error);
    CHECK_OK(device_queue_new(d, &q, &error), &error);
    CHECK_OK(device_mem_new(d, 64, &value, &error), &error);
    CHECK_OK(device_mem_new(d, 64, &sum, &error), &error);
    struct step s = {.rule = RULE_program, .program = p, .type = DTYPE_f32, .count = 8, .sum = sum, .from = value,
                     .to = value, .flags = &flags};
    CHECK_EQ(device_step(q, &s), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(device_error(d)->text, "slots[0]");
    s.program = NULL;
    CHECK_EQ(device_step(q, &s), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(device_error(d)->text, "rule");
    s.rule = RULE_add, s.program = p;
    CHECK_EQ(device_step(q, &s), STATUS_INVALID_ARGUMENT);
    s.rule = RULE_program, s.type = DTYPE_i32;
    CHECK_EQ(device_step(q, &s), STATUS_INVALID_ARGUMENT);
    CHECK_SAYS(device_error(d)->text, "needs fractions");
    device_queue_free(q);
    device_mem_free(&value);
    device_mem_free(&sum);
    device_free(d);
    program_free(p);
}
