#!/usr/bin/python3
"""Python functions as updaters of a daemon's store: what they become, that they compute there what they compute here, and
how what cannot be traced is refused."""

import collections
import contextlib
import datetime
import functools
import io
import itertools
import math
import pathlib
import random
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'api' / 'python'))
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))

import counted  # noqa: E402
import numpy as np
import paramd
import paramd.daemon
from paramd import errors
from paramd.trace import Updater, trace

F32 = np.float32
SHAPE = (4, 5)
TUTORIAL_S = 60
# So many updaters are made up, and so many times another worker tries to overtake.
MADE_UP, OVERTAKING = 120, 40


def ones(factor=1, shape=SHAPE, dtype=F32):
    return np.full(shape, factor, dtype)


def text_of(function, key=3, shape=SHAPE, dtype=F32):
    """What a function becomes, without the line that names it."""
    return trace(function, key, shape, dtype).split('\n', 1)[1].rstrip('\n')


# ---- what functions become ------------------------------------------------------------------------------------------

def tutorial(key, grad, stored):
    stored += grad * 2


def sgd(key, grad, stored):
    stored -= 0.1 * (grad + 1e-4 * stored)


def slices(key, grad, stored):
    stored[:] = stored[...] - grad / 2


def ufunc_out(key, grad, stored):
    np.multiply(grad, -0.5, out=grad)
    np.add(stored, grad, out=stored)


def clipped(key, grad, stored):
    g = np.clip(grad, -0.25, 0.25)
    stored -= g * 0.5 + np.minimum(np.maximum(g, 0), 0.125)


def signs(key, grad, stored):
    stored -= 0.01 * np.sign(grad) * (np.abs(grad) > 0.5)


def masks(key, grad, stored):
    calm = (np.abs(grad) < 0.7) & ~(stored > 0.5) | (grad == stored)
    stored[:] = np.where(calm, stored - grad, stored * 0.5)


def masked_assignment(key, grad, stored):
    stored -= grad
    stored[stored < 0] = 0
    np.copyto(stored, 0.25, where=stored > 1)


def normalised(key, grad, stored):
    size = np.sqrt(np.square(grad) + grad ** 2) + 1e-3
    stored -= grad / size / 4


def powers(key, grad, stored):
    stored += (grad ** 3 - (1 + abs(grad)) ** -2 + abs(grad) ** 0.5) * 0.25


def loops(key, grad, stored):
    x = grad.copy()
    for i in range(3):
        x *= 0.5
        x += i
    stored += x


def aliases(key, grad, stored):
    same = stored
    same += grad
    same *= np.float32(0.5)
    stored += np.ones(stored.shape, stored.dtype) * np.array(2.0) - np.zeros_like(stored) + np.full_like(grad, 3)


def not_numbers(key, grad, stored):
    stored[:] = np.where(np.isnan(grad) | ~np.isfinite(grad), stored, stored - grad)


def reflected(key, grad, stored):
    stored[...] = 1 / (2 + abs(grad)) - (3 - stored) * -1


EXACT = [tutorial, sgd, slices, ufunc_out, clipped, signs, masks, masked_assignment, normalised, loops, aliases,
         not_numbers, reflected]


def curves(key, grad, stored):
    stored += np.tanh(grad) + np.exp(-abs(grad)) - np.log(1 + grad * grad)


NEAR = [powers, curves]


class Texts(unittest.TestCase):
    def test_texts_read_as_people_write_them(self):
        for function, text in [
                (tutorial, 'stored += grad * 2.0'),
                (sgd, 'stored -= 0.1 * (grad + 0.0001 * stored)'),
                (slices, 'stored -= grad / 2.0'),
                (ufunc_out, 'stored += grad * -0.5'),
                (clipped, 't1 = clamp(grad, -0.25, 0.25)\nstored -= t1 * 0.5 + min(max(t1, 0.0), 0.125)'),
                (reflected, 'stored = 1.0 / (2.0 + abs(grad)) - (3.0 - stored) * -1.0'),
                (lambda key, grad, stored: stored.fill(2), 'stored = 2.0'),
                (lambda key, grad, stored: np.copyto(stored, grad), 'stored = grad')]:
            self.assertEqual(text_of(function), text)

    def test_the_first_line_names_the_function(self):
        self.assertEqual(trace(tutorial, 3, SHAPE, F32).split('\n')[0], '# traced from tutorial(key, grad, stored)')

        class Callable:
            def __call__(self, key, grad, stored):
                stored += grad
        self.assertIn('Callable', trace(Callable(), 3, SHAPE, F32))

    def test_key_shape_and_dtype_are_the_real_ones(self):
        def look(key, grad, stored):
            seen = (key, grad.shape, stored.ndim, stored.size, grad.dtype, len(stored), np.shape(grad), np.size(stored),
                    (grad > 0).dtype)
            assert seen == ('w', (2, 3), 2, 6, np.float64, 2, (2, 3), 6, np.bool_), seen
            stored += grad / stored.size
        self.assertEqual(text_of(look, 'w', (2, 3), np.float64), 'stored += grad / 6.0')

    def test_closures_and_branches_on_the_key_are_pythons(self):
        rate = {1: 0.5, 2: 0.25}

        def by_key(key, grad, stored):
            if key == 1 and stored.ndim == 2:
                stored -= rate[key] * grad
            else:
                stored += rate[key]
        self.assertEqual(text_of(by_key, 1), 'stored -= 0.5 * grad')
        self.assertEqual(text_of(by_key, 2), 'stored += 0.25')

    def test_long_expressions_get_names(self):
        def long(key, grad, stored):
            x = grad
            for i in range(40):
                x = (x + stored) * (i + 0.5)
            stored -= x
        text = text_of(long)
        self.assertGreater(len(text.split('\n')), 3)
        self.assertLess(max(map(len, text.split('\n'))), 200)

    def test_symbols_print_as_what_they_are(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            text_of(lambda key, grad, stored: (print(f'{grad * 2}'), print(stored), stored.fill(0)))
        self.assertEqual(out.getvalue().splitlines(),
                         ['<float32 (4, 5), traced: grad#1 * 2.0>', '<float32 (4, 5), traced: stored#1>'])


class Refusals(unittest.TestCase):
    """Each names the operation, and the line of the function."""

    def refused(self, function, *words, error=errors.Unimplemented):
        with self.assertRaises(error) as caught:
            trace(function, 3, SHAPE, F32)
        for word in words:
            self.assertIn(word, str(caught.exception))
        return str(caught.exception)

    def test_the_line_of_the_function_is_named(self):
        def f(key, grad, stored):
            stored += grad
            stored -= np.sum(grad)      # this one
        said = self.refused(f, 'numpy.sum', 'test_trace.py, line ', 'stored -= np.sum(grad)      # this one')
        line = int(said.split('line ')[1].split(':')[0])
        self.assertEqual(line, f.__code__.co_firstlineno + 2)

    def test_a_helper_is_named_at_its_own_line(self):
        def helper(x):
            return x.mean()

        def f(key, grad, stored):
            stored -= helper(grad)
        self.assertIn('return x.mean()', self.refused(f, '.mean of an array'))

    def test_operations_that_the_language_does_not_have(self):
        for word, f in {
                'numpy.sum': lambda key, grad, stored: stored.__iadd__(np.sum(grad)),
                '.sum of an array': lambda key, grad, stored: stored.__iadd__(grad.sum()),
                'numpy.add.reduce': lambda key, grad, stored: stored.__iadd__(np.add.reduce(grad)),
                'numpy.norm': lambda key, grad, stored: stored.__iadd__(np.linalg.norm(grad)),
                'numpy.floor_divide (//)': lambda key, grad, stored: stored.__iadd__(grad // 2),
                'numpy.remainder (%)': lambda key, grad, stored: stored.__iadd__(grad % 2),
                'numpy.matmul (@)': lambda key, grad, stored: stored.__iadd__(grad @ stored),
                'numpy.sin': lambda key, grad, stored: stored.__iadd__(np.sin(grad)),
                'numpy.log1p': lambda key, grad, stored: stored.__iadd__(np.log1p(grad)),
                'numpy.fmax': lambda key, grad, stored: stored.__iadd__(np.fmax(grad, 0)),
                'the power 2.5': lambda key, grad, stored: stored.__iadd__(grad ** 2.5),
                'exponent for each element': lambda key, grad, stored: stored.__iadd__(2 ** grad),
                'astype(float64)': lambda key, grad, stored: stored.__iadd__(grad.astype(np.float64)),
                'the number inf': lambda key, grad, stored: stored.__iadd__(np.inf),
                'numpy.invert (~) of numbers': lambda key, grad, stored: stored.__iadd__(~grad),
                'numpy.where with one argument': lambda key, grad, stored: np.where(grad > 0),
                '.T of an array': lambda key, grad, stored: stored.__iadd__(grad.T),
                '.asnumpy of an array': lambda key, grad, stored: stored.__iadd__(grad.asnumpy()),
                'numpy.add with where': lambda key, grad, stored: np.add(stored, grad, out=stored, where=grad > 0)}.items():
            with self.subTest(word):
                self.refused(f, word)

    def test_elements_as_such(self):
        for word, f in {
                'the truth of elements': lambda key, grad, stored: stored.fill(1 if grad > 0 else 2),
                'the truth of elements (if, while, and, or, not, min, max)': lambda key, grad, stored: stored.fill(max(grad, 0)),
                'a loop over elements': lambda key, grad, stored: [x for x in grad],
                'the index 0': lambda key, grad, stored: stored.__iadd__(grad[0]),
                'the index (0, slice(': lambda key, grad, stored: stored.__setitem__((0, slice(None)), 1),
                'float': lambda key, grad, stored: stored.fill(float(grad)),
                '(int)': lambda key, grad, stored: stored.fill(int(grad)),
                'round': lambda key, grad, stored: round(grad),
                'as a plain array': lambda key, grad, stored: np.asarray(grad),
                'search': lambda key, grad, stored: 1 in grad}.items():
            with self.subTest(word):
                self.refused(f, word)

    def test_constants_for_each_element_are_refused(self):
        weights = np.arange(20, dtype=F32).reshape(SHAPE)
        self.refused(lambda key, grad, stored: stored.__iadd__(grad * weights), 'an array of different numbers')
        self.refused(lambda key, grad, stored: stored.__iadd__(grad * np.ones((2, 4, 5), F32)), 'another shape')
        with self.assertRaises(ValueError):
            text_of(lambda key, grad, stored: stored.__iadd__(grad * np.ones((7,), F32)))

    def test_a_function_that_changes_nothing_is_refused(self):
        def f(key, grad, stored):
            stored = stored + grad
        self.refused(f, 'leaves stored as it is', 'in place')

    def test_integer_keys_are_refused(self):
        with self.assertRaises(errors.FailedPrecondition) as caught:
            trace(tutorial, 3, SHAPE, np.int32)
        self.assertIn('key 3 is int32', str(caught.exception))

    def test_what_the_function_raises_comes_out(self):
        def f(key, grad, stored):
            raise KeyError('mine')
        with self.assertRaisesRegex(KeyError, 'mine'):
            trace(f, 3, SHAPE, F32)


# ---- functions that keep state --------------------------------------------------------------------------------------

class Momentum:
    def __init__(self):
        self.mom = {}

    def __call__(self, key, grad, w):
        if key not in self.mom:
            self.mom[key] = np.zeros_like(w)
        self.mom[key][:] = .9 * self.mom[key] + grad
        w -= .1 * self.mom[key]


class Prepared:
    """Its arrays are there before the first update."""

    def __init__(self):
        self.mom = {key: np.zeros(SHAPE, F32) for key in ('w', 'b')}

    def __call__(self, key, grad, w):
        m = self.mom[key]
        m *= 0.9
        m -= 0.1 * grad
        w += m


class Adam:
    def __init__(self, lr=0.01):
        self.lr, self.t, self.m, self.v = lr, {}, {}, {}

    def __call__(self, key, grad, w):
        t = self.t[key] = self.t.get(key, 0) + 1
        m = self.m[key] = .9 * self.m.get(key, 0) + .1 * grad
        v = self.v[key] = .999 * self.v.get(key, 0) + .001 * grad * grad
        w -= self.lr * math.sqrt(1 - .999 ** t) / (1 - .9 ** t) * m / (np.sqrt(v) + 1e-8)


class AdamOfTuples:
    def __init__(self):
        self.states = {}

    def __call__(self, key, grad, w):
        mean, var, t = self.states.get(key) or (np.zeros(w.shape), np.zeros(w.shape), 0)
        t += 1
        mean *= .9
        mean += (1 - .9) * grad
        var[:] = .999 * var + (1 - .999) * grad ** 2
        self.states[key] = mean, var, t
        w -= 0.01 * (mean / (1 - .9 ** t)) / (np.sqrt(var / (1 - .999 ** t)) + 1e-8)


class PerKey:
    def __init__(self):
        self.squares, self.updates = None, 0


class AdaGradOfObjects:
    def __init__(self):
        self.of = collections.defaultdict(PerKey)

    def __call__(self, key, grad, w):
        mine = self.of[key]
        mine.updates += 1
        if mine.updates == 1:
            mine.squares = grad * grad
        else:
            mine.squares += grad * grad
        w -= 0.1 / mine.updates * grad / (np.sqrt(mine.squares) + 1e-3)


def of_closure():
    state, count = {}, collections.Counter()

    def average(key, grad, w):
        count[key] += 1
        w -= 0.1 * grad
        if key in state:
            state[key] = 0.9 * state[key] + 0.1 * w
            w[:] = np.where(count[key] > 3, state[key], w)
        else:
            state[key] = w.copy()
    return average


def of_default_argument():
    def f(key, grad, w, last={}):
        before = last.setdefault(key, np.zeros(w.shape, w.dtype))
        w -= 0.1 * grad + 0.05 * before
        last[key] = grad
    return f


def of_attribute():
    def f(key, grad, w):
        f.m = getattr(f, 'm', {})
        f.m[key] = [0.5 * f.m[key][0] - grad] if key in f.m else [-grad]
        w += 0.1 * f.m[key][0]
    return f


def scaled(mom, rate, key, grad, w):
    mom[key] = 0.9 * mom.get(key, 0.0) + grad
    w -= rate * mom[key]


class DelayCompensation:
    def __init__(self):
        self.previous = {}

    def __call__(self, key, grad, w):
        if key not in self.previous:
            self.previous[key] = w.copy()
        now = w.copy()
        w -= 0.1 * (grad + 0.04 * grad * grad * (w - self.previous[key]))
        self.previous[key] = now


def swapped():
    a, b = {}, {}

    def f(key, grad, w):
        a.setdefault(key, grad * 0)
        b.setdefault(key, np.ones_like(w))
        a[key], b[key] = b[key], a[key]
        w -= 0.1 * grad * a[key] + 0.01
    return f


KEEPING = [Momentum, Prepared, Adam, AdamOfTuples, AdaGradOfObjects, of_closure, of_default_argument, of_attribute,
           lambda: functools.partial(scaled, {}, 0.1), DelayCompensation, swapped]

calls = 0
table = {'rate': 0.1}


def count_globally(key, grad, stored):
    global calls
    calls += 1
    stored -= grad / calls


def unseen():
    @functools.lru_cache(maxsize=None)
    def kept(key):
        return np.zeros(SHAPE, F32)

    def f(key, grad, w):
        m = kept(key)
        m += grad
        w -= m
    return f


def both_zero():
    a, b = {}, {}

    def f(key, grad, w):
        before = b.get(key, 0)
        b[key], a[key] = a.get(key, 0), grad
        w -= 0.1 * before + 0.01 * grad
    return f


def of_names():
    Pair = collections.namedtuple('Pair', 'm n')
    kept = {}

    def f(key, grad, w):
        old = kept.get(key, Pair(0, 0))
        kept[key] = old._replace(m=.9 * old.m + grad, n=old.n + 1)
        w -= 0.1 * kept[key].m / kept[key].n
    return f


def last_three():
    kept = {}

    def f(key, grad, w):
        last = kept.setdefault(key, collections.deque([0, 0, 0], maxlen=3))
        last.append(grad)
        w -= 0.1 * (last[0] + last[1] * 0.5 + last[2] * 0.25)
    return f


def begun():
    kept, t = {key: np.full(SHAPE, 0.5, F32) for key in ('w', 'b')}, {'w': -5, 'b': 2}

    def f(key, grad, w):
        t[key] += 1
        kept[key] *= 0.9
        kept[key] += grad
        w -= 0.1 * kept[key]
    return f


def keeps_what_it_is_given():
    kept = {}

    def f(key, grad, w):
        if key in kept:
            w += 0.5 * (w - kept[key])
        grad *= 2
        w -= 0.1 * grad
        kept[key] = w
    return f


KEEPING += [both_zero, of_names, last_three, begun, keeps_what_it_is_given]


class State(unittest.TestCase):
    """What functions keep becomes slots and step, or is refused."""

    def refused(self, function, *words, keys=('w',)):
        updater = Updater(function)
        with self.assertRaises(errors.Unimplemented) as caught:
            updater.trace([(key, SHAPE, np.dtype(F32)) for key in keys])
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_texts_with_slots_read_as_people_write_them(self):
        for make, text in [
                (Momentum, 'slot mom = 0\nmom = 0.9 * mom + grad\nstored -= 0.1 * mom'),
                (Prepared, 'slot mom = 0\nmom = mom * 0.9 - 0.1 * grad\nstored += mom'),
                (Adam, 'slot m = 0\nslot v = 0\nm = 0.9 * m + 0.1 * grad\nv = 0.999 * v + 0.001 * grad * grad\n'
                       'stored -= 0.01 * sqrt(1.0 - 0.999 ^ step) / (1.0 - 0.9 ^ step) * m / (sqrt(v) + 1e-08)'),
                (DelayCompensation, 'slot previous = stored\nt1 = stored\n'
                                    'stored -= 0.1 * (grad + 0.04 * grad * grad * (t1 - previous))\nprevious = t1')]:
            self.assertEqual(text_of(make(), 'w'), text)

    def test_a_first_update_of_its_own_is_written_down(self):
        def f(key, grad, w, seen=set()):
            if key in seen:
                w += grad
            else:
                w[:] = grad
                seen.add(key)
        self.assertEqual(text_of(f), 'stored = where(step == 1.0, grad, stored + grad)')

    def test_state_that_is_not_used_is_not_kept(self):
        f = Momentum()

        def g(key, grad, w):
            f.last = {key: grad}
            w -= grad
        self.assertEqual(text_of(g), 'stored -= grad')

    def test_the_function_is_left_as_it_was(self):
        f, numbers = Prepared(), np.random.get_state()[1].tobytes()
        f.mom['w'][:] = 0
        arrays, before = dict(f.mom), dict(vars(f))
        trace(f, 'w', SHAPE, F32)
        self.assertEqual(vars(f), before)
        self.assertTrue(all(f.mom[key] is array for key, array in arrays.items()))
        self.assertEqual(f.mom['w'].tobytes(), bytes(f.mom['w'].nbytes))
        adam, g = Adam(), of_attribute()
        trace(adam, 'w', SHAPE, F32)
        trace(g, 'w', SHAPE, F32)
        self.assertEqual((adam.t, adam.m, adam.v, vars(g)), ({}, {}, {}, {}))
        self.refused(count_globally, 'calls', keys='wb')
        self.assertEqual(calls, 0)
        self.refused(lambda key, grad, w: w.__iadd__(grad * np.random.rand()), 'random')
        self.assertEqual(np.random.get_state()[1].tobytes(), numbers)

    def test_the_function_is_left_as_it_was_when_it_raises(self):
        f = Momentum()
        f.mom['b'] = np.ones(SHAPE, F32)

        def raising(key, grad, w):
            f.mom['b'] *= 0.5
            f.more = 1
            del f.mom['b']
            raise KeyError('mine')
        with self.assertRaisesRegex(KeyError, 'mine'):
            trace(raising, 'w', SHAPE, F32)
        self.assertEqual(list(vars(f)), ['mom'])
        self.assertTrue((f.mom['b'] == 1).all())
        self.assertEqual(np.zeros(SHAPE).shape, SHAPE)
        self.assertIs(type(np.zeros(SHAPE)), np.ndarray)

    def test_scalars_that_change_are_refused_with_their_name_and_line(self):
        class Decay:
            def __init__(self):
                self.rate = 0.1

            def __call__(self, key, grad, w):
                w -= self.rate * grad
                self.rate *= 0.99       # this one
        self.refused(Decay(), 'self.rate', 'test_trace.py, line ', 'self.rate *= 0.99       # this one')

    def test_a_count_of_all_keys_is_refused_where_there_are_several(self):
        class Counting:
            def __init__(self):
                self.t = 0

            def __call__(self, key, grad, w):
                self.t += 1
                w -= grad / self.t
        self.assertEqual(text_of(Counting()), 'stored -= grad / step')
        self.refused(Counting(), 'self.t', "'w'", "'b'", 'self.t[key]', keys='wb')
        self.refused(count_globally, 'calls', keys='wb')

    def test_an_array_of_all_keys_is_refused_where_there_are_several(self):
        def make(m=None):
            def f(key, grad, w):
                nonlocal m
                m = grad if m is None else 0.9 * m + grad
                w -= m
            return f
        self.assertEqual(text_of(make()), 'slot m = 0\nm = 0.9 * m + grad\nstored -= m')
        self.refused(make(), 'm, which the keys', keys='wb')
        one = Updater(make())
        one.trace([('w', SHAPE, np.dtype(F32))])
        with self.assertRaisesRegex(errors.Unimplemented, "m, which the keys 'w' and 'b'"):
            one.trace([('b', SHAPE, np.dtype(F32))])

    def test_what_depends_on_other_keys_is_refused(self):
        class First:
            ready = False

            def __call__(self, key, grad, w):
                w += grad if self.ready else 2 * grad
                self.ready = True

        class Last:
            last = None

            def __call__(self, key, grad, w):
                w += grad if self.last == key else 2 * grad
                self.last = key
        for f in (First(), Last()):
            self.refused(f, 'after updates of other keys', keys='wb')
            self.refused(f, 'after updates of other keys', keys=range(40))

    def test_chance_and_clocks_are_refused_with_their_line(self):
        generator, counter, seeded = np.random.default_rng(3), itertools.count(), random.Random(3)

        def endless():
            while True:
                yield 1
        endless_one = endless()
        for word, f in {'random': lambda key, grad, w: w.__iadd__(grad * np.random.rand()),
                        'random number': lambda key, grad, w: w.__iadd__(grad * random.random()),
                        'generator': lambda key, grad, w: w.__iadd__(grad * generator.random()),
                        'counter': lambda key, grad, w: w.__iadd__(grad * next(counter)),
                        'seeded': lambda key, grad, w: w.__iadd__(grad * seeded.random()),
                        'time.time': lambda key, grad, w: w.__iadd__(grad * time.time()),
                        'time.strftime': lambda key, grad, w: w.__iadd__(grad * int(time.strftime('%Y'))),
                        'datetime.now': lambda key, grad, w: w.__iadd__(grad * datetime.datetime.now().hour),
                        'endless_one': lambda key, grad, w: w.__iadd__(grad * next(endless_one))}.items():
            with self.subTest(word):
                self.refused(f, word, '' if word == 'endless_one' else 'test_trace.py, line ')
        self.assertEqual((next(counter), next(endless_one)), (0, 1))
        self.assertEqual(seeded.random(), random.Random(3).random())

    def test_random_numbers_of_other_threads_are_neither_refused_nor_drawn_again(self):
        done, drawn = threading.Event(), []

        def draw():
            while not done.is_set():
                drawn.append(np.random.random())
        thread = threading.Thread(target=draw)
        thread.start()
        try:
            while not drawn:
                continue
            for _ in range(20):
                Updater(Momentum()).trace([(key, SHAPE, np.dtype(F32)) for key in 'wb'])
        finally:
            done.set()
            thread.join()
        self.assertEqual(len(set(drawn)), len(drawn))

    def test_branches_on_elements_and_on_later_counts_are_refused(self):
        t = collections.Counter()

        def later(key, grad, w):
            t[key] += 1
            if t[key] < 10:
                w -= grad
        self.refused(later, 'numpy.where', 'if t[key] < 10')
        self.refused(lambda key, grad, w: w.fill(1 if grad.sum() > 0 else 2), '.sum of an array')

        def warm(key, grad, w):
            t[key] += 1
            w -= np.minimum(t[key] / 10, 1.0) * grad
        self.assertEqual(text_of(warm), 'stored -= min(step / 10.0, 1.0) * grad')

    def test_state_at_a_place_that_is_not_seen_is_refused(self):
        f = unseen()
        self.refused(f, 'kept from an earlier update', 'functools.lru_cache')
        self.refused(f, 'kept from an earlier update')

    def test_state_that_differs_by_element_is_refused(self):
        f = Prepared()
        f.mom['w'][0, 0] = 1
        self.refused(f, 'array')

    def test_counts_go_on_from_what_they_are(self):
        f = Adam()
        f.t['w'] = 5
        self.assertIn('t1 = step + 5.0\nstored -= 0.01 * sqrt(1.0 - 0.999 ^ t1)', text_of(f, 'w'))

    def test_a_branch_on_the_key_may_keep_state(self):
        rates = {'w': 0.1, 'b': 0.1}
        m = {}

        def f(key, grad, w):
            m[key] = 0.9 * m.get(key, 0) + grad
            if key in rates:
                w -= rates[key] * m[key]
        updater = Updater(f)
        updater.trace([(key, SHAPE, np.dtype(F32)) for key in 'wb'])
        with self.assertRaises(errors.Unimplemented):
            updater.trace([('c', SHAPE, np.dtype(F32))])
        self.assertEqual(updater.text.split('\n', 1)[1], 'slot m = 0\nm = 0.9 * m + grad\nstored -= 0.1 * m\n')

    def test_a_refusal_that_the_function_swallows_is_not_lost(self):
        def f(key, grad, w):
            try:
                size = float(np.linalg.norm(grad))
            except Exception:
                size = 1.0
            w -= grad / size
        self.refused(f, 'numpy.norm', 'size = float(np.linalg.norm(grad))')
        self.refused(f, 'numpy.norm', keys=range(40))

    def test_symbols_are_arrays_to_isinstance(self):
        def f(key, grad, w):
            if isinstance(grad, np.ndarray):
                w -= grad
            else:
                w += grad
        self.assertEqual(text_of(f), 'stored -= grad')

    def test_state_in_lists_by_the_place_of_the_key(self):
        names, m = ['w', 'b'], [np.zeros(SHAPE, F32) for _ in range(2)]

        def f(key, grad, w):
            i = names.index(key)
            m[i] *= 0.9
            m[i] += grad
            w -= m[i]
        updater = Updater(f)
        updater.trace([(key, SHAPE, np.dtype(F32)) for key in names])
        self.assertEqual(updater.text.split('\n', 1)[1], 'slot m = 0\nm = m * 0.9 + grad\nstored -= m\n')

    def test_a_refusal_leaves_the_updater_as_it_was(self):
        updater = Updater(lambda key, grad, w: w.__isub__(grad if key == 'w' else grad.mean()))
        updater.trace([('w', SHAPE, np.dtype(F32))])
        for _ in range(2):
            with self.assertRaises(errors.Unimplemented):
                updater.trace([('b', SHAPE, np.dtype(F32))])
        self.assertIn('stored -= grad', updater.text)

    def test_100000_keys_are_traced_and_more_refused_with_the_text(self):
        momentum, count = Momentum(), 100_000
        keys = [(key, SHAPE, np.dtype(F32)) for key in range(count + 1)]
        updater = Updater(momentum)
        began = time.process_time()
        updater.trace(keys[:count])
        print(f'{count} keys traced in {time.process_time() - began:.1f} s of a processor')
        self.assertEqual(momentum.mom, {})
        with self.assertRaises(errors.Unimplemented) as caught:
            updater.trace(keys)
        for word in ('100000', '100001', 'slot mom = 0', "'type': 'program'"):
            self.assertIn(word, str(caught.exception))

    def test_one_key_of_many_that_differs_is_found(self):
        def f(key, grad, w):
            w -= grad * (0.2 if key == 777 else 0.1)
        with self.assertRaisesRegex(errors.FailedPrecondition, 'different programs for the keys 0 and 777'):
            Updater(f).trace([(key, SHAPE, np.dtype(F32)) for key in range(2000)])


# ---- functions that are made up -------------------------------------------------------------------------------------

class Maker:
    """Writes the source of updaters as people write them, of a seed."""

    def __init__(self, seed):
        self.pick = random.Random(seed)

    def source(self):
        pick, slots = self.pick, self.pick.sample('mvuz', self.pick.randint(1, 3))
        holder = pick.choice(['self.{}', '{}', 'f.{}'])
        where = {s: holder.format(s) for s in slots + ['t']}
        counts = pick.random() < 0.5
        body = []
        if counts:
            body += pick.choice([['{t}[key] = {t}.get(key, 0) + 1'], ['{t}.setdefault(key, 0)', '{t}[key] += 1'],
                                 ['if key not in {t}:', '    {t}[key] = 0', '{t}[key] += 1']])
        for s in slots:
            body += [line.replace('{s}', where[s]) for line in self.update(s, slots, where)]
        body += [self.step(slots, where, counts)]
        body = [line.replace('{t}', where['t']) for line in body]
        made = [f'{where[x]} = {{}}' for x in slots + ['t']]
        if holder.startswith('self'):
            return self.text('class f:', ['def __init__(self):', *('    ' + m for m in made),
                                          'def __call__(self, key, grad, w):', *('    ' + b for b in body)], 'f()')
        if holder.startswith('f.'):
            return '\n'.join(['def f(key, grad, w):', *('    ' + b for b in body), *made, 'made = f'])
        return self.text('def make():', [*made, 'def f(key, grad, w):', *('    ' + b for b in body), 'return f'], 'make()')

    def text(self, head, lines, made):
        return '\n'.join([head, *('    ' + line for line in lines), f'made = {made}'])

    def term(self, depth=0):
        pick = self.pick
        if depth > 2 or pick.random() < 0.4:
            return pick.choice(['grad', 'grad', 'w', 'grad * grad', '0.25', 'np.sign(grad)', 'abs(grad)'])
        return pick.choice(['({} + {})', '({} - {})', '({} * 0.5 + {})', 'np.maximum({}, {})', 'np.minimum({}, {})',
                            'np.where(grad > 0, {}, {})', 'np.clip({}, -1, 1) * {}']).format(
                                self.term(depth + 1), self.term(depth + 1))

    def update(self, s, slots, where):
        pick, keep = self.pick, self.pick.choice([0.9, 0.5, 0.99])
        term, start = self.term(), pick.choice(['np.zeros_like(w)', 'np.zeros(w.shape, w.dtype)', 'grad * 0',
                                                'np.ones_like(w)', 'np.full(w.shape, 0.5, w.dtype)', 'w.copy()', 'grad.copy()'])
        return pick.choice([
            [f'if key not in {{s}}:', f'    {{s}}[key] = {start}', f'{{s}}[key][:] = {keep} * {{s}}[key] + {term}'],
            [f'if key not in {{s}}:', f'    {{s}}[key] = {start}', f'{{s}}[key] *= {keep}', f'{{s}}[key] += {term}'],
            [f'own_{s} = {{s}}.setdefault(key, {start})', f'own_{s} *= {keep}', f'own_{s} -= {term}'],
            [f'{{s}}[key] = {keep} * {{s}}.get(key, 0) + {term} * np.ones_like(w)'],
            [f'if key in {{s}}:', f'    {{s}}[key] = {keep} * {{s}}[key] + {term}', 'else:', f'    {{s}}[key] = {start}'],
            [f'own_{s} = {{s}}[key] if key in {{s}} else {start}', f'{{s}}[key] = {term} - {keep} * own_{s}'],
        ])

    def step(self, slots, where, counts):
        pick = self.pick
        read = [f'{where[s]}[key]' for s in slots]
        by = pick.choice(['{t}[key]', '(1 - 0.9 ** {t}[key])', 'math.sqrt({t}[key])']) if counts else '2'
        what = ' + '.join(read)
        return pick.choice([f'w -= 0.1 * ({what}) / {by}', f'w[:] = w - 0.1 * ({what}) / {by}',
                            f'np.subtract(w, 0.1 * ({what}) / {by}, out=w)'])


# ---- on a daemon ----------------------------------------------------------------------------------------------------

class OnADaemon(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = paramd.daemon.Daemon()
        cls.stores = 0

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def setUp(self):
        self.opened = contextlib.ExitStack()
        self.addCleanup(self.opened.close)

    def open(self, kind='dist_async', store=None, **options):
        type(self).stores += 1
        return self.opened.enter_context(paramd.kv.create(kind, url=self.daemon.url, store=store or f'trace-{self.stores}',
                                                          **options))

    def local(self):
        return self.opened.enter_context(paramd.kv.create('local'))

    def test_the_tutorial_gives_4_6_3_4_5(self):
        kv = self.open()
        kv.init(3, ones(4))
        kv.set_updater(tutorial)
        kv.push(3, ones())
        self.assertTrue((kv.pull(3) == 6).all())
        keys = [5, 7, 9]
        kv.init(keys, [ones()] * 3)
        kv.push(keys, [ones()] * 3)
        self.assertTrue(all((a == 3).all() for a in kv.pull(keys)))
        kv.init([10, 11], [ones(0.5)] * 2)
        kv.push([10, 11], [[ones(), ones()]] * 2)
        self.assertTrue(all((a == 4.5).all() for a in kv.pull([10, 11])))
        self.assertEqual(kv.get_updater()['text'], '# traced from tutorial(key, grad, stored)\nstored += grad * 2.0\n')

    def steps_of(self, kv, function, dtype):
        rng = np.random.default_rng(5)
        kv.init('w', rng.standard_normal(SHAPE).astype(dtype))
        kv.set_updater(function)
        for _ in range(5):
            kv.push('w', rng.standard_normal(SHAPE).astype(dtype))
        return kv.pull('w')

    def test_what_is_traced_gives_the_bits_of_the_function_itself(self):
        for function in EXACT:
            for dtype in (np.float32, np.float64):
                with self.subTest(function.__name__, dtype=dtype):
                    here = self.steps_of(self.local(), function, dtype)
                    there = self.steps_of(self.open(), function, dtype)
                    self.assertEqual(here.tobytes(), there.tobytes())

    def test_powers_and_curves_are_equal_but_for_the_last_bits(self):
        for function in NEAR:
            here, there = (self.steps_of(kv, function, np.float32) for kv in (self.local(), self.open()))
            np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)

    def both(self, make, dtype=F32, updates=6, keys=('w', 'b')):
        """The values that a function gives here and on a daemon after some updates."""
        results = []
        for kv in (self.local(), self.open()):
            rng = np.random.default_rng(7)
            kv.init(list(keys), [rng.standard_normal(SHAPE).astype(dtype) for _ in keys])
            kv.set_updater(make())
            for i in range(updates):
                for key in keys if i % 3 else keys[:1]:
                    kv.push(key, rng.standard_normal(SHAPE).astype(dtype))
            results.append(np.array(kv.pull(list(keys))))
        return results

    def assert_same(self, here, there):
        np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-6)

    def test_what_keeps_state_gives_the_numbers_of_the_function_itself(self):
        for make in KEEPING:
            for dtype in (F32, np.float64):
                with self.subTest(make, dtype=dtype):
                    self.assert_same(*self.both(make, dtype))

    def test_momentum_of_five_pushes_of_ones(self):
        results = []
        for kv in (self.local(), self.open()):
            kv.init('w', ones(0))
            kv.set_updater(Momentum())
            for _ in range(5):
                kv.push('w', ones())
            results.append(kv.pull('w'))
        self.assert_same(*results)
        self.assertAlmostEqual(float(results[0][0, 0]), -1.31441, 5)

    def test_updaters_that_are_made_up_give_the_numbers_of_the_function_itself(self):
        traced = 0
        for seed in range(MADE_UP):
            source = Maker(seed).source()
            with self.subTest(seed=seed, source=source):
                def make():
                    space = {'np': np, 'math': math, '__name__': 'made_up'}
                    exec(source, space)
                    return space['made']
                self.assert_same(*self.both(make))
                traced += 1
        self.assertEqual(traced, MADE_UP)

    def test_slots_begin_anew_with_the_function(self):
        kv, here = self.open(), self.local()
        for k in (kv, here):
            k.init('w', ones(0))
            for rate in (0.1, 0.2):
                def f(key, grad, w, mom={}, rate=rate):
                    mom[key] = 0.9 * mom.get(key, 0) + grad
                    w -= rate * mom[key]
                f.__defaults__ = {}, rate
                k.set_updater(f)
                for _ in range(3):
                    k.push('w', ones())
        self.assert_same(here.pull('w'), kv.pull('w'))

    def test_step_begins_with_the_function(self):
        kv = self.open()
        kv.init('w', ones(0))
        kv.set_updater('add')
        kv.push('w', ones())
        t = collections.Counter()

        def f(key, grad, w):
            t[key] += 1
            w += grad / t[key]
        kv.set_updater(f)
        kv.push('w', ones())
        kv.push('w', ones())
        self.assertTrue((kv.pull('w') == 2.5).all())

    # -- when the store gets it

    def test_a_first_init_that_fails_does_not_lose_the_function(self):
        other, kv = self.open('dist_async', 'trace-fails'), self.open('dist_async', 'trace-fails')
        kv.set_updater(tutorial)
        other.init(3, ones(4))
        with self.assertRaises(errors.InvalidArgument):
            kv.init(3, ones(1, (7,)))
        other.push(3, ones())
        self.assertTrue((other.pull(3) == 6).all())
        kv.init(3, ones())
        kv.push(3, ones())
        self.assertTrue((kv.pull(3) == 8).all())

    def test_keys_that_another_client_made_get_the_function_that_was_set_before(self):
        other, kv = self.open('dist_async', 'trace-others'), self.open('dist_async', 'trace-others')
        kv.set_updater(tutorial)
        other.init(3, ones(4))
        kv.push(3, ones())
        self.assertTrue((kv.pull(3) == 6).all())
        self.assertTrue((other.pull(3) == 6).all())

    def test_the_updater_that_is_read_is_the_one_that_was_set(self):
        other, kv = self.open('dist_async', 'trace-read'), self.open('dist_async', 'trace-read')
        kv.set_updater(tutorial)
        other.init(3, ones(4))
        self.assertIn('grad * 2.0', kv.get_updater()['text'])

    def test_a_barrier_gives_the_function_to_keys_that_another_client_made(self):
        results = []

        def work(rank):
            with paramd.kv.create('dist_sync', url=self.daemon.url, store='trace-barrier', num_workers=2) as kv:
                if kv.rank == 1:
                    kv.set_updater(tutorial)
                kv.barrier('set')
                if kv.rank == 0:
                    kv.init(3, ones(4))
                kv.barrier('made')
                kv.barrier('given')
                kv.push(3, ones())
                results.append(kv.pull(3))
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertTrue(len(results) == 2 and all((r == 8).all() for r in results), results)

    def test_no_push_of_another_worker_overtakes_the_function(self):
        for turn in range(OVERTAKING):
            name = f'trace-overtaking-{turn}'
            with self.create(name) as setter, self.create(name) as pusher:
                setter.set_updater(tutorial)
                first = []

                def push():
                    while 3 not in pusher:
                        continue
                    pusher.push(3, ones())
                    first.append(pusher.pull(3))
                thread = threading.Thread(target=push)
                thread.start()
                setter.init(3, ones(4))
                thread.join()
                self.assertTrue((first[0] == 6).all(), f'turn {turn}: {first[0][0, 0]}')

    def create(self, name):
        return paramd.kv.create('dist_async', url=self.daemon.url, store=name)

    def test_prints_show_once_a_key_with_a_note(self):
        def talk(key, grad, stored):
            print(f'update of {key!r}, {stored.shape}')
            stored += grad
        kv = self.open()
        kv.init(['a', 'b'], [ones(), ones(1, (2,))])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            kv.set_updater(talk)
            kv.push('a', ones())
            kv.push('a', ones())
            kv.init('c', ones(1, (7,)))
            kv.wait()
        self.assertEqual(sorted(out.getvalue().splitlines()),
                         ["update of 'a', (4, 5)", "update of 'b', (2,)", "update of 'c', (7,)"])
        self.assertEqual(err.getvalue().count('shows once for each key'), 1)

    def test_a_function_set_before_the_first_key_waits_for_it(self):
        kv = self.open()
        kv.set_updater(tutorial)
        kv.init(3, ones(4))
        kv.push(3, ones())
        self.assertTrue((kv.pull(3) == 6).all())
        out = np.empty(SHAPE, F32)
        kv.broadcast(4, ones(), out)
        kv.pushpull(4, ones(), out=out)
        self.assertTrue((out == 3).all())

    def test_keys_that_get_different_programs_are_refused(self):
        def by_key(key, grad, stored):
            if key == 3:
                stored += grad
            else:
                stored -= grad
        kv = self.open()
        kv.init([3, 4], [ones(), ones()])
        before = kv.get_updater()
        with self.assertRaises(errors.FailedPrecondition) as caught:
            kv.set_updater(by_key)
        for word in ('3', '4', 'one updater', 'stored += grad', 'stored -= grad'):
            self.assertIn(word, str(caught.exception))
        self.assertEqual(kv.get_updater(), before)

    def test_a_later_init_that_needs_another_program_is_refused_and_makes_no_key(self):
        def by_shape(key, grad, stored):
            stored += grad / stored.size
        kv = self.open()
        kv.init(3, ones())
        kv.set_updater(by_shape)
        kv.init(4, ones())
        with self.assertRaises(errors.FailedPrecondition):
            kv.init(5, ones(1, (3,)))
        self.assertEqual(sorted(kv.keys()), [3, 4])
        kv.set_updater(None)
        kv.init(5, ones(1, (3,)))

    def test_what_cannot_be_traced_changes_nothing(self):
        def f(key, grad, stored):
            stored += grad.mean()
        kv = self.open()
        kv.init(3, ones())
        kv.set_updater('add')
        with self.assertRaisesRegex(errors.Unimplemented, r'\.mean of an array.*test_trace.py, line \d+: stored \+= grad.mean\(\)'):
            kv.set_updater(f)
        self.assertEqual(kv.get_updater(), {'type': 'add'})

    def test_several_workers_set_the_same_function(self):
        name, results = 'trace-together', []

        def work(rank):
            with paramd.kv.create('dist_sync', url=self.daemon.url, store=name, num_workers=2) as kv:
                kv.init(3, ones(4))
                kv.set_updater(tutorial)
                kv.barrier()
                kv.push(3, ones())
                results.append(kv.pull(3))
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(results), 2)
        self.assertTrue(all((r == 8).all() for r in results))

    def test_the_traced_text_can_be_set_elsewhere(self):
        kv, other = self.open(), self.open()
        for k in (kv, other):
            k.init(3, ones())
        kv.set_updater(sgd)
        other.set_updater(kv.get_updater())
        for k in (kv, other):
            k.push(3, ones(2))
        self.assertEqual(kv.pull(3).tobytes(), other.pull(3).tobytes())

    def test_a_local_store_with_an_address_traces_too(self):
        kv = self.open('local')
        kv.init(3, ones(4))
        kv.set_updater(tutorial)
        kv.push(3, ones())
        self.assertTrue((kv.pull(3) == 6).all())

    def test_the_whole_tutorial_runs_on_a_daemon_with_its_function(self):
        run = subprocess.run(['/usr/bin/python3', str(ROOT / 'api/python/examples/kvstore_tutorial.py'), '--url',
                              self.daemon.url], capture_output=True, text=True, timeout=TUTORIAL_S)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn('stored += grad * 2.0', run.stdout)
        for result in ('-> 6', '-> 3', '-> 4.5'):
            self.assertIn(result, run.stdout)


if __name__ == '__main__':
    counted.main()
