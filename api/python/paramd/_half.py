"""bfloat16, for which numpy has no dtype.

paramd.bfloat16 is that of the package ml_dtypes where it is installed. Else it is a dtype of 16 bits that numpy moves about
and does not compute with: a.view(numpy.uint16) has the bits, and from_bfloat16 the numbers. The second kind is taken as
input in any case, and .view(paramd.bfloat16) makes an array of bits a value wherever they come from.
"""

import numpy as np

__all__ = ['BITS', 'bfloat16', 'from_bfloat16', 'to_bfloat16']

BITS = np.dtype([('bfloat16', np.uint16)])

try:
    import ml_dtypes
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    bfloat16 = BITS


def to_bfloat16(array):
    """Numbers as bfloat16, rounded to the nearest, halves to even."""
    wide = np.asarray(array, np.float32)
    bits = np.atleast_1d(wide).view(np.uint32)
    rounded = ((bits + (0x7fff + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    quiet = (bits >> 16 | 0x40).astype(np.uint16)
    return np.where(np.isnan(np.atleast_1d(wide)), quiet, rounded).view(bfloat16).reshape(wide.shape)


def from_bfloat16(array):
    """bfloat16 as float32; nothing is rounded."""
    bits = np.atleast_1d(np.ascontiguousarray(array).view(np.uint16)).astype(np.uint32)
    return (bits << 16).view(np.float32).reshape(np.shape(array))
