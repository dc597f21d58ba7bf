#!/usr/bin/python3
"""A walk through the store, after the two KVStore tutorials of MXNet; each result is checked.

    kvstore_tutorial.py                                   in this process, no daemon needed
    kvstore_tutorial.py --url tcp://127.0.0.1:7700        on a daemon (`make run` starts one)

The updater is a function. In this process it runs itself; for a daemon it is traced, and what it does to arrays becomes a
text in the updater language.

A daemon keeps its keys. A second run on the same one is told so, and goes on with `--on-reinit replace`.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import paramd

SHAPE = (2, 3)


def ones(factor=1):
    return np.full(SHAPE, factor, np.float32)


# ---- saying and checking --------------------------------------------------------------------------------------------

class Checks:
    """Counts what holds. A check that does not ends the tutorial."""

    def __init__(self):
        self.count = 0

    def equal(self, what, got, want):
        """All elements of got (an array, or list of arrays) are `want`."""
        arrays = got if isinstance(got, list) else [got]
        held = all(a.shape == SHAPE and (a == want).all() for a in arrays)
        times = f' x {len(arrays)}' if len(arrays) > 1 else ''
        self._say(held, what, f'{want:g}{times}' if held else f'{got}, not {want:g}')

    def same(self, what, got, want):
        self._say(got == want, what, f'{got}' if got == want else f'{got}, not {want}')

    def refused(self, what, error, call, *args):
        """call(*args) raises `error`; what it says is shown."""
        try:
            call(*args)
        except error as refusal:
            self._say(True, what, f'{refusal.status}\n      "{refusal}"')
        else:
            self._say(False, what, f'no {error.__name__}')

    def _say(self, held, what, result):
        print(f'    {what:<62} -> {result}')
        if not held:
            sys.exit(f'this does not hold: {what}')
        self.count += 1


def chapter(text):
    print(f'\n{text}')


# ---- the stores of a run --------------------------------------------------------------------------------------------

class Stores:
    """Opens the stores of the tutorial, all in this process or all in one daemon."""

    def __init__(self, args):
        self.url, self.on_reinit = args.url, args.on_reinit
        self.type = args.type or ('dist_sync' if args.url else 'local')
        self.remote = args.url is not None

    def open(self, name, on_reinit=None):
        where = {'url': self.url, 'num_workers': 1} if self.remote else {}
        return paramd.kv.create(self.type, store=f'tutorial-{name}', on_reinit=on_reinit or self.on_reinit, **where)


def stored_plus_twice(key, grad, stored):
    """The tutorial's updater."""
    stored += grad * 2


# ---- chapters -------------------------------------------------------------------------------------------------------

def init_push_pull(check, kv):
    chapter('Initialisation, push and pull: without an updater, the pushed sum becomes the value')
    kv.set_updater(None)
    a = np.empty(SHAPE, np.float32)
    kv.init(3, ones(2))
    kv.pull(3, out=a)
    check.equal('kv.init(3, ones * 2); kv.pull(3, out=a)', a, 2)
    kv.push(3, ones(8))
    kv.pull(3, out=a)
    check.equal('kv.push(3, ones * 8); kv.pull(3, out=a)', a, 8)
    check.equal('kv.pull(3): a new array when there is no out', kv.pull(3), 8)


def several_sources(check, kv):
    chapter('Aggregation: several values of one key are summed first')
    a = np.empty(SHAPE, np.float32)
    kv.push([3, 3, 3], [ones(), ones(), ones()])
    kv.pull(3, out=a)
    check.equal('kv.push([3, 3, 3], [ones, ones, ones])', a, 3)
    kv.push(3, [ones()] * 4)
    kv.pull(3, out=a)
    check.equal('kv.push(3, [ones] * 4)', a, 4)


def updater(check, kv, stores):
    chapter('Updater: stored += grad * 2')
    a = np.empty(SHAPE, np.float32)
    kv.set_updater(stored_plus_twice)
    kv.pull(3, out=a)
    check.equal('setting it changes no value', a, 4)
    kv.push(3, ones())
    kv.pull(3, out=a)
    check.equal('kv.push(3, ones)', a, 6)
    if stores.remote:
        check.same("kv.get_updater()['text'], its last line", kv.get_updater()['text'].splitlines()[-1], 'stored += grad * 2.0')


def several_outputs(check, kv):
    chapter('Pull to several outputs: all get the same bytes')
    outs = [np.zeros(SHAPE, np.float32) for _ in range(4)]
    kv.pull(3, out=outs)
    check.equal('kv.pull(3, out=[a, b, c, d])', outs, 6)


def lists_of_keys(check, kv):
    chapter('Lists of keys')
    keys, outs = [5, 7, 9], [np.empty(SHAPE, np.float32) for _ in range(3)]
    kv.set_updater(None)
    kv.init(keys, [ones()] * 3)
    check.equal('kv.init([5, 7, 9], [ones] * 3)', kv.pull(keys, out=outs), 1)
    kv.push(keys, [ones()] * 3)
    check.equal('kv.push([5, 7, 9], [ones] * 3), without updater', kv.pull(keys, out=outs), 1)
    kv.set_updater(stored_plus_twice)
    kv.push(keys, [ones()] * 3)
    check.equal('the same with the updater', kv.pull(keys, out=outs), 3)
    more = [10, 11, 12]
    kv.init(more, [ones(0.5)] * 3)
    check.equal('kv.init([10, 11, 12], [ones * 0.5] * 3)', kv.pull(more), 0.5)
    kv.push(more, [[ones(), ones()]] * 3)
    check.equal('kv.push([10, 11, 12], [[ones, ones]] * 3)', kv.pull(more), 4.5)
    pairs = [[np.zeros(SHAPE, np.float32) for _ in range(2)] for _ in more]
    kv.pull(more, out=pairs)
    check.equal('kv.pull([10, 11, 12], out=[[a, b]] * 3)', sum(pairs, []), 4.5)
    kv.pushpull(5, ones(), out=outs[0])
    check.equal('kv.pushpull(5, ones, out=a)', outs[0], 5)
    kv.broadcast(20, ones(7), out=outs[0])
    check.equal('kv.broadcast(20, ones * 7, out=a)', outs[0], 7)


def order_of_updates(check, stores):
    chapter('In this process the updater is called once a key, in the order of keys, before push returns')
    calls = []

    def note(key, grad, stored):
        calls.append((key, float(grad[0, 0])))
        stored[:] = grad
    with stores.open('order') as kv:
        kv.init([12, 3, 7], [ones()] * 3)
        kv.set_updater(note)
        kv.push([12, 3, 7, 3], [ones(1), ones(2), ones(3), ones(4)])
    check.same('kv.push([12, 3, 7, 3], ones * [1, 2, 3, 4])', calls, [(3, 6.0), (7, 3.0), (12, 1.0)])


def names_as_keys(check, stores):
    chapter('Keys may be names')
    with stores.open('names') as kv:
        kv.set_updater(None)
        kv.init(['weight', 'bias'], [ones(), ones(2)])
        kv.push('weight', [ones(), ones()])
        check.equal("kv.push('weight', [ones, ones])", kv.pull('weight'), 2)
        check.equal("kv.pull('bias') is as it was", kv.pull('bias'), 2)
        if not stores.remote:
            seen = []
            kv.set_updater(lambda key, grad, stored: seen.append(key))
            kv.push(['bias', 'weight'], [ones(), ones()])
            check.same('the updater gets str keys, in the order of their init', seen, ['weight', 'bias'])


def duplicate_init(check, stores):
    """On a daemon a key that an earlier job left is a duplicate, in this process one of the same store."""
    kv = stores.open('errors')
    kv.set_updater(None)
    kv.init(3, ones(2))
    if stores.remote:
        kv.close()
        kv = stores.open('errors', on_reinit='error')
    check.refused('kv.init(3, ones), a second time', paramd.errors.AlreadyExists, kv.init, 3, ones())
    return kv


def refusals(check, stores):
    chapter('What is refused, and changes nothing')
    kv = duplicate_init(check, stores)
    invalid, missing, unmet = paramd.errors.InvalidArgument, paramd.errors.NotFound, paramd.errors.FailedPrecondition
    with kv:
        out = np.full(SHAPE, -1, np.float32)
        check.refused("kv.init('weight', ones) in a store of int keys", unmet, kv.init, 'weight', ones())
        check.refused("kv.push([3, 'weight'], [ones, ones])", unmet, kv.push, [3, 'weight'], [ones(), ones()])
        check.refused('kv.push(4, ones), not initialised', missing, kv.push, 4, ones())
        check.refused('kv.push([3, 4], [ones, ones])', missing, kv.push, [3, 4], [ones(), ones()])
        check.refused('kv.pull(4, out=a)', missing, kv.pull, 4, out)
        check.equal('a is untouched', out, -1)
        check.refused('kv.push([3, 3], [ones])', invalid, kv.push, [3, 3], [ones()])
        check.refused('kv.init([6, 7], [ones])', invalid, kv.init, [6, 7], [ones()])
        check.refused('kv.init([6, 6], [ones, ones])', invalid, kv.init, [6, 6], [ones(), ones()])
        check.refused('kv.pull([3, 3], out=[a])', invalid, kv.pull, [3, 3], [out])
        check.refused('kv.push(3, array of shape (3, 2))', invalid, kv.push, 3, np.ones((3, 2), np.float32))
        check.refused('kv.push(3, array of float64)', invalid, kv.push, 3, np.ones(SHAPE))
        check.refused('kv.pull(3, out=array of shape (6,))', invalid, kv.pull, 3, np.ones(6, np.float32))
        check.equal('and key 3 is still as it was initialised', kv.pull(3), 2)
        check.same('in its first version', kv.version(3), 1)
        check.same('and nothing else came to be: kv.keys()', kv.keys(), [3])


def initialise_anew(check, stores):
    chapter("Initialise anew: create(..., on_reinit='replace')")
    with stores.open('replace', on_reinit='replace') as kv:
        kv.set_updater(None)
        kv.init(3, ones(2))
        check.equal('kv.init(3, ones * 2)', kv.pull(3), 2)
        kv.init(3, ones(9))
        check.equal('kv.init(3, ones * 9)', kv.pull(3), 9)


def tutorial(args):
    check, stores = Checks(), Stores(args)
    with stores.open('numbers') as kv:
        where = f'on the daemon at {args.url}' if stores.remote else 'in this process'
        print(f"paramd.kv.create({stores.type!r}): rank {kv.rank} of {kv.num_workers}, {where}")
        init_push_pull(check, kv)
        several_sources(check, kv)
        updater(check, kv, stores)
        several_outputs(check, kv)
        lists_of_keys(check, kv)
    if not stores.remote:
        order_of_updates(check, stores)
    names_as_keys(check, stores)
    refusals(check, stores)
    initialise_anew(check, stores)
    print(f'\nall {check.count} checks hold')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--url', help='address of a daemon, such as tcp://127.0.0.1:7700')
    parser.add_argument('--type', help='type of the stores (local; with --url dist_sync)')
    parser.add_argument('--on-reinit', choices=['error', 'replace'],
                        help='what to do with keys of an earlier run (error)')
    args = parser.parse_args()
    try:
        tutorial(args)
    except paramd.errors.AlreadyExists as error:
        print(f'\n{error.status}: {error}', file=sys.stderr)
        print('The daemon has the keys of an earlier run. To begin anew:  kvstore_tutorial.py'
              f"{f' --url {args.url}' if args.url else ''} --on-reinit replace", file=sys.stderr)
        return 1
    except paramd.ParamdError as error:
        print(f'\n{error.status}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main())
