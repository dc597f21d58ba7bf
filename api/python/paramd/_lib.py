"""libparamd by ctypes: finds it, loads it once, declares what it has.

This is api/client/paramd.h, line by line; the manual of each function is there. ctypes lets other Python threads run
while a function of the library waits.
"""

import ctypes
import ctypes.util
import os
import pathlib

from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from . import errors

DIMENSIONS_MAX = 8
CUDA = 0x100


class Error(ctypes.Structure):
    _fields_ = [('status', c_int), ('retry_ms', c_uint32), ('reason', c_char * 32), ('text', c_char * 512)]

    def exception(self, code):
        """What the library said, as an exception. code: what the function answered."""
        text = self.text.decode('utf-8', 'replace') or f'status {code}'
        return errors.make(code, text, self.reason.decode('ascii', 'replace'), self.retry_ms)


class Key(ctypes.Structure):
    _fields_ = [('name', c_char_p), ('name_size', c_size_t), ('number', c_int64)]


class LentKey(ctypes.Structure):
    # A key that the library hands out: its name need not end with a zero.
    _fields_ = [('name', c_void_p), ('name_size', c_size_t), ('number', c_int64)]


class Tensor(ctypes.Structure):
    # Addresses as numbers: what they point to is kept alive by whoever fills this in.
    _fields_ = [('data', c_void_p), ('dtype', c_int), ('ndim', c_int), ('shape', c_void_p)]


class Slot(ctypes.Structure):
    _fields_ = [('name', c_char_p), ('dtype', c_int), ('count', c_uint64), ('data', c_void_p)]


class State(ctypes.Structure):
    _fields_ = [('updater', c_char_p), ('updates', c_uint64), ('since_begun', c_uint64), ('product', c_double),
                ('slot_count', c_size_t), ('slots', c_void_p)]


Update = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(LentKey), POINTER(Tensor), POINTER(Tensor))

_KV, _OP, _TEXT, _ERROR = c_void_p, c_void_p, c_char_p, POINTER(Error)
_KEYS, _TENSORS, _NEW_OP = POINTER(Key), POINTER(Tensor), POINTER(c_void_p)

# name: (result, arguments)
_FUNCTIONS = {
    'paramd_version': (c_char_p, []),
    'paramd_create_start': (c_int, [_TEXT, _TEXT, POINTER(c_void_p), _NEW_OP, _ERROR]),
    'paramd_close': (None, [_KV]),
    'paramd_leave': (c_int, [_KV, _ERROR]),
    'paramd_type': (c_char_p, [_KV]),
    'paramd_rank': (c_int, [_KV]),
    'paramd_num_workers': (c_int, [_KV]),
    'paramd_num_dead': (c_int, [_KV]),
    'paramd_delete': (c_int, [_KV, c_size_t, _KEYS, c_int, _ERROR]),
    'paramd_plane_join': (c_int, [_KV, _TEXT, _ERROR]),
    'paramd_plane_push': (c_int, [_KV, c_size_t, _KEYS, _TENSORS, _TENSORS, _ERROR]),
    'paramd_plane_leave': (c_int, [_KV, _ERROR]),
    'paramd_set_updater': (c_int, [_KV, _TEXT, _ERROR]),
    'paramd_set_updater_function': (c_int, [_KV, Update, c_void_p, _ERROR]),
    'paramd_init_start': (c_int, [_KV, c_size_t, _KEYS, _TENSORS, _NEW_OP, _ERROR]),
    'paramd_push_start': (c_int, [_KV, c_size_t, _KEYS, _TENSORS, c_int, _NEW_OP, _ERROR]),
    'paramd_pull_start': (c_int, [_KV, c_size_t, _KEYS, _TENSORS, c_int, _NEW_OP, _ERROR]),
    'paramd_pull_newer_start': (c_int, [_KV, c_size_t, _KEYS, _TENSORS, POINTER(c_uint64), POINTER(c_uint64), c_int,
                                        c_int, _NEW_OP, _ERROR]),
    'paramd_set_start': (c_int, [_KV, c_size_t, _KEYS, _TENSORS, c_int, _NEW_OP, _ERROR]),
    'paramd_wait_start': (c_int, [_KV, c_size_t, _KEYS, _NEW_OP, _ERROR]),
    'paramd_barrier_start': (c_int, [_KV, _TEXT, _NEW_OP, _ERROR]),
    'paramd_call_start': (c_int, [_KV, _TEXT, _TEXT, _NEW_OP, _ERROR]),
    'paramd_get_states_start': (c_int, [_KV, c_size_t, _KEYS, _NEW_OP, _ERROR]),
    'paramd_set_states_start': (c_int, [_KV, c_size_t, _KEYS, POINTER(State), _NEW_OP, _ERROR]),
    'paramd_op_states': (POINTER(State), [_OP]),
    'paramd_op_deadline': (None, [_OP, c_uint32]),
    'paramd_op_wait': (c_int, [_OP, c_uint32, POINTER(c_int), _ERROR]),
    'paramd_op_answer': (c_char_p, [_OP]),
    'paramd_op_free': (None, [_OP]),
}

_loaded = None


def checkout():
    """The root of the source tree that this file lies in, as a path; it need not be one."""
    return pathlib.Path(__file__).resolve().parents[3]


def find():
    """Path or name of the library: PARAMD_LIBRARY when it is set, build/ of the checkout, the system's.

    A variable that somebody has set is meant, so it goes before what happens to lie in build/."""
    if os.environ.get('PARAMD_LIBRARY'):
        return os.environ['PARAMD_LIBRARY']
    built = checkout() / 'build' / 'libparamd.so'
    if built.exists():
        return str(built)
    return ctypes.util.find_library('paramd') or 'libparamd.so'


def load():
    """The library, loaded at the first call. ImportError says what was looked for and how to get it."""
    global _loaded
    if _loaded is None:
        _loaded = _open(find())
    return _loaded


def _open(path):
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f'libparamd cannot be loaded ({error}). In a checkout `make` builds it; else set '
                          'PARAMD_LIBRARY to the path of libparamd.so.') from None
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise ImportError(f'{path} has no {name}: it is of another version than this package. '
                              'Build both from one checkout (`make`).') from None
        function.restype = result
        function.argtypes = arguments
    return lib
