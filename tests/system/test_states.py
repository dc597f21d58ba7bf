#!/usr/bin/python3
"""What updaters keep: read, put back, saved and loaded, over Python and REST. Interrupted training goes on with the same
bits; files that are not what they say are refused."""

import contextlib
import json
import math
import os
import pathlib
import pickle
import struct
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'api' / 'python'))
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))

import counted  # noqa: E402
import numpy as np
import paramd
import paramd.daemon
from paramd import errors, _half, _safetensors
from paramd.states import State

OPTIMIZERS = {
    'sgd': {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 0.01,
            'schedule': {'type': 'factor', 'step': 3, 'factor': 0.5}},
    'adam': {'learning_rate': 0.01, 'wd': 0.01},
    'lamb': {'learning_rate': 0.01, 'wd': 0.01},
    'adafactor': {},
    'nadam': {'learning_rate': 0.01},
}
SHAPES = {'conv/w': (5, 7), 'bias': (9,), 'large': (700, 450)}      # the slots of the last one go in parts
STEPS, HALF = 6, 3


def gradients(step, dtype):
    rng = np.random.default_rng(step)
    return [as_dtype(rng.standard_normal(shape).astype(np.float32), dtype) for shape in SHAPES.values()]


def as_dtype(array, dtype):
    return paramd.to_bfloat16(array) if dtype == 'bfloat16' else array.astype(dtype)


def first_values(dtype):
    return [as_dtype(np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape), dtype)
            for shape in SHAPES.values()]


def ask(daemon, method, path, body=None, **headers):
    """(status, headers, body) of the admin door."""
    request = urllib.request.Request(daemon.admin + path, body, method=method,
                                     headers={name.replace('_', '-'): text for name, text in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Case(unittest.TestCase):
    def setUp(self):
        self.opened = contextlib.ExitStack()
        self.addCleanup(self.opened.close)
        self.folder = self.opened.enter_context(tempfile.TemporaryDirectory())
        self.file = os.path.join(self.folder, 'x.states')

    def create(self, *args, **kwargs):
        return self.opened.enter_context(paramd.kv.create(*args, **kwargs))

    def daemon(self):
        return self.opened.enter_context(paramd.daemon.Daemon())

    @contextlib.contextmanager
    def refused(self, kind, reason=None, words=()):
        with self.assertRaises(kind) as caught:
            yield
        if reason is not None:
            self.assertEqual(caught.exception.reason, reason, str(caught.exception))
        for word in (words,) if isinstance(words, str) else words:
            self.assertIn(word, str(caught.exception))

    def assertSameStates(self, got, want):
        self.assertEqual(list(got), list(want))
        for key, state in want.items():
            for name in ('updater', 'updates', 'since_begun', 'product'):
                self.assertEqual(getattr(got[key], name), getattr(state, name), f'{key}: {name}')
            self.assertEqual(list(got[key]), list(state))
            for slot, array in state.items():
                self.assertEqual(got[key][slot].dtype, array.dtype)
                self.assertEqual(got[key][slot].shape, array.shape)
                self.assertEqual(got[key][slot].tobytes(), array.tobytes(), f'{key}: {slot}')


# ---- training that is interrupted -----------------------------------------------------------------------------------

class Interrupted:
    """begin() opens a store; restart() one that knows nothing of it."""

    def train(self, kv, dtype, steps):
        keys = list(SHAPES)
        for step in steps:
            kv.push(keys, gradients(step, dtype))
            kv.wait()

    def goes_on(self, optimizer, numbers, dtype, dumped=False):
        keys = list(SHAPES)
        with self.begin() as kv:
            kv.init(keys, first_values(dtype))
            kv.set_optimizer(optimizer, **numbers)
            self.train(kv, dtype, range(HALF))
            kv.save_optimizer_states(self.file, dump_optimizer=dumped)
            values = kv.pull(keys)
            self.train(kv, dtype, range(HALF, STEPS))
            end, states = kv.pull(keys), kv.get_states()
        with self.restart() as kv:
            kv.init(keys, values)
            if not dumped:
                kv.set_optimizer(optimizer, **numbers)
            kv.load_optimizer_states(self.file)
            self.train(kv, dtype, range(HALF, STEPS))
            again, states_again = kv.pull(keys), kv.get_states()
        for key, a, b, start in zip(keys, again, end, values):
            self.assertEqual(a.tobytes(), b.tobytes(), key)
            self.assertNotEqual(a.tobytes(), start.tobytes(), key)
        self.assertSameStates(states_again, states)
        self.assertEqual(states['bias'].updates, STEPS)
        self.assertTrue(any(a.any() for a in states['bias'].values()))
        if dtype != 'float32':
            self.assertEqual(states['bias']['master'].dtype, np.float32)
        return states

    def test_training_goes_on_with_the_same_bits(self):
        for optimizer, numbers in OPTIMIZERS.items():
            for dtype in ('float32', 'float16'):
                with self.subTest(optimizer=optimizer, dtype=dtype):
                    states = self.goes_on(optimizer, numbers, dtype)
                    if optimizer == 'nadam':
                        self.assertTrue(0 < states['bias'].product < 1)

    def test_so_it_does_in_bfloat16_and_with_the_updater_out_of_the_file(self):
        self.goes_on('adam', OPTIMIZERS['adam'], 'bfloat16', dumped=True)


class LocalInterrupted(Interrupted, Case):
    def begin(self):
        return paramd.kv.create('local')

    restart = begin


class RemoteInterrupted(Interrupted, Case):
    """The second half is on another daemon, which has just been started."""

    def begin(self):
        self.first = self.daemon()
        return paramd.kv.create('dist_sync', self.first.url, num_workers=1)

    def restart(self):
        self.first.stop()
        return paramd.kv.create('dist_sync', self.daemon().url, num_workers=1)


class Mixed(LocalInterrupted):
    """Begun in the process, it goes on in a daemon."""

    def restart(self):
        return paramd.kv.create('dist_async', self.daemon().url)


# ---- states ---------------------------------------------------------------------------------------------------------

class States:
    """open() gives a new store with one worker."""

    def setUp(self):
        super().setUp()
        self.kv = self.open()

    def begin(self, optimizer='adam', **numbers):
        self.kv.init(['w', 'b'], [np.ones((2, 3), np.float32), np.ones(4, np.float32)])
        self.kv.set_optimizer(optimizer, **numbers)
        self.push()

    def push(self, keys=('w', 'b')):
        self.kv.push(list(keys), [np.ones(self.kv.describe(k).shape, np.float32) for k in keys])

    def test_states_are_read_by_name(self):
        self.begin('sgd', learning_rate=0.5, momentum=0.5)
        states = self.kv.get_states()
        self.assertEqual(sorted(states), ['b', 'w'])
        self.assertEqual(list(states['w']), ['momentum'])
        self.assertTrue((states['w']['momentum'] == -0.5).all())
        self.assertEqual(states['w']['momentum'].shape, (2, 3))
        self.assertEqual((states['w'].updater, states['w'].updates, states['w'].since_begun), ('sgd', 1, 1))
        self.assertEqual(list(self.kv.get_states('b')), ['b'])
        self.assertEqual(list(self.kv.get_states(['b', 'w'])), ['b', 'w'])
        self.assertEqual(self.kv.get_states([]), {})
        self.assertSameStates(pickle.loads(pickle.dumps(states)), states)

    def test_pushes_made_before_are_in_it(self):
        self.begin('sgd', learning_rate=1, momentum=1)
        for n in range(2, 20):
            self.push()
            self.assertEqual(self.kv.get_states('w')['w'].updates, n)

    def test_what_was_read_is_put_back(self):
        self.begin()
        early = self.kv.get_states()
        self.push()
        late = self.kv.get_states()
        self.kv.set_states({'w': early['w']})
        self.assertSameStates(self.kv.get_states(['w', 'b']), {'w': early['w'], 'b': late['b']})
        self.kv.set_states({})

    def test_a_setting_that_does_not_fit_changes_nothing(self):
        self.begin()
        before = self.kv.get_states(['w', 'b'])
        fine = State({'mean': np.zeros((2, 3), np.float32), 'var': np.zeros((2, 3), np.float32)}, 'adam', 5, 5)
        good = dict(mean=np.zeros(4, np.float32), var=np.zeros(4, np.float32))
        wrong = {
            'of another updater': (State(good, 'sgd', 5, 5), errors.FailedPrecondition, 'updater-incompatible'),
            'an unknown slot': (State({**good, 'x': good['var']}, 'adam', 5, 5), errors.NotFound, 'no-such-slot'),
            'a slot is missing': (State({'mean': good['mean']}, 'adam', 5, 5), errors.InvalidArgument, None),
            'too short': (State({**good, 'var': good['var'][:3]}, 'adam', 5, 5), errors.InvalidArgument, 'shape-mismatch'),
            'in float64': (State({**good, 'var': np.zeros(4)}, 'adam', 5, 5), errors.InvalidArgument, 'shape-mismatch'),
            'a dtype of none': (State({**good, 'var': np.zeros(4, complex)}, 'adam', 5, 5), errors.InvalidArgument, None),
            'more since than ever': (State(good, 'adam', 5, 6), errors.InvalidArgument, None),
            'a count below 0': (State(good, 'adam', -1, 0), errors.InvalidArgument, None),
            'no number': (State(good, 'adam', 5, 5, float('nan')), errors.InvalidArgument, None),
            'no state': (dict(good), errors.InvalidArgument, None),
        }
        for what, (state, kind, reason) in wrong.items():
            with self.subTest(what), self.refused(kind, reason):
                self.kv.set_states({'w': fine, 'b': state})
        with self.refused(errors.NotFound, 'no-such-key'):
            self.kv.set_states({'w': fine, 'nothing': State(good, 'adam', 5, 5)})
        self.assertSameStates(self.kv.get_states(['w', 'b']), before)

    def test_numbers_of_the_updater_change_without_its_slots(self):
        self.begin('adam', learning_rate=0.1)
        before = self.kv.get_states()
        self.kv.set_optimizer('adam', learning_rate=0.7, beta1=0.8)
        self.assertSameStates(self.kv.get_states(), before)
        value = self.kv.pull('b')
        self.push(['b'])
        self.assertEqual(self.kv.get_states('b')['b'].updates, 2)
        self.assertTrue((np.abs(self.kv.pull('b') - value) > 0.5).all())

    def test_numbers_that_are_left_out_are_named_with_what_they_become(self):
        self.begin()
        self.kv.set_optimizer('sgd', learning_rate=.1, momentum=.9, wd=.01)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            told = self.kv.set_optimizer('sgd', learning_rate=.01, wd=.01, dry_run=True)
            self.assertEqual(caught, [])
            answer = self.kv.set_optimizer('SGD', learning_rate=.01, wd=.01)
            again = self.kv.set_optimizer('sgd', learning_rate=.01, wd=.01)
            said = self.kv.set_optimizer('sgd', learning_rate=.01, wd=0)
        self.assertEqual([w.category for w in caught], [paramd.optimizer.NumbersDropped])
        self.assertEqual(caught[0].filename, __file__)
        self.assertIn('momentum 0.9 -> 0.', str(caught[0].message))
        dropped = [{'name': 'momentum', 'from': .9, 'to': 0}]
        self.assertEqual((told['dropped'], answer['dropped'], again['dropped'], said['dropped']), (dropped, dropped, [], []))
        self.assertTrue(any(w.startswith('/momentum: goes from 0.9 back to its default, 0,')
                            for w in told['report']['warnings']), told)
        self.assertEqual((answer['changed'], again['changed']), (True, False))

    def test_what_a_schedule_or_a_program_leaves_out_is_named_too(self):
        self.begin()
        program = {'type': 'program', 'text': 'param lr = 1, mu = 2\nstored -= mu * lr * grad'}
        for first, second, dropped in (
                ({'type': 'sgd', 'schedule': {'type': 'cosine', 'max_update': 9, 'warmup_steps': 3}},
                 {'type': 'sgd', 'schedule': {'type': 'cosine', 'max_update': 9}}, [('schedule/warmup_steps', 3, 0)]),
                ({'type': 'sgd', 'schedule': {'type': 'constant'}, 'overrides': [{'match': '*', 'wd': 1}]},
                 {'type': 'sgd'}, [('schedule', 'constant', None), ('overrides', 1, 0)]),
                ({'type': 'sgd', 'schedule': {'type': 'constant'}}, {'type': 'sgd', 'schedule': None}, []),
                ({**program, 'params': {'lr': .5, 'mu': 3}}, {**program, 'params': {'mu': 3}}, [('params/lr', .5, 1)]),
                ({'type': 'sgd', 'momentum': .9}, {'type': 'nag'}, [])):
            with warnings.catch_warnings():
                warnings.simplefilter('ignore', paramd.optimizer.NumbersDropped)
                self.kv.set_updater(first)
                got = self.kv.set_updater(second)['dropped']
            self.assertEqual([(r['name'], r['from'], r['to']) for r in got], dropped)

    def swap(self, states, converted):
        self.begin('sgd', learning_rate=.1, momentum=.9)
        told = self.kv.set_optimizer('adam', states=states, dry_run=True)
        self.assertEqual(self.kv.get_updater()['type'], 'sgd')
        answer = self.kv.set_optimizer('adam', states=states)
        first = [{'key': k, 'version': 3} for k in ('w', 'b')]
        for said in (told, answer):
            self.assertEqual((said['changed'], said['effective_from_version'], said['first_versions']), (True, 3, first))
        rows = {row['name']: row for row in told['report']['slots']}
        self.assertEqual([rows[n]['converted'] for n in ('mean', 'var')], [converted] * 2)
        self.push()
        state = self.kv.get_states('b')['b']
        self.assertEqual((state.since_begun, bool(state['mean'][0] > .15)), (1 + converted // 2, converted > 0))

    def test_a_swap_that_keeps_states_begins_what_is_not_there(self):
        self.swap('keep', 0)

    def test_a_swap_that_resets_states_begins_all(self):
        self.swap('reset', 0)

    def test_a_swap_that_converts_states_makes_means_of_a_movement(self):
        self.swap('convert', 2)

    def test_states_is_one_of_three_words_and_for_documents(self):
        with self.refused(paramd.errors.InvalidArgument, words='keep, reset or convert'):
            self.kv.set_optimizer('sgd', states='drop')
        with self.refused(paramd.errors.InvalidArgument, words='for documents'):
            self.kv.set_updater(lambda key, grad, stored: None, dry_run=True)

    def test_an_equal_assign_changes_nothing(self):
        self.begin()
        self.kv.set_updater(None)
        for document in (None, {'type': 'assign'}, 'assign'):
            self.assertEqual(self.kv.set_updater(document)['changed'], False)

    def test_a_file_is_in_the_safetensors_format(self):
        self.begin()
        self.kv.save_optimizer_states(self.file)
        with open(self.file, 'rb') as f:
            data = f.read()
        size = struct.unpack('<Q', data[:8])[0]
        header = json.loads(data[8:8 + size])
        self.assertEqual(size % 8, 0)
        self.assertEqual(set(header), {'__metadata__', 'w.mean', 'w.var', 'b.mean', 'b.var'})
        self.assertEqual(json.loads(header['__metadata__']['updater'])['type'], 'adam')
        start, end = header['b.var']['data_offsets']
        self.assertEqual(data[8 + size + start:8 + size + end], self.kv.get_states()['b']['var'].tobytes())
        self.assertEqual(os.listdir(self.folder), ['x.states'])
        try:
            import safetensors.numpy
        except ImportError:
            return
        self.assertEqual(safetensors.numpy.load_file(self.file)['w.mean'].tobytes(),
                         self.kv.get_states()['w']['mean'].tobytes())

    def test_a_file_is_of_the_type_of_the_updater(self):
        self.begin()
        self.kv.save_optimizer_states(self.file)
        self.kv.set_optimizer('sgd', learning_rate=0.1)
        before = self.kv.get_states()
        with self.refused(errors.FailedPrecondition, 'updater-incompatible', ('adam', 'sgd')):
            self.kv.load_optimizer_states(self.file)
        self.assertSameStates(self.kv.get_states(), before)
        with self.refused(errors.FailedPrecondition, 'updater-incompatible', 'push it once'):
            self.kv.save_optimizer_states(self.file)
        self.push()
        self.kv.save_optimizer_states(self.file)

    def test_a_dumped_optimizer_comes_with_its_numbers(self):
        self.begin('adam', learning_rate=0.125)
        document = self.kv.get_updater()
        self.kv.save_optimizer_states(self.file, dump_optimizer=True)
        states = self.kv.get_states()
        self.kv.set_optimizer('sgd', learning_rate=0.1)
        self.push()
        self.kv.load_optimizer_states(self.file)
        self.assertEqual(self.kv.get_updater(), document)
        self.assertSameStates(self.kv.get_states(), states)

    def test_without_an_optimizer_there_is_nothing_to_save(self):
        self.kv.init('w', np.ones(2, np.float32))
        with self.refused(errors.FailedPrecondition, 'updater-needed', 'set_optimizer'):
            self.kv.save_optimizer_states(self.file)
        self.assertFalse(os.path.exists(self.file))

    def test_keys_that_did_not_step_under_the_optimizer_have_empty_states(self):
        self.begin()
        self.kv.set_updater(None)
        self.kv.init(['never', 'before'], [np.ones(2, np.float32)] * 2)
        self.kv.push('before', np.ones(2, np.float32))
        self.kv.wait()
        self.kv.set_optimizer('adam')
        self.push()
        self.kv.save_optimizer_states(self.file)
        states = paramd.states.read(self.file)[0]
        self.assertEqual({k: (len(s), s.updates) for k, s in states.items()},
                         {'b': (2, 2), 'before': (0, 0), 'never': (0, 0), 'w': (2, 2)})
        self.push()
        self.kv.load_optimizer_states(self.file)
        self.assertEqual({k: len(s) for k, s in self.kv.get_states().items()}, {'b': 2, 'before': 0, 'never': 0, 'w': 2})
        self.push(['never'])
        with self.refused(errors.FailedPrecondition, 'updater-incompatible', ('never', 'load before')):
            self.kv.load_optimizer_states(self.file)

    def test_an_integer_key_assigns_or_is_frozen_beside_an_optimizer(self):
        self.begin('sgd', learning_rate=.5)
        with self.refused(errors.FailedPrecondition, 'updater-incompatible', '"match": "bn.count", "assign": true'):
            self.kv.init('bn.count', np.zeros(1, np.int64))
        self.kv.set_updater(None)
        self.kv.init('bn.count', np.zeros(1, np.int64))
        with self.refused(errors.FailedPrecondition, 'updater-incompatible', '"match": "bn.count", "assign": true'):
            self.kv.set_optimizer('adam')
        self.kv.set_optimizer('adam', overrides=[{'match': '*.count', 'assign': True}, {'match': 'b', 'frozen': True}])
        self.kv.push('bn.count', np.full(1, 7, np.int64))
        self.assertEqual(self.kv.pull('bn.count').tolist(), [7])
        before = self.kv.pull('b')
        with self.refused(errors.FailedPrecondition, 'key-frozen', ("'b'", '{"match": "b", "frozen": true}')):
            self.push(['b'])
            self.kv.wait('b')
        self.assertEqual(self.kv.pull('b').tolist(), before.tolist())
        self.push(['w'])
        self.kv.save_optimizer_states(self.file)
        self.kv.load_optimizer_states(self.file)
        self.kv.set('b', before + 1)
        self.kv.set_optimizer('adam', overrides=[{'match': '*.count', 'frozen': True}])
        self.push()
        with self.refused(errors.FailedPrecondition, 'key-frozen', 'bn.count'):
            self.kv.push('bn.count', np.full(1, 9, np.int64))
            self.kv.wait('bn.count')
        np.testing.assert_allclose(self.kv.pull('b'), before + 1 - .001, atol=1e-6)

    def test_files_of_keys_that_are_not_there_change_nothing(self):
        self.begin()
        self.kv.save_optimizer_states(self.file)
        self.push()
        before = self.kv.get_states('w')
        self.kv.delete('b')
        with self.refused(errors.NotFound, 'no-such-key'):
            self.kv.load_optimizer_states(self.file)
        self.assertSameStates(self.kv.get_states('w'), before)
        with self.assertRaises(FileNotFoundError):
            self.kv.load_optimizer_states(self.file + '.not')


class LocalStates(States, Case):
    def open(self):
        return self.create('local')

    def test_a_function_keeps_what_it_keeps(self):
        self.begin()
        self.kv.set_updater(lambda key, grad, stored: None)
        for call in (lambda: self.kv.get_states(), lambda: self.kv.save_optimizer_states(self.file),
                     lambda: self.kv.load_optimizer_states(self.file)):
            with self.refused(errors.FailedPrecondition, 'updater-incompatible', 'function'):
                call()

    def test_a_function_with_states_of_its_own_is_asked(self):
        class Updater:
            seen = None

            def __call__(self, key, grad, stored):
                stored += grad

            def get_states(self, dump_optimizer=False):
                return b'mine, ' + (b'whole' if dump_optimizer else b'slots')

            def set_states(self, data):
                self.seen = data

        updater = Updater()
        self.begin()
        self.kv.set_updater(updater)
        self.kv.save_optimizer_states(self.file, dump_optimizer=True)
        self.kv.load_optimizer_states(self.file)
        self.assertEqual(updater.seen, b'mine, whole')


class RemoteStates(States, Case):
    @classmethod
    def setUpClass(cls):
        cls.served = paramd.daemon.Daemon()
        cls.addClassCleanup(cls.served.stop)

    def open(self):
        return self.create('dist_async', self.served.url, store=self.id()[:100])

    def test_one_of_two_workers_reads_while_the_other_is_missing(self):
        """A round that is open is not in the state, and a state that is put comes before it."""
        store = 'two'
        one = self.create('dist_sync', self.served.url, store=store, num_workers=2)
        two = self.create('dist_sync', self.served.url, store=store, num_workers=2)
        for kv in (one, two):
            kv.init('w', np.zeros(3, np.float32))
        one.set_optimizer('sgd', learning_rate=1, momentum=0.5)
        two.push('w', np.ones(3, np.float32))
        self.assertEqual(one.get_states('w')['w'].updates, 0)
        one.push('w', np.ones(3, np.float32))
        self.assertTrue((one.get_states('w')['w']['momentum'] == -2).all())
        state = State({'momentum': np.full(3, 8, np.float32)}, 'sgd', 40, 40)
        two.push('w', np.ones(3, np.float32))
        one.set_states({'w': state})
        one.push('w', np.ones(3, np.float32))
        after = two.get_states('w')['w']
        self.assertTrue((after['momentum'] == 2).all())
        self.assertEqual(after.updates, 41)

    # -- over REST

    def path(self, rest):
        return f'/v1/stores/{self.id()[:100]}/keys/{rest}'

    def test_slots_over_rest(self):
        self.begin('adam', learning_rate=0.1)
        states = self.kv.get_states()
        status, _, body = ask(self.served, 'GET', self.path('w/slots'))
        said = json.loads(body)
        self.assertEqual(status, 200)
        self.assertEqual({k: said[k] for k in ('key', 'key_type', 'updater', 'updates', 'since_begun', 'product')},
                         {'key': 'w', 'key_type': 'str', 'updater': 'adam', 'updates': 1, 'since_begun': 1, 'product': 1.0})
        self.assertEqual(said['items'][1], {'name': 'var', 'dtype': 'float32', 'shape': [2, 3], 'count': 6, 'bytes': 24})
        status, headers, raw = ask(self.served, 'GET', self.path('w/slots/mean?format=raw'))
        self.assertEqual((status, raw), (200, states['w']['mean'].tobytes()))
        self.assertEqual((headers['Paramd-Updates'], headers['Paramd-Dtype'], headers['Paramd-Shape']),
                         ('1', 'float32', '2, 3'))
        status, headers, npy = ask(self.served, 'GET', self.path('w/slots/var'), Accept='application/x-npy')
        self.assertEqual((status, headers['Content-Type']), (200, 'application/x-npy'))
        with open(self.file, 'wb') as f:
            f.write(npy)
        self.assertEqual(np.load(self.file).tobytes(), states['w']['var'].tobytes())
        status, _, body = ask(self.served, 'GET', self.path('b/slots/mean'))
        said = json.loads(body)
        self.assertEqual((said['slot'], said['shape'], said['updates']), ('mean', [4], 1))
        self.assertEqual(np.array(said['data'], np.float32).tobytes(), states['b']['mean'].tobytes())
        status, _, body = ask(self.served, 'GET', self.path('b'))
        self.assertEqual(json.loads(body)['updates'], 1)

    def test_rest_says_what_is_not_there(self):
        self.begin('adam')
        for rest, status, code in (('w/slots/momentum', 404, 'no-such-slot'), ('x/slots', 404, 'no-such-key'),
                                   ('w/slots/mean?format=xml', 400, 'invalid-argument')):
            got, _, body = ask(self.served, 'GET', self.path(rest))
            self.assertEqual((got, json.loads(body)['code']), (status, code), rest)

    def test_large_slots_over_rest(self):
        self.kv.init('l', np.zeros((700, 900), np.float32))
        self.kv.set_optimizer('adafactor')
        self.kv.push('l', np.random.default_rng(1).standard_normal((700, 900)).astype(np.float32))
        self.kv.wait()
        self.kv.set_optimizer('sgd', learning_rate=0.1, momentum=0.9)
        self.kv.push('l', np.random.default_rng(2).standard_normal((700, 900)).astype(np.float32))
        states = self.kv.get_states()
        status, _, raw = ask(self.served, 'GET', self.path('l/slots/momentum?format=raw'))
        self.assertEqual((status, raw), (200, states['l']['momentum'].tobytes()))
        got, _, body = ask(self.served, 'GET', self.path('l/slots/momentum'))
        said = json.loads(body)
        self.assertEqual((got, said['code']), (413, 'value-too-large-for-json'))
        self.assertIn('format=npy', said['npy'])

    def test_a_put_of_the_rate_leaves_slots_and_counters_alone(self):
        self.begin('adam', learning_rate=0.1)
        before = self.kv.get_states()
        path = f'/v1/stores/{self.id()[:100]}/updater'
        status, _, body = ask(self.served, 'PUT', path, b'{"type": "adam", "learning_rate": 0.003}', If_Match='*',
                              Content_Type='application/json')
        self.assertEqual((status, json.loads(body)['changed']), (200, True))
        self.assertSameStates(self.kv.get_states(), before)
        self.assertEqual(self.kv.get_updater()['learning_rate'], 0.003)
        self.push()
        self.assertEqual(self.kv.get_states('w')['w'].since_begun, 2)


# ---- files that are not what they say -------------------------------------------------------------------------------

class Files(Case):
    def setUp(self):
        super().setUp()
        self.kv = self.create('local')
        self.kv.init('w', np.ones(3, np.float32))
        self.kv.set_optimizer('sgd', learning_rate=1, momentum=0.5)
        self.kv.push('w', np.ones(3, np.float32))
        self.kv.save_optimizer_states(self.file)
        with open(self.file, 'rb') as f:
            data = f.read()
        size = struct.unpack('<Q', data[:8])[0]
        self.header, self.bytes = json.loads(data[8:8 + size]), data[8 + size:]
        self.before = self.kv.get_states()

    def load(self, data):
        with open(self.file, 'wb') as f:
            f.write(data)
        self.kv.load_optimizer_states(self.file)

    def compose(self, header, data=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack('<Q', len(text)) + text + (self.bytes if data is None else data)

    def changed(self, change):
        """The header after change(header, the metadata of the first key)."""
        header = json.loads(json.dumps(self.header))
        rows = json.loads(header['__metadata__']['keys'])
        change(header, rows[0])
        if isinstance(header.get('__metadata__'), dict) and header['__metadata__'].get('keys') == self.header[
                '__metadata__']['keys']:
            header['__metadata__']['keys'] = json.dumps(rows)
        return self.compose(header)

    def test_the_whole_one_is_read(self):
        self.load(self.compose(self.header))

    def test_one_that_is_cut_off_anywhere_is_refused(self):
        whole = self.compose(self.header)
        for size in range(len(whole)):
            with self.refused(errors.InvalidArgument, 'invalid-argument'):
                self.load(whole[:size])
        self.assertSameStates(self.kv.get_states(), self.before)

    def test_headers_that_lie_are_refused(self):
        def tensor(**members):
            return lambda h, row: h['w.momentum'].update(members)

        def row(**members):
            return lambda h, r: r.update(members)

        def meta(**members):
            return lambda h, r: h['__metadata__'].update(members)

        lies = [
            tensor(dtype='F64'), tensor(dtype='I128'), tensor(dtype=7), tensor(shape=[4]), tensor(shape=[-3]),
            tensor(shape=[2**62, 2**62]), tensor(shape=[3.0]), tensor(shape=[True, 3]), tensor(shape='3'),
            tensor(shape=[1] * 9 + [3]), tensor(data_offsets=[4, 16]), tensor(data_offsets=[0, 2**70]),
            tensor(data_offsets=[12, 0]), tensor(data_offsets=[-12, 0]), tensor(data_offsets=[0]), tensor(more=1),
            lambda h, r: h.update(other=h['w.momentum']), lambda h, r: h.update({'w.momentum': 5}),
            lambda h, r: h.update(empty={'dtype': 'F32', 'shape': [0], 'data_offsets': [0, 0]}),
            lambda h, r: h.pop('w.momentum'), lambda h, r: h.pop('__metadata__'),
            lambda h, r: h.update(__metadata__=5), meta(format='other'), meta(format=5), meta(updater='{'),
            meta(updater='[]'), meta(updater='{"type": 5}'), meta(dump_optimizer='1'), meta(keys='{}'),
            meta(keys='[' * 5000), meta(keys='[5]'), row(key=1.5), row(key=None), row(updates=-1), row(updates=1.0),
            row(updates=2**64), row(since_begun=2), row(product='1'), row(product=2), row(slots='momentum'),
            row(slots=[]), row(slots=['momentum', 'momentum']), row(slots=['mean']), row(slots=[5]), row(more=1),
        ]
        for i, change in enumerate(lies):
            with self.subTest(i), self.refused(errors.InvalidArgument):
                self.load(self.changed(change))
        for text in (b'', b'[]', b'5', b'{"a": NaN}', b'{"a": 1, "a": 1}', b'\xff\xfe', b'[' * 100000, b'{"a": {"a": '):
            with self.subTest(text[:20]), self.refused(errors.InvalidArgument):
                self.load(self.compose(text))
        for size in (2**64 - 1, 2**63, len(self.bytes) + 10**6):
            with self.subTest(size), self.refused(errors.InvalidArgument):
                self.load(struct.pack('<Q', size) + self.compose(self.header)[8:])
        self.assertSameStates(self.kv.get_states(), self.before)

    def test_one_that_cannot_be_written_leaves_the_old_one(self):
        with open(self.file, 'rb') as f:
            old = f.read()
        with self.assertRaises(KeyError):
            _safetensors.write(self.file, {'a': np.zeros(3), 'b': np.zeros(2, np.uint16)}, {})
        with open(self.file, 'rb') as f:
            self.assertEqual(f.read(), old)
        self.assertEqual(os.listdir(self.folder), ['x.states'])

    def test_other_tensors_come_back_as_they_were(self):
        tensors = {'f': np.arange(6, dtype=np.float32).reshape(2, 3), 'd': np.float64([np.nan, 2]),
                   'h': np.float16([1, 2]), 'b': paramd.to_bfloat16([1, 2, 3]), 'n': np.int8([-1]),
                   'e': np.empty((0, 4), np.int64), 's': np.float32(7).reshape(())}
        _safetensors.write(self.file, tensors, {'a': 'ü'})
        got, metadata = _safetensors.read(self.file)
        self.assertEqual(metadata, {'a': 'ü'})
        for name, array in tensors.items():
            self.assertEqual((got[name].dtype, got[name].shape, got[name].tobytes()),
                             (array.dtype, array.shape, array.tobytes()), name)


# ---- half types -----------------------------------------------------------------------------------------------------

class Halves:
    """float16 and bfloat16 values: init, push, pull, numbers, outputs. open() gives a new store."""

    def setUp(self):
        super().setUp()
        self.kv = self.open()

    def test_float16_goes_in_and_out(self):
        value = np.float16([1.5, -2, 65504, 6e-8])
        self.kv.init('h', value)
        self.assertEqual(self.kv.describe('h').dtype, np.float16)
        self.assertEqual(self.kv.pull('h').tobytes(), value.tobytes())
        self.kv.set_optimizer('sgd', learning_rate=0.5)
        self.kv.push('h', [np.float16([1, 1, 0, 0]), np.float16([1, 1, 0, 0])])
        self.assertEqual(self.kv.pull('h').tolist()[:2], [0.5, -3])
        out = np.empty(8, np.float16)[::2]
        self.kv.pull('h', out=out)
        self.assertEqual(out[:2].tolist(), [0.5, -3])
        self.kv.push('h', [2, 2.0, 0, 0])
        self.assertEqual(self.kv.pull('h').tolist()[:2], [-0.5, -4])
        self.kv.set('h', np.zeros(4, '>f2'))
        self.assertEqual(self.kv.pull('h').tolist(), [0] * 4)
        with self.refused(errors.InvalidArgument, 'shape-mismatch', 'float16'):
            self.kv.push('h', np.ones(4, np.float32))

    def test_bfloat16_goes_in_and_out(self):
        value = paramd.to_bfloat16([[1.5, -2], [3e38, 0.1]])
        self.kv.init('b', value)
        self.assertEqual(self.kv.describe('b').dtype, paramd.bfloat16)
        self.assertEqual(self.kv.pull('b').tobytes(), value.tobytes())
        self.kv.set_optimizer('sgd', learning_rate=0.5)
        self.kv.push('b', np.full((2, 2), 0x3f80, np.uint16).view(paramd.bfloat16))
        self.assertEqual(paramd.from_bfloat16(self.kv.pull('b')).tolist()[0], [1, -2.5])
        out = np.empty((2, 2), _half.BITS)
        self.kv.pushpull('b', [[1, 1], [0, 0]], out=out)
        self.assertEqual(paramd.from_bfloat16(out).tolist()[0], [0.5, -3])
        with self.refused(errors.InvalidArgument, words='view(paramd.bfloat16)'):
            self.kv.push('b', np.zeros((2, 2), np.uint16))


class LocalHalves(Halves, Case):
    def open(self):
        return self.create('local')

    def test_a_function_gets_them(self):
        self.kv.init('h', np.float16([1, 2]))
        self.kv.set_updater(lambda key, grad, stored: np.subtract(stored, grad, out=stored))
        self.kv.push('h', np.float16([1, 1]))
        self.assertEqual(self.kv.pull('h').tolist(), [0, 1])

    def test_rounding_to_bfloat16_is_to_the_nearest_even(self):
        wide = np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, np.inf, -0.0, 3.4e38])
        self.assertEqual(paramd.to_bfloat16(wide).view(np.uint16).tolist(),
                         [0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x8000, 0x7f80])
        self.assertTrue(np.isnan(paramd.from_bfloat16(paramd.to_bfloat16(np.float32([np.nan])))).all())
        self.assertEqual(paramd.to_bfloat16(2.0).shape, ())
        self.assertEqual(paramd.from_bfloat16(paramd.to_bfloat16(2.0)), 2)


class RemoteHalves(Halves, Case):
    def open(self):
        return self.create('dist_async', self.daemon().url)

    def test_a_traced_function_takes_float16(self):
        self.kv.init('h', np.float16([1, 2]))

        def update(key, grad, stored):
            stored -= 0.5 * grad
        self.kv.set_updater(update)
        self.kv.push('h', np.float16([1, 1]))
        self.assertEqual(self.kv.pull('h').tolist(), [0.5, 1.5])


if __name__ == '__main__':
    counted.main()
