"""The store: paramd.kv.create() and what it returns, with the methods of MXNet's KVStore.

A few words used throughout:

key       an int (64 bits) or a str. The first key of a store decides which of the two it uses, for its life. A str has 1 to
          512 bytes of UTF-8, so '' is refused; True and False are refused, too, as they mostly are a slip.
value     a numpy array of float32, float64, float16, paramd.bfloat16, int8, uint8, int32 or int64 with 0 to 8
          dimensions, or anything that numpy takes without a copy (array interface, buffers, DLPack on the CPU). A
          number, or a list with nothing but numbers in it, is a value too: it takes the key's dtype, in init float32.
          Bits of a bfloat16, such as 16-bit integers, become one by .view(paramd.bfloat16).
version   1 after init, and one more with each change of the value.

Where a method takes a key it also takes a list of keys, and then a list of as many values or outputs. Each of these may
itself be a list: several values of a key are summed first and count as one push, several outputs get the same bytes.

Every method that waits can be ended with Ctrl-C and has a deadline, the store's round_timeout + connect_timeout + 10 s
unless `timeout` (seconds) says another.
"""

import atexit
import collections
import ctypes
import difflib
import functools
import inspect
import json
import os
import sys
import threading
import uuid
import weakref

import numpy as np

from . import errors, optimizer, states as states_, trace, _arrays, _lib

__all__ = ['KVStore', 'Info', 'create']

# How long the library may wait before Python looks whether a signal has come or the store was closed.
_SLICE_MS = 200
_CLOSE_S = 2.0
_DESCRIBE_TRIES = 3
_LIST_LIMIT = 1000
# Keys in one document, and about how many bytes they may take in it.
_DOCUMENT_KEYS = 1000
_DOCUMENT_TEXT = 512 << 10

Info = collections.namedtuple('Info', 'dtype shape version id')
Info.__doc__ = 'What a key is: its numpy dtype, shape, newest version, and the id of its creation.'


# ---- create ---------------------------------------------------------------------------------------------------------

# What holds when an argument is left out. Such an argument is not sent, so that it agrees with a store that is there.
_OPTIONS = {
    'type': 'local', 'url': None, 'store': 'default', 'num_workers': None, 'worker_name': None, 'worker_id': None,
    'round_timeout': 60, 'on_reinit': 'error', 'async_default': 'assign', 'token': None,
    'start_timeout': 60, 'connect_timeout': 5, 'worker_timeout': 10, 'on_missing': 'fail', 'min_workers': 1,
    'on_late': 'drop', 'sum_order': 'arrival', 'elastic': False, 'versions_max': 4,
    'engine': 'own', 'bulk': True, 'connections': 1, 'mailbox': 128 << 20,
}
_SIGNATURE = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
                                for name, default in _OPTIONS.items()])


def create(*args, **kwargs):
    """Opens a store and joins it.

    create(type='local', url=None, store='default', num_workers=None, worker_name=None, worker_id=None,
           round_timeout=60, on_reinit='error', async_default='assign', token=None, ...)

    What is shown holds when an argument is left out; it is then not sent, and agrees with any store that is there.
    A stated one that disagrees with the store is FailedPrecondition naming both.

    type            'local', 'device': a private store in this process; 'nccl': the same on GPUs alone. 'dist_sync',
                    'dist_async': a store of a daemon, shared by all workers that name it. Words can be joined as in
                    MXNet ('dist_device_sync').
    url             address of the daemon, 'tcp://127.0.0.1:7700'. Left out: the variable PARAMD_URL, else that
                    address; a 'local' store with a url lives in the daemon.
    store           name of the store.
    num_workers     how many workers open the first round of a dist_sync job together; needed at its first create.
    worker_name     name of this worker in messages; worker_id: 32 hexadecimal digits (or a uuid.UUID) that stay the
                    same when a worker is started again.
    round_timeout   seconds after which a round fails and names those who did not push.
    on_reinit       what init of a key that exists does: 'error', 'replace' (new value), 'keep' (the present one: the
                    pushes of earlier runs are in it, so go on behind them; to push them again counts them twice).
                    Left out: the variable PARAMD_ON_REINIT.
    async_default   what a push without an updater does in dist_async: 'assign', 'add' or 'error'.
    token           secret that the daemon may ask for. Left out: the variable PARAMD_TOKEN, else the file that
                    PARAMD_TOKEN_FILE names.

    start_timeout 60, connect_timeout 5, worker_timeout 10   seconds: until all have joined; for an answer of the
                    daemon; without a sign of life until a worker counts as dead.
    on_missing 'fail' | 'proceed', min_workers 1             what a round does without a dead worker.
    on_late 'drop' | 'carry' | 'apply'                       what becomes of a push for a round that has closed.
    sum_order 'arrival' | 'rank'                             'rank': the same bits on every run.
    elastic False   dist_sync without num_workers.
    versions_max 4  versions of a key that are held at once.
    engine 'own' | 'nanomsg', bulk True, connections 1       how this client speaks with the daemon.
    mailbox 134217728   bytes of the GPU of a daemon on this machine for arrays on a GPU; 0: these go through host
                    memory.

    Raises Unavailable with the address and the command that starts a daemon when none answers in connect_timeout.
    """
    given = _bind(args, kwargs)
    kind = given.pop('type', _OPTIONS['type'])
    if not isinstance(kind, str):
        raise TypeError(f'type must be a str such as "local" or "dist_sync", not {kind!r:.60}')
    return KVStore._open(kind, given)


create.__signature__ = _SIGNATURE


def _bind(args, kwargs):
    """The arguments that were given, by name; None counts as left out."""
    if len(args) > len(_OPTIONS):
        raise TypeError(f'create() takes at most {len(_OPTIONS)} arguments')
    given = dict(zip(_OPTIONS, args))
    for name, value in kwargs.items():
        name = 'type' if name == 'name' else name        # MXNet's word
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, 1, 0.5)
            hint = f'; did you mean {near[0]!r}?' if near else f'; it takes {", ".join(_OPTIONS)}'
            raise TypeError(f'create() has no argument {name!r}{hint}')
        if name in given:
            raise TypeError(f'create() got two values for {name!r}')
        given[name] = value
    if isinstance(given.get('worker_id'), uuid.UUID):
        given['worker_id'] = given['worker_id'].hex
    return {name: value for name, value in given.items() if value is not None}


# ---- waiting --------------------------------------------------------------------------------------------------------

class _Operation:
    """One operation of the library, from its start until it is freed. Keeps what was handed in alive: a signal may
    come between any two lines here, and then the collector frees the operation before the arrays."""

    def __init__(self, store, keep):
        self._counted = False
        self._pointer = ctypes.c_void_p()
        self._lib, self._store, self._keep = store._lib, store, keep
        self._counted = store._enter()

    def run(self, function, *args, timeout=None):
        """Starts it and waits until it is finished; raises what it failed with."""
        error = _lib.Error()
        status = function(*args, ctypes.byref(self._pointer), ctypes.byref(error))
        if status != 0:
            raise error.exception(status)
        if timeout is not None:
            self._lib.paramd_op_deadline(self._pointer, max(0, min(int(timeout * 1000), 2**32 - 1)))
        result = ctypes.c_int()
        while not self._lib.paramd_op_wait(self._pointer, _SLICE_MS, ctypes.byref(result), ctypes.byref(error)):
            if self._store._closing:
                raise _closed()
        if result.value != 0:
            raise error.exception(result.value)

    def answer(self):
        return json.loads(self._lib.paramd_op_answer(self._pointer) or b'{}')

    def states(self, count):
        return self._lib.paramd_op_states(self._pointer)[:count]

    def free(self):
        # Ctrl-C may come right after each call here: never twice, and not at all only until __del__.
        if self._pointer:
            try:
                self._lib.paramd_op_free(self._pointer)
            finally:
                self._pointer = None
        if self._counted:
            try:
                self._store._exit()
            finally:
                self._counted = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()

    def __del__(self):
        self.free()


class _Function:
    """A Python function as updater of a store in this process."""

    def __init__(self, function):
        self.function = function
        self._here = threading.local()
        self.callback = _lib.Update(self._call)

    def running(self):
        """Whether this thread is inside the function."""
        return getattr(self._here, 'running', False)

    def take_error(self):
        """What the function raised on this thread, once."""
        error = getattr(self._here, 'error', None)
        self._here.error = None
        return error

    def _call(self, _, key, total, stored):
        self._here.running = True
        try:
            self._update(_arrays.unpack_key(key[0]), _arrays.borrowed(total[0]), _arrays.borrowed(stored[0]))
            return 0
        except BaseException as error:
            self._here.error = error
            return 1
        finally:
            self._here.running = False

    def _update(self, key, total, stored):
        # Both are copies: the function may keep what it is given, and the library's memory ends with this call.
        mine = stored.copy()
        self.function(key, total.copy(), mine)
        np.copyto(stored, mine)


def _closed():
    return errors.FailedPrecondition('the store is closed: create() opens another', reason='closed')


# ---- the store ------------------------------------------------------------------------------------------------------

_opened = weakref.WeakSet()


class KVStore:
    """A store, as create() returns it. Several threads may use one; a forked child may not use its parent's.

    It is closed by close(), by `with`, and when the process ends: then this worker leaves, and rounds no longer wait
    for it. Iterating over it gives its keys, and `key in kv` tells whether one was initialised."""

    def __init__(self):
        raise TypeError('use paramd.kv.create()')

    @classmethod
    def _open(cls, kind, options):
        self = object.__new__(cls)
        self._lib = _lib.load()
        self._handle = ctypes.c_void_p()
        self._pid = os.getpid()
        self._turn = threading.Condition()
        self._active = 0
        self._closing = False
        self._function = None
        self._traced = None         # trace.Updater: the function that was set as updater of a daemon's store
        self._described = {}
        self._kind, self._options = _arrays.as_name(kind, 'store type').lower(), options
        for name, value in options.items():
            if isinstance(value, str) and name != 'token':
                _arrays.as_name(value, f'{name} =')
        self._remote = 'url' in options or 'dist' in self._kind.split('_')
        try:
            with _Operation(self, None) as op:
                text = json.dumps(options, default=_plain_number)
                op.run(self._lib.paramd_create_start, kind.encode(), text.encode(), ctypes.byref(self._handle))
        except BaseException:
            self.close()
            raise
        _opened.add(self)
        _close_with_multiprocessing()
        return self

    # -- life

    def _enter(self):
        """Counts a call that uses the handle; it may not be freed until _exit()."""
        if self._pid != os.getpid():
            raise errors.FailedPrecondition('this store was opened before a fork: a child process opens its own with '
                                            'create()', reason='used-after-fork')
        if self._function is not None and self._function.running():
            raise errors.FailedPrecondition('an updater may not use the store that it is called from',
                                            reason='reentrant-call')
        with self._turn:
            if self._closing:
                raise _closed()
            self._active += 1
        return True

    def _exit(self):
        with self._turn:
            self._active -= 1
            self._turn.notify_all()

    def close(self):
        """Leaves the store and frees what this process holds of it. Calls of other threads that wait end with
        FailedPrecondition. A second close does nothing."""
        if self._pid != os.getpid():
            return
        if self._function is not None and self._function.running():
            raise errors.FailedPrecondition('an updater may not close the store that it is called from',
                                            reason='reentrant-call')
        with self._turn:
            if self._closing:
                return
            self._closing = True
            # A call that does not end (a function of the caller's, say) keeps the handle: better lost than freed
            # under its feet.
            idle = self._turn.wait_for(lambda: self._active == 0, _CLOSE_S)
        if idle and self._handle:
            self._lib.paramd_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, '_handle', None):
            self.close()

    def __reduce__(self):
        raise TypeError('a store cannot be pickled or copied: another process opens its own with create()')

    def __repr__(self):
        where = f" at {self._options.get('url') or os.environ.get('PARAMD_URL') or 'tcp://127.0.0.1:7700'}"
        where = where if self._remote else ''
        name = self._options.get('store', _OPTIONS['store'])
        if self._closing or self._pid != os.getpid():
            return f'<KVStore {self._kind} {name!r}{where}, closed>'
        return f'<KVStore {self._kind} {name!r}{where}, rank {self.rank} of {self.num_workers}>'

    def leave(self):
        """Leaves the store: rounds and barriers no longer wait for this worker. It can only be closed afterwards."""
        self._wait_for(self._lib.paramd_leave)

    # -- facts

    @property
    def type(self):
        """The type that was given, in lower case."""
        return self._ask(self._lib.paramd_type).decode()

    @property
    def rank(self):
        """Number of this worker, from 0; 0 in a store of this process."""
        return self._ask(self._lib.paramd_rank)

    @property
    def num_workers(self):
        """How many workers are there, as of the last heartbeat."""
        return self._ask(self._lib.paramd_num_workers)

    def num_dead_node(self, timeout=None):
        """How many workers are dead: silent for worker_timeout without having left, as of the last heartbeat. With timeout
        (seconds) the daemon is asked how many have been silent for at least so long. 0 in a store of this process."""
        if timeout is None or not self._remote:
            return self._ask(self._lib.paramd_num_dead)
        workers = self._call('Workers', {})['items']
        return sum(w['state'] in ('member', 'dead') and w['seen'] >= timeout for w in workers)

    @staticmethod
    def is_capable(capability):
        """MXNet's question whether a store can do something: 'optimizer', which every store here can."""
        if capability != 'optimizer':
            raise _arrays.refuse(f'is_capable knows "optimizer", not {capability!r:.60}')
        return True

    def keys(self):
        """All keys of the store, as a list."""
        found, after = [], None
        while True:
            answer = self._call('List', {'limit': _LIST_LIMIT, **({} if after is None else {'after': after})})
            found += [item['key'] for item in answer['items']]
            after = answer.get('next')
            if after is None:
                return found

    def __iter__(self):
        return iter(self.keys())

    def __contains__(self, key):
        try:
            self.describe(key)
        except (errors.NotFound, errors.InvalidArgument):
            return False
        except errors.FailedPrecondition as error:
            if error.reason != 'mixed-key-types':
                raise
            return False
        return True

    def describe(self, key):
        """What a key is, as Info(dtype, shape, version, id); for a list of keys a list. NotFound if not initialised."""
        found = self._describe(_arrays.as_keys(key))
        return found if _arrays.is_list(key) else found[0]

    def version(self, key):
        """The newest version of a key; for a list of keys a list."""
        found = self.describe(key)
        return [info.version for info in found] if _arrays.is_list(key) else found.version

    # -- data

    def init(self, key, value):
        """Creates keys with their values. Must come before any push or pull of them.

        The values are copied. Plain numbers become float32. In a store of several workers all call it: rank 0's values
        count, and the others' first init waits for them. A second init of a key by the same worker, or of one left by
        an earlier job, is AlreadyExists and nothing of the call is applied; create(on_reinit=...) says otherwise."""
        keys, arrays = self._values(key, value)
        self._init(keys, arrays)

    def push(self, key, value, priority=0):
        """Adds values to the next update of keys.

        Several values of a key are summed; an empty list of values is refused: push(k, []) would be a contribution of
        nothing. Empty lists of keys and values do nothing. Without updater the sum becomes the value; with one the updater makes the
        new value of it. In a store of this process that has happened when push returns; otherwise the push is then
        recorded, will be counted exactly once, and is applied when its round closes (see wait). All keys, shapes and
        dtypes are checked before anything is sent. priority: among pushes that wait the larger number runs first."""
        keys, arrays = self._values(key, value, self._number_dtype)
        self._apply_traced()
        self._send(self._lib.paramd_push_start, keys, arrays, int(priority))

    def pull(self, key, out=None, priority=0, ignore_sparse=True):
        """The newest values of keys, each whole and of one version, after this store's own pushes of them are applied.

        With out: fills that array, or each of a list of arrays, and returns out. Without: returns a new array, for a
        list of keys a list of arrays. ignore_sparse is MXNet's; it has no effect on dense values."""
        keys = _arrays.as_keys(key)
        if out is not None:
            self._receive(*self._outputs(key, keys, out), priority)
            return out
        arrays = self._pull_new(keys, priority)
        return arrays if _arrays.is_list(key) else arrays[0]

    def pull_if_newer(self, key, version, wait=None, out=None, priority=0):
        """(version, value) of a key when its version is higher than `version`, else (version, None).

        wait: None (or 0) asks once; a number of seconds, or True for the standard deadline, waits until it is newer.
        out: array to fill. For a list of keys give a list of versions; the answer is a list of pairs, and waiting ends
        as soon as one of them is newer."""
        if not _arrays.is_list(key):
            return self.pull_if_newer([key], [version], wait, None if out is None else [out], priority)[0]
        keys = _arrays.as_keys(key)
        if not _arrays.is_list(version) or len(version) != len(keys):
            raise _arrays.refuse(f'{len(keys)} keys need a list of as many versions')
        if not all(isinstance(v, (int, np.integer)) and 0 <= v < 2**64 for v in version):
            raise _arrays.refuse(f'a version is a number from 0 on, not {version!r:.60}')
        outs = [np.empty(i.shape, i.dtype) for i in self._describe(keys)] if out is None else out
        wait = wait or None
        flat, outputs = self._outputs(key, keys, outs)
        if len(flat) != len(keys):
            raise _arrays.refuse('pull_if_newer takes one output a key')
        held = self._receive_newer(keys, outputs, version, wait, priority)
        return [(now, o) if now > old else (int(old), None) for now, old, o in zip(held, version, outs)]

    def pushpull(self, key, value, out=None, priority=0):
        """push, wait until that is applied, and pull. Without out the values are overwritten with the result; they
        must then be arrays."""
        keys, arrays = self._values(key, value, self._number_dtype)
        to = self._outputs(key, _arrays.as_keys(key), value if out is None else out)
        self._check_outputs(*to)
        self._apply_traced()
        self._send(self._lib.paramd_push_start, keys, arrays, int(priority))
        self._receive(*to, priority)

    def broadcast(self, key, value, out, priority=0):
        """init and pull: afterwards all outputs of all workers hold rank 0's values. An output that has not the dtype and
        shape of its value is refused before anything is created."""
        keys, arrays = self._values(key, value)
        to = self._outputs(key, _arrays.as_keys(key), out)
        _check_fits(dict(zip(keys, arrays)), *to)
        self._init(keys, arrays)
        self._receive(*to, priority)

    def set(self, key, value, force=False):
        """Replaces values without the updater. While a round of the key is open: FailedPrecondition, unless forced
        (then the round fails for all of its workers, who are told)."""
        keys, arrays = self._values(key, value, self._number_dtype)
        self._send(self._lib.paramd_set_start, keys, arrays, int(force))

    def delete(self, key, force=False):
        """Deletes keys; force as in set."""
        keys = _arrays.as_keys(key)
        if keys:
            self._wait_for(self._lib.paramd_delete, len(keys), _arrays.pack_keys(keys), int(force))
        self._forget(keys)

    def wait(self, key=None, timeout=None):
        """Waits until the pushes of this store are applied: those of a key, of a list of keys, or all. A push that has
        failed meanwhile raises its error here."""
        keys = [] if key is None else _arrays.as_keys(key)
        if key is not None and not keys:
            return
        packed = _arrays.pack_keys(keys)
        with _Operation(self, packed) as op:
            op.run(self._lib.paramd_wait_start, self._handle, len(keys), packed, timeout=timeout)

    # -- the plane: trainers with GPUs

    def plane_join(self, device='cuda:0'):
        """Joins the plane of a dist_sync store with a GPU of this process (a torch.device does, too): the GPUs of its
        workers and that of its daemon then sum gradients among themselves, by NCCL. Answers when all workers have asked;
        Aborted, reason plane-broken, names who is missing. Nothing of this has run on a GPU yet: it is tested on a
        stand-in."""
        self._wait_for(self._lib.paramd_plane_join, str(device).encode())

    def plane_push(self, key, value, out=None):
        """Pushes keys on the plane, and with out (the same arrays, if you like) pulls what the updater makes of the sums.
        One array a key, float32 or float64, on the GPU that joined; what makes it must be done. All workers make the same
        calls one after another. Aborted: reason plane-broken, none of these pushes count, for nobody: push them again,
        after the next plane_join or by push; reason plane-counted, they count and the outputs are of no use."""
        keys, arrays = self._values(key, value)
        outputs = [] if out is None else self._outputs(key, _arrays.as_keys(key), out)[1]
        if len(set(keys)) != len(keys) or len(outputs) not in (0, len(keys)):
            raise _arrays.refuse('on a plane a call has each key once, with one array and one output at most')
        if not all(isinstance(a, _arrays.OnGpu) for a in arrays + [o.array for o in outputs]):
            raise _arrays.refuse('what is pushed and pulled on a plane lies on its GPU: give arrays that have '
                                 '__cuda_array_interface__, such as torch tensors on cuda')
        packed, gradients = _arrays.pack_keys(keys), _arrays.Tensors(arrays)
        to = _arrays.Tensors([o.array for o in outputs])
        self._apply_traced()
        if keys:
            self._wait_for(self._lib.paramd_plane_push, len(keys), packed, gradients.packed,
                           to.packed if outputs else None, keep=(gradients, to))

    def plane_leave(self):
        """Ends the plane, for all. Nothing when there is none."""
        self._wait_for(self._lib.paramd_plane_leave)

    # -- group and updater

    def barrier(self, name='default', timeout=None):
        """Waits until this worker's pushes are applied and all workers have come here. DeadlineExceeded names those
        who have not."""
        if not isinstance(name, str):
            raise _arrays.refuse(f'barrier takes the name of the barrier, a str such as "epoch", not {name!r:.60}; it waits '
                                 'for all workers in any case')
        self._apply_traced()
        with _Operation(self, None) as op:
            op.run(self._lib.paramd_barrier_start, self._handle, _arrays.as_name(name, 'barrier').encode(),
                   timeout=timeout)

    def set_updater(self, updater, *, states='keep', dry_run=False, **numbers):
        """Sets how pushed sums change the values. One of

            None                                       the sum becomes the value
            {'type': 'sgd', 'learning_rate': 0.1}      a document; equal to the present one, it changes nothing
            'sgd', learning_rate=0.1                   the same
            ('sgd', {'learning_rate': 0.1})            the same
            function(key, grad, stored)                changes `stored` in place.
                                                       In a store of this process: called once a key, in the order of
                                                       keys, before push returns. Both arrays are its own to keep. What
                                                       it raises comes out of push, and the value then stays as it was.
                                                       In a daemon: traced, for each key, now and at later inits, into a
                                                       text in the updater language, the same for all keys; what it
                                                       keeps for each key becomes slots (see paramd.trace). The store
                                                       has it before this client makes or pushes a key.

        A number that is left out has its default, also where the present updater of the same type
        has another: then a paramd.optimizer.NumbersDropped names each with what it was and what it
        is now (momentum 0.9 -> 0).

        states (for documents): what becomes of momentum, means, ... : 'keep' those whose names the
        new updater has too, 'reset' all, or 'convert' what is there into what is missing. dry_run:
        changes nothing, only tells.

        For a document the answer is a dict: changed; effective_from_version and first_versions,
        from which on values are made under it; dropped, as above; of a dry run report, what would
        become of the keys' states, with warnings.
        """
        if callable(updater):
            if states != 'keep' or dry_run:
                raise _arrays.refuse('states and dry_run are for documents: a function keeps its '
                                     'states itself, and a traced one begins anew')
            self._set_function(updater)
            return None
        return self._set_document(updater, states, dry_run, numbers)

    def set_optimizer(self, opt, *, states='keep', dry_run=False, **numbers):
        """MXNet's name for set_updater with a document: set_optimizer('sgd', learning_rate=0.1)."""
        if callable(opt):
            raise _arrays.refuse('set_optimizer takes a document; set_updater takes a function')
        return self._set_document(opt, states, dry_run, numbers)

    def get_updater(self):
        """The present updater: its document, or the function that was set in a store of this process."""
        if self._function is not None:
            return self._function.function
        self._apply_traced()
        return self._call('GetUpdater', {})['updater']

    # -- states

    def get_states(self, key=None):
        """What the updater keeps for keys, after this store's own pushes of them are applied: a dict of key to State, a
        dict of slot name to array with the counters as attributes (see paramd.states). key: one, a list, or None: all.

        Each state is as it was between two steps. A key that has not been pushed since the updater was set has what
        it had before."""
        keys = self.keys() if key is None else _arrays.as_keys(key)
        if not keys:
            return {}
        shapes = [info.shape for info in self._describe(keys)]
        packed = _arrays.pack_keys(keys)
        with _Operation(self, packed) as op:
            op.run(self._lib.paramd_get_states_start, self._handle, len(keys), packed)
            return {k: _state(s, shape) for k, s, shape in zip(keys, op.states(len(keys)), shapes)}

    def set_states(self, states):
        """Puts states back as get_states() answered them: a dict of key to State. All are checked first: each must have
        every slot of the present updater, of its type, dtypes and sizes; when one does not fit nothing is changed.

        They take their place between two steps; keys that are not named stay as they are. The value does not follow a
        slot 'master': set() it first."""
        keys = _arrays.as_keys(list(states))
        for key, state in states.items():
            if not isinstance(state, states_.State):
                raise _arrays.refuse(f'key {key!r}: a state is a paramd.states.State, not {type(state).__name__}')
        if not keys:
            return
        packed, given = _arrays.pack_keys(keys), _arrays.States(list(states.values()))
        with _Operation(self, (packed, given)) as op:
            op.run(self._lib.paramd_set_states_start, self._handle, len(keys), packed, given.packed)

    def save_optimizer_states(self, fname, dump_optimizer=False, key=None):
        """Writes what the updater keeps for keys (all, or those that key names) to a file in the safetensors format,
        whole or not at all. dump_optimizer: loading it sets the updater as well, with all its numbers. Keys that have
        not been pushed since the optimizer was set, and frozen ones, have empty states in it.

        The values are not in it: keep what pull() gives beside it. A store of a daemon does the same; one worker saves
        for all. Where a Python function is the updater of a store of this process, its own get_states(dump_optimizer)
        is asked for the bytes, as in MXNet."""
        if self._function is not None:
            data = self._of_function('get_states')(dump_optimizer)
            with open(fname, 'wb') as f:
                f.write(data)
            return
        states_.write(fname, self.get_states(key), self._optimizer(), dump_optimizer)

    def load_optimizer_states(self, fname):
        """Reads what save_optimizer_states wrote, after init (and set) of the same keys. Training then goes on with the
        same bits as if it had not been interrupted.

        Unless the file was saved with dump_optimizer=True an updater of the same type must have been set; its numbers
        may be others. Keys that are not in the file stay as they are. In a store of several workers each may load the
        same file before its first push, or one does and the others wait at a barrier."""
        if self._function is not None:
            load = self._of_function('set_states')
            with open(fname, 'rb') as f:
                load(f.read())
            return
        states, document, dumped = states_.read(fname)
        self._describe(list(states))        # all there? before anything is changed
        states = self._without_empty(fname, states)
        if dumped:
            self._load_dumped(states, document)
            return
        if self._optimizer()['type'] != document['type']:
            raise errors.FailedPrecondition(
                f'{fname} has the states of {document["type"]}, and the updater is {self._optimizer()["type"]}: set the '
                'same one first', reason='updater-incompatible')
        self.set_states(states)

    _barrier = barrier
    _set_updater = set_updater

    # -- below: what the methods are made of

    def _optimizer(self):
        self._apply_traced()
        document = self._call('GetUpdater', {})['updater']
        if document is None or document['type'] == 'assign':
            raise errors.FailedPrecondition('there is no optimizer whose states could be saved or loaded: '
                                            'set_optimizer() first', reason='updater-needed')
        return document

    def _without_empty(self, fname, states):
        """The states that are to be set. An empty one is that of a key that has not been pushed, so
        none may have been here: what the updater keeps by now would stay, unseen."""
        empty = [key for key, state in states.items() if states_.is_empty(state)]
        for key, state in self.get_states(empty).items() if empty else ():
            if state:
                raise errors.FailedPrecondition(
                    f'{fname} has an empty state for key {key!r}, which has been pushed here: load '
                    f"before the first push, or delete({key!r}) and init it again", reason='updater-incompatible')
        return {key: state for key, state in states.items() if not states_.is_empty(state)}

    def _load_dumped(self, states, document):
        """Sets an updater and its states. When these do not fit it, what was there before is put back."""
        before = self._call('GetUpdater', {})['updater']
        kept = self.get_states(list(states)) if before is not None and before['type'] != 'assign' else {}
        self.set_updater(document)
        try:
            self.set_states(states)
        except errors.ParamdError:
            self.set_updater(before)
            self.set_states(kept)
            raise

    def _of_function(self, name):
        """A method of the updater function, which keeps its states itself."""
        method = getattr(self._function.function, name, None)
        if method is None:
            raise errors.FailedPrecondition(
                f'the updater is a Python function: what it keeps is its own. Save that yourself, give it a method '
                f'{name}, or set an updater by its document', reason='updater-incompatible')
        return method

    def _ask(self, function):
        self._enter()
        try:
            return function(self._handle)
        finally:
            self._exit()

    def _wait_for(self, function, *args, keep=None):
        """Runs a call of the library that waits for the daemon and cannot be started apart: on a thread of its own, so
        that Ctrl-C is heard. One that is given up ends by its deadline; close() does not free the handle before, and
        what `keep` holds lives as long."""
        if not self._remote:
            self._enter()
            try:
                _raise(*self._plain(function, args))
            finally:
                self._exit()
            return
        answer, done = [], threading.Event()

        def work(_=keep):
            try:
                answer.append(self._plain(function, args))
            finally:
                self._exit()
                done.set()
        self._enter()
        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:
            self._exit()
            raise
        while not done.wait(_SLICE_MS / 1000):
            if self._closing:
                raise _closed()
        _raise(*answer[0])

    def _plain(self, function, args):
        error = _lib.Error()
        return function(self._handle, *args, ctypes.byref(error)), error

    def _call(self, method, document):
        with _Operation(self, None) as op:
            op.run(self._lib.paramd_call_start, self._handle, method.encode(), json.dumps(document).encode())
            return op.answer()

    def _values(self, key, value, dtype_of=None):
        """The flat lists of keys and arrays that a key and its value stand for. dtype_of(key): dtype of numbers."""
        keys, flat, arrays = _arrays.as_keys(key), [], []
        for k, v in zip(keys, _one_for_each(key, keys, value, 'value')):
            several = _arrays.as_inputs(v, dtype_of and functools.partial(dtype_of, k))
            if not several:
                raise _arrays.refuse(f'key {k!r} has an empty list of values')
            flat += [k] * len(several)
            arrays += several
        return flat, arrays

    def _outputs(self, key, keys, out):
        """The flat lists of keys and Outputs."""
        flat, outputs = [], []
        for k, o in zip(keys, _one_for_each(key, keys, out, 'output')):
            several = _arrays.as_outputs(o)
            if not several:
                raise _arrays.refuse(f'key {k!r} has an empty list of outputs')
            flat += [k] * len(several)
            outputs += several
        return flat, outputs

    def _send(self, function, keys, arrays, *options):
        if not keys:
            return
        packed, tensors = _arrays.pack_keys(keys), _arrays.Tensors(arrays)
        try:
            with _Operation(self, (packed, tensors)) as op:
                op.run(function, self._handle, len(keys), packed, tensors.packed, *options)
        except errors.Aborted as failed:
            raise self._function_error(failed) from None
        except errors.InvalidArgument:
            self._forget(keys)      # perhaps another worker has made the key anew
            raise

    def _init(self, keys, arrays):
        """Creates keys. A function that was set as updater of a daemon's store is traced for them and set before them:
        no push of another worker comes in between, and an init that fails can be tried again."""
        if self._traced is not None:
            self._apply_traced([(k, a.shape, a.dtype) for k, a in zip(keys, arrays)])
        self._send(self._lib.paramd_init_start, keys, arrays)
        self._forget(keys)

    def _function_error(self, failed):
        """What the caller's function raised, when that is why a push failed."""
        if failed.reason == 'callback-failed' and self._function is not None:
            return self._function.take_error() or failed
        return failed

    def _receive(self, keys, outputs, priority):
        if not keys:
            return
        packed, tensors = _arrays.pack_keys(keys), _arrays.Tensors([o.array for o in outputs])
        with _Operation(self, (packed, tensors)) as op:
            op.run(self._lib.paramd_pull_start, self._handle, len(keys), packed, tensors.packed, int(priority))
        for o in outputs:
            o.finish()

    def _receive_newer(self, keys, outputs, versions, wait, priority):
        packed, tensors = _arrays.pack_keys(keys), _arrays.Tensors([o.array for o in outputs])
        newer, held = ((ctypes.c_uint64 * len(keys))(*map(int, versions)) for _ in range(2))
        with _Operation(self, (packed, tensors, newer, held)) as op:
            try:
                op.run(self._lib.paramd_pull_newer_start, self._handle, len(keys), packed, tensors.packed, newer, held,
                       int(wait is not None), int(priority), timeout=wait if wait is not True else None)
            except errors.DeadlineExceeded:
                if wait is None:
                    raise
                return versions
        for o, now, old in zip(outputs, held, versions):
            if now > old:
                o.finish()
        return list(held)

    def _pull_new(self, keys, priority):
        """New arrays for keys. What is known of a key may be of an earlier creation of it: then it is asked again."""
        for tries in range(_DESCRIBE_TRIES):
            known = self._known(keys)
            arrays = [np.empty(info.shape, info.dtype) for info in known]
            try:
                self._receive(keys, [_arrays.Output(a) for a in arrays], priority)
                return arrays
            except errors.InvalidArgument as error:
                self._forget(keys)
                if error.reason != 'shape-mismatch' or tries == _DESCRIBE_TRIES - 1:
                    raise

    def _check_outputs(self, keys, outputs):
        """Refuses outputs that cannot take the values, before a push has changed anything."""
        if self._unfit(keys, outputs) is None:
            return
        self._forget(keys)
        unfit = self._unfit(keys, outputs)
        if unfit is not None:
            key, info, array = unfit
            raise _arrays.refuse(f'key {key!r} is {info.dtype} {info.shape}, out is {array.dtype} {array.shape}: '
                                 'an output has the dtype and shape of its key', 'shape-mismatch')

    def _unfit(self, keys, outputs):
        """The first output that has not the dtype and shape of its key, as far as is known."""
        for key, info, output in zip(keys, self._known(keys), outputs):
            if info.shape != output.array.shape or not _arrays.same_type(info.dtype, output.array.dtype):
                return key, info, output.array
        return None

    def _known(self, keys):
        if any(k not in self._described for k in keys):
            self._described.update(zip(keys, self._describe(keys)))
        return [self._described[k] for k in keys]

    def _forget(self, keys):
        for k in keys:
            self._described.pop(k, None)

    def _number_dtype(self, key):
        return self._known([key])[0].dtype

    def _describe(self, keys):
        if not keys:
            return []
        items = []
        for some in _documents(keys):
            items += self._call('Describe', {'keys': some})['items']
        for key, item in zip(keys, items):
            if item is None:
                raise errors.NotFound(f'key {key!r} was not initialised: call init({key!r}, value) first',
                                      reason='no-such-key')
        dtypes = {name: _arrays.dtype_named(name) for name in {item['dtype'] for item in items}}
        return [Info(dtypes[item['dtype']], tuple(item['shape']), item['version'], item['id']) for item in items]

    def _set_document(self, updater, states, dry_run, numbers):
        document = b'null'
        if updater is not None:
            document = _document_text(optimizer.document(updater, numbers))
        states = _arrays.as_name(states, 'states =')
        options = json.dumps({'states': states, 'dry_run': bool(dry_run)}).encode()
        request = b'{"updater": ' + document + b', ' + options[1:]
        with _Operation(self, None) as op:
            op.run(self._lib.paramd_call_start, self._handle, b'SetUpdater', request)
            answer = op.answer()
        if dry_run:
            return answer
        if self._function is not None:
            self._wait_for(self._lib.paramd_set_updater_function, _lib.Update(), None)
        self._function = self._traced = None
        optimizer.warn_of_dropped(answer['dropped'], stacklevel=4)
        return answer

    def _set_function(self, function):
        if self._remote:
            self._set_traced(function)
            return
        made = _Function(function)
        self._wait_for(self._lib.paramd_set_updater_function, made.callback, None)
        self._function = made

    def _set_traced(self, function):
        self._apply_traced(made=trace.Updater(function))

    def _apply_traced(self, new=(), made=None):
        """Traces the function that was set (or is to be: made) for new keys, and gives its text to the store. The first
        time it is traced for the keys that the store has as well, whoever made them; without any it waits for one."""
        made = made or self._traced
        if made is None or made.is_set and not new:
            return
        keys = [] if made.is_set else self.keys()
        made.trace([*((k, info.shape, info.dtype) for k, info in zip(keys, self._describe(keys))), *new])
        if not made.is_set and made.text is not None:
            self._give(made.document())
            made.is_set = True
        self._traced = made

    def _give(self, document):
        """Sets a program whose slots and steps begin now. One that is there already, from another worker perhaps, goes
        on: so it is never begun anew behind the back of a worker that has pushed."""
        while True:
            there = self._call('GetUpdater', {})
            if (there['updater'] or {}).get('text') == document['text']:
                return
            try:
                self._call('SetUpdater', {'updater': document, 'states': 'reset', 'etag': there['etag']})
                return
            except errors.FailedPrecondition as error:
                if error.reason != 'etag-mismatch':
                    raise


# What MXNet's KVStore has and this one has not, with what to do instead.
_ABSENT = {
    'row_sparse_pull': 'values are dense here: pull(key) gives the whole value, of which value[row_ids] are the rows',
    'set_gradient_compression': 'gradients travel as they are: leave the call out, and the sums are exact; keys of '
                                'float16 or bfloat16 take half of the bytes',
    'set_barrier_before_exit': 'leave the call out: a store waits for nobody when it is closed; call barrier() first where '
                               'workers should end together',
    'run_server': 'the server is a program of its own: start it with `paramd --listen tcp://127.0.0.1:7700`, or from '
                  'Python by paramd.daemon.Daemon()',
    '_send_command_to_servers': 'servers take no free commands: set_updater() and set_optimizer() change the updater, '
                                '`paramctl --help` lists the rest',
}


def _absent(name, instead):
    def method(self, *args, **kwargs):
        raise errors.Unimplemented(f'{name}: {instead}', reason='unimplemented')
    method.__name__, method.__doc__ = name, f'Not here: {instead}.'
    return method


for _name, _instead in _ABSENT.items():
    setattr(KVStore, _name, _absent(_name, _instead))


def _state(lent, shape):
    slots = (_lib.Slot * lent.slot_count).from_address(lent.slots) if lent.slot_count else ()
    return states_.State({s.name.decode(): _arrays.slot_array(s, shape) for s in slots}, lent.updater.decode(),
                         lent.updates, lent.since_begun, lent.product)


def _raise(status, error):
    if status != 0:
        raise error.exception(status)


def _check_fits(values, keys, outputs):
    for key, output in zip(keys, outputs):
        value, array = values[key], output.array
        if value.shape != array.shape or not _arrays.same_type(value.dtype, array.dtype):
            raise _arrays.refuse(f'key {key!r}: the value is {value.dtype} {value.shape}, out is {array.dtype} '
                                 f'{array.shape}: an output has the dtype and shape of its key', 'shape-mismatch')


def _documents(keys):
    """The keys in lists that are short enough for one document each."""
    some, size = [], 0
    for key in keys:
        some.append(key)
        size += 6 * len(key) if isinstance(key, str) else 20
        if len(some) == _DOCUMENT_KEYS or size > _DOCUMENT_TEXT:
            yield some
            some, size = [], 0
    if some:
        yield some


def _one_for_each(key, keys, things, what):
    """One value or output for each key."""
    if not _arrays.is_list(key):
        return [things]
    if not _arrays.is_list(things):
        raise _arrays.refuse(f'a list of keys needs a list of {what}s, not {type(things).__name__}')
    if len(things) != len(keys):
        raise _arrays.refuse(f'{_count(len(keys), "key")} but {_count(len(things), what)}: give one {what}, or list '
                             f'of {what}s, a key')
    return things


def _count(n, what):
    return f'{n} {what}' if n == 1 else f'{n} {what}s'


def _document_text(document):
    try:
        return json.dumps(document, default=_plain_number, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgument(f'the updater {document!r:.80} cannot be written as JSON: {error}',
                                     reason='validation-failed') from None


def _plain_number(thing):
    if isinstance(thing, np.generic):
        return thing.item()
    raise TypeError(f'{type(thing).__name__} {thing!r:.40} is no number, string, list or document')


# ---- the end of a process -------------------------------------------------------------------------------------------

def _close_all():
    for store in list(_opened):
        store.close()


atexit.register(_close_all)


_finalized_in = None


def _close_with_multiprocessing():
    """A child of multiprocessing ends without atexit, by its own finalizers: registered once in each process."""
    global _finalized_in
    util = sys.modules.get('multiprocessing.util')
    if util is not None and _finalized_in != os.getpid():
        util.Finalize(None, _close_all, exitpriority=10)
        _finalized_in = os.getpid()
