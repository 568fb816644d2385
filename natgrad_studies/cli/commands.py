"""The commands by their names, in the order of the help; each has a module of its own.

A command is a dataclass: its fields are the arguments, its docstring and EXAMPLES the help, and
`run(output)` does it. `study` stands apart because its arguments are those of the study named.
"""

from typing import Any

from .compare import Compare
from .completion import Completion
from .listing import Listing
from .report import Report
from .resume import Resume

COMMANDS: dict[str, Any] = {
    "compare": Compare,
    "resume": Resume,
    "report": Report,
    "list": Listing,
    "completion": Completion,
}
