"""Updaters as documents.

An optimizer that runs in the store is data, not code: a name with numbers.

    paramd.optimizer.create('sgd', learning_rate=0.1, momentum=0.9)
    -> {'type': 'sgd', 'learning_rate': 0.1, 'momentum': 0.9}

The store checks names and numbers and tells every fault at once; what is left out has its standard value there.
"""

import json
import warnings

from . import errors

__all__ = ['NumbersDropped', 'create']


class NumbersDropped(UserWarning):
    """A new updater of the same type leaves out numbers that the present one has, so they go back
    to their defaults."""


def create(name, **numbers):
    """The document of an updater: `name` is its type, the keywords are its numbers. It is a plain dict."""
    return document(name, numbers)


def document(updater, numbers=None):
    """The document that is meant by any of

        {'type': 'sgd', 'learning_rate': 0.1}
        'sgd'                                   with numbers {'learning_rate': 0.1}
        ('sgd', {'learning_rate': 0.1})
    """
    numbers = dict(numbers or {})
    if isinstance(updater, (tuple, list)) and len(updater) == 2 and isinstance(updater[1], dict):
        return document(updater[0], {**updater[1], **numbers})
    if isinstance(updater, str):
        return {'type': updater, **numbers}
    if isinstance(updater, dict) and isinstance(updater.get('type'), str):
        return {**updater, **numbers}
    raise errors.InvalidArgument(
        f'{updater!r:.80} is no updater: give a document such as {{"type": "sgd", "learning_rate": 0.1}}, or a name '
        "and its numbers: set_optimizer('sgd', learning_rate=0.1)", reason='validation-failed')


def warn_of_dropped(dropped, stacklevel):
    """dropped: that of SetUpdater's answer. One warning for all of them, at the caller's caller."""
    if not dropped:
        return
    rows = ', '.join(f'{row["name"]} {json.dumps(row["from"])} -> {json.dumps(row["to"])}'
                     for row in dropped)
    name, old, new = dropped[0]['name'], dropped[0]['from'], dropped[0]['to']
    how = ''
    if name.isidentifier():
        how = f': {name}={old!r} keeps it, {name}={new!r} drops it without a warning'
    warnings.warn('the new updater leaves out what the present one has, which goes back to its '
                  f'default: {rows}. Say what is to stay{how}', NumbersDropped,
                  stacklevel=stacklevel)
