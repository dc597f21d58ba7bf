#!/usr/bin/python3
"""Updaters with "convention": "torch" against PyTorch's own optimizers and schedulers: 50 steps of random gradients on a
store of this process. Skipped where PyTorch is not installed (Debian: python3-torch). ERRORS=1 prints the largest errors.
"""

import inspect
import os
import pathlib
import sys
import unittest
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'api' / 'python'))
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))

import counted  # noqa: E402
import numpy as np
import paramd

try:
    import torch
except ImportError:
    torch = None

STEPS = 50
SHAPE = (7, 11)
# In eps of the type. Both sides round a dozen times a step, in another order; values and movements are near 1.
TOLERANCE = 32

# updater, its numbers, PyTorch's class, its numbers
CASES = [
    ('sgd', {}, 'SGD', {}),
    ('sgd', {'momentum': 0.9}, 'SGD', {'momentum': 0.9}),
    ('nag', {'momentum': 0.9}, 'SGD', {'momentum': 0.9, 'nesterov': True}),
    ('adam', {}, 'Adam', {}),
    ('adam', {'beta1': 0.5, 'beta2': 0.9, 'epsilon': 0.01}, 'Adam', {'betas': (0.5, 0.9), 'eps': 0.01}),
    ('adamw', {}, 'AdamW', {}),
    ('adamw', {'wd': 0.3, 'epsilon': 0.01}, 'AdamW', {'weight_decay': 0.3, 'eps': 0.01}),
    ('adamax', {}, 'Adamax', {}),
    ('adamax', {'epsilon': 0.1}, 'Adamax', {'eps': 0.1}),
    ('nadam', {}, 'NAdam', {}),
    ('nadam', {'schedule_decay': 0.4, 'epsilon': 0.01}, 'NAdam', {'momentum_decay': 0.4, 'eps': 0.01}),
    ('radam', {}, 'RAdam', {}),
    ('radam', {'beta2': 0.7, 'epsilon': 0.01}, 'RAdam', {'betas': (0.9, 0.7), 'eps': 0.01}),
    ('adagrad', {}, 'Adagrad', {}),
    ('adagrad', {'epsilon': 0.1}, 'Adagrad', {'eps': 0.1}),
    ('adadelta', {}, 'Adadelta', {}),
    ('adadelta', {'rho': 0.5, 'epsilon': 0.01}, 'Adadelta', {'rho': 0.5, 'eps': 0.01}),
    ('rmsprop', {}, 'RMSprop', {}),
    ('rmsprop', {'momentum': 0.9}, 'RMSprop', {'momentum': 0.9}),
    ('rmsprop', {'centered': True, 'epsilon': 0.01}, 'RMSprop', {'centered': True, 'eps': 0.01}),
    ('rmsprop', {'centered': True, 'momentum': 0.9, 'epsilon': 0.01}, 'RMSprop',
     {'centered': True, 'momentum': 0.9, 'eps': 0.01}),
]

SCHEDULES = [
    ({'type': 'step', 'step_size': 7, 'gamma': 0.5}, 'StepLR', {'step_size': 7, 'gamma': 0.5}),
    ({'type': 'one_cycle', 'max_update': 51}, 'OneCycleLR', {'max_lr': 0.1, 'total_steps': 51, 'cycle_momentum': False}),
    ({'type': 'one_cycle', 'max_update': 60, 'anneal_strategy': 'linear', 'pct_start': 0.5}, 'OneCycleLR',
     {'max_lr': 0.1, 'total_steps': 60, 'cycle_momentum': False, 'anneal_strategy': 'linear', 'pct_start': 0.5}),
]


def repair_nadam():
    """PyTorch before 2.0 has the mean's product of momenta wrong: mu(t) is in it twice. (2.0 has it as in the paper.)"""
    module = sys.modules['torch.optim.nadam']
    source = inspect.getsource(module._single_tensor_nadam)
    exec(source.replace('mu_product * mu * mu_next', 'mu_product * mu_next'), vars(module))


@unittest.skipIf(torch is None, "it needs PyTorch: package python3-torch")
class Torch(unittest.TestCase):
    worst = {}

    @classmethod
    def setUpClass(cls):
        repair_nadam()
        torch.set_default_dtype(torch.float64) # of PyTorch's own scalars

    def run_both(self, document, make, dtype, scheduler=None):
        """Both values after all steps; the gradient is drawn, not of a function, so one side's error does not grow."""
        random = np.random.default_rng(5)
        value = random.uniform(-1, 1, SHAPE).astype(dtype)
        parameter = torch.nn.Parameter(torch.tensor(value))
        optimizer = make([parameter])
        schedule = scheduler(optimizer) if scheduler else None
        out = np.empty(SHAPE, dtype)
        with warnings.catch_warnings(), paramd.create('local') as kv:
            warnings.simplefilter('ignore')
            kv.init('w', value)
            kv.set_updater(document)
            for _ in range(STEPS):
                gradient = random.uniform(-1, 1, SHAPE).astype(dtype)
                kv.push('w', gradient)
                parameter.grad = torch.tensor(gradient)
                optimizer.step()
                if schedule:
                    schedule.step()
            kv.pull('w', out=out)
        return out, parameter.detach().numpy()

    def compare(self, name, dtype, pair):
        error = float(np.max(np.abs(pair[0].astype(np.float64) - pair[1].astype(np.float64)))) / np.finfo(dtype).eps
        key = (name, np.dtype(dtype).name)
        self.worst[key] = max(self.worst.get(key, 0), error)
        self.assertLessEqual(error, TOLERANCE)

    def test_updaters_are_those_of_pytorch(self):
        for updater, numbers, name, torch_numbers in CASES:
            for wd in (None, 0.05):
                for dtype in (np.float32, np.float64):
                    with self.subTest(updater=updater, numbers=numbers, wd=wd, dtype=dtype):
                        ours, theirs = dict(numbers), dict(torch_numbers)
                        if wd is not None:
                            ours.setdefault('wd', wd)
                            theirs.setdefault('weight_decay', wd)
                        if name == 'SGD':
                            theirs['lr'] = 0.1
                        make = lambda p: getattr(torch.optim, name)(p, **theirs)
                        document = {'type': updater, 'convention': 'torch', **ours}
                        self.compare(updater, dtype, self.run_both(document, make, dtype))

    def test_schedules_are_those_of_pytorch(self):
        for schedule, name, numbers in SCHEDULES:
            with self.subTest(schedule=schedule):
                document = {'type': 'sgd', 'learning_rate': 0.1, 'convention': 'torch', 'schedule': schedule}
                pair = self.run_both(document, lambda p: torch.optim.SGD(p, lr=0.1), np.float64,
                                     lambda o: getattr(torch.optim.lr_scheduler, name)(o, **numbers))
                self.compare('schedule ' + schedule['type'], np.float64, pair)

    @classmethod
    def tearDownClass(cls):
        if os.environ.get('ERRORS'):
            for (name, dtype), error in cls.worst.items():
                print(f'| `{name}` | {dtype} | {error:.1f} |')


if __name__ == '__main__':
    counted.main()
