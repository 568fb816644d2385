"""The discretisations of the paper's appendix B as metrics of their own.

They reproduce the paper's figures and are not for new work; `natgrad` has the metrics themselves by
staggered finite volumes and fast transforms.
"""

from .sobolev import CollocatedSobolev
from .transport import CollocatedTransport

__all__ = ["CollocatedSobolev", "CollocatedTransport"]
