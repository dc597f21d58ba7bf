#!/usr/bin/python3
"""Python functions as updaters of a daemon's store: what they become, that they compute there what they compute here, and
how what cannot be traced is refused."""

import contextlib
import io
import pathlib
import subprocess
import sys
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'api' / 'python'))

import numpy as np
import paramd
import paramd.daemon
from paramd import errors
from paramd.trace import trace

F32 = np.float32
SHAPE = (4, 5)
TUTORIAL_S = 60


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


class Result(unittest.TextTestResult):
    def count(self):
        bad = len(self.failures) + len(self.errors) + len(self.unexpectedSuccesses)
        return self.testsRun - bad - len(self.skipped), bad, len(self.skipped)


if __name__ == '__main__':
    runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result)
    result = runner.run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]))
    print('%d passed, %d failed, %d skipped' % result.count())
    sys.exit(not result.wasSuccessful())
