"""The exceptions of paramd.

Every refusal is a ParamdError: str(error) is a sentence with the cure, and a program can look at

    error.status      name of the canonical code, "NOT_FOUND"
    error.code        its number, 5
    error.reason      stable code of the distinct refusal, "no-such-key"
    error.retry_ms    when trying again may help, in ms; 0: it will not

There is one subclass for each status, and where Python has an exception of the same meaning it is one of those too:
`except KeyError` catches NotFound, `except TimeoutError` DeadlineExceeded, `except ConnectionError` Unavailable.
"""

__all__ = ['ParamdError']


class ParamdError(Exception):
    """A call was refused or failed. The base of all exceptions of this package."""

    status = 'UNKNOWN'
    code = 2

    def __init__(self, text, *, reason='', retry_ms=0, code=None):
        super().__init__(text)
        self.text = text
        self.reason = reason
        self.retry_ms = retry_ms
        if code is not None:
            self.code = code

    def __str__(self):
        return self.text

    def __repr__(self):
        return f'{type(self).__name__}({self.text!r}, reason={self.reason!r})'

    def __reduce__(self):
        # The keyword arguments would be lost on the way to another process.
        return _rebuild, (type(self), self.text, self.reason, self.retry_ms, self.code)


def _rebuild(kind, text, reason, retry_ms, code):
    return kind(text, reason=reason, retry_ms=retry_ms, code=code)


# code: status, name of the class, what of Python's own it also is
_STATUSES = {
    1: ('CANCELLED', 'Cancelled', ()),
    2: ('UNKNOWN', 'Unknown', ()),
    3: ('INVALID_ARGUMENT', 'InvalidArgument', (ValueError,)),
    4: ('DEADLINE_EXCEEDED', 'DeadlineExceeded', (TimeoutError,)),
    5: ('NOT_FOUND', 'NotFound', (KeyError,)),
    6: ('ALREADY_EXISTS', 'AlreadyExists', ()),
    7: ('PERMISSION_DENIED', 'PermissionDenied', (PermissionError,)),
    8: ('RESOURCE_EXHAUSTED', 'ResourceExhausted', ()),
    9: ('FAILED_PRECONDITION', 'FailedPrecondition', ()),
    10: ('ABORTED', 'Aborted', ()),
    11: ('OUT_OF_RANGE', 'OutOfRange', (OverflowError,)),
    12: ('UNIMPLEMENTED', 'Unimplemented', (NotImplementedError,)),
    13: ('INTERNAL', 'Internal', ()),
    14: ('UNAVAILABLE', 'Unavailable', (ConnectionError,)),
    15: ('DATA_LOSS', 'DataLoss', ()),
    16: ('UNAUTHENTICATED', 'Unauthenticated', (PermissionError,)),
}


def _make_class(code):
    status, name, python = _STATUSES[code]
    also = f', also a {python[0].__name__}' if python else ''
    members = {'__doc__': f'Status {status} ({code}){also}.', '__module__': __name__, 'status': status, 'code': code}
    return type(name, (ParamdError, *python), members)


_CLASSES = {code: _make_class(code) for code in _STATUSES}
globals().update({kind.__name__: kind for kind in _CLASSES.values()})
__all__ += [kind.__name__ for kind in _CLASSES.values()]


def make(code, text, reason='', retry_ms=0):
    """The exception for a status number."""
    kind = _CLASSES.get(code, ParamdError)
    return kind(text, reason=reason, retry_ms=retry_ms, code=code)
