#include "gpu/npy.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *text;
    enum dtype dtype;
    unsigned ndim;
    int64_t dims[2];
} good[] = {
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", DTYPE_f32, 2, {2, 3}},
    {"{'descr': '=f4', 'fortran_order': False, 'shape': (2,), }", DTYPE_f32, 1, {2}},
    {"{'descr': 'f8', 'fortran_order': False, 'shape': (), }", DTYPE_f64, 0, {0}},
    {"{\"descr\": \"<i8\", \"fortran_order\": False, \"shape\": (4L,)}", DTYPE_i64, 1, {4}},
    {"{'shape':(4L, 5L),'fortran_order':False,'descr':'|u1'}", DTYPE_u8, 2, {4, 5}},
    {"{'descr': '>i1', 'fortran_order': False, 'shape': (0 , 7)}", DTYPE_i8, 2, {0, 7}},
    {"{'descr': '<f2', 'fortran_order': False, 'shape': (1,)}", DTYPE_f16, 1, {1}},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", DTYPE_i32, 1, {1}},
};

TEST(headers_that_python_writes_are_read_whatever_the_quotes_and_the_order_of_members)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct npy_header h = {.ndim = 9};
        struct error e;

        CHECK_OK(npy_header_read(good[i].text, &h, &e), &e);
        CHECK_EQ(h.dtype, good[i].dtype);
        CHECK_EQ(h.ndim, good[i].ndim);
        for (unsigned d = 0; d < h.ndim; d++) CHECK_EQ(h.dims[d], good[i].dims[d]);
    }
}

static const struct {
    const char *text, *says;
} bad[] = {
    {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", "elements of type '>f4' are not stored here; save array.astype("},
    {"{'descr': '|f4', 'fortran_order': False, 'shape': (2,)}", "elements of type '|f4'"},
    {"{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}", "elements of type '<c8'"},
    {"{'descr': '', 'fortran_order': False, 'shape': (2,)}", "elements of type ''"},
    {"{'descr': '<f44', 'fortran_order': False, 'shape': (2,)}", "elements of type '<f44'"},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", "records"},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", "numpy.ascontiguousarray"},
    {"{'descr': '<f4', 'shape': (2,)}", "lacks one of"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': [2]}", "not a tuple"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "not a tuple"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}", "not a tuple"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "at most 8"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "not a tuple"},
};

TEST(what_cannot_be_taken_is_refused_with_what_cures_it)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct npy_header h;
        struct error e;

        CHECK_EQ(npy_header_read(bad[i].text, &h, &e), STATUS_INVALID_ARGUMENT);
        CHECK_SAYS(e.text, bad[i].says);
    }
}

TEST(no_header_that_is_cut_off_is_read_behind_its_end)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        for (size_t size = 0; size <= strlen(good[i].text); size++) {
            char *text = guard_new(size + 1);
            struct npy_header h;
            struct error e;

            memcpy(text, good[i].text, size);
            text[size] = '\0';
            enum status s = npy_header_read(text, &h, &e);
            CHECK(s == STATUS_OK || s == STATUS_INVALID_ARGUMENT);
            guard_free(text, size + 1);
        }
}

TEST(each_type_with_a_name_reads_back)
{
    for (unsigned t = 0; t < DTYPE_COUNT; t++) {
        const char *name = npy_type_name((enum dtype)t);
        struct npy_header h;
        struct error e;
        char text[96];

        CHECK_EQ(name == NULL, t == DTYPE_bf16);
        if (name == NULL) continue;
        snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (1,)}", name);
        CHECK_OK(npy_header_read(text, &h, &e), &e);
        CHECK_EQ(h.dtype, t);
    }
}
