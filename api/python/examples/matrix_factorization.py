#!/usr/bin/python3
"""Matrix factorization, from the network to the trained model: built, drawn, described, summed up, trained over a store.

    matrix_factorization.py                                      # in this process
    matrix_factorization.py --url tcp://127.0.0.1:7700           # in a daemon (`make run`), store matrix_factorization
    matrix_factorization.py --out /tmp/mf                        # where the files go: /tmp/mf.json, /tmp/mf.svg, ...

A thousand users have rated some of five hundred items. Each user and each item gets 64 numbers, a row of a table; the
product of the two rows, summed, is the rating that is expected. The tables are the parameters, 96,000 numbers; the
ratings here are made up of fewer numbers and some noise, so that one can see how well they are found again.
"""

import argparse
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import paramd
from paramd import sym, viz

USERS, ITEMS, WIDTH = 1000, 500, 64
BATCH, EPOCHS = 4000, 4


# ---- the network ----------------------------------------------------------------------------------------------------

def build():
    user, item, score = sym.Variable('user'), sym.Variable('item'), sym.Variable('score')
    user = sym.Embedding(data=user, input_dim=USERS, output_dim=WIDTH, name='user_embed')
    item = sym.Embedding(data=item, input_dim=ITEMS, output_dim=WIDTH, name='item_embed')
    product = user * item
    rating = sym.Flatten(data=sym.sum_axis(data=product, axis=1, name='match'), name='rating')
    return sym.LinearRegressionOutput(data=rating, label=score, name='loss')


def show(net, out):
    shapes = {'user': ('N',), 'item': ('N',)}
    print('The network, in words:\n')
    print(viz.describe(net, shape=shapes))
    viz.print_summary(net, shape=shapes)
    net.save(f'{out}.json')
    print('\nDrawn:', viz.plot_network(net, shape=shapes).render(out, format='svg'))


# ---- data and gradients ---------------------------------------------------------------------------------------------

def ratings(random, count=200000, rank=4):
    """(users, items, scores) of random pairs."""
    taste, kind = random.normal(size=(USERS, rank)), random.normal(size=(ITEMS, rank))
    users, items = random.integers(USERS, size=count), random.integers(ITEMS, size=count)
    scores = (taste[users] * kind[items]).sum(axis=1) / rank ** 0.5 + random.normal(scale=0.1, size=count)
    return users, items, scores.astype(np.float32)


def error_of(tables, users, items, scores):
    """Root of the mean squared error."""
    a, b = tables
    return float(np.sqrt(np.mean(((a[users] * b[items]).sum(axis=1) - scores) ** 2)))


def gradients(tables, users, items, scores):
    """Of half the squared error, summed over the batch. Rows of nobody in it stay zero."""
    a, b = tables
    rows_a, rows_b = a[users], b[items]
    off = ((rows_a * rows_b).sum(axis=1) - scores)[:, None]
    to_a, to_b = np.zeros_like(a), np.zeros_like(b)
    np.add.at(to_a, users, off * rows_b)
    np.add.at(to_b, items, off * rows_a)
    return to_a, to_b


# ---- training -------------------------------------------------------------------------------------------------------

def train(kv, net, random):
    """The store holds the tables under their names in the network, and runs the updater."""
    names = [name for name in net.list_arguments() if name.endswith('_weight')]
    tables = [random.normal(scale=0.05, size=(n, WIDTH)).astype(np.float32) for n in (USERS, ITEMS)]
    users, items, scores = ratings(random)
    train_to = len(scores) * 9 // 10
    kv.init(names, tables)
    kv.set_optimizer('adam', learning_rate=0.01)
    first = error_of(tables, users[train_to:], items[train_to:], scores[train_to:])
    print(f'\nratings that were not learned are missed by {first:.2f} at first')
    for epoch in range(1, EPOCHS + 1):
        order = random.permutation(train_to)
        for at in range(0, train_to, BATCH):
            part = order[at:at + BATCH]
            kv.push(names, list(gradients(tables, users[part], items[part], scores[part])))
            kv.pull(names, out=tables)
        last = error_of(tables, users[train_to:], items[train_to:], scores[train_to:])
        print(f'epoch {epoch:2}: by {last:.2f}, versions {kv.version(names)}')
    return first, last


def main():
    options = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    options.add_argument('--url', help='front door of a daemon; without it the store is in this process')
    options.add_argument('--out', help='where the files go, without ending (else a new temporary folder)')
    chosen = options.parse_args()
    # A folder of its own: on a shared machine a fixed name may be another user's.
    if chosen.out is None:
        chosen.out = os.path.join(tempfile.mkdtemp(prefix='paramd-'), 'matrix_factorization')
    net = build()
    show(net, chosen.out)
    kind = {'url': chosen.url, 'store': 'matrix_factorization', 'num_workers': 1, 'on_reinit': 'replace'} if chosen.url else {}
    with paramd.kv.create('dist_sync' if chosen.url else 'local', **kind) as kv:
        first, last = train(kv, net, np.random.default_rng(1))
        colored = viz.plot_network(net, title='versions', color='version', store=kv)
        print('Drawn with what the store knows:', colored.render(chosen.out + '-trained', format='svg'))
    if last > first / 2:
        sys.exit('it has learned nothing')


if __name__ == '__main__':
    main()
