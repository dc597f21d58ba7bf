/* Sums of lists over the GPUs of a device: right on every kind of device and wherever the sum lies, by NCCL where it is
 * there, and a failure that is told, leaves nothing at work and does not stay. */
#include "gpu/sums.h"

#include "gpu/array.h"
#include "gpu/group_nccl.h"
#include "gpu/plugin.h"
#include "service/base/mem.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sim_device.h"
#include "tests/lib/test.h"

#include <string.h>

enum { CPU, LATE, SIM, SIM_WITHOUT_NCCL };
enum { PART = DMEM_ALIGN, PIECE = 100, COUNT_MAX = 2 * PART + 7, VALUES_MAX = 5, REMOTE_ERROR = 6, UNKNOWN_ERROR = 999 };

static const struct {
    int kind;
    unsigned members;
    const char *by;
} setups[] = {
    {SIM, 2, "nccl"}, {SIM, 1, "nccl"}, {SIM, 4, "nccl"}, {SIM_WITHOUT_NCCL, 2, "local"}, {CPU, 1, "local"},
    {CPU, 2, "local"}, {LATE, 1, "local"}, {LATE, 3, "local"},
};

enum { TWO_CARDS = 0, ONE_CARD = 1, TWO_CPUS = 5, SETUPS = sizeof setups / sizeof setups[0] };

static struct error error;

static bool is_sim(int kind) { return kind == SIM || kind == SIM_WITHOUT_NCCL; }

/* On a machine with a GPU it is that, in a communicator of one. */
static bool is_taken(unsigned setup)
{
    return sim_replaced() ? setup == ONE_CARD : !is_sim(setups[setup].kind) || sim_present();
}

/* One device, or several as one whose parts are small. */
static struct device *device_open(unsigned setup, unsigned seed)
{
    unsigned count = setups[setup].members;
    struct device *members[4], *d = NULL;

    sim_nccl(setups[setup].kind == SIM);
    if (sim_replaced()) CHECK_OK(sim_device_new(seed, members, &error), &error);
    else if (is_sim(setups[setup].kind)) CHECK_OK(sim_cards_new(seed, count, members, &error), &error);
    for (unsigned i = 0; i < count && !is_sim(setups[setup].kind); i++) {
        if (setups[setup].kind == LATE) CHECK_OK(late_device_new(seed + i, &members[i], &error), &error);
        else CHECK_OK(cpu_device_new(1, &members[i], &error), &error);
    }
    if (count == 1) return members[0];
    CHECK_OK(array_device_new(&(struct array_config){.members = members, .count = count, .part = PART}, &d, &error), &error);
    return d;
}

static void device_close(unsigned setup, struct device *d)
{
    device_free(d);
    if (is_sim(setups[setup].kind) && sim_remains() != NULL) test_fail(__FILE__, __LINE__, "%s", sim_remains());
}

/* ---- lists ------------------------------------------------------------------------------------------------------ */

static union { float f32[COUNT_MAX]; double f64[COUNT_MAX]; } given[VALUES_MAX], got;
static const void *values[VALUES_MAX];

/* Whole numbers, so that the order of a sum does not matter. */
static double element(size_t value, size_t i) { return (double)((i * 7 + value * 100 + 1) % 251); }

static void make_values(enum dtype t)
{
    for (size_t v = 0; v < VALUES_MAX; v++) {
        values[v] = &given[v];
        for (size_t i = 0; i < COUNT_MAX; i++) {
            if (t == DTYPE_f32) given[v].f32[i] = (float)element(v, i);
            else given[v].f64[i] = element(v, i);
        }
    }
}

static void fetch(struct device *d, struct dmem from, size_t size)
{
    struct queue *q = NULL;
    uint64_t mark;

    CHECK_OK(device_queue_new(d, &q, &error), &error);
    CHECK_EQ(device_download(q, &got, from, 0, size), STATUS_OK);
    CHECK_EQ(device_record(q, &mark), STATUS_OK);
    CHECK_EQ(device_wait(q, mark), STATUS_OK);
    device_queue_free(q);
}

static bool is_right(enum dtype t, size_t value_count, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double want = 0;
        for (size_t v = 0; v < value_count; v++) want += element(v, i);
        if ((t == DTYPE_f32 ? (double)got.f32[i] : got.f64[i]) != want) return false;
    }
    return true;
}

static struct dmem room(struct device *d, enum dtype t, size_t count, bool whole)
{
    uint32_t home = device_home_new(d, count, whole, 0);
    struct dmem m;

    CHECK_OK(device_mem_new_at(d, count * dtype_size(t), mem_place_of(home, dtype_size(t)), &m, &error), &error);
    return m;
}

static enum status take(struct sums *s, enum dtype t, size_t value_count, size_t count, struct dmem to)
{
    return sums_take(s, &(struct sum_list){values, value_count, t, count, to}, &error);
}

/* One list of two values, in parts where there are several devices. */
static enum status take_one(struct sums *s, struct device *d)
{
    struct dmem to = room(d, DTYPE_f32, COUNT_MAX, false);
    enum status st = take(s, DTYPE_f32, 2, COUNT_MAX, to);

    if (st == STATUS_OK) {
        fetch(d, to, COUNT_MAX * 4);
        CHECK(is_right(DTYPE_f32, 2, COUNT_MAX));
    }
    device_mem_free(&to);
    return st;
}

static struct sums *open_sums(struct device *d)
{
    struct sums *s = NULL;

    make_values(DTYPE_f32);
    CHECK_OK(sums_new(d, PIECE, &s, &error), &error);
    return s;
}

static void one_list(struct sums *s, struct device *d, enum dtype t, size_t value_count, size_t count, bool whole)
{
    struct dmem to = room(d, t, count, whole);

    if (take(s, t, value_count, count, to) != STATUS_OK) test_fail(__FILE__, __LINE__, "%s", error.text);
    fetch(d, to, count * dtype_size(t));
    CHECK(is_right(t, value_count, count));
    device_mem_free(&to);
}

static void every_list(unsigned setup, struct device *d)
{
    struct sums *s = open_sums(d);

    CHECK(sums_kind(s) == NULL);
    for (size_t n = 1; n <= VALUES_MAX; n += 2) {
        one_list(s, d, DTYPE_f32, n, COUNT_MAX, true);
        one_list(s, d, DTYPE_f32, n, COUNT_MAX, false);
        one_list(s, d, DTYPE_f32, n, 1, false);
    }
    make_values(DTYPE_f64);
    one_list(s, d, DTYPE_f64, 3, COUNT_MAX, false);
    CHECK_TEXT(sums_kind(s), setups[setup].by);
    if (setups[setup].kind == SIM) CHECK_TEXT(sums_why_not(s), "");
    else CHECK_SAYS(sums_why_not(s), "NCCL is not here");
    sums_free(s);
}

TEST(lists_of_any_length_are_summed_wherever_the_sum_lies)
{
    int64_t before = mem_live();
    struct nccl nccl;

    if (sim_replaced() && nccl_open(&nccl, &error) != STATUS_OK) test_skip(error.text);
    for (unsigned i = 0; i < SETUPS; i++)
        for (unsigned seed = 3; seed < 3 + (i == TWO_CARDS ? SIM_SEEDS : 1); seed++) {
            if (!is_taken(i)) continue;
            struct device *d = device_open(i, seed);
            every_list(i, d);
            device_close(i, d);
            CHECK_EQ(mem_live(), before);
        }
}

static struct device *open_two_cards(unsigned seed)
{
    if (!sim_present() || sim_replaced())
        test_skip("it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md");
    return device_open(TWO_CARDS, seed);
}

/* Two of the values lie on cards, one of them not on the one that it is for. */
TEST(values_may_lie_on_any_card)
{
    for (unsigned seed = 3; seed < 3 + SIM_SEEDS; seed++) {
        struct device *d = open_two_cards(seed), *cards[ARRAY_MEMBERS_MAX];
        struct sums *s = open_sums(d);
        struct dmem m[2];

        CHECK_EQ(device_members(d, cards), 2);
        for (unsigned i = 0; i < 2; i++) {
            struct queue *q = NULL;
            CHECK_OK(device_mem_new(cards[1], COUNT_MAX * 4, &m[i], &error), &error);
            CHECK_OK(device_queue_new(cards[1], &q, &error), &error);
            CHECK_EQ(device_upload(q, m[i], 0, &given[i], COUNT_MAX * 4), STATUS_OK);
            device_queue_free(q);
            values[i] = m[i].at;
        }
        one_list(s, d, DTYPE_f32, 3, COUNT_MAX, false);
        for (unsigned i = 0; i < 2; i++) device_mem_free(&m[i]);
        sums_free(s);
        device_close(TWO_CARDS, d);
    }
}

/* ---- failures --------------------------------------------------------------------------------------------------- */

TEST(a_list_on_which_nccl_fails_is_told_and_the_next_one_is_right)
{
    for (unsigned seed = 3; seed < 6; seed++) {
        struct device *d = open_two_cards(seed);
        struct sums *s = open_sums(d);

        CHECK_EQ(take_one(s, d), STATUS_OK);
        sim_nccl_async_error(REMOTE_ERROR);
        CHECK_EQ(take_one(s, d), STATUS_UNAVAILABLE);
        CHECK_SAYS(error.text, "of 2: NCCL: ");
        CHECK(sums_kind(s) == NULL);
        CHECK_EQ(take_one(s, d), STATUS_OK);
        CHECK_TEXT(sums_kind(s), "nccl");
        sums_free(s);
        device_close(TWO_CARDS, d);
    }
}

/* The other card's part of the call waits for the lost one, and is let go. */
TEST(a_list_on_which_a_card_is_lost_says_which_and_so_do_all_later_ones)
{
    for (unsigned seed = 3; seed < 6; seed++) {
        struct device *d = open_two_cards(seed);
        struct sums *s = open_sums(d);

        CHECK_EQ(take_one(s, d), STATUS_OK);
        sim_fail("cudaMemcpyAsync", 1, UNKNOWN_ERROR);
        CHECK_EQ(take_one(s, d), STATUS_UNAVAILABLE);
        CHECK_EQ(error.reason, REASON_DEVICE_LOST);
        CHECK_SAYS(error.text, "the cuda:");
        CHECK_SAYS(error.text, "device is lost");
        struct dmem to = {0};
        if (device_mem_new(d, 4, &to, &error) == STATUS_OK) CHECK_EQ(take(s, DTYPE_f32, 2, 1, to), STATUS_UNAVAILABLE);
        device_mem_free(&to);
        sums_free(s);
        device_free(d);
        CHECK_EQ(sim_plugin()->mem_live(), 0);
    }
}

TEST(every_failing_allocation_is_a_status_and_the_next_list_is_right)
{
    bool hit = true;

    if (sim_replaced()) test_skip("it is about CPU devices, and this is the check of a GPU");
    for (uint64_t n = 1; hit; n++) {
        int64_t before = mem_live();
        struct device *d = device_open(TWO_CPUS, 1);
        struct sums *s = NULL;

        make_values(DTYPE_f32);
        struct dmem to = room(d, DTYPE_f32, COUNT_MAX, false);
        mem_fault_at(n);
        enum status st = sums_new(d, PIECE, &s, &error);
        if (st == STATUS_OK) st = take(s, DTYPE_f32, 5, COUNT_MAX, to);
        hit = mem_fault_hit();
        mem_fault_at(0);
        CHECK_EQ(st, hit ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK);
        device_mem_free(&to);
        if (s != NULL) CHECK_EQ(take_one(s, d), STATUS_OK);
        sums_free(s);
        device_free(d);
        CHECK_EQ(mem_live(), before);
    }
}
