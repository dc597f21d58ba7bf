"""What an updater keeps for a key from step to step: its slots (momentum, mean, ...), and counters.

kv.get_states() answers one State for each key, kv.set_states() puts them back, and kv.save_optimizer_states() writes them
to a file in the safetensors format. Its metadata has the updater's document and the counters; its tensors are named
KEY.SLOT. So any program that reads safetensors can look at it.
"""

import json

from . import errors, _arrays, _safetensors

__all__ = ['State']

_FORMAT = 'paramd-states-1'
_COUNTERS = ('updates', 'since_begun', 'product')


class State(dict):
    """A dict of slot name to array, and as attributes

    updater        the type whose slots these are, 'adam'
    updates        updates of the key so far; set() is none
    since_begun    those since its slots began, which bias corrections count
    product        a product over the steps that nadam keeps; else 1

    A float16 or bfloat16 key under an updater that keeps its value in float32 has that as the slot 'master'."""

    def __init__(self, slots, updater, updates, since_begun, product=1.0):
        super().__init__(slots)
        self.updater, self.updates, self.since_begun, self.product = updater, updates, since_begun, product

    def __repr__(self):
        return (f'State({dict(self)!r}, updater={self.updater!r}, updates={self.updates}, '
                f'since_begun={self.since_begun}, product={self.product})')

    def __reduce__(self):
        return State, (dict(self), self.updater, self.updates, self.since_begun, self.product)


def is_empty(state):
    """Whether the key has not stepped under an updater that keeps something."""
    return not state and state.updates == 0


# ---- files ----------------------------------------------------------------------------------------------------------

def write(path, states, document, dump_optimizer):
    """document: that of the store's updater. A key that has not stepped under it, and of which the
    updaters before keep nothing, has an empty state: no slots, no updates."""
    kept = {}
    for key, state in states.items():
        same = state.updater == document['type']
        kept[key] = state if same else State({}, document['type'], 0, 0)
        if state and not same:
            raise errors.FailedPrecondition(
                f'key {key!r} still has the state of {state.updater}, and goes over to {document["type"]} with its next '
                'push: push it once, or save without it (key=[...])', reason='updater-incompatible')
    tensors = {f'{key}.{slot}': array for key, state in kept.items() for slot, array in state.items()}
    keys = [{'key': key, 'slots': list(state), **{name: getattr(state, name) for name in _COUNTERS}}
            for key, state in kept.items()]
    _safetensors.write(path, tensors, {'format': _FORMAT, 'updater': json.dumps(document), 'keys': json.dumps(keys),
                                       'dump_optimizer': json.dumps(bool(dump_optimizer))})


def _bad(path, text):
    return errors.InvalidArgument(f'{path}: {text}', reason='invalid-argument')


def _document(path, metadata, name, kind):
    try:
        found = _safetensors.loads(metadata[name])
    except (KeyError, ValueError, RecursionError) as error:
        raise _bad(path, f'the metadata {name!r} is missing or cannot be read: {error}') from None
    if not isinstance(found, kind):
        raise _bad(path, f'the metadata {name!r} is no {kind.__name__}')
    return found


def _is_row(row):
    return (isinstance(row, dict) and set(row) == {'key', 'slots', *_COUNTERS} and type(row['key']) in (int, str) and
            isinstance(row['slots'], list) and all(isinstance(s, str) for s in row['slots']) and
            all(type(row[n]) is int and 0 <= row[n] < 2**63 for n in _COUNTERS[:2]) and
            type(row['product']) in (int, float))


def read(path):
    """(states, document, dump_optimizer); every part of the file is checked."""
    tensors, metadata = _safetensors.read(path)
    if metadata.get('format') != _FORMAT:
        raise _bad(path, 'the file is none that save_optimizer_states has written')
    document = _document(path, metadata, 'updater', dict)
    if not isinstance(document.get('type'), str):
        raise _bad(path, 'the updater has no type')
    states = {}
    for row in _document(path, metadata, 'keys', list):
        if not _is_row(row) or row['key'] in states:
            raise _bad(path, f'the metadata of a key cannot be read: {row!r:.100}')
        key = _arrays.as_key(row['key'])
        try:
            slots = {slot: tensors.pop(f'{key}.{slot}') for slot in row['slots']}
        except KeyError as missing:
            raise _bad(path, f'tensor {missing} is missing') from None
        states[key] = State(slots, document['type'], row['updates'], row['since_begun'], row['product'])
    if tensors:
        raise _bad(path, f'tensor {next(iter(tensors))!r:.80} belongs to no key')
    return states, document, _document(path, metadata, 'dump_optimizer', bool)
