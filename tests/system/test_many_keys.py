#!/usr/bin/python3
"""Calls that name very many keys, in a store of this process and in one of a daemon: 10^5 keys, with LONG=1 10^6.
Ends with "N passed, N failed"."""

import os
import pathlib
import sys
import tempfile
import unittest
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'api' / 'python'))
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))

import counted  # noqa: E402
import numpy as np
import paramd
import paramd.daemon
from paramd import errors

LONG = os.environ.get('LONG', '0') not in ('', '0')
COUNT = 10**6 if LONG else 10**5
STATES = 10**6 if LONG else 15000       # above what one document of the protocol can describe
WIDTH = 2


def rows(value):
    """One value for each key, each the number of its key plus `value`."""
    return list(np.arange(COUNT, dtype=np.float32)[:, None] + np.full((1, WIDTH), value, np.float32))


class ManyKeys:
    """open() gives a store with one worker."""

    def check(self, arrays, value):
        self.assertTrue((np.stack(arrays) == np.stack(rows(value))).all())

    def test_calls_that_name_all_keys(self):
        kv, keys, values = self.open(), [f'layer{i}' for i in range(COUNT)], rows(0)
        kv.init(keys, values)
        kv.set_updater({'type': 'add'})
        kv.push(keys, [np.ones(WIDTH, np.float32)] * COUNT)
        kv.wait(keys)
        self.check(kv.pull(keys), 1)
        outs = [np.zeros(WIDTH, np.float32) for _ in keys]
        kv.pushpull(keys, [np.ones(WIDTH, np.float32)] * COUNT, outs)
        self.check(outs, 2)
        self.check([value for _, value in kv.pull_if_newer(keys, [1] * COUNT)], 2)
        kv.set(keys, rows(7))
        self.assertEqual({info.version for info in kv.describe(keys)}, {4})
        self.assertEqual(sorted(kv), sorted(keys))
        with self.assertRaises(errors.NotFound):
            kv.delete(keys + ['no such key'])
        self.assertEqual(len(kv.keys()), COUNT)
        kv.delete(keys + keys[:1])                  # named twice, in requests far apart
        self.assertEqual(kv.keys(), [])
        kv.broadcast(keys, values, outs)
        self.check(outs, 0)
        kv.close()

    def test_a_refused_call_of_all_keys_applies_nothing(self):
        kv, keys, values = self.open(), list(range(COUNT)), rows(0)
        kv.init([0, COUNT - 1], [values[0], values[0]])
        with self.assertRaises(errors.AlreadyExists):
            kv.init(keys, values)
        self.assertEqual(kv.keys(), [0, COUNT - 1])
        outs = [np.zeros(WIDTH, np.float32) for _ in keys]
        outs[-1] = np.zeros(WIDTH + 1, np.float32)
        kv.delete([0, COUNT - 1])
        with self.assertRaises(errors.InvalidArgument):
            kv.broadcast(keys, values, outs)
        self.assertEqual(kv.keys(), [])
        kv.close()

    def test_states_of_all_keys(self):
        kv, keys = self.open(), [f'layer{i}' for i in range(STATES)]
        values, grads = rows(0)[:STATES], [np.ones(WIDTH, np.float32)] * STATES
        kv.init(keys, values)
        kv.set_optimizer('sgd', learning_rate=0.5, momentum=0.5)
        kv.push(keys, grads)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'states')
            kv.save_optimizer_states(path)
            kv.push(keys, grads)
            once = kv.pull([keys[0], keys[-1]])
            kv.set(keys, [v - np.float32(0.5) for v in values])
            kv.load_optimizer_states(path)
        kv.push(keys, grads)
        for a, b in zip(kv.pull([keys[0], keys[-1]]), once):
            np.testing.assert_array_equal(a, b)
        kv.close()


class Local(ManyKeys, unittest.TestCase):
    def open(self):
        return paramd.kv.create('local')


class Daemon(ManyKeys, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = paramd.daemon.Daemon()
        cls.addClassCleanup(cls.daemon.stop)

    def open(self):
        return paramd.kv.create('dist_sync', url=self.daemon.url, store=uuid.uuid4().hex, num_workers=1)


if __name__ == '__main__':
    counted.main()
