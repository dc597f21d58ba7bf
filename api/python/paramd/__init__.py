"""paramd: a parameter store for trainers, in the model of MXNet's KVStore.

    import numpy, paramd

    kv = paramd.kv.create('local')                       # in this process; or
    kv = paramd.kv.create('dist_sync', num_workers=4)    # in a daemon, together with three others

    kv.init('w', numpy.zeros((2, 3), numpy.float32))
    kv.set_optimizer('sgd', learning_rate=0.1)
    kv.push('w', numpy.ones((2, 3), numpy.float32))
    print(kv.pull('w'))                                  # all elements are -0.1

paramd.kv has the store, paramd.errors the exceptions, paramd.optimizer the updaters,
paramd.states what they keep, paramd.trace functions as updaters
of a daemon, paramd.sym builds networks and paramd.viz draws them. README.md beside this package says what is as in
mx.kv and what is not.
"""

from . import errors, kv, optimizer, states, sym, trace, viz
from ._half import bfloat16, from_bfloat16, to_bfloat16
from .errors import ParamdError
from .kv import KVStore, create

__all__ = ['KVStore', 'ParamdError', 'bfloat16', 'create', 'errors', 'from_bfloat16', 'kv', 'optimizer', 'states', 'sym',
           'to_bfloat16', 'trace', 'viz', 'library_version']


def library_version():
    """Version of libparamd, "paramd 0.1.0"."""
    from . import _lib
    return _lib.load().paramd_version().decode()
