#!/usr/bin/python3
"""One trainer: learns handwritten digits together with others, through a store.

    make run                                                             # a daemon, in one terminal
    digits.py --type dist_sync --workers 2 --name left                   # in a second one
    digits.py --type dist_sync --workers 2 --name right                  # in a third one

The network has 64 inputs, 64 hidden units and 10 outputs; the digits (1797 pictures of 8 x 8 pixels) come with Debian's
python3-sklearn. Each worker takes every n-th picture of the training set, computes gradients with numpy, and pushes
them; the daemon adds them up and runs SGD with momentum; the worker pulls the new weights. demo.py starts four.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import sys
import time

# One thread each: several trainers share the machine's cores.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
os.environ.setdefault('OMP_NUM_THREADS', '1')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import paramd

SHAPES = {'hidden.weight': (64, 64), 'hidden.bias': (64,), 'output.weight': (64, 10), 'output.bias': (10,)}
BATCH = 32
TEST_COUNT = 360
EPOCHS = 30

# What suits the number of workers n. Synchronous: the n gradients of a round are averaged. Asynchronous: each gradient
# is a step of its own, n times as many, computed on weights that are up to n - 1 steps old. That age acts as momentum
# of its own, so rate and momentum are smaller.
OPTIMIZERS = {
    'dist_sync': lambda n: {'learning_rate': 0.2, 'momentum': 0.9, 'rescale_grad': 1 / n},
    'dist_async': lambda n: {'learning_rate': 0.3 / n, 'momentum': 0.5},
}


# ---- data and network -----------------------------------------------------------------------------------------------

def load():
    """(train pictures, train digits, test pictures, test digits); always the same split."""
    spec = importlib.util.find_spec('sklearn')
    if spec is None:
        sys.exit('the digits come with scikit-learn: apt-get install python3-sklearn')
    path = pathlib.Path(spec.submodule_search_locations[0]) / 'datasets' / 'data' / 'digits.csv.gz'
    table = np.loadtxt(path, delimiter=',', dtype=np.float32)
    table = table[np.random.default_rng(0).permutation(len(table))]
    pictures, digits = np.ascontiguousarray(table[:, :64]) / 16, table[:, 64].astype(int)
    return pictures[TEST_COUNT:], digits[TEST_COUNT:], pictures[:TEST_COUNT], digits[:TEST_COUNT]


def first_weights(seed):
    """Weights to begin with, in the order of SHAPES."""
    random = np.random.default_rng(seed)
    return [(random.standard_normal(shape) * np.sqrt(2 / shape[0]) if len(shape) == 2 else np.zeros(shape))
            .astype(np.float32) for shape in SHAPES.values()]


def forward(weights, pictures):
    w1, b1, w2, b2 = weights
    hidden = np.maximum(pictures @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def loss_and_gradients(weights, pictures, digits):
    """Mean cross-entropy of a batch, and its gradient for each of the weights."""
    hidden, chances = forward(weights, pictures)
    rows = np.arange(len(digits))
    loss = -np.log(chances[rows, digits] + 1e-12).mean()
    slope = chances
    slope[rows, digits] -= 1
    slope /= np.float32(len(digits))
    back = (slope @ weights[2].T) * (hidden > 0)
    return float(loss), [pictures.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]


def accuracy(weights, pictures, digits):
    return float((forward(weights, pictures)[1].argmax(axis=1) == digits).mean())


def batches(count, epochs, random):
    """Indices of each batch, epoch by epoch."""
    for epoch in range(epochs):
        order = random.permutation(count)
        yield epoch, [order[i:i + BATCH] for i in range(0, count - BATCH + 1, BATCH)]


# ---- training -------------------------------------------------------------------------------------------------------

def train(kv, args, report):
    train_x, train_y, test_x, test_y = load()
    # All shards are of one size, so that all workers make the same number of steps: a round waits for each of them.
    each = len(train_y) // args.workers
    mine = slice(kv.rank % args.workers, each * args.workers, args.workers)
    train_x, train_y = train_x[mine], train_y[mine]
    names, weights = list(SHAPES), first_weights(args.seed)
    step_bytes = 2 * sum(w.nbytes for w in weights)
    random = np.random.default_rng([args.seed, kv.rank])

    kv.set_optimizer('sgd', **OPTIMIZERS[args.type](args.workers))
    kv.init(names, weights)
    kv.barrier()
    kv.pull(names, out=weights)
    for epoch, indices in batches(len(train_y), args.epochs, random):
        losses, start = [], time.monotonic()
        for index in indices:
            loss, gradients = loss_and_gradients(weights, train_x[index], train_y[index])
            kv.push(names, gradients)
            kv.pull(names, out=weights)
            losses.append(loss)
        seconds = time.monotonic() - start
        report({'epoch': epoch + 1, 'epochs': args.epochs, 'loss': float(np.mean(losses)),
                'accuracy': accuracy(weights, test_x, test_y), 'bytes': step_bytes * len(indices),
                'seconds': seconds})
    kv.barrier()
    kv.pull(names, out=weights)
    report({'done': True, 'accuracy': accuracy(weights, test_x, test_y)})


def report_line(facts):
    if 'done' in facts:
        print(f"test accuracy {facts['accuracy']:.3f}", flush=True)
        return
    rate = facts['bytes'] / max(facts['seconds'], 1e-9) / 1e6
    print(f"epoch {facts['epoch']:3d}/{facts['epochs']}  loss {facts['loss']:.3f}  accuracy {facts['accuracy']:.3f}  "
          f"push/pull {rate:.1f} MB/s", flush=True)


def report_json(facts):
    print(json.dumps(facts), flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--url', help='address of the daemon (else PARAMD_URL, else tcp://127.0.0.1:7700)')
    parser.add_argument('--type', default='dist_sync', choices=list(OPTIMIZERS))
    parser.add_argument('--store', default='digits', help='name of the store (digits)')
    parser.add_argument('--workers', type=int, default=1, help='how many trainers there are (1)')
    parser.add_argument('--name', help='name of this one in messages')
    parser.add_argument('--epochs', type=int, default=EPOCHS)
    parser.add_argument('--seed', type=int, default=0, help='of the first weights and the order of the pictures')
    parser.add_argument('--worker-timeout', type=float, help='seconds of silence until a worker counts as dead')
    parser.add_argument('--on-reinit', choices=['error', 'replace'],
                        help='what to do when the store has weights of an earlier run')
    parser.add_argument('--json', action='store_true', help='report in JSON, a line an epoch')
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))       # leaves the store on the way out
    try:
        with paramd.kv.create(args.type, url=args.url, store=args.store, num_workers=args.workers,
                              worker_name=args.name, worker_timeout=args.worker_timeout,
                              on_reinit=args.on_reinit) as kv:
            train(kv, args, report_json if args.json else report_line)
    except paramd.ParamdError as error:
        print(f'{args.name or "trainer"}: {error.status}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main())
