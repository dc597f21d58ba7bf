#!/usr/bin/python3
"""The Python package: the same facts on a store of this process and on a daemon, and what only one of them has."""

import array
import contextlib
import ctypes
import inspect
import multiprocessing
import os
import pathlib
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'api' / 'python'))
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))

import counted  # noqa: E402
import numpy as np
import paramd
import paramd.daemon
from paramd import errors

F32 = np.float32
SHAPE = (4, 4)
DTYPES = ['float32', 'float64', 'float16', 'int8', 'uint8', 'int32', 'int64']
CHILD_S = 60


def ones(factor=1, shape=SHAPE, dtype=F32):
    return np.full(shape, factor, dtype)


def empty(count):
    return [np.empty(SHAPE, F32) for _ in range(count)]


class Case(unittest.TestCase):
    """Opens stores that are closed at the end of the test."""

    def setUp(self):
        self.opened = contextlib.ExitStack()
        self.addCleanup(self.opened.close)

    def create(self, *args, **kwargs):
        return self.opened.enter_context(paramd.kv.create(*args, **kwargs))

    def assertAll(self, arrays, want):
        """Every element of an array, or of each of a list, is `want`."""
        for a in arrays if isinstance(arrays, list) else [arrays]:
            self.assertTrue((a == want).all(), f'{a} is not {want} everywhere')

    @contextlib.contextmanager
    def refused(self, kind, reason=None, words=()):
        with self.assertRaises(kind) as caught:
            yield
        if reason is not None:
            self.assertEqual(caught.exception.reason, reason)
        for word in (words,) if isinstance(words, str) else words:
            self.assertIn(word, str(caught.exception))


# ---- the facts that hold everywhere ---------------------------------------------------------------------------------

class Forms:
    """What holds for a store with one worker, wherever it is: open() gives a new one."""

    def setUp(self):
        super().setUp()
        self.kv = self.open()

    # -- values

    def test_init_push_pull_without_updater_assigns(self):
        self.kv.init(3, ones(4))
        self.assertAll(self.kv.pull(3), 4)
        self.kv.push(3, ones(8))
        self.assertAll(self.kv.pull(3), 8)

    def test_several_values_of_a_key_are_summed(self):
        self.kv.init(3, ones(0))
        self.kv.push(3, [ones()] * 4)
        self.assertAll(self.kv.pull(3), 4)
        self.kv.push([3, 3, 3], [ones()] * 3)
        self.assertAll(self.kv.pull(3), 3)

    def test_list_of_keys_with_list_of_values(self):
        self.kv.init([5, 7, 11], [ones(0)] * 3)
        self.kv.push([5, 7, 11], [ones(4)] * 3)
        self.assertAll(self.kv.pull([5, 7, 11]), 4)
        self.kv.push([5, 7, 11], [[ones(2)] * 4] * 3)
        self.assertAll(self.kv.pull([5, 7, 11]), 8)

    def test_tuples_do_as_lists_do(self):
        self.kv.init((5, 7), (ones(1), ones(2)))
        self.kv.push((5, 7), ((ones(), ones()), ones(3)))
        self.assertAll(self.kv.pull((5, 7), out=tuple(outs := empty(2)))[0], 2)
        self.assertAll(outs[1], 3)

    def test_init_after_a_push_of_another_key(self):
        self.kv.init('1', ones(0))
        self.kv.push('1', [ones()] * 4)
        self.assertAll(self.kv.pull('1'), 4)
        self.kv.init('2', ones(0))
        self.assertAll(self.kv.pull('2'), 0)

    def test_pull_fills_several_outputs(self):
        self.kv.init([5, 7], [ones(5), ones(7)])
        outs = empty(4)
        self.assertIs(self.kv.pull(5, out=outs), outs)
        self.assertAll(outs, 5)
        pairs = [empty(2), empty(2)]
        self.kv.pull([5, 7], out=pairs)
        self.assertAll(pairs[0], 5)
        self.assertAll(pairs[1], 7)

    def test_pushpull_into_outputs_and_in_place(self):
        self.kv.init(3, ones(0))
        outs, values = empty(3), [ones() for _ in range(4)]
        self.kv.pushpull(3, values, out=outs)
        self.assertAll(outs, 4)
        self.kv.pushpull(3, values)
        self.assertAll(values, 4)
        self.kv.init([5, 7], [ones(0)] * 2)
        lists = [[ones(2) for _ in range(4)] for _ in range(2)]
        self.kv.pushpull([5, 7], lists)
        self.assertAll(sum(lists, []), 8)

    def test_broadcast_inits_and_pulls(self):
        one, three = np.empty(SHAPE, F32), empty(3)
        self.kv.broadcast(3, ones(), out=one)
        self.kv.broadcast(6, ones(), out=three)
        self.assertAll([one] + three, 1)
        pairs = [empty(2), empty(2)]
        self.kv.broadcast([8, 9], [ones()] * 2, out=pairs)
        self.assertAll(sum(pairs, []), 1)
        with self.refused(errors.AlreadyExists):
            self.kv.broadcast(3, ones(), out=one)

    def test_init_copies_and_pull_gives_an_array_of_its_own(self):
        mine = ones(2)
        self.kv.init(3, mine)
        mine[:] = 5
        pulled = self.kv.pull(3)
        self.assertAll(pulled, 2)
        pulled[:] = 6
        self.assertAll(self.kv.pull(3), 2)
        pushed = ones(7)
        self.kv.push(3, pushed)
        pushed[:] = 8
        self.assertAll(self.kv.pull(3), 7)

    def test_dtypes_keep_shape_and_dtype(self):
        for i, name in enumerate(DTYPES):
            with self.subTest(name):
                self.kv.init(i, ones(3, (2, 3), name))
                self.kv.push(i, [ones(2, (2, 3), name), ones(5, (2, 3), name)])
                got = self.kv.pull(i)
                self.assertEqual((got.dtype, got.shape), (np.dtype(name), (2, 3)))
                self.assertAll(got, 7)

    def test_finite_numbers_never_become_infinite(self):
        for name, dtype, most, beyond in (('float16', np.float16, 65519, 65520), ('float32', np.float32, 3.4028235e38, 1e39),
                                          ('bfloat16', paramd.bfloat16, 3.3895e38, 3.4e38)):
            self.kv.init(name, np.zeros(2, dtype))
            self.kv.set(name, [most, float('-inf')])
            kept = self.kv.pull(name)
            kept = paramd.from_bfloat16(kept) if name == 'bfloat16' else kept
            self.assertEqual(np.isfinite(kept).tolist(), [True, False])
            for call in (self.kv.set, self.kv.push):
                with self.assertRaisesRegex(errors.InvalidArgument, rf'at index \(1,\) is too large for {name}'):
                    call(name, [1, beyond])
        for number in (1e39, 10**40, np.float64(-1e39).item()):
            with self.assertRaisesRegex(errors.InvalidArgument, 'is too large for float32'):
                self.kv.init('x', number)
        self.assertNotIn('x', self.kv)

    def test_numbers_take_the_dtype_of_the_key(self):
        self.kv.init('f', 2)
        self.assertEqual(self.kv.pull('f').dtype, F32)
        self.assertEqual(self.kv.pull('f').shape, ())
        self.kv.init('d', np.float64(2))
        self.assertEqual(self.kv.describe('d').dtype, np.float64)
        self.kv.init('i', np.zeros(3, np.int32))
        self.kv.push('i', [1, 2, 3])
        self.assertEqual(self.kv.pull('i').tolist(), [1, 2, 3])
        self.kv.push('i', [[1, 2, 3], np.ones(3, np.int32)])
        self.assertEqual(self.kv.pull('i').tolist(), [2, 3, 4])
        for wrong in ([1.5, 2, 3], [2**40, 0, 0], [float('nan'), 0, 0]):
            with self.refused(errors.InvalidArgument, words='int32'):
                self.kv.push('i', wrong)
        self.kv.init(['a', 'b'], [1.5, [1, 2]])
        self.assertEqual(self.kv.pull(['a', 'b'])[1].tolist(), [1, 2])

    def test_array_kinds_that_are_not_plain_are_copied(self):
        base = np.arange(24, dtype=F32).reshape(4, 6)
        unaligned = np.frombuffer(b'x' + base.tobytes(), np.uint8)[1:].view(F32).reshape(4, 6)
        frozen = base.copy()
        frozen.flags.writeable = False
        kinds = {'transposed': base.T, 'sliced': base[::2, 1:5], 'reversed': base[::-1, ::-1],
                 'fortran': np.asfortranarray(base), 'big-endian': base.astype('>f4'), 'unaligned': unaligned,
                 'read-only': frozen, 'repeated': np.broadcast_to(F32(3), (4, 6))}
        for name, kind in kinds.items():
            with self.subTest(name):
                self.kv.init(name, kind)
                self.assertEqual(self.kv.pull(name).tolist(), kind.tolist())
                self.kv.push(name, kind)
                self.assertEqual(self.kv.pull(name).tolist(), kind.tolist())

    def test_outputs_that_are_not_plain_are_filled(self):
        want = np.arange(24, dtype=F32).reshape(4, 6)
        self.kv.init(3, want)
        room = np.zeros((8, 12), F32)
        outs = [np.zeros((6, 4), F32).T, room[::2, ::2], np.zeros((4, 6), '>f4'), np.zeros((4, 6), F32, order='F')]
        self.kv.pull(3, out=outs)
        for out in outs:
            self.assertEqual(out.tolist(), want.tolist())
        self.assertAll(room[1::2], 0)
        self.assertAll(room[:, 1::2], 0)

    def test_buffers_array_interface_and_dlpack(self):
        class Interface:
            def __init__(self, of):
                self.of, self.__array_interface__ = of, of.__array_interface__

        class Dlpack:
            def __init__(self, of):
                self.of = of

            def __dlpack__(self, **options):
                return self.of.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.of.__dlpack_device__()
        self.kv.init(3, array.array('f', [1, 2, 3]))
        out = array.array('f', [0, 0, 0])
        self.kv.pull(3, out=out)
        self.assertEqual(out.tolist(), [1, 2, 3])
        self.kv.push(3, Interface(ones(4, (3,))))
        held = Interface(np.zeros(3, F32))
        self.kv.pull(3, out=held)
        self.assertAll(held.of, 4)
        self.kv.push(3, [memoryview(array.array('f', [1, 1, 1])), Dlpack(ones(6, (3,)))])
        self.assertAll(self.kv.pull(3), 7)
        with self.refused(errors.InvalidArgument, words='numpy'):
            self.kv.pull(3, out=Dlpack(np.zeros(3, F32)))

    def test_dtypes_without_meaning_are_refused_with_a_cure(self):
        wrong = {'bool': (np.zeros(2, bool), 'uint8'), 'complex': (np.zeros(2, complex), 'real'),
                 'object': (np.zeros(2, object), 'numbers'), 'uint16': (np.zeros(2, np.uint16), 'astype'),
                 'str': (np.array(['a']), 'astype'), 'truth': (True, 'uint8'), 'none': (None, 'numbers'),
                 'masked': (np.ma.zeros(2), 'filled'), 'ragged': ([[1, 2], [3]], 'array'), 'text': ('abc', 'astype')}
        for name, (value, cure) in wrong.items():
            with self.subTest(name), self.refused(errors.InvalidArgument, words=cure):
                self.kv.init(3, value)
        self.assertEqual(self.kv.keys(), [])

    def test_outputs_that_cannot_be_filled_are_refused(self):
        self.kv.init(3, ones())
        frozen = ones(-1)
        frozen.flags.writeable = False
        for out in (frozen, 3.0, 'text', object(), [], b'1234', [ones(-1), frozen]):
            with self.refused(errors.InvalidArgument):
                self.kv.pull(3, out=out)
        with self.refused(errors.InvalidArgument):
            self.kv.pushpull(3, 5.0)
        self.assertEqual(self.kv.version(3), 1)

    def test_pushpull_into_a_wrong_output_pushes_nothing(self):
        self.kv.init(3, ones())
        for out in (ones(shape=(2, 2)), ones(dtype=np.float64)):
            with self.refused(errors.InvalidArgument, 'shape-mismatch'):
                self.kv.pushpull(3, ones(5), out=out)
        self.assertEqual(self.kv.version(3), 1)

    def test_arrays_of_no_elements_and_of_no_dimensions(self):
        for i, shape in enumerate([(), (0,), (0, 3), (1,) * 8]):
            with self.subTest(shape):
                self.kv.init(i, ones(2, shape))
                self.kv.push(i, ones(3, shape))
                got = self.kv.pull(i)
                self.assertEqual(got.shape, shape)
                self.assertAll(got, 3)
        with self.refused(errors.InvalidArgument, words='8'):
            self.kv.init(9, ones(1, (1,) * 9))

    def test_big_arrays(self):
        big = np.arange(5_000_000, dtype=F32).reshape(1000, 5000)
        self.kv.init('big', big)
        self.kv.push('big', [big, big])
        self.assertTrue((self.kv.pull('big') == big + big).all())

    def test_set_replaces_without_the_updater(self):
        self.kv.set_updater('add')
        self.kv.init(3, ones())
        self.kv.set(3, ones(9))
        self.assertAll(self.kv.pull(3), 9)
        self.assertEqual(self.kv.version(3), 2)

    def test_delete_forgets_a_key(self):
        self.kv.init([3, 4], [ones(), ones()])
        old = self.kv.describe(3).id
        self.kv.delete(3)
        with self.refused(errors.NotFound, 'no-such-key'):
            self.kv.pull(3)
        self.assertEqual(self.kv.keys(), [4])
        self.kv.init(3, ones(2, (5,), np.float64))
        self.assertEqual(self.kv.pull(3).shape, (5,))
        self.assertNotEqual(self.kv.describe(3).id, old)

    # -- keys

    def test_names_of_any_script_are_keys(self):
        names = ['gewicht/ü', '重み', '🚀', 'a b"c\\d\n', 'x' * 512]
        self.kv.init(names, [ones(i) for i in range(len(names))])
        for i, name in enumerate(names):
            self.assertAll(self.kv.pull(name), i)
        self.assertEqual(sorted(self.kv.keys()), sorted(names))

    def test_numbers_of_64_bits_are_keys(self):
        keys = [2**63 - 1, -2**63, 0, -1, np.int32(7)]
        self.kv.init(keys, [ones(i) for i in range(len(keys))])
        for i, key in enumerate(keys):
            self.assertAll(self.kv.pull(key), i)
        self.assertEqual(sorted(self.kv.keys()), sorted(int(k) for k in keys))

    def test_what_is_no_key_is_refused(self):
        for key in (1.5, None, True, b'a', 2**63, '', 'a\0b', 'x' * 513, '\ud800', {}, [3, None]):
            with self.subTest(f'{key!r:.20}'), self.refused(errors.InvalidArgument):
                self.kv.init(key, [ones(), ones()] if isinstance(key, list) else ones())
        self.assertEqual(self.kv.keys(), [])

    def test_what_is_no_name_is_refused_by_what_it_is(self):
        for name, words in (('a\0b', "'a\\x00b' has a NUL in it"), ('x\ud800', 'surrogate pair at position 1')):
            for call in (self.kv.pull, self.kv.version, lambda key: self.kv.push(key, ones()),
                         lambda key: self.kv.init(key, ones())):
                with self.refused(errors.InvalidArgument, words=('key ', words)):
                    call(name)
            for what, call in (('barrier ', self.kv.barrier), ('store type ', paramd.kv.create),
                               ('store = ', lambda text: paramd.kv.create('local', store=text))):
                with self.refused(errors.InvalidArgument, words=(what, words)):
                    call(name)
            self.assertNotIn(name, self.kv)

    def test_iterating_and_containing(self):
        self.kv.init([3, 5], [ones(), ones()])
        self.assertEqual(sorted(self.kv), [3, 5])
        self.assertIn(3, self.kv)
        self.assertNotIn(4, self.kv)
        self.assertNotIn('3', self.kv)
        self.assertNotIn(3.5, self.kv)

    def test_keys_are_listed_beyond_one_page(self):
        names = list(range(2500))
        self.kv.init(names, [1.0] * len(names))
        self.assertEqual(sorted(self.kv.keys()), names)

    def test_empty_lists_do_nothing(self):
        self.kv.init([], [])
        self.kv.push([], [])
        self.assertEqual(self.kv.pull([]), [])
        self.assertEqual(self.kv.describe([]), [])
        self.kv.wait([])
        self.kv.delete([])

    # -- refusals that change nothing

    def test_second_init_is_a_duplicate_and_nothing_is_applied(self):
        self.kv.init(3, ones(2))
        with self.refused(errors.AlreadyExists, 'key-exists', words=['duplicate init', '3']):
            self.kv.init([4, 3], [ones(5), ones(5)])
        self.assertAll(self.kv.pull(3), 2)
        self.assertEqual(self.kv.keys(), [3])

    def test_a_broadcast_with_an_output_that_does_not_fit_creates_nothing(self):
        for out in (np.empty((1,), F32), np.empty(SHAPE, np.float64), [np.empty(SHAPE, F32), np.empty((1,), F32)]):
            with self.refused(errors.InvalidArgument, 'shape-mismatch', 'key 3'):
                self.kv.broadcast(3, ones(2), out)
        self.assertNotIn(3, self.kv)

    def test_what_mxnet_has_and_this_has_not_says_what_to_do(self):
        for name, args, cure in (('row_sparse_pull', (3,), 'pull(key)'), ('set_gradient_compression', ({},), 'float16'),
                                 ('set_barrier_before_exit', (True,), 'barrier()'), ('run_server', (), 'paramd --listen'),
                                 ('_send_command_to_servers', (0, ''), 'set_updater()')):
            with self.refused(errors.Unimplemented, 'unimplemented', [name, cure]):
                getattr(self.kv, name)(*args)
        self.assertTrue(self.kv.is_capable('optimizer'))
        with self.refused(ValueError, 'invalid-argument', 'optimizer'):
            self.kv.is_capable('sparse')
        with self.refused(errors.InvalidArgument, 'invalid-argument', ['barrier', 'a str']):
            self.kv.barrier(3)
        self.assertEqual(self.kv.num_dead_node(timeout=3600), 0)
        for key in (True, False, ''):
            with self.refused(errors.InvalidArgument, 'invalid-argument', 'key'):
                self.kv.init(key, ones())
        self.kv.init(3, ones())
        with self.refused(errors.InvalidArgument, 'invalid-argument', 'key 3 has an empty list'):
            self.kv.push(3, [])
        self.kv.push([], [])

    def test_a_key_twice_in_one_init_is_refused(self):
        for keys, values in (([6, 6], [ones(), ones()]), (6, [ones(), ones()])):
            with self.refused(errors.InvalidArgument):
                self.kv.init(keys, values)
        self.assertEqual(self.kv.keys(), [])

    def test_key_types_do_not_mix(self):
        self.kv.init(3, ones(2))
        mixed = 'mixed-key-types'
        for call in (lambda: self.kv.init('a', ones()), lambda: self.kv.push('a', ones()), lambda: self.kv.pull('a'),
                     lambda: self.kv.init(['a', 'b'], [ones()] * 2), lambda: self.kv.push(['a', 'b'], [ones()] * 2),
                     lambda: self.kv.pull('a', out=ones()), lambda: self.kv.push([3, 'a'], [ones()] * 2)):
            with self.refused(errors.FailedPrecondition, mixed, 'Mixed key types are not allowed'):
                call()
        self.assertAll(self.kv.pull(3), 2)
        names = self.open()
        names.init('a', ones())
        with self.refused(errors.FailedPrecondition, mixed):
            names.push(3, ones())

    def test_uninitialised_keys_are_not_found_and_nothing_is_touched(self):
        self.kv.init(3, ones(2))
        out = ones(-1)
        for call in (lambda: self.kv.push(4, ones()), lambda: self.kv.push([3, 4], [ones(), ones()]),
                     lambda: self.kv.pull(4), lambda: self.kv.pull([3, 4], out=[out, out]),
                     lambda: self.kv.set(4, ones()), lambda: self.kv.version(4), lambda: self.kv.push(4, 1.0)):
            with self.refused(errors.NotFound, 'no-such-key', ['4', 'initialised']):
                call()
        self.assertAll(out, -1)
        self.assertEqual(self.kv.version(3), 1)

    def test_lists_of_unequal_length_are_refused(self):
        self.kv.init([3, 4], [ones(), ones()])
        for call in (lambda: self.kv.init([6, 7], [ones()]), lambda: self.kv.push([3, 4], [ones()] * 3),
                     lambda: self.kv.pull([3, 4], out=[ones()]), lambda: self.kv.push([3, 4], ones()),
                     lambda: self.kv.push(3, []), lambda: self.kv.push([3, 4], [ones(), []])):
            with self.refused(errors.InvalidArgument):
                call()
        self.assertEqual(self.kv.version([3, 4]), [1, 1])

    def test_wrong_shapes_and_dtypes_name_both(self):
        self.kv.init(3, ones(2, (2, 3)))
        for value in (ones(1, (3, 2)), ones(1, (6,)), 1.0):
            with self.refused(errors.InvalidArgument, 'shape-mismatch', ['2', '3']):
                self.kv.push(3, value)
        with self.refused(errors.InvalidArgument, 'shape-mismatch', ['float32', 'float64']):
            self.kv.push(3, np.ones((2, 3)))
        with self.refused(errors.InvalidArgument, 'shape-mismatch'):
            self.kv.push(3, [ones(1, (2, 3)), ones(1, (3, 2))])
        with self.refused(errors.InvalidArgument, 'shape-mismatch'):
            self.kv.pull(3, out=ones(1, (3, 2)))
        self.assertEqual(self.kv.version(3), 1)

    # -- updaters

    def test_documents_in_all_forms(self):
        want = {'type': 'sgd', 'learning_rate': 0.125}
        for form, numbers in ((want, {}), ('sgd', {'learning_rate': 0.125}), (('sgd', {'learning_rate': 0.125}), {}),
                              (paramd.optimizer.create('sgd', learning_rate=np.float64(0.125)), {})):
            self.kv.set_updater(None)
            self.kv.set_optimizer(form, **numbers)
            got = self.kv.get_updater()
            self.assertEqual({name: got[name] for name in want}, want)
        self.kv.init(3, ones(1))
        self.kv.push(3, [ones(), ones()])
        self.assertAll(self.kv.pull(3), 0.75)
        self.kv.set_updater(None)
        self.assertEqual(self.kv.get_updater()['type'], 'assign')
        self.kv.push(3, ones(5))
        self.assertAll(self.kv.pull(3), 5)

    def test_the_test_updater_adds_the_rescaled_sum(self):
        self.kv.init(3, ones(4))
        self.kv.set_updater('test', rescale_grad=2)
        self.kv.push(3, ones())
        self.assertAll(self.kv.pull(3), 6)
        self.kv.set_updater('test', rescale_grad=1)
        for _ in range(4):
            self.kv.push(3, [ones()] * 4)
        self.assertAll(self.kv.pull(3), 22)

    def test_wrong_documents_change_nothing(self):
        self.kv.set_optimizer('sgd', learning_rate=0.5)
        before = self.kv.get_updater()
        for call in (lambda: self.kv.set_updater('sdg'), lambda: self.kv.set_updater('sgd', lerning_rate=1),
                     lambda: self.kv.set_updater({'learning_rate': 1}), lambda: self.kv.set_updater(3),
                     lambda: self.kv.set_updater('sgd', learning_rate=object()),
                     lambda: self.kv.set_updater('sgd', learning_rate=float('nan')),
                     lambda: self.kv.set_optimizer(print)):
            with self.refused(errors.InvalidArgument):
                call()
        self.assertEqual(self.kv.get_updater(), before)

    # -- versions, waiting

    def test_versions_count_changes(self):
        self.kv.init([3, 4], [ones(), ones()])
        self.kv.push(3, ones())
        self.kv.wait(3)
        self.assertEqual(self.kv.version([3, 4]), [2, 1])
        info = self.kv.describe(3)
        self.assertEqual((info.dtype, info.shape, info.version), (np.dtype(F32), SHAPE, 2))

    def test_pull_if_newer(self):
        self.kv.init([3, 4], [ones(3), ones(4)])
        version, value = self.kv.pull_if_newer(3, 0)
        self.assertEqual(version, 1)
        self.assertAll(value, 3)
        self.assertEqual(self.kv.pull_if_newer(3, 1), (1, None))
        self.assertEqual(self.kv.pull_if_newer(3, 1, wait=0.05), (1, None))
        out = ones(-1)
        self.kv.pull_if_newer(3, 1, out=out)
        self.assertAll(out, -1)
        self.kv.push(3, ones(5))
        (first, new), (second, old) = self.kv.pull_if_newer([3, 4], [1, 1], wait=True)
        self.assertEqual((first, second, old), (2, 1, None))
        self.assertAll(new, 5)
        for versions in ([1], [-1, 0], ['a', 0], 5):
            with self.refused(errors.InvalidArgument):
                self.kv.pull_if_newer([3, 4], versions)

    def test_wait_and_barrier_alone(self):
        self.kv.init(3, ones())
        self.kv.push(3, ones(2))
        self.kv.wait(3)
        self.kv.wait([3])
        self.kv.wait()
        self.kv.barrier()
        self.kv.barrier('name', timeout=5)

    # -- life

    def test_facts_of_a_lone_worker(self):
        self.assertEqual((self.kv.rank, self.kv.num_workers, self.kv.num_dead_node()), (0, 1, 0))
        self.assertIn('rank 0 of 1', repr(self.kv))

    def test_close_twice_and_use_after_close(self):
        self.kv.init(3, ones())
        self.kv.close()
        self.kv.close()
        for call in (lambda: self.kv.pull(3), lambda: self.kv.push(3, ones()), lambda: self.kv.barrier(),
                     lambda: self.kv.rank, lambda: self.kv.set_updater(None), lambda: self.kv.leave()):
            with self.refused(errors.FailedPrecondition, 'closed'):
                call()
        self.assertIn('closed', repr(self.kv))

    def test_with_closes_also_after_an_error(self):
        with self.assertRaises(ZeroDivisionError), self.open() as kv:
            raise ZeroDivisionError
        with self.refused(errors.FailedPrecondition, 'closed'):
            kv.keys()

    def test_a_store_does_not_cross_a_fork(self):
        self.kv.init(3, ones(2))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.kv.pull(3)
            except errors.FailedPrecondition as error:
                self.kv.close()
                status = 0 if error.reason == 'used-after-fork' else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertAll(self.kv.pull(3), 2)

    def test_a_store_cannot_be_pickled(self):
        with self.assertRaises(TypeError):
            pickle.dumps(self.kv)

    def test_threads_share_a_store(self):
        self.kv.set_updater('add')
        self.kv.init(list(range(4)), [ones(0)] * 4)
        failed = []

        def work(key):
            try:
                for _ in range(50):
                    self.kv.push(key, ones())
                    self.kv.pull(key)
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(CHILD_S)
        self.assertEqual(failed, [])
        self.assertAll(self.kv.pull([0, 1, 2, 3]), 50)

    def test_close_ends_a_wait_of_another_thread(self):
        self.kv.init(3, ones())
        caught = []

        def wait():
            try:
                self.kv.pull_if_newer(3, 1, wait=True)
            except errors.FailedPrecondition as error:
                caught.append(error.reason)
        thread = threading.Thread(target=wait)
        thread.start()
        while self.kv._active == 0:
            pass
        self.kv.close()
        thread.join(CHILD_S)
        self.assertEqual(caught, ['closed'])

    # -- Ctrl-C: a process is sent SIGINT once it sleeps in a wait

    def interrupted(self, wait):
        """What a process prints that runs `wait`, gets SIGINT there, and goes on."""
        return interrupt_child(f'''
kv = {self.opener()}
kv.init(3, numpy.ones(4, numpy.float32))
say('ready')
try:
    {wait}
except KeyboardInterrupt:
    say('interrupted')
kv.push(3, numpy.full(4, 7, numpy.float32))
say(kv.pull(3).tolist())
kv.close()
''')

    def test_ctrl_c_ends_a_wait_for_a_newer_version(self):
        out = self.interrupted('kv.pull_if_newer(3, 1, wait=True)')
        self.assertEqual(out, ['interrupted', '[7.0, 7.0, 7.0, 7.0]'])


def interrupt_child(script):
    """Runs a script that says 'ready' and then waits; answers the lines after that."""
    prelude = (f'import sys; sys.path.insert(0, {str(ROOT / "api" / "python")!r})\n'
               'import numpy, paramd\ndef say(what): print(what, flush=True)\n')
    with subprocess.Popen([sys.executable, '-c', prelude + script], stdout=subprocess.PIPE, text=True) as child:
        try:
            if child.stdout.readline() != 'ready\n':
                raise AssertionError('the child did not get to its wait')
            while pathlib.Path(f'/proc/{child.pid}/stat').read_text().rpartition(')')[2].split()[0] != 'S':
                pass
            child.send_signal(signal.SIGINT)
            return child.communicate(timeout=CHILD_S)[0].splitlines()
        finally:
            child.kill()


# ---- in this process ------------------------------------------------------------------------------------------------

class Local(Forms, Case):

    def open(self, **options):
        return self.create('local', **options)

    def opener(self):
        return 'paramd.kv.create("local")'

    def test_type_is_the_given_name_in_lower_case(self):
        for name in ('local_allreduce_cpu', 'LOCAL', 'device', 'local_update_cpu'):
            self.assertEqual(self.create(name).type, name.lower())
        self.assertEqual(paramd.create().type, 'local')
        self.assertEqual(self.create(name='local').type, 'local')

    def test_each_local_store_is_its_own(self):
        other = self.open()
        self.kv.init(3, ones())
        self.assertEqual(other.keys(), [])

    def test_unknown_types_are_refused_with_the_list(self):
        with self.refused(errors.InvalidArgument, words=['loacl', 'local']):
            paramd.kv.create('loacl')
        with self.assertRaises(TypeError):
            paramd.kv.create(3)

    def test_unknown_arguments_name_the_nearest(self):
        with self.assertRaisesRegex(TypeError, 'num_workers'):
            paramd.kv.create('local', num_worker=2)
        with self.assertRaisesRegex(TypeError, 'round_timeout'):
            paramd.kv.create('local', zzzzz=2)
        with self.assertRaisesRegex(TypeError, 'type'):
            paramd.kv.create('local', type='local')
        shown = inspect.signature(paramd.kv.create)
        self.assertTrue(str(shown).startswith(
            "(type='local', url=None, store='default', num_workers=None, worker_name=None, worker_id=None, "
            "round_timeout=60, on_reinit='error', async_default='assign', token=None"))

    def test_no_daemon_is_unavailable_with_the_cure(self):
        with self.refused(errors.Unavailable, words=['127.0.0.1:9', 'paramd']):
            paramd.kv.create('dist_async', url='tcp://127.0.0.1:9', connect_timeout=1)

    def test_exceptions_are_also_pythons_own(self):
        with self.assertRaises(KeyError) as caught:
            self.kv.pull(3)
        self.assertEqual((caught.exception.status, caught.exception.code), ('NOT_FOUND', 5))
        self.assertNotIn('"', str(caught.exception)[:1])
        self.assertTrue(issubclass(errors.InvalidArgument, ValueError))
        self.assertTrue(issubclass(errors.DeadlineExceeded, TimeoutError))
        self.assertTrue(issubclass(errors.Unavailable, ConnectionError))
        copied = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(copied), str(copied), copied.reason),
                         (errors.NotFound, str(caught.exception), 'no-such-key'))
        self.assertEqual(errors.make(99, 'x').code, 99)

    # -- a function as updater

    def test_function_gets_int_and_str_keys_and_changes_in_place(self):
        for keys in ([5, 7, 11], ['b', 'c', 'd']):
            kv, seen = self.open(), []

            def add(key, grad, stored):
                seen.append(key)
                stored += grad
            kv.init(keys, [ones(0)] * 3)
            kv.set_updater(add)
            kv.push(keys[0], [ones()] * 4)
            self.assertAll(kv.pull(keys[0]), 4)
            for _ in range(4):
                kv.push(keys[1:], [[ones()] * 4] * 2)
            self.assertAll(kv.pull(keys[1:]), 16)
            self.assertEqual(seen, [keys[0]] + keys[1:] * 4)
            self.assertIs(kv.get_updater(), add)

    def test_function_runs_once_a_key_in_the_order_of_keys(self):
        calls = []
        self.kv.init([12, 3, 7], [ones()] * 3)
        self.kv.set_updater(lambda key, grad, stored: calls.append((key, grad[0, 0])))
        self.kv.push([12, 3, 7, 3], [ones(i) for i in (1, 2, 3, 4)])
        self.assertEqual(calls, [(3, 6), (7, 3), (12, 1)])

    def test_arrays_of_a_function_may_be_kept(self):
        kept = []

        def keep(key, grad, stored):
            kept.append((grad, stored))
            stored *= 3
        self.kv.init(3, ones(2, (1000,)))
        self.kv.set_updater(keep)
        self.kv.push(3, ones(5, (1000,)))
        self.kv.close()
        self.assertAll(kept[0][0], 5)
        self.assertAll(kept[0][1], 6)

    def test_exceptions_of_a_function_come_out_of_push(self):
        class Mine(Exception):
            pass

        def fail(key, grad, stored):
            stored[:] = -1
            if key == 5:
                raise Mine('in the updater')
        self.kv.init([3, 5, 7], [ones(i) for i in (3, 5, 7)])
        self.kv.set_updater(fail)
        with self.assertRaisesRegex(Mine, 'in the updater'):
            self.kv.push([3, 5, 7], [ones()] * 3)
        self.assertEqual([a[0, 0] for a in self.kv.pull([3, 5, 7])], [-1, 5, 7])
        self.kv.set_updater(None)
        self.kv.push(5, ones(9))
        self.assertAll(self.kv.pull(5), 9)

    def test_ctrl_c_in_a_function_comes_out_of_push(self):
        def stop(key, grad, stored):
            raise KeyboardInterrupt
        self.kv.init(3, ones())
        self.kv.set_updater(stop)
        with self.assertRaises(KeyboardInterrupt):
            self.kv.push(3, ones(2))
        self.assertAll(self.kv.pull(3), 1)

    def test_a_function_may_not_use_its_store(self):
        reasons = []

        def use(key, grad, stored):
            for call in (lambda: self.kv.pull(key), lambda: self.kv.push(key, grad), self.kv.keys, self.kv.close,
                         lambda: self.kv.set_updater(None)):
                try:
                    call()
                except errors.FailedPrecondition as error:
                    reasons.append(error.reason)
        self.kv.init(3, ones())
        self.kv.set_updater(use)
        self.kv.push(3, ones())
        self.assertEqual(reasons, ['reentrant-call'] * 5)
        self.assertEqual(self.kv.keys(), [3])

    def test_functions_see_shapes_without_elements_or_dimensions(self):
        seen = []
        self.kv.init([1, 2], [ones(1, ()), ones(1, (0, 3))])
        self.kv.set_updater(lambda key, grad, stored: seen.append((grad.shape, stored.shape)))
        self.kv.push([1, 2], [ones(1, ()), ones(1, (0, 3))])
        self.assertEqual(seen, [((), ()), ((0, 3), (0, 3))])

    def test_pushpull_with_a_function(self):
        self.kv.init(3, ones(1))

        def double(key, grad, stored):
            stored += 2 * grad
        self.kv.set_updater(double)
        out = ones(0)
        self.kv.pushpull(3, ones(), out=out)
        self.assertAll(out, 3)

    def test_dead_stores_are_closed_by_the_collector(self):
        store = paramd.kv.create('local')
        store.init(3, ones())
        before = len(paramd.kv._opened)
        del store
        self.assertEqual(len(paramd.kv._opened), before - 1)

    def test_a_large_store_is_not_copied_on_the_way(self):
        # An array handed over as it is has its own address in what the library gets.
        value = ones()
        tensors = paramd.kv._arrays.Tensors([paramd.kv._arrays.as_input(value)])
        self.assertEqual(tensors.packed[0].data, value.ctypes.data)
        self.assertEqual(ctypes.string_at(tensors.packed[0].data, 4), value[0, :1].tobytes())


# ---- in a daemon ----------------------------------------------------------------------------------------------------

_stores = 0


def store_name():
    global _stores
    _stores += 1
    return f'store-{_stores}'


class Remote(Case):
    """A case with a daemon, one for all of its tests."""

    daemon_arguments = {}

    @classmethod
    def setUpClass(cls):
        cls.daemon = paramd.daemon.Daemon(**cls.daemon_arguments)
        cls.addClassCleanup(cls.daemon.stop)

    def join(self, name, kind='dist_sync', **options):
        return self.create(kind, url=self.daemon.url, store=name, **options)

    def pair(self, kind='dist_sync', **options):
        """Two workers of one new store, with key 3 at 0."""
        name = store_name()
        workers = [self.join(name, kind, num_workers=2, worker_name=w, **options) for w in ('left', 'right')]
        threads = [threading.Thread(target=w.init, args=(3, ones(0))) for w in workers]
        for t in threads:
            t.start()
        for t in threads:
            t.join(CHILD_S)
        return workers


class Daemon(Forms, Remote):

    kind = 'dist_sync'

    def open(self, **options):
        return self.join(store_name(), self.kind, num_workers=1, **options)

    def opener(self):
        return (f'paramd.kv.create({self.kind!r}, url={self.daemon.url!r}, store={store_name()!r}, num_workers=1)')

    def test_a_function_that_changes_nothing_is_refused(self):
        self.kv.init(3, ones())
        with self.refused(errors.Unimplemented, words='leaves stored as it is'):
            self.kv.set_updater(lambda key, grad, stored: None)
        self.assertEqual(self.kv.get_updater()['type'], 'assign')

    def test_reinit_of_an_earlier_jobs_keys(self):
        name = store_name()
        with self.join(name, num_workers=1) as first:
            first.init(3, ones(2))
        with self.join(name) as second:
            with self.refused(errors.AlreadyExists, 'key-exists', 'replace'):
                second.init(3, ones(5))
            self.assertAll(second.pull(3), 2)
        with self.join(name, on_reinit='keep') as third:
            third.init(3, ones(5))
            self.assertAll(third.pull(3), 2)
        with self.join(name, on_reinit='replace') as fourth:
            fourth.init(3, ones(5, (7,), np.float64))
            self.assertAll(fourth.pull(3), 5)
            self.assertEqual(fourth.pull(3).dtype, np.float64)

    def test_stated_options_that_disagree_name_both(self):
        name = store_name()
        self.join(name, num_workers=1, round_timeout=30)
        with self.refused(errors.FailedPrecondition, 'store-differs', ['30', '40']):
            self.join(name, round_timeout=40)
        with self.refused(errors.FailedPrecondition, 'store-differs'):
            self.join(name, 'dist_async')

    def test_local_with_a_url_lives_in_the_daemon(self):
        name = store_name()
        kv = self.join(name, 'local')
        kv.init(3, ones(4))
        self.assertEqual(kv.type, 'local')
        self.assertAll(kv.pull(3), 4)
        with self.refused(errors.Unimplemented):
            kv.set_updater(print)


class DaemonAsync(Daemon):
    kind = 'dist_async'


class DaemonWithoutBulk(Daemon):
    daemon_arguments = {'bulk': False}


class Doors(Case):
    def test_one_that_is_off_has_no_address(self):
        with paramd.daemon.Daemon('--admin', 'off', '--probe', 'off', bulk=False) as daemon:
            self.assertTrue(daemon.url)
            self.assertEqual([daemon.bulk, daemon.admin, daemon.probe], [None, None, None])


class Workers(Remote):
    """Several workers of one store."""

    def test_sync_sums_one_contribution_of_each(self):
        left, right = self.pair()
        self.assertEqual(sorted([left.rank, right.rank]), [0, 1])
        left.push(3, [ones(1), ones(2)])
        right.push(3, ones(4))
        self.assertAll(left.pull(3), 7)
        self.assertAll(right.pull(3), 7)
        self.assertEqual(left.version(3), 2)

    def test_async_applies_each_push(self):
        left, right = self.pair('dist_async')
        left.set_optimizer('sgd', learning_rate=0.125)
        right.set_optimizer('sgd', learning_rate=0.125)
        for _ in range(100):
            left.push(3, ones())
            right.push(3, ones())
        left.wait()
        right.wait()
        self.assertAll(left.pull(3), -25)

    def test_barrier_lets_all_pass_and_names_the_missing(self):
        left, right = self.pair()
        with self.refused(errors.DeadlineExceeded, words='right'):
            left.barrier(timeout=1)
        thread = threading.Thread(target=right.barrier, args=('next',))
        thread.start()
        left.barrier('next', timeout=CHILD_S)
        thread.join(CHILD_S)
        self.assertFalse(thread.is_alive())

    def test_a_failed_round_names_who_did_not_push(self):
        left, _ = self.pair(round_timeout=1)
        left.push(3, ones())
        with self.refused(errors.ParamdError, words='right'):
            left.pull(3)

    def test_a_wait_hears_of_another_workers_push(self):
        left, right = self.pair('dist_async')
        got = []
        thread = threading.Thread(target=lambda: got.append(left.pull_if_newer(3, 1, wait=True)))
        thread.start()
        right.push(3, ones(6))
        thread.join(CHILD_S)
        version, value = got[0]
        self.assertEqual(version, 2)
        self.assertAll(value, 6)

    def test_a_key_made_anew_by_another_worker_is_pulled_in_its_new_shape(self):
        name = store_name()
        writer = self.join(name, 'dist_async')
        reader = self.join(name, 'dist_async')
        writer.init(3, ones(1, (2,)))
        self.assertEqual(reader.pull(3).shape, (2,))
        writer.delete(3)
        writer.init(3, ones(5, (3, 3), np.float64))
        self.assertAll(writer.pull(3), 5)
        self.assertEqual(reader.pull(3).shape, (3, 3))
        out = np.zeros((3, 3))
        reader.pushpull(3, ones(6, (3, 3), np.float64), out=out)
        self.assertAll(out, 6)

    def test_a_trainer_that_was_suspended_goes_on_and_no_push_is_lost_or_doubled(self):
        name, code = store_name(), (
            'import sys, numpy as np; sys.path.insert(0, sys.argv[1]); import paramd\n'
            'kv = paramd.kv.create("dist_async", url=sys.argv[2], store=sys.argv[3], num_workers=1, worker_timeout=1)\n'
            'kv.init([0, 1], [np.zeros(4, "float32")] * 2); kv.set_updater({"type": "add"})\n'
            'kv.push(0, np.ones(4, "float32")); print("ready", flush=True); sys.stdin.readline()\n'
            'kv.push(0, np.ones(4, "float32")); kv.push(1, np.ones(4, "float32")); kv.wait(); kv.barrier()\n'
            'print(*[int(v[0]) for v in kv.pull([0, 1])], flush=True)')
        child = subprocess.Popen([sys.executable, '-c', code, str(ROOT / 'api' / 'python'), self.daemon.url, name],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), 'ready\n')
        looker = self.join(store_name(), 'dist_async')
        store = next(s['id'] for s in looker._call('ListStores', {})['items'] if s['store'] == name)
        child.send_signal(signal.SIGSTOP)
        end = time.monotonic() + CHILD_S
        while looker._call('Workers', {'store': store})['items'][0]['state'] != 'dead':
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        child.send_signal(signal.SIGCONT)
        self.assertEqual(child.communicate('go\n', timeout=CHILD_S)[0], '2 1\n')
        self.assertEqual(child.returncode, 0)

    def test_leave_frees_the_others_round(self):
        left, right = self.pair()
        left.push(3, ones(5))
        right.leave()
        self.assertAll(left.pull(3), 5)

    def test_ctrl_c_ends_blocked_pulls_and_barriers(self):
        for wait in ('a.pull(3)', 'a.wait(3)', 'a.barrier()', 'a.pushpull(3, numpy.ones(4, numpy.float32))'):
            with self.subTest(wait):
                name = store_name()
                out = interrupt_child(f'''
a, b = (paramd.kv.create('dist_sync', url={self.daemon.url!r}, store={name!r}, num_workers=2) for _ in range(2))
a.init(3, numpy.zeros(4, numpy.float32))
b.init(3, numpy.zeros(4, numpy.float32))
a.push(3, numpy.ones(4, numpy.float32))
say('ready')
try:
    {wait}
except KeyboardInterrupt:
    say('interrupted')
b.push(3, numpy.ones(4, numpy.float32))
say(b.pull(3).tolist())
''')
                self.assertEqual(out, ['interrupted', '[2.0, 2.0, 2.0, 2.0]'])

    def test_ctrl_c_ends_a_create_that_gets_no_answer(self):
        with socket.create_server(('127.0.0.1', 0)) as mute:
            out = interrupt_child(f'''
say('ready')
try:
    paramd.kv.create('dist_async', url='tcp://127.0.0.1:{mute.getsockname()[1]}', connect_timeout=600)
except KeyboardInterrupt:
    say('interrupted')
''')
        self.assertEqual(out, ['interrupted'])

    def test_ctrl_c_ends_calls_that_a_stopped_daemon_does_not_answer(self):
        for call in ("kv.set_updater('add')", 'kv.delete(3)', 'kv.leave()', 'kv.keys()', 'kv.push(3, a)', 'kv.close()'):
            with self.subTest(call), paramd.daemon.Daemon() as daemon:
                try:
                    out = interrupt_child(f'''
import os, signal
kv = paramd.kv.create('dist_sync', url={daemon.url!r}, num_workers=1)
a = numpy.ones(3, numpy.float32)
kv.init(3, a)
os.kill({daemon.process.pid}, signal.SIGSTOP)
say('ready')
try:
    {call}
    say('done')
except KeyboardInterrupt:
    say('interrupted')
''')
                finally:
                    daemon.process.send_signal(signal.SIGCONT)
                # close() ends by itself after a second, so that both may come first there.
                self.assertIn(out, [['interrupted'], ['done']] if 'close' in call else [['interrupted']])

    def leaving(self, start):
        """A worker in another process, started and ended by `start`, does not hold up the round."""
        name = store_name()
        stay = self.join(name, num_workers=1, worker_timeout=600)
        stay.init(3, ones(0))
        start(name)
        stay.push(3, ones(4))
        self.assertAll(stay.pull(3), 4)
        stay.barrier(timeout=CHILD_S)

    def test_a_process_leaves_at_its_end(self):
        def run(name):
            subprocess.run([sys.executable, '-c', f'''
import sys; sys.path.insert(0, {str(ROOT / "api" / "python")!r})
import paramd
kv = paramd.kv.create('dist_sync', url={self.daemon.url!r}, store={name!r})
assert kv.num_workers == 2 or kv.rank == 1
'''], check=True, timeout=CHILD_S)
        self.leaving(run)

    def test_a_child_of_multiprocessing_leaves_at_its_end(self):
        def run(name):
            child = multiprocessing.get_context('fork').Process(target=join_and_return, args=(self.daemon.url, name))
            child.start()
            child.join(CHILD_S)
            self.assertEqual(child.exitcode, 0)
        self.leaving(run)


_kept = []


def join_and_return(url, name):
    _kept.append(paramd.kv.create('dist_sync', url=url, store=name))


# ---- examples -------------------------------------------------------------------------------------------------------

EXAMPLES = ROOT / 'api' / 'python' / 'examples'


def run_example(name, *arguments):
    return subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True,
                          timeout=CHILD_S)


def children_of(process):
    """Ids of the processes that this one has started."""
    parents = {}
    for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(')')[2].split()[1])
    return [child for child, parent in parents.items() if parent == process]


class Tutorial(Remote):

    def assertHolds(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout.splitlines()[-1], r'^all \d+ checks hold$')

    def test_holds_in_this_process(self):
        self.assertHolds(run_example('kvstore_tutorial.py'))

    def test_holds_on_a_daemon_and_a_second_run_needs_replace(self):
        for kind in ('dist_sync', 'dist_async'):
            with paramd.daemon.Daemon() as daemon, self.subTest(kind):
                where = ('--url', daemon.url, '--type', kind)
                self.assertHolds(run_example('kvstore_tutorial.py', *where))
                again = run_example('kvstore_tutorial.py', *where)
                self.assertEqual(again.returncode, 1)
                self.assertIn('ALREADY_EXISTS', again.stderr)
                self.assertIn('--on-reinit replace', again.stderr)
                self.assertNotIn('Traceback', again.stderr)
                self.assertHolds(run_example('kvstore_tutorial.py', *where, '--on-reinit', 'replace'))


class Demo(Case):
    """The main job, as a whole and cut short."""

    def start(self):
        demo = subprocess.Popen([sys.executable, str(EXAMPLES / 'demo.py'), '--epochs', '500'],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(demo.stdout.close)
        self.addCleanup(demo.kill)
        for line in demo.stdout:
            if 'epoch' in line:
                break
        children = children_of(demo.pid)
        self.assertEqual(len(children), 5)
        return demo, children

    def assertGone(self, children):
        self.assertEqual([c for c in children if pathlib.Path(f'/proc/{c}').exists()], [])

    def test_both_ways_learn(self):
        done = run_example('demo.py')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count('good'), 2, done.stdout)
        self.assertRegex(done.stdout, r'(?m)^its page, while this runs: http://127\.0\.0\.1:\d+/$')
        self.assertIn('lists w3 as missing', done.stdout)
        self.assertRegex(done.stdout, r"a trainer +w[012]: [A-Z_]+: .*'w3'")

    def test_stay_leaves_the_daemon_up_until_ctrl_c(self):
        demo = subprocess.Popen([sys.executable, str(EXAMPLES / 'demo.py'), '--stay'], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
        self.addCleanup(demo.stdout.close)
        self.addCleanup(demo.kill)
        said = ''
        for line in demo.stdout:
            said += line
            if 'build/paramctl' in line:
                break
        children = children_of(demo.pid)
        self.assertEqual(len(children), 1, said)
        page = re.search(r'stays up for its page, (http://\S+), until', said)
        with urllib.request.urlopen(page[1], timeout=CHILD_S) as answer:
            self.assertEqual(answer.status, 200)
        demo.send_signal(signal.SIGINT)
        said += demo.communicate(timeout=CHILD_S)[0]
        self.assertEqual(demo.returncode, 0, said)
        self.assertGone(children)

    def test_ctrl_c_leaves_no_process(self):
        demo, children = self.start()
        demo.send_signal(signal.SIGINT)
        self.assertIn('interrupted', demo.communicate(timeout=CHILD_S)[0])
        self.assertEqual(demo.returncode, 130)
        self.assertGone(children)

    def test_a_killed_demo_leaves_no_process(self):
        demo, children = self.start()
        # The kernel then ends the daemon and the trainers; a pidfd is readable when its process has ended.
        ends = [os.pidfd_open(child) for child in children]
        demo.kill()
        for end in ends:
            self.assertEqual(select.select([end], [], [], CHILD_S)[0], [end])
            os.close(end)

    def test_a_dead_trainer_is_named_and_no_process_is_left(self):
        demo, children = self.start()
        trainer = next(c for c in children if b'w2' in pathlib.Path(f'/proc/{c}/cmdline').read_bytes().split(b'\0'))
        os.kill(trainer, signal.SIGKILL)
        said = demo.communicate(timeout=CHILD_S)[0]
        self.assertIn('trainer w2 was ended by SIGKILL', said)
        self.assertRegex(said, r'w[013]: [A-Z_]+: .*w2')
        self.assertEqual(demo.returncode, 1)
        self.assertGone(children)


def load_tests(loader, standard, pattern):
    # Remote has no tests of its own.
    return unittest.TestSuite(loader.loadTestsFromTestCase(c)
                              for c in (Local, Daemon, DaemonAsync, DaemonWithoutBulk, Workers, Tutorial, Demo))


if __name__ == '__main__':
    counted.main()
