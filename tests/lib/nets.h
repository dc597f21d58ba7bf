/* Networks for tests, as symbol files. */
#ifndef TESTS_LIB_NETS_H
#define TESTS_LIB_NETS_H

#include "service/base/bytes.h"

/* A symbol file being written; nodes get numbers from zero. */
struct net {
    struct buf text;
    unsigned count;
};

/* A variable. */
unsigned net_var(struct net *n, const char *name);
/* With attributes: JSON without braces, as printf writes it. */
unsigned net_var_with(struct net *n, const char *name, const char *attrs, ...) PRINTF_LIKE(3, 4);
/* An operator: attrs is JSON without braces, `"axis": "1"`, or ""; inputs end with -1. */
unsigned net_op(struct net *n, const char *op, const char *name, const char *attrs, ...);
/* Output `output` of one node with another node. */
unsigned net_op_of(struct net *n, const char *op, const char *name, unsigned node, unsigned output,
                   unsigned other);
/* Ends the file; the text has a zero behind it. */
struct bytes net_end(struct net *n, unsigned head);
void net_fini(struct net *n);

/* The matrix factorization of the tutorials: 11 nodes, 96,000 parameters. With `hidden` a layer more. */
struct bytes net_factorization(struct net *n, bool hidden);
/* conv0, then `units` residual units of six operators each and their parameters, then a classifier. */
struct bytes net_residual(struct net *n, unsigned units);
/* `blocks` times four branches side by side that are joined. */
struct bytes net_inception(struct net *n, unsigned blocks);
/* Nodes whose inputs are random among those before. */
struct bytes net_random(struct net *n, unsigned nodes, uint64_t seed);

#endif
